"""The ledger of a population: what was ever released about these users.

It is an append-only, hash-chained file (privacy/ledger/hash_chain.py).

It belongs to the *population*, not to a run, because every run on the same users costs them
something, even one that is thrown away.

**Guarantee:** a run on people whose noise came from a seed costs ∞ in every total, budget and
export, as anyone who knows the seed can remove the noise, while its own guarantee describes its
mechanism and says *simulation*. Under a population's budget (privacy/ledger/population_budget.py)
no run is opened, and no budget set, with which all runs together could pass it. What a single run
cost is in privacy/ledger/run_rows.py.
"""

import contextlib
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.conversions import with_distance
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.ledger.anchor import Anchor, AnchorUnreachable
from taciturn.privacy.ledger.guarantee import Spending
from taciturn.privacy.ledger.hash_chain import ChainedFile, LedgerError, Row
from taciturn.privacy.ledger.population_budget import PopulationBudget, epsilon_of_all
from taciturn.privacy.ledger.run_rows import RunRows, count_charges
from taciturn.privacy.participation import LEAST_DELTA, default_delta, round_for_publication

FILE_NAME = "ledger.jsonl"


class UsualDelta(NamedTuple):
    """The δ at which totals are shown unless another is asked for."""

    delta: float
    # Whose it is, in words.
    source: str


class AdjacencyTotal(NamedTuple):
    """What all runs cost together that state one adjacency."""

    adjacency: str
    epsilon: float
    rho: float


class _RunCost(NamedTuple):
    """What a run's own releases cost, its start aside."""

    run: str
    event: DpEvent


