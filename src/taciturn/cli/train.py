"""`taciturn train`: a model trained as a recipe says."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taciturn.cli.output import console, leave_interrupted, print_finished, training_bar

if TYPE_CHECKING:
    from taciturn.runs.loop import TrainedRun

Settings = Annotated[list[str] | None, typer.Option(help="section.key=value, wins over the recipe; may be repeated")]


def train(
    recipe: Annotated[Path | None, typer.Argument(help="a recipe in TOML; not needed with --resume")] = None,
    run: Annotated[Path | None, typer.Option(help="folder of the run (default: runs/NAME-N)")] = None,
    set: Settings = None,
    audit: Annotated[
        int | None, typer.Option(help="add N made-up users, by whom `taciturn audit run` tests the claim (audit.users)")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run that was interrupted")] = False,
    hosts: Annotated[
        str | None, typer.Option(help="several hosts: how many, or auto under SLURM or Kubernetes; start this on each")
    ] = None,
    host: Annotated[int, typer.Option(min=0, help="which of them this is; host 0 keeps ledger and secrets")] = 0,
    coordinator: Annotated[str | None, typer.Option(help="address:port of host 0")] = None,
) -> None:
    """Train a model as a recipe says. The recipe is checked, and the noise worked out, before anything is spent.

    Every release is charged in the population's ledger first. Killed at any moment, a run goes on with --resume.

    Example: taciturn train recipe.toml --run runs/first --set run.rounds=500

    On two hosts: taciturn train recipe.toml --hosts 2 --coordinator HOST0:7777 --host 0, and the same with --host 1 on the other.
    """
    if hosts is not None and not _is_first_host(hosts, host, coordinator):
        return
    from taciturn.files import next_folder
    from taciturn.recipe.text import load_recipe
    from taciturn.runs.folder import RunError
    from taciturn.runs.loop import resume_run, train_run

    if resume:
        if run is None:
            raise RunError("name the run to go on with: taciturn train --resume --run DIR")
        if set or recipe or audit:
            raise RunError("--resume takes the run's own recipe: leave --set, --audit and the recipe out")
        print_finished(_watched(run, partial(resume_run, run)))
        return
    if recipe is None:
        raise RunError("name a recipe: taciturn train RECIPE.toml (experiments/ and the README have some)")
    loaded = load_recipe(recipe, [*(set or ()), *([] if audit is None else [f"audit.users={audit}"])])
    folder = run or next_folder(Path("runs"), f"{recipe.stem}-")
    print_finished(_watched(folder, partial(train_run, loaded, folder)))


def _is_first_host(hosts: str, host: int, coordinator: str | None) -> bool:
    """Serve the first host to the end of its run, unless this is the first."""
    from taciturn.fleets.host_process import join_hosts, serve_host

    is_first = join_hosts(hosts, host, coordinator)
    if not is_first:
        serve_host(console.print)
    return is_first


def _watched(folder: Path, work: "Callable[[Any], TrainedRun]") -> "TrainedRun":
    """Train under a progress bar; Ctrl-C says how to go on."""
    try:
        with training_bar(folder.name) as show:
            return work(show)
    except KeyboardInterrupt:
        leave_interrupted(f"Nothing is lost; go on with: taciturn train --resume --run {folder}")
