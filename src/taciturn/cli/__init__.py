"""The commands: data · plan · pretrain · train · evaluate · compare · typing · keyboard · personalise · export · ledger · demo."""

import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from taciturn.cli.audit import audit
from taciturn.cli.bench import bench
from taciturn.cli.data import data_app
from taciturn.cli.fleet import device, fleet_app, serve
from taciturn.cli.keyboard import export, keyboard, ngram, typing
from taciturn.cli.ledger import ledger_app
from taciturn.cli.output import bar, console, training_bar
from taciturn.cli.personalise import personalise
from taciturn.cli.plan import plan
from taciturn.cli.pretrain import pretrain
from taciturn.cli.tails import tails
from taciturn.errors import TaciturnError
from taciturn.files import next_folder, to_json

app = typer.Typer(
    help="Language models that learn from everyone and repeat no one: training with user-level differential privacy.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.command()(plan)
app.command()(bench)
app.command()(pretrain)


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
    audit: Annotated[
        int | None,
        typer.Option(
            help="add so many made-up users, by whom `taciturn audit` tests the claim (the same as audit.users)"
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run that was cut off")] = False,
    hosts: Annotated[
        str | None,
        typer.Option(
            help="train on several hosts: how many, or auto under SLURM or Kubernetes; start this command on each"
        ),
    ] = None,
    host: Annotated[int, typer.Option(min=0, help="which of them this is; host 0 keeps ledger and secrets")] = 0,
    coordinator: Annotated[str | None, typer.Option(help="address:port of host 0")] = None,
) -> None:
    """Train a model as a recipe says. The recipe is checked, and the noise worked out, before anything is spent.

    Every release is charged in the population's ledger first. Killed at any moment, a run goes on with --resume.

    On two hosts: taciturn train RECIPE.toml --hosts 2 --coordinator HOST0:7777 --host 0, and the same with --host 1 on the other.
    """
    if hosts is not None:
        from taciturn.fleets.host_process import join_hosts, serve_host

        if not join_hosts(hosts, host, coordinator):
            serve_host(lambda words: console.print(words, highlight=False))
            return
    from taciturn.recipe.text import load_recipe
    from taciturn.runs.folder import RunError
    from taciturn.runs.run import resume_run, train_run

    if resume:
        if run is None:
            raise RunError("name the run to go on with: taciturn train --resume --run DIR")
        if set or recipe or audit:
            raise RunError("--resume takes the run's own recipe: leave --set, --audit and the recipe out")
        finished = _trained(run, lambda show: resume_run(run, show))
    else:
        if recipe is None:
            raise RunError("name a recipe: taciturn train RECIPE.toml (experiments/ and the README have some)")
        settings = [*(set or []), *([] if audit is None else [f"audit.users={audit}"])]
        loaded, folder = load_recipe(recipe, settings), run or next_folder(Path("runs"), f"{recipe.stem}-")
        finished = _trained(folder, lambda show: train_run(loaded, folder, show))
    if finished.stopped:
        console.print(f"Stopped: {finished.stopped}.\n", style="yellow", highlight=False)
    console.print((finished.folder / "guarantee.txt").read_text(), highlight=False, soft_wrap=True)
    if finished.recipe.privacy.noise_multiplier is not None:
        console.print(f"Noise multiplier {finished.recipe.privacy.noise_multiplier:g}", highlight=False)
    if finished.clip_estimate is not None:
        console.print(
            f"The clip norm went to {finished.clip_estimate:.3g}. To spend nothing on looking for it next time: "
            f"--set privacy.clipping=flat --set privacy.clip_norm={finished.clip_estimate:.3g}",
            highlight=False,
        )
    console.print(
        f"AccuracyTop1 {finished.scores['accuracy_top1']:.2%}, perplexity {finished.scores['perplexity']:.1f}; {finished.folder}"
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


HeldOutOf = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="measure on the held-out users of another population, of the same words, and built with --same-people-as the run's",
    ),
]


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    data: HeldOutOf = None,
    head: Annotated[
        bool,
        typer.Option(
            "--head-words",
            help="also count how many of ten predictions are among the most frequent words of the word list: noise may push there",
        ),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Measure a run's model on held-out users, who have no guarantee."""
    from taciturn.evaluation.accuracy import METRICS
    from taciturn.evaluation.head_words import HEADS
    from taciturn.privacy.figures import delta_text, epsilon_text, rho_text
    from taciturn.runs.finished import evaluate_run

    with console.status("measuring"):
        scores, guarantee, heads, rebuilt = evaluate_run(run, data, head)
    figures = {metric: scores[metric] for metric in METRICS}
    if json_:
        content: dict[str, Any] = {name: {"value": one.value, "margin": one.margin} for name, one in figures.items()}
        cost = {"epsilon": guarantee.epsilon, "rho": guarantee.rho, "delta": guarantee.delta, "run": guarantee.run}
        if heads is not None:
            content["head_words"] = {str(n): row.tolist() for n, row in zip(HEADS, heads, strict=True)}
        print(to_json(content | cost))
        return
    console.print(f"{run}, on held-out users{f' of {data}' if data else ''} (who have no guarantee)", highlight=False)
    table = Table()
    table.add_column("")
    table.add_column("value ± 95 %", justify="right")
    for name, one in figures.items():
        table.add_row(NAMES[name], _figure(name, one))
    table.add_row(f"ε at δ = {delta_text(guarantee.delta)}", epsilon_text(guarantee.epsilon))
    table.add_row("ρ", rho_text(guarantee.rho))
    console.print(table)
    if rebuilt:
        console.print(
            "The population's text was replaced since this run; these are other texts than it was measured on.",
            style="yellow",
        )
    if heads is not None:
        table = Table(title="Of ten predictions, so many are among the n most frequent words; %", title_justify="left")
        for name in ("n", *map(str, range(heads.shape[1]))):
            table.add_column(name, justify="right")
        for n, row in zip(HEADS, heads, strict=True):
            table.add_row(str(n), *(f"{100 * share:.1f}" for share in row))
        console.print(table)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="a run folder")],
    second: Annotated[Path, typer.Argument(help="another one")],
    data: HeldOutOf = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """What changes from one run's model to another's, on the same held-out users, with 95 % intervals over users."""
    from taciturn.evaluation.accuracy import METRICS
    from taciturn.privacy.figures import epsilon_text
    from taciturn.runs.finished import compare_runs

    with console.status("measuring"):
        one, other = compare_runs(first, second, data)
    changes = {metric: other.scores.change_from(one.scores, metric) for metric in METRICS}
    if json_:
        print(to_json({name: {"change": one.value, "margin": one.margin} for name, one in changes.items()}))
        return
    for letter, folder, run in (("A", first, one), ("B", second, other)):
        console.print(f"{letter}: {folder}  (ε {epsilon_text(run.guarantee.epsilon)})", highlight=False)
    table = Table()
    for name in ("", "A ± 95 %", "B ± 95 %", "B over A, relative"):
        table.add_column(name, justify="right" if name else "left", no_wrap=not name)
    for metric in METRICS:
        change = changes[metric]
        shown = f"{100 * change.value:+.2f} % ± {100 * change.margin:.2f}"
        style = "bold" if abs(change.value) > change.margin else "dim"
        table.add_row(
            NAMES[metric],
            _figure(metric, one.scores[metric]),
            _figure(metric, other.scores[metric]),
            shown,
            style=style,
        )
    console.print(table)
    console.print("On the same held-out users, paired; bold where the interval excludes no change.", highlight=False)


