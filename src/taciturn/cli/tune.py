"""`taciturn tune`: try settings on public text, at no cost in privacy."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from taciturn.cli.output import begin, leave_interrupted, print_table, say
from taciturn.cli.progress_display import bar
from taciturn.privacy.accounting.rounding_up import epsilon_text


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
                recipe,
                corpus,
                out,
                try_,
                lambda done, all, rounds, of: show(done, all, f"round {rounds} of {of}"),
            )
            show(len(trials), len(trials), "")
    except KeyboardInterrupt:
        leave_interrupted("Nothing is lost; continue with the same command")
    rows = [
        ("\n".join(one.settings), f"{one.top1:.2%}", f"{one.top3:.2%}", epsilon_text(one.epsilon))
        for one in trials
    ]
    title = f"On simulated users, pieces of {corpus.source}"
    print_table(("", "AccuracyTop1", "AccuracyTop3", "ε"), rows, title, styles=["bold"])
    settings = " ".join(f"--set {setting}" for setting in trials[0].settings)
    say(f"To train on people with the best of them: taciturn train {recipe} {settings}")
    return [one._asdict() for one in trials]
