"""Lemma 1 of McMahan et al. 2018, and the counterexample to its assumption."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.core import Report
from taciturn.privacy.estimators import clipped_denominator, fixed_denominator, mean


def total(users: list[tuple[float, float]]) -> Report:
    """Users are (weight, Δ) in one dimension; their reports are w·Δ."""
    return Report({"a": jnp.array([sum(w * d for w, d in users)])}, jnp.float32(sum(w for w, _ in users)))


def value(estimator, users) -> float:
    return float(estimator.apply(total(users))["a"][0])


users_strategy = st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), max_size=30)


@pytest.mark.parametrize("estimator", [fixed_denominator(5.0), clipped_denominator(5.0)])
@settings(max_examples=200, deadline=None)
@given(users=users_strategy, one=st.tuples(st.floats(0, 1), st.floats(-1, 1)))
def test_one_user_of_norm_at_most_1_moves_the_estimate_by_at_most_its_sensitivity(estimator, users, one):
    assert abs(value(estimator, [*users, one]) - value(estimator, users)) <= estimator.sensitivity * (1 + 1e-4) + 1e-6


def test_lemma_1_bounds_are_the_papers():
    assert fixed_denominator(20.0).sensitivity == 1 / 20
    assert clipped_denominator(20.0).sensitivity == 2 / 20


def test_the_counterexample_bounding_the_weighted_update_alone_is_not_enough():
    """100 users with w = .01 and ‖wΔ‖ = S = 1, qW_min = 1: one more user of weight 1 moves f̃_c by 50 S, not by 2 S."""
    crowd = [(0.01, 100.0)] * 100
    moved = abs(value(clipped_denominator(1.0), [*crowd, (1.0, 0.0)]) - value(clipped_denominator(1.0), crowd))
    assert moved == pytest.approx(50, rel=1e-4)
    assert moved > clipped_denominator(1.0).sensitivity


def test_the_plain_mean_has_no_bounded_sensitivity_and_an_empty_cohort_gives_zero():
    assert mean().sensitivity == np.inf
    assert value(mean(), []) == 0
    assert value(mean(), [(0.5, 1.0), (0.5, 0.0)]) == pytest.approx(0.5)


def test_the_fixed_denominator_does_not_look_at_who_came():
    """Dividing by the actual cohort is the classic mistake; ten users or a hundred, the denominator stays."""
    assert value(fixed_denominator(10.0), [(1.0, 1.0)] * 100) == pytest.approx(10.0)
