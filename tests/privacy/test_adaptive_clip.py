"""Adaptive clipping: what one user can do, how much noise each part gets, and when the clip norm
changes.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import nobody, noise_key
from taciturn.core import Public, Report
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip, centred_bit
from taciturn.privacy.bounding.clipping import REACH
from taciturn.privacy.noise import int64, sampler
from taciturn.privacy.noise.correlated import Buffers, blt, tree
from taciturn.privacy.noise.mechanism import adaptive_mechanism, choose_grid
from taciturn.privacy.noise.white import gaussian
from taciturn.privacy.participation import MinSeparation

SIZE = 400
ZERO = {"x": jnp.zeros(SIZE)}
GOAL, MULTIPLIER = 100.0, 2.0
CLIP = AdaptiveClip(start=1.0, count_stddev=5.0)


@functools.cache
def private(clip=CLIP, noise=None, most_reports=200):
    return adaptive_mechanism(clip, GOAL, noise or tree(MULTIPLIER, 4, 4, 8), most_reports)


@functools.cache
def releasing():
    """Compile the release of the mechanism that most tests share, once."""
    return jax.jit(private().release)


@functools.cache
def bounding():
    return jax.jit(private().bound)


def reports(mechanism, state, norm, users=1, weight=1.0):
    """Return the total of `users` users whose updates all have the same norm."""
    update = {"x": jnp.full(SIZE, norm / np.sqrt(SIZE))}
    one = mechanism.bound(mechanism.public(state), update, jnp.float32(weight), jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf * users, one)


def test_theorem_1_with_the_papers_figures():
    assert AdaptiveClip(start=5.0, count_stddev=6500 / 20).update_multiplier(7.0) == pytest.approx(
        7.0004, abs=5e-5
    )
    assert AdaptiveClip(start=5.0, count_stddev=1e9).update_multiplier(7.0) == pytest.approx(7.0)


@pytest.mark.parametrize("count_stddev", [0.5, 1.0])
def test_a_count_that_would_cost_more_than_the_round_is_refused(count_stddev):
    with pytest.raises(ValueError, match="raise clipped_count_stddev above 1"):
        AdaptiveClip(start=1.0, count_stddev=count_stddev).update_multiplier(2.0)


def effect(update, bit, clip=CLIP):
    """Return how far a report moves the noised sums of updates and bits together, in standard
    deviations of their noise.
    """
    return float(
        np.hypot(update / (clip.update_multiplier(MULTIPLIER) * 1.0), bit / clip.count_stddev)
    )


@settings(max_examples=60, deadline=None)
@given(
    norm=st.one_of(st.floats(0, 1e20), st.sampled_from([np.nan, np.inf, 1.0, 0.9999999])),
    weight=st.one_of(st.floats(-1, 2), st.just(np.nan)),
)
def test_update_and_bit_together_move_sums_no_further_than_an_update_at_z(norm, weight):
    mechanism = private()
    state = mechanism.init(ZERO)
    update = {"x": np.full(SIZE, np.float32(norm / np.sqrt(SIZE)))}
    report = bounding()(mechanism.public(state), update, np.float32(weight), jax.random.key(0))
    packed, halves = report.update
    length = np.linalg.norm(
        (np.asarray(packed["x"].high, float) * 2**15 + np.asarray(packed["x"].low)) * 2.0**-30
    )
    assert int(halves) in (-1, 0, 1)
    assert effect(length, int(halves) / 2) <= 1 / MULTIPLIER * (1 + 1e-9)


def test_a_bit_that_is_not_centred_costs_more():
    """The twin that must fail: Theorem 1's factor 2 is the centring."""
    assert effect(1.0, 0.5) == pytest.approx(1 / MULTIPLIER)
    assert effect(1.0, 1.0) > 1.01 / MULTIPLIER


def test_bits_tell_whether_an_update_is_within_the_estimate_and_are_0_without_a_user():
    norms = Public(clip_norm=jnp.float32(1.0), estimate=jnp.float32(2.0))
    for length, expected in ((1.9, 1), (2.1, -1), (np.nan, -1), (np.inf, -1)):
        assert int(centred_bit(norms, {"x": jnp.array([length])}, jnp.bool_(True))) == expected
        assert int(centred_bit(norms, {"x": jnp.array([length])}, jnp.bool_(False))) == 0


