"""`taciturn train`: a model trained as a recipe says."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import taciturn as tt
from taciturn.cli.command_classes import finite, name_flags
from taciturn.cli.log_lines import print_warnings
from taciturn.cli.output import begin, leave_interrupted, print_finished, say
from taciturn.cli.pretrain import pretraining_bar
from taciturn.cli.progress_display import stages, training_bar
from taciturn.errors import TaciturnError
from taciturn.runs.display import Display

if TYPE_CHECKING:
    from taciturn.runs.display import Announce, PretrainingProgress, Progress
    from taciturn.runs.loop import TrainedRun
    from taciturn.runs.train import PlannedTraining

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
            help="with PEOPLE: most time to take (default: 30), besides learning --public text",
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
            "epsilon": epsilon,
            "users": users,
            "public": public,
            "minutes": minutes,
            "dry_run": dry_run or None,
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
        return print_finished(tt.resume(run, _Bars()))
    if what is None:
        raise TaciturnError(
            "name a recipe, or people and an ε: taciturn train RECIPE.toml, or taciturn train"
            " PEOPLE --epsilon 4"
        )
    settings = list(set or ())
    if audit is not None:
        settings.append(f"audit.users={audit}")
    if dry_run and settings:
        raise TaciturnError(
            "--dry-run writes a recipe to read and change: leave out --set and --audit until you"
            " train with it"
        )
    from taciturn.runs.train import USUAL_MINUTES, Request, check_what, choose_folder, plan_training

    folder = run or choose_folder(what)
    check_what(what, for_people)
    if epsilon is None:
        return _train_recipe(what, settings, folder, non_private)
    if dry_run:
        request = Request(
            people=what,
            epsilon=epsilon,
            users=users,
            public=public,
            minutes=minutes or USUAL_MINUTES,
        )
        return {"recipe": str(plan_training(request, folder, _Bars()).path)}
    finished = tt.train(
        what,
        folder,
        _Bars(),
        epsilon=epsilon,
        users=users,
        public=public,
        minutes=minutes,
        settings=settings,
    )
    return _print_trained(finished)


def _train_recipe(
    path: Path, settings: list[str], folder: Path, non_private: bool
) -> dict[str, Any]:
    recipe = tt.load_recipe(path, settings)
    _check_privacy(recipe, non_private)
    _check_stated_users(recipe)
    return _print_trained(tt.train(recipe, folder, _Bars()))


def _print_trained(finished: "TrainedRun") -> dict[str, Any]:
    gain = finished.scores.gain_over(finished.before)
    content = print_finished(finished, gain)
    return {**content, "gain": asdict(gain)}


def _name_given(options: Mapping[str, object]) -> list[str]:
    return [name for name, value in options.items() if value is not None]


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


class _Bars(Display):
    """Progress bars, and what to do after Ctrl-C."""

    @contextmanager
    def pretraining(self, out: Path, about: str) -> Iterator["PretrainingProgress"]:
        say(name_flags(about, "train"), markup=False)
        with pretraining_bar(out, again="") as show:
            yield show

    @contextmanager
    def planning(self) -> Iterator["Announce"]:
        with stages() as show:
            yield partial(show, "choosing a recipe", 0, None)

    def explain(self, planned: "PlannedTraining") -> None:
        for line in planned.lines:
            say(name_flags(line, "train"))
        if planned.doubt:
            say(planned.doubt, style="yellow")
        _check_stated_users(planned.auto_plan.recipe)

    @contextmanager
    def training(self, folder: Path) -> Iterator["Progress"]:
        try:
            with training_bar(folder.name) as show:
                yield show
        except KeyboardInterrupt:
            if not (folder / "recipe.toml").exists():
                leave_interrupted("Nothing was trained or charged yet; run the same command again")
            if not (folder / "private" / "root").exists():
                leave_interrupted(
                    f"The run is finished; only its page is missing: taciturn report {folder}"
                )
            leave_interrupted(
                f"Nothing is lost; resume with: taciturn train --resume --run {folder}"
            )
