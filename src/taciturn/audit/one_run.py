"""Test whether a mechanism is as private as claimed, by one training with many audit users.

The test also says what it could have seen. A fair coin decided whether each of them was in, and
each has a score. If the mechanism is what is claimed, scores of those who were left out are
standard normal, and those of the others lie μ further, for the μ of their turns: the trade-off
between false and true positives is that of μ-GDP (Dong, Roth and Su 2022). The scores of a
mechanism with noise r times too small lie r·μ apart, in units of their own spread. r is estimated
(Andrew et al. 2023) and bounded from below: above 1, the mechanism is not what is claimed.

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
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import ndtr, ndtri
from scipy.stats import beta

LEVEL = 1e-3
# Around half the typical μ, in standard deviations of the noise.
THRESHOLDS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
# Noise that is more times too small counts as missing.
MOST_TIMES = 1e3
# In standard deviations.
SURPRISE = float(-ndtri(LEVEL / 2))
LIKELY = (0.8, 0.95)


class Audit(NamedTuple):
    """What scores say about a mechanism, in multiples of the μ that is claimed."""

    included: int
    left_out: int
    # Claimed, for the user with the largest.
    mu: float
    # An estimate of r.
    times: float
    # With confidence 1 − LEVEL.
    times_at_least: float
    # Of a report, as found, where 1 is what is claimed.
    signal: float
    # Of the noise, as found, where 1 is what is claimed; people make it larger.
    spread: float
    # How many times too small noise must be to be caught with the probabilities of LIKELY; infinite
    # if none is.
    caught: tuple[float, ...]

    @property
    def is_refuted(self) -> bool:
        return self.times_at_least > 1


def audit_scores(scores: np.ndarray, mu: np.ndarray, included: np.ndarray) -> Audit:
    """Audit a mechanism by the scores of its audit users.

    Args:
        scores: in standard deviations of the claimed noise.
        mu: how far being in moves each of them.
        included: who was in.

    Raises:
        ValueError: nothing can be said from these scores.
    """
    _check_scores(scores, included)
    power = math.sqrt(float(np.sum(mu[included] ** 2)))
    signal = float(mu[included] @ scores[included]) / power**2
    rest = scores - signal * mu * included
    freedom = len(scores) - 1
    spread = math.sqrt(float(rest @ rest) / freedom)
    if spread == 0:
        raise ValueError(
            "all scores are as they would be without noise or people: nothing was trained"
        )
    by_means = _least_times(
        statistic=signal / spread * power,
        freedom=freedom,
        power=power,
    )
    by_curve = _least_times_by_curve(scores=scores, mu=mu, included=included)
    return Audit(
        included=int(included.sum()),
        left_out=int((~included).sum()),
        mu=float(mu.max()),
        times=max(0.0, signal / spread),
        times_at_least=max(by_means, by_curve),
        signal=signal,
        spread=spread,
        caught=_caught_by(
            power=power,
            freedom=freedom,
            signal=signal,
            spread=spread,
        ),
    )


def _check_scores(scores: np.ndarray, included: np.ndarray) -> None:
    if not np.all(np.isfinite(scores)):
        raise ValueError("a score is not a number: the model that was audited has diverged")
    if not np.any(included) or np.all(included):
        raise ValueError("all coins fell on one side: audit with more users")


def _least_times(statistic: float, freedom: int, power: float) -> float:
    """Return the smallest r for which the means are not surprisingly far apart.

    `statistic` is r · `power` but for randomness: a non-central t, by Johnson and Welch's
    approximation, which is on the safe side for the probabilities used here.
    """
    surprise = SURPRISE * _deviation(statistic, freedom)
    return max(0.0, (statistic * _shrinkage(freedom) - surprise) / power)


def _shrinkage(freedom: int) -> float:
    return 1 - 1 / (4 * freedom)


def _deviation(statistic: float, freedom: int) -> float:
    return math.sqrt(1 + statistic**2 / (2 * freedom))


def _least_times_by_curve(*, scores: np.ndarray, mu: np.ndarray, included: np.ndarray) -> float:
    times = []
    for threshold in THRESHOLDS:
        rates = _bound_rates(
            scores > threshold + float(np.mean(mu)) / 2,
            included,
        )
        times.append(_least_times_at(rates, mu[included]))
    return max(times)


def _least_times_at(rates: "_Rates", mu: np.ndarray) -> float:
    """Return the smallest r whose trade-off curve reaches the point at one threshold.

    It is so with confidence for this many users. Where their μ are unequal, the number found varies
    less than with equal ones of the same mean (Hoeffding 1956), whose bounds then hold.
    """
    if rates.true <= rates.false:
        return 0.0

    def missing(times: float) -> float:
        return float(np.mean(ndtr(ndtri(rates.false) + times * mu))) - rates.true

    if missing(MOST_TIMES) < 0:
        return MOST_TIMES
    return root_scalar(missing, bracket=(0.0, MOST_TIMES)).root


class _Rates(NamedTuple):
    """A point of a trade-off curve, with confidence."""

    # How often those who were in are guessed, at least.
    true: float
    # How often those who were left out are, at most.
    false: float


def _bound_rates(is_guessed: np.ndarray, included: np.ndarray) -> _Rates:
    # Of the surprise that is allowed: half is the curve's, for all thresholds and both rates.
    share = LEVEL / 2 / len(THRESHOLDS) / 2
    return _Rates(
        true=_probability_at_least(is_guessed[included], share),
        false=1 - _probability_at_least(~is_guessed[~included], share),
    )


def _probability_at_least(is_hit: np.ndarray, share: float) -> float:
    """Return Clopper and Pearson's lower bound on the probability of a hit."""
    hits = int(is_hit.sum())
    if not hits:
        return 0.0
    misses = len(is_hit) - hits
    return float(beta.ppf(share, hits, misses + 1))


