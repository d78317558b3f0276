"""`taciturn train`: a model trained as a recipe says."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import taciturn as tt
from taciturn.cli.command_classes import finite
from taciturn.cli.log_lines import print_warnings
from taciturn.cli.output import begin, leave_interrupted, print_finished, say
from taciturn.cli.progress_display import stages, training_bar
from taciturn.errors import TaciturnError
from taciturn.files import next_folder, not_a, write_atomically
from taciturn.privacy.accounting.rounding_up import pair_text

if TYPE_CHECKING:
    from taciturn.recipe.autoplan import Limit
    from taciturn.runs.for_people import AutoPlan
    from taciturn.runs.loop import TrainedRun

# How many times too many or too few users a recipe may state without a warning.
FAR = 1.25

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
            help=(
                "with PEOPLE: how many, as publicly stated (default: counted, rounded down, and"
                " published with the recipe)"
            ),
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
        Option(
            min=1,
            max=100_000,
            callback=finite,
            help="with PEOPLE: most time to take (default: 30)",
        ),
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
        _join_engine(engine)
    for_people = _name_given(
        {
            "--epsilon": epsilon,
            "--users": users,
            "--public": public,
            "--minutes": minutes,
            "--dry-run": dry_run,
        }
    )
    if resume:
        if run is None:
            raise TaciturnError("name the run to resume: taciturn train --resume --run FOLDER")
        if set or what or audit or for_people:
            raise TaciturnError(
                "--resume uses the run's own recipe: leave out the recipe, --set, --audit and every"
                " option for PEOPLE"
            )
        return print_finished(_resume(run))
    if what is None:
        raise TaciturnError(
            "name a recipe, or people and an ε: taciturn train RECIPE.toml, or taciturn train"
            " PEOPLE --epsilon 4"
        )
    folder = run or next_folder(Path("runs"), f"{what.stem}-")
    _check_what(what, epsilon, for_people)
    if dry_run and (set or audit):
        raise TaciturnError(
            "--dry-run writes a recipe to read and change: leave out --set and --audit until you"
            " train with it"
        )
    recipe = what
    if epsilon is not None:
        wish = _Wish(
            people=what,
            epsilon=epsilon,
            users=users,
            public=public,
            minutes=minutes or 30.0,
        )
        recipe = _plan(wish, folder)
    settings = list(set or ())
    if audit is not None:
        settings.append(f"audit.users={audit}")
    loaded = tt.load_recipe(recipe, settings)
    _check_privacy(loaded, non_private)
    _check_stated_users(loaded)
    if dry_run:
        return {"recipe": str(recipe)}
    finished = _watch(folder, partial(tt.train, loaded, folder))
    gain = finished.scores.gain_over(finished.before)
    content = print_finished(finished, gain)
    return {**content, "gain": asdict(gain)}


def _name_given(options: Mapping[str, object]) -> list[str]:
    return [name for name, value in options.items() if value]


def _join_engine(engine: str) -> None:
    """Train on a Ray cluster from now on."""
    from taciturn.fleets.simulation.ray_engine import LOG, RayError, join

    name, _, address = engine.partition(":")
    if name != "ray":
        raise RayError(
            f"--engine must be ray, or ray:ADDRESS of a cluster, not {engine}; leave it out to"
            " train in this process"
        )
    join(address or None)
    print_warnings(LOG)


def _resume(run: Path) -> "TrainedRun":
    was_interrupted = (run / "private" / "root").exists()
    # Any other is refused, and nothing is compiled for it.
    if not was_interrupted:
        return tt.resume(run)
    return _watch(run, partial(tt.resume, run))


def _check_what(what: Path, epsilon: float | None, for_people: list[str]) -> None:
    """Refuse people without an ε, and a recipe with options for people."""
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


def _check_people(folder: Path) -> None:
    """Refuse a folder that is not a population; a run is the one most often named by mistake."""
    from taciturn.data.population import Population

    recipe = folder / "recipe.toml"
    if recipe.exists() and (folder / "vocabulary.txt").exists():
        raise TaciturnError(
            f"{folder} is a run, not a population or a recipe; resume it with: taciturn train"
            f" --resume --run {folder}, or train as it was: taciturn train {recipe}"
        )
    Population(folder)


def _check_privacy(recipe: "tt.Recipe", non_private: bool) -> None:
    """Refuse to set people's total to ε = ∞, unless the user says so."""
    from taciturn.recipe.build import population

    people = population(recipe)
    is_simulated = people.manifest["about"].get("simulated")
    if recipe.is_private or non_private or is_simulated:
        return
    setting = f'algorithm = "{recipe.algorithm}"'
    if recipe.privacy.noise_multiplier == 0:
        setting = "[privacy] noise_multiplier = 0"
    raise TaciturnError(
        f"{setting} has no privacy, and would set the total of {people.folder} to ε = ∞ for"
        ' good. If you mean that, add --non-private; if not, choose algorithm = "dp-fedavg" and an'
        " epsilon"
    )


