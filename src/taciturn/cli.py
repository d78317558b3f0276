"""The command line: taciturn data · pretrain · train · evaluate · ledger · export · demo."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

app = typer.Typer(
    help="Language models that learn from everyone and repeat no one: training with user-level differential privacy.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Make populations (private) and corpora (public) out of text.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = Console()


@data_app.command("build")
def data_build(
    source: Annotated[str, typer.Argument(help="a Parquet file with columns user_id and text, or the word `sotu`")],
    out: Annotated[Path, typer.Option(help="folder of the population")],
    vocabulary: Annotated[int, typer.Option(help="number of words, from the public wordfreq list")] = 10_000,
    language: Annotated[str, typer.Option(help="of the word list")] = "en",
    least_tokens: Annotated[int, typer.Option(min=1, help="leave out users with fewer")] = 1600,
    most_tokens: Annotated[int, typer.Option(min=1, help="cut longer users there")] = 1600,
    replace: Annotated[
        bool, typer.Option("--replace", help="put new text into an existing population; its ledger stays")
    ] = False,
) -> None:
    """Build a population of users from their text. `sotu` makes the simulated users of the demonstration."""
    from taciturn.data.ingest import from_parquet
    from taciturn.data.population import HeldOutUsers
    from taciturn.data.state_of_the_union import simulated_users
    from taciturn.data.vocabulary import DataError, public_vocabulary

    if (out / "manifest.json").exists() and not replace:
        raise DataError(
            f"{out} is a population already; name another --out, or put new text into it with --replace (its ledger stays)"
        )
    with console.status(f"reading {source}"):
        words = public_vocabulary(vocabulary, language)
        demonstration = source == "sotu"
        population = (
            simulated_users(out, words)
            if demonstration
            else from_parquet(Path(source), out, words, least_tokens, most_tokens)
        )
    held_out = len(HeldOutUsers(out))
    console.print(
        f"{out}: {len(population)} users to train on and {held_out} held out (private counts)", highlight=False
    )


@data_app.command("public")
def data_public(
    out: Annotated[Path, typer.Option(help="folder of the corpus")],
    vocabulary: Annotated[
        int, typer.Option(help="number of words, from the public wordfreq list; must match the population")
    ] = 10_000,
) -> None:
    """Prepare the public text of the demonstration: State of the Union speeches before 1900."""
    from taciturn.data.state_of_the_union import public_speeches
    from taciturn.data.vocabulary import public_vocabulary

    corpus = public_speeches(public_vocabulary(vocabulary))
    corpus.save(out)
    console.print(f"{out}: {len(corpus.documents.tokens):,} public tokens; {corpus.source}")


@app.command()
def pretrain(
    corpus: Annotated[Path, typer.Argument(help="folder made by `taciturn data public`")],
    out: Annotated[Path, typer.Option(help="folder for model.safetensors")],
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    set: Annotated[list[str] | None, typer.Option(help="model setting, such as kind=cifg or width=64")] = None,
) -> None:
    """Train a model on public text, to start private training from. Costs no privacy."""
    from taciturn.config import RecipeError, model_settings
    from taciturn.data.public import PublicCorpus
    from taciturn.warm_start import pretrained

    if (out / "model.safetensors").exists():
        raise RecipeError(f"{out} holds a model already; name another --out")
    with bar("pretraining", "steps") as show:
        pretrained(
            PublicCorpus.load(corpus), model_settings(set or []), epochs, out, lambda done, all: show(done, all, "")
        )
    console.print(f"{out / 'model.safetensors'}: start from it with --set model.warm_start={out}")


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(metadata.version("taciturn"), highlight=False)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Language models that learn from everyone and repeat no one: training with user-level differential privacy."""


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="a recipe in TOML; not needed with --resume")] = None,
    run: Annotated[Path | None, typer.Option(help="folder of the run (default: runs/NAME-N)")] = None,
    set: Annotated[
        list[str] | None, typer.Option(help="section.key=value, wins over the recipe; may be repeated")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run that was cut off")] = False,
) -> None:
    """Train a model as a recipe says. The recipe is checked, and the noise worked out, before anything is spent.

    Every release is charged in the population's ledger first. Killed at any moment, a run goes on with --resume.
    """
    from taciturn.config import load_recipe
    from taciturn.run import RunError, resume_run, train_run

    if resume:
        if run is None:
            raise RunError("name the run to go on with: taciturn train --resume --run DIR")
        if set or recipe:
            raise RunError("--resume takes the run's own recipe: leave --set and the recipe out")
        finished = _trained(run, lambda show: resume_run(run, show))
    else:
        if recipe is None:
            raise RunError("name a recipe: taciturn train RECIPE.toml (experiments/ and the README have some)")
        loaded, folder = load_recipe(recipe, set), run or _next_folder(recipe.stem)
        finished = _trained(folder, lambda show: train_run(loaded, folder, show))
    if finished.stopped:
        console.print(f"Stopped: {finished.stopped}.\n", style="yellow", highlight=False)
    console.print((finished.folder / "guarantee.txt").read_text(), highlight=False, soft_wrap=True)
    console.print(
        f"AccuracyTop1 {finished.scores.accuracy_top1:.2%}, perplexity {finished.scores.perplexity:.1f}; {finished.folder}"
    )


