"""What a run left: a small file of figures, in which nobody's text is. Tables and figures are made
of these files alone.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lib import run_lists
from lib.run_lists import ListedRun, read_list

Result = dict[str, Any]
DIGITS = 6  # that figures are kept to


def save(run: ListedRun, content: Result) -> None:
    run.result.parent.mkdir(exist_ok=True)
    run.result.write_text(
        json.dumps(rounded(content), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )


def load(run: ListedRun) -> Result:
    return json.loads(run.result.read_text())


def computed(paper: str) -> Result:
    """What compute.py found."""
    return json.loads((run_lists.HERE / paper / "results" / "computed.json").read_text())


class Measured(NamedTuple):
    """A figure over the seeds of one run."""

    value: float  # their mean
    users: float  # half the 95 % interval over held-out users, of one seed
    least: float
    most: float
    seeds: int

    def __str__(self) -> str:
        """In points.

        >>> str(Measured(0.1849, 0.0018, 0.184, 0.186, 3))
        '18.49 ± 0.18 (18.40 to 18.60)'
        """
        spread = f" ({100 * self.least:.2f} to {100 * self.most:.2f})" if self.seeds > 1 else ""
        return f"{100 * self.value:.2f} ± {100 * self.users:.2f}{spread}"


class Group:
    """The results of a group that are there, by run."""

    def __init__(self, paper: str, group: str) -> None:
        runs = [run for run in read_list(paper) if run.group == group]
        self.name, self.wanted = group, len(runs)
        self.found: dict[str, list[Result]] = {run.name: [] for run in runs}
        for run in runs:
            if run.result.exists():
                self.found[run.name].append(load(run))

    @property
    def done(self) -> int:
        return sum(map(len, self.found.values()))

    @property
    def is_whole(self) -> bool:
        """At least one seed of every run."""
        return all(self.found.values())

    @property
    def seeds(self) -> int:
        """Of every run, at least."""
        return min(map(len, self.found.values()))

    def last(self, name: str, metric: str = "accuracy_top1") -> Measured:
        """After the last round."""
        return measured([one["rows"][-1] for one in self.found[name]], metric)

    def at(self, name: str, round: int, metric: str = "accuracy_top1") -> Measured:
        return measured(
            [next(row for row in one["rows"] if row["round"] == round) for one in self.found[name]],
            metric,
        )

    def curve(self, name: str, metric: str = "accuracy_top1") -> list[tuple[int, Measured]]:
        """Over the rounds that all seeds were measured after."""
        rounds = [{row["round"] for row in one["rows"]} for one in self.found[name]]
        return [
            (round, self.at(name, round, metric)) for round in sorted(set.intersection(*rounds))
        ]


def percent(measured: Measured) -> str:
    return f"{100 * measured.value:.2f}"


def measured(rows: Sequence[dict[str, float]], metric: str) -> Measured:
    values = [row[metric] for row in rows]
    margins = [row.get(f"{metric}_margin", math.nan) for row in rows]
    return Measured(
        float(np.mean(values)), float(np.mean(margins)), min(values), max(values), len(values)
    )


def rounded(content: Any) -> Any:
    if isinstance(content, float):
        return float(f"{content:.{DIGITS}g}") if math.isfinite(content) else str(content)
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    return [rounded(value) for value in content] if isinstance(content, list | tuple) else content
