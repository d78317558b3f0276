"""Every update leaves with norm at most S: the guarantee of privacy/bounding/clipping.py, for every
float32.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from curators import SEVEN_WORDS
from harness import exact, noise_key, true_norm
from taciturn import trees
from taciturn.core import Message, Public
from taciturn.data.layout import Layout, Unrolls
from taciturn.data.population import write_population
from taciturn.data.users import position
from taciturn.fleets.simulation.in_process import CPU_CHUNK, SimulatedFleet
from taciturn.privacy.bounding.clipping import (
    MOST_REPORTS,
    Digits,
    clip_schedule,
    decode,
    encode,
    flat_clip,
    no_clip,
    per_layer_clip,
)
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.noise import int64
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import gaussian, no_noise

pytestmark = pytest.mark.optimised

KEY = jax.random.key(0)
ROUND = jnp.int32(0)
any_float32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
SHAPES = [((1,), (2, 3)), ((2, 3), (7,)), ((7,), (1,))]  # few, for few compilations
two_layers = st.sampled_from(SHAPES).flatmap(
    lambda shapes: st.tuples(
        *(hnp.arrays(np.float32, shape, elements=any_float32) for shape in shapes)
    )
)
clip_norms = st.floats(1e-5, 1e5)
bounds = {"flat": flat_clip, "per-layer": per_layer_clip}
encoded = jax.jit(encode, static_argnums=0)
norm_upper_bound = jax.jit(trees.norm_upper_bound)


@functools.cache
def compiled(kind):
    return jax.jit(functools.partial(report_of, bounds[kind](1.0)))


def report_of(bound, public, update, weight):
    return encode(bound, public, update, weight, KEY)


@functools.cache
def side_by_side(clip):
    """Compile a clip for many users, and for clip norms of any size, which devices receive."""
    return jax.jit(jax.vmap(functools.partial(report_of, clip(1.0)), in_axes=(None, 0, 0)))


@pytest.mark.parametrize("kind", bounds)
@settings(max_examples=150, deadline=None)
@given(layers=two_layers, clip_norm=clip_norms, weight=st.floats(width=32))
def test_any_update_and_any_weight_leave_with_a_bounded_norm(kind, layers, clip_norm, weight):
    bound = bounds[kind](clip_norm)
    report = compiled(kind)(
        bound.public(ROUND), dict(zip("ab", layers, strict=True)), np.float32(weight)
    )
    update, sent_weight = exact(report, clip_norm)
    assert 0 <= sent_weight <= 1
    assert true_norm(update) <= sent_weight * float(bound.public(ROUND).clip_norm)
    assert (
        bound.reach * float(bound.step(Public(jnp.float32(1)))) == 1.0
    )  # the largest norm, for a clip norm of 1


def test_a_million_adversarial_values_leave_with_a_bounded_norm():
    """Use values that a plain float32 sum of squares loses: one large, then a million just too
    small to count.
    """
    update = {"a": jnp.concatenate([jnp.ones(1), jnp.full(3_000_000, 2.4e-4)])}
    report = encoded(flat_clip(0.1), flat_clip(0.1).public(ROUND), update, jnp.float32(1), KEY)
    assert (
        0.0999 < true_norm(exact(report, 0.1)[0]) <= np.float32(0.1)
    )  # and hardly anything is lost to safety


def test_an_update_inside_the_ball_is_unchanged():
    bound = flat_clip(1.0)
    update = {"a": jnp.array([0.3, -0.4, 1e-7])}
    report = encoded(bound, bound.public(ROUND), update, jnp.float32(1), KEY)
    np.testing.assert_allclose(
        decode(bound, bound.public(ROUND), report).update["a"], update["a"], atol=1e-9
    )


def test_a_sum_of_the_largest_number_of_reports_is_exact():
    """Add 65,535 of the largest reports: nothing overflows, and one more user moves their sum by
    exactly its report.
    """
    bound = flat_clip(1.0)
    one = encoded(bound, bound.public(ROUND), {"a": jnp.array([1.0, 0.0])}, jnp.float32(1), KEY)
    many = jax.tree.map(lambda leaf: leaf.astype(jnp.int32) * MOST_REPORTS, one)
    assert all(np.all(np.abs(np.asarray(leaf, np.int64)) < 2**31) for leaf in jax.tree.leaves(many))
    np.testing.assert_allclose(exact(many, 1.0)[0]["a"], MOST_REPORTS * exact(one, 1.0)[0]["a"])
    assert exact(many, 1.0)[1] == MOST_REPORTS


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bound", [flat_clip(1.0), per_layer_clip(1.0), no_clip()])
def test_a_poisoned_update_leaves_as_zero_in_every_layer(bound, poison):
    update = {"a": jnp.array([1.0, poison]), "b": jnp.ones(3)}
    report = encoded(bound, bound.public(ROUND), update, jnp.float32(1), KEY)
    assert true_norm(exact(report, 1.0)[0]) == 0


def test_without_the_finite_check_nan_passes_a_clip():
    """The twin that must fail: min(1, S/NaN) lets NaN through."""
    assert np.isnan(
        flat_clip(1.0).project(Public(jnp.float32(1.0)), {"a": jnp.array([np.nan, 1.0])})["a"]
    ).any()


def test_a_clip_that_forgets_its_bound_is_noticed():
    """The twin that must fail: `unbounded` breaks the property that the clips above keep."""
    report = encoded(
        no_clip(), no_clip().public(ROUND), {"a": jnp.full(4, 10.0)}, jnp.float32(1), KEY
    )
    assert true_norm(exact(report, 1.0)[0]) > 1.0


def test_layers_are_clipped_to_equal_shares_or_to_the_given_norms():
    update = {"a": jnp.full(4, 10.0), "b": {"c": jnp.full(9, 10.0)}}
    assert trees.layer_names(update) == ["a", "b/c"]
    equal = per_layer_clip(2.0).project(Public(jnp.float32(2.0)), update)
    assert (
        true_norm(equal["a"])
        == pytest.approx(2**0.5, rel=1e-4)
        == pytest.approx(true_norm(equal["b"]), rel=1e-4)
    )
    given_norms = per_layer_clip(layers={"a": 3.0, "b/c": 4.0})
    assert float(given_norms.public(ROUND).clip_norm) == pytest.approx(5.0)
    clipped = given_norms.project(given_norms.public(ROUND), update)
    assert true_norm(clipped["a"]) == pytest.approx(3, rel=1e-4)
    assert true_norm(clipped["b"]) == pytest.approx(4, rel=1e-4)


def test_clip_norms_for_other_layers_than_the_models_are_refused():
    with pytest.raises(ValueError, match="model's layers are"):
        per_layer_clip(layers={"a": 1.0}).check({"a": jnp.ones(1), "b": jnp.ones(1)})


@pytest.mark.parametrize(
    "steps",
    [[(0, 1.0), (5, 2.0)], [(1, 1.0)], [(0, 2.0), (0, 1.0)], [(0, 0.0)], [(0, float("inf"))], []],
)
def test_a_schedule_that_rises_or_has_no_start_is_refused(steps):
    with pytest.raises(ValueError, match="clip"):
        clip_schedule(steps)


@given(
    values=hnp.arrays(
        np.float32,
        st.sampled_from([1, 50, 200]),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
@settings(max_examples=100, deadline=None)
def test_the_norm_is_never_rounded_below_the_truth(values):
    exact = float(np.linalg.norm(values.astype(np.float64)))
    if exact >= 1e-30:  # below, the clip divides by 1e-30 and changes nothing
        assert float(norm_upper_bound({"a": values})) >= exact


def test_an_update_so_large_that_padding_might_overflow_leaves_as_zero():
    for norm, leaves in ((0.9e6, True), (1.1e6, False), (1e30, False)):
        report = encoded(
            flat_clip(1.0),
            Public(jnp.float32(1.0)),
            {"x": jnp.array([norm])},
            jnp.float32(1),
            jax.random.key(0),
        )
        assert bool(jnp.any(report.update["x"].high != 0)) == leaves


HARD = [1e-45, 1e-39, 1e-20, 1.0, 1e20, 8e37, 9e37, 2e38, 3.4e38]


def report_of_user(user, reports):
    """One user's report, of reports that are stacked."""
    return jax.tree.map(lambda leaf: leaf[user], reports)