def _trained(folder: Path, work: Callable[[Any], Any]) -> Any:
    """Run a training under a progress bar; Ctrl-C says how to go on."""
    try:
        with training_bar(folder.name) as show:
            return work(show)
    except KeyboardInterrupt:
        console.print(
            f"\nStopped. Nothing is lost; go on with: taciturn train --resume --run {folder}", highlight=False
        )
        sys.stdout.flush()
        os._exit(
            130
        )  # without waiting for a computation in another thread, which may not survive the interpreter's end


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Measure a run's model on the held-out users of its population."""
    from taciturn.run import evaluate_run

    with console.status("measuring"):
        scores, guarantee = evaluate_run(run)
    figures = {
        "accuracy_top1": scores.accuracy_top1,
        "accuracy_top3": scores.accuracy_top3,
        "loss": scores.mean_loss,
        "perplexity": scores.perplexity,
    }
    if json_:
        content: dict[str, Any] = {name: {"value": one.value, "margin": one.margin} for name, one in figures.items()}
        cost: dict[str, Any] = {"epsilon": guarantee.epsilon, "rho": guarantee.rho}
        if not guarantee.is_private:
            cost = {"epsilon": "infinity", "rho": "infinity"}  # JSON has no number for it
        print(json.dumps(content | cost | {"delta": guarantee.delta, "run": guarantee.run}))
        return
    console.print(f"{run}, on held-out users (who have no guarantee)", highlight=False)
    table = Table()
    table.add_column("")
    table.add_column("value ± 95 %", justify="right")
    for name, one in figures.items():
        table.add_row(name, f"{one:.2%}" if name.startswith("accuracy") else f"{one:.2f}")
    from taciturn.release.privacy_statement import epsilon_text, rho_text

    table.add_row(f"ε at δ = {guarantee.delta:.2g}", epsilon_text(guarantee.epsilon))
    table.add_row("ρ", rho_text(guarantee.rho))
    console.print(table)


