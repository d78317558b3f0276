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
    Budget,
    allowed_releases,
    composed,
    epsilon,
    event_from_json,
    event_to_json,
    repeated,
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
    continued: bool = False  # whether ε counts earlier runs too, from which this one started

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
    start: str = ""  # digest of the parameters it starts from
    lineage: tuple[DpEvent, ...] = ()  # what those parameters have cost already; public text costs nothing


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


@dataclass
class Account:
    """One run's account in its population's ledger: what the curator charges."""

    ledger: Ledger
    terms: RunTerms
    release: DpEvent  # what one costs
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
        costs = {**self._costs(), "start": terms.start}
        self._rows = [self.ledger.append({**identity, **declared, **limits, **costs}, check)]

    def reopen(self, head: str | None) -> None:
        """Go on with a run that was cut off. `head` is the row its state was saved at."""
        rows, terms = self.ledger.run_rows(self.terms.name), self.terms
        if not rows:
            raise LedgerError(
                f"{self.ledger.path} has no run {terms.name!r}: this run folder belongs to another population"
            )
        opened = rows[0]
        for named, was, now in (
            ("recipe", opened["recipe"], terms.recipe),
            ("cost of a release", {name: opened[name] for name in self._costs()}, self._costs()),
            ("text", opened["population"], terms.population),
            ("starting model", opened["start"], terms.start),
            ("source of randomness", opened["randomness"], terms.randomness),
        ):
            if was != now:
                raise LedgerError(
                    f"the {named} of run {terms.name!r} is not the one it was opened with; start a new run instead"
                )
        if head is not None and all(row["hash"] != head for row in rows):
            raise LedgerError(
                f"{self.ledger.path} lacks the row at which this run was saved: rows were cut off. Nothing released."
            )
        self._rows = rows

    def cost(self, releases: int) -> DpEvent:
        """Of the run's first releases, without its lineage."""
        return repeated(self.release, releases)

    def _costs(self) -> Row:
        return {
            "lineage": [event_to_json(event) for event in self.terms.lineage],
            "release": event_to_json(self.release),
        }

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
        """Raise if the next release would pass the budget."""
        if len(self.charges) >= self.allowed:
            limits = self.terms.budget
            pairs = (("ε", limits.epsilon), ("ρ", limits.rho))
            wanted = " and ".join(f"{name} = {value:g}" for name, value in pairs if value)
            budget = f"the budget of {wanted} at δ = {limits.delta:.2g}"
            if self.allowed == 0:
                raise BudgetExhausted(
                    f"{budget} allows not one release at this noise; take more noise, or a larger budget"
                )
            raise BudgetExhausted(f"{budget} allows {self.allowed} releases; all are spent")

    def charge(self, round: int, attempt: int, seal: str) -> None:
        """Put one release on the record. When this returns the row is on disk; only then may anything be released."""
        self.check_budget()
        self._append({"kind": "charge", "run": self.terms.name, "round": round, "attempt": attempt, "seal": seal})

    def record_model(self, round: int, digest: str) -> str:
        """Put the parameters that a run publishes on the record, and return the row that names their history."""
        model = {"kind": "model", "run": self.terms.name, "round": round, "params": digest}
        if any(self._rows[-1].get(name) != value for name, value in model.items()):
            self._append(model)
        return self.head

    def _append(self, row: Row) -> None:
        if not self._rows:
            raise LedgerError(f"run {self.terms.name!r} was not declared in {self.ledger.path}: open it first")

        def check(rows: list[Row]) -> None:
            if sum(row.get("run") == self.terms.name for row in rows) != len(self._rows):
                raise LedgerError(f"another process is at work on run {self.terms.name!r}: stop one of the two")

        self._rows.append(self.ledger.append(row, check))

    def guarantee(self, delta: float | None = None) -> Guarantee:
        return self.ledger.guarantee(self.terms.name, self.head, delta)


def _hash(row: Row) -> str:
    content = {name: value for name, value in row.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
