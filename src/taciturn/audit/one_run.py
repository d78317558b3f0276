"""Test whether a mechanism is as private as claimed, by one training with many audit users, and say
what the test could have seen.

A fair coin decided whether each of them was in, and each has a score. If the mechanism is what is
claimed, scores of those who were left out are standard normal, and those of the others lie μ
further, for the μ of their turns: the trade-off between false and true positives is that of μ-GDP
(Dong, Roth and Su 2022). The scores of a mechanism with noise r times too small lie r·μ apart, in
units of their own spread. r is estimated (Andrew et al. 2023) and bounded from below: above 1, the
mechanism is not what is claimed.

**Guarantee:** where scores are independent, and for each user at least as hard to tell apart as
under μ-GDP, `times_at_least` is above 1 at most once in a thousand audits (`LEVEL`). Half of that
is spent on how far apart the means are, measured in their spread, which for normal scores is exact
but for an approximation on the safe side. The other half is spent on the curve itself, at
thresholds that are fixed in advance, by Clopper and Pearson's bounds, which assume no shape: so
noise that is missing only now and then is also seen.

**Assumes:** users whose directions are orthogonal have independent scores under Gaussian noise, and
coins are fair. It says nothing about mechanisms that are μ-GDP with noise that many users share:
such scores need another bound (Mahloujifar et al. 2024), and ours has none.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import ndtr, ndtri
from scipy.stats import beta

LEVEL = 1e-3
# around half the typical μ, in standard deviations of the noise
THRESHOLDS = (
    -3.0,
    -2.0,
    -1.0,
    0.0,
    1.0,
    2.0,
    3.0,
)
# beyond which noise counts as missing
MOST_TIMES = 1e3
# in standard deviations
SURPRISE = float(-ndtri(LEVEL / 2))
LIKELY = (0.8, 0.95)


class Audit(NamedTuple):
    """What scores say about a mechanism, in multiples of the μ that is claimed."""

    included: int
    left_out: int
    # claimed, for the user with the largest
    mu: float
    # an estimate of r
    times: float
    # with confidence 1 − LEVEL
    times_at_least: float
    # of a report, as found, where 1 is what is claimed
    signal: float
    # of the noise, as found, where 1 is what is claimed; people make it larger
    spread: float
    # how many times too small noise must be to be caught with the probabilities of LIKELY; infinite
    # if none is
    caught: tuple[float, ...]

    @property
    def refuted(self) -> bool:
        return self.times_at_least > 1


def audit_scores(scores: np.ndarray, mu: np.ndarray, included: np.ndarray) -> Audit:
    """Audit. `scores` are in standard deviations of the claimed noise, `mu` says how far being in
    moves each, `included` who was in.
    """
    if not np.all(np.isfinite(scores)):
        raise ValueError("a score is not a number: the model that was audited has diverged")
    if not np.any(included) or np.all(included):
        raise ValueError("all coins fell on one side: audit with more users")
    power = math.sqrt(float(np.sum(mu[included] ** 2)))
    signal = float(mu[included] @ scores[included]) / power**2
    rest = scores - signal * mu * included
    freedom = len(scores) - 1
    spread = math.sqrt(float(rest @ rest) / freedom)
    if spread == 0:
        raise ValueError(
            "all scores are as they would be without noise or people: nothing was trained"
        )
    by_means = _least_times(signal / spread * power, freedom, power)
    by_curve = [_least_times_at(threshold, scores, mu, included) for threshold in THRESHOLDS]
    # People who happen to pull a user's way add to the spread of scores, and would still be there
    # without noise.
    people = max(0.0, spread**2 - 1)
    caught = tuple(
        least_caught(power, freedom, min(signal, 1.0), people, likely) for likely in LIKELY
    )
    times, at_least = max(0.0, signal / spread), max(by_means, *by_curve)
    return Audit(
        int(included.sum()),
        int((~included).sum()),
        float(mu.max()),
        times,
        at_least,
        signal,
        spread,
        caught,
    )


def _least_times(statistic: float, freedom: int, power: float) -> float:
    """Return the smallest r for which the means are not surprisingly far apart; `statistic` is r ·
    `power` but for chance: a non-central t, by Johnson and Welch's approximation, which is on the
    safe side for the probabilities used here.
    """
    shrunk = 1 - 1 / (4 * freedom)
    return max(0.0, (statistic * shrunk - SURPRISE * _wide(statistic, freedom)) / power)


def _wide(statistic: float, freedom: int) -> float:
    return math.sqrt(1 + statistic**2 / (2 * freedom))


def _least_times_at(
    threshold: float, scores: np.ndarray, mu: np.ndarray, included: np.ndarray
) -> float:
    """Return the smallest r whose trade-off curve reaches the point at one threshold, with
    confidence for this many users. Where their μ are unequal, the number found varies less than
    with equal ones of the same mean (Hoeffding 1956), whose bounds then hold.
    """
    guessed = scores > threshold + float(np.mean(mu)) / 2
    share = LEVEL / 2 / len(THRESHOLDS) / 2
    true = _at_least(int(guessed[included].sum()), int(included.sum()), share)
    false = 1 - _at_least(int((~guessed[~included]).sum()), int((~included).sum()), share)
    if true <= false:
        return 0.0

    def missing(times: float) -> float:
        return float(np.mean(ndtr(ndtri(false) + times * mu[included]))) - true

    return (
        MOST_TIMES
        if missing(MOST_TIMES) < 0
        else root_scalar(missing, bracket=(0.0, MOST_TIMES)).root
    )


def _at_least(hits: int, of: int, share: float) -> float:
    """Return Clopper and Pearson's lower bound on a probability."""
    return float(beta.ppf(share, hits, of - hits + 1)) if hits else 0.0


def least_caught(power: float, freedom: int, signal: float, people: float, likely: float) -> float:
    """Return the smallest f such that noise f times too small is caught with this probability;
    infinite where even missing noise is not. `power` is the root of Σ μ² of those who were in. The
    curve's thresholds could only catch more.
    """
    shrunk, square = 1 - 1 / (4 * freedom), SURPRISE**2 / (2 * freedom)
    # Where the bound of `_least_times` is 1: the larger root of (shrunk · t − power)² = SURPRISE² ·
    # (1 + t²/(2 · freedom)).
    inside = shrunk**2 * SURPRISE**2 + square * (power**2 - SURPRISE**2)
    enough = (shrunk * power + math.sqrt(inside)) / (shrunk**2 - square)
    times = (shrunk * enough + ndtri(likely) * _wide(enough, freedom)) / power
    # of the noise's variance
    left = (signal / times) ** 2 - people
    return 1 / math.sqrt(left) if signal > 0 and left > 0 else math.inf
