"""Figures with 95 % jackknife intervals over buckets of users (Ramaswamy et al. 2020, Table 2):
words of one user are not independent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import stdtrit

BUCKETS = 100

# of sums over the buckets that are kept, by name
Figures = dict[str, Callable[[Any, np.ndarray], float]]


@dataclass(frozen=True)
class Interval:
    value: float
    # half the width of the 95 % interval
    margin: float

    @property
    def ends(self) -> tuple[float, float]:
        # of one user it is a point
        margin = self.margin if math.isfinite(self.margin) else 0.0
        return self.value - margin, self.value + margin

    def __format__(self, spec: str) -> str:
        # of one user
        return (
            f"{self.value:{spec}} ± {self.margin:{spec}}"
            if math.isfinite(self.margin)
            else f"{self.value:{spec}}"
        )


@dataclass(frozen=True)
class Sums:
    """Sums over buckets of users, [..., buckets]: every figure follows from them. A subclass names
    them, and its figures.
    """

    # [buckets]
    tokens: np.ndarray

    metrics: ClassVar[Figures]

    def __getitem__(self, metric: str) -> Interval:
        return jackknife(lambda kept: self.metrics[metric](self, kept), len(self.tokens))

    def gain_over(self, other: Self, metric: str = "accuracy_top1") -> Interval:
        """Return the difference on the same users, paired: a much narrower interval than two
        apart.
        """
        self._check_same_text(other)
        return jackknife(
            lambda kept: self.metrics[metric](self, kept) - self.metrics[metric](other, kept),
            len(self.tokens),
        )

    def change_from(self, other: Self, metric: str) -> Interval:
        """Return the relative change on the same users, as A/B tables have it: 0.01 is one per cent
        more.
        """
        self._check_same_text(other)

        def change(kept: np.ndarray) -> float:
            before = self.metrics[metric](other, kept)
            return self.metrics[metric](self, kept) / before - 1 if before else math.nan

        return jackknife(change, len(self.tokens))

    def _check_same_text(self, other: Self) -> None:
        if len(self.tokens) != len(other.tokens) or np.any(self.tokens != other.tokens):
            raise ValueError("two models can only be compared on the same text")


def share(part: str, whole: str) -> Callable[[Sums, np.ndarray], float]:
    """Return the figure that is one sum over another."""

    def figure(sums: Sums, kept: np.ndarray) -> float:
        of = getattr(sums, whole)[kept].sum()
        return getattr(sums, part)[kept].sum() / of if of else 0.0

    return figure


def jackknife(statistic: Callable[[np.ndarray], float], buckets: int) -> Interval:
    everyone = np.ones(buckets, bool)
    value = float(statistic(everyone))
    if buckets < 2 or not math.isfinite(value):
        return Interval(value, math.nan)
    without = []
    for bucket in range(buckets):
        everyone[bucket] = False
        without.append(float(statistic(everyone)))
        everyone[bucket] = True
    spread = math.sqrt(
        (buckets - 1) / buckets * sum((one - np.mean(without)) ** 2 for one in without)
    )
    # Student's t: few buckets make wide intervals
    return Interval(value, float(stdtrit(buckets - 1, 0.975)) * spread)
