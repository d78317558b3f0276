"""Noise has the stated standard deviation, and no two coordinates share any."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from harness import nobody, noise_key
from taciturn.privacy.bounding.clipping import flat_clip, no_clip, per_layer_clip
from taciturn.privacy.bounding.estimators import clipped_denominator, fixed_denominator, mean
from taciturn.privacy.noise import correlated, int64, sampler
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import gaussian, no_noise

ZERO = {
    "a": jnp.zeros((100, 50)),
    "b": jnp.zeros((100, 50)),
    "c": jnp.zeros(3),
    "number": jnp.float32(0),
}


def released(made, round: int = 0, state=None) -> dict:
    release, _ = jax.jit(made.release)(
        state or made.init(ZERO), nobody(made, ZERO), noise_key(round, seed=5)
    )
    return release.estimate


CASES = [
    (mechanism(flat_clip(3.0), fixed_denominator(20.0), gaussian(1.5)), 1.5 * 3 / 20),
    (mechanism(per_layer_clip(3.0), fixed_denominator(20.0), gaussian(0.7)), 0.7 * 3 / 20),
    (mechanism(flat_clip(3.0), clipped_denominator(20.0), gaussian(1.5)), 1.5 * 2 * 3 / 20),
]


@pytest.mark.parametrize(("made", "stddev"), CASES)
def test_the_noise_has_the_stated_deviation_and_not_two_thirds_or_three_halves_of_it(made, stddev):
    draws = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(released(made))])
    assert stats.kstest(draws / stddev, "norm").pvalue > 1e-3
    assert stats.kstest(draws / (stddev * 2 / 3), "norm").pvalue < 1e-9
    assert stats.kstest(draws / (stddev * 3 / 2), "norm").pvalue < 1e-9


def test_no_two_leaves_and_no_two_rounds_share_noise():
    made = CASES[0][0]
    first, second = released(made, 0), released(made, 1)
    pairs = [(first["a"], first["b"]), (first["a"], second["a"]), (first["a"][0], first["a"][1])]
    for left, right in pairs:
        assert abs(np.corrcoef(np.ravel(left), np.ravel(right))[0, 1]) < 0.5
        assert not np.any(np.asarray(left) == np.asarray(right))


def test_one_stream_for_two_leaves_is_noticed():
    """The twin that must fail: one key and one stream give the same noise again."""
    spread, key = sampler.spread(1e6), noise_key(0)
    first, again, other = (
        int64.to_numpy(sampler.white(spread, key, stream, 500)) for stream in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.any(first == other)


def test_noise_falls_with_the_clip_norm_and_costs_the_same():
    made = mechanism(flat_clip([(0, 4.0), (1, 1.0)]), fixed_denominator(1.0), gaussian(1.0))
    state = made.init(ZERO)
    before, state = jax.jit(made.release)(state, nobody(made, ZERO), noise_key(0))
    after, state = jax.jit(made.release)(state, nobody(made, ZERO), noise_key(1))
    assert np.std(before.estimate["a"]) == pytest.approx(4.0, rel=0.05)
    assert np.std(after.estimate["a"]) == pytest.approx(1.0, rel=0.05)
    assert float(made.public(state).clip_norm) == 1.0


@pytest.mark.parametrize(
    ("bound", "estimator"), [(no_clip(), fixed_denominator(1.0)), (flat_clip(1.0), mean())]
)
def test_noise_without_a_bounded_sensitivity_is_refused(bound, estimator):
    with pytest.raises(ValueError, match="bounded sensitivity"):
        mechanism(bound, estimator, gaussian(1.0))


def test_no_noise_is_charged_as_no_privacy():
    from dp_accounting import NonPrivateDpEvent

    from taciturn.privacy.participation import PoissonSampling

    made = mechanism(flat_clip(1.0), fixed_denominator(1.0), no_noise())
    assert made.event(PoissonSampling(0.1)) == NonPrivateDpEvent()
    assert np.all(released(made)["a"] == 0)


def test_tails_reach_further_than_those_of_a_float32_normal():
    """A float32 normal is made of 23 random bits and stops near 5.4 standard deviations; a table
    reaches 16.
    """
    edge = float(jax.scipy.special.erfinv(jnp.float32(1 - 2**-23)) * np.sqrt(2))
    assert edge < 5.5
    table = tuple(map(jnp.asarray, sampler.cumulative_table()))
    most = jnp.full(1, 2**32 - 2, jnp.uint32)
    largest = sampler.draw_discrete(
        table, most, lambda _: [jnp.uint32(2**32 - 1)] * 3, jnp.asarray(sampler.search_guide())
    )
    assert int(largest[0]) > 12 * sampler.BASE


@pytest.mark.parametrize("multiplier", [0.0, -1.0, 1e-40, float("inf"), float("nan")])
def test_an_invalid_noise_multiplier_is_refused(multiplier):
    with pytest.raises(ValueError, match="positive"):
        gaussian(multiplier)


@pytest.mark.parametrize(
    ("expected_weight", "multiplier"), [(8e37, 0.9), (1e37, 1e-2), (1.0, 1e-40)]
)
def test_a_float_too_coarse_for_noise_is_too_coarse_for_the_total(expected_weight, multiplier):
    """Noise is added before anything is a float: a float loses the same digits of both, never only
    of the noise.
    """
    try:
        private = mechanism(
            flat_clip(1.0), fixed_denominator(expected_weight), gaussian(multiplier)
        )
        state = private.init({"x": jnp.zeros(4)})
    except ValueError:
        return
    update = {"x": jnp.array([1.0, 0.0, 0.0, 0.0])}
    for weight in (0.0, 1.0):
        total = private.bound(private.public(state), update, jnp.float32(weight), jax.random.key(0))
        released, _ = jax.jit(private.release)(state, total, noise_key(0))
        seen = np.asarray(released.estimate["x"]) != 0
        assert np.all(seen) or not np.any(seen)


@pytest.mark.parametrize("noise", [gaussian(1.0), correlated.tree(1.0, 4), no_noise()])
def test_every_value_of_every_layer_is_noised(noise):
    made = mechanism(flat_clip(1.0), fixed_denominator(1.0), noise)
    release, _ = jax.jit(made.release)(made.init(ZERO), nobody(made, ZERO), noise_key(1))
    is_noised = noise.multiplier > 0  # the twin: without noise, none is
    assert all(
        np.all((np.asarray(leaf) != 0) == is_noised) for leaf in jax.tree.leaves(release.estimate)
    )


# ── exactly: with one deviation in place of noise; last, because what was compiled is forgotten
# when noise is replaced ──────────


@pytest.mark.usefixtures("one_deviation")
@pytest.mark.parametrize(("made", "stddev"), CASES)
def test_the_noise_is_not_off_by_a_millionth(made, stddev):
    for leaf in jax.tree.leaves(released(made)):
        np.testing.assert_allclose(leaf, stddev, rtol=2e-6)


@pytest.mark.usefixtures("one_deviation")
def test_noise_is_made_for_the_longest_report_whatever_the_cohort():
    for cohort in (1, 1000, 65_000):
        layer, private = (
            {"x": jnp.zeros(64)},
            mechanism(flat_clip(0.3), fixed_denominator(1.0), gaussian(1e-3), cohort),
        )
        released, _ = jax.jit(private.release)(
            private.init(layer), nobody(private, layer), noise_key(0)
        )
        np.testing.assert_allclose(released.estimate["x"], 1e-3 * 0.3, rtol=1e-6)
