"""One run's account in its population's ledger.

It is what the run declared, what it may spend, and what it has charged.

**Guarantee:** a run is declared before its first charge, continues only on the terms it declared,
and never charges past its budget, nor past what it reserved of its population's. Under a
population's budget no run on people takes its noise from a seed. Every opening and every resumption
puts fresh random bytes on record, by which the curator keys what follows: nothing is drawn twice by
a root and a ledger that were copied.
"""

import secrets
from dataclasses import dataclass, field

from dp_accounting import DpEvent

from taciturn.errors import TaciturnError
from taciturn.names import AccountantName
from taciturn.privacy.accounting.accountant import Budget, allowed_releases
from taciturn.privacy.accounting.events import compose, event_to_json, most_releases, repeat
from taciturn.privacy.accounting.rounding_up import delta_text, pair_text
from taciturn.privacy.ledger.early_end import promise
from taciturn.privacy.ledger.guarantee import INTEGERS, SECRET, Guarantee, is_noise_known
from taciturn.privacy.ledger.hash_chain import LedgerError, Row
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.run_rows import rows_digest
from taciturn.privacy.participation import spare_rounds


class BudgetExhausted(TaciturnError):
    """The next release would cost more than the run's budget allows."""


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """What a run declares before its first round; later rows of the run must agree with it."""

    name: str
    # Its fingerprint.
    recipe: str
    # The identity of the users' text.
    population: str
    adjacency: str
    randomness: str
    accountant: AccountantName
    budget: Budget
    rounds: int
    # The digest of the parameters it starts from.
    start: str = ""
    # What those parameters have cost already; public text costs nothing.
    lineage: tuple[DpEvent, ...] = ()
    # Whom the guarantee protects.
    unit: str = "one user"
    # Of the noise from its ideal, in total variation, in all releases, spare ones included.
    distance: float = 0.0
    # The same, of the runs that the parameters it starts from went through.
    lineage_distance: float = 0.0
    # How many people there are, where that is known; not part of what is published of a run.
    people: int = 0


