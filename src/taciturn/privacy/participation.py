"""Who takes part in a round, and what may be claimed about it: step A) of McMahan et al. 2018.

**Guarantee:** `event` describes the distribution that `select` draws from.

**Assumes:** nobody outside the curator learns who was selected; every member of the cohort is in the sum (`sampled_by_curator`).
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent

from taciturn.core import Strategy, UserIds
from taciturn.privacy.accounting import CorrelatedDpEvent
from taciturn.privacy.noise import INDEPENDENT


@dataclass(frozen=True)
class PoissonSampling:
    """Each user independently with probability q. The size of a cohort varies; it may be empty."""

    probability: float
    adjacency = "add or remove one user"
    sampled_by_curator = True
    limits = None

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ValueError(f"a sampling probability lies in (0, 1]; {self.probability} does not")

    def select(self, available: UserIds, generator: np.random.Generator) -> UserIds:
        return available[generator.random(len(available)) < self.probability]

    def event(self, noise_multiplier: float, strategy: Strategy = INDEPENDENT) -> DpEvent:
        _check_independent(strategy)
        gaussian = GaussianDpEvent(noise_multiplier)
        return gaussian if self.probability == 1 else PoissonSampledDpEvent(self.probability, gaussian)


class WrongNumberOfUsers(Exception):
    """There are fewer or more users than the cost was worked out for."""


@dataclass(frozen=True)
class FixedSize:
    """Exactly `size` users, uniformly without replacement, from a population of at least `users`.

    Departs from Ramaswamy et al. 2020, Table 5: a fixed-size round that loses one user gains another, so the sum moves by up to
    2S, not S. The cost is stated for 2S, that is for half the noise multiplier.
    """

    size: int
    users: int
    adjacency = "replace one user by another"
    sampled_by_curator = True
    limits = None

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.users:
            raise ValueError(f"a cohort of {self.size} cannot be drawn without replacement from {self.users} users")

    def select(self, available: UserIds, generator: np.random.Generator) -> UserIds:
        if len(available) < self.users:
            raise WrongNumberOfUsers(
                f"fixed-size rounds are accounted for {self.users} users, but fewer are there: the cost would be understated; "
                "lower participation.users in the recipe"
            )
        return np.sort(generator.choice(available, self.size, replace=False))

    def event(self, noise_multiplier: float, strategy: Strategy = INDEPENDENT) -> DpEvent:
        _check_independent(strategy)
        gaussian = GaussianDpEvent(noise_multiplier / 2)
        if self.size == self.users:
            return gaussian
        return SampledWithoutReplacementDpEvent(self.users, self.size, gaussian)


def _check_independent(strategy: Strategy) -> None:
    if strategy.name != "independent":
        raise ValueError(
            f"{strategy.name} noise is correlated over rounds, where sampling proves nothing: use a min-separation participation"
        )


@dataclass(frozen=True)
class MinSeparation:
    """Whoever is there may take part, but not again within `min_separation` rounds, and at most `max_participations` times (Xu et al.
    2023, §2.2). Nothing is claimed about how a cohort comes about; the curator checks every one against its log before it is summed.

    Neighbours differ in one user's reports, which are zero in one of them (Kairouz et al. 2021, Definition 1.1).
    """

    size: int  # m, the report goal
    min_separation: int  # MinS: rounds strictly between two participations of a user
    max_participations: int  # MaxP
    rounds: int  # T
    adjacency = "zero out one user"
    sampled_by_curator = False

    @property
    def limits(self) -> tuple[int, int]:
        return self.min_separation, self.max_participations

    def __post_init__(self) -> None:
        if self.size < 1 or self.min_separation < 0 or self.max_participations < 1 or self.rounds < 1:
            raise ValueError(
                "a min-separation participation needs a report goal, a separation ≥ 0 and at least one participation"
            )

    def select(self, available: UserIds, generator: np.random.Generator) -> UserIds:
        if len(available) < self.size:
            raise WrongNumberOfUsers(
                f"only {len(available)} users may take part in this round, and {self.size} are wanted: the others took part less than "
                f"{self.min_separation} rounds ago, or {self.max_participations} times. Lower the cohort or the separation"
            )
        return np.sort(generator.choice(available, self.size, replace=False))

    def event(self, noise_multiplier: float, strategy: Strategy) -> DpEvent:
        if self.rounds > strategy.rows:
            raise ValueError(f"there is noise for {strategy.rows} rounds, and the claim is about {self.rounds}")
        # Charged up front, for all rounds: when to stop may depend on what was seen.
        counts = sorted({self.rounds, min(strategy.rows, self.rounds + spare_rounds(self.rounds))})
        squares = [strategy.sensitivity_squared(n, self.min_separation, self.max_participations) for n in counts]
        rising = itertools.accumulate(squares, max)  # as it must, but for rounding
        claim = (
            f"{strategy.name} noise; at least {self.min_separation} rounds between two participations of a user, at most "
            f"{self.max_participations} participations"
        )
        return CorrelatedDpEvent(noise_multiplier, tuple(zip(counts, rising, strict=True)), claim)


def spare_rounds(rounds: int) -> int:
    """Rows of noise beyond the rounds, for those that a crash makes necessary to do again."""
    return 8 + rounds // 50


def default_delta(users: int) -> float:
    """δ = K^−1.1, smaller than one over the number of users (McMahan et al. 2018, Table 1)."""
    return math.pow(users, -1.1)
