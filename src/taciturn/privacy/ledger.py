"""The ledger of a population: what was ever released about these users, in an append-only, hash-chained file.

It belongs to the *population*, not to a run, because every run on the same users costs them something, the ones thrown away as well.

**Guarantee:** a charge is on disk (fsync) before `charge` returns, so a crash may count a release that never happened but never
misses one. Rows that were changed, removed from the middle, reordered or re-made do not verify, and a ledger that does not
verify refuses every further charge. Rows cut off at the end are noticed by whoever holds a later head: checkpoints, models and exports do.

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

from dp_accounting import ComposedDpEvent, DpEvent

from taciturn.files import sync_folder
from taciturn.privacy.accounting import (
    AccountantName,
    Budget,
    allowed_releases,
    composed,
    epsilon,
    event_from_json,
    event_to_json,
    rho,
)

FILE_NAME = "ledger.jsonl"
GENESIS = "0" * 64
Row = dict[str, Any]


class LedgerError(Exception):
    """The ledger does not say what it must; nothing may be released."""


class BudgetExhausted(Exception):
    """The next release would cost more than the run's budget allows."""


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

    @property
    def is_private(self) -> bool:
        return self.epsilon < float("inf")


@dataclass(frozen=True)
class RunTerms:
    """What a run declares before its first round; later rows of the run must agree with it."""

    name: str
    recipe: str  # fingerprint
    population: str  # identity of the users' text
    adjacency: str
    randomness: str
    accountant: AccountantName
    budget: Budget
    rounds: int
    lineage: tuple[DpEvent, ...] = ()  # what the run's warm start has cost already; public text costs nothing


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
        terms, charges = rows[0], [row for row in rows if row["kind"] == "charge"]
        at_delta: float = terms["delta"] if delta is None else delta
        lineage = [event_from_json(event) for event in terms["lineage"]]
        own = (
            event_from_json(charges[-1]["cost"]) if charges else ComposedDpEvent([])
        )  # nothing released, nothing spent
        event = composed(lineage, own)
        return Guarantee(
            run=run,
            releases=len(charges),
            epsilon=epsilon(event, at_delta, terms["accountant"]) if charges or lineage else 0.0,
            delta=at_delta,
            rho=rho(event),
            accountant=terms["accountant"],
            adjacency=terms["adjacency"],
            randomness=terms["randomness"],
            head=rows[-1]["hash"],
        )

    def totals(self, delta: float) -> list[tuple[str, float, float]]:
        """(adjacency, ε, ρ) of all runs together, one row for each adjacency, since costs under different ones do not add up.

        Composed in RDP: later runs are chosen after seeing earlier ones, and RDP stays valid then.
        """
        costs: dict[str, list[DpEvent]] = {}
        for run in self.runs():
            rows = self.run_rows(run)
            charges = [row for row in rows if row["kind"] == "charge"]
            if charges:
                costs.setdefault(rows[0]["adjacency"], []).append(event_from_json(charges[-1]["cost"]))
        composed = {adjacency: ComposedDpEvent(events) for adjacency, events in costs.items()}
        return [(adjacency, epsilon(event, delta, "rdp"), rho(event)) for adjacency, event in composed.items()]

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


@dataclass
class Account:
    """One run's account in its population's ledger: what the curator charges."""

    ledger: Ledger
    terms: RunTerms
    cost: Callable[[int], DpEvent]  # of the run's first n releases
    _rows: list[Row] = field(default_factory=list)
    _allowed: int | None = None

    def open(self) -> None:
        """Declare the run. Refused where the ledger already has one of that name."""
        terms = self.terms

        def check(rows: list[Row]) -> None:
            if any(row.get("run") == terms.name for row in rows):
                raise LedgerError(
                    f"{self.ledger.path} already has a run {terms.name!r}: choose another --run, or --resume it"
                )

        declared = {"adjacency": terms.adjacency, "randomness": terms.randomness, "accountant": terms.accountant}
        limits = {
            "delta": terms.budget.delta,
            "epsilon": terms.budget.epsilon,
            "rho": terms.budget.rho,
            "rounds": terms.rounds,
        }
        identity = {"kind": "open", "run": terms.name, "recipe": terms.recipe, "population": terms.population}
        costs = {
            "lineage": [event_to_json(event) for event in terms.lineage],
            "first": event_to_json(self.cost(1)),
        }
        self._rows = [self.ledger.append({**identity, **declared, **limits, **costs}, check)]

    def reopen(self, head: str | None) -> None:
        """Go on with a run that was cut off. `head` is the row its checkpoint was made at."""
        rows = self.ledger.run_rows(self.terms.name)
        if not rows:
            raise LedgerError(
                f"{self.ledger.path} has no run {self.terms.name!r}: this run folder belongs to another population"
            )
        if rows[0]["recipe"] != self.terms.recipe or rows[0]["first"] != event_to_json(self.cost(1)):
            raise LedgerError(
                f"the recipe of run {self.terms.name!r} is not the one it was opened with; start a new run instead"
            )
        if rows[0]["population"] != self.terms.population:
            raise LedgerError(
                f"run {self.terms.name!r} was opened on other text than {self.ledger.path.parent} now holds"
            )
        if head is not None and all(row["hash"] != head for row in rows):
            raise LedgerError(
                f"{self.ledger.path} lacks the row at which this run was saved: rows were cut off. Nothing released."
            )
        self._rows = rows

    @property
    def rows(self) -> list[Row]:
        return self._rows

    @property
    def head(self) -> str:
        return self._rows[-1]["hash"]

    @property
    def charges(self) -> list[Row]:
        return [row for row in self._rows if row["kind"] == "charge"]

    @property
    def allowed(self) -> int:
        """How many releases the budget allows, worked out once, before the first. Rounds that were cut off may be charged
        twice, hence the room for more releases than rounds."""
        if self._allowed is None:
            most = 2 * self.terms.rounds + 100
            self._allowed = allowed_releases(
                lambda releases: composed(self.terms.lineage, self.cost(releases)),
                self.terms.budget,
                self.terms.accountant,
                most,
            )
        return self._allowed

    def last_attempt(self, round: int) -> tuple[int, str] | None:
        """(attempt, seal) of the last charge for a round; None if it was never charged."""
        attempts = [row for row in self.charges if row["round"] == round]
        return (attempts[-1]["attempt"], attempts[-1]["seal"]) if attempts else None

    def check_budget(self) -> None:
        if len(self.charges) >= self.allowed:
            limits = self.terms.budget
            wanted = " and ".join(
                f"{name} = {value:g}" for name, value in (("ε", limits.epsilon), ("ρ", limits.rho)) if value
            )
            raise BudgetExhausted(
                f"the budget of {wanted} at δ = {limits.delta:.2g} allows {self.allowed} releases; all are spent"
            )

    def charge(self, round: int, attempt: int, seal: str) -> None:
        """Put one release on the record. When this returns the row is on disk; only then may anything be released."""
        self.check_budget()
        releases = len(self.charges) + 1

        def check(rows: list[Row]) -> None:
            if sum(row.get("run") == self.terms.name for row in rows) != len(self._rows):
                raise LedgerError(f"another process is charging run {self.terms.name!r}: stop one of the two")

        row = {"kind": "charge", "run": self.terms.name, "round": round, "attempt": attempt, "seal": seal}
        self._rows.append(self.ledger.append({**row, "cost": event_to_json(self.cost(releases))}, check))

    def guarantee(self, delta: float | None = None) -> Guarantee:
        return self.ledger.guarantee(self.terms.name, self.head, delta)


def _hash(row: Row) -> str:
    content = {name: value for name, value in row.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
