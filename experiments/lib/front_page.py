"""The table of the project's README: what its commands give, made of committed results.

Everybody types with every model: figures and intervals are those of keyboard/table.py, over the
same people. Where there are several runs, a figure is their mean, and a sentence says how far they
are apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from lib.results import Result, load, load_computed
from lib.run_lists import HERE, ListedRun, read_list
from lib.typed_claims import best_ngram
from lib.typing_tables import load_results

README = HERE.parent / "README.md"
BEGIN = "<!-- rows: made of results by `make papers` -->\n"
END = "<!-- end of rows -->\n"
HISTORY = ", with history"
# By metric; the last two leave out punctuation and ends of messages.
METRICS = {
    "accuracy_top1": "Top1",
    "accuracy_top3": "Top3",
    "keystroke_saving": "keystrokes saved",
    "recall_top1": "Top1, only words",
    "picked_rate": "suggestions picked",
}
ACCURACY = "accuracy_top1"
PRIVATE = "promised-4"
NOT_PRIVATE = "promised-none"
START = "start that ships"
# What makes the rows, and which.
COMMANDS = (
    (
        "taciturn keyboard ngram local/people --public local/public --non-private --out baseline",
        "a, b",
    ),
    ("taciturn train local/people --epsilon 4 --minutes 5", "d, e"),
    (
        "taciturn train experiments/keyboard/none.toml --non-private"
        " --set model.warm_start=taciturn:english",
        "f, g",
    ),
    (
        "taciturn keyboard evaluate MODEL --text blogs.parquet",
        "each row as it types: b, e and g with --history; MODEL of c is taciturn:english",
    ),
)
# Of the README's lines.
WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: what people typed with."""

    title: str
    # (ε, δ), or why there is none.
    promise: str
    # Names in the table of people who typed, one a run: of ours it is the run's id.
    models: Sequence[str]


