"""Who took part when: the curator's secret record, by which a claim about participation is enforced.

**Guarantee:** entry r is the cohort of noise row r. It is on disk (fsync) before `record` returns, and one that would break the claim is
never recorded. Entries carry a chain of keyed checksums, so that what is read back is what this run wrote, in that order; what is not
whole at the end is cut off, and the curator refuses a log that is shorter than the ledger's charges.

The log says who took part, so it lives among a run's secrets and is deleted with them.
"""

import hashlib
import hmac
import os
import struct
from pathlib import Path

import numpy as np

from taciturn.core import UserIds
from taciturn.files import sync_folder

_COUNT = struct.Struct("<q")
_CHECKSUM = 16


class ParticipationBreach(Exception):
    """A cohort, or the log itself, would break what was claimed; nothing was summed."""


class ParticipationLog:
    def __init__(self, path: Path, min_separation: int, max_participations: int, key: bytes) -> None:
        """`key` is the run's own secret: the log of another run does not verify."""
        self.limits = min_separation, max_participations
        self._path, self._distance, self._most, self._key = path, min_separation + 1, max_participations, key
        self._cohorts: list[UserIds] = []
        self._last: dict[int, int] = {}  # user → row of the last participation
        self._times: dict[int, int] = {}
        self._closest: int | None = None
        self._chain = self._checksum(b"", repr(self.limits).encode())
        if path.exists():
            self._load()

    @property
    def rows(self) -> int:
        return len(self._cohorts)

    @property
    def observed(self) -> tuple[int | None, int]:
        """(the fewest rounds between two participations of a user, the most participations of one); None: nobody came twice."""
        return (None if self._closest is None else self._closest - 1), max(self._times.values(), default=0)

    def cohort(self, row: int) -> UserIds:
        return self._cohorts[row]

    def eligible(self, users: UserIds) -> UserIds:
        """Those who may take part in the next row."""
        return np.array([user for user in users if self._may(int(user))], dtype=np.asarray(users).dtype)

    def record(self, cohort: UserIds) -> None:
        """The cohort of the next row."""
        problem = self._problem(cohort)
        if problem:
            raise ParticipationBreach(f"{problem}; what was claimed would not hold, and nothing was summed")
        content = _COUNT.pack(len(cohort)) + np.asarray(cohort, np.int64).tobytes()
        checksum = self._checksum(self._chain, content)
        is_new = not self._path.exists()
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            try:
                file.write(content + checksum)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), size)
                raise
        if is_new:
            sync_folder(self._path.parent)
        self._take(np.asarray(cohort), checksum)

    def _problem(self, cohort: UserIds) -> str | None:
        users = [int(user) for user in cohort]
        if len(set(users)) != len(users):
            return "a user is twice in one cohort"
        breaking = sum(not self._may(user) for user in users)
        if breaking:
            rest = f"took part less than {self._distance - 1} rounds ago, or {self._most} times already"
            return f"{breaking} users of a cohort {rest}"
        return None

    def _may(self, user: int) -> bool:
        last = self._last.get(user)
        return (last is None or self.rows - last >= self._distance) and self._times.get(user, 0) < self._most

    def _take(self, cohort: UserIds, checksum: bytes) -> None:
        row = self.rows
        for user in map(int, cohort):
            if user in self._last:
                between = row - self._last[user]
                self._closest = between if self._closest is None else min(self._closest, between)
            self._last[user] = row
            self._times[user] = self._times.get(user, 0) + 1
        self._cohorts.append(cohort)
        self._chain = checksum

    def _checksum(self, before: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(before + content, key=self._key[:64], digest_size=_CHECKSUM).digest()

    def _load(self) -> None:
        content, place = self._path.read_bytes(), 0
        while place + _COUNT.size <= len(content):
            (count,) = _COUNT.unpack_from(content, place)
            end = place + _COUNT.size + 8 * count
            entry, checksum = content[place:end], content[end : end + _CHECKSUM]
            if count < 0 or not hmac.compare_digest(checksum, self._checksum(self._chain, entry)):
                break
            cohort = np.frombuffer(entry, np.int64, count, _COUNT.size)
            problem = self._problem(cohort)
            if problem:
                raise ParticipationBreach(f"{self._path} breaks the claim: {problem}; the run cannot go on")
            self._take(cohort, checksum)
            place = end + _CHECKSUM
        if place < len(content):
            os.truncate(self._path, place)
