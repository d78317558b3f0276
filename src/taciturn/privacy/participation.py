"""Who takes part in a round, and what may be claimed about it: step A) of McMahan et al. 2018.

**Guarantee:** `event` describes the distribution that `select` draws from.

**Assumes:** only the curator learns who was selected; every member of the cohort is in the sum
(`sampled_by_curator`).
"""

import itertools
import math
from dataclasses import dataclass

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from taciturn.core import Coins, Strategy, UserIds
from taciturn.errors import TaciturnError
from taciturn.privacy.accounting.events import CorrelatedDpEvent
from taciturn.privacy.noise.sensitivity import most_participations
from taciturn.privacy.noise.white import INDEPENDENT

# of defaults: below it loss distributions are lost in rounding, and (1 + e^ε)·2⁻⁶⁰ counts
LEAST_DELTA = 1e-15


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

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        return coins.sample(available, self.probability)

    def event(self, noise_multiplier: float, strategy: Strategy = INDEPENDENT) -> DpEvent:
        _check_independent(strategy)
        gaussian = GaussianDpEvent(noise_multiplier)
        return (
            gaussian if self.probability == 1 else PoissonSampledDpEvent(self.probability, gaussian)
        )


class WrongNumberOfUsers(TaciturnError):
    """There are fewer or more users than the cost was computed for."""


@dataclass(frozen=True)
class FixedSize:
    """Exactly `size` users, uniformly without replacement, from a population of at least `users`.
    Departs from Ramaswamy et al. 2020, Table 5: a fixed-size round that loses one user gains
    another, so the sum moves by up to 2S, not S. The cost is stated for 2S, that is for half the
    noise multiplier.
    """

    size: int
    users: int
    adjacency = "replace one user by another"
    sampled_by_curator = True
    limits = None

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.users:
            raise ValueError(
                f"a cohort of {self.size} cannot be drawn without replacement from {self.users}"
                " users"
            )

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        if len(available) < self.users:
            few = f"fixed-size rounds are accounted for {self.users} users, but fewer are there"
            raise WrongNumberOfUsers(
                f"{few}: the cost would be understated; lower participation.users in the recipe"
            )
        return coins.choose(available, self.size)

    def event(self, noise_multiplier: float, strategy: Strategy = INDEPENDENT) -> DpEvent:
        _check_independent(strategy)
        gaussian = GaussianDpEvent(noise_multiplier / 2)
        if self.size == self.users:
            return gaussian
        return SampledWithoutReplacementDpEvent(self.users, self.size, gaussian)


def _check_independent(strategy: Strategy) -> None:
    if strategy.name != "independent":
        raise ValueError(
            f"{strategy.name} noise is correlated over rounds, where sampling proves nothing: use"
            " min-separation"
        )


@dataclass(frozen=True)
class MinSeparation:
    """Any user may take part, but not again within `min_separation` rounds, and at most
    `max_participations` times (Xu et al. 2023, §2.2). Nothing is claimed about how a cohort is
    chosen; the curator checks every one against its log before it is summed. Neighbours differ in
    one user's reports, which are zero in one of them (Kairouz et al. 2021, Definition 1.1).
    """

    # m, the report goal
    size: int
    # MinS: rounds strictly between two participations of a user
    min_separation: int
    # MaxP
    max_participations: int
    # T
    rounds: int
    # how many are asked for each report that is needed
    over_selection: float = 1.0
    adjacency = "zero out one user"
    sampled_by_curator = False

    @property
    def asked(self) -> int:
        return math.ceil(self.over_selection * self.size)

    @property
    def limits(self) -> tuple[int, int]:
        return self.min_separation, self.max_participations

    def __post_init__(self) -> None:
        if (
            min(self.size, self.max_participations, self.rounds, self.over_selection) < 1
            or self.min_separation < 0
        ):
            raise ValueError(
                "a min-separation participation needs a report goal, a separation ≥ 0 and at least"
                " one participation"
            )

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        if len(available) < self.asked:
            few = (
                f"only {len(available)} users may take part in this round, and {self.asked} are"
                " wanted"
            )
            others = (
                f"the others took part less than {self.min_separation} rounds ago, or"
                f" {self.max_participations} times"
            )
            raise WrongNumberOfUsers(f"{few}: {others}. Lower the cohort or the separation")
        return coins.choose(available, self.asked)

    def event(self, noise_multiplier: float, strategy: Strategy) -> DpEvent:
        counts = _counts(self.rounds, strategy)
        squares = [
            strategy.sensitivity_squared(n, self.min_separation, self.max_participations)
            for n in counts
        ]
        # as it must, but for rounding
        rising = itertools.accumulate(squares, max)
        turns = f"at least {self.min_separation} rounds between two participations of a user"
        claim = f"noise: {strategy.name}; {turns}, at most {self.max_participations} participations"
        costs = (GaussianDpEvent(noise_multiplier / math.sqrt(square)) for square in rising)
        return CorrelatedDpEvent(tuple(zip(counts, costs, strict=True)), claim)


