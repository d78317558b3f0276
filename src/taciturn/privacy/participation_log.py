"""Who took part when: the curator's secret record, by which a claim about participation is enforced.

**Guarantee:** a cohort is on disk (fsync) before `record` returns, and one that would break the claim is never recorded. A cohort that
was recorded for an attempt at a round is the one that the attempt has ever after.

The log un-hides who took part, so it lives among a run's secrets and is deleted with them.
"""

import os
import struct
from pathlib import Path

import numpy as np

from taciturn.core import UserIds

_ENTRY = struct.Struct("<qqq")  # round, attempt, users


class ParticipationBreach(Exception):
    """A cohort would break what was claimed; nothing was summed."""


class ParticipationLog:
    def __init__(self, path: Path, min_separation: int, max_participations: int) -> None:
        self.limits = min_separation, max_participations
        self._path, self._distance, self._most = path, min_separation + 1, max_participations
        self._cohorts: dict[tuple[int, int], UserIds] = {}
        self._last: dict[int, int] = {}  # user → row of the last participation
        self._times: dict[int, int] = {}
        self._closest: int | None = None
        if path.exists():
            self._load()

    @property
    def rows(self) -> int:
        """How many cohorts there were, and so how many rows of noise."""
        return len(self._cohorts)

    @property
    def observed(self) -> tuple[int | None, int]:
        """(the fewest rounds between two participations of a user, the most participations of one); None: nobody came twice."""
        return (None if self._closest is None else self._closest - 1), max(self._times.values(), default=0)

    def cohort(self, round: int, attempt: int) -> UserIds | None:
        return self._cohorts.get((round, attempt))

    def eligible(self, users: UserIds) -> UserIds:
        """Those who may take part in the next row."""
        return np.array([user for user in users if self._may(int(user))], dtype=np.asarray(users).dtype)

    def record(self, round: int, attempt: int, cohort: UserIds) -> None:
        if (round, attempt) in self._cohorts:
            raise ParticipationBreach(f"round {round} has a cohort already")
        users = [int(user) for user in cohort]
        if len(set(users)) != len(users):
            raise ParticipationBreach("a user is twice in one cohort")
        breaking = [user for user in users if not self._may(user)]
        if breaking:
            raise ParticipationBreach(
                f"{len(breaking)} of the cohort of round {round} took part less than {self._distance - 1} rounds ago, or "
                f"{self._most} times already; what was claimed would not hold"
            )
        content = _ENTRY.pack(round, attempt, len(users)) + np.array(users, np.int64).tobytes()
        with open(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._take(round, attempt, np.asarray(cohort))

    def _may(self, user: int) -> bool:
        last = self._last.get(user)
        return (last is None or self.rows - last >= self._distance) and self._times.get(user, 0) < self._most

    def _take(self, round: int, attempt: int, cohort: UserIds) -> None:
        row = self.rows
        for user in map(int, cohort):
            if user in self._last:
                between = row - self._last[user]
                self._closest = between if self._closest is None else min(self._closest, between)
            self._last[user] = row
            self._times[user] = self._times.get(user, 0) + 1
        self._cohorts[round, attempt] = cohort

    def _load(self) -> None:
        """A last entry that is not whole was never summed, and is cut off."""
        content, place = self._path.read_bytes(), 0
        while place + _ENTRY.size <= len(content):
            round, attempt, count = _ENTRY.unpack_from(content, place)
            end = place + _ENTRY.size + 8 * count
            if end > len(content):
                break
            self._take(round, attempt, np.frombuffer(content, np.int64, count, place + _ENTRY.size))
            place = end
        if place < len(content):
            os.truncate(self._path, place)