class Ledger(RunRows, ChainedFile):
    """What the rows of the file mean, all runs together."""

    def __init__(self, path: Path, known_id: str | None = None) -> None:
        """Open the ledger as `ChainedFile` does, and sort its rows by run."""
        self._by_run = {}
        super().__init__(path, known_id)

    def _add(self, row: Row) -> None:
        self._sort(row)
        super()._add(row)

    def model_row(self, digest: str) -> Row | None:
        """Return the last row that records these parameters as a run's model."""
        for row in reversed(self.rows):
            if row["kind"] == "model" and row["params"] == digest:
                return row
        return None

    def counted_cost(self, run: str) -> list[DpEvent]:
        """Return the costs of a run's model as totals count them; none where nothing was spent."""
        costs = self.cost(run)
        return [NonPrivateDpEvent()] if costs and self.is_noise_known(run) else costs

    def _counted_own_cost(self, run: str, releases: int) -> list[DpEvent]:
        """Return what a run's own releases count in a total: one cost, or none."""
        cost = self._own_cost(run, releases)
        # Anyone who knows the seed can subtract the noise.
        return [NonPrivateDpEvent()] if cost and self.is_noise_known(run) else cost

    @property
    def largest_population(self) -> int:
        """Return the largest number of people that a run was opened on; 0 if none was recorded."""
        rows = self.run_rows(None)
        return max((row["users"] for row in rows if row["kind"] == "people"), default=0)

    def record_people(
        self, users: int, check: Callable[[list[Row]], None] = lambda rows: None
    ) -> None:
        """Record about how many people there are, where that is known.

        Hashes of later rows are published. The salt keeps anyone from confirming a guess at the
        number by them; and as the row is written whether or not there were more before, nobody
        learns from its absence either.

        Args:
            users: how many there are; 0 if that is not known.
            check: may refuse, as for any row.
        """
        if not users:
            return
        row = {
            "kind": "people",
            "users": round_for_publication(users),
            "salt": secrets.token_hex(16),
        }
        self.append(row, check)

    def usual_delta(self, people: int = 0) -> UsualDelta:
        """Return the δ of totals: one over the square of the largest population protected here.

        Not the smallest of the runs' δ: one recipe with too many users would make all totals ∞.

        Args:
            people: how many there are now, where the caller knows.
        """
        users = max(self.largest_population, round_for_publication(people))
        if users > 1:
            whose = f"1/users² of the largest population that this ledger protects, {users:,}"
            return UsualDelta(default_delta(users), whose)
        deltas = [self._opening(run)["delta"] for run in self.runs()]
        whose = "the smallest of the runs', as the number of people is not recorded"
        return UsualDelta(min(deltas, default=LEAST_DELTA), whose)

    def totals(self, delta: float | None = None) -> list[AdjacencyTotal]:
        """Return for each adjacency what all runs cost together that state it.

        At the usual δ, unless another is given.

        Several are composed in RDP: later runs are chosen after seeing earlier ones, and RDP stays
        valid then.
        """
        costs = self._costs_of_runs()
        adjacencies = {cost.run: self._opening(cost.run)["adjacency"] for cost in costs}
        at_delta = self.usual_delta().delta if delta is None else delta
        totals = []
        for adjacency in dict.fromkeys(adjacencies.values()):
            # What was released without privacy counts under every adjacency.
            counted = [
                cost
                for cost in costs
                if adjacencies[cost.run] == adjacency or isinstance(cost.event, NonPrivateDpEvent)
            ]
            spending = self._add_up(counted, at_delta)
            totals.append(AdjacencyTotal(adjacency, epsilon=spending.epsilon, rho=spending.rho))
        return totals

    def total(self, delta: float | None = None) -> Spending:
        """Return what all runs cost together under zero-out, at the usual δ or another.

        privacy/ledger/population_budget.py says why they add up.
        """
        costs = self._costs_of_runs()
        at_delta = self.usual_delta().delta if delta is None else delta
        return self._add_up(costs, at_delta) if costs else Spending(epsilon=0.0, rho=0.0)

    def _costs_of_runs(self) -> list[_RunCost]:
        costs = []
        for run in self.runs():
            for event in self._counted_own_cost(run, self._charges(run)):
                costs.append(_RunCost(run, event))
        return costs

    def _add_up(self, costs: Sequence[_RunCost], delta: float) -> Spending:
        events = [cost.event for cost in costs]
        distance = sum(self._own_distance(cost.run) for cost in costs)

        def bound(normal_delta: float) -> float:
            if len(events) == 1:
                return epsilon(events[0], normal_delta)
            return epsilon_of_all(events, normal_delta)

        return Spending(
            epsilon=with_distance(bound, delta, distance),
            rho=sum(rho(event) for event in events),
        )

    def _own_distance(self, run: str) -> float:
        return self._opening(run).get("distance", 0.0)

    def _charges(self, run: str) -> int:
        return count_charges(self.run_rows(run))

    # A budget for all runs together.

    @property
    def budget(self) -> PopulationBudget | None:
        """Return the budget in force, if one was set."""
        row = _find_last("budget", self.rows)
        return PopulationBudget(epsilon=row["epsilon"], delta=row["delta"]) if row else None

    def set_budget(self, budget: PopulationBudget) -> None:
        """Fix the budget, or lower it.

        Raises:
            LedgerError: if it is higher than the last, or the existing runs could pass it.
        """
        if not (0 < budget.epsilon < 700 and 0 < budget.delta < 1):
            raise LedgerError(
                "the ε of a budget must lie between 0 and 700, and its δ between 0 and 1: choose"
                " others"
            )

        def check(rows: list[Row]) -> None:
            last = self.budget
            if last and (budget.epsilon > last.epsilon or budget.delta > last.delta):
                promised = pair_text(last.epsilon, last.delta)
                raise LedgerError(
                    f"these people were promised {promised} in all: a budget is only ever lowered"
                )
            self.check_room([], 0.0, budget)

        # Its δ may follow from the number of people, which later hashes must not confirm.
        row = {
            "kind": "budget",
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "salt": secrets.token_hex(16),
        }
        self.append(row, check)

    def check_room(
        self, cost: Sequence[DpEvent], distance: float, budget: PopulationBudget | None = None
    ) -> None:
        """Raise if more runs, beside all existing ones, could pass a budget.

        Args:
            cost: what they cost at most.
            distance: that of their samplers from the ideal.
            budget: one that is to be set (default: the present one).
        """
        budget = budget or self.budget
        if budget is None:
            return
        costs = [*cost]
        distances = []
        for run in self.runs():
            own_cost = self._counted_own_cost(run, self._most_releases(run))
            if own_cost:
                costs += own_cost
                distances.append(self._own_distance(run))
        if budget.allows(costs, distance + sum(distances)):
            return
        promised = pair_text(budget.epsilon, budget.delta)
        limit = f"the budget of these people, {promised} for all runs together"
        if _has_no_privacy(cost):
            raise LedgerError(f"a run without privacy (ε = ∞) does not start under {limit}")
        if _has_no_privacy(costs):
            raise LedgerError(
                f"{limit}, is passed already: {self.path} has a run without privacy, or one whose"
                " noise came from a seed (taciturn ledger show FOLDER); if it has released nothing,"
                " close it: taciturn ledger close FOLDER RUN"
            )
        raise LedgerError(
            f"{limit}, could be passed: take more noise or fewer rounds, or give back what runs"
            " that will not continue have reserved: taciturn ledger close FOLDER RUN"
        )

    def _most_releases(self, run: str) -> int:
        """Return how many releases of a run count.

        They are all that it may make, or, once it is closed, those that it made.
        """
        charges = self._charges(run)
        if self.is_closed(run):
            return charges
        reserved = self._opening(run).get("reserved", 1)
        return max(reserved, charges)

    def close(self, run: str) -> None:
        """Close a run that will not continue: it gives back what it reserved and did not spend."""

        def check(rows: list[Row]) -> None:
            self._known_rows(run)
            if self.is_closed(run):
                raise LedgerError(f"run {run!r} is closed already")

        self.append({"kind": "close", "closed": run}, check)

    def is_closed(self, run: str) -> bool:
        """Tell whether a run was closed."""
        return any(row["kind"] == "close" and row["closed"] == run for row in self.run_rows(None))

    # An anchor outside the folder.

    @property
    def anchor(self) -> Anchor | None:
        """Return the anchor that is asked, if one was set."""
        row = _find_last("anchor", self.run_rows(None))
        return Anchor.from_row(row) if row else None

    def set_anchor(self, anchor: Anchor) -> None:
        """Ask this anchor from now on. A present one must agree, unless it is lost."""
        with self._lock() as file:
            self._catch_up(file)
            previous, newest = self._last_two_heads()
            with contextlib.suppress(AnchorUnreachable):
                self._witness(previous, newest)
            anchor.begin([row["hash"] for row in self.rows])
            self._write(file, {"kind": "anchor", **anchor.row})
            anchor.agree(newest, self.head)

    def _witness(self, previous: str, new: str) -> None:
        if self.anchor:
            self.anchor.agree(previous, new)


def _find_last(kind: str, rows: Sequence[Row]) -> Row | None:
    """Return the last row of this kind, if any."""
    for row in reversed(rows):
        if row["kind"] == kind:
            return row
    return None


def _has_no_privacy(costs: Sequence[DpEvent]) -> bool:
    return any(isinstance(cost, NonPrivateDpEvent) for cost in costs)
