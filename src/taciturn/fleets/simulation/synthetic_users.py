"""A fleet with synthetic users beside its own, added to see what a model keeps of their text
(Ramaswamy et al. 2020, §IV-A).

They are outside the population and outside the claim: their reports are bounded like all others and
added to the sum, by coins of their own, and what is added to a sum without looking at a user costs
that user nothing. The paper's came one or two orders of magnitude more often than any real device.
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
        synthetic: Fleet,
        chosen: Callable[[Key], UserIds],
        most_reports: int,
        key_slot: int = 1,
    ) -> None:
        """`synthetic` is a fleet of all of them, and `chosen` says who takes part in a round, by
        coins of that round. A total holds `most_reports`, theirs and people's together: with more,
        integer sums would overflow, and one user could move them by any amount. Each of two such
        fleets has its own `key_slot`, and so its own coins.
        """
        self.everyone_reports = fleet.everyone_reports
        self._fleet, self._synthetic, self._chosen = fleet, synthetic, chosen
        self._most, self._place = most_reports, 2**32 - key_slot

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return self._fleet.users(eligible)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        # Keys of their own: synthetic and real users have the same numbers.
        coins, theirs = jax.random.split(jax.random.fold_in(key, self._place))
        beside = self._chosen(coins)
        if len(cohort) + len(beside) > self._most:
            many = (
                f"a cohort and {len(beside)} synthetic users are more than the {self._most} reports"
                " that a total holds"
            )
            raise WrongNumberOfUsers(
                f"{many}: lower canaries.users, canaries.per_cell, audit.users or the cohort"
            )
        total = self._fleet.sum_reports(program, message, cohort, key)
        return trees.add(total, self._synthetic.sum_reports(program, message, beside, theirs))


def by_coins(users: int, rate: float) -> Callable[[Key], UserIds]:
    """Let each of them take part in a round with this probability."""

    def chosen(coins: Key) -> UserIds:
        return np.flatnonzero(np.asarray(jax.random.uniform(coins, (users,))) < rate)

    return chosen
