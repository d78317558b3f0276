"""What keyboard/table.py measured of people who type, as a page shows it."""

import json
from collections.abc import Sequence

from lib import run_lists
from lib.page import Verdict, judge_parts, table
from lib.results import Result

SHOWN = {
    "accuracy_top1": "Top1",
    "accuracy_top3": "Top3",
    "keystroke_saving": "keystrokes saved",
    "recall_top1": "Top1 recall",
    "recall_top3": "Top3 recall",
    "picked_rate": "picked",
    "trigger_rate": "triggered",
    "word_modified_ratio": "words modified",
    "words_per_minute": "words/min",
}


def load_results(paper: str, name: str) -> Result | None:
    """Return PAPER/results/NAME.json, where it was measured."""
    path = run_lists.HERE / paper / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def describe_changes(typing: Result, model: str, metrics: Sequence[str], baseline: str) -> str:
    """Say how far a model is ahead of another."""
    changes = []
    for metric in metrics:
        change = 100 * _change(typing, model, metric, baseline)
        changes.append(f"{SHOWN[metric]} {change:+.1f} %")
    return f"{baseline.replace(',', '')}: {', '.join(changes)}"


def judge_changes(typing: Result, model: str, metrics: Sequence[str], baseline: str) -> Verdict:
    """Judge whether a model is ahead of another in all metrics, in some or in none."""
    return judge_parts([_change(typing, model, metric, baseline) > 0 for metric in metrics])


def _change(typing: Result, model: str, metric: str, baseline: str) -> float:
    models = typing["models"]
    return models[model][metric][0] / models[baseline][metric][0] - 1


def tables(typing: Result) -> str:
    """Show every model, and the changes from the first."""
    people = (
        f"{typing['people']:,} people, {typing['words']:,} words and punctuation, 400 each at most;"
        " all in %, but for the last column."
    )
    related = f"Relative changes from {typing['from']}, on the same people:"
    return "\n\n".join([people, _models_table(typing), related, _changes_table(typing)])


def _models_table(typing: Result) -> str:
    rows = []
    for model, measured in typing["models"].items():
        cells = [_cell(metric, measured[metric]) for metric in SHOWN]
        rows.append([model, *cells])
    return table(["model", *SHOWN.values()], rows)


def _changes_table(typing: Result) -> str:
    changes = typing["changes"]
    rows = []
    for model, by_metric in changes.items():
        cells = [_change_cell(*change) for change in by_metric.values()]
        rows.append([model, *cells])
    compared = next(iter(changes.values()))
    titles = [SHOWN[metric] for metric in compared]
    return table(["model", *titles], rows)


def _change_cell(value: float, margin: float) -> str:
    return f"{100 * value:+.1f} % ± {100 * margin:.1f}"


def _cell(metric: str, measured: list[float]) -> str:
    value, margin = measured
    if metric == "words_per_minute":
        return f"{value:.1f}"
    return f"{100 * value:.2f} ± {100 * margin:.2f}"