def test_the_papers_closed_form_is_one_gamma_short():
    """Algorithm 1 as printed, C⁰ · exp(−η (Σ b̃ − tγ)): it moves even if exactly a share γ is
    within the estimate, and ours does not.
    """
    adaptive, gamma, start = (
        AdaptiveClip(start=1.0, count_stddev=5.0, target_quantile=0.5),
        0.5,
        1.0,
    )
    norms, shares = adaptive.init(), [0.5, 0.8, 0.3]
    assert float(adaptive.follow(norms, jnp.float32(gamma)).estimate) == start
    for share in shares:
        norms = adaptive.follow(norms, jnp.float32(share))
    last = len(shares) - 1  # t, from 0
    as_printed = start * np.exp(-adaptive.learning_rate * (sum(shares) - last * gamma))
    assert float(norms.estimate) == pytest.approx(
        as_printed * np.exp(adaptive.learning_rate * gamma)
    )


def test_the_clip_norm_changes_at_restarts_only_and_becomes_the_estimate():
    mechanism = private()
    state, release = mechanism.init(ZERO), releasing()
    for round in range(16):
        before = mechanism.public(state)
        _, state = release(state, reports(mechanism, state, 3.0, users=100), noise_key(round))
        after = mechanism.public(state)
        assert float(after.estimate) != float(before.estimate)
        if round + 1 in (4, 8):
            assert float(after.clip_norm) == float(after.estimate) != float(before.clip_norm)
        else:
            assert float(after.clip_norm) == float(before.clip_norm)


def test_the_estimate_finds_the_quantile_from_below_and_from_above():
    """Half of the users send updates of at most this norm, half of more."""
    norm, segment = 3.0, Buffers(100, (0.9,), (0.4,))
    mechanism = private(noise=blt(0.5, segment, segment))

    @jax.jit
    def after(state, key):
        parts = jax.vmap(lambda size: reports(mechanism, state, size, users=10))(
            jnp.linspace(0.1, 2 * norm, 10)
        )
        return mechanism.release(
            state, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), parts), key
        )[1]

    for start in (0.1, 30.0):
        state = mechanism.init(ZERO)._replace(
            norms=AdaptiveClip(start=start, count_stddev=5.0).init()
        )  # so that both share a program
        for round in range(200):
            state = after(state, noise_key(round))
        assert float(mechanism.public(state).estimate) == pytest.approx(norm, rel=0.25)


def test_each_round_is_noised_for_the_clip_norm_its_reports_were_made_under():
    """The pitfall: noise calibrated to a clip norm that has just been changed. Rows are compared
    with noise in known units.
    """
    noise, mechanism = tree(MULTIPLIER, 4, 4, 8), private()
    multiplier = CLIP.update_multiplier(MULTIPLIER)
    bits, spread = choose_grid(
        noise, deviation=multiplier * REACH, reach=REACH, largest=REACH * 200, size=SIZE
    )
    assert spread.deviation == pytest.approx(multiplier * REACH * 2**bits, rel=1e-9)
    state, units, norms = mechanism.init(ZERO), noise.init(SIZE), []
    nothing, release = nobody(mechanism, ZERO), releasing()

    @jax.jit
    def unit(state, key):
        return noise.next(state, lambda stream: sampler.white(spread, key, 2 * stream, SIZE))

    for round in range(16):
        norm = float(mechanism.public(state).clip_norm)
        released, state = release(state, nothing, noise_key(round))
        row, units = unit(units, noise_key(round))
        expected = multiplier * norm / GOAL * int64.to_numpy(row) / spread.deviation
        assert np.asarray(released.estimate["x"]) == pytest.approx(expected, rel=1e-5, abs=1e-9)
        norms.append(norm)
    assert len(set(norms)) == 3


