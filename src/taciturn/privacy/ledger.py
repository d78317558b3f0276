"""The ledger of a population: what was ever released about these users, in an append-only, hash-chained file.

It belongs to the *population*, not to a run, because every run on the same users costs them something, the ones thrown away as well.

**Guarantee:** a charge is on disk (fsync) before `charge` returns, so a crash may count a release that never happened but never
misses one. Rows that were changed, taken out or put in by hand do not verify, and a ledger that does not verify refuses every further
charge. What a run cost is the cost of one release, declared before the first, times the number of its charges.

A hash chain shows accidents and careless hands. Whoever makes all rows anew, or cuts some off at the end, is noticed by those who
hold a later head: states, models and exports do.

**Assumes:** the file system keeps what it said was synced.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent

from taciturn.files import sync_folder
from taciturn.privacy.accounting import (
    AccountantName,
    claim_of,
    composed,
    epsilon,
    event_from_json,
    is_sampled,
    repeated,
    rho,
)
from taciturn.privacy.groups import group_epsilon

FILE_NAME = "ledger.jsonl"
GENESIS = "0" * 64
Row = dict[str, Any]


class LedgerError(Exception):
    """The ledger does not say what it must; nothing may be released."""


@dataclass(frozen=True)
class Guarantee:
    """What holds for everything a run released up to the ledger's row `head`."""

    run: str
    releases: int
    epsilon: float
    delta: float
    rho: float
    accountant: AccountantName
    adjacency: str
    randomness: str  # "operating system", or "seeded simulation", whose noise anyone can take off
    head: str
    continued: bool = False  # whether ε counts earlier runs too, from which this one started
    claim: str = ""  # about noise and participation, in words
    sampled: bool = True  # whether the claim rests on who took part being drawn, and secret
    unit: str = "one user"  # whom it protects
    release: DpEvent = field(default_factory=NonPrivateDpEvent)  # what one of them costs
    earlier: tuple[DpEvent, ...] = ()  # what the runs cost that it started from
    distance: float = 0.0  # of its noise from the normal noise that the costs are about

    @property
    def is_private(self) -> bool:
        """Whether there was noise. What it promises is another question: at a δ that is too small ε may be ∞ all the same."""
        return self.rho < float("inf")

    def for_group(self, users: int) -> float:
        """ε of so many users together, at the same δ."""
        if self.releases:
            of_run = self.release, self.releases, self.delta, users, self.earlier, self.accountant
            return group_epsilon(*of_run, distance=self.distance)
        if not self.earlier:
            return 0.0
        return group_epsilon(self.earlier[-1], 1, self.delta, users, self.earlier[:-1], "rdp", self.distance)

    @property
    def is_simulated(self) -> bool:
        return self.randomness != "operating system"


