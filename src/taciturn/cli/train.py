"""`taciturn train`: a model trained as a recipe says."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.output import console, leave_interrupted, print_finished, say, training_bar
from taciturn.privacy.figures import delta_text, epsilon_text

if TYPE_CHECKING:
    from taciturn.runs.loop import TrainedRun

Settings = Annotated[list[str] | None, Option(help="section.key=value, wins over the recipe; may be repeated")]


def train(
    what: Annotated[Path | None, Argument(metavar="[RECIPE|PEOPLE]", help="a recipe in TOML, or a folder of people and --epsilon")] = None,
    run: Annotated[Path | None, Option(help="folder of the run (default: runs/NAME-N)")] = None,
    epsilon: Annotated[float | None, Option(min=0.01, max=100.0, help="with PEOPLE: the ε to promise each of them")] = None,
    users: Annotated[int | None, Option(min=20, help="with PEOPLE: how many, as publicly stated (default: counted, rounded down)")] = None,
    public: Annotated[Path | None, Option(help="with PEOPLE: public text to learn first (`data public`), or a model (`pretrain`)")] = None,
    minutes: Annotated[
        float | None, Option(min=1, max=100_000, help="with PEOPLE: time allowed, --public not counted (default: 30)")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="with PEOPLE: write the recipe and stop")] = False,
    set: Settings = None,
    audit: Annotated[int | None, Option(help="add N made-up users, by whom `taciturn audit run` tests the claim (audit.users)")] = None,
    resume: Annotated[bool, Option("--resume", help="go on with a run that was interrupted")] = False,
    engine: Annotated[str | None, Option(help="ray, to train on a Ray cluster of this machine's own; or ray:ADDRESS, on another")] = None,
) -> dict[str, Any]:
    """Train a model from a recipe. Or name a folder of people and an ε, and Taciturn chooses the settings.

    Taciturn checks the recipe and works out the noise before it spends anything, and charges every release in the population's ledger
    before it leaves. If a run is killed, continue it with --resume.

    Example: taciturn train people --epsilon 4 --minutes 30

    Example: taciturn train recipe.toml --run runs/first --set run.rounds=500

    On many machines: taciturn train recipe.toml --engine ray:HEAD:6379, after `ray start` on each of them.
    """
    if engine is not None:
        _join(engine)
    from taciturn.files import next_folder
    from taciturn.recipe.text import load_recipe
    from taciturn.runs.folder import RunError
    from taciturn.runs.loop import resume_run, train_run

    given = {"--epsilon": epsilon, "--users": users, "--public": public, "--minutes": minutes, "--dry-run": dry_run}
    for_people = [name for name, value in given.items() if value]
    if resume:
        if run is None:
            raise RunError("name the run to go on with: taciturn train --resume --run DIR")
        if set or what or audit or for_people:
            raise RunError("--resume takes the run's own recipe: leave the recipe, --set, --audit and all that is for PEOPLE out")
        return print_finished(_watched(run, partial(resume_run, run)))
    if what is None:
        raise RunError("name a recipe, or people and an ε: taciturn train RECIPE.toml, or taciturn train PEOPLE --epsilon 4")
    folder = run or next_folder(Path("runs"), f"{what.stem}-")
    if what.is_dir() and epsilon is None:
        raise RunError(f"{what} is a folder: say what its people are promised, for example --epsilon 4")
    if not what.is_dir() and for_people:
        raise RunError(f"{', '.join(for_people)}: for a folder of people, and {what} is none. A recipe has its own settings")
    if dry_run and (set or audit):
        raise RunError("--dry-run writes a recipe to look at and change: leave --set and --audit out, and say them when you train")
    recipe = what if epsilon is None else _chosen(what, epsilon, users, public, minutes or 30.0, folder)
    if dry_run:
        return {"recipe": str(recipe)}
    loaded = load_recipe(recipe, [*(set or ()), *([] if audit is None else [f"audit.users={audit}"])])
    finished = _watched(folder, partial(train_run, loaded, folder))
    found = print_finished(finished)
    gain = finished.scores.gain_over(finished.before)
    console.print(
        f"{100 * gain.value:+.2f} ± {100 * gain.margin:.2f} points of AccuracyTop1 over where it started, "
        f"{finished.before['accuracy_top1'].value:.2%} (95 % interval over held-out users)"
    )
    return found | {"gain": asdict(gain)}


def _chosen(people: Path, epsilon: float, users: int | None, public: Path | None, minutes: float, folder: Path) -> Path:
    """A recipe for these people, written beside the folder of the run."""
    from taciturn.files import check_new_folder, write_atomically
    from taciturn.recipe.choose import commented_toml
    from taciturn.release.model_file import SHIPPED
    from taciturn.runs.chosen import chosen_recipe
    from taciturn.runs.folder import NOT_NEW, RunError

    check_new_folder(folder, NOT_NEW)
    path = folder.with_name(f"{folder.name}.toml")
    if path.exists():
        raise RunError(f"{path} is there already: train as it says (taciturn train {path}), or name another --run")
    start = SHIPPED if public is None else str(_started(people, public, folder.with_name(f"{folder.name}-start")))
    with console.status("timing a round of held-out users, and working out a recipe"):
        chosen = chosen_recipe(people, epsilon, start, minutes, users)
    task, plan = chosen.task, chosen.plan
    title = f"Worked out for {people} at ε = {epsilon_text(epsilon)}, in {minutes:g} minutes; docs/choosing.md says what its rules rest on"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, commented_toml(chosen.choices, title).encode())
    say(
        f"{task.users:,} people{'' if users else ' (rounded down; say another number with --users)'}, ε = {epsilon_text(epsilon)} at δ = "
        f"{delta_text(task.delta)}. This machine trains {task.users_per_second:,.0f} of them a second.\n"
        f"{plan.rounds} rounds of {plan.cohort:,}, noise multiplier {plan.noise_multiplier:.2f}, server rate {plan.server_rate:g}: about "
        f"{task.duration(plan.rounds, plan.cohort) / 60:.0f} minutes of training.\n{path}: the recipe, with the reason for each choice"
    )
    return path


def _started(people: Path, public: Path, out: Path) -> Path:
    """A model of this public text, and of that which comes with taciturn where both have the same words; or the model that is there.
    Interrupted, it goes on with the same command."""
    from taciturn.algorithms.pretraining import Schedule
    from taciturn.cli.pretrain import watched
    from taciturn.data.population import Population
    from taciturn.data.public import PublicCorpus
    from taciturn.recipe.sections import ModelSection
    from taciturn.release.model_file import SHIPPED, load_model
    from taciturn.runs.chosen import StartError
    from taciturn.runs.pretrain import CHECKPOINT

    if (public / "model.safetensors").exists():
        return public
    corpus, (_, shipped) = PublicCorpus.load(public), load_model(Path(SHIPPED))
    if corpus.vocabulary.words != Population(people).vocabulary.words:
        raise StartError(f"{public} has other words than {people}: make it with taciturn data public … --vocabulary {people}")
    begun = (out / CHECKPOINT).exists()
    if begun or not (out / "model.safetensors").exists():
        same = corpus.vocabulary.words == shipped.vocabulary
        watched(public, ModelSection(kind="cifg"), Schedule(), out, begun, Path(SHIPPED) if same else None, "the same command")
    elif corpus.source not in load_model(out)[1].public_sources:
        raise StartError(f"{out} is a start of other text than {public}: delete it, or name another --run")
    return out


def _join(engine: str) -> None:
    from taciturn.fleets.ray_engine import RayError, join

    name, _, address = engine.partition(":")
    if name != "ray":
        raise RayError(f"--engine takes ray, or ray:ADDRESS of a cluster, and not {engine}; leave it out to train in this process")
    join(address or None)


def _watched(folder: Path, work: "Callable[[Any], TrainedRun]") -> "TrainedRun":
    """Train under a progress bar; Ctrl-C says how to go on."""
    try:
        with training_bar(folder.name) as show:
            return work(show)
    except KeyboardInterrupt:
        leave_interrupted(f"Nothing is lost; go on with: taciturn train --resume --run {folder}")
