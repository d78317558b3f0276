"""Figures with 95 % jackknife intervals over buckets of users (Ramaswamy et al. 2020, Table 2).

Users are the unit, because words of one user are not independent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import stdtrit

BUCKETS = 100

# The figures of some sums over the buckets that are kept, by name.
Figures = dict[str, Callable[[Any, np.ndarray], float]]


@dataclass(frozen=True)
class Interval:
    value: float
    # Half the width of the 95 % interval; not finite where there is one user only.
    margin: float

    @property
    def ends(self) -> tuple[float, float]:
        """Return where the interval begins and ends; one user's is a point."""
        margin = self.margin if math.isfinite(self.margin) else 0.0
        return self.value - margin, self.value + margin

    def __format__(self, spec: str) -> str:
        value = format(self.value, spec)
        if not math.isfinite(self.margin):
            return value
        return f"{value} ± {self.margin:{spec}}"


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over buckets of users, [..., buckets], from which every figure follows.

    A subclass names the sums, and the figures.
    """

    # [buckets]
    tokens: np.ndarray

    metrics: ClassVar[Figures]

    def __getitem__(self, metric: str) -> Interval:
        figure = self.metrics[metric]
        return jackknife(lambda kept: figure(self, kept), len(self.tokens))

    def gain_over(self, other: Self, metric: str = "accuracy_top1") -> Interval:
        """Return the difference on the same users.

        It is paired, and so its interval is much narrower than those of the two figures.
        """
        self._check_same_text(other)
        figure = self.metrics[metric]
        return jackknife(lambda kept: figure(self, kept) - figure(other, kept), len(self.tokens))

    def change_from(self, other: Self, metric: str) -> Interval:
        """Return the relative change on the same users, as A/B tables have it.

        0.01 is one per cent more.
        """
        self._check_same_text(other)
        figure = self.metrics[metric]

        def change(kept: np.ndarray) -> float:
            before = figure(other, kept)
            return figure(self, kept) / before - 1 if before else math.nan

        return jackknife(change, len(self.tokens))

    def _check_same_text(self, other: Self) -> None:
        if len(self.tokens) != len(other.tokens) or np.any(self.tokens != other.tokens):
            raise ValueError("two models can only be compared on the same text")


def share(part: str, whole: str) -> Callable[[Sums, np.ndarray], float]:
    """Return the figure that is one sum over another."""

    def figure(sums: Sums, kept: np.ndarray) -> float:
        total = getattr(sums, whole)[kept].sum()
        if not total:
            return 0.0
        return getattr(sums, part)[kept].sum() / total

    return figure


def jackknife(statistic: Callable[[np.ndarray], float], buckets: int) -> Interval:
    """Return a statistic of all buckets, with its interval.

    Args:
        statistic: of the buckets that are kept, a mask of all.
        buckets: how many there are.
    """
    value = float(statistic(np.ones(buckets, bool)))
    if buckets < 2 or not math.isfinite(value):
        return Interval(value, math.nan)
    deviation = _jackknife_deviation(statistic, buckets)
    # Student's t, because few buckets make wide intervals.
    quantile = float(stdtrit(buckets - 1, 0.975))
    return Interval(value, quantile * deviation)


def _jackknife_deviation(statistic: Callable[[np.ndarray], float], buckets: int) -> float:
    """Return the standard deviation of a statistic."""
    without = _leave_each_out(statistic, buckets)
    # Figures of a model that has diverged may be too large to be squared: their interval is ∞.
    with np.errstate(over="ignore"):
        squares = np.sum(np.square(np.array(without) - np.mean(without)))
    return math.sqrt((buckets - 1) / buckets * squares)


def _leave_each_out(statistic: Callable[[np.ndarray], float], buckets: int) -> list[float]:
    """Return the statistic of all buckets but one, for each."""
    kept = np.ones(buckets, bool)
    without = []
    for bucket in range(buckets):
        kept[bucket] = False
        without.append(float(statistic(kept)))
        kept[bucket] = True
    return without