@pytest.mark.parametrize("side_by_side", [False, True], ids=["alone", "side by side"])
@pytest.mark.parametrize("bound", [flat_clip(1.0), per_layer_clip(1.0)], ids=["flat", "per layer"])
def test_no_finite_update_exceeds_the_clip_norm(bound, side_by_side):
    private = mechanism(bound, fixed_denominator(1.0), gaussian(1.0))
    public = private.public(private.init({"a": jnp.zeros(5), "b": jnp.zeros(2)}))
    values = np.array(HARD, np.float32)
    updates = {
        "a": np.repeat(values[:, None], 5, axis=1),
        "b": np.stack([values, np.ones_like(values)], axis=1),
    }

    @jax.jit
    def report(update):
        return private.bound(public, update, jnp.float32(1.0), jax.random.key(0))

    if side_by_side:
        reports = jax.vmap(report)(updates)
    else:
        each = [
            report({name: leaf[user] for name, leaf in updates.items()})
            for user in range(len(HARD))
        ]
        reports = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    updates = [exact(report_of_user(user, reports), 1.0)[0] for user in range(len(HARD))]
    norms = [true_norm(update) for update in updates]
    assert all(one <= 1.0 for one in norms), norms  # NaN fails as well


@pytest.mark.parametrize("weight", [7.0, -3.0, np.nan, np.inf, 1e-40])
def test_a_weight_out_of_range_moves_sums_by_no_more_than_the_clip_norm(weight):
    private = mechanism(flat_clip(1.0), fixed_denominator(1.0), gaussian(1.0))
    report = jax.jit(private.bound)(
        Public(jnp.float32(1.0)), {"a": jnp.full(9, 50.0)}, jnp.float32(weight), jax.random.key(0)
    )
    assert 0.0 <= exact(report, 1.0)[1] <= 1.0
    assert true_norm(exact(report, 1.0)[0]) <= 1.0


