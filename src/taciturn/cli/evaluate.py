"""`taciturn evaluate` and `taciturn compare`: what runs' models are worth on held-out users."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.output import comparison, console, stages, table
from taciturn.privacy.figures import delta_text, epsilon_text, rho_text

if TYPE_CHECKING:
    import numpy as np

    from taciturn.runs.finished import Evaluation

NAMES = {
    "accuracy_top1": "AccuracyTop1",
    "accuracy_top3": "AccuracyTop3",
    "accuracy_top5": "AccuracyTop5",
    "accuracy_in_vocabulary": "Top1, known words",
    "loss": "loss",
    "perplexity": "perplexity",
}
HeldOutOf = Annotated[
    Path | None, Option("--data", help="measure on the held-out users of another population, built with --same-people-as the run's")
]


def evaluate(
    run: Annotated[Path, Argument(help="a run folder")],
    data: HeldOutOf = None,
    head: Annotated[bool, Option("--head-words", help="also count predictions of the most frequent words, which noise may favour")] = False,
) -> dict[str, Any]:
    """Measure a run's model on held-out users, who have no guarantee.

    Example: taciturn evaluate runs/first --json
    """
    from taciturn.runs.finished import FinishedRun

    with stages() as show:
        measured = FinishedRun(run).evaluate(data, head, lambda done, all: show("measuring", done, all))
    console.print(f"{run}, on held-out users{f' of {data}' if data else ''} (who have no guarantee)")
    _print_measured(measured)
    if measured.head_words is not None:
        _print_head_words(measured.head_words)
    return _json(measured)


def _json(measured: "Evaluation") -> dict[str, Any]:
    from taciturn.evaluation.accuracy import HEADS

    scores, guarantee, heads, _ = measured
    figures = {metric: scores[metric] for metric in NAMES}
    content: dict[str, Any] = {name: {"value": one.value, "margin": one.margin} for name, one in figures.items()}
    cost = {"epsilon": guarantee.epsilon, "rho": guarantee.rho, "delta": guarantee.delta, "run": guarantee.run}
    if heads is not None:
        content["head_words"] = {str(n): row.tolist() for n, row in zip(HEADS, heads, strict=True)}
    return content | cost


def _print_measured(measured: "Evaluation") -> None:
    guarantee, shown = measured.guarantee, comparison(NAMES, [measured.scores])
    shown.add_row(f"ε at δ = {delta_text(guarantee.delta)}", epsilon_text(guarantee.epsilon))
    shown.add_row("ρ", rho_text(guarantee.rho))
    console.print(shown)
    if measured.rebuilt:
        console.print(
            "The population's text was replaced since this run, so these are not the texts that it was measured on.", style="yellow"
        )


def _print_head_words(heads: "np.ndarray") -> None:
    from taciturn.evaluation.accuracy import HEADS

    title = "Predictions, of ten, that are among the n most frequent words; share of positions in %"
    shown = table("n", *map(str, range(heads.shape[1])), title=title)
    for n, row in zip(HEADS, heads, strict=True):
        shown.add_row(str(n), *(f"{100 * share:.1f}" for share in row))
    console.print(shown)


def compare(
    first: Annotated[Path, Argument(help="a run folder")],
    second: Annotated[Path, Argument(help="another run folder")],
    data: HeldOutOf = None,
) -> dict[str, Any]:
    """Compare two runs' models on the same held-out users, with 95 % intervals over users.

    Example: taciturn compare runs/first runs/second
    """
    from taciturn.runs.finished import FinishedRun

    with stages() as show:
        one, other = FinishedRun(first).compare(FinishedRun(second), data, show)
    for letter, folder, run in (("A", first, one), ("B", second, other)):
        console.print(f"{letter}: {folder}  (ε {epsilon_text(run.guarantee.epsilon)})")
    console.print(comparison(NAMES, [one.scores, other.scores]))
    console.print("On the same held-out users, paired; bold where the interval excludes no change.")
    changes = {metric: other.scores.change_from(one.scores, metric) for metric in NAMES}
    return {name: {"change": one.value, "margin": one.margin} for name, one in changes.items()}
