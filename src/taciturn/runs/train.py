"""Train for people and an ε, or from a recipe: what `tt.train` and the command line call."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from taciturn.data.population import Population
from taciturn.files import next_folder, not_a, write_atomically
from taciturn.fleets.devices.fleet import ConnectedDevices
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.recipe.autoplan import commented_toml
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.solve import with_noise
from taciturn.recipe.text import RecipeError, check_settings, load_recipe
from taciturn.release.model_file import SHIPPED
from taciturn.runs.display import Display, Progress, choose_display
from taciturn.runs.folder import check_new_run
from taciturn.runs.for_people import (
    AutoPlan,
    check_people,
    describe_doubt,
    describe_plan,
    plan_recipe,
    pretrain_for,
)
from taciturn.runs.loop import TrainedRun, resume_run, train_run
from taciturn.runs.provenance import check_has_people

# What may be asked for, from the least to the most.
EPSILONS = (0.01, 100.0)
MINUTES = (1.0, 100_000.0)
LEAST_USERS = 20
# If none are named.
USUAL_MINUTES = 30.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """What someone asks for who has no recipe."""

    people: Path
    epsilon: float
    # How many they are, as publicly stated.
    users: int | None = None
    # Public text, or a model of it, to start from.
    public: Path | None = None
    minutes: float = USUAL_MINUTES
    # `section.key=value`, which win over what is worked out.
    settings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """A training that was worked out, before anything is spent."""

    request: Request
    auto_plan: AutoPlan
    # Of the recipe, with the reason for each choice.
    path: Path

    @property
    def lines(self) -> list[str]:
        """Return what was chosen and what limits it, in sentences."""
        lines = describe_plan(
            self.auto_plan,
            is_counted=self.request.users is None,
            minutes=self.request.minutes,
        )
        lines.append(f"{self.path}: the recipe, with the reason for each choice")
        return lines

    @property
    def doubt(self) -> str | None:
        """Return why the expected time is uncertain, if it is."""
        return describe_doubt(self.auto_plan.timing)


def train(
    what: Recipe | Population | str | Path,
    folder: str | Path | None = None,
    progress: Progress | Display | None = None,
    connected: ConnectedDevices | None = None,
    *,
    epsilon: float | None = None,
    users: int | None = None,
    public: str | Path | None = None,
    minutes: float | None = None,
    settings: Sequence[str] = (),
) -> TrainedRun:
    """Train a model for people and an ε, or as a recipe says.

    For people and an ε the settings are worked out, and written with a reason for each as a recipe
    beside the run's folder. Every round is charged in the population's ledger before its result is
    used.

    Args:
        what: people (a population, or its folder) and `epsilon`; or a recipe, or a file in TOML.
        folder: a new one, of the run. One process at a time works in it. By default runs/NAME-1, or
            the next number that is free.
        progress: called after every round with the rounds done, all rounds, and the last
            measurements by name; or a `Display`, which shows the stages before them too. If it
            raises, the run is interrupted there. By default a line in a terminal or a notebook
            shows what is done; `lambda *_: None` shows nothing.
        connected: the devices of a fleet, where the recipe is for one.
        epsilon: the ε to promise the people.
        users: how many people there are, as publicly stated. By default they are counted, and
            published with the recipe, rounded down.
        public: public text to learn first, or a model of it. By default training starts from the
            model that comes with the package.
        minutes: the most time to take for people and an ε, besides learning public text; 30, unless
            you name another.
        settings: `section.key=value`, which win over the recipe.

    Returns:
        The finished run: its guarantee, its accuracy, and its exports.

    Example:
        def show(done, rounds, row):
            print(done, row["epsilon"])

        run = tt.train("recipe.toml", "runs/first", show)
        assert run.guarantee.is_private
    """
    _check_paths(folder=folder, public=public)
    check_settings(settings or ())
    given = {"epsilon": epsilon, "users": users, "public": public, "minutes": minutes}
    for_people = [name for name, value in given.items() if value is not None]
    display = choose_display(progress)
    if isinstance(what, Recipe):
        _check_whole_recipe(for_people, settings)
        recipe = what
        folder = Path(folder or choose_folder(Path(recipe.data.population)))
    else:
        _check_paths(what=what.folder if isinstance(what, Population) else what)
        what = what.folder if isinstance(what, Population) else Path(what)
        folder = Path(folder or choose_folder(what))
        check_what(what, for_people)
        if epsilon is None:
            recipe = load_recipe(what, settings)
        else:
            request = Request(
                people=what,
                epsilon=_read_number("epsilon", epsilon),
                users=None if users is None else _read_integer("users", users),
                public=Path(public) if public is not None else None,
                minutes=USUAL_MINUTES if minutes is None else _read_number("minutes", minutes),
                settings=settings,
            )
            recipe = _solve_noise(plan_training(request, folder, display))
    with display.training(folder) as show:
        return train_run(recipe, folder, show, connected)


def resume(
    folder: str | Path,
    progress: Progress | Display | None = None,
    connected: ConnectedDevices | None = None,
) -> TrainedRun:
    """Resume an interrupted run; it ends with the same model as if it had not been interrupted.

    Args:
        folder: of the run, with its own recipe and secrets in it.
        progress: as for a new run.
        connected: as for a new run.

    Returns:
        The finished run.

    Example:
        try:
            run = tt.resume("runs/first")
        except tt.TaciturnError as error:
            print(error)  # it is already finished
    """
    folder = Path(folder)
    was_interrupted = (folder / "private" / "root").exists()
    if was_interrupted:
        check_has_people(folder, f"{folder} can be resumed only beside its people")
    # Any other is refused, and nothing is compiled for it.
    display = choose_display(progress) if was_interrupted else Display()
    with display.training(folder) as show:
        return resume_run(folder, show, connected)


def choose_folder(what: Path) -> Path:
    """Return a folder that is free for a run of this recipe or these people."""
    return next_folder(Path("runs"), f"{what.resolve().stem}-")


def check_what(what: Path, for_people: Sequence[str]) -> None:
    """Refuse people without an ε, and a recipe with what is only for people.

    Args:
        what: a recipe, or a folder of people.
        for_people: the names of the arguments for people that are there.
    """
    if what.is_dir() and "epsilon" not in for_people:
        _check_population(what)
        raise RecipeError(
            f"{what} is a population: say what its people are promised, for example `epsilon=4`"
        )
    if not what.exists() and for_people:
        raise RecipeError(
            f"there is no folder {what}, and `{for_people[0]}` needs one of people: build it from"
            " their text (`tt.build_population(TEXT, FOLDER)`), or name another"
        )
    if not what.is_dir() and for_people:
        raise RecipeError(
            f"{not_a('a population', what)}; `{for_people[0]}` needs a population, and a recipe has"
            " its own settings. From text of people who never had one:"
            " `tt.build_population(TEXT, FOLDER)`"
        )


def _check_paths(**paths: object) -> None:
    """Refuse what is not a path; most often it is an ε without its name."""
    for name, path in paths.items():
        if path is not None and not isinstance(path, str | os.PathLike):
            raise RecipeError(
                f"`{name}` must be a path, not {path!r}; arguments for people have names, for"
                " example `epsilon=4`"
            )


def _read_number(name: str, value: object) -> float:
    """Return a number of any kind, NumPy's too; refuse others, and truth values."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise RecipeError(f"`{name}` must be a number, for example 4, not {value!r}")
    return float(value)


