"""The participation log: the curator's secret record of who took part when, which enforces a claim
about participation.

**Guarantee:** entry r is the cohort of noise row r, as it was asked. It is on disk (fsync) before
`record` returns, and one that would break the claim is never recorded. Entries carry a chain of
keyed checksums, so that what is read back is what this run wrote, in that order; an incomplete last
entry is removed, and the curator refuses a log whose entries are not those that the ledger's
charges were marked with. Only the newest entry can be withdrawn, and only by an entry which records
that its round failed.

The log is secret, so it is kept among a run's secrets and deleted with them.
"""

import hashlib
import hmac
import os
import struct
from operator import index
from pathlib import Path

import numpy as np

from taciturn.core import UserIds
from taciturn.errors import TaciturnError
from taciturn.files import sync_folder

_COUNT = struct.Struct("<q")
# in place of a count: the entry before is of a round that failed
_FAILED = -1
_CHECKSUM = 16
# a row that no run reaches
NEVER = 2**31 - 1


class ParticipationBreach(TaciturnError):
    """A cohort, or the log itself, breaks the claim; nothing was summed."""


class CohortLog:
    def __init__(
        self, path: Path, min_separation: int, max_participations: int, key: bytes
    ) -> None:
        """Open a log; `key` is the run's own secret, so the log of another run does not verify.
        Limits are integers.
        """
        self.limits = min_separation, max_participations
        self._path, self._distance, self._most, self._key = (
            path,
            index(min_separation) + 1,
            index(max_participations),
            key,
        )
        self._cohorts: list[UserIds] = []
        self._marks: list[str] = []
        self._failures: dict[
            int,
            int,
            # row → cohorts that were asked for it and of which too few reported
        ] = {}
        self._settled = (
            # rows that are in the arrays below; the newest is not, as long as it may still fail
            0
        )
        # by user: last row + 1, participations, next row
        self._last, self._times, self._next = (np.zeros(0, np.int32) for _ in range(3))
        self._closest: int | None = None
        # of complete entries
        self._end = 0
        self._chain = self._checksum(b"", repr(self.limits).encode())
        if path.exists():
            self._load()

    @property
    def rows(self) -> int:
        return len(self._cohorts)

    @property
    def observed(self) -> tuple[int | None, int]:
        """Return (the fewest rounds between two participations of a user, or None; the most
        participations of one).
        """
        self._settle()
        return (None if self._closest is None else self._closest - 1), int(
            self._times.max(initial=0)
        )

    @property
    def failed(self) -> int:
        return sum(self._failures.values())

    def failures(self, row: int) -> int:
        return self._failures.get(row, 0)

    def cohort(self, row: int) -> UserIds:
        return self._cohorts[row]

    def mark(self, row: int) -> str:
        """Return the checksum of this entry and all before it, failed ones too. Every charge
        carries the mark of its row.
        """
        return self._marks[row]

    def eligible(self, users: UserIds) -> UserIds:
        """Return the users who may take part in the next row."""
        self._settle()
        users = np.asarray(users)
        self._make_room(users)
        return users[(self._next[users] <= self.rows) & (self._most > 0)]

    def record(self, cohort: UserIds) -> None:
        """Record the cohort of the next row, as it was asked; those who report are among them."""
        cohort = np.asarray(cohort, np.int64)
        problem = self._problem(cohort)
        if problem:
            raise ParticipationBreach(
                f"{problem}; what was claimed would not hold, and nothing was summed"
            )
        self._append(_COUNT.pack(len(cohort)) + cohort.tobytes())
        self._add(cohort)

    def fail(self) -> None:
        """Record that too few of the newest cohort reported: nothing is released about them, and
        the next cohort takes the row.
        """
        self._check_newest()
        self._append(_COUNT.pack(_FAILED))
        self._drop_newest()

    def _append(self, content: bytes) -> None:
        checksum = self._checksum(self._chain, content)
        is_new = not self._path.exists()
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            # removes an incomplete entry; reading a log changes nothing in it
            os.ftruncate(file.fileno(), self._end)
            file.seek(self._end)
            try:
                file.write(content + checksum)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), self._end)
                raise
        self._end += len(content) + len(checksum)
        if is_new:
            sync_folder(self._path.parent)
        self._chain = checksum

    def _problem(self, cohort: UserIds) -> str | None:
        if len(np.unique(cohort)) != len(cohort):
            return "a user is twice in one cohort"
        if len(cohort) and cohort.min() < 0:
            return "a cohort has a user who is nobody"
        breaking = len(cohort) - len(self.eligible(cohort))
        if breaking:
            return (
                f"{breaking} users of a cohort took part less than {self._distance - 1} rounds ago,"
                f" or {self._most} times already"
            )
        return None

    def _settle(self) -> None:
        for row in range(self._settled, self.rows):
            cohort = self._cohorts[row]
            self._make_room(cohort)
            again = self._last[cohort][self._last[cohort] > 0]
            if len(again):
                nearest = row + 1 - int(again.max())
                self._closest = nearest if self._closest is None else min(self._closest, nearest)
            self._last[cohort] = row + 1
            self._times[cohort] += 1
            self._next[cohort] = np.where(
                self._times[cohort] < self._most, min(row + self._distance, NEVER), NEVER
            )
        self._settled = self.rows

    def _make_room(self, users: UserIds) -> None:
        missing = int(users.max(initial=-1)) + 1 - len(self._last)
        if missing > 0:
            self._last, self._times, self._next = (
                np.pad(one, (0, missing)) for one in (self._last, self._times, self._next)
            )

    def _check_newest(self) -> None:
        if self._settled == self.rows:
            raise ParticipationBreach(
                "only the newest cohort of a log can have failed, and only once"
            )

    def _add(self, cohort: UserIds) -> None:
        self._cohorts.append(cohort)
        self._marks.append(self._chain.hex())

    def _drop_newest(self) -> None:
        self._check_newest()
        self._cohorts.pop()
        self._marks.pop()
        self._failures[self.rows] = self.failures(self.rows) + 1

    def _checksum(self, before: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(before + content, key=self._key[:64], digest_size=_CHECKSUM).digest()

    def _load(self) -> None:
        content, place = self._path.read_bytes(), 0
        while place + _COUNT.size <= len(content):
            (count,) = _COUNT.unpack_from(content, place)
            end = place + _COUNT.size + 8 * max(count, 0)
            entry, checksum = content[place:end], content[end : end + _CHECKSUM]
            if count < _FAILED or not hmac.compare_digest(
                checksum, self._checksum(self._chain, entry)
            ):
                break
            self._chain, place = checksum, end + _CHECKSUM
            self._end = place
            if count == _FAILED:
                self._drop_newest()
                continue
            cohort = np.frombuffer(entry, np.int64, count, _COUNT.size)
            problem = self._problem(cohort)
            if problem:
                raise ParticipationBreach(
                    f"{self._path} breaks the claim: {problem}; the run cannot go on"
                )
            self._add(cohort)