def test_updates_and_counts_are_noised_independently_and_each_as_strongly_as_charged():
    """Measure over many seeds: the first row's noise is z_Δ C/m on updates and σ_b on the count."""
    mechanism = private()
    state, estimates, firsts, shares = mechanism.init(ZERO), [], [], []
    nothing, release = nobody(mechanism, ZERO), releasing()
    for seed in range(400):
        released, after = release(state, nothing, noise_key(0, seed))
        estimates.append(float(jnp.std(released.estimate["x"])))
        firsts.append(float(released.estimate["x"][0]))
        shares.append(
            -np.log(float(mechanism.public(after).estimate)) / 0.2
        )  # b̃ − γ, where b̃ = ½ + noise/m
        assert shares[-1] == pytest.approx(float(released.share) - 0.5, abs=1e-5)
    wanted = CLIP.update_multiplier(MULTIPLIER) / GOAL
    assert np.mean(estimates) == pytest.approx(wanted, rel=0.01)
    assert np.std(shares) == pytest.approx(5.0 / GOAL, rel=0.12)
    assert np.mean(shares) == pytest.approx(0.0, abs=0.01)
    assert abs(np.corrcoef(firsts, shares)[0, 1]) < 0.2


def test_a_recorded_release_leads_to_the_same_state():
    mechanism = private()
    release, follow = releasing(), jax.jit(mechanism.follow)
    went = followed = mechanism.init(ZERO)
    for round in range(6):
        total = reports(mechanism, went, 3.0, users=100)
        before, (released, went) = went, release(went, total, noise_key(round))
        followed = follow(followed, released, noise_key(round))
        assert same_bits(went, followed)
        # The twins that must fail: another key, and another share of users within the clip norm.
        assert not same_bits(went.noise, follow(before, released, noise_key(round, seed=1)).noise)
        assert not same_bits(
            went.norms,
            follow(before, released._replace(share=jnp.float32(0)), noise_key(round)).norms,
        )
    assert int(followed.round) == 6
    assert float(followed.norms.clip_norm) != 1.0  # it was restarted after four rows


def same_bits(left, right) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(left), jax.tree.leaves(right)))


def test_the_cost_is_that_of_z_and_its_claim_mentions_the_count():
    claim = MinSeparation(size=100, min_separation=3, max_participations=4, rounds=15)
    event, plain = (
        private().event(claim),
        claim.event(MULTIPLIER, tree(MULTIPLIER, 4, 4, 8).strategy),
    )
    assert "how many updates were within the clip norm" in event.claim
    assert dataclasses.replace(event, claim=plain.claim) == plain


def test_unsuitable_parts_of_adaptive_clipping_are_refused():
    with pytest.raises(ValueError, match="needs such noise"):
        private(noise=gaussian(2.0))
    for wrong in (
        {"start": 0.0},
        {"target_quantile": 1.0},
        {"learning_rate": 0.0},
        {"count_stddev": 0.0},
    ):
        with pytest.raises(ValueError, match=r"adaptive clipping needs|clip norm lies"):
            dataclasses.replace(CLIP, **wrong)
    with pytest.raises(ValueError, match="hold 65535"):
        private(most_reports=10**6)


def test_a_report_carries_its_bit_as_an_integer():
    mechanism = private()
    report = reports(mechanism, mechanism.init(ZERO), 0.5, users=3)
    assert isinstance(report, Report)
    assert report.update[1].dtype == jnp.int32
    assert int(report.update[1]) == 3


def test_one_user_moves_an_adaptive_round_by_the_clip_norm_in_force_and_by_half_a_count():
    made, release = private(), releasing()
    state = made.init(ZERO)
    crowd = reports(made, state, 100.0, users=100)  # all longer than the estimate, which rises
    _, state = release(state, crowd, noise_key(0))
    before = made.public(state)
    assert float(before.estimate) > 1.01 * float(
        before.clip_norm
    )  # the twin: confusing the two would show
    without, with_one = (
        release(state, reports(made, state, 100.0, weight=weight), noise_key(1))
        for weight in (0.0, 1.0)
    )
    moved = jnp.linalg.norm(with_one[0].estimate["x"] - without[0].estimate["x"])
    assert float(moved) == pytest.approx(float(before.clip_norm) / 100.0, rel=1e-3)
    estimates = [float(made.public(after).estimate) for _, after in (without, with_one)]
    assert np.log(estimates[1] / estimates[0]) / 0.2 == pytest.approx(0.5 / 100.0, rel=1e-2)
