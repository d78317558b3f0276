"""The participation log: the curator's secret record of who took part when.

It enforces a claim about participation.

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
from typing import BinaryIO, NamedTuple

import numpy as np

from taciturn.core import UserIds
from taciturn.errors import TaciturnError
from taciturn.files import sync_folder

_COUNT = struct.Struct("<q")
# It stands in place of a count: the entry before is of a round that failed.
_FAILED = -1
_CHECKSUM = 16
# A row that no run reaches.
NEVER = 2**31 - 1


class ParticipationBreach(TaciturnError):
    """A cohort, or the log itself, breaks the claim; nothing was summed."""


class ObservedLimits(NamedTuple):
    """How often users took part so far."""

    # The fewest rounds strictly between two participations of a user; None: nobody came twice.
    min_separation: int | None
    # The most participations of a user.
    max_participations: int


class _Entry(NamedTuple):
    """An entry as it stands in the file."""

    # The number of users in the cohort, or `_FAILED`.
    size: int
    # The size, and the users.
    content: bytes
    checksum: bytes

    @property
    def cohort(self) -> UserIds:
        return np.frombuffer(self.content, np.int64, self.size, _COUNT.size)


class CohortLog:
    """The cohorts of a run, row by row of its noise, in a file."""

    def __init__(
        self, *, path: Path, min_separation: int, max_participations: int, key: bytes
    ) -> None:
        """Open a log.

        Args:
            path: the file; it is made with the first entry.
            min_separation: MinS, an integer.
            max_participations: MaxP, an integer.
            key: the run's own secret, so that the log of another run does not verify.

        Raises:
            ParticipationBreach: if an entry breaks the claim.
        """
        self.limits = (min_separation, max_participations)
        self._path = path
        self._distance = index(min_separation) + 1
        self._most = index(max_participations)
        self._key = key
        self._cohorts: list[UserIds] = []
        self._marks: list[str] = []
        # By row: the cohorts that were asked for it and of which too few reported.
        self._failures: dict[int, int] = {}
        # The number of rows in the arrays below; the newest is not there while it may still fail.
        self._settled = 0
        # By user: the last row + 1, the number of participations, and the next row.
        self._last = np.zeros(0, np.int32)
        self._times = np.zeros(0, np.int32)
        self._next = np.zeros(0, np.int32)
        # Rows from one participation of a user to the next, at least.
        self._closest: int | None = None
        # Where the complete entries end.
        self._end = 0
        self._chain = self._checksum(b"", repr(self.limits).encode())
        if path.exists():
            self._load()

    @property
    def rows(self) -> int:
        """Return the number of rows that have a cohort."""
        return len(self._cohorts)

    @property
    def observed_limits(self) -> ObservedLimits:
        """Return how often users took part, to compare with the claim."""
        self._settle()
        return ObservedLimits(
            min_separation=None if self._closest is None else self._closest - 1,
            max_participations=int(self._times.max(initial=0)),
        )

    @property
    def failed_cohorts(self) -> int:
        """Return the number of cohorts of which too few reported."""
        return sum(self._failures.values())

    def failures(self, row: int) -> int:
        """Return the number of cohorts that failed before the one of this row."""
        return self._failures.get(row, 0)

    def cohort(self, row: int) -> UserIds:
        """Return the cohort of a row."""
        return self._cohorts[row]

    def mark(self, row: int) -> str:
        """Return the checksum of this entry and all before it, failed ones too.

        Every charge carries the mark of its row.
        """
        return self._marks[row]

    def eligible(self, users: UserIds) -> UserIds:
        """Return the users who may take part in the next row."""
        self._settle()
        users = np.asarray(users)
        self._make_room(users)
        return users[(self._next[users] <= self.rows) & (self._most > 0)]

    def record(self, cohort: UserIds) -> None:
        """Record the cohort of the next row, as it was asked; those who report are among them.

        Raises:
            ParticipationBreach: if it would break the claim.
        """
        cohort = np.asarray(cohort, np.int64)
        problem = self._find_problem(cohort)
        if problem:
            raise ParticipationBreach(
                f"{problem}; what was claimed would not hold, and nothing was summed"
            )
        self._append(_COUNT.pack(len(cohort)) + cohort.tobytes())
        self._add(cohort)

    def fail(self) -> None:
        """Record that too few of the newest cohort reported.

        Nothing is released about them, and the next cohort takes the row.
        """
        self._check_newest()
        self._append(_COUNT.pack(_FAILED))
        self._drop_newest()

    def _append(self, content: bytes) -> None:
        checksum = self._checksum(self._chain, content)
        entry = content + checksum
        is_new = not self._path.exists()
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            self._write(file, entry)
        self._end += len(entry)
        if is_new:
            sync_folder(self._path.parent)
        self._chain = checksum

    def _write(self, file: BinaryIO, entry: bytes) -> None:
        """Write an entry after the complete ones, all of it or nothing."""
        # An incomplete entry is removed only now; reading a log changes nothing in it.
        os.ftruncate(file.fileno(), self._end)
        file.seek(self._end)
        try:
            file.write(entry)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), self._end)
            raise

    def _find_problem(self, cohort: UserIds) -> str | None:
        """Say how a cohort would break the claim; return None if it would not."""
        if len(np.unique(cohort)) != len(cohort):
            return "a user is twice in one cohort"
        if len(cohort) and cohort.min() < 0:
            return "a cohort has a user who is nobody"
        rested = self.eligible(cohort)
        breaking = len(cohort) - len(rested)
        if breaking:
            return (
                f"{breaking} users of a cohort took part less than {self._distance - 1} rounds ago,"
                f" or {self._most} times already"
            )
        return None

    def _settle(self) -> None:
        """Count the rows that can no longer fail."""
        for row in range(self._settled, self.rows):
            self._count(row, self._cohorts[row])
        self._settled = self.rows

    def _count(self, row: int, cohort: UserIds) -> None:
        self._make_room(cohort)
        self._note_closest(row, cohort)
        self._last[cohort] = row + 1
        self._times[cohort] += 1
        next_row = min(row + self._distance, NEVER)
        may_return = self._times[cohort] < self._most
        self._next[cohort] = np.where(may_return, next_row, NEVER)

    def _note_closest(self, row: int, cohort: UserIds) -> None:
        last = self._last[cohort]
        earlier = last[last > 0]
        if not len(earlier):
            return
        nearest = row + 1 - int(earlier.max())
        if self._closest is None or nearest < self._closest:
            self._closest = nearest

    def _make_room(self, users: UserIds) -> None:
        missing = int(users.max(initial=-1)) + 1 - len(self._last)
        if missing > 0:
            self._last = np.pad(self._last, (0, missing))
            self._times = np.pad(self._times, (0, missing))
            self._next = np.pad(self._next, (0, missing))

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
        key = self._key[:64]
        return hashlib.blake2b(before + content, key=key, digest_size=_CHECKSUM).digest()

    def _load(self) -> None:
        """Read the entries up to the first that is incomplete or not this run's."""
        content = self._path.read_bytes()
        while self._end + _COUNT.size <= len(content):
            entry = _read_entry(content, self._end)
            checksum = self._checksum(self._chain, entry.content)
            is_own = hmac.compare_digest(entry.checksum, checksum)
            if entry.size < _FAILED or not is_own:
                break
            self._chain = checksum
            self._end += len(entry.content) + _CHECKSUM
            if entry.size == _FAILED:
                self._drop_newest()
            else:
                self._add_loaded(entry.cohort)

    def _add_loaded(self, cohort: UserIds) -> None:
        problem = self._find_problem(cohort)
        if problem:
            raise ParticipationBreach(
                f"{self._path} breaks the claim: {problem}; the run cannot continue"
            )
        self._add(cohort)


def _read_entry(content: bytes, start: int) -> _Entry:
    """Return the entry that begins here, or as much as there is of it."""
    (size,) = _COUNT.unpack_from(content, start)
    end = start + _COUNT.size + 8 * max(size, 0)
    return _Entry(size, content[start:end], checksum=content[end : end + _CHECKSUM])
