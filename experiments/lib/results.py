"""What a run left: a small file of figures, in which nobody's text is. Tables and figures are made
only of these files.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lib import run_lists
from lib.run_lists import ListedRun, read_list

Result = dict[str, Any]
# The digits that figures are kept to.
DIGITS = 6


def save(run: ListedRun, content: Result) -> None:
    text = json.dumps(round_figures(content), indent=1, sort_keys=True, ensure_ascii=False)
    run.result.parent.mkdir(exist_ok=True)
    run.result.write_text(text + "\n")


def load(run: ListedRun) -> Result:
    return json.loads(run.result.read_text())


def load_computed(paper: str) -> Result:
    """Return what compute.py computed for a paper."""
    path = run_lists.HERE / paper / "results" / "computed.json"
    return json.loads(path.read_text())


class Measured(NamedTuple):
    """A figure over the seeds of one run."""

    # Their mean.
    value: float
    # Half the 95 % interval over held-out users, of one seed.
    users: float
    least: float
    most: float
    seeds: int

    def __str__(self) -> str:
        """Show it in points.

        >>> str(Measured(value=0.1849, users=0.0018, least=0.184, most=0.186, seeds=3))
        '18.49 ± 0.18 (18.40 to 18.60)'
        """
        text = f"{100 * self.value:.2f} ± {100 * self.users:.2f}"
        if self.seeds > 1:
            text += f" ({100 * self.least:.2f} to {100 * self.most:.2f})"
        return text


class Group:
    """The results of a group that are there, by run."""

    def __init__(self, paper: str, group: str) -> None:
        runs = [run for run in read_list(paper) if run.group == group]
        self.name = group
        self.wanted = len(runs)
        self.found: dict[str, list[Result]] = {run.name: [] for run in runs}
        for run in runs:
            if run.result.exists():
                self.found[run.name].append(load(run))

    @property
    def results_count(self) -> int:
        return sum(map(len, self.found.values()))

    @property
    def is_whole(self) -> bool:
        """Tell whether there is at least one seed of every run; a group that is not listed has
        none.
        """
        return bool(self.found) and all(self.found.values())

    @property
    def seeds(self) -> int:
        """Return the number of seeds that every run has at least."""
        return min(map(len, self.found.values()))

    def last(self, name: str, metric: str = "accuracy_top1") -> Measured:
        """Return the metric after the last round."""
        rows = [result["rows"][-1] for result in self.found[name]]
        return measure(rows, metric)

    def at(self, name: str, round: int, metric: str = "accuracy_top1") -> Measured:
        """Return the metric after a round."""
        rows = [_row_of_round(result, round) for result in self.found[name]]
        return measure(rows, metric)

    def curve(self, name: str, metric: str = "accuracy_top1") -> list[tuple[int, Measured]]:
        """Return the metric over the rounds that all seeds were measured after."""
        rounds_by_seed = []
        for result in self.found[name]:
            rounds_by_seed.append({row["round"] for row in result["rows"]})
        rounds = sorted(set.intersection(*rounds_by_seed))
        return [(round, self.at(name, round, metric)) for round in rounds]


def _row_of_round(result: Result, round: int) -> dict[str, float]:
    return next(row for row in result["rows"] if row["round"] == round)


def say_lag(lag: float) -> str:
    """Say how far something is behind another in points, or ahead.

    >>> say_lag(0.0003), say_lag(-0.0046)
    ('0.03 points behind', '0.46 points ahead of')
    """
    return f"{100 * abs(lag):.2f} points {'behind' if lag >= 0 else 'ahead of'}"


def percent(measured: Measured) -> str:
    return f"{100 * measured.value:.2f}"


def percents(measured: Sequence[Measured]) -> str:
    """List several."""
    return ", ".join(percent(figure) for figure in measured)


def list_names(names: Sequence[str]) -> str:
    """List several, with «and» before the last.

    >>> list_names(["0.1", "0.2", "0.3"])
    '0.1, 0.2 and 0.3'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def measure(rows: Sequence[dict[str, float]], metric: str) -> Measured:
    """Summarise a metric over the rows of several seeds."""
    values = [row[metric] for row in rows]
    margins = [row.get(f"{metric}_margin", math.nan) for row in rows]
    return Measured(
        value=float(np.mean(values)),
        users=float(np.mean(margins)),
        least=min(values),
        most=max(values),
        seeds=len(values),
    )


def round_figures(content: Any) -> Any:
    """Round every figure of a result; those that are not finite become text."""
    if isinstance(content, float):
        return float(f"{content:.{DIGITS}g}") if math.isfinite(content) else str(content)
    if isinstance(content, dict):
        return {key: round_figures(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [round_figures(value) for value in content]
    return content
