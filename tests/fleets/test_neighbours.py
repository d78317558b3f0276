"""How many neighbours a device needs, against brute force, simulation and scipy's hypergeometric distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from taciturn.fleets.secure_aggregation.neighbours import FEWEST, UNLIKELY, Degree, degree, neighbours, ring

SHARES = [(0.0, 0.0), (0.0, 0.6), (0.1, 0.05), (0.2, 0.1), (0.3, 0.0), (0.3, 0.1), (0.3, 0.3)]


def log2_failures(cohort, dropouts, corrupt, chosen):
    """Of security and of correctness, from scipy."""
    lost, bad = (math.floor(share * cohort + 1e-9) for share in (dropouts, corrupt))
    k, t = chosen
    both = cohort * stats.hypergeom(cohort - 1, bad, k).sf(2 * t - k - 1)
    cut_off = cohort * stats.hypergeom(cohort, lost + bad, k // 2).pmf(k // 2) if k < cohort - 1 else 0.0
    missing = cohort * stats.hypergeom(cohort - 1, lost, k).sf(k - t)
    return [math.log2(max(float(chance), 2.0**-200)) for chance in (both + cut_off, missing)]


@pytest.mark.parametrize(("dropouts", "corrupt"), SHARES)
@pytest.mark.parametrize("cohort", [102, 150, 300, 1000, 6500])
def test_the_bounds_hold_and_one_neighbour_pair_fewer_would_not_do(cohort, dropouts, corrupt):
    chosen = degree(cohort, dropouts, corrupt)
    assert max(log2_failures(cohort, dropouts, corrupt, chosen)) <= -UNLIKELY + 1e-6
    higher = Degree(chosen.neighbours, chosen.threshold + 1)
    assert chosen.threshold == chosen.neighbours or log2_failures(cohort, dropouts, corrupt, higher)[1] > -UNLIKELY - 1e-6
    if FEWEST < chosen.neighbours < cohort - 1:
        k = chosen.neighbours - 2
        fewer = (max(log2_failures(cohort, dropouts, corrupt, Degree(k, t))) for t in range(chosen.threshold - 20, chosen.threshold + 1))
        assert min(fewer) > -UNLIKELY - 1e-6


@given(st.integers(2, 101), st.floats(0, 0.99), st.floats(0, 0.99))
def test_in_a_small_cohort_everyone_is_a_neighbour_and_nothing_is_left_to_chance(cohort, dropouts, corrupt):
    lost, bad = math.floor(dropouts * cohort + 1e-9), math.floor(corrupt * cohort + 1e-9)
    try:
        k, t = degree(cohort, dropouts, corrupt)
    except ValueError as why:
        assert "no secure sum" in str(why)  # noqa: PT017
        assert 2 * (cohort - 1 - lost) <= cohort - 1 + bad
        return
    assert (k, t) == (cohort - 1, cohort - 1 - lost)
    assert 2 * t > k + bad


def test_shares_that_are_none_are_refused():
    for dropouts, corrupt in ((-0.1, 0), (0, 1.0), (float("nan"), 0), (0, float("nan"))):
        with pytest.raises(ValueError, match="between 0 and 1"):
            degree(50, dropouts, corrupt)


def test_the_bound_agrees_with_simulation_where_failure_can_be_seen():
    """With far too few neighbours for the drop-outs the union bound is above what happens, and not by much."""
    cohort, k, t, lost, generator = 60, 10, 6, 18, np.random.default_rng(0)
    order = [bytes([one]) for one in range(cohort)]
    near = [{one[0] for one in neighbours(order, place, k)} for place in range(cohort)]
    failed = 0
    for _ in range(2000):
        gone = set(generator.choice(cohort, lost, replace=False).tolist())
        failed += any(len(one - gone) < t for one in near)
    bound = cohort * stats.hypergeom(cohort - 1, lost, k).sf(k - t)
    assert 0.05 * bound < failed / 2000 < bound


@given(st.integers(3, 40), st.integers(1, 19), st.binary(max_size=4))
def test_neighbours_are_mutual_and_as_many_as_asked(cohort, half, name):
    order = ring(name, [bytes([one]) for one in range(cohort)])
    count = min(2 * half, cohort - 1)
    near = {order[place]: neighbours(order, place, count) for place in range(cohort)}
    for one, others in near.items():
        assert len(others) == count
        assert one not in others
        assert all(one in near[other] for other in others)


def test_the_order_is_another_for_every_cohort_and_each_place_is_as_likely():
    digests = [bytes([one]) for one in range(10)]
    places = [ring(str(number).encode(), digests).index(digests[3]) for number in range(2000)]
    assert stats.chisquare(np.bincount(places, minlength=10)).pvalue > 1e-6
