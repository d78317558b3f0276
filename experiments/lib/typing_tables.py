"""What keyboard/table.py measured of people who type, as a page shows it."""

import json
from collections.abc import Sequence

from lib import run_lists
from lib.page import Verdict, table
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


def results(paper: str, name: str) -> Result | None:
    """Return PAPER/results/NAME.json, where it was measured."""
    path = run_lists.HERE / paper / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def changes(found: Result, model: str, metrics: Sequence[str], baseline: str) -> str:
    """Say how far a model is ahead of another."""
    ahead = ", ".join(
        f"{SHOWN[metric]} {100 * _ahead(found, model, metric, baseline):+.1f} %"
        for metric in metrics
    )
    return f"{baseline.replace(',', '')}: {ahead}"


def verdict(found: Result, model: str, metrics: Sequence[str], baseline: str) -> Verdict:
    """Judge that it is ahead in all of them."""
    ahead = [_ahead(found, model, metric, baseline) > 0 for metric in metrics]
    return Verdict.HOLDS if all(ahead) else Verdict.PART if any(ahead) else Verdict.FAILS


def _ahead(found: Result, model: str, metric: str, baseline: str) -> float:
    return found["models"][model][metric][0] / found["models"][baseline][metric][0] - 1


def tables(found: Result) -> str:
    """Show every model, and the changes from the first."""
    shown = [
        [model, *(_cell(metric, one[metric]) for metric in SHOWN)]
        for model, one in found["models"].items()
    ]
    relative = [
        [model, *(f"{100 * v:+.1f} % ± {100 * m:.1f}" for v, m in one.values())]
        for model, one in found["changes"].items()
    ]
    compared = next(iter(found["changes"].values()))
    people = (
        f"{found['people']:,} people, {found['words']:,} words and signs, 400 each at most; all in"
        " %, but for the last column."
    )
    related = f"Relative changes from {found['from']}, on the same people:"
    changed = table(["model", *(SHOWN[metric] for metric in compared)], relative)
    return "\n\n".join([people, table(["model", *SHOWN.values()], shown), related, changed])


def _cell(metric: str, measured: list[float]) -> str:
    value, margin = measured
    return (
        f"{value:.1f}"
        if metric == "words_per_minute"
        else f"{100 * value:.2f} ± {100 * margin:.2f}"
    )
