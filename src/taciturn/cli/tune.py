"""`taciturn tune`: try settings on public text, at no cost in privacy."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.output import begin, leave_interrupted, print_table, say
from taciturn.cli.progress_display import bar
from taciturn.cli.train import Settings
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text

if TYPE_CHECKING:
    from taciturn.runs.tuning import Trial


def tune(
    recipe: Annotated[Path, Argument(help="a recipe in TOML")],
    on: Annotated[Path, Option(help="public text, a folder made by `taciturn data public`")],
    try_: Annotated[
        list[str],
        Option(
            "--try", help="section.key=value,value,…; may be repeated, which tries all combinations"
        ),
    ],
    out: Annotated[
        Path,
        Option(
            help="folder for the simulated users and the runs; name it again to continue a sweep"
        ),
    ] = Path("tuning"),
    set: Settings = None,
) -> list[dict[str, Any]]:
    """Try settings on simulated users with public text. It costs no privacy: choose settings here,
    then train on people.

    Example: taciturn tune recipe.toml --on speeches --try server.learning_rate=0.25,0.5,1 --try
    run.rounds=50,100
    """
    begin(f"reading {on}")
    from taciturn.data.public import PublicCorpus
    from taciturn.runs.tuning import tune_recipe

    corpus = PublicCorpus.load(on)
    try:
        with bar("tuning", "runs") as show:
            trials = tune_recipe(
                recipe=recipe,
                corpus=corpus,
                out=out,
                tries=try_,
                settings=set or [],
                progress=partial(_show_trial, show),
            )
            show(len(trials), len(trials), "")
    except KeyboardInterrupt:
        leave_interrupted("Nothing is lost; continue with the same command")
    print_table(
        ("", "AccuracyTop1", "AccuracyTop3", "ε", "δ"),
        [_describe_trial(trial) for trial in trials],
        f"On simulated users, pieces of {corpus.source}",
        styles=["bold"],
    )
    best = [*(set or []), *trials[0].settings]
    settings = " ".join(f"--set {setting}" for setting in best)
    say(f"To train on people with the best of them: taciturn train {recipe} {settings}")
    return [trial._asdict() for trial in trials]


def _show_trial(show: Callable[..., None], done: int, all: int, round: int, rounds: int) -> None:
    show(done, all, f"round {round} of {rounds}")


def _describe_trial(trial: "Trial") -> tuple[str, ...]:
    settings = "\n".join(trial.settings)
    costs = (epsilon_text(trial.epsilon), delta_text(trial.delta))
    return (settings, f"{trial.top1:.2%}", f"{trial.top3:.2%}", *costs)
