"""What the commands print: with one console, in sentences and tables."""

import functools
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.table import Table

from taciturn.privacy.accounting.rounding_up import pair_text

if TYPE_CHECKING:
    from taciturn.data.population import Population
    from taciturn.evaluation.intervals import Interval, Sums
    from taciturn.runs.loop import TrainedRun

# A pipe has no width to wrap at.
console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
# One line, however wide the terminal.
say = functools.partial(console.print, soft_wrap=True)
# How metrics are printed; all others are shares.
SPECS = {
    "loss": ".2f",
    "perplexity": ".2f",
    "words_per_minute": ".1f",
}


def begin(words: str) -> None:
    """Print a first line at once; the imports before the next one take seconds."""
    say(f"{words} …", markup=False, style="dim")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    left: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> None:
    """Print figures in a table.

    Args:
        columns: their names; one without a name holds words.
        rows: the cells of each.
        title: of the table.
        left: the names of other columns that hold words.
        styles: of the first rows.
    """
    table = Table(title=title, title_justify="left")
    for name in columns:
        has_words = not name or name in left
        table.add_column(name, justify="left" if has_words else "right", no_wrap=not name)
    for row, style in zip_longest(rows, styles):
        table.add_row(*row, style=style)
    console.print(table)


def print_metrics(
    names: Mapping[str, str], measured: "Sequence[Sums]", *more: Sequence[str]
) -> None:
    """Print the metrics of one model, or of two with the relative change; then `more` rows.

    A change is in bold where its interval excludes zero.
    """
    rows = []
    for metric, name in names.items():
        spec = SPECS.get(metric, ".2%")
        figures = [format(scores[metric], spec) for scores in measured]
        rows.append([name, *figures])
    if len(measured) == 1:
        print_table(["", "value ± 95 %"], [*rows, *more])
        return
    before, after = measured
    changes = [after.change_from(before, metric) for metric in names]
    styles = []
    for row, change in zip(rows, changes, strict=True):
        is_certain = abs(change.value) > change.margin
        row.append(change_text(change))
        styles.append("bold" if is_certain else "dim")
    columns = ["", "A ± 95 %", "B ± 95 %", "B over A, relative"]
    print_table(columns, [*rows, *more], styles=styles)


def change_text(change: "Interval") -> str:
    """Write a relative change in per cent; nothing where it is not finite."""
    if not math.isfinite(change.value):
        return ""
    margin = f" ± {100 * change.margin:.2f}" if math.isfinite(change.margin) else ""
    return f"{100 * change.value:+.2f} %{margin}"


def print_finished(finished: "TrainedRun", gain: "Interval | None" = None) -> dict[str, Any]:
    """Print what became of a run, and what to do next; return it for JSON.

    That is why it stopped early, its guarantee, and how good its model is.

    Args:
        finished: the run.
        gain: of its model over where it started, where that is known.
    """
    from taciturn.recipe.build import population

    if finished.stopped:
        console.print(f"Stopped: {finished.stopped}.\n", style="yellow")
    say((finished.folder / "guarantee.txt").read_text())
    total = print_total(population(finished.recipe))
    _print_noise_and_clip_norm(finished)
    accuracy = finished.scores["accuracy_top1"]
    perplexity = finished.scores["perplexity"]
    console.print(
        f"AccuracyTop1 {accuracy:.2%}, perplexity {perplexity:.1f} (95 % intervals over held-out"
        " users)"
    )
    if gain:
        _print_gain(gain, finished.before["accuracy_top1"].value)
    if finished.minutes:
        say(f"Its rounds took about {finished.minutes:,} minutes")
    page = finished.folder / "report.html"
    if page.exists():
        say(f"On one page: {page}")
    kind = finished.model.kind
    runs_in_browser = kind is not None and kind.javascript_cell is not None
    next_command = "keyboard open" if runs_in_browser else "export --to arpa --out FOLDER"
    say(f"Next: taciturn {next_command} {finished.folder}")
    guarantee = finished.guarantee
    return {
        "run": str(finished.folder),
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "rho": guarantee.rho,
        "accuracy_top1": vars(accuracy),
        "perplexity": vars(perplexity),
        "stopped": finished.stopped,
        "all_runs": total,
    }


def print_total(people: "Population") -> dict[str, Any]:
    """Print what all runs on people cost together, which is what matters to each of them."""
    from taciturn.people import open_ledger

    ledger = open_ledger(people)
    runs = len(ledger.runs())
    usual = ledger.usual_delta(len(people))
    total = ledger.total(usual.delta)
    if runs == 1:
        say("This is the only run on these people so far.")
    else:
        say(
            f"All {runs} runs on these people together: {pair_text(total.epsilon, usual.delta)}"
            f" (δ: {usual.source}; taciturn ledger show {people.folder})."
        )
    return {"runs": runs, "epsilon": total.epsilon, "delta": usual.delta}


def _print_gain(gain: "Interval", before: float) -> None:
    console.print(
        f"{100 * gain.value:+.2f} ± {100 * gain.margin:.2f} points of AccuracyTop1 over where"
        f" it started, {before:.2%}"
    )


def _print_noise_and_clip_norm(finished: "TrainedRun") -> None:
    noise_multiplier = finished.recipe.privacy.noise_multiplier
    if noise_multiplier is not None:
        console.print(f"Noise multiplier {noise_multiplier:g}")
    if finished.clip_estimate is not None:
        clip_norm = f"{finished.clip_estimate:.3g}"
        console.print(
            f"The clip norm ended at {clip_norm}. To spend nothing on finding it next time: --set"
            f" privacy.clipping=flat --set privacy.clip_norm={clip_norm}"
        )


def leave_interrupted(words: str) -> NoReturn:
    """End after Ctrl-C, without waiting for a computation in another thread.

    It may not survive the interpreter's end.
    """
    console.print(f"\nStopped. {words}")
    sys.stdout.flush()
    os._exit(130)
