"""What results say of a claim: it holds, holds in part, does not hold, or cannot be told.

A claim has parts, each judged by a difference and its 95 % interval. «No difference» fails on a
gain as on a loss; «better» fails where the other is better; and where an interval has both answers
in it, the verdict is that it cannot be told, not the one that was hoped for. One seed of a run by
itself never makes a claim hold: its interval is that of other runs.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from scipy import stats

from lib.results import Group, Measured, Result

CONFIDENCE = 0.95


class Verdict(StrEnum):
    HOLDS = "holds"
    ONE_SEED = "holds in one seed"
    PART = "in part"
    FAILS = "does not hold"
    UNTOLD = "cannot be told"
    CANNOT = "cannot be shown here"
    NOT_RUN = "not measured yet"


# Of several claims.
PLURALS = {
    Verdict.HOLDS: "hold",
    Verdict.ONE_SEED: "hold in the one seed that there is",
    Verdict.PART: "hold in part",
    Verdict.FAILS: "do not hold",
    Verdict.UNTOLD: "cannot be told",
    Verdict.CANNOT: "cannot be shown here",
    Verdict.NOT_RUN: "not measured yet",
}


class Difference(NamedTuple):
    """A difference, and half of its 95 % interval."""

    value: float
    margin: float
    # The least that either side has.
    seeds: int

    @property
    def low(self) -> float:
        return self.value - self.margin

    @property
    def high(self) -> float:
        return self.value + self.margin

    def negate(self) -> "Difference":
        return self._replace(value=-self.value)

    def __str__(self) -> str:
        """Show it in points.

        >>> str(Difference(value=-0.0046, margin=0.0012, seeds=2))
        '−0.46 ± 0.12'
        """
        text = f"{100 * self.value:+.2f} ± {100 * self.margin:.2f}"
        return text.replace("-", "−")


def judge_same(difference: Difference, within: float) -> Verdict:
    """Judge a claim of no difference, which a gain refutes as a loss does.

    >>> judge_same(Difference(value=0.0046, margin=0.001, seeds=2), within=0.003)
    <Verdict.FAILS: 'does not hold'>
    """
    if -within < difference.low and difference.high < within:
        return holds_in(difference.seeds)
    if difference.low > within or difference.high < -within:
        return Verdict.FAILS
    return Verdict.UNTOLD


def judge_more(difference: Difference, than: float = 0.0) -> Verdict:
    """Judge a claim that a difference is larger than something.

    >>> judge_more(Difference(value=0.001, margin=0.002, seeds=2))
    <Verdict.UNTOLD: 'cannot be told'>
    """
    if difference.low > than:
        return holds_in(difference.seeds)
    if difference.high < than:
        return Verdict.FAILS
    return Verdict.UNTOLD


def judge_computed(is_so: bool) -> Verdict:
    """Judge what no seed changes."""
    return Verdict.HOLDS if is_so else Verdict.FAILS


def judge_counted(is_so: bool, seeds: int) -> Verdict:
    """Judge what was counted in every seed, and has no interval."""
    return holds_in(seeds) if is_so else Verdict.FAILS


def holds_in(seeds: int) -> Verdict:
    return Verdict.HOLDS if seeds > 1 else Verdict.ONE_SEED


class Part(NamedTuple):
    """One claim of a row, and what the results say of it."""

    claim: str
    measured: str
    verdict: Verdict


def judge_together(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a row by those of its parts."""
    found = set(verdicts)
    if found == {Verdict.HOLDS}:
        return Verdict.HOLDS
    if found and found <= {Verdict.HOLDS, Verdict.ONE_SEED}:
        return Verdict.ONE_SEED
    if found & {Verdict.HOLDS, Verdict.ONE_SEED, Verdict.PART}:
        return Verdict.PART
    for verdict in (Verdict.FAILS, Verdict.UNTOLD, Verdict.CANNOT):
        if verdict in found:
            return verdict
    return Verdict.NOT_RUN


