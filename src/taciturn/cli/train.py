"""`taciturn train`: a model trained as a recipe says."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import taciturn as tt
from taciturn.cli.commands import finite
from taciturn.cli.log_lines import print_warnings
from taciturn.cli.output import begin, leave_interrupted, print_finished, say
from taciturn.cli.progress_display import stages, training_bar
from taciturn.errors import TaciturnError
from taciturn.files import next_folder, not_a, write_atomically
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text

if TYPE_CHECKING:
    from taciturn.runs.loop import TrainedRun

Settings = Annotated[
    list[str] | None, Option(help="section.key=value, wins over the recipe; may be repeated")
]


def train(
    what: Annotated[
        Path | None,
        Argument(
            metavar="[RECIPE|PEOPLE]", help="a recipe in TOML, or a folder of people and --epsilon"
        ),
    ] = None,
    run: Annotated[Path | None, Option(help="folder of the run (default: runs/NAME-N)")] = None,
    epsilon: Annotated[
        float | None,
        Option(min=0.01, max=100.0, callback=finite, help="with PEOPLE: the ε to promise them"),
    ] = None,
    users: Annotated[
        int | None,
        Option(
            min=20,
            help="with PEOPLE: how many, as publicly stated (default: counted, rounded down)",
        ),
    ] = None,
    public: Annotated[
        Path | None,
        Option(
            help="with PEOPLE: public text to learn first (`data public`), or a model (`pretrain`)"
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        Option(min=1, max=100_000, callback=finite, help="with PEOPLE: time allowed (default: 30)"),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="with PEOPLE: write the recipe and stop")
    ] = False,
    set: Settings = None,
    audit: Annotated[
        int | None,
        Option(
            help=(
                "add N synthetic users, with whom `taciturn audit run` tests the claim"
                " (audit.users)"
            )
        ),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="resume the run in --run, which was interrupted")
    ] = False,
    non_private: Annotated[
        bool, Option("--non-private", help="train without privacy; the ledger records ε = ∞")
    ] = False,
    engine: Annotated[
        str | None,
        Option(help="ray: train on a Ray cluster on this machine; ray:ADDRESS: on an existing one"),
    ] = None,
) -> dict[str, Any]:
    """Train a model for people and an ε, or from a recipe. For people and an ε, Taciturn chooses
    the settings.

    Taciturn checks the recipe and works out the noise before it spends anything, and charges every
    release in the population's ledger before it leaves. If a run is interrupted, resume it:
    taciturn train --resume --run FOLDER

    Example: taciturn train people --epsilon 4 --minutes 30

    Example: taciturn train recipe.toml --run runs/first --set run.rounds=500

    On many machines: taciturn train recipe.toml --engine ray:HEAD:6379, after `ray start` on each
    of them.
    """
    begin(f"reading {what or run or 'the recipe'}")
    if engine is not None:
        from taciturn.fleets.simulation.ray_engine import LOG, RayError, join

        name, _, address = engine.partition(":")
        if name != "ray":
            raise RayError(
                f"--engine must be ray, or ray:ADDRESS of a cluster, not {engine}; leave it out to"
                " train in this process"
            )
        join(address or None)
        print_warnings(LOG)
    given = {
        "--epsilon": epsilon,
        "--users": users,
        "--public": public,
        "--minutes": minutes,
        "--dry-run": dry_run,
    }
    for_people = [name for name, value in given.items() if value]
    if resume:
        if run is None:
            raise TaciturnError("name the run to resume: taciturn train --resume --run FOLDER")
        if set or what or audit or for_people:
            raise TaciturnError(
                "--resume uses the run's own recipe: leave out the recipe, --set, --audit and every"
                " option for PEOPLE"
            )
        work = partial(tt.resume, run)
        interrupted = (
            run / "private" / "root"
            # any other is refused, and nothing is compiled for it
        ).exists()
        return print_finished(_watched(run, work) if interrupted else work())
    if what is None:
        raise TaciturnError(
            "name a recipe, or people and an ε: taciturn train RECIPE.toml, or taciturn train"
            " PEOPLE --epsilon 4"
        )
    folder = run or next_folder(Path("runs"), f"{what.stem}-")
    if what.is_dir() and epsilon is None:
        _check_people(what)
        raise TaciturnError(
            f"{what} is a population: say what its people are promised, for example --epsilon 4"
        )
    if not what.is_dir() and for_people:
        needs = f"{for_people[0]} needs a population, and a recipe has its own settings"
        raise TaciturnError(
            f"{not_a('a population', what)}; {needs}. From text: taciturn data build TEXT --out"
            " FOLDER"
        )
    if dry_run and (set or audit):
        raise TaciturnError(
            "--dry-run writes a recipe to read and change: leave out --set and --audit until you"
            " train with it"
        )
    recipe = (
        what if epsilon is None else _chosen(what, epsilon, users, public, minutes or 30.0, folder)
    )
    if dry_run:
        return {"recipe": str(recipe)}
    loaded = tt.load_recipe(
        recipe, [*(set or ()), *([] if audit is None else [f"audit.users={audit}"])]
    )
    _check_privacy(loaded, non_private)
    finished = _watched(folder, partial(tt.train, loaded, folder))
    gain = finished.scores.gain_over(finished.before)
    return print_finished(finished, gain) | {"gain": asdict(gain)}


def _check_people(folder: Path) -> None:
    """Refuse a folder that is not a population; a run is the one most often named by mistake."""
    from taciturn.data.population import Population

    if (folder / "recipe.toml").exists() and (folder / "vocabulary.txt").exists():
        hint = (
            f"resume it with: taciturn train --resume --run {folder}, or train as it was: taciturn"
            f" train {folder / 'recipe.toml'}"
        )
        raise TaciturnError(f"{folder} is a run, not a population or a recipe; {hint}")
    Population(folder)


def _check_privacy(recipe: "tt.Recipe", non_private: bool) -> None:
    """Ask before people's total becomes ε = ∞, and point out a number of users that the population
    does not have.
    """
    from taciturn.recipe.build import population
    from taciturn.runs.for_people import round_for_publication

    people = population(recipe)
    if not recipe.is_private and not non_private and not people.manifest["about"].get("simulated"):
        setting = (
            "[privacy] noise_multiplier = 0"
            if recipe.privacy.noise_multiplier == 0
            else f'algorithm = "{recipe.algorithm}"'
        )
        meant = (
            'If you mean that, add --non-private; if not, choose algorithm = "dp-fedavg" and an'
            " epsilon"
        )
        raise TaciturnError(
            f"{setting} has no privacy, and would set the total of {people.folder} to ε = ∞ for"
            f" good. {meant}"
        )
    stated, cohort = recipe.participation.users, recipe.participation.cohort
    if recipe.participation.kind == "poisson" and len(people) < stated / 2:
        there = round_for_publication(len(people))
        expected = (
            f"a round will have about {cohort * there / stated:,.0f} of them, not {cohort:,.0f}"
        )
        say(
            f"The recipe states {stated:,} users, and {people.folder} has about {there:,}:"
            f" {expected}.",
            style="yellow",
        )


def _chosen(
    people: Path,
    epsilon: float,
    users: int | None,
    public: Path | None,
    minutes: float,
    folder: Path,
) -> Path:
    """Work out a recipe for these people, and write it beside the folder of the run."""
    from taciturn.recipe.autoplan import commented_toml
    from taciturn.release.model_file import SHIPPED
    from taciturn.runs.folder import check_new_run
    from taciturn.runs.for_people import plan_recipe

    check_new_run(folder)
    _check_people(people)
    path = folder.with_name(f"{folder.name}.toml")
    if path.exists():
        raise TaciturnError(
            f"{path} exists already: train with it (taciturn train {path}), or choose another --run"
        )
    start = (
        SHIPPED
        if public is None
        else str(_started(people, public, folder.with_name(f"{folder.name}-start")))
    )
    with stages() as show:
        chosen = plan_recipe(
            people, epsilon, start, minutes, users, partial(show, "choosing a recipe", 0, None)
        )
    task, plan = chosen.task, chosen.plan
    title = (
        f"Worked out for {people} at ε = {epsilon_text(epsilon)}, in {minutes:g} minutes;"
        " docs/choosing.md says what its rules rest on"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, commented_toml(chosen.settings, title).encode())
    say(
        f"{task.users:,}"
        f" people{'' if users else ' (rounded down; say another number with --users)'}, ε ="
        f" {epsilon_text(epsilon)} at δ = {delta_text(task.delta)}. This machine trains"
        f" {task.users_per_second:,.0f} of them a second.\n{plan.rounds} rounds of {plan.cohort:,},"
        f" noise multiplier {plan.noise_multiplier:.2f}, server rate {plan.server_rate:g}: about"
        f" {task.duration(plan.rounds, plan.cohort) / 60:.1f} minutes of training.\n{path}: the"
        " recipe, with the reason for each choice"
    )
    return path


def _started(people: Path, public: Path, out: Path) -> Path:
    """Pretrain on this public text, from the shipped start where the words are the same; resume or
    reuse a model that is there.
    """
    from taciturn.algorithms.pretraining import Schedule
    from taciturn.cli.pretrain import watched
    from taciturn.data.population import Population
    from taciturn.data.public import PublicCorpus
    from taciturn.recipe.sections import ModelSection
    from taciturn.release.model_file import SHIPPED, load_model
    from taciturn.runs.pretrain import CHECKPOINT

    if (public / "model.safetensors").exists():
        return public
    corpus, (_, shipped) = PublicCorpus.load(public), load_model(Path(SHIPPED))
    if corpus.vocabulary.words != Population(people).vocabulary.words:
        raise TaciturnError(
            f"{public} and {people} have different vocabularies: make it with taciturn data public"
            f" … --vocabulary {people}"
        )
    begun = (out / CHECKPOINT).exists()
    if begun or not (out / "model.safetensors").exists():
        same = corpus.vocabulary.words == shipped.vocabulary
        watched(
            public,
            ModelSection(kind="cifg"),
            Schedule(),
            out,
            begun,
            Path(SHIPPED) if same else None,
            "",
        )
    elif corpus.source not in load_model(out)[1].public_sources:
        raise TaciturnError(
            f"{out} was pretrained on other text than {public}: delete it, or choose another --run"
        )
    return out


def _watched(folder: Path, work: "Callable[[Any], TrainedRun]") -> "TrainedRun":
    """Train under a progress bar; after Ctrl-C, say how to resume."""
    try:
        with training_bar(folder.name) as show:
            return work(show)
    except KeyboardInterrupt:
        if not (folder / "recipe.toml").exists():
            leave_interrupted("Nothing was trained or charged yet; run the same command again")
        if not (folder / "private" / "root").exists():
            leave_interrupted(
                f"The run is finished; only its page is missing: taciturn report {folder}"
            )
        leave_interrupted(f"Nothing is lost; resume with: taciturn train --resume --run {folder}")