class Ledger:
    """The file, verified. Several processes may use it at once; appends are serialised by a lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._size = 0
        if not path.exists():
            self.append({"kind": "ledger", "id": secrets.token_hex(8)})
        else:
            with self._locked() as file:
                self._catch_up(file)
            if not self.rows:
                raise LedgerError(f"{path} is empty: what it said is lost. Restore it from a copy.")

    @property
    def id(self) -> str:
        return self.rows[0]["id"]

    @property
    def head(self) -> str:
        return self.rows[-1]["hash"] if self.rows else GENESIS

    def append(self, row: Row, check: Callable[[list[Row]], None] = lambda rows: None) -> Row:
        """Write one row and sync it. `check` sees all rows under the lock and may refuse by raising."""
        with self._locked() as file:
            self._catch_up(file)
            check(self.rows)
            return self._write(file, row)

    def run_rows(self, run: str) -> list[Row]:
        return [row for row in self.rows if row.get("run") == run]

    def runs(self) -> list[str]:
        return [row["run"] for row in self.rows if row["kind"] == "open"]

    def guarantee(self, run: str, head: str | None = None, delta: float | None = None) -> Guarantee:
        """What holds for `run` up to row `head` (default: its last), at its own δ unless another is asked for."""
        rows = self.run_rows(run)
        if not rows:
            raise LedgerError(f"{self.path} knows no run {run!r}; its runs are: {', '.join(self.runs()) or 'none'}")
        if head is not None:
            positions = [index for index, row in enumerate(rows) if row["hash"] == head]
            if not positions:
                raise LedgerError(
                    f"{self.path} has no row {head[:12]}… of run {run!r}: the model and this ledger do not belong together, "
                    "or rows were cut off"
                )
            rows = rows[: positions[0] + 1]
        terms = rows[0]
        at_delta: float = terms["delta"] if delta is None else delta
        costs = self.cost(run, rows[-1]["hash"])  # none where nothing was released: then nothing is spent
        event = composed(costs[:-1], costs[-1]) if costs else None
        release = event_from_json(terms["release"])
        return Guarantee(
            run=run,
            releases=sum(row["kind"] == "charge" for row in rows),
            epsilon=epsilon(event, at_delta, terms["accountant"]) if event else 0.0,
            delta=at_delta,
            rho=rho(event) if event else 0.0,
            accountant=terms["accountant"],
            adjacency=terms["adjacency"],
            randomness=terms["randomness"],
            head=rows[-1]["hash"],
            continued=bool(terms["lineage"]),
            claim=claim_of(release),
            sampled=is_sampled(release),
            unit=terms.get("unit", "one user"),
            release=release,
            earlier=tuple(self.lineage(run)),
        )

    def lineage(self, run: str) -> list[DpEvent]:
        """What the parameters a run started from had cost."""
        return [event_from_json(event) for event in self.run_rows(run)[0]["lineage"]]

    def model_row(self, digest: str) -> Row | None:
        """The last row that records these parameters as a run's model."""
        return next((row for row in reversed(self.rows) if row["kind"] == "model" and row["params"] == digest), None)

    def cost(self, run: str, head: str | None = None) -> list[DpEvent]:
        """The costs of a run's model at `head`: its lineage's and its own."""
        rows = self.run_rows(run)
        until = next((index for index, row in enumerate(rows) if row["hash"] == head), len(rows))
        charges = sum(row["kind"] == "charge" for row in rows[: until + 1])
        own = [repeated(event_from_json(rows[0]["release"]), charges)] if charges else []
        return [*self.lineage(run), *own]

    def totals(self, delta: float) -> list[tuple[str, float, float]]:
        """(adjacency, ε, ρ) of all runs together, a row for each adjacency: costs under different ones do not add up.

        Several are composed in RDP: later runs are chosen after seeing earlier ones, and RDP stays valid then.
        """
        costs: dict[str, list[DpEvent]] = {}
        for run in self.runs():
            own = self.cost(run)[len(self.lineage(run)) :]
            costs.setdefault(self.run_rows(run)[0]["adjacency"], []).extend(own)
        without = [cost for own in costs.values() for cost in own if isinstance(cost, NonPrivateDpEvent)]
        # What was released without privacy counts under every adjacency.
        events = {adjacency: ComposedDpEvent([*own, *without]) for adjacency, own in costs.items() if own}
        return [
            (adjacency, epsilon(event.events[0] if len(event.events) == 1 else event, delta), rho(event))
            for adjacency, event in events.items()
        ]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file  # closing the file gives the lock back

    def _catch_up(self, file: BinaryIO) -> None:
        """Verify and take in what is new in the file since this object last looked."""
        size = file.seek(0, os.SEEK_END)
        if size < self._size:
            raise LedgerError(
                f"{self.path} became shorter while it was in use: rows were removed. Nothing was released."
            )
        file.seek(self._size)
        *lines, tail = file.read().split(b"\n")
        for line in lines:
            self._take(line)
            self._size += len(line) + 1
        if tail:
            self._mend(file, tail)

    def _mend(self, file: BinaryIO, tail: bytes) -> None:
        """A last line without its end: a process died while writing it, before it could release anything.

        A row that verifies is kept all the same (better one charge too many). What does not is cut off, and a row says so.
        """
        try:
            self._take(tail)
        except LedgerError:
            file.truncate(self._size)
            self._write(file, {"kind": "torn", "bytes": len(tail)})
        else:
            self._flush(file, b"\n")
            self._size += len(tail) + 1

    def _take(self, line: bytes) -> None:
        position = len(self.rows) + 1
        row: Row = {}
        with contextlib.suppress(ValueError):
            row = json.loads(line)
        sound = isinstance(row, dict) and row.get("hash") == _hash(row) and row.get("previous") == self.head
        if not sound:
            raise LedgerError(
                f"{self.path}, row {position}, does not fit the row before it: the ledger was changed by hand, damaged or mixed "
                "with another. Nothing will be released from it. Restore it from a copy, or treat these users' text as used up."
            )
        self.rows.append(row)

    def _write(self, file: BinaryIO, row: Row) -> Row:
        row = {**row, "previous": self.head}
        row["hash"] = _hash(row)
        line = json.dumps(row, sort_keys=True).encode() + b"\n"
        try:
            self._flush(file, line)
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(self._size)
            raise
        self._size += len(line)
        self.rows.append(row)
        return row

    def _flush(self, file: BinaryIO, data: bytes) -> None:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        if not self.rows:  # a new file lives in its folder's record
            sync_folder(self.path.parent)


def _hash(row: Row) -> str:
    content = {name: value for name, value in row.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