def write_front_page() -> str:
    """Return README with its rows made anew."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{_rows()}{END}{after}"


def _rows() -> str:
    typing = load_results("keyboard", "front-page")
    assert typing is not None, "experiments/keyboard/results/front-page.json is missing"
    rows = _list_rows(typing)
    total = load_computed("keyboard")["epsilon_of_all_runs_at_one_over_users_squared"][PRIVATE]
    lines = [
        *_fill(
            f"{typing['people']} others type {typing['words']:,} words and punctuation of theirs."
            " In %, ± half a 95 % interval over people; of three runs the mean."
        ),
        "",
        f"| | | (ε, δ) | runs | {' | '.join(METRICS.values())} |",
        f"|---|---|---|---|{'---|' * len(METRICS)}",
    ]
    for letter, row in zip("abcdefgh", rows, strict=False):
        cells = [_show(typing, row.models, metric) for metric in METRICS]
        count = str(len(row.models))
        lines.append(f"| {' | '.join([letter, row.title, row.promise, count, *cells])} |")
    lines += [
        _line_of_changes(typing, "a → d", has_history=False),
        _line_of_changes(typing, "b → e", has_history=True),
    ]
    commands = []
    for command, made in COMMANDS:
        commands += [f"# {made}", command]
    told = _fill(
        _say_of_privacy(typing),
        _say_of_runs(typing, total),
        _say_of_text(typing),
    )
    return "\n".join(
        [*lines, "", *told, "", "```", *commands, "```", "", *_fill(_say_of_blt()), ""]
    )


def _list_rows(typing: Result) -> list[Row]:
    private = _runs_of(PRIVATE)
    typed = [run.id for run in private]
    open_typed = [run.id for run in _runs_of(NOT_PRIVATE)]
    ngrams = []
    for has_history in (False, True):
        ngram = best_ngram(typing, ACCURACY, has_history=has_history)
        assert ngram is not None
        ngrams.append(ngram)
    smoothing = ngrams[0].partition(",")[0]
    return [
        Row(
            title=f"{smoothing} 4-grams of people's and public text",
            promise="none",
            models=[ngrams[0]],
        ),
        Row(
            title="… with each person's own history",
            promise="none",
            models=[ngrams[1]],
        ),
        Row(
            title="ours, before any person's text",
            promise="–",
            models=[START],
        ),
        Row(
            title="**ours**",
            promise=f"**{_show_promise(private[0])}**",
            models=typed,
        ),
        Row(
            title="… with each person's own history, which stays with them",
            promise="the same",
            models=[f"{name}{HISTORY}" for name in typed],
        ),
        Row(
            title="ours without privacy",
            promise="none",
            models=open_typed,
        ),
        Row(
            title="… with each person's own history",
            promise="none",
            models=[f"{name}{HISTORY}" for name in open_typed],
        ),
    ]


def _runs_of(name: str) -> list[ListedRun]:
    """Return the runs of a kind that have results."""
    runs = read_list("keyboard")
    return [run for run in runs if f"{run.group}-{run.name}" == name and run.result.exists()]


def _show_promise(run: ListedRun) -> str:
    result = load(run)
    return f"({result['epsilon']:.2f}, {_round_up(result['delta'])})"


def _round_up(delta: float) -> str:
    """Show a δ with two digits, rounded up.

    >>> _round_up(1.20758e-08)
    '1.3e-8'
    """
    power = math.floor(math.log10(delta))
    digits = math.ceil(delta / 10 ** (power - 1) * (1 - 1e-9))
    return f"{digits / 10:.1f}e{power}"


def _show(typing: Result, models: Sequence[str], metric: str) -> str:
    """Show the mean of the runs, in %, with half an interval over people."""
    margin = max(typing["models"][model][metric][1] for model in models)
    return f"{100 * _mean(typing, models, metric):.2f} ± {100 * margin:.2f}"


def _mean(typing: Result, models: Sequence[str], metric: str) -> float:
    values = [typing["models"][model][metric][0] for model in models]
    return sum(values) / len(values)


def _say_of_runs(typing: Result, total: float) -> str:
    private = _runs_of(PRIVATE)
    names = [[run.id for run in _runs_of(kind)] for kind in (PRIVATE, NOT_PRIVATE)]
    apart = max(_range(typing, models, metric) for models in names for metric in METRICS)
    delta = _round_up(load(private[0])["delta"])
    return (
        "Noise is fresh in every run of d (there is no `run.seed`), and runs of a row are at most"
        f" {100 * apart:.2f} points apart. Were all {len(private)} of d on the same people, their"
        f" ledger would say ε = {total:.2f} at δ = {delta} for all together."
    )


def _say_of_privacy(typing: Result) -> str:
    """Say what privacy costs."""
    typed = [run.id for run in _runs_of(PRIVATE)]
    not_private = [run.id for run in _runs_of(NOT_PRIVATE)]
    behind = _mean(typing, not_private, ACCURACY) - _mean(typing, typed, ACCURACY)
    return f"Privacy costs {100 * behind:.2f} points of Top1 (d and f)."


def _line_of_changes(typing: Result, letters: str, has_history: bool) -> str:
    """Show relative changes from the n-grams, paired by people: means over runs."""
    history = HISTORY if has_history else ""
    models = [f"{run.id}{history}" for run in _runs_of(PRIVATE)]
    shown = []
    for metric in METRICS:
        changes = [typing["changes"][model][metric] for model in models]
        mean = sum(value for value, _ in changes) / len(changes)
        margin = max(margin for _, margin in changes)
        shown.append(f"{100 * mean:+.1f} ± {100 * margin:.1f} %".replace("-", "−"))
    return f"| | {letters}: by how much, on the same people | | | {' | '.join(shown)} |"


def _range(typing: Result, models: Sequence[str], metric: str) -> float:
    values = [typing["models"][model][metric][0] for model in models]
    return max(values) - min(values)


def _say_of_text(typing: Result) -> str:
    """Say how much of what is typed stands in the public text."""
    overlap = typing["overlap"]
    return (
        f"Of what they type, {100 * overlap['share']:.2f} % stands in the public text, in pieces of"
        f" {overlap['length']} words."
    )


def _say_of_blt() -> str:
    """Say what a BLT costs beside the noise of Gboard's models."""
    models = load_computed("xu2023")["models"]
    shares = sorted(model["blt_rho"] / model["rho"] for model in models)
    return (
        "With a BLT's noise in place of trees, and as much of it on the models along the way, the"
        f" {len(models)} models of Gboard (Xu et al. 2023) would have {100 * shares[0]:.0f} to"
        f" {100 * shares[-1]:.0f} % of their ρ, {100 * shares[len(shares) // 2]:.0f} % in the"
        " middle"
        " ([each of them](experiments/xu2023/README.md#tables-1-and-2-privacy))."
    )


def _fill(*sentences: str) -> list[str]:
    return wrap(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)
