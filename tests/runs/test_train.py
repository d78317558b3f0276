"""`tt.train("people", epsilon=4)`: what the command line calls, from Python."""

import io
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import taciturn as tt
from harness import made_up_users, tiny_recipe
from taciturn.cli import app
from taciturn.cli.train import train as command
from taciturn.data.population import LEAST_HELD_OUT, Population, write_population
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.errors import TaciturnError
from taciturn.recipe import autoplan, solve
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError, load_recipe, save_recipe
from taciturn.runs import display, for_people
from taciturn.runs import train as train_module
from taciturn.runs.display import Display, LineDisplay, RoundsOnly, choose_display
from taciturn.runs.for_people import Timing
from taciturn.runs.pretrain import Schedule, pretrain_model
from taciturn.runs.train import EPSILONS, LEAST_USERS, MINUTES

LIMITED = ("epsilon", "minutes", "users")
NOTHING_SPENT = "this comes after everything that may be refused"


@pytest.fixture(scope="module")
def start(tmp_path_factory, vocabulary) -> Path:
    out = tmp_path_factory.mktemp("public") / "start"
    text = Texts.of(made_up_users(40, seed=2).values(), len(vocabulary))
    pretrain_model(
        PublicCorpus(text, vocabulary, "simulated text"),
        ModelSection(kind="cifg", width=8, units=12),
        Schedule(epochs=1, batch_size=8),
        out,
        lambda *_: None,
    )
    return out


@pytest.fixture
def people(tmp_path, vocabulary, monkeypatch) -> Path:
    """A population in the folder to be in, on a machine of one speed."""
    monkeypatch.chdir(tmp_path)
    held_out = made_up_users(LEAST_HELD_OUT, seed=1)
    write_population(Path("people"), made_up_users(230), held_out, vocabulary, {"least_tokens": 20})
    timing = Timing(compile_s=2.0, users_per_s=20.0, overhead_s=0.0, evaluate_s=1.0)
    monkeypatch.setattr(for_people, "measure_speed", lambda *_: timing)
    monkeypatch.setattr(autoplan, "ROUNDS", (12,))
    return Path("people")


def refuse_to_measure(*_, **__):
    raise AssertionError(NOTHING_SPENT)


def test_people_and_an_epsilon_become_a_run_and_its_noise_is_searched_once(
    people, start, monkeypatch
):
    searched = []
    search = solve.noise_for_budget

    def count(*arguments, **keywords):
        searched.append(keywords)
        return search(*arguments, **keywords)

    rounds = []
    monkeypatch.setattr(solve, "noise_for_budget", count)
    run = tt.train(
        people,
        epsilon=8,
        public=start,
        minutes=1,
        progress=lambda done, all, row: rounds.append((done, all)),
    )
    # The plan has searched it, with the accountant of the recipe.
    assert searched == []
    assert rounds[0] == (0, 12)
    assert rounds[-1] == (12, 12)
    assert run.folder == Path("runs/people-1")
    assert 7 < run.guarantee.epsilon <= 8
    written = Path("runs/people-1.toml")
    assert "# what you asked for; noise is made for it" in written.read_text()
    # The recipe that lies there, trained by itself, gets the same noise.
    again = solve.with_noise(load_recipe(written), vocabulary=len(run.model.vocabulary))
    assert again.privacy.noise_multiplier == run.recipe.privacy.noise_multiplier
    assert len(searched) == 1


def test_noise_that_the_budget_does_not_allow_is_never_taken(population):
    """The twin that must fail: a plan whose noise is too small."""
    recipe = tiny_recipe(population).with_settings("privacy", epsilon=2.0, noise_multiplier=None)
    enough = solve.with_noise(recipe, vocabulary=50).privacy.noise_multiplier or 0.0
    known = solve.with_noise(recipe, vocabulary=50, known=0.9 * enough)
    assert known.privacy.noise_multiplier == enough
    larger = solve.with_noise(recipe, vocabulary=50, known=1.1 * enough)
    assert larger.privacy.noise_multiplier == pytest.approx(1.1 * enough)


def test_the_command_line_calls_the_function_of_the_library(people, monkeypatch):
    class Called(Exception):
        pass

    def record(*arguments, **keywords):
        raise Called(arguments[:2], keywords)

    monkeypatch.setattr(tt, "train", record)
    words = "train people --epsilon 4 --users 230 --minutes 5 --set run.rounds=3 --audit 7"
    called = CliRunner().invoke(app, words.split()).exception
    assert called is not None
    assert called.args == (
        (people, Path("runs/people-1")),
        {
            "epsilon": 4.0,
            "users": 230,
            "public": None,
            "minutes": 5.0,
            "settings": ["run.rounds=3", "audit.users=7"],
        },
    )


def test_the_command_line_and_the_library_have_the_same_limits():
    options = {name: command.__annotations__[name].__metadata__[0] for name in LIMITED}
    epsilon, minutes, users = options.values()
    assert (epsilon.min, epsilon.max) == EPSILONS
    assert (minutes.min, minutes.max) == MINUTES
    assert users.min == LEAST_USERS


