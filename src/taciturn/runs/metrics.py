"""metrics.jsonl and metrics.csv: what a run measured, round by round.

They are published beside the model, and so tell no time: how long a round takes depends on how much
its users wrote. The seconds are in the private folder, and go with it.
"""

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taciturn.core import Params
from taciturn.evaluation.accuracy import METRICS, Scores
from taciturn.files import from_json, to_json, write_atomically
from taciturn.recipe import build
from taciturn.runs.run import Run
from taciturn.training import TrainState

FILE_NAME = "metrics.jsonl"
# In the private folder.
SECONDS = "seconds.jsonl"
# Evaluations that are averaged (McMahan et al. 2018, §3).
SMOOTHED_OVER = 5

# The value of each column.
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class MetricsRow:
    """The columns of metrics.csv, in their order. A run has no column for what is None."""

    # Rounds done.
    round: int
    releases: int
    epsilon: float
    # For which the ε of this row is.
    delta: float
    rho: float
    accuracy_top1: float
    accuracy_top3: float
    accuracy_top5: float
    accuracy_in_vocabulary: float
    loss: float
    perplexity: float
    accuracy_top1_margin: float
    # Of the general text, where the recipe names one.
    general_perplexity: float | None
    general_accuracy_top1: float | None
    # In force, and the estimate it follows where it adapts.
    clip_norm: float
    clip_estimate: float | None
    # Reports, and the bytes of all of them.
    uploads: float
    upload_bytes: float
    # How many rounds old the models were that reports are about, in a fleet with a queue.
    staleness: float | None
    # The mean of the last evaluations; known once the row is added to those before it.
    accuracy_top1_smoothed: float | None = None

    def to_dict(self) -> Row:
        """Return the columns that the run has."""
        return {name: value for name, value in vars(self).items() if value is not None}


def read_rows(folder: Path) -> list[Row]:
    """Return what a run measured so far, by round."""
    return [_without_seconds(row) for row in _read_lines(folder / FILE_NAME)]


def _read_lines(path: Path) -> list[Row]:
    return [from_json(line) for line in path.read_text().splitlines()]


def _without_seconds(row: Row) -> Row:
    """Return a row without its time, which older versions wrote into it."""
    return {name: value for name, value in row.items() if name != "seconds"}


class Metrics:
    """The rows of a run so far, in its two files.

    Rows of rounds lost in a crash are dropped when the run is resumed.
    """

    def __init__(self, folder: Path, round: int) -> None:
        """Read the rows up to this round."""
        self.folder = folder
        rows = read_rows(folder) if (folder / FILE_NAME).exists() else []
        self.rows = [row for row in rows if row["round"] <= round]

    def add(self, row: MetricsRow) -> None:
        """Add a row, and write both files anew."""
        earlier = [earlier_row["accuracy_top1"] for earlier_row in self.rows]
        recent = [*earlier, row.accuracy_top1][-SMOOTHED_OVER:]
        row = replace(row, accuracy_top1_smoothed=sum(recent) / len(recent))
        self.rows.append(row.to_dict())
        lines = [to_json(row) + "\n" for row in self.rows]
        write_atomically(self.folder / FILE_NAME, "".join(lines).encode())
        write_atomically(self.folder / "metrics.csv", self._to_csv().encode())

    def _to_csv(self) -> str:
        table = io.StringIO()
        writer = csv.DictWriter(table, list(self.rows[-1]))
        writer.writeheader()
        writer.writerows(self.rows)
        return table.getvalue()


class RoundTimes:
    """The seconds that a run spent on its rounds, without measuring; only its curator may know."""

    def __init__(self, folder: Path, round: int) -> None:
        """Read what is on record up to this round, also by older versions."""
        self._path = folder / "private" / SECONDS
        known = [path for path in (self._path, folder / FILE_NAME) if path.exists()]
        rows = _read_lines(known[0]) if known else []
        self._rows = [row for row in rows if row["round"] <= round and "seconds" in row]
        self._seconds = self._rows[-1]["seconds"] if self._rows else 0.0

    @property
    def minutes(self) -> int:
        """Return the whole minutes of all rounds, which tell little of any."""
        return round(self._seconds / 60)

    def add(self, seconds: float) -> None:
        """Count one more round."""
        self._seconds += seconds

    def save(self, round: int) -> None:
        """Record the seconds of all rounds so far."""
        self._rows.append({"round": round, "seconds": self._seconds})
        lines = [to_json(row) + "\n" for row in self._rows]
        write_atomically(self._path, "".join(lines).encode(), 0o600)


def measure_row(run: Run, state: TrainState, scores: Scores) -> MetricsRow:
    """Make the row of a state with these scores on held-out users.

    Where the claim rests on who was drawn, the number of reports is secret: the expected one stands
    in its place.
    """
    params: Params = state.server.params
    guarantee = run.account.guarantee()
    stats = run.fleet.stats()
    expected_uploads = round(guarantee.releases * run.recipe.participation.cohort)
    uploads = stats.get("uploads", expected_uploads)
    staleness = stats.get("staleness")
    together = scores.together
    figures = {metric: together[metric].value for metric in METRICS}
    general = run.evaluate_general(params)
    public = run.algorithm.mechanism.public(state.mechanism)
    return MetricsRow(
        round=state.round,
        releases=guarantee.releases,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        rho=guarantee.rho,
        **figures,
        accuracy_top1_margin=together["accuracy_top1"].margin,
        general_perplexity=_value_of(general, "perplexity"),
        general_accuracy_top1=_value_of(general, "accuracy_top1"),
        clip_norm=float(public.clip_norm),
        clip_estimate=None if public.estimate is None else float(public.estimate),
        uploads=uploads,
        upload_bytes=uploads * build.upload_size(run.recipe, params),
        staleness=None if staleness is None else round(staleness, 3),
    )


def _value_of(scores: Scores | None, metric: str) -> float | None:
    return scores[metric].value if scores else None
