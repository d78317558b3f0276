"""Who takes part in a round, and what may be claimed about it: step A) of McMahan et al. 2018.

**Guarantee:** `event` describes the distribution that `select` draws from.

**Assumes:** nobody outside the curator learns who was selected; every member of the cohort is in the sum (`sampled_by_curator`).
"""

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent

from taciturn.core import UserIds


@dataclass(frozen=True)
class PoissonSampling:
    """Each user independently with probability q. The size of a cohort varies; it may be empty."""

    probability: float
    adjacency = "add or remove one user"
    sampled_by_curator = True

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ValueError(f"a sampling probability lies in (0, 1]; {self.probability} does not")

    def select(self, available: UserIds, generator: np.random.Generator) -> UserIds:
        return available[generator.random(len(available)) < self.probability]

    def event(self, noise_multiplier: float) -> DpEvent:
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

    def event(self, noise_multiplier: float) -> DpEvent:
        gaussian = GaussianDpEvent(noise_multiplier / 2)
        if self.size == self.users:
            return gaussian
        return SampledWithoutReplacementDpEvent(self.users, self.size, gaussian)


def default_delta(users: int) -> float:
    """δ = K^−1.1, smaller than one over the number of users (McMahan et al. 2018, Table 1)."""
    return math.pow(users, -1.1)