@pytest.mark.parametrize(
    ("what", "keywords", "answer"),
    [
        ("people", {}, r"say what its people are promised, for example `epsilon=4`"),
        ("people", {"users": 230}, r"people is a population: say what its people are promised"),
        ("people", {"epsilon": 0}, r"`epsilon` must lie between 0.01 and 100, not 0"),
        ("people", {"epsilon": float("nan")}, r"`epsilon` must lie between 0.01 and 100, not nan"),
        ("people", {"epsilon": 4, "minutes": 0}, r"`minutes` must lie between 1 and 100,000"),
        ("people", {"epsilon": 4, "users": 5}, r"`users` must be 20 or more, not 5"),
        ("people", {"epsilon": 4, "users": 23}, r"State `users` within a factor of two of it"),
        ("people", {"epsilon": 4, "settings": ["rounds=3"]}, "rounds is not a setting"),
        (
            "people",
            {"epsilon": 4, "settings": ["algorithm=fedavg"]},
            'algorithm = "fedavg" has no privacy',
        ),
        (
            "people",
            {"epsilon": 4, "settings": ["privacy.noise_multiplier=0"]},
            "noise_multiplier = 0 is a run without privacy",
        ),
        ("people", {"epsilon": 4, "folder": "people"}, "exists already: choose another `folder`"),
        ("people", {"epsilon": 4, "folder": "/proc/run"}, "/proc/"),
        ("recipe.toml", {"epsilon": 4}, r"`epsilon` needs a population, and a recipe has its own"),
        ("recipe.toml", {"minutes": 5}, r"`minutes` needs a population, and a recipe has its own"),
        (
            "nowhere",
            {"epsilon": 4},
            r"there is no folder nowhere, and `epsilon` needs one of people",
        ),
        ("people", {"epsilon": "4"}, r"`epsilon` must be a number, for example 4, not '4'"),
        ("people", {"epsilon": True}, r"`epsilon` must be a number, for example 4, not True"),
        ("people", {"epsilon": 4, "minutes": "5"}, r"`minutes` must be a number, .*, not '5'"),
        ("people", {"epsilon": 4, "users": "50"}, r"`users` must be an integer, .*, not '50'"),
        ("people", {"epsilon": 4, "users": 50.5}, r"`users` must be an integer, .*, not 50.5"),
        ("people", {"folder": 4}, r"`folder` must be a path, not 4; .* for example `epsilon=4`"),
        (4, {"epsilon": 4}, r"`what` must be a path, not 4"),
        (
            "recipe.toml",
            {"settings": "run.rounds=5"},
            r"`settings` must be a list of .* not 'run.rounds=5'",
        ),
        ("people", {"epsilon": 4, "settings": [5]}, r"`settings` must be a list of .* not \[5\]"),
        ("a recipe", {"epsilon": 4}, r"`epsilon` needs a population, and a recipe has its own"),
        ("a recipe", {"settings": ["run.rounds=3"]}, "change a recipe that is made in Python by"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_is_timed(
    people, start, monkeypatch, what, keywords, answer
):
    monkeypatch.setattr(for_people, "measure_speed", refuse_to_measure)
    monkeypatch.setattr(train_module, "train_run", refuse_to_measure)
    recipe = tiny_recipe(Population(people))
    save_recipe(recipe, Path("recipe.toml"))
    if what == "people" and "settings" in keywords:
        keywords = {**keywords, "public": start}
    with pytest.raises((TaciturnError, OSError), match=answer):
        tt.train(recipe if what == "a recipe" else what, **keywords)
    assert not Path("runs").exists()
    assert not list(people.glob("ledger*"))


def test_a_recipe_is_trained_in_the_next_free_folder_and_settings_win(
    population, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    save_recipe(tiny_recipe(population), Path("small.toml"))
    run = tt.train("small.toml", settings=["run.rounds=2"])
    assert run.folder == Path("runs/small-1")
    assert run.recipe.run.rounds == 2
    with pytest.raises(RecipeError, match=r"`settings` takes section\.key=value"):
        tt.train("small.toml", settings=["rounds"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_line_and_a_pipe_nothing(monkeypatch):
    monkeypatch.setattr(display.sys, "stderr", io.StringIO())
    assert type(choose_display(None)) is Display
    monkeypatch.setattr(display.sys, "stderr", Terminal())
    assert type(choose_display(None)) is LineDisplay
    assert type(choose_display(lambda *_: None)) is RoundsOnly


def test_what_a_line_shows_states_its_delta_and_covers_the_line_before():
    stream = Terminal()
    row = {"accuracy_top1": 0.2, "epsilon": 1.5, "delta": 1e-8, "round": 4}
    with LineDisplay(stream).training(Path("runs/a")) as show:
        show(0, 9, row)
        show(4, 9, row)
    first, last = stream.getvalue().rstrip("\n").split("\r")[-2:]
    assert first.startswith("a: 0 of 9 rounds, compiling a round")
    assert last == "a: 4 of 9 rounds, Top1 20.00%, ε = 1.50 at δ = 1e-08 after round 4"


def test_public_text_is_announced_before_it_is_learned_with_how_long_that_may_take():
    stream = Terminal()
    with LineDisplay(stream).pretraining(Path("runs/a-start"), "Learning first.") as show:
        assert stream.getvalue().startswith("Learning first.\n")
        show(4, 9, "fast")


def test_an_epsilon_of_numpy_is_a_number_as_any_other(people, start):
    run = tt.train("people", epsilon=np.float64(8), minutes=np.float64(5), public=start)
    assert run.guarantee.epsilon <= 8


def test_completion_shows_the_names_of_the_door_and_nothing_else():
    assert set(dir(tt)) == {*tt.__all__, "__version__"}
    assert all(getattr(tt, name) for name in dir(tt))
    assert all(f"`{name}`" in (tt.__doc__ or "") for name in tt.__all__)