@dataclass(kw_only=True)
class Account:
    """One run's account in its population's ledger: what the curator charges."""

    ledger: Ledger
    terms: RunTerms
    # What one release costs.
    release: DpEvent
    # Those of this run, in the ledger.
    rows: list[Row] = field(default_factory=list)
    _max_releases: int | None = None

    def open(self) -> None:
        """Declare the run.

        Raises:
            LedgerError: if the ledger already has one of that name, or there is no room for it in
                the population's budget.
        """
        # First, so that after a crash in between no run is there without it.
        self.ledger.record_people(self.terms.people, self._check_new)
        self.rows = [self.ledger.append(self._opening(), self._check_new)]

    def _check_new(self, rows: list[Row]) -> None:
        """Raise if the ledger has the run already, or no room for it."""
        if any(row.get("run") == self.terms.name for row in rows):
            raise LedgerError(
                f"{self.ledger.path} already has a run {self.terms.name!r}: choose another `run`,"
                " or `tt.resume` it"
            )
        self.check_noise_is_secret()
        reserved = self.max_releases
        most_cost = [repeat(self.release, reserved)] if reserved else []
        self.ledger.check_room(most_cost, self.terms.distance)

    def check_noise_is_secret(self) -> None:
        """Raise before the first release, if anyone could remove its noise and there is a budget.

        A run of an older version that has released something already may end: all that it released
        counts as ∞, and nothing else starts under the budget.
        """
        terms = self.terms
        if not is_noise_known(terms.randomness, terms.unit) or self.charges:
            return
        budget = self.ledger.budget
        if budget is None:
            return
        raise LedgerError(
            f"run {terms.name!r} takes its noise from a seed, or starts from a model that did;"
            " anyone who knows the seed can remove the noise, so the run costs ε = ∞ and does not"
            f" start under the budget of these people, {pair_text(budget.epsilon, budget.delta)}"
            " for all runs together. Leave out [run] seed, and start from a model that was trained"
            " without one; or try it on simulated users (`taciturn tune`)"
        )

    def _opening(self) -> Row:
        """Return the row that declares the run."""
        terms = self.terms
        reserved = self.max_releases
        return {
            "kind": "open",
            "run": terms.name,
            "recipe": terms.recipe,
            "population": terms.population,
            "unit": terms.unit,
            "fresh": self._draw_fresh(),
            "adjacency": terms.adjacency,
            "randomness": terms.randomness,
            "accountant": terms.accountant,
            "noise": INTEGERS,
            "delta": terms.budget.delta,
            "epsilon": terms.budget.epsilon,
            "rho": terms.budget.rho,
            "rounds": terms.rounds,
            "reserved": reserved,
            **self._costs(),
            "start": terms.start,
        }

    def _draw_fresh(self) -> str:
        """Draw bytes for this opening; none in a simulation, which repeats bit for bit."""
        return secrets.token_hex(32) if self.terms.randomness == SECRET else ""

    @property
    def nonce(self) -> bytes:
        """Return the bytes drawn at the last opening or resumption; none in a seeded simulation."""
        fresh = [row["fresh"] for row in self._declared_rows if "fresh" in row]
        return bytes.fromhex(fresh[-1])

    def reopen(self, head: str | None) -> None:
        """Resume a run that was interrupted.

        Args:
            head: the row its state was saved at; None if none was.

        Raises:
            LedgerError: if the ledger has no such run, or the run was opened on other terms.
        """
        rows = self.ledger.run_rows(self.terms.name)
        if not rows:
            raise LedgerError(
                f"{self.ledger.path} has no run {self.terms.name!r}: this run folder belongs to"
                " another population"
            )
        self._check_terms(rows[0])
        if head is not None and all(row["hash"] != head for row in rows):
            raise LedgerError(
                f"{self.ledger.path} lacks the row at which this run was saved: restore its newest"
                " copy"
            )
        self.rows = rows
        self.check_noise_is_secret()
        self._append({"kind": "resume", "run": self.terms.name, "fresh": self._draw_fresh()})

    def _check_terms(self, opening: Row) -> None:
        """Raise if the run was opened on other terms than those it has now."""
        terms = self.terms
        costs = self._costs()
        opened_costs = {name: opening.get(name) for name in costs}
        declared = {
            "kind of noise": opening.get("noise"),
            "recipe": opening["recipe"],
            "cost of a release": opened_costs,
            "text": opening["population"],
            "starting model": opening["start"],
            "source of randomness": opening["randomness"],
        }
        present = {
            "kind of noise": INTEGERS,
            "recipe": terms.recipe,
            "cost of a release": costs,
            "text": terms.population,
            "starting model": terms.start,
            "source of randomness": terms.randomness,
        }
        for name, value in declared.items():
            if value != present[name]:
                raise LedgerError(
                    f"the {name} of run {terms.name!r} is not the one it was opened with; start a"
                    " new run instead"
                )

    def _costs(self) -> Row:
        return {
            "lineage": [event_to_json(event) for event in self.terms.lineage],
            "release": event_to_json(self.release),
            "distance": self.terms.distance,
            "lineage_distance": self.terms.lineage_distance,
        }

    @property
    def head(self) -> str:
        """Return the hash of the run's newest row."""
        return self.rows[-1]["hash"]

    @property
    def charges(self) -> list[Row]:
        """Return the rows that charge a release, in order."""
        return [row for row in self.rows if row["kind"] == "charge"]

    @property
    def max_releases(self) -> int:
        """Return how many releases the budget allows, fixed before the first.

        They are at most the rounds and some spare ones. All are reserved.
        """
        if self._max_releases is None:
            self._max_releases = self._find_max_releases()
        return self._max_releases

    def _find_max_releases(self) -> int:
        terms = self.terms

        def cost(releases: int) -> DpEvent:
            return compose(terms.lineage, repeat(self.release, releases))

        rows = terms.rounds + spare_rounds(terms.rounds)
        distance = terms.distance + terms.lineage_distance
        return allowed_releases(
            cost,
            terms.budget,
            terms.accountant,
            most=most_releases(self.release, rows),
            distance=distance,
        )

    def check_budget(self) -> None:
        """Raise if the next release would pass the budget, or that of all runs on these people."""
        self.check_noise_is_secret()
        reserved = self.rows[0]["reserved"] if self.rows else self.max_releases
        if len(self.charges) >= min(self.max_releases, reserved):
            raise BudgetExhausted(self._explain_exhaustion())

    def _explain_exhaustion(self) -> str:
        budget = self.terms.budget
        limits = {"ε": budget.epsilon, "ρ": budget.rho}
        stated = [f"{name} = {limit:g}" for name, limit in limits.items() if limit]
        if not stated:
            return (
                f"the run has made the {len(self.charges)} releases that it reserved for its"
                f" {self.terms.rounds} rounds"
            )
        promised = f"the budget of {' and '.join(stated)} at δ = {delta_text(budget.delta)}"
        if self.max_releases == 0:
            return (
                f"{promised} does not allow a single release at this noise level; increase the"
                " noise or the budget"
            )
        return f"{promised} allows {self.max_releases} releases; all are spent"

    def charge(self, round: int, record: str, log: str = "") -> None:
        """Record one release.

        The row is on disk when this returns; only then may anything be released. What it holds
        tells others nothing.

        Args:
            round: its number, which is the next.
            record: the keyed checksum of the release.
            log: the participation log's mark of who took part.

        Raises:
            BudgetExhausted: if it would pass the budget.
            LedgerError: if it is not the next, or the row cannot be written.
        """
        self.check_budget()
        if round != len(self.charges):
            raise LedgerError(
                f"round {round} of run {self.terms.name!r} is not the next to be charged"
            )
        row = {
            "kind": "charge",
            "run": self.terms.name,
            "round": round,
            "record": record,
        }
        if log:
            row["log"] = log
        self._append(row)

    def record_model(self, round: int, digest: str, card: str = "", key: str = "") -> str:
        """Record the parameters that a run publishes; return the row that names their history.

        Where a key signs the row, the row names the key, and all earlier rows of the run by a
        digest: none can be left out from then on.

        Args:
            round: after which they are as they are.
            digest: of the parameters.
            card: the digest of their card.
            key: the fingerprint of the ledger's key.
        """
        model = {
            "kind": "model",
            "run": self.terms.name,
            "round": round,
            "params": digest,
        }
        if card:
            model["card"] = card
        if key:
            model["key"] = key
        is_recorded = model.items() <= self.rows[-1].items()
        if is_recorded:
            return self.head
        if key:
            model["rows"] = rows_digest(self.rows)
        self._append(model)
        return self.head

    def close(self) -> None:
        """Give back what was reserved and not spent. The run charges nothing afterwards."""
        self.ledger.close(self.terms.name)

    @property
    def _declared_rows(self) -> list[Row]:
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
        self._declared_rows.append(self.ledger.append(row, self._check_rows))

    def _check_rows(self, rows: list[Row]) -> None:
        if len(self.ledger.run_rows(self.terms.name)) != len(self._declared_rows):
            raise LedgerError(
                f"another process is at work on run {self.terms.name!r}: stop one of the two. Or"
                " this one has opened the run twice, or was interrupted while it wrote a row: then"
                " resume the run again"
            )
        if self.ledger.is_closed(self.terms.name):
            raise LedgerError(
                f"run {self.terms.name!r} is closed, and has given back what it reserved: start a"
                " new run"
            )

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """Return what the run has spent so far, at its own δ or another.

        It holds for what was released if the number of releases was fixed beforehand.
        """
        return self.ledger.guarantee(self.terms.name, self.head, delta)

    def promise(self) -> Guarantee:
        """Return what holds for what was released, whatever decided when the run ended."""
        return promise(self.ledger, self.terms.name, self.head)