@dataclass(frozen=True)
class CyclicPoisson:
    """Users take turns, and the curator draws who takes theirs: in row t those whose number is t
    modulo `cycle`, each independently with probability q. With noise that correlates no rows as far
    apart as that, a user's turns are separate Gaussian mechanisms, and sampling makes each of them
    cheaper (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization").

    Neighbours differ in one user's reports, as with MinSeparation: numbers are places in the list
    of users, which stays the same.
    """

    # q, of taking a turn
    probability: float
    cycle: int
    # T
    rounds: int
    adjacency = "zero out one user"
    sampled_by_curator = True

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1 or self.cycle < 1 or self.rounds < 1:
            turns = (
                f"users who take turns every {self.cycle} rounds would have to come with"
                f" probability {self.probability:.3g}"
            )
            raise ValueError(f"{turns}: fewer bands, or smaller cohorts")

    @property
    def limits(self) -> tuple[int, int]:
        return self.cycle - 1, most_participations(
            self.rounds + spare_rounds(self.rounds), self.cycle - 1
        )

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        turn = available[available % self.cycle == row % self.cycle]
        return coins.sample(turn, self.probability)

    def event(self, noise_multiplier: float, strategy: Strategy) -> DpEvent:
        if strategy.bands is None or strategy.bands > self.cycle:
            far = (
                f"correlates rows further apart than the {self.cycle} rounds between two turns of a"
                " user, where sampling proves nothing"
            )
            raise ValueError(
                f"{strategy.name} noise {far}: use banded noise with no more bands than that"
            )
        counts = _counts(self.rounds, strategy)
        turn = GaussianDpEvent(
            noise_multiplier
            / math.sqrt(strategy.sensitivity_squared(counts[-1], self.cycle - 1, 1))
        )
        sampled = turn if self.probability == 1 else PoissonSampledDpEvent(self.probability, turn)
        taken = f"takes it with probability {self.probability:.3g}, drawn by the curator"
        claim = f"noise: {strategy.name}; a user has a turn every {self.cycle} rounds and {taken}"
        return CorrelatedDpEvent(
            tuple(
                (n, SelfComposedDpEvent(sampled, most_participations(n, self.cycle - 1)))
                for n in counts
            ),
            claim,
        )


def _counts(rounds: int, strategy: Strategy) -> list[int]:
    """List the numbers of releases to state a cost for. All rounds are charged up front: when to
    stop may depend on what was seen.
    """
    if rounds > strategy.rows:
        raise ValueError(
            f"there is noise for {strategy.rows} rounds, and the claim is about {rounds}"
        )
    return sorted({rounds, min(strategy.rows, rounds + spare_rounds(rounds))})


def spare_rounds(rounds: int) -> int:
    """Return how many rows of noise there are beyond the rounds, to repeat rounds after a crash."""
    return 8 + rounds // 50


def default_delta(users: int) -> float:
    """Return δ = K⁻², but no less than can be accounted for: K·δ, the probability that the promise
    fails for any of K users, is at most 1/K. (McMahan et al. 2018 take K^−1.1, with which it is
    0.25 among a million.)
    """
    return max(1 / users**2, LEAST_DELTA)
