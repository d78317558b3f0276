"""A sweep on public text: who the made-up users are, what is tried, and how it goes on."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import WORDS, made_up_users, tiny_recipe
from stated_deltas import bare_in_output
from taciturn.cli import app
from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.errors import TaciturnError
from taciturn.recipe.text import RecipeError, save_recipe
from taciturn.runs import tuning
from taciturn.runs.tuning import _size_for, combine_settings, deal_text


@pytest.fixture
def public(tmp_path, vocabulary):
    documents = made_up_users(200, seed=5, least=40).values()
    PublicCorpus(Texts.of(documents, WORDS), vocabulary, "made-up text").save(tmp_path / "public")
    return tmp_path / "public"


def tune(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)], catch_exceptions=False)


def test_public_text_is_dealt_to_as_many_users_as_the_recipe_has_and_to_no_two_of_them(
    public, population, tmp_path
):
    corpus = PublicCorpus.load(public)
    made = deal_text(corpus, tmp_path / "dealt", _size_for(corpus, tiny_recipe(population)))
    held_out = HeldOutUsers(made.folder)
    assert len(made) == 50
    assert {len(text) for text in made.texts} == {60}
    dealt = sorted(
        word for texts in (made.texts, held_out.texts) for text in texts for word in text
    )
    words = [word for document in corpus.documents for word in document]
    assert dealt == sorted(words[: len(dealt)])
    assert made.manifest["about"]["simulated"].startswith("pieces of public text")


def test_too_little_text_for_the_number_of_users_is_refused(public, population, tmp_path):
    with pytest.raises(
        RecipeError,
        match=r"of 5,000 users each would get 1, and 50 are the least. Take more public text",
    ):
        _size_for(
            PublicCorpus.load(public), tiny_recipe(population, participation={"users": 5_000})
        )


@pytest.mark.parametrize(
    "wrong", ["server.learning_rate", "server.learning_rate=", "server.learning_rate=1,,2"]
)
def test_what_is_not_a_list_of_values_is_refused(wrong):
    with pytest.raises(RecipeError, match=r"`tries` takes section.key=value,value"):
        combine_settings([wrong])


def test_the_command_tries_everything_once_charges_nobody_and_names_the_best(
    public, population, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe(
        population,
        algorithm="fedavg",
        privacy={"noise_multiplier": None},
        run={"rounds": 2, "evaluate_every": 1},
    )
    save_recipe(recipe, tmp_path / "recipe.toml")
    arguments = (
        "recipe.toml",
        "--on",
        public,
        "--try",
        "server.learning_rate=1.0,0.0001",
        "--out",
        "sweep",
    )
    said = tune(*arguments)
    assert said.exit_code == 0
    assert "taciturn train recipe.toml --set server.learning_rate=1.0" in said.output
    assert bare_in_output(said.output) == []
    assert not (population.folder / "ledger.jsonl").exists()
    assert len(list((tmp_path / "sweep").glob("made-up-users-*/ledger.jsonl"))) == 1
    monkeypatch.setattr(tuning, "train_run", None)  # both are there already
    assert tune(*arguments).output.splitlines()[-6:] == said.output.splitlines()[-6:]


@pytest.mark.parametrize("changed", ["recipe", "text", "users"])
def test_what_was_tried_under_other_terms_is_not_taken_for_it(
    public, population, tmp_path, monkeypatch, changed, vocabulary
):
    """Nor are people beside it taken for made-up ones."""
    monkeypatch.chdir(tmp_path)
    trained = []

    def noted(recipe, folder, show):
        trained.append((recipe, Population(Path(recipe.data.population)).id))
        (folder / "guarantee.json").parent.mkdir()
        (folder / "guarantee.json").touch()
        (folder / "metrics.jsonl").write_text(
            '{"accuracy_top1": 0.1, "accuracy_top3": 0.2, "epsilon": 1.0}\n'
        )

    monkeypatch.setattr(tuning, "train_run", noted)
    save_recipe(tiny_recipe(population), tmp_path / "recipe.toml")
    arguments = ["recipe.toml", "--on", public, "--try", "server.learning_rate=1.0", "--out", "."]
    tune(*arguments)
    tune(*arguments)
    assert len(trained) == 1
    terms = {
        "recipe": {"run": {"rounds": 5}},
        "users": {"participation": {"users": 45}},
        "text": {},
    }[changed]
    save_recipe(tiny_recipe(population, **terms), tmp_path / "recipe.toml")
    if changed == "text":
        other = PublicCorpus(
            Texts.of(made_up_users(200, seed=6, least=40).values(), WORDS), vocabulary, "other text"
        )
        other.save(tmp_path / "other")
        arguments[2] = tmp_path / "other"
    tune(*arguments)
    assert len(trained) == 2
    assert population.id not in {id for _, id in trained}
    assert (trained[0][1] == trained[1][1]) == (changed == "recipe")


def test_whose_text_it_is_cannot_be_tried():
    with pytest.raises(RecipeError, match="public text takes the population's place"):
        combine_settings(["data.population=a,b"])


def test_an_unknown_setting_ends_a_sweep_before_it_begins(
    public, population, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    save_recipe(tiny_recipe(population), tmp_path / "recipe.toml")
    with pytest.raises(TaciturnError, match="did you mean learning_rate"):
        tune("recipe.toml", "--on", public, "--try", "server.learning_rates=1,2", "--out", "sweep")
    assert not (tmp_path / "sweep").exists()


def test_settings_hold_in_all_trials_and_in_the_command_that_trains_with_the_best(
    public, population, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    trained = []

    def noted(recipe, folder, show):
        trained.append(recipe)
        (folder / "guarantee.json").parent.mkdir()
        (folder / "guarantee.json").touch()
        (folder / "metrics.jsonl").write_text(
            '{"accuracy_top1": 0.1, "accuracy_top3": 0.2, "epsilon": 1.0, "delta": 1e-4}\n'
        )

    monkeypatch.setattr(tuning, "train_run", noted)
    save_recipe(tiny_recipe(population), tmp_path / "recipe.toml")
    sweep = ("recipe.toml", "--on", public, "--out", "sweep", "--set", "run.rounds=3")
    said = tune(*sweep, "--try", "server.learning_rate=1.0,0.5")
    assert [recipe.run.rounds for recipe in trained] == [3, 3]
    assert [recipe.server.learning_rate for recipe in trained] == [1.0, 0.5]
    best = "recipe.toml --set run.rounds=3 --set server.learning_rate="
    assert best in " ".join(said.output.split())
    refused = CliRunner().invoke(app, ["tune", *map(str, sweep), "--try", "run.rounds=5"])
    assert "run.rounds stands in --set and in --try" in str(refused.exception)
    people = ["tune", *map(str, sweep), "--set", "data.population=b", "--try", "run.save_every=2"]
    refused = CliRunner().invoke(app, people)
    assert "--set data.population: public text takes" in str(refused.exception)
    assert len(trained) == 2