@pytest.mark.parametrize(
    "clip_norm", [0.0, -1.0, np.nan, np.inf, 1e-45, 9e-38, 9e-35, 9e-7, 1.1e6, 3e38]
)
def test_under_a_clip_norm_that_is_none_every_report_is_zero(clip_norm):
    """Under 9e-35 each coordinate was a whole clip norm long: its reciprocal overflows."""
    for size in (1e-30, 1e-6, 1.0):
        update = {"a": jnp.full(100, size, jnp.float32)}
        for bound in bounds.values():
            report = encoded(bound(1.0), Public(jnp.float32(clip_norm)), update, 1.0, KEY)
            assert true_norm(exact(report, 1.0)[0]) == 0
    assert (
        true_norm(
            exact(encoded(flat_clip(1.0), Public(jnp.float32(1e-6)), update, 1.0, KEY), 1.0)[0]
        )
        > 0.99
    )


def test_rounding_in_a_large_sum_does_not_let_one_user_move_it_by_more_than_the_clip_norm(tmp_path):
    # 2,047 users report 1, one more lifts the sum to 2,048, where floats lie twice as far apart,
    # and 2,000 users report a little more than half that distance: after the one, each of them
    # counts for more than it is.
    many, few = 2048, 2000
    stream = (
        CPU_CHUNK * jax.local_device_count()
    )  # users of one stream come CPU_CHUNK at a time; others are silent
    names = sorted((f"u{k}" for k in range((many + few) * jax.local_device_count())), key=position)
    ours = [user for position, user in enumerate(names) if position % stream < CPU_CHUNK]
    tiny = np.float32(2.0**-13 * (1 + 2.0**-20))
    private = mechanism(flat_clip(1.001), fixed_denominator(1.0), no_noise())
    state = private.init({"x": jnp.zeros(1)})

    def program(message, user, key):
        update = {"x": jnp.where(user.batches[0, 0, 1] == 6, tiny, 1.0) * jnp.ones(1)}
        return private.bound(message.public, update, user.weight, key)

    def estimate(folder: Path, users: dict[str, list[int]]) -> float:
        people = write_population(folder, users, {"held out": [5]}, SEVEN_WORDS, {})
        said = [int(text[0]) for text in people.texts if len(text)]
        assert said == sorted(said)  # those who lift the sum come first, or nothing is tried here
        fleet = SimulatedFleet(people, Layout(cut=Unrolls(1), batch_size=1, steps=1))
        message = Message({"x": jnp.zeros(1)}, private.public(state))
        total = fleet.sum_reports(
            program, message, fleet.users(lambda users: users), jax.random.key(0)
        )
        return float(jax.jit(private.release)(state, total, noise_key(0))[0].estimate["x"][0])

    everyone = (
        {user: [] for user in names}
        | {user: [5] for user in ours[:many]}
        | {user: [6] for user in ours[many:]}
    )
    without = everyone | {ours[many - 1]: []}
    moved = estimate(tmp_path / "with", everyone) - estimate(tmp_path / "without", without)
    assert abs(moved) <= 1.002  # the clip norm, and the noise's own rounding


def test_one_user_moves_a_sum_of_floats_by_far_more():
    """The twin that must fail: the same reports, added as float32."""
    tiny = np.float32(2.0**-13 * (1 + 2.0**-20))

    def total(ones: int) -> float:
        return float(np.cumsum(np.r_[np.ones(ones), np.full(2000, tiny)], dtype=np.float32)[-1])

    assert total(2048) - total(2047) > 1.2


