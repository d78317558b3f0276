"""Users who are in memory, trained one after another: the plainest fleet."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import jax
import numpy as np

from taciturn import trees
from taciturn.core import Key, Message, Program, Report, UserData, UserIds


class UsersInMemory:
    """A report is computed alone, by one program of one shape, so that nobody's depends on another's."""

    everyone_reports = True

    def __init__(self, users: Sequence[UserData]) -> None:
        self._users = users

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return eligible(np.arange(len(self._users)))

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        report = _compiled(program)
        total = trees.zeros_like(jax.eval_shape(program, message, self._users[0], key))
        for user in cohort:
            own_key = jax.random.fold_in(key, np.uint32(user))
            total = trees.add(total, report(message, self._users[user], own_key))
        return total


@lru_cache(maxsize=4)
def _compiled(program: Program) -> Program:
    return jax.jit(program)
