"""The ledger of a population: what was ever released about these users, in an append-only,
hash-chained file (privacy/ledger/hash_chain.py).

It belongs to the *population*, not to a run, because every run on the same users costs them
something, even one that is thrown away.

**Guarantee:** what a run cost is the cost of one release, declared before the first, times the
number of its charges. A run that does not record that its noise is made of integers has no
guarantee for the bits it released, and costs ∞. Under a population's budget
(privacy/ledger/population_budget.py) no run is opened, and no budget set, with which all runs together
could pass it.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn.names import AccountantName
from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.conversions import with_distance
from taciturn.privacy.accounting.events import (
    claim_of,
    compose,
    event_from_json,
    is_sampled,
    repeat,
)
from taciturn.privacy.accounting.group_privacy import group_epsilon
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.ledger.anchor import Anchor, AnchorUnreachable
from taciturn.privacy.ledger.hash_chain import ChainedFile, LedgerError, Row
from taciturn.privacy.ledger.population_budget import PopulationBudget, epsilon_of_all

FILE_NAME = "ledger.jsonl"
# what noise is made of
INTEGERS = "integers"


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What holds for everything a run released up to the ledger's row `head`."""

    run: str
    releases: int
    epsilon: float
    delta: float
    rho: float
    accountant: AccountantName
    adjacency: str
    # "operating system", or "seeded simulation", whose noise anyone can remove
    randomness: str
    head: str
    # whether ε counts earlier runs too, from which this one started
    continued: bool = False
    # about noise and participation, in words
    claim: str = ""
    # whether the claim rests on who took part being drawn, and secret
    sampled: bool = True
    # whom it protects
    unit: str = "one user"
    # what one of them costs
    release: DpEvent = field(default_factory=NonPrivateDpEvent)
    # what the runs cost that it started from
    earlier: tuple[DpEvent, ...] = ()
    # of its noise from the normal noise that the costs are about
    distance: float = 0.0

    @property
    def is_private(self) -> bool:
        """Tell whether there was noise. At a δ that is too small ε may be ∞ all the same."""
        return self.rho < float("inf")

    def for_group(self, users: int) -> float:
        """Return ε of this number of users together, at the same δ."""
        if self.releases:
            of_run = self.release, self.releases, self.delta, users, self.earlier, self.accountant
            return group_epsilon(*of_run, distance=self.distance)
        if not self.earlier:
            return 0.0
        return group_epsilon(
            self.earlier[-1], 1, self.delta, users, self.earlier[:-1], "rdp", self.distance
        )

    @property
    def is_simulated(self) -> bool:
        return self.randomness != "operating system"


