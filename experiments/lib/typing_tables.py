"""What keyboard/table.py measured of people who type, as a page shows it."""

import json

from lib import run_lists
from lib.page import table
from lib.results import Result

SPEED = "words_per_minute"
SHOWN = {
    "accuracy_top1": "Top1",
    "accuracy_top3": "Top3",
    "keystroke_saving": "keystrokes saved",
    "recall_top1": "Top1 recall",
    "recall_top3": "Top3 recall",
    "picked_rate": "picked",
    "trigger_rate": "triggered",
    "word_modified_ratio": "words modified",
    SPEED: "words/min",
}


def load_results(paper: str, name: str) -> Result | None:
    """Return PAPER/results/NAME.json, where it was measured."""
    path = run_lists.HERE / paper / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def tables(typing: Result) -> str:
    """Show every model, and the changes from the first."""
    is_timed = SPEED in next(iter(typing["models"].values()))
    people = (
        f"{typing['people']:,} people, {typing['words']:,} words and punctuation, 400 each at most;"
        f" all in %{f', but for {SHOWN[SPEED]}' if is_timed else ''}. Top1 and Top3 are of words,"
        " punctuation and ends of messages; recall and what is picked are of words only."
    )
    parts = [people, _models_table(typing), _describe_changes(typing), _changes_table(typing)]
    shares = typing.get("people_share", {})
    if shares:
        shown = [f"{share:.2f} of {name}" for name, share in shares.items()]
        parts.append(
            "N-grams of both texts are interpolated; the share of people's counts, fitted on people"
            f" who are held back, is {' and '.join(shown)}."
        )
    overlap = typing.get("overlap")
    if overlap:
        without = overlap["without"]
        parts.append(
            f"{100 * overlap['share']:.2f} % of the sequences of {overlap['length']} words that"
            f" people type stand in the public text, those of {overlap['people']:,} people. Without"
            f" these, {without['people']:,} people:"
        )
        parts.append(_models_table(without))
    return "\n\n".join(parts)


def _describe_changes(typing: Result) -> str:
    first = typing["from"]
    like = f"{first}, with history"
    if like not in typing["models"]:
        return f"Relative changes from {first}, on the same people:"
    return f"Relative changes from {first} or, of models with history, from {like}; same people:"


def _models_table(typing: Result) -> str:
    rows = []
    # What was not typed out has fewer metrics.
    shown = [metric for metric in SHOWN if metric in next(iter(typing["models"].values()))]
    for model, measured in typing["models"].items():
        rows.append([model, *(_cell(metric, measured[metric]) for metric in shown)])
    return table(["model", *(SHOWN[metric] for metric in shown)], rows)


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
    if metric == SPEED:
        return f"{value:.1f}"
    return f"{100 * value:.2f} ± {100 * margin:.2f}"