class Spread(NamedTuple):
    """How far seeds of one run are apart: a standard deviation, and its degrees of freedom."""

    deviation: float
    degrees: int

    def __str__(self) -> str:
        return f"{100 * self.deviation:.2f} points ({self.degrees} degrees of freedom)"


def pool(several: Iterable[Sequence[float]]) -> Spread:
    """Return the spread that runs have in common, from the figures of each run's seeds."""
    squares = 0.0
    degrees = 0
    for values in several:
        squares += float(np.sum((np.asarray(values) - np.mean(values)) ** 2))
        degrees += len(values) - 1
    if not degrees:
        return Spread(deviation=math.inf, degrees=1)
    return Spread(deviation=math.sqrt(squares / degrees), degrees=degrees)


def pool_runs(
    groups: Iterable[tuple[Group, Sequence[str] | None]], metric: str = "accuracy_top1"
) -> Spread:
    """Return the spread of these runs of groups after their last rounds; None means all runs."""
    several = []
    for group, names in groups:
        for name in names or group.found:
            several.append(last_values(group.found[name], metric))
    return pool([values for values in several if len(values) > 1])


def last_values(results: Sequence[Result], metric: str = "accuracy_top1") -> list[float]:
    return [result["rows"][-1][metric] for result in results]


def compare(
    one: Measured, other: Measured, spread: Spread, spread_of_other: Spread | None = None
) -> Difference:
    """Return how far one is above the other, with an interval over seeds.

    The held-out people are the same in both, so that who they happen to be is not in it.
    """
    spread_of_other = spread_of_other or spread
    variance = spread.deviation**2 / one.seeds + spread_of_other.deviation**2 / other.seeds
    degrees = min(spread.degrees, spread_of_other.degrees)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees))
    return Difference(
        value=one.value - other.value,
        margin=quantile * math.sqrt(variance),
        seeds=min(one.seeds, other.seeds),
    )


def subtract(one: Difference, other: Difference) -> Difference:
    """Return the difference of two differences of runs that are independent."""
    return Difference(
        value=one.value - other.value,
        margin=math.hypot(one.margin, other.margin),
        seeds=min(one.seeds, other.seeds),
    )


def subtract_next(one: Difference, other: Difference) -> Difference:
    """Return the difference of two differences, where the second begins with the run with which the
    first ends: that run counts twice, and of three alike the variance is six times one's, where a
    difference of two has twice.
    """
    apart = subtract(one, other)
    return apart._replace(margin=math.sqrt(3) * max(one.margin, other.margin))


def measure_share(share: float, count: int, seeds: int) -> Difference:
    """Return a share of some people, with a 95 % interval: Wilson's, and of its sides the wider.

    >>> found = measure_share(0.97, 200, seeds=1)
    >>> f"{found.low:.3f} to {found.high:.3f}"
    '0.936 to 1.004'
    """
    quantile = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    middle = (share + quantile**2 / (2 * count)) / (1 + quantile**2 / count)
    half = quantile * math.sqrt(share * (1 - share) / count + (quantile / (2 * count)) ** 2)
    half /= 1 + quantile**2 / count
    margin = max(middle + half - share, share - (middle - half))
    return Difference(value=share, margin=margin, seeds=seeds)


def correlate(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a 95 % interval of a correlation (Fisher's z)."""
    found = float(np.corrcoef(one, other)[0, 1])
    quantile = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    margin = quantile / math.sqrt(max(len(one) - 3, 1))
    # A correlation of ±1 has no z.
    z = math.atanh(max(-0.999999, min(0.999999, found)))
    return math.tanh(z - margin), math.tanh(z + margin)


def correlate_ranks(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return a rank correlation, and the ends of its 95 % interval."""
    ranks = stats.rankdata(one)
    ranks_of_other = stats.rankdata(other)
    low, high = correlate(ranks, ranks_of_other)
    return float(np.corrcoef(ranks, ranks_of_other)[0, 1]), low, high
