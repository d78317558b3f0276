"""Who takes part in a round, and what may be claimed about it: step A) of McMahan et al. 2018.

**Guarantee:** `event` describes the distribution that `select` draws from.

**Assumes:** only the curator learns who was selected; every member of the cohort is in the sum
(`sampled_by_curator`).
"""

import itertools
import math
from dataclasses import dataclass, field

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
from taciturn.privacy.noise.sensitivity import INDEPENDENT, most_participations

# The least δ by default: below it loss distributions are lost in rounding, and (1 + e^ε)·2⁻⁶⁰
# counts.
LEAST_DELTA = 1e-15


class WrongNumberOfUsers(TaciturnError):
    """There are fewer or more users than the cost was computed for."""


@dataclass(frozen=True)
class PoissonSampling:
    """Each user independently with probability q. The size of a cohort varies; it may be empty."""

    probability: float
    # How many there are, as stated, where q was worked out from it. Nothing is claimed for it.
    users: int | None = field(default=None, compare=False, repr=False)
    adjacency = "add or remove one user"
    sampled_by_curator = True
    limits = None

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ValueError(f"a sampling probability lies in (0, 1]; {self.probability} does not")

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        """Draw each of those available."""
        return coins.sample(available, self.probability)

    def event(self, noise_multiplier: float, strategy: Strategy = INDEPENDENT) -> DpEvent:
        """Return the cost of a round.

        Raises:
            ValueError: if the noise is correlated.
        """
        _check_independent(strategy)
        return _sample(GaussianDpEvent(noise_multiplier), self.probability)


def _sample(gaussian: GaussianDpEvent, probability: float) -> DpEvent:
    """Return the cost where each user takes part with this probability."""
    return gaussian if probability == 1 else PoissonSampledDpEvent(probability, gaussian)


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
        """Choose a cohort of the stated size.

        Raises:
            WrongNumberOfUsers: if fewer are available than the cost was computed for.
        """
        if len(available) < self.users:
            raise WrongNumberOfUsers(
                f"fixed-size rounds are accounted for {self.users} users, but fewer are there: the"
                " cost would be understated; lower participation.users in the recipe"
            )
        return coins.choose(available, self.size)

    def event(self, noise_multiplier: float, strategy: Strategy = INDEPENDENT) -> DpEvent:
        """Return the cost of a round.

        Raises:
            ValueError: if the noise is correlated.
        """
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


@dataclass(frozen=True, kw_only=True)
class MinSeparation:
    """Any user may take part, but not again too soon, and not too often.

    That is not within `min_separation` rounds, and at most `max_participations` times (Xu et al.
    2023, §2.2). Nothing is claimed about how a cohort is chosen; the curator checks every one
    against its log before it is summed. Neighbours differ in one user's reports, which are zero in
    one of them (Kairouz et al. 2021, Definition 1.1).
    """

    # m, the report goal.
    size: int
    # MinS: rounds strictly between two participations of a user.
    min_separation: int
    # MaxP.
    max_participations: int
    # T.
    rounds: int
    # How many are asked for each report that is needed.
    over_selection: float = 1.0
    adjacency = "zero out one user"
    sampled_by_curator = False

    @property
    def users_asked(self) -> int:
        """Return how many users are asked in a round."""
        return math.ceil(self.over_selection * self.size)

    @property
    def limits(self) -> tuple[int, int]:
        """Return MinS and MaxP."""
        return self.min_separation, self.max_participations

    def __post_init__(self) -> None:
        least = min(self.size, self.max_participations, self.rounds, self.over_selection)
        if least < 1 or self.min_separation < 0:
            raise ValueError(
                "a min-separation participation needs a report goal, a separation ≥ 0 and at least"
                " one participation"
            )

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        """Choose a cohort of those available; the curator's log says who that is.

        Raises:
            WrongNumberOfUsers: if too few are.
        """
        if len(available) < self.users_asked:
            raise WrongNumberOfUsers(
                f"only {len(available)} users may take part in this round, and {self.users_asked}"
                f" are wanted: the others took part less than {self.min_separation} rounds ago, or"
                f" {self.max_participations} times. Lower the cohort or the separation"
            )
        return coins.choose(available, self.users_asked)

    def event(self, noise_multiplier: float, strategy: Strategy) -> DpEvent:
        """Return the cost of all rounds together."""
        counts = _release_counts(self.rounds, strategy)
        squares = [
            strategy.sensitivity_squared(count, self.min_separation, self.max_participations)
            for count in counts
        ]
        # They rise with the count, as they must, whatever rounding does.
        rising = itertools.accumulate(squares, max)
        gaussians = [GaussianDpEvent(noise_multiplier / math.sqrt(square)) for square in rising]
        claim = (
            f"noise: {strategy.name}; at least {self.min_separation} rounds between two"
            f" participations of a user, at most {self.max_participations} participations"
        )
        return CorrelatedDpEvent(tuple(zip(counts, gaussians, strict=True)), claim)


