"""The file of a ledger: append-only, hash-chained, with its newest head on record beside it.

The head is in `ledger.head`.

**Guarantee:** a row is on disk (fsync), and then its hash in `ledger.head`, before `append`
returns, so a crash may keep a row without a release but never misses one. Rows that were changed,
removed, inserted or truncated do not fit chain or head, a file that is not where it was written (a
copy, a restored folder) is not the one that the head names, and either refuses every further row. A
file that is lost is not made anew where its id is known.

Older rows and an older head that are written back into the same files fit each other. They are
refused by when the file changed, which must be when the head says, neither later nor earlier: a
clock that was set back hides nothing. After a crash between a row and its head the file is later
than its head says; then the head must not be.

A person who may write the folder can make all of it anew, and a file system restored to an earlier
state does not show it: only a later head outside does, as states, models, exports and an anchor
(privacy/ledger/anchor.py) hold one.

**Assumes:** the file system keeps what it reported as synced, a file its inode until it is deleted,
and reports when one changed, as exactly as `_slack` says.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from taciturn.errors import TaciturnError
from taciturn.files import lock_file, sync_folder, write_atomically

GENESIS = "0" * 64
RESTORE = "Restore the newest ledger from a copy; without one, treat these users' text as used up."
ROW_BEGINS = b'{"hash": "'
SECOND = 10**9
# File systems of this machine that give when a file changed the same to the nanosecond each time.
EXACT = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "overlay")
# Those of other machines, whose clock is another and whose answers may be old: of file servers, of
# clusters, and of the machine that this one is simulated on.
REMOTE = (
    *("nfs", "cifs", "smb", "fuse.", "afs", "ceph"),
    *("lustre", "gpfs", "beegfs", "wekafs", "panfs", "orangefs"),
    *("9p", "virtiofs", "fakeowner", "vboxsf", "prl_fs"),
)
# What a disk may be late by to tell when a file changed (FAT keeps two seconds), and a server.
SLACK_OF_DISKS = 2 * SECOND
SLACK_OF_SERVERS = 60 * SECOND
# A head follows its row at once, or, on a disk that is busy, within this.
SLACK_OF_HEADS = 60 * SECOND
MOUNTS = Path("/proc/self/mountinfo")
ESCAPED = re.compile(r"\\([0-7]{3})")
Row = dict[str, Any]


class LedgerError(TaciturnError):
    """The ledger is not as it must be; nothing may be released."""


class Head(NamedTuple):
    """What is known beside the ledger of its newest row; after a crash, of the one before it."""

    # The ledger's id.
    ledger: str
    rows: int
    head: str
    # The number of the ledger's file: a copy has another.
    file: int
    # When the file last did, in nanoseconds: another time for one that is put back; None while a
    # torn line is removed.
    changed: int | None
    # Where it was.
    place: str


class ChainedFile:
    """The file, verified.

    Several processes may use it at once; appends are serialised by a lock.
    """

    def __init__(self, path: Path, known_id: str | None = None) -> None:
        """Open the file, and make it if it does not exist.

        Args:
            path: where it is.
            known_id: the id of a ledger that existed before, and is not made anew if it is gone.

        Raises:
            LedgerError: if the file is gone, changed, a copy, or of another ledger.
        """
        self.path = path.resolve()
        self.rows: list[Row] = []
        self._size = 0
        self._pinned = known_id is not None
        if not self.path.exists() and (known_id or self._read_head()):
            raise LedgerError(
                f"{self.path} is gone: what was released about these users is not known any more."
                f" {RESTORE}"
            )
        with self._lock() as file:
            self._catch_up(file)
            if not self.rows:
                self._write(file, {"kind": "ledger", "id": secrets.token_hex(8)})
        if known_id not in (None, self.id):
            raise LedgerError(
                f"{self.path} is not the ledger of these users: it was replaced by another. Restore"
                " it from a copy."
            )

    @property
    def id(self) -> str:
        """Return the ledger's id, which its first row has."""
        return self.rows[0]["id"]

    @property
    def _head_path(self) -> Path:
        return self.path.with_suffix(".head")

    @property
    def _place(self) -> Path:
        """Return what names it to `taciturn ledger`.

        That is its folder, or its file where that has a name of its own.
        """
        return self.path.parent if self.path.name == "ledger.jsonl" else self.path

    @property
    def head(self) -> str:
        """Return the hash of the newest row."""
        return self.rows[-1]["hash"] if self.rows else GENESIS

    def refresh(self) -> None:
        """Read what others have written since."""
        with self._lock() as file:
            self._catch_up(file)

    def append(self, row: Row, check: Callable[[list[Row]], None] = lambda rows: None) -> Row:
        """Write one row, sync it, and return it with its hash.

        Args:
            row: what is written.
            check: sees all rows under the lock, and may refuse by raising.
        """
        with self._lock() as file:
            self._catch_up(file)
            check(self.rows)
            previous, newest = self._last_two_heads()
            self._witness(previous, newest)
            written = self._write(file, row)
            self._witness(newest, self.head)
            return written

    def _last_two_heads(self) -> tuple[str, str]:
        """Return the hashes of the newest row and the one before it; of a first row, twice its."""
        before = max(len(self.rows) - 2, 0)
        return self.rows[before]["hash"], self.head

    def _witness(self, previous: str, new: str) -> None:
        """Raise if an anchor knows of another head than these two.

        It is called before a row and after it.
        """

    def _lock(self) -> contextlib.AbstractContextManager[BinaryIO]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return lock_file(self.path, mode=0o666)

    def _catch_up(self, file: BinaryIO) -> None:
        """Verify and read what is new in the file."""
        size = file.seek(0, os.SEEK_END)
        if size < self._size:
            raise LedgerError(
                f"{self.path} became shorter while it was in use: rows were removed. Nothing was"
                " released."
            )
        file.seek(self._size)
        *lines, tail = file.read().split(b"\n")
        for line in lines:
            self._take(line)
            self._size += len(line) + 1
        saved = self._read_head()
        # Otherwise it is being made: it has its first row, and no head yet.
        if saved or self._pinned or len(self.rows) > 1:
            self._check_rows(saved)
            self._check_standing(file, saved, torn=bool(tail))
        # It is late if a crash came after the row and before the head, or while a torn line was
        # removed.
        is_head_late = saved is None or saved.rows < len(self.rows) or saved.changed is None
        if tail:
            self._repair(file, tail)
        elif self.rows and is_head_late:
            # A head is always written when the file has just changed.
            os.utime(file.fileno())
            os.fsync(file.fileno())
            self._save_head(file)

    def _check_rows(self, saved: Head | None) -> None:
        """Raise unless the file has the row that `ledger.head` names."""
        if saved is None:
            return
        rows = len(self.rows)
        if rows < saved.rows or self.rows[saved.rows - 1]["hash"] != saved.head:
            raise LedgerError(
                f"{self.path} has {rows} rows and lacks row {saved.rows} as {self._head_path.name}"
                " beside it names it: rows were removed, or an older copy was put back. Nothing"
                f" will be released. {RESTORE}"
            )

    def _check_standing(self, file: BinaryIO, saved: Head | None, torn: bool) -> None:
        """Raise if this file is a copy of the one in use."""
        # A crash may come before the head, and so leave one row, or a part of one, that it lacks.
        if saved is None or len(self.rows) - saved.rows + torn > 1:
            problem = "is gone" if saved is None else f"is older than {self.path.name}"
            raise LedgerError(
                f"{self._head_path} {problem}, so missing rows could not be noticed. Restore it"
                " from a copy; or look at the rows, and if all runs are there say so: taciturn"
                f" ledger adopt {self._place}"
            )
        is_at_rest = len(self.rows) == saved.rows and not torn
        if self._is_another_file(file, saved, is_at_rest):
            raise LedgerError(
                f"{self.path} was copied or put back (it was at {saved.place}), or its owner or"
                " mode was changed. Two copies would spend these people's budget twice over, and an"
                " older one would spend it again. If this is the newest, to use it from now on:"
                f" taciturn ledger adopt {self._place}"
            )
        self.check_not_retired()

    def _is_another_file(self, file: BinaryIO, saved: Head, is_at_rest: bool) -> bool:
        """Tell whether a file is another one than the head names, or either was put back since."""
        status = os.fstat(file.fileno())
        if status.st_ino != saved.file:
            return True
        if saved.changed is None:
            return False
        if is_at_rest:
            apart = abs(status.st_ctime_ns - saved.changed)
            return apart > 0 and apart > _slack(self.path)
        # The row after the head has changed the file; nothing has changed the head.
        head_changed = self._head_path.stat().st_ctime_ns
        return abs(head_changed - saved.changed) > SLACK_OF_HEADS

    def check_not_retired(self) -> None:
        """Raise if another ledger replaced this one."""
        for row in self.rows:
            if row.get("kind") == "retired":
                raise LedgerError(
                    f"{self.path} is retired, as the one at {row['by']} replaced it. Name that one."
                )

    def _repair(self, file: BinaryIO, tail: bytes) -> None:
        """Repair an incomplete last line.

        A process died while writing it, before it could release anything. A row that verifies is
        kept (better one charge too many). One that does not is removed, and a row records that.
        """
        try:
            self._take(tail)
        except LedgerError:
            self._remove(file, tail)
        else:
            self._flush(file, b"\n")
            self._size += len(tail) + 1
            self._save_head(file)

    def _remove(self, file: BinaryIO, tail: bytes) -> None:
        if self.rows:
            self._save_head(file, at_rest=False)
        elif not _may_begin_a_ledger(tail):
            raise LedgerError(
                f"{self.path} is not a ledger. It was left as it is; name another file."
            ) from None
        file.truncate(self._size)
        if self.rows:
            self._write(file, {"kind": "torn", "bytes": len(tail)})

    def _take(self, line: bytes) -> None:
        """Read a row, if it fits those before it."""
        row: Row = {}
        with contextlib.suppress(ValueError):
            row = json.loads(line)
        if not self._fits(row):
            raise LedgerError(
                f"{self.path}, row {len(self.rows) + 1}, does not fit the row before it: the ledger"
                " was changed by hand, damaged or mixed with another. Nothing will be released from"
                f" it. {RESTORE}"
            )
        self._add(row)

    def _fits(self, row: Any) -> bool:
        if not isinstance(row, dict):
            return False
        return row.get("hash") == hash_row(row) and row.get("previous") == self.head

    def _add(self, row: Row) -> None:
        self.rows.append(row)

    def _write(self, file: BinaryIO, row: Row) -> Row:
        chained: Row = {**row, "previous": self.head}
        chained["hash"] = hash_row(chained)
        content = json.dumps(chained, sort_keys=True)
        line = content.encode() + b"\n"
        # What a full disk takes of it is removed at the next opening.
        self._flush(file, line)
        self._size += len(line)
        self._add(chained)
        # Before the caller may release anything.
        self._save_head(file)
        return chained

    def _flush(self, file: BinaryIO, data: bytes) -> None:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        # A new file lives in its folder's record.
        if not self.rows:
            sync_folder(self.path.parent)

    def _save_head(self, file: BinaryIO, at_rest: bool = True) -> None:
        status = os.fstat(file.fileno())
        changed = status.st_ctime_ns if at_rest else None
        newest = Head(
            ledger=self.id,
            rows=len(self.rows),
            head=self.head,
            file=status.st_ino,
            changed=changed,
            place=str(self.path),
        )
        content = json.dumps(newest._asdict())
        write_atomically(self._head_path, content.encode(), 0o600)

    def _read_head(self) -> Head | None:
        try:
            return Head(**json.loads(self._head_path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise LedgerError(
                f"{self._head_path} is damaged. Restore it from a copy; or delete it, look at the"
                " rows of the ledger, and if all runs are there say so: taciturn ledger adopt"
                f" {self._place}"
            ) from None


def _slack(path: Path) -> int:
    """Return by how many nanoseconds a file may seem to have changed at another time."""
    kind = _file_system_of(path)
    if kind in EXACT:
        return 0
    return SLACK_OF_SERVERS if kind.startswith(REMOTE) else SLACK_OF_DISKS


def _file_system_of(path: Path) -> str:
    """Return the kind of file system that a file is on; "" where that cannot be told."""
    try:
        # As paths are read, of whatever bytes they are.
        lines = os.fsdecode(MOUNTS.read_bytes()).splitlines()
    except OSError:
        return ""
    kind = ""
    longest = 0
    for line in lines:
        place, _, about = line.partition(" - ")
        # A space in it is written as its octal number.
        mounted_at = ESCAPED.sub(lambda found: chr(int(found[1], 8)), place.split()[4])
        # Of two that are mounted at one place, the later hides the other.
        if path.is_relative_to(mounted_at) and len(mounted_at) >= longest:
            longest = len(mounted_at)
            kind = about.split()[0]
    return kind


def _may_begin_a_ledger(tail: bytes) -> bool:
    """Tell whether this may be all that was written of a first row."""
    # A power cut may leave zeros.
    is_empty = not tail.strip(b"\0")
    return is_empty or tail[: len(ROW_BEGINS)] == ROW_BEGINS[: len(tail)]


def hash_row(row: Row) -> str:
    """Return the hash that a row has, of all else that it has."""
    content = {name: value for name, value in row.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
