"""Lemma 1 of McMahan et al. 2018, and the counterexample to its assumption."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import from_numpy
from taciturn.core import Report
from taciturn.privacy.bounding.clipping import REACH, STEPS
from taciturn.privacy.bounding.estimators import clipped_denominator, fixed_denominator, mean
from taciturn.privacy.noise import int64


def total(users: list[tuple[float, float]]) -> Report:
    """Sum the reports w·Δ of users given as (weight, Δ), in one dimension."""
    return Report(
        {"a": jnp.array([sum(w * d for w, d in users)])}, jnp.float32(sum(w for w, _ in users))
    )


def value(estimator, users) -> float:
    """Return the estimate in floats, as in a run without privacy."""
    return float(estimator.apply(total(users))["a"][0])


def steps(estimator, users) -> int:
    """Return what is noised, for reports in integers and a clip norm of 1."""
    weights = [math.floor(w * STEPS) for w, _ in users]
    sums = sum(math.trunc(w / STEPS * d * REACH) for w, (_, d) in zip(weights, users, strict=True))
    return int(
        int64.to_numpy(divided(estimator)(from_numpy(np.array([sums])), jnp.int32(sum(weights))))[0]
    )


@functools.cache
def divided(estimator):
    return jax.jit(estimator.steps)


users_strategy = st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), max_size=30)


@pytest.mark.parametrize("estimator", [fixed_denominator(5.0), clipped_denominator(5.0)])
@settings(max_examples=200, deadline=None)
@given(users=users_strategy, one=st.tuples(st.floats(0, 1), st.floats(-1, 1)))
def test_one_user_of_norm_at_most_1_moves_what_is_noised_by_at_most_its_sensitivity(
    estimator, users, one
):
    moved = abs(steps(estimator, [*users, one]) - steps(estimator, users))
    assert moved <= estimator.sensitivity(1) * REACH
    assert moved * estimator.unit / REACH == pytest.approx(
        abs(value(estimator, [*users, one]) - value(estimator, users)), abs=1e-3
    )


@pytest.mark.parametrize("estimator", [fixed_denominator(5.0), clipped_denominator(5.0)])
@given(count=st.integers(0, 65_534), sign=st.sampled_from([-1.0, 1.0]))
@settings(max_examples=50, deadline=None)
def test_the_sensitivity_holds_among_the_largest_number_of_users(estimator, count, sign):
    crowd = from_numpy(np.array([count * int(REACH)])), jnp.int32(count * int(STEPS))
    more = from_numpy(np.array([int((count + sign) * REACH)])), jnp.int32((count + 1) * int(STEPS))
    before, after = (int(int64.to_numpy(divided(estimator)(*one))[0]) for one in (crowd, more))
    assert abs(after - before) <= estimator.sensitivity(1) * REACH


def test_lemma_1_bounds_are_the_papers():
    fixed, clipped = fixed_denominator(20.0), clipped_denominator(20.0)
    assert fixed.sensitivity(1) * fixed.unit == fixed.sensitivity(10**6) * fixed.unit == 1 / 20
    assert clipped.unit == 1
    assert clipped.sensitivity(1) == pytest.approx(2 / 20, rel=1e-7)
    assert (
        clipped.sensitivity(10**6) == 2 / 20 + 10**3 * 2.0**-30
    )  # each coordinate is rounded to a step


def test_bounding_only_the_weighted_update_is_not_enough():
    """100 users with w = .01 and ‖wΔ‖ = S = 1, qW_min = 1: one more user of weight 1 moves f̃_c by
    50 S, not by 2 S.
    """
    crowd, estimator = [(0.01, 100.0)] * 100, clipped_denominator(1.0)
    moved = abs(value(estimator, [*crowd, (1.0, 0.0)]) - value(estimator, crowd))
    assert moved == pytest.approx(50, rel=1e-4)
    assert moved > estimator.sensitivity(1)
    assert (
        abs(steps(estimator, [*crowd, (1.0, 0.0)]) - steps(estimator, crowd))
        > 20 * estimator.sensitivity(1) * REACH
    )


@pytest.mark.parametrize("least", [0.0, -1.0, 1e-5, 65_536.0, float("inf"), float("nan")])
def test_a_least_weight_out_of_range_is_refused(least):
    with pytest.raises(ValueError, match="weight of a cohort"):
        clipped_denominator(least)


def test_the_plain_mean_has_no_bounded_sensitivity_and_an_empty_cohort_gives_zero():
    assert mean().sensitivity(1) == np.inf
    assert value(mean(), []) == 0
    assert value(mean(), [(0.5, 1.0), (0.5, 0.0)]) == pytest.approx(0.5)


def test_the_fixed_denominator_does_not_depend_on_the_cohort():
    """Dividing by the actual cohort is the classic mistake; ten users or a hundred, the denominator
    stays.
    """
    estimator = fixed_denominator(10.0)
    assert value(estimator, [(1.0, 1.0)] * 100) == pytest.approx(10.0)
    assert [steps(estimator, [(1.0, 1.0)] * count) for count in (10, 100)] == [
        10 * REACH,
        100 * REACH,
    ]
