"""One run's account in its population's ledger: what it declared, what it may spend, what it has
charged.

**Guarantee:** a run is declared before its first charge, continues only on the terms it declared,
and never charges past its budget, nor past what it reserved of its population's. Every opening and
every resumption puts fresh random bytes on record, by which the curator keys
what follows: nothing is drawn twice by a root and a ledger that were copied.
"""

import secrets
from dataclasses import dataclass, field

from dp_accounting import DpEvent

from taciturn.errors import TaciturnError
from taciturn.names import AccountantName
from taciturn.privacy.accounting.accountant import Budget, allowed_releases
from taciturn.privacy.accounting.events import compose, event_to_json, most_releases, repeat
from taciturn.privacy.accounting.rounding_up import delta_text
from taciturn.privacy.ledger.hash_chain import LedgerError, Row
from taciturn.privacy.ledger.ledger import INTEGERS, Guarantee, Ledger
from taciturn.privacy.participation import spare_rounds


class BudgetExhausted(TaciturnError):
    """The next release would cost more than the run's budget allows."""


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """What a run declares before its first round; later rows of the run must agree with it."""

    name: str
    # fingerprint
    recipe: str
    # identity of the users' text
    population: str
    adjacency: str
    randomness: str
    accountant: AccountantName
    budget: Budget
    rounds: int
    # digest of the parameters it starts from
    start: str = ""
    lineage: tuple[
        DpEvent,
        ...,
        # what those parameters have cost already; public text costs nothing
    ] = ()
    # whom the guarantee protects
    unit: str = "one user"
    distance: float = (
        # of the noise from its ideal, in total variation, in all releases, spare ones included
        0.0
    )
    lineage_distance: float = (
        # the same, of the runs that the parameters it starts from went through
        0.0
    )


