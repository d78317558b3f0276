"""Any update leaves with norm at most S: the guarantee of privacy/clipping.py, for every float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness import exact
from taciturn import trees
from taciturn.privacy.clipping import (
    MOST_REPORTS,
    clip_schedule,
    decode,
    encode,
    flat_clip,
    layer_names,
    per_layer_clip,
    unbounded,
)

KEY = jax.random.key(0)
ROUND = jnp.int32(0)
any_float32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
any_layer = hnp.arrays(
    np.float32, st.sampled_from([(1,), (2, 3), (7,)]), elements=any_float32
)  # few shapes, few compilations
clip_norms = st.floats(1e-5, 1e5)
bounds = {"flat": flat_clip, "per-layer": per_layer_clip}


@functools.cache
def compiled(kind):
    return jax.jit(lambda public, update, weight: encode(bounds[kind](1.0), public, update, weight, KEY))


def true_norm(update) -> float:
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(update))))


@pytest.mark.parametrize("kind", bounds)
@settings(max_examples=300, deadline=None)
@given(first=any_layer, second=any_layer, clip_norm=clip_norms, weight=st.floats(width=32))
def test_any_update_and_any_weight_leave_with_a_bounded_norm(kind, first, second, clip_norm, weight):
    bound = bounds[kind](clip_norm)
    report = compiled(kind)(bound.public(ROUND), {"a": first, "b": second}, np.float32(weight))
    update, sent_weight = exact(report, clip_norm)
    assert 0 <= sent_weight <= 1
    assert true_norm(update) <= sent_weight * float(bound.public(ROUND))
    assert bound.reach * float(bound.step(jnp.float32(1))) == 1.0  # the largest norm, for a clip norm of 1


def test_a_million_adversarial_values_leave_with_a_bounded_norm():
    """Values that make a plain float32 sum of squares lose most of them: one large, then a million just too small to count."""
    update = {"a": jnp.concatenate([jnp.ones(1), jnp.full(3_000_000, 2.4e-4)])}
    report = encode(flat_clip(0.1), flat_clip(0.1).public(ROUND), update, jnp.float32(1), KEY)
    assert 0.0999 < true_norm(exact(report, 0.1)[0]) <= np.float32(0.1)  # and hardly anything is lost to safety


def test_an_update_inside_the_ball_is_left_alone():
    bound = flat_clip(1.0)
    update = {"a": jnp.array([0.3, -0.4, 1e-7])}
    report = encode(bound, bound.public(ROUND), update, jnp.float32(1), KEY)
    np.testing.assert_allclose(decode(bound, bound.public(ROUND), report).update["a"], update["a"], atol=1e-9)


def test_a_sum_of_reports_is_exact_up_to_the_most_that_may_be_added():
    """65,535 of the largest reports do not overflow, and one more user moves their sum by exactly what it reports."""
    bound = flat_clip(1.0)
    one = encode(bound, bound.public(ROUND), {"a": jnp.array([1.0, 0.0])}, jnp.float32(1), KEY)
    many = jax.tree.map(lambda leaf: leaf.astype(jnp.int32) * MOST_REPORTS, one)
    assert all(np.all(np.abs(np.asarray(leaf, np.int64)) < 2**31) for leaf in jax.tree.leaves(many))
    np.testing.assert_allclose(exact(many, 1.0)[0]["a"], MOST_REPORTS * exact(one, 1.0)[0]["a"])
    assert exact(many, 1.0)[1] == MOST_REPORTS


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bound", [flat_clip(1.0), per_layer_clip(1.0), unbounded()])
def test_a_poisoned_update_leaves_as_zero_in_every_layer(bound, poison):
    update = {"a": jnp.array([1.0, poison]), "b": jnp.ones(3)}
    report = encode(bound, bound.public(ROUND), update, jnp.float32(1), KEY)
    assert true_norm(exact(report, 1.0)[0]) == 0


def test_without_the_finite_check_nan_would_pass_a_clip():
    """The twin that must fail: min(1, S/NaN) lets NaN through."""
    assert np.isnan(flat_clip(1.0).project(jnp.float32(1.0), {"a": jnp.array([np.nan, 1.0])})["a"]).any()


def test_a_clip_that_forgets_its_bound_is_noticed():
    """The twin that must fail: `unbounded` breaks the property that the clips above keep."""
    report = encode(unbounded(), unbounded().public(ROUND), {"a": jnp.full(4, 10.0)}, jnp.float32(1), KEY)
    assert true_norm(exact(report, 1.0)[0]) > 1.0


def test_layers_are_clipped_to_equal_shares_or_to_the_given_norms():
    update = {"a": jnp.full(4, 10.0), "b": {"c": jnp.full(9, 10.0)}}
    assert layer_names(update) == ["a", "b/c"]
    equal = per_layer_clip(2.0).project(jnp.float32(2.0), update)
    assert true_norm(equal["a"]) == pytest.approx(2**0.5, rel=1e-4) == pytest.approx(true_norm(equal["b"]), rel=1e-4)
    given_norms = per_layer_clip(layers={"a": 3.0, "b/c": 4.0})
    assert float(given_norms.public(ROUND)) == pytest.approx(5.0)
    clipped = given_norms.project(given_norms.public(ROUND), update)
    assert true_norm(clipped["a"]) == pytest.approx(3, rel=1e-4)
    assert true_norm(clipped["b"]) == pytest.approx(4, rel=1e-4)


def test_clip_norms_for_other_layers_than_the_models_are_refused():
    with pytest.raises(ValueError, match="model's layers are"):
        per_layer_clip(layers={"a": 1.0}).check({"a": jnp.ones(1), "b": jnp.ones(1)})


@pytest.mark.parametrize(
    "steps", [[(0, 1.0), (5, 2.0)], [(1, 1.0)], [(0, 2.0), (0, 1.0)], [(0, 0.0)], [(0, float("inf"))], []]
)
def test_a_schedule_that_rises_or_has_no_start_is_refused(steps):
    with pytest.raises(ValueError, match="clip"):
        clip_schedule(steps)


@given(
    values=hnp.arrays(
        np.float32, st.sampled_from([1, 50, 200]), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)
@settings(max_examples=200, deadline=None)
def test_the_norm_is_never_rounded_below_the_truth(values):
    exact = float(np.linalg.norm(values.astype(np.float64)))
    if exact >= 1e-30:  # below, the clip divides by 1e-30 and changes nothing
        assert float(trees.norm_upper_bound({"a": jnp.asarray(values)})) >= exact


def test_an_update_so_large_that_padding_might_overflow_leaves_as_zero():
    for norm, leaves in ((0.9e6, True), (1.1e6, False), (1e30, False)):
        report = encode(flat_clip(1.0), jnp.float32(1.0), {"x": jnp.array([norm])}, jnp.float32(1), jax.random.key(0))
        assert bool(jnp.any(report.update["x"].high != 0)) == leaves