NAMES = {
    "accuracy_top1": "AccuracyTop1",
    "accuracy_top3": "AccuracyTop3",
    "accuracy_top5": "AccuracyTop5",
    "accuracy_in_vocabulary": "Top1, known words",
    "loss": "loss",
    "perplexity": "perplexity",
}


def _figure(metric: str, interval: Any) -> str:
    return f"{interval:.2%}" if metric.startswith("accuracy") else f"{interval:.2f}"


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for everything the demonstration makes")] = Path("demo"),
) -> None:
    """The whole road in a few minutes.

    A public warm start, private training, a non-private twin, and what it all cost.
    """
    from taciturn.cli.demo import run_demo

    run_demo(out, console, bar, training_bar)


for command in (audit, tails, typing, ngram, export, personalise, keyboard, serve, device):
    app.command()(command)
app.add_typer(ledger_app, name="ledger")
app.add_typer(fleet_app, name="fleet")


def main() -> None:
    """Errors that a person can act on are a sentence, not a traceback."""
    from taciturn.fleets.simulation.in_process import one_stream_per_core
    from taciturn.fleets.simulation.many_hosts import HostsError

    one_stream_per_core()
    try:
        app()
    except (TaciturnError, OSError) as error:
        Console(stderr=True).print(f"taciturn: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        if isinstance(error, HostsError):
            os._exit(2)  # without waiting for hosts that are gone
        sys.exit(2)