@dataclass(frozen=True)
class CyclicPoisson:
    """Users take turns, and the curator draws who takes theirs.

    In row t it is the turn of those whose number is t modulo `cycle`, each independently with
    probability q. With noise that correlates no rows as far apart as that, a user's turns are
    separate Gaussian mechanisms, and sampling makes each of them cheaper (Choquette-Choo et al.
    2023, "(Amplified) banded matrix factorization").

    Neighbours differ in one user's reports, as with MinSeparation: numbers are places in the list
    of users, which stays the same.
    """

    # q, of taking a turn.
    probability: float
    cycle: int
    # T.
    rounds: int
    adjacency = "zero out one user"
    sampled_by_curator = True

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1 or self.cycle < 1 or self.rounds < 1:
            raise ValueError(
                f"users who take turns every {self.cycle} rounds would have to come with"
                f" probability {self.probability:.3g}: fewer bands, or smaller cohorts"
            )

    @property
    def _separation(self) -> int:
        """Return the rounds strictly between two turns of a user."""
        return self.cycle - 1

    @property
    def limits(self) -> tuple[int, int]:
        """Return MinS and MaxP."""
        rows = self.rounds + spare_rounds(self.rounds)
        return self._separation, most_participations(rows, self._separation)

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        """Draw each of those available whose turn it is."""
        turn = available[available % self.cycle == row % self.cycle]
        return coins.sample(turn, self.probability)

    def event(self, noise_multiplier: float, strategy: Strategy) -> DpEvent:
        """Return the cost of all rounds together.

        Raises:
            ValueError: if the noise correlates a user's turns.
        """
        if strategy.bands is None or strategy.bands > self.cycle:
            raise ValueError(
                f"{strategy.name} noise correlates rows further apart than the {self.cycle} rounds"
                " between two turns of a user, where sampling proves nothing: use banded noise with"
                " no more bands than that"
            )
        counts = _release_counts(self.rounds, strategy)
        square = strategy.sensitivity_squared(counts[-1], self._separation, 1)
        turn = GaussianDpEvent(noise_multiplier / math.sqrt(square))
        sampled_turn = _sample(turn, self.probability)
        costs = []
        for count in counts:
            turns = most_participations(count, self._separation)
            costs.append((count, SelfComposedDpEvent(sampled_turn, turns)))
        claim = (
            f"noise: {strategy.name}; a user has a turn every {self.cycle} rounds and takes it with"
            f" probability {self.probability:.3g}, drawn by the curator"
        )
        return CorrelatedDpEvent(tuple(costs), claim)


def _release_counts(rounds: int, strategy: Strategy) -> list[int]:
    """List the numbers of releases to state a cost for.

    All rounds are charged up front: when to stop may depend on what was seen.
    """
    if rounds > strategy.rows:
        raise ValueError(
            f"there is noise for {strategy.rows} rounds, and the claim is about {rounds}"
        )
    return sorted({rounds, min(strategy.rows, rounds + spare_rounds(rounds))})


def spare_rounds(rounds: int) -> int:
    """Return how many rows of noise there are beyond the rounds, to repeat rounds after a crash."""
    return 8 + rounds // 50


def round_for_publication(users: int) -> int:
    """Round down to a number that may be published.

    It is coarser for fewer users, and at most a percent lower for many, or cohorts would be larger
    than planned.

    >>> [round_for_publication(users) for users in (37, 9_364, 1_098_765)]
    [30, 9300, 1090000]
    """
    if users < 100:
        kept_digits = 1
    elif users < 10_000:
        kept_digits = 2
    else:
        kept_digits = 3
    step = 10 ** max(0, len(str(users)) - kept_digits)
    return users // step * step


def default_delta(users: int) -> float:
    """Return δ = K⁻², but no less than can be accounted for.

    K·δ, the probability that the promise fails for any of K users, is then at most 1/K. (McMahan et
    al. 2018 take K^−1.1, with which it is 0.25 among a million.)
    """
    return max(1 / users**2, LEAST_DELTA)