def _caught_by(*, power: float, freedom: int, signal: float, spread: float) -> tuple[float, ...]:
    """Return how many times too small noise must be to be caught, for each of LIKELY."""
    # People who happen to pull a user's way add to the spread of scores, and would still be there
    # without noise.
    people = max(0.0, spread**2 - 1)
    caught = []
    for likely in LIKELY:
        times = least_caught(
            power=power,
            freedom=freedom,
            signal=min(signal, 1.0),
            people=people,
            likely=likely,
        )
        caught.append(times)
    return tuple(caught)


def least_caught(
    *, power: float, freedom: int, signal: float, people: float, likely: float
) -> float:
    """Return the smallest f such that noise f times too small is caught with this probability.

    It is infinite where even missing noise is not caught. The curve's thresholds could only catch
    more.

    Args:
        power: the root of Σ μ² of those who were in.
        freedom: the degrees of freedom of the spread.
        signal: of a report, where 1 is what is claimed.
        people: the variance that people add to scores.
        likely: the probability.
    """
    enough = _statistic_of_bound_one(power, freedom)
    scatter = ndtri(likely) * _deviation(enough, freedom)
    times = (_shrinkage(freedom) * enough + scatter) / power
    noise_variance = (signal / times) ** 2 - people
    can_be_caught = signal > 0 and noise_variance > 0
    return 1 / math.sqrt(noise_variance) if can_be_caught else math.inf


def count_needed_users(audit: Audit, times: float, likely: float) -> int | None:
    """Return how many audit users would catch noise that is this many times too small.

    They are users with the same turns in the same run, half of them in. None where no number of
    them would, because people hide it.

    Args:
        audit: of the run.
        times: how many times too small the noise is.
        likely: the probability.
    """
    for users in _round_numbers():
        factor = least_caught(
            power=audit.mu * math.sqrt(users / 2),
            freedom=users - 1,
            signal=min(audit.signal, 1.0),
            people=max(0.0, audit.spread**2 - 1),
            likely=likely,
        )
        if factor <= times:
            return users
    return None


def _round_numbers() -> Iterator[int]:
    """Yield 100, 110, 120, …, 990, 1,000, 1,100, … up to ten million."""
    for exponent in range(1, 6):
        for digits in range(10, 100):
            yield digits * 10**exponent


def _statistic_of_bound_one(power: float, freedom: int) -> float:
    """Return the statistic for which the bound of `_least_times` is 1.

    It is the larger root of (shrunk · t − power)² = SURPRISE² · (1 + t²/(2 · freedom)).
    """
    shrunk = _shrinkage(freedom)
    square = SURPRISE**2 / (2 * freedom)
    inside = shrunk**2 * SURPRISE**2 + square * (power**2 - SURPRISE**2)
    return (shrunk * power + math.sqrt(inside)) / (shrunk**2 - square)