class Ledger(ChainedFile):
    """What the rows of the file mean."""

    def __init__(self, path: Path, known: str | None = None) -> None:
        self._by_run: dict[str | None, list[Row]] = {}
        super().__init__(path, known)

    def _add(self, row: Row) -> None:
        self._by_run.setdefault(row.get("run"), []).append(row)
        super()._add(row)

    def run_rows(self, run: str | None) -> list[Row]:
        """Return the rows of a run; for None, those that belong to no run."""
        return [*self._by_run.get(run, ())]

    def runs(self) -> list[str]:
        return [row["run"] for row in self.rows if row["kind"] == "open"]

    def guarantee(self, run: str, head: str | None = None, delta: float | None = None) -> Guarantee:
        """Return what holds for `run` up to row `head` (default: its last), at its own δ unless
        another is given.
        """
        rows = self._opened(run)
        if head is not None:
            positions = [index for index, row in enumerate(rows) if row["hash"] == head]
            if not positions:
                other = "the model and this ledger do not belong together, or rows were cut off"
                raise LedgerError(f"{self.path} has no row {head[:12]}… of run {run!r}: {other}")
            rows = rows[: positions[0] + 1]
        terms = rows[0]
        at_delta: float = terms["delta"] if delta is None else delta
        # none where nothing was released: then nothing is spent
        costs = self.cost(run, rows[-1]["hash"])
        event = compose(costs[:-1], costs[-1]) if costs else None
        release, accountant = event_from_json(terms["release"]), terms["accountant"]
        return Guarantee(
            run=run,
            releases=sum(row["kind"] == "charge" for row in rows),
            epsilon=(
                epsilon(event, at_delta, accountant, distance=self.distance(run)) if event else 0.0
            ),
            delta=at_delta,
            rho=rho(event) if event else 0.0,
            accountant=accountant,
            adjacency=terms["adjacency"],
            randomness=terms["randomness"],
            head=rows[-1]["hash"],
            continued=bool(terms["lineage"]),
            claim=claim_of(release),
            sampled=is_sampled(release),
            unit=terms.get("unit", "one user"),
            release=release,
            earlier=tuple(self.lineage(run)),
            distance=self.distance(run),
        )

    def lineage(self, run: str) -> list[DpEvent]:
        """Return what the parameters that a run started from had cost."""
        return [event_from_json(event) for event in self.run_rows(run)[0]["lineage"]]

    def model_row(self, digest: str) -> Row | None:
        """Return the last row that records these parameters as a run's model."""
        return next(
            (
                row
                for row in reversed(self.rows)
                if row["kind"] == "model" and row["params"] == digest
            ),
            None,
        )

    def cost(self, run: str, head: str | None = None) -> list[DpEvent]:
        """Return the costs of a run's model at `head`: its lineage's and its own."""
        rows = self.run_rows(run)
        until = next((index for index, row in enumerate(rows) if row["hash"] == head), len(rows))
        charges = sum(row["kind"] == "charge" for row in rows[: until + 1])
        return [*self.lineage(run), *self._own_cost(run, charges)]

    def _own_cost(self, run: str, releases: int) -> list[DpEvent]:
        if not releases:
            return []
        opened = self.run_rows(run)[0]
        # the last bits of floats give away what they hide
        holds = opened.get("noise") == INTEGERS
        return [
            repeat(event_from_json(opened["release"]), releases) if holds else NonPrivateDpEvent()
        ]

    def distance(self, run: str) -> float:
        """Return the distance of the samplers from their ideal, over all releases of a run and of
        those it started from.
        """
        opened = self.run_rows(run)[0]
        return opened.get("distance", 0.0) + opened.get("lineage_distance", 0.0)

    def totals(self, delta: float) -> list[tuple[str, float, float]]:
        """Return (adjacency, ε, ρ) for each adjacency, of all runs that state it together. Several
        are composed in RDP: later runs are chosen after seeing earlier ones, and RDP stays valid
        then.
        """
        adjacencies = {run: self.run_rows(run)[0]["adjacency"] for run, _ in self._spent()}
        groups = {
            # What was released without privacy counts under every adjacency.
            one: [
                spent
                for spent in self._spent()
                if one == adjacencies[spent[0]] or isinstance(spent[1], NonPrivateDpEvent)
            ]
            for one in adjacencies.values()
        }
        return [(one, *self._together(spent, delta)) for one, spent in groups.items()]

    def total(self, delta: float) -> tuple[float, float]:
        """Return (ε, ρ) of all runs together under zero-out (privacy/ledger/population_budget.py says why
        they add up).
        """
        return self._together(self._spent(), delta) if self._spent() else (0.0, 0.0)

    def _spent(self) -> list[tuple[str, DpEvent]]:
        return [
            (run, cost) for run in self.runs() for cost in self._own_cost(run, self._charges(run))
        ]

    def _together(self, spent: Sequence[tuple[str, DpEvent]], delta: float) -> tuple[float, float]:
        costs, distance = (
            [cost for _, cost in spent],
            sum(self._own_distance(run) for run, _ in spent),
        )
        together = epsilon if len(costs) == 1 else lambda _, delta: epsilon_of_all(costs, delta)
        return with_distance(lambda delta: together(costs[0], delta), delta, distance), sum(
            map(rho, costs)
        )

    def _own_distance(self, run: str) -> float:
        return self.run_rows(run)[0].get("distance", 0.0)

    def _charges(self, run: str) -> int:
        return sum(row["kind"] == "charge" for row in self.run_rows(run))

    # A budget for all runs together.

    @property
    def budget(self) -> PopulationBudget | None:
        row = next((row for row in reversed(self.rows) if row["kind"] == "budget"), None)
        return PopulationBudget(epsilon=row["epsilon"], delta=row["delta"]) if row else None

    def set_budget(self, budget: PopulationBudget) -> None:
        """Fix the budget, or lower it; raise if the existing runs could pass it."""
        if not (0 < budget.epsilon < 700 and 0 < budget.delta < 1):
            raise LedgerError(
                "the ε of a budget must lie between 0 and 700, and its δ between 0 and 1: choose"
                " others"
            )

        def check(rows: list[Row]) -> None:
            known = self.budget
            if known and (budget.epsilon > known.epsilon or budget.delta > known.delta):
                promised = pair_text(known.epsilon, known.delta)
                raise LedgerError(
                    f"these people were promised {promised} in all: a budget is only ever lowered"
                )
            self.check_room([], 0.0, budget)

        self.append({"kind": "budget", "epsilon": budget.epsilon, "delta": budget.delta}, check)

    def check_room(
        self, cost: Sequence[DpEvent], distance: float, budget: PopulationBudget | None = None
    ) -> None:
        """Raise if runs of at most this cost, beside all existing ones, could pass the budget: the
        present one, or one to be set.
        """
        budget = budget or self.budget
        if budget is None:
            return
        counted = [(run, self._own_cost(run, self._most(run))) for run in self.runs()]
        costs = [*cost, *(one for _, own in counted for one in own)]
        distances = distance + sum(self._own_distance(run) for run, own in counted if own)
        if budget.allows(costs, distances):
            return
        within = (
            f"the budget of these people, {pair_text(budget.epsilon, budget.delta)} for all runs"
            " together"
        )
        if any(isinstance(one, NonPrivateDpEvent) for one in cost):
            raise LedgerError(f"a run without privacy (ε = ∞) does not start under {within}")
        if any(isinstance(one, NonPrivateDpEvent) for one in costs):
            raise LedgerError(
                f"{within}, is passed already: {self.path} has a run without privacy (taciturn"
                " ledger show FOLDER)"
            )
        to_do = (
            "give back what runs that will not go on have reserved: taciturn ledger close"
            " FOLDER RUN"
        )
        raise LedgerError(f"{within}, could be passed: take more noise or fewer rounds, or {to_do}")

    def _most(self, run: str) -> int:
        """Return how many releases of a run count: all that it may make, or, once it is closed,
        those that it made.
        """
        charges = self._charges(run)
        return (
            charges
            if self.is_closed(run)
            else max(self.run_rows(run)[0].get("reserved", 1), charges)
        )

    def close(self, run: str) -> None:
        """Close a run that will not continue: it gives back what it reserved and did not spend."""

        def check(rows: list[Row]) -> None:
            self._opened(run)
            if self.is_closed(run):
                raise LedgerError(f"run {run!r} is closed already")

        self.append({"kind": "close", "closed": run}, check)

    def is_closed(self, run: str) -> bool:
        return any(row["kind"] == "close" and row["closed"] == run for row in self.run_rows(None))

    def _opened(self, run: str) -> list[Row]:
        rows = self.run_rows(run)
        if not rows:
            raise LedgerError(
                f"{self.path} knows no run {run!r}; its runs are:"
                f" {', '.join(self.runs()) or 'none'}"
            )
        return rows

    # An anchor outside the folder.

    @property
    def anchor(self) -> Anchor | None:
        row = next((row for row in reversed(self.run_rows(None)) if row["kind"] == "anchor"), None)
        return Anchor.of(row) if row else None

    def set_anchor(self, anchor: Anchor) -> None:
        """Ask this anchor from now on. A present one must agree, unless it is lost."""
        with self._lock() as file:
            self._catch_up(file)
            if self.anchor:
                with contextlib.suppress(AnchorUnreachable):
                    self._witness(self.rows[-2]["hash"], self.head)
            before = self.head
            anchor.begin([row["hash"] for row in self.rows])
            self._write(file, {"kind": "anchor", **anchor.row})
            anchor.agree(before, self.head)

    def _witness(self, previous: str, new: str) -> None:
        if self.anchor:
            self.anchor.agree(previous, new)