@app.command()
def ledger(
    population: Annotated[Path, typer.Argument(help="folder of a population")],
    delta: Annotated[float | None, typer.Option(help="δ of the total (default: the smallest of the runs)")] = None,
) -> None:
    """What was ever released about a population's users.

    Runs, releases, ε, ρ, and the total of all of them.
    """
    from taciturn.build import open_ledger
    from taciturn.data.population import Population
    from taciturn.privacy.ledger import LedgerError
    from taciturn.release.privacy_statement import epsilon_text, rho_text

    book = open_ledger(Population(population))
    table = Table(title=f"{population}: what was released about these users", title_justify="left")
    for name in ("run", "releases", "ε", "δ", "ρ", "neighbours differ by"):
        table.add_column(name, justify="left" if name in ("run", "neighbours differ by") else "right")
    guarantees = [book.guarantee(run) for run in book.runs()]
    for one in guarantees:
        name = one.run if one.randomness == "operating system" else f"{one.run} (simulation)"
        figures = (epsilon_text(one.epsilon), f"{one.delta:.2g}", rho_text(one.rho))
        table.add_row(name, str(one.releases), *figures, _neighbours(one.adjacency))
    if delta is not None and not 0 < delta < 1:
        raise LedgerError(f"δ lies between 0 and 1; {delta:g} does not")
    if guarantees:
        delta = delta or min(one.delta for one in guarantees)
        for adjacency, epsilon, rho in book.totals(delta):
            table.add_section()
            figures = (epsilon_text(epsilon), f"{delta:.2g}", rho_text(rho))
            table.add_row("all together", "", *figures, _neighbours(adjacency))
    console.print(table)
    torn = sum(row["kind"] == "torn" for row in book.rows)
    console.print(
        "ρ does not count the sampling of users, ε does. Several runs are added up in RDP, which stays valid when later runs are "
        "chosen after seeing earlier ones.\n"
        f"Each of the {len(book.rows)} rows fits the one before it; the last is {book.head[:16]}…"
        + (f" {torn} were cut off half-written by a crash, before anything was released." if torn else ""),
        highlight=False,
    )


def _neighbours(adjacency: str) -> str:
    return {"add or remove one user": "one user more", "replace one user by another": "one user other"}.get(
        adjacency, adjacency
    )


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    out: Annotated[Path, typer.Option(help="new folder for the model and its guarantee")],
    non_private: Annotated[bool, typer.Option("--non-private", help="let a model without any guarantee leave")] = False,
) -> None:
    """Copy a run's model with its guarantee beside it.

    Refused where the ledger and the model do not belong together.
    """
    from taciturn.run import export_run

    guarantee = export_run(run, out, non_private)
    from taciturn.release.privacy_statement import epsilon_text

    console.print(
        f"{out}: model, vocabulary and guarantee (ε = {epsilon_text(guarantee.epsilon)}, δ = {guarantee.delta:.2g})"
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for everything the demonstration makes")] = Path("demo"),
) -> None:
    """The whole road in a few minutes.

    A public warm start, private training, a non-private twin, and what it all cost.
    """
    from taciturn.demo import run_demo

    run_demo(out, console, bar, training_bar)


@contextmanager
def bar(title: str, unit: str) -> Iterator[Any]:
    """A progress bar; yields show(done, all, note)."""
    columns = (
        SpinnerColumn(),
        TextColumn(f"{title:<14}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task(title, total=None, note="")
        yield lambda done, all, note: progress.update(task, completed=done, total=all, note=note)


@contextmanager
def training_bar(title: str) -> Iterator[Any]:
    from taciturn.release.privacy_statement import epsilon_text

    with bar(title, "rounds") as show:
        show(0, None, "working out the noise, compiling")
        yield lambda done, all, row: show(
            done, all, f"Top1 {row['accuracy_top1']:.2%}  ε {epsilon_text(row['epsilon'])}  (round {row['round']})"
        )


def _next_folder(name: str) -> Path:
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"


def main() -> None:
    """Errors that a person can act on are a sentence, not a traceback."""
    from taciturn.config import RecipeError
    from taciturn.data.vocabulary import DataError
    from taciturn.fleets.simulated import one_stream_per_core
    from taciturn.privacy.ledger import BudgetExhausted, LedgerError
    from taciturn.privacy.participation import WrongNumberOfUsers
    from taciturn.release.checkpoint import ModelFileError
    from taciturn.release.export import ExportRefused
    from taciturn.run import RunError

    one_stream_per_core()
    sentences = (
        RecipeError,
        DataError,
        LedgerError,
        BudgetExhausted,
        ModelFileError,
        ExportRefused,
        RunError,
        WrongNumberOfUsers,
        OSError,
    )
    try:
        app()
    except sentences as error:
        Console(stderr=True).print(f"taciturn: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
