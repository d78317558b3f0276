"""The ledger of a population: what was ever released about these users.

It is an append-only, hash-chained file (privacy/ledger/hash_chain.py).

It belongs to the *population*, not to a run, because every run on the same users costs them
something, even one that is thrown away.

**Guarantee:** what a run cost is the cost of one release, declared before the first, times the
number of its charges. A run that does not record that its noise is made of integers has no
guarantee for the bits it released, and costs ∞. Neither has a run on people whose noise came from a
seed, as anyone who knows the seed can remove it: it counts as ∞ in every total, budget and export,
while its own guarantee describes its mechanism and says *simulation*. Under a population's budget
(privacy/ledger/population_budget.py) no run is opened, and no budget set, with which all runs
together could pass it.
"""

import contextlib
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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
from taciturn.privacy.participation import LEAST_DELTA, default_delta, round_for_publication

FILE_NAME = "ledger.jsonl"
# What noise is made of.
INTEGERS = "integers"
# Where noise comes from that nobody can remove.
SECRET = "operating system"
# How the unit of a run begins whose users are pieces of public text, and so nobody.
SIMULATED_USER = "one simulated user"


def is_noise_known(randomness: str, unit: str) -> bool:
    """Tell whether anyone can remove the noise that hides people. Simulated users are nobody."""
    return randomness != SECRET and not unit.startswith(SIMULATED_USER)


@dataclass(frozen=True, kw_only=True)
class EarlyEnd:
    """That a run made fewer releases than it declared, perhaps because of what they showed."""

    # The number that it declared.
    declared: int
    # ε of those it made. It would hold at δ if their number had been fixed beforehand.
    epsilon_of_made: float
    # ε of those it made, at the share of δ that each possible end has.
    epsilon_ex_post: float


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
    # "operating system", or "seeded simulation", whose noise anyone can remove.
    randomness: str
    head: str
    # Whether ε counts earlier runs too, from which this one started.
    continued: bool = False
    # What is claimed about noise and participation, in words.
    claim: str = ""
    # Whether the claim rests on who took part being drawn, and secret.
    sampled: bool = True
    # Whom it protects.
    unit: str = "one user"
    # What one release costs.
    release: DpEvent = field(default_factory=NonPrivateDpEvent)
    # What the runs cost that it started from.
    earlier: tuple[DpEvent, ...] = ()
    # The distance of its noise from the normal noise that the costs are about.
    distance: float = 0.0
    # How often it was interrupted and resumed; None in ledgers that did not record it.
    resumptions: int | None = None
    # Where ε and ρ are those of all releases that were declared, and fewer were made.
    ended_early: EarlyEnd | None = None

    @property
    def is_private(self) -> bool:
        """Tell whether there was noise. At a δ that is too small ε may be ∞ all the same."""
        return self.rho < float("inf")

    def for_group(self, users: int) -> float:
        """Return ε of this number of users together, at the same δ."""
        if self.releases:
            return group_epsilon(
                release=self.release,
                releases=self.ended_early.declared if self.ended_early else self.releases,
                delta=self.delta,
                users=users,
                earlier=self.earlier,
                accountant=self.accountant,
                distance=self.distance,
            )
        if not self.earlier:
            return 0.0
        return group_epsilon(
            release=self.earlier[-1],
            releases=1,
            delta=self.delta,
            users=users,
            earlier=self.earlier[:-1],
            accountant="rdp",
            distance=self.distance,
        )

    @property
    def is_simulated(self) -> bool:
        """Tell whether anyone can remove the noise."""
        return self.randomness != SECRET

    @property
    def is_noise_known(self) -> bool:
        """Tell whether anyone can remove the noise, and people are beneath it."""
        return is_noise_known(self.randomness, self.unit)

    @property
    def protects_nobody(self) -> bool:
        """Tell whether the users are pieces of public text."""
        return self.unit.startswith(SIMULATED_USER)

    @property
    def counted_spending(self) -> "Spending":
        """Return what the ledger counts for the run: ∞ where people's noise can be removed."""
        # What released nothing, and started from what nobody's text is in, cost nothing.
        if self.is_noise_known and self.rho > 0:
            return Spending(epsilon=math.inf, rho=math.inf)
        return Spending(epsilon=self.epsilon, rho=self.rho)


class Spending(NamedTuple):
    """What several runs cost together."""

    epsilon: float
    rho: float


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