def _read_integer(name: str, value: object) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise RecipeError(f"`{name}` must be an integer, for example 5000, not {value!r}")
    return int(value)


def _check_whole_recipe(for_people: Sequence[str], settings: Sequence[str]) -> None:
    """Refuse to change a recipe that was made in Python."""
    if for_people:
        raise RecipeError(
            f"`{for_people[0]}` needs a population, and a recipe has its own settings: name a"
            " folder of people, or leave it out"
        )
    if settings:
        raise RecipeError(
            "`settings` win over a file or a plan: change a recipe that is made in Python by its"
            ' own `with_settings("run", rounds=500)`'
        )


def _check_population(folder: Path) -> None:
    """Refuse a folder that is not a population; a run is the one most often named by mistake."""
    recipe = folder / "recipe.toml"
    if recipe.exists() and (folder / "vocabulary.txt").exists():
        raise RecipeError(
            f"{folder} is a run, not a population or a recipe; resume it with"
            f" `tt.resume({str(folder)!r})`, or train as it was: `tt.train({str(recipe)!r})`"
        )
    Population(folder)


def _check_request(request: Request) -> None:
    """Refuse numbers that no recipe can be worked out for."""
    _check_range("epsilon", request.epsilon, EPSILONS)
    _check_range("minutes", request.minutes, MINUTES)
    if request.users is not None and request.users < LEAST_USERS:
        raise RecipeError(f"`users` must be {LEAST_USERS} or more, not {request.users}")


def _check_range(name: str, value: float, limits: tuple[float, float]) -> None:
    least, most = limits
    # Of «not a number» no comparison is true.
    if not least <= value <= most:
        raise RecipeError(f"`{name}` must lie between {least:g} and {most:,.0f}, not {value:g}")


def plan_training(request: Request, folder: Path, display: Display) -> PlannedTraining:
    """Work out a recipe for people, and write it beside the folder of the run.

    Args:
        request: for whom, and what they are promised.
        folder: of the run, which is not made yet.
        display: shows how it goes, and what was worked out.
    """
    # All of this before public text is learned, or anything is timed.
    _check_request(request)
    check_new_run(folder)
    _check_population(request.people)
    check_people(request.people, request.users)
    path = folder.with_name(f"{folder.name}.toml")
    if path.exists():
        raise RecipeError(
            f"{path} exists already: train with it (`tt.train({str(path)!r})`), or choose another"
            " `folder`"
        )
    start = _choose_start(request, folder, display)
    with display.planning() as announce:
        auto_plan = plan_recipe(
            folder=request.people,
            epsilon=request.epsilon,
            start=start,
            minutes=request.minutes,
            users=request.users,
            announce=announce,
            settings=request.settings,
        )
    promise = pair_text(request.epsilon, auto_plan.task.delta)
    title = (
        f"Worked out for {request.people} and {promise}, in {request.minutes:g} minutes;"
        " docs/choosing.md says what its rules rest on"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, commented_toml(auto_plan.settings, title).encode())
    planned = PlannedTraining(request=request, auto_plan=auto_plan, path=path)
    display.explain(planned)
    return planned


def _choose_start(request: Request, folder: Path, display: Display) -> str:
    if request.public is None:
        return SHIPPED
    out = folder.with_name(f"{folder.name}-start")
    return str(pretrain_for(request.people, request.public, out, display))


def _solve_noise(planned: PlannedTraining) -> Recipe:
    """Return the recipe with the noise that was worked out with the plan."""
    # With other settings it is worked out anew, when the run is built.
    if planned.request.settings:
        return planned.auto_plan.recipe
    words = len(Population(planned.request.people).vocabulary)
    noise_multiplier = planned.auto_plan.plan.noise_multiplier
    return with_noise(planned.auto_plan.recipe, words, known=noise_multiplier)
