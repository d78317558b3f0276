"""Canaries in a run: the model meets them, people's claim does not change, and a run that is cut
off goes on with the same ones.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import Cut, cut_at, mostly_slow, quietly, small_population, tiny_recipe
from taciturn.audit.canaries import load_canaries
from taciturn.cli.audit import audit
from taciturn.core import BEGIN
from taciturn.data.public import PublicCorpus
from taciturn.models import losses
from taciturn.recipe import build
from taciturn.recipe.text import RecipeError
from taciturn.release.model_file import load_model
from taciturn.runs.folder import RunError, recipe_of
from taciturn.runs.loop import resume_run, train_run

ROUNDS = 30  # after 25 the canary of six users is the first of 2000, whatever the seed
LEARNING_MUCH = {
    "algorithm": "fedavg",
    "data": {"tokens_per_user": 120},
    "local": {"learning_rate": 2.0, "epochs": 3},
    "server": {"optimizer": "sgd", "learning_rate": 1.0, "momentum": None},
    "privacy": {"noise_multiplier": None, "clip_norm": None},
    "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS, "save_every": ROUNDS},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory, vocabulary):
    words, folder = vocabulary.words, tmp_path_factory.mktemp("text") / "sentences"
    texts = [
        " ".join(words[16 + n % 20] for n in range(start, start + 9)) + " ." for start in range(30)
    ]
    PublicCorpus.of(texts, vocabulary, "made-up sentences").save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, vocabulary, text):
    """Trained once, each in a population of its own: `taught` much, and the two algorithms without
    canaries (`plain`) and with them.
    """

    @functools.cache
    def trained(kind):
        folder = tmp_path_factory.mktemp("runs")
        population = small_population(folder / "population", vocabulary)
        return train_run(tiny_recipe(population, **RUNS[kind](text)), folder / "run", quietly)

    return trained


def canaries(text, **settings):
    return {
        "text": text,
        "users": [1, 6],
        "copies": [1, 8],
        "per_cell": 1,
        "sentences": 10,
        **settings,
    }


FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "privacy": {"noise": "tree"},
}
RUNS = {
    "taught": lambda text: LEARNING_MUCH | {"canaries": canaries(text, rate=1.0)},
    "plain dp-fedavg": lambda text: {},
    "plain dp-ftrl": lambda text: FTRL,
    "planted dp-fedavg": lambda text: {"canaries": canaries(text)},
    "planted dp-ftrl": lambda text: FTRL | {"canaries": canaries(text)},
}


def loss_of(params, recipe, words) -> float:
    model = build.language_model(recipe.model, 40)
    return float(losses.cross_entropy(model, params, jnp.array([[BEGIN, *words]])))


def test_a_canary_that_many_users_share_is_learned_and_one_that_nobody_has_is_not(runs, vocabulary):
    finished = runs("taught")
    recipe = recipe_of(finished.folder)
    found = {
        (one.users, one.copies): one
        for one in load_canaries(finished.folder / "canaries.json", vocabulary)
    }
    shared = loss_of(finished.params, recipe, found[6, 8].words)
    generator = np.random.default_rng(0)
    others = [
        loss_of(finished.params, recipe, generator.choice(np.arange(14, 40), 5)) for _ in range(50)
    ]
    assert shared < min(others)
    assert loss_of(finished.params, recipe, found[1, 1].words) > shared
    said = " ".join((finished.folder / "guarantee.txt").read_text().split())
    assert "the text of 14 synthetic users" in said


@pytest.mark.parametrize("algorithm", mostly_slow(["dp-fedavg", "dp-ftrl"], "dp-fedavg"))
def test_the_claim_about_people_is_what_it_is_without_them(runs, algorithm):
    plain, planted = runs(f"plain {algorithm}"), runs(f"planted {algorithm}")
    assert planted.guarantee.rho == plain.guarantee.rho
    assert planted.guarantee.epsilon == plain.guarantee.epsilon
    assert planted.guarantee.releases == plain.guarantee.releases
    assert not np.array_equal(*(jax.tree.leaves(one.params)[0] for one in (plain, planted)))
    assert not (plain.folder / "canaries.json").exists()


def test_a_total_has_room_for_their_reports(population, text):
    without, with_them = (
        build.algorithm(tiny_recipe(population, canaries=settings), 40).mechanism.most_reports
        for settings in ({}, canaries(text))
    )
    assert with_them == without + 14


def test_an_interrupted_run_resumes_with_the_same_canaries(population, text, runs, tmp_path):
    whole, cut = runs("planted dp-fedavg").folder, tmp_path / "run"
    with pytest.raises(Cut):
        train_run(tiny_recipe(population, canaries=canaries(text)), cut, cut_at(3))
    resume_run(cut, quietly)
    assert (cut / "canaries.json").read_text() == (whole / "canaries.json").read_text()
    one, other = (jax.tree.leaves(load_model(folder)[0]) for folder in (whole, cut))
    assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def test_what_cannot_be_planted_is_refused(population, text, tmp_path, vocabulary):
    with pytest.raises(RecipeError, match="do not fit into 10 sentences"):
        tiny_recipe(population, canaries=canaries(text, copies=[11]))
    other = type(vocabulary)(words=(*vocabulary.words[:-1], "another"))
    PublicCorpus.of(["word1 word2."], other, "other").save(tmp_path / "other")
    with pytest.raises(RecipeError, match="other words than the population"):
        train_run(
            tiny_recipe(population, canaries=canaries(str(tmp_path / "other"))),
            tmp_path / "run",
            quietly,
        )
    assert not (tmp_path / "run").exists()


def test_an_audit_finds_what_many_users_share_and_says_what_the_model_is_worth(runs, capsys):
    run = runs("taught").folder
    said, status = audit(run, references=2000)
    assert status == 0
    ranks = {(one["users"], one["copies"]): one for one in said["canaries"]}
    assert ranks[6, 8]["rank"] <= 5
    assert ranks[6, 8]["beam_search"] is not None
    assert said["epsilon"] == math.inf
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 / 1" in shown
    assert "AccuracyTop1" in shown


def test_an_untrained_model_remembers_nothing(population, text, tmp_path):
    """The twin: the same canaries in a training that teaches next to nothing."""
    recipe = tiny_recipe(
        population,
        algorithm="fedavg",
        local={"learning_rate": 1e-6},
        privacy={"noise_multiplier": None, "clip_norm": None},
        canaries=canaries(text, per_cell=3),
        run={"rounds": 1, "evaluate_every": 1},
    )
    train_run(recipe, tmp_path / "run", quietly)
    said, _ = audit(tmp_path / "run", references=2000)
    ranks = [one["rank"] for one in said["canaries"]]
    assert np.median(ranks) > 200


def test_a_run_without_canaries_says_how_to_plant_some(runs):
    with pytest.raises(RunError, match="has neither audit users nor canaries"):
        audit(runs("plain dp-fedavg").folder)
