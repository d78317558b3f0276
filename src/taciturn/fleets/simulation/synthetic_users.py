"""A fleet with synthetic users beside its own, added to see what a model keeps of their text.

They are outside the population and outside the claim (Ramaswamy et al. 2020, §IV-A): their reports
are bounded like all others and added to the sum, by coins of their own, and what is added to a sum
without looking at a user costs that user nothing. The paper's came one or two orders of magnitude
more often than any real device.
"""

from collections.abc import Callable

import jax
import numpy as np

from taciturn import trees
from taciturn.core import Fleet, Key, Message, Program, Report, UserIds
from taciturn.privacy.participation import WrongNumberOfUsers


class WithSyntheticUsers:
    def __init__(
        self,
        fleet: Fleet,
        *,
        synthetic: Fleet,
        choose: Callable[[Key], UserIds],
        most_reports: int,
        key_slot: int = 1,
    ) -> None:
        """Put synthetic users beside those of a fleet.

        Args:
            fleet: The fleet of the people.
            synthetic: A fleet of all synthetic users.
            choose: Says which synthetic users take part in a round, by coins of that round.
            most_reports: How many reports a total holds, theirs and people's together: with more,
                integer sums would overflow, and one user could move them by any amount.
            key_slot: Each of two fleets with synthetic users has its own, and so its own coins.
        """
        self.everyone_reports = fleet.everyone_reports
        self._fleet = fleet
        self._synthetic = synthetic
        self._choose = choose
        self._most_reports = most_reports
        self._place = 2**32 - key_slot

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return self._fleet.users(eligible)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        coins, synthetic_key = self._derive_keys(key)
        synthetic_cohort = self._choose(coins)
        self._check_room(len(cohort), len(synthetic_cohort))
        total = self._fleet.sum_reports(program, message, cohort, key)
        synthetic_total = self._synthetic.sum_reports(
            program, message, synthetic_cohort, synthetic_key
        )
        return trees.add(total, synthetic_total)

    def _derive_keys(self, key: Key) -> tuple[Key, Key]:
        """Return a key for coins, and one for reports: real users have the same numbers."""
        own_key = jax.random.fold_in(key, self._place)
        coins, synthetic_key = jax.random.split(own_key)
        return coins, synthetic_key

    def _check_room(self, people: int, synthetic: int) -> None:
        if people + synthetic > self._most_reports:
            raise WrongNumberOfUsers(
                f"a cohort and {synthetic} synthetic users are more than the"
                f" {self._most_reports} reports that a total holds: lower canaries.users,"
                " canaries.per_cell, audit.users or the cohort"
            )


def choose_by_coins(users: int, rate: float) -> Callable[[Key], UserIds]:
    """Let each of them take part in a round with this probability."""

    def choose(coins: Key) -> UserIds:
        draws = np.asarray(jax.random.uniform(coins, (users,)))
        return np.flatnonzero(draws < rate)

    return choose
