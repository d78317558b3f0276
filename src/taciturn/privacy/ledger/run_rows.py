"""What the rows of runs mean, wherever they were read.

A ledger has the rows of all runs (privacy/ledger/ledger.py); the folder of a finished run has its
own, signed (privacy/ledger/signed_rows.py).

**Guarantee:** what a run cost is the cost of one release, declared before the first, times the
number of its charges. A run that does not record that its noise is made of integers has no
guarantee for the bits it released, and costs ∞.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.events import (
    claim_of,
    compose,
    event_from_json,
    is_sampled,
    repeat,
)
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.ledger.guarantee import INTEGERS, Guarantee, is_noise_known
from taciturn.privacy.ledger.hash_chain import LedgerError, Row


class RunRows:
    """The rows of runs, sorted by run."""

    # Where they were read.
    path: Path
    rows: list[Row]
    _by_run: dict[str | None, list[Row]]

    def _sort(self, row: Row) -> None:
        self._by_run.setdefault(row.get("run"), []).append(row)

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
            releases=count_charges(rows),
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

    def cost(self, run: str, head: str | None = None) -> list[DpEvent]:
        """Return the costs of a run's model at `head`: its lineage's and its own."""
        rows = self.run_rows(run)
        until = next((index for index, row in enumerate(rows) if row["hash"] == head), len(rows))
        charges = count_charges(rows[: until + 1])
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


def count_charges(rows: Sequence[Row]) -> int:
    return sum(row["kind"] == "charge" for row in rows)


def _count_resumptions(rows: Sequence[Row]) -> int | None:
    """Count how often a run was resumed; None for one opened before that was recorded."""
    opening, *later = rows
    if "fresh" not in opening:
        return None
    return sum(row["kind"] == "resume" for row in later)


def rows_digest(rows: Sequence[Row]) -> str:
    """Return a digest of these rows, in this order, by their hashes."""
    hashes = "".join(f"{row['hash']}\n" for row in rows)
    return hashlib.sha256(hashes.encode()).hexdigest()