def _check_stated_users(recipe: "tt.Recipe") -> None:
    """Point out a number of users that is not near the population's."""
    from taciturn.privacy.participation import round_for_publication
    from taciturn.privacy.schemes import SCHEMES
    from taciturn.recipe.build import population

    people = population(recipe)
    stated = recipe.participation.users
    cohort = recipe.participation.cohort
    is_near = stated <= FAR * len(people) and len(people) <= FAR * stated
    shrinks = SCHEMES[recipe.participation.kind].shrinks_with_users
    # The people of a fleet are on their devices.
    if len(people) and shrinks and not is_near:
        there = round_for_publication(len(people))
        expected = cohort * there / stated
        say(
            f"The recipe states {stated:,} users, and {people.folder} has about {there:,}:"
            f" a round will have about {expected:,.0f} of them, not {cohort:,.0f}.",
            style="yellow",
        )


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What someone asks for who has no recipe."""

    people: Path
    epsilon: float
    # How many they are, as publicly stated.
    users: int | None
    # Public text, or a model of it, to start from.
    public: Path | None
    minutes: float


def _plan(wish: _Wish, folder: Path) -> Path:
    """Work out a recipe for these people, and write it beside the folder of the run."""
    from taciturn.recipe.autoplan import commented_toml
    from taciturn.runs.folder import check_new_run
    from taciturn.runs.for_people import check_people, plan_recipe

    # All of this before public text is learned, or anything is timed.
    check_new_run(folder)
    _check_people(wish.people)
    check_people(wish.people, wish.users)
    path = folder.with_name(f"{folder.name}.toml")
    if path.exists():
        raise TaciturnError(
            f"{path} exists already: train with it (taciturn train {path}), or choose another --run"
        )
    start = _choose_start(wish, folder)
    with stages() as show:
        auto_plan = plan_recipe(
            folder=wish.people,
            epsilon=wish.epsilon,
            start=start,
            minutes=wish.minutes,
            users=wish.users,
            announce=partial(show, "choosing a recipe", 0, None),
        )
    promise = pair_text(wish.epsilon, auto_plan.task.delta)
    title = (
        f"Worked out for {wish.people} and {promise}, in {wish.minutes:g} minutes;"
        " docs/choosing.md says what its rules rest on"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, commented_toml(auto_plan.settings, title).encode())
    _print_plan(wish, auto_plan, path)
    return path


def _choose_start(wish: _Wish, folder: Path) -> str:
    from taciturn.release.model_file import SHIPPED

    if wish.public is None:
        return SHIPPED
    start = pretrain_for(wish.people, wish.public, folder.with_name(f"{folder.name}-start"))
    return str(start)


def _print_plan(wish: _Wish, auto_plan: "AutoPlan", path: Path) -> None:
    task = auto_plan.task
    plan = auto_plan.plan
    how_counted = " (as you state)"
    if wish.users is None:
        how_counted = " (counted, and rounded down; state another number with --users)"
    promise = pair_text(wish.epsilon, task.delta)
    minutes = task.duration(plan.rounds, plan.cohort) / 60
    say(
        f"{task.users:,} people{how_counted}, {promise} (1/users²).\nThis machine trains"
        f" {task.users_per_second:,.0f} of them a second.\n{plan.rounds} rounds of"
        f" {plan.cohort:,}, noise multiplier {plan.noise_multiplier:.2f}, server rate"
        f" {plan.server_rate:g}: about {minutes:.1f} minutes of training,"
        f" {auto_plan.minutes:.1f} of {wish.minutes:g} in all.\n{_describe_limit(auto_plan.limit)}"
        f"\n{path}: the recipe, with the reason for each choice"
    )
    if not auto_plan.timing.is_certain:
        speeds = ", ".join(f"{speed:,.0f}" for speed in auto_plan.timing.speeds)
        say(
            "How long it takes is uncertain: the speed changed while it was measured"
            f" ({speeds} people a second). If other work slows down this machine, wait for its end,"
            " and plan again.",
            style="yellow",
        )


def _describe_limit(limit: "Limit") -> str:
    if limit.is_time:
        return (
            "The time limits what it gains: twice the minutes would be worth"
            f" {_points(limit.more_in_time)} of AccuracyTop1 more."
        )
    if limit.is_people:
        return (
            "The number of people limits what it gains at this ε, not the time: twice as many would"
            f" be worth {_points(limit.more_with_people)} of AccuracyTop1 more."
        )
    return "Neither twice the minutes nor twice the people would be worth much more."


def _points(gain: float) -> str:
    return f"about {gain:.2f} points"


def pretrain_for(people: Path, public: Path, out: Path) -> Path:
    """Return a model of this public text, from which training on these people can start.

    It is trained from the shipped start where the words are the same. A training that was
    interrupted is resumed, and a model that is there is used again; where `public` is a model, it
    is returned itself.
    """
    from taciturn.algorithms.pretraining import Schedule
    from taciturn.cli.pretrain import watch_pretraining
    from taciturn.data.population import Population
    from taciturn.data.public import PublicCorpus
    from taciturn.recipe.sections import ModelSection
    from taciturn.release.model_file import SHIPPED, load_model
    from taciturn.runs.pretrain import CHECKPOINT

    if (public / "model.safetensors").exists():
        return public
    corpus = PublicCorpus.load(public)
    words = corpus.vocabulary.words
    _, shipped = load_model(Path(SHIPPED))
    if words != Population(people).vocabulary.words:
        raise TaciturnError(
            f"{public} and {people} have different vocabularies: make it with taciturn data public"
            f" … --vocabulary {people}"
        )
    was_interrupted = (out / CHECKPOINT).exists()
    if was_interrupted or not (out / "model.safetensors").exists():
        watch_pretraining(
            public,
            ModelSection(kind="cifg"),
            Schedule(),
            out,
            resume=was_interrupted,
            start=Path(SHIPPED) if words == shipped.vocabulary else None,
            again="",
        )
        return out
    _, card = load_model(out)
    if corpus.source not in card.public_sources:
        raise TaciturnError(
            f"{out} was pretrained on other text than {public}: delete it, or choose another --run"
        )
    return out


def _watch(folder: Path, work: "Callable[[Any], TrainedRun]") -> "TrainedRun":
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
