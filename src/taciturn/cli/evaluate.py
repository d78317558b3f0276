"""`taciturn evaluate`, `compare` and `report`: what runs' models are worth on held-out users."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import taciturn as tt
from taciturn.cli.export import Trust
from taciturn.cli.output import begin, console, print_metrics, print_total, say
from taciturn.cli.progress_display import stages
from taciturn.privacy.accounting.rounding_up import (
    delta_text,
    epsilon_text,
    pair_text,
    rho_text,
)

if TYPE_CHECKING:
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
    Path | None,
    Option(
        "--data", help="held-out users of another population, built with --same-people-as the run's"
    ),
]
Run = Annotated[Path, Argument(help="a run folder")]


def evaluate(run: Run, data: HeldOutOf = None) -> dict[str, Any]:
    """Measure a run's model on held-out users. They have no guarantee.

    Example: taciturn evaluate runs/first --json
    """
    begin(f"reading {run}")
    with stages() as show:
        evaluation = tt.FinishedRun(run).evaluate(data, partial(show, "measuring"))
    scores = evaluation.scores
    guarantee = evaluation.guarantee
    users = f"held-out users of {data}" if data else "held-out users"
    console.print(f"{run}, on {users} (who have no guarantee)")
    delta = delta_text(guarantee.delta)
    epsilon = (f"ε at δ = {delta}", epsilon_text(guarantee.epsilon))
    rho = ("ρ", rho_text(guarantee.rho))
    print_metrics(NAMES, [scores], epsilon, rho)
    if evaluation.rebuilt:
        say(
            "The population's text was replaced since this run, so these are not the texts that it"
            " was measured on.",
            style="yellow",
        )
    figures = {metric: vars(scores[metric]) for metric in NAMES}
    return {
        **figures,
        "epsilon": guarantee.epsilon,
        "rho": guarantee.rho,
        "delta": guarantee.delta,
        "run": guarantee.run,
    }


def compare(
    first: Run, second: Annotated[Path, Argument(help="another run folder")], data: HeldOutOf = None
) -> dict[str, Any]:
    """Compare two runs' models on the same held-out users. Differences have 95 % intervals over
    users.

    Example: taciturn compare runs/first runs/second
    """
    begin(f"reading {first} and {second}")
    from taciturn.runs.provenance import population_of

    with stages() as show:
        one = tt.FinishedRun(first)
        other = tt.FinishedRun(second)
        before, after = one.compare(other, data, show)
    _print_epsilon("A", first, before)
    _print_epsilon("B", second, after)
    # Of people on whom both were trained, both count.
    purpose = "what all runs on these people cost is in their ledger"
    populations = [population_of(run.folder, purpose) for run in (one, other)]
    each = {people.folder.resolve(): people for people in populations}
    totals = [print_total(people) for people in each.values()]
    print_metrics(NAMES, [before.scores, after.scores])
    console.print("On the same held-out users, paired; bold where the interval excludes no change.")
    changes: dict[str, Any] = {"all_runs": totals}
    for metric in NAMES:
        change = after.scores.change_from(before.scores, metric)
        changes[metric] = {"change": change.value, "margin": change.margin}
    return changes


def _print_epsilon(letter: str, folder: Path, evaluation: "Evaluation") -> None:
    guarantee = evaluation.guarantee
    console.print(f"{letter}: {folder}  ({pair_text(guarantee.epsilon, guarantee.delta)})")


def report(
    run: Run,
    beside: Annotated[
        list[Path] | None,
        Option(help="n-grams to compare with; repeatable (default: those beside RUN)"),
    ] = None,
    browser: Annotated[bool, Option("--open/--no-open", help="open it in a browser")] = True,
    trust: Trust = None,
) -> dict[str, str]:
    """Write RUN/report.html and open it. It shows the guarantee, curves, and what the model is
    worth to which people.

    A run writes its page when it ends. This command writes it again: with n-grams beside the model,
    with an audit made since, or for an older run. The page is one file that loads nothing over the
    network. It measures held-out people only, who have no guarantee. Where the run's people are not
    in reach it writes RUN/report-elsewhere.html, of what the folder holds.

    Example: taciturn report runs/first --beside baselines/kneser-ney
    """
    begin(f"reading {run}")
    with stages() as show:
        page = tt.FinishedRun(run, trust).report(beside, show)
    say(f"{page}")
    if browser:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return {"report": str(page)}