@dataclass(kw_only=True)
class Account:
    """One run's account in its population's ledger: what the curator charges."""

    ledger: Ledger
    terms: RunTerms
    # what one costs
    release: DpEvent
    # of this run, in the ledger
    rows: list[Row] = field(default_factory=list)
    _allowed: int | None = None

    def open(self) -> None:
        """Declare the run; raise if the ledger already has one of that name."""
        terms, budget, reserved = self.terms, self.terms.budget, self.allowed

        def check(rows: list[Row]) -> None:
            if any(row.get("run") == terms.name for row in rows):
                raise LedgerError(
                    f"{self.ledger.path} already has a run {terms.name!r}: choose another --run, or"
                    " --resume it"
                )
            self.ledger.check_room(
                [repeat(self.release, reserved)] if reserved else [], terms.distance
            )

        declared = {
            "adjacency": terms.adjacency,
            "randomness": terms.randomness,
            "accountant": terms.accountant,
            "noise": INTEGERS,
        }
        limits = {
            "delta": budget.delta,
            "epsilon": budget.epsilon,
            "rho": budget.rho,
            "rounds": terms.rounds,
            "reserved": reserved,
        }
        identity = {
            "kind": "open",
            "run": terms.name,
            "recipe": terms.recipe,
            "population": terms.population,
        }
        identity |= {"unit": terms.unit, "fresh": self._fresh()}
        costs = {**self._costs(), "start": terms.start}
        self.rows = [self.ledger.append({**identity, **declared, **limits, **costs}, check)]

    def _fresh(self) -> str:
        """Draw bytes for this opening; none in a simulation, which repeats bit for bit."""
        return secrets.token_hex(32) if self.terms.randomness == "operating system" else ""

    @property
    def nonce(self) -> bytes:
        """Return the bytes drawn at the last opening or resumption; none in a seeded simulation."""
        return bytes.fromhex(
            next(row["fresh"] for row in reversed(self._opened_rows) if "fresh" in row)
        )

    def reopen(self, head: str | None) -> None:
        """Resume a run that was interrupted. `head` is the row its state was saved at."""
        rows, terms = self.ledger.run_rows(self.terms.name), self.terms
        if not rows:
            raise LedgerError(
                f"{self.ledger.path} has no run {terms.name!r}: this run folder belongs to another"
                " population"
            )
        opened = rows[0]
        for named, was, now in (
            ("kind of noise", opened.get("noise"), INTEGERS),
            ("recipe", opened["recipe"], terms.recipe),
            (
                "cost of a release",
                {name: opened.get(name) for name in self._costs()},
                self._costs(),
            ),
            ("text", opened["population"], terms.population),
            ("starting model", opened["start"], terms.start),
            ("source of randomness", opened["randomness"], terms.randomness),
        ):
            if was != now:
                raise LedgerError(
                    f"the {named} of run {terms.name!r} is not the one it was opened with; start a"
                    " new run instead"
                )
        if head is not None and all(row["hash"] != head for row in rows):
            raise LedgerError(
                f"{self.ledger.path} lacks the row at which this run was saved: restore its newest"
                " copy"
            )
        self.rows = rows
        self._append({"kind": "resume", "run": terms.name, "fresh": self._fresh()})

    def _costs(self) -> Row:
        costs = {
            "lineage": [event_to_json(event) for event in self.terms.lineage],
            "release": event_to_json(self.release),
        }
        return {
            **costs,
            "distance": self.terms.distance,
            "lineage_distance": self.terms.lineage_distance,
        }

    @property
    def head(self) -> str:
        return self.rows[-1]["hash"]

    @property
    def charges(self) -> list[Row]:
        return [row for row in self.rows if row["kind"] == "charge"]

    @property
    def allowed(self) -> int:
        """Return how many releases the budget allows, fixed before the first: at most the rounds
        and some spare ones. All are reserved.
        """
        if self._allowed is None:
            most = most_releases(self.release, self.terms.rounds + spare_rounds(self.terms.rounds))
            limits = (
                self.terms.budget,
                self.terms.accountant,
                most,
                self.terms.distance + self.terms.lineage_distance,
            )
            self._allowed = allowed_releases(
                lambda releases: compose(self.terms.lineage, repeat(self.release, releases)),
                *limits,
            )
        return self._allowed

    def check_budget(self) -> None:
        """Raise if the next release would pass the budget."""
        reserved = self.rows[0]["reserved"] if self.rows else self.allowed
        if len(self.charges) >= min(self.allowed, reserved):
            limits, made = self.terms.budget, len(self.charges)
            pairs = (("ε", limits.epsilon), ("ρ", limits.rho))
            wanted = " and ".join(f"{name} = {value:g}" for name, value in pairs if value)
            if not wanted:
                raise BudgetExhausted(
                    f"the run has made the {made} releases that it reserved for its"
                    f" {self.terms.rounds} rounds"
                )
            budget = f"the budget of {wanted} at δ = {delta_text(limits.delta)}"
            if self.allowed == 0:
                raise BudgetExhausted(
                    f"{budget} does not allow a single release at this noise level; increase the"
                    " noise or the budget"
                )
            raise BudgetExhausted(f"{budget} allows {self.allowed} releases; all are spent")

    def charge(self, round: int, record: str, log: str = "") -> None:
        """Record one release. The row is on disk when this returns; only then may anything be
        released. `record` is the keyed checksum of the release, `log` the participation log's mark
        of who took part: both tell others nothing.
        """
        self.check_budget()
        if round != len(self.charges):
            raise LedgerError(
                f"round {round} of run {self.terms.name!r} is not the next to be charged"
            )
        row = {"kind": "charge", "run": self.terms.name, "round": round, "record": record}
        self._append(row | ({"log": log} if log else {}))

    def record_model(self, round: int, digest: str, card: str = "") -> str:
        """Record the parameters that a run publishes and the digest of their card; return the row
        that names their history.
        """
        model = {"kind": "model", "run": self.terms.name, "round": round, "params": digest}
        model |= {"card": card} if card else {}
        if any(self.rows[-1].get(name) != value for name, value in model.items()):
            self._append(model)
        return self.head

    def close(self) -> None:
        """Give back what was reserved and not spent. The run charges nothing afterwards."""
        self.ledger.close(self.terms.name)

    @property
    def _opened_rows(self) -> list[Row]:
        if not self.rows:
            raise LedgerError(
                f"run {self.terms.name!r} was not declared in {self.ledger.path}: open it first"
            )
        return self.rows

    def check_alone(self) -> None:
        """Raise if another process resumed the run: this one may no longer write to its folder."""
        self.ledger.refresh()
        self._check_rows(self.ledger.rows)

    def _append(self, row: Row) -> None:
        self._opened_rows.append(self.ledger.append(row, self._check_rows))

    def _check_rows(self, rows: list[Row]) -> None:
        if len(self.ledger.run_rows(self.terms.name)) != len(self._opened_rows):
            raise LedgerError(
                f"another process is at work on run {self.terms.name!r}: stop one of the two"
            )
        if self.ledger.is_closed(self.terms.name):
            raise LedgerError(
                f"run {self.terms.name!r} is closed, and has given back what it reserved: start a"
                " new run"
            )

    def guarantee(self, delta: float | None = None) -> Guarantee:
        return self.ledger.guarantee(self.terms.name, self.head, delta)
