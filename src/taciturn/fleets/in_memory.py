"""Users in memory, trained one after another: the plainest fleet."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import jax
import numpy as np

from taciturn import trees
from taciturn.core import Key, Message, Program, Report, UserData, UserIds


class UsersInMemory:
    """Compute each report alone, by one program of one shape, so that none depends on another."""

    everyone_reports = True

    def __init__(self, users: Sequence[UserData]) -> None:
        shapes = [[(np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(user)] for user in users]
        if not users or any(shape != shapes[0] for shape in shapes) or any(np.ndim(user.weight) for user in users):
            # Sums broadcast: a smaller report would be added repeatedly, past its clip norm.
            raise ValueError("there is at least one user, all users' arrays have one shape and type, and a weight is one number")
        self._users, self._compiled = users, lru_cache(maxsize=1)(jax.jit)

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return eligible(np.arange(len(self._users)))

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        report = self._compiled(program)
        total = trees.zeros_like(jax.eval_shape(program, message, self._users[0], key))
        for user in cohort:
            own_key = jax.random.fold_in(key, np.uint32(user))
            total = trees.add(total, report(message, self._users[user], own_key))
        return total