@pytest.mark.parametrize("clip_norm", [1e-6, 0.3, 0.8, 1.0, 3.3333, 1e6])
@pytest.mark.parametrize("clip", [flat_clip, per_layer_clip])
def test_no_report_stands_for_more_than_its_weight_times_the_clip_norm(clip, clip_norm):
    generator, users = np.random.default_rng(0), 120
    directions = {"a": generator.normal(size=(users, 3)), "b": generator.normal(size=(users, 40))}
    lengths = np.sqrt(sum((part**2).sum(1) for part in directions.values()))
    wanted = clip_norm * np.concatenate(
        [1 + generator.uniform(-4e-7, 4e-7, 60), 10 ** generator.uniform(-6, 8, users - 60)]
    )
    updates = {
        name: (part * (wanted / lengths)[:, None]).astype(np.float32)
        for name, part in directions.items()
    }
    weights = np.where(np.arange(users) % 3 == 0, 1.0, generator.uniform(0, 1, users)).astype(
        np.float32
    )
    bound = clip(clip_norm)
    reports = jax.device_get(side_by_side(clip)(bound.public(0), updates, weights))
    for user in range(users):
        update, weight = exact(report_of_user(user, reports), clip_norm)
        assert weight <= weights[user]
        assert true_norm(update) <= weight * float(np.float32(clip_norm))


def test_the_largest_number_of_reports_does_not_overflow():
    one = encoded(
        flat_clip(1.0),
        Public(jnp.float32(1.0)),
        {"x": jnp.array([-9.0])},
        jnp.float32(1.0),
        jax.random.key(0),
    )
    low = encoded(
        flat_clip(1.0),
        Public(jnp.float32(1.0)),
        {"x": jnp.array([1 / 3])},
        jnp.float32(1.0),
        jax.random.key(0),
    )
    for report in (one, low):
        for leaf in jax.tree.leaves(report):
            assert abs(int(np.max(np.abs(leaf)))) * MOST_REPORTS < 2**31
    assert 2**15 * MOST_REPORTS < 2**31


def test_one_more_user_moves_what_is_noised_by_exactly_its_report():
    """A total of integers is exact, and so is what noise is added to; in floats it would not be."""
    cohort, size = 65_000, 64
    bound, per = (
        flat_clip(0.3),
        2**30 // 8 - 12_345,
    )  # less than one user's share of S in each of 64 coordinates
    unpack = jax.jit(bound.unpack)

    def steps(whole: np.ndarray) -> np.ndarray:
        layer = Digits(
            jnp.asarray(whole >> 15, jnp.int32), jnp.asarray(whole & (2**15 - 1), jnp.int32)
        )
        return int64.to_numpy(unpack(bound.public(jnp.int32(0)), {"x": layer})["x"])

    generator, in_floats = np.random.default_rng(0), np.zeros(size, np.float32)
    for _ in range(200):
        others = per * (cohort - 1) - generator.integers(0, 2**21, size)
        np.testing.assert_array_equal(steps(others + per) - steps(others), np.full(size, per))
        moved = (others + per).astype(np.float32) - others.astype(np.float32)
        in_floats = np.maximum(in_floats, moved)
    assert np.linalg.norm(np.full(size, per)) <= bound.reach
    assert np.all(in_floats > per)  # the twin


def test_the_norm_is_right_at_every_scale():
    for scale in 10.0 ** np.arange(-37, 38, dtype=np.float64):
        values = (scale * np.array([3.0, -4.0])).astype(np.float32)
        truth = float(np.linalg.norm(values.astype(np.float64)))
        bound = float(norm_upper_bound({"a": values}))
        assert truth <= bound <= truth * (1 + 1e-5) + 2.0**-124  # below which floats are subnormal


def test_a_plain_norm_is_wrong_at_most_scales():
    """The twin: squares of float32 underflow below 1e-23 and overflow above 1e19."""
    values = np.array([[3e-30, 4e-30], [3e30, 4e30]], np.float32)
    with np.errstate(over="ignore", under="ignore"):
        assert np.sqrt(np.sum(np.square(values), axis=1)).tolist() == [0.0, np.inf]


def test_a_report_is_clipped_and_decoded_by_the_clip_norm_of_its_round():
    made = mechanism(flat_clip([(0, 4.0), (1, 1.0)]), fixed_denominator(1.0), no_noise())
    state = made.init({"x": jnp.zeros(4)})
    for clip_norm in (4.0, 1.0):
        report = jax.jit(made.bound)(
            made.public(state), {"x": jnp.full(4, 50.0)}, jnp.float32(1), jax.random.key(0)
        )
        release, state = jax.jit(made.release)(state, report, noise_key(0))
        assert float(jnp.linalg.norm(release.estimate["x"])) == pytest.approx(clip_norm, rel=1e-4)
