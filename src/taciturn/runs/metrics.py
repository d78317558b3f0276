"""What a run measured on its way: a row for every evaluation, in metrics.jsonl and metrics.csv."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taciturn.core import Participation, PyTree
from taciturn.files import from_json, to_json, write_atomically
from taciturn.privacy.adaptive_clip import Norms
from taciturn.privacy.participation_log import ParticipationLog
from taciturn.privacy.secagg_encoding import Rotation

Row = dict[str, Any]  # column → value
Figures = Mapping[str, float]
SMOOTHED_OVER = 5  # evaluations (McMahan et al. 2018, §3)


class Metrics:
    """metrics.jsonl and metrics.csv; rows of rounds that a crash undid are dropped when the run is resumed."""

    def __init__(self, folder: Path, round: int) -> None:
        self.folder = folder
        path = folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = [row for row in map(from_json, lines) if row["round"] <= round]

    def add(self, row: Row) -> None:
        recent = [one["accuracy_top1"] for one in (*self.rows, row)[-SMOOTHED_OVER:]]
        row = row | {"accuracy_top1_smoothed": sum(recent) / len(recent)}
        self.rows.append(row)
        write_atomically(self.folder / "metrics.jsonl", "".join(f"{to_json(one)}\n" for one in self.rows).encode())
        table = io.StringIO()
        writer = csv.DictWriter(table, list(row))
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.folder / "metrics.csv", table.getvalue().encode())


def norms(public: PyTree) -> dict[str, float]:
    """Return the clip norm in force, and the estimate that is followed where it adapts; both are public."""
    if isinstance(public, Norms):
        return {"clip_norm": float(public.clip_norm), "clip_estimate": float(public.estimate)}
    return {"clip_norm": float(public.clip_norm if isinstance(public, Rotation) else public)}


def observed_participation(log: ParticipationLog | None, participation: Participation, stats: Figures) -> str:
    """Report the participation that was logged, beside the claim (Xu et al. 2023); not where who took part is secret."""
    if log is None or participation.sampled_by_curator:
        return ""
    separation, times = log.observed
    rest = "nobody took part twice" if separation is None else f"at least {separation} rounds between two participations"
    came = f"{rest}, at most {times} participations of a user"
    if "days" in stats:
        came += f", counting all who were asked; {stats['days']:.1f} simulated days, {log.failed} failed rounds"
    if "staleness" in stats and times:
        came += f"; reports were about models {stats['staleness']:.1f} rounds old, at most {stats['largest_staleness']}"
    return came
