"""The audit of one run: it finds what scores give away, and claims nothing from scores that say nothing."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from taciturn.evaluation.one_run import audited, curve

DELTA = 1e-5


def scores(apart: float, users: int = 1000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    included = generator.random(users) < 0.5
    return generator.normal(size=users) + apart * included, included


def true_epsilon(apart: float) -> float:
    """Of the Gaussian mechanism whose two outcomes lie so far apart."""
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(1 / apart))
    return accountant.get_epsilon(DELTA)


def test_scores_that_say_nothing_bound_nothing():
    found = [audited(*scores(0.0, seed=seed), DELTA) for seed in range(40)]
    assert sum(one.epsilon > 0 for one in found) <= 6  # 5 % of them may
    assert np.mean([one.area for one in found]) == pytest.approx(0.5, abs=0.01)
    assert np.mean([one.true_positives for one in found]) < 0.03


@pytest.mark.parametrize("apart", [0.5, 1.0, 2.0])
def test_the_bound_stays_below_the_truth_and_rises_with_it(apart):
    found = audited(*scores(apart), DELTA)
    assert 0 < found.epsilon < true_epsilon(apart)
    assert found.epsilon_gaussian == pytest.approx(true_epsilon(apart), rel=0.15)
    assert found.epsilon > audited(*scores(apart / 2), DELTA).epsilon


def test_a_broken_mechanism_is_told_from_a_sound_one():
    """The twin: noise that was left out shows scores far apart, and the bound passes a claim that holds for the sound one."""
    claim = true_epsilon(0.5)
    assert audited(*scores(0.5), DELTA).epsilon < claim
    assert audited(*scores(5.0), DELTA).epsilon > claim


def test_perfect_scores_bound_as_much_as_their_number_allows():
    some, many = (audited(*scores(50.0, users), DELTA).epsilon for users in (100, 1000))
    assert 1.0 < some < many < math.log(1000)


def test_the_curve_counts_scores_that_are_alike_together():
    false, true = curve(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False]))
    np.testing.assert_allclose(false, [0, 0, 0.5, 1])
    np.testing.assert_allclose(true, [0, 0.5, 1, 1])


def test_scores_that_are_no_numbers_and_coins_that_all_fell_alike_are_refused():
    with pytest.raises(ValueError, match="diverged"):
        audited(np.array([1.0, np.nan]), np.array([True, False]), DELTA)
    with pytest.raises(ValueError, match="one side"):
        audited(np.ones(3), np.ones(3, bool), DELTA)
