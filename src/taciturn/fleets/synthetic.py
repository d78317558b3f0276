"""A fleet with synthetic users beside its own: nobody's text, put there to see what a model keeps of it (Ramaswamy et al. 2020, §IV-A).

They are outside the population and outside the claim. Who of the real users takes part, how often, and what is charged for it is as
if they were not there: their reports are bounded like everybody's and added to the sum, by coins of their own, and whatever is added to a
sum without looking at a user costs that user nothing. How often they come is a setting; the paper's came one or two orders of magnitude
more often than any real device.
"""

from collections.abc import Callable

import jax
import numpy as np

from taciturn import tree
from taciturn.core import Fleet, Key, Message, Program, Report, UserIds


class WithSyntheticUsers:
    def __init__(self, fleet: Fleet, synthetic: Fleet, rate: float) -> None:
        """`synthetic` is a fleet of all of them, each of whom takes part in a round with probability `rate`."""
        self.everyone_reports = fleet.everyone_reports
        self.fleet, self._synthetic, self._rate = fleet, synthetic, rate

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return self.fleet.users(eligible)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        total = self.fleet.sum_reports(program, message, cohort, key)
        # Keys of their own: a synthetic user has a number that a real one has too.
        coins, theirs = jax.random.split(jax.random.fold_in(key, 2**32 - 1))
        return tree.add(total, self._synthetic.sum_reports(program, message, self.chosen(coins), theirs))

    def chosen(self, coins: Key) -> UserIds:
        """Those who take part, by the coins of a round."""
        everyone = self._synthetic.users(lambda users: users)
        drawn = np.asarray(jax.random.uniform(coins, (len(everyone),)))
        return everyone[drawn < self._rate]