class Ledger(ChainedFile):
    """What the rows of the file mean."""

    def __init__(self, path: Path, known_id: str | None = None) -> None:
        """Open the ledger as `ChainedFile` does, and sort its rows by run."""
        self._by_run: dict[str | None, list[Row]] = {}
        super().__init__(path, known_id)

    def _add(self, row: Row) -> None:
        self._by_run.setdefault(row.get("run"), []).append(row)
        super()._add(row)

    def run_rows(self, run: str | None) -> list[Row]:
        """Return the rows of a run; for None, those that belong to no run."""
        return [*self._by_run.get(run, ())]

    def runs(self) -> list[str]:
        """Return the names of all runs, in the order in which they were opened."""
        return [row["run"] for row in self.rows if row["kind"] == "open"]

    def guarantee(self, run: str, head: str | None = None, delta: float | None = None) -> Guarantee:
        """Return what a run has spent: what holds if its number of releases was fixed beforehand.

        Args:
            run: its name.
            head: up to which row (default: its last).
            delta: of the ε (default: the run's own).

        Raises:
            LedgerError: if the ledger has no such run, or the run no such row.
        """
        rows = self._rows_until(run, head)
        opening = rows[0]
        at_delta: float = opening["delta"] if delta is None else delta
        # Empty where nothing was released: then nothing is spent.
        newest = rows[-1]["hash"]
        costs = self.cost(run, newest)
        cost = compose(costs[:-1], costs[-1]) if costs else None
        release = event_from_json(opening["release"])
        accountant = opening["accountant"]
        distance = self.distance(run)
        return Guarantee(
            run=run,
            releases=_count_charges(rows),
            epsilon=epsilon(cost, at_delta, accountant, distance=distance) if cost else 0.0,
            delta=at_delta,
            rho=rho(cost) if cost else 0.0,
            accountant=accountant,
            adjacency=opening["adjacency"],
            randomness=opening["randomness"],
            head=newest,
            continued=bool(opening["lineage"]),
            claim=claim_of(release),
            sampled=is_sampled(release),
            unit=opening.get("unit", "one user"),
            release=release,
            earlier=tuple(self.lineage(run)),
            distance=distance,
            resumptions=_count_resumptions(rows),
        )

    def lineage(self, run: str) -> list[DpEvent]:
        """Return what the parameters that a run started from had cost."""
        return [event_from_json(event) for event in self._opening(run)["lineage"]]

    def model_row(self, digest: str) -> Row | None:
        """Return the last row that records these parameters as a run's model."""
        for row in reversed(self.rows):
            if row["kind"] == "model" and row["params"] == digest:
                return row
        return None

    def cost(self, run: str, head: str | None = None) -> list[DpEvent]:
        """Return the costs of a run's model at `head`: its lineage's and its own."""
        rows = self.run_rows(run)
        until = next((index for index, row in enumerate(rows) if row["hash"] == head), len(rows))
        charges = _count_charges(rows[: until + 1])
        return [*self.lineage(run), *self._own_cost(run, charges)]

    def _own_cost(self, run: str, releases: int) -> list[DpEvent]:
        """Return one cost, or none where there are no releases."""
        if not releases:
            return []
        opening = self._opening(run)
        # The last bits of floats give away what they hide.
        holds = opening.get("noise") == INTEGERS
        if not holds:
            return [NonPrivateDpEvent()]
        return [repeat(event_from_json(opening["release"]), releases)]

    def counted_cost(self, run: str) -> list[DpEvent]:
        """Return the costs of a run's model as totals count them; none where nothing was spent."""
        costs = self.cost(run)
        return [NonPrivateDpEvent()] if costs and self.is_noise_known(run) else costs

    def _counted_own_cost(self, run: str, releases: int) -> list[DpEvent]:
        """Return what a run's own releases count in a total: one cost, or none."""
        cost = self._own_cost(run, releases)
        # Anyone who knows the seed can subtract the noise.
        return [NonPrivateDpEvent()] if cost and self.is_noise_known(run) else cost

    def is_noise_known(self, run: str) -> bool:
        """Tell whether anyone can remove the noise that hides a run's people."""
        opening = self._opening(run)
        return is_noise_known(opening["randomness"], opening.get("unit", "one user"))

    def distance(self, run: str) -> float:
        """Return the distance of the samplers from their ideal.

        It is that over all releases of a run, and of those it started from.
        """
        opening = self._opening(run)
        return opening.get("distance", 0.0) + opening.get("lineage_distance", 0.0)

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
        return _count_charges(self.run_rows(run))

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

    def _opening(self, run: str) -> Row:
        return self.run_rows(run)[0]

    def _known_rows(self, run: str) -> list[Row]:
        """Return the rows of a run; raise if there is no such run."""
        rows = self.run_rows(run)
        if not rows:
            raise LedgerError(
                f"{self.path} knows no run {run!r}; its runs are:"
                f" {', '.join(self.runs()) or 'none'}"
            )
        return rows

    def _rows_until(self, run: str, head: str | None) -> list[Row]:
        """Return the rows of a run up to this one, or all of them."""
        rows = self._known_rows(run)
        if head is None:
            return rows
        for number, row in enumerate(rows, start=1):
            is_head = row["hash"] == head
            if is_head:
                return rows[:number]
        raise LedgerError(
            f"{self.path} has no row {head[:12]}… of run {run!r}: the model and this ledger do not"
            " belong together, or rows were removed"
        )

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


def _count_charges(rows: Sequence[Row]) -> int:
    return sum(row["kind"] == "charge" for row in rows)


def _count_resumptions(rows: Sequence[Row]) -> int | None:
    """Count how often a run was resumed; None for one opened before that was recorded."""
    opening, *later = rows
    if "fresh" not in opening:
        return None
    return sum(row["kind"] == "resume" for row in later)


def _find_last(kind: str, rows: Sequence[Row]) -> Row | None:
    """Return the last row of this kind, if any."""
    for row in reversed(rows):
        if row["kind"] == kind:
            return row
    return None


def _has_no_privacy(costs: Sequence[DpEvent]) -> bool:
    return any(isinstance(cost, NonPrivateDpEvent) for cost in costs)
