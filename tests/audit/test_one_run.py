"""The test of one run: it catches noise that is too small, accuses nobody who keeps their word, and
knows what it can see.
"""

import math

import numpy as np
import pytest
from scipy.stats import nct, norm

from taciturn.audit.one_run import LEVEL, LIKELY, Audit, _least_times, audit_scores, least_caught


def audit(mu=1.0, times=1.0, people=0.0, users=1000, seed=0) -> Audit:
    """Of users whose scores are as a mechanism with noise so many times too small would make
    them.
    """
    generator = np.random.default_rng(seed)
    included = generator.random(users) < 0.5
    each = generator.choice(np.atleast_1d(mu), users)
    spread = math.sqrt(times**-2 + people)
    return audit_scores(included * each + spread * generator.normal(size=users), each, included)


@pytest.mark.parametrize(
    ("mu", "users", "people"),
    [
        (1.0, 1000, 0.0),
        pytest.param(0.2, 10_000, 0.0, marks=pytest.mark.slow),
        pytest.param(5.0, 1000, 0.0, marks=pytest.mark.slow),
        (1.0, 64, 0.0),
        pytest.param(1.0, 1000, 0.3, marks=pytest.mark.slow),
        ([0.5, 1.0, 2.0], 1000, 0),
    ],
)
def test_a_mechanism_that_keeps_its_word_is_accused_less_than_once_in_a_thousand_audits(
    mu, users, people
):
    """200 of each kind: that two are accused has a chance of one in fifty, if the level is what it
    is said to be.
    """
    found = [audit(mu, 1.0, people, users, seed) for seed in range(200)]
    assert sum(one.is_refuted for one in found) <= 1
    assert np.mean([one.times for one in found]) == pytest.approx(
        1 / math.sqrt(1 + people), rel=0.05
    )


@pytest.mark.parametrize(("users", "times"), [(1000, 2.0), (1000, 1.5), (10_000, 1.2)])
def test_noise_that_is_too_small_is_caught(users, times):
    """The twin."""
    found = [audit(1.0, times, 0.0, users, seed) for seed in range(6)]
    assert all(one.is_refuted for one in found)
    assert all(1 < one.times_at_least < times for one in found)
    assert np.mean([one.times for one in found]) == pytest.approx(times, rel=0.1)
    assert np.mean([one.spread for one in found]) == pytest.approx(1 / times, rel=0.05)


def test_reports_that_are_too_long_are_caught_as_well():
    generator = np.random.default_rng(0)
    included = generator.random(1000) < 0.5
    found = audit_scores(2.0 * included + generator.normal(size=1000), np.ones(1000), included)
    assert found.is_refuted
    assert found.signal == pytest.approx(2.0, rel=0.1)


def test_a_level_of_one_in_twenty_would_accuse_the_innocent():
    """The twin of the first: with the bound that holds 95 times out of 100, some of these audits
    are false alarms.
    """
    generator, alarms = np.random.default_rng(1), 0
    for _ in range(200):
        included = generator.random(1000) < 0.5
        scores = included + generator.normal(size=1000)
        apart = scores[included].mean() - scores[~included].mean()
        error = math.sqrt(1 / included.sum() + 1 / (~included).sum())
        alarms += apart - norm.isf(0.05) * error > 1.0
    assert alarms >= 4


@pytest.mark.parametrize(
    ("mu", "users", "people"),
    [
        pytest.param(1.0, 1000, 0.0, marks=pytest.mark.slow),
        pytest.param(0.3, 1000, 0.0, marks=pytest.mark.slow),
        (1.0, 1000, 0.3),
        (3.0, 200, 0),
    ],
)
def test_what_it_says_it_would_catch_it_does_catch(mu, users, people):
    power = mu * math.sqrt(users / 2)
    for likely in LIKELY:
        factor = least_caught(
            power=power, freedom=users - 1, signal=1.0, people=people, likely=likely
        )
        found = np.mean([audit(mu, factor, people, users, seed).is_refuted for seed in range(200)])
        assert likely - 0.06 < found  # more, by a little: the curve helps
        assert (
            np.mean(
                [
                    audit(mu, 1 + (factor - 1) / 3, people, users, seed).is_refuted
                    for seed in range(50)
                ]
            )
            < likely
        )


def test_where_people_drown_it_nothing_is_caught_and_it_says_so():
    assert audit(mu=0.3, people=5.0, users=200).caught == (math.inf, math.inf)
    assert audit(mu=0.3, people=0.0, users=10_000).caught < (1.5, 1.5)  # the twin


@pytest.mark.parametrize(("users", "mu"), [(64, 0.5), (1000, 0.1), (1000, 5.0), (10_000, 1.0)])
def test_the_bound_from_means_is_that_of_a_non_central_t_and_never_above_it(users, mu):
    freedom, power = users - 1, mu * math.sqrt(users / 2)
    statistic = nct.isf(LEVEL / 2, freedom, power)  # for which the bound is 1
    assert 0.9 < _least_times(statistic, freedom, power) <= 1.0


def test_reports_that_are_too_long_now_and_then_are_seen_by_the_curve_and_not_by_means():
    """One report in sixteen comes a hundred times too long. Means are apart, but so wide is the
    spread that they do not look it.
    """
    generator, users = np.random.default_rng(0), 10_000
    included = generator.random(users) < 0.5
    far = np.where(generator.random(users) < 1 / 16, 100.0, 1.0)
    found = audit_scores(
        0.5 * included * far + generator.normal(size=users), np.full(users, 0.5), included
    )
    assert found.is_refuted
    power = 0.5 * math.sqrt(found.included)
    assert _least_times(found.times * power, users - 1, power) < 1


def test_scores_that_are_no_numbers_and_coins_that_all_fell_alike_are_refused():
    with pytest.raises(ValueError, match="diverged"):
        audit_scores(np.array([1.0, np.nan]), np.ones(2), np.array([True, False]))
    with pytest.raises(ValueError, match="one side"):
        audit_scores(np.ones(3), np.ones(3), np.ones(3, bool))
    with pytest.raises(ValueError, match="nothing was trained"):
        audit_scores(np.zeros(3), np.ones(3), np.array([True, False, True]))
