"""Runs from end to end, as a person starts them."""

import csv
import json
import math
import os
import shutil
import stat
from pathlib import Path

import jax
import pytest
from dp_accounting import GaussianDpEvent
from typer.testing import CliRunner

from harness import Cut, cut_at, made_up_users, mostly_slow, quietly, tiny_recipe
from head_words import count_for_run
from taciturn.algorithms.pretraining import Schedule
from taciturn.cli import app
from taciturn.data.population import HeldOutUsers, write_population
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.files import FolderExists, from_json
from taciturn.people import open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError, load_recipe, save_recipe
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import ModelCard, params_digest, save_model
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import RunError
from taciturn.runs.loop import resume_run, train_run
from taciturn.runs.pretrain import pretrain_model
from taciturn.runs.warm_start import load_warm_start


def ftrl(noise, **privacy):
    separated = {"kind": "min-separation", "cohort": 8, "min_separation": 2}
    return {
        "algorithm": "dp-ftrl",
        "participation": separated,
        "privacy": {"noise": noise, **privacy},
    }


PLAIN = {"algorithm": "fedavg", "privacy": {"noise_multiplier": None, "clip_norm": None}}
TRANSFORMER = {
    **PLAIN,
    "model": {"kind": "transformer", "heads": 2, "units": None},
    "server": {"optimizer": "nesterov"},
}
TURNS = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "cyclic-poisson"},
    "privacy": {"bands": 3, "strategy": {"bands": [1.0, 0.5, 0.375]}},
}
SENTENCES = {"data": {"layout": "sentences", "sentence_length": 7, "sentences_per_user": 5}}


def run_cli(*arguments: str):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_train_evaluate_ledger_and_export_from_the_command_line(population, recipe, tmp_path):
    save_recipe(recipe, tmp_path / "recipe.toml")
    run = tmp_path / "my-run"
    trained = run_cli(
        "train",
        tmp_path / "recipe.toml",
        "--run",
        run,
        "--set",
        "run.rounds=4",
        "--set",
        "privacy.epsilon=50.0",
    )
    assert trained.exit_code == 0
    assert "differential privacy" in trained.output
    assert {path.name for path in run.iterdir()} == {
        "recipe.toml",
        "vocabulary.txt",
        "ledger.jsonl",
        "signature.json",
        "metrics.jsonl",
        "metrics.csv",
        "model.safetensors",
        "guarantee.txt",
        "guarantee.json",
        "report.html",
    }
    with open(run / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [0, 3, 4]
    assert {"epsilon", "rho", "accuracy_top1", "loss"} <= set(rows[0])
    assert float(rows[0]["epsilon"]) == 0 < float(rows[1]["epsilon"]) < float(rows[2]["epsilon"])

    measured = json.loads(run_cli("evaluate", run, "--json").output)
    assert measured["accuracy_top1"]["value"] == pytest.approx(float(rows[-1]["accuracy_top1"]))
    assert measured["epsilon"] == pytest.approx(float(rows[-1]["epsilon"]))
    assert "AccuracyTop1" in trained.output

    book = run_cli("ledger", "show", population.folder).output
    assert "my-run" in book
    assert "all together" in book

    # The recipe has a seed, with which anyone can remove the noise.
    export = ("export", run, "--out", tmp_path / "out")
    with pytest.raises(ExportRefused, match="add --non-private"):
        run_cli(*export)
    assert run_cli(*export, "--non-private").exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "model.safetensors",
        "ledger.jsonl",
        "signature.json",
        "vocabulary.txt",
        "guarantee.txt",
        "guarantee.json",
    }
    assert json.loads((tmp_path / "out" / "guarantee.json").read_text())["releases"] == 4


def test_two_runs_are_compared_on_the_same_held_out_users(population, vocabulary, tmp_path):
    for name, rounds in (("short", 1), ("long", 6)):
        train_run(tiny_recipe(population, run={"rounds": rounds}), tmp_path / name, quietly)
    table = run_cli("compare", tmp_path / "short", tmp_path / "long").output
    assert "B over A" in table
    assert "perplexity" in table
    # What a person is promised is not one run's ε, but that of all on them.
    assert "All 2 runs on these people together: ε = " in table
    one, other = FinishedRun(tmp_path / "short").compare(FinishedRun(tmp_path / "long"))
    loss = other.scores.change_from(one.scores, "loss")
    assert loss.value == pytest.approx(other.scores["loss"].value / one.scores["loss"].value - 1)
    same, _ = FinishedRun(tmp_path / "long").compare(FinishedRun(tmp_path / "long"))
    assert same.scores.change_from(same.scores, "accuracy_top3").margin == 0

    other_people = write_population(
        tmp_path / "others",
        made_up_users(9, 5),
        made_up_users(30, 6),
        vocabulary,
        {},
        same_people_as=population.folder,
    )
    elsewhere = FinishedRun(tmp_path / "long").evaluate(other_people.folder)
    assert elsewhere.scores.tokens.sum() == HeldOutUsers(other_people.folder).texts.tokens
    assert "of " + str(other_people.folder) in "".join(
        run_cli("evaluate", tmp_path / "long", "--data", other_people.folder).output.split("\n")
    )
    assert count_for_run(FinishedRun(tmp_path / "long")).sum(axis=1) == pytest.approx(1.0)


def test_models_are_not_measured_on_other_words_or_compared_on_other_pieces(population, tmp_path):
    train_run(tiny_recipe(population, run={"rounds": 1}), tmp_path / "unrolls", quietly)
    train_run(
        tiny_recipe(population, **SENTENCES, run={"rounds": 1}), tmp_path / "sentences", quietly
    )
    with pytest.raises(RunError, match="read text in different pieces"):
        FinishedRun(tmp_path / "unrolls").compare(FinishedRun(tmp_path / "sentences"))
    words = Vocabulary(words=(*population.vocabulary.words[:-1], "another"))
    others = write_population(
        tmp_path / "others", made_up_users(9, 5), made_up_users(3, 6), words, {}
    )
    with pytest.raises(RunError, match="has another vocabulary than"):
        FinishedRun(tmp_path / "unrolls").evaluate(others.folder)


def test_accuracy_is_smoothed_over_five_evaluations(population, tmp_path):
    train_run(
        tiny_recipe(population, **PLAIN, run={"rounds": 7, "evaluate_every": 1}),
        tmp_path / "run",
        quietly,
    )
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    last = [row["accuracy_top1"] for row in rows[-5:]]
    assert rows[-1]["accuracy_top1_smoothed"] == pytest.approx(sum(last) / 5)
    assert rows[0]["accuracy_top1_smoothed"] == rows[0]["accuracy_top1"]


def test_help_teaches_every_command():
    for command in ("data", "pretrain", "train", "evaluate", "compare", "ledger", "export", "demo"):
        assert command in run_cli("--help").output
        assert len(run_cli(command, "--help").output) > 200


@pytest.mark.parametrize("name", ["root", "vocabulary.txt", "recipe.toml"])
def test_a_run_interrupted_while_its_first_files_were_written_begins_again(
    population, tmp_path, monkeypatch, name
):
    fsync, recipe = os.fsync, tiny_recipe(population, run={"rounds": 1})

    def cut(descriptor):
        if f"/.{name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise Cut
        fsync(descriptor)

    with monkeypatch.context() as killed:
        killed.setattr(os, "fsync", cut)
        killed.setattr(shutil, "rmtree", lambda path: None)  # whoever is killed tidies nothing up
        with pytest.raises(Cut):
            train_run(recipe, tmp_path / "run", quietly)
    assert not (tmp_path / "run").exists()
    assert list(tmp_path.glob(".run.*.partial"))
    assert train_run(recipe, tmp_path / "run", quietly).guarantee.releases == 1


def test_of_two_runs_that_begin_in_one_folder_the_second_is_refused(
    population, tmp_path, monkeypatch
):
    recipe, folder, opened = (
        tiny_recipe(population, run={"rounds": 1}),
        tmp_path / "run",
        Account.open,
    )

    def meanwhile(account):
        monkeypatch.setattr(Account, "open", opened)
        with pytest.raises(FolderExists, match="exists already"):
            train_run(recipe, folder, quietly)
        opened(account)

    monkeypatch.setattr(Account, "open", meanwhile)
    assert train_run(recipe, folder, quietly).guarantee.releases == 1
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize(
    "name", ["notes.txt", "vocabulary.txt", "private/root", "private/letters.txt"]
)
def test_a_folder_with_anything_in_it_is_left_alone(population, tmp_path, name):
    """Whatever it is called: it may be all that is left of a run that has charged."""
    (tmp_path / "run" / "private").mkdir(parents=True)
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(FolderExists, match="exists already"):
        train_run(tiny_recipe(population), tmp_path / "run", quietly)
    assert (tmp_path / "run" / name).read_text() == "mine"


def test_a_run_needs_a_name(population, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FolderExists, match="has no name"):
        train_run(tiny_recipe(population), Path(), quietly)


def test_training_stops_at_the_budget_and_says_so(population, tmp_path):
    recipe = tiny_recipe(population, privacy={"epsilon": 3.0}, run={"rounds": 8})
    finished = train_run(recipe, tmp_path / "run", quietly)
    assert "all are spent" in finished.stopped
    assert 1 < finished.guarantee.releases < 8
    assert finished.guarantee.epsilon <= 3.0


def test_noise_is_worked_out_from_the_budget(population, tmp_path):
    recipe = tiny_recipe(
        population, privacy={"noise_multiplier": None, "epsilon": 0.5}
    )  # little ε, few losses to list
    finished = train_run(recipe, tmp_path / "run", quietly)
    assert finished.stopped is None
    assert finished.guarantee.releases == recipe.run.rounds
    assert 0.494 < finished.guarantee.epsilon <= 0.5


def test_a_run_that_could_not_release_anything_is_refused_before_it_starts(population, tmp_path):
    from taciturn.privacy.ledger.account import BudgetExhausted

    recipe = tiny_recipe(population, privacy={"epsilon": 0.01})
    with pytest.raises(BudgetExhausted, match="not allow a single release"):
        train_run(recipe, tmp_path / "run", quietly)
    assert not (tmp_path / "run").exists()
    assert Ledger(population.folder / "ledger.jsonl").runs() == []


@pytest.mark.parametrize(
    "sections",
    [
        {
            "algorithm": "dp-fedsgd",
            "participation": {"kind": "fixed"},
            "privacy": {"clip_norm": [[0, 0.5], [1, 0.25]]},
        },
        {
            "privacy": {
                "clipping": "per-layer",
                "greedy": True,
                "estimator": "clipped",
                "least_weight": 40.0,
            },
            "participation": {"weight_cap": 30.0},
        },
        {
            **SENTENCES,
            "model": {"kind": "cifg", "tied": True, "dropout": 0.1},
            "server": {"optimizer": "adam", "learning_rate": 0.01},
        },
        TRANSFORMER,
        *mostly_slow(
            [ftrl("tree"), ftrl("honaker")]
        ),  # with a fleet, and with a clip norm that adapts, below
        ftrl("independent"),
        ftrl("banded", strategy={"bands": [1.0, 0.5, 0.375]}),
        *mostly_slow(
            [ftrl("blt", strategy={"decay": [0.9, 0.5], "scale": [0.2, 0.2]})]
        ),  # with a restart, below
        ftrl("blt", strategy={"decay": [0.9, 0.5], "scale": [0.2, 0.2]}, restart_rounds=[1]),
        ftrl("honaker", clipping="adaptive", restart_rounds=[1], clipped_count_stddev=3.0),
        TURNS,
        {**ftrl("tree"), "fleet": {"kind": "check-in", "dropout_rate": 0.2}},
        {**ftrl("tree"), "fleet": {"kind": "queue"}, "upload": {"share": 0.1, "bits": 8}},
        {
            **PLAIN,
            "participation": {"kind": "min-separation", "min_separation": 1},
            "fleet": {"kind": "queue", "in_flight": 12},
            "model": {"kind": "deep-lstm", "dropout": 0.2},
        },
    ],
)
def test_every_kind_of_run_runs(population, tmp_path, sections):
    finished = train_run(
        tiny_recipe(population, **{**sections, "run": {"rounds": 2, "evaluate_every": 2}}),
        tmp_path / "run",
        quietly,
    )
    assert finished.guarantee.releases == 2
    assert math.isfinite(finished.scores["loss"].value)
    assert finished.guarantee.is_private == (sections.get("algorithm") != "fedavg")


def test_a_transformer_leaves_as_n_grams_only(population, tmp_path):
    finished = train_run(
        tiny_recipe(population, **TRANSFORMER, run={"rounds": 2, "evaluate_every": 2}),
        tmp_path / "run",
        quietly,
    )
    with pytest.raises(ExportRefused, match="`to=arpa`"):
        finished.export(tmp_path / "out", "js", non_private=True)


@pytest.mark.parametrize(
    "estimator", [{}, {"estimator": "clipped", "least_weight": 8.0}], ids=["fixed", "clipped"]
)
def test_a_run_of_either_estimator_without_noise_is_charged_as_one_without_privacy(
    population, tmp_path, estimator
):
    """Its twin has the least noise that there is, and is charged for that."""
    for multiplier in (0.0, 1e-3):
        recipe = tiny_recipe(
            population, privacy={"noise_multiplier": multiplier, **estimator}, run={"rounds": 1}
        )
        finished = train_run(recipe, tmp_path / f"run-{multiplier}", quietly)
        assert finished.guarantee.is_private == recipe.is_private == (multiplier > 0)
    assert finished.guarantee.epsilon > 1000


@pytest.mark.parametrize("multiplier", [0.0, -0.0, 1.0])
def test_a_run_without_noise_says_so_wherever_it_is_looked_at_also_if_it_was_interrupted(
    population, tmp_path, multiplier
):
    """Its twin has noise, and a finite ε in all of these places."""
    recipe = tiny_recipe(
        population,
        privacy={"noise_multiplier": multiplier},
        run={"rounds": 3, "save_every": 1, "seed": None},
    )
    with pytest.raises(Cut):
        train_run(recipe, tmp_path / "run", cut_at(2))
    save_recipe(recipe.with_settings("run", rounds=3), tmp_path / "again.toml")
    assert load_recipe(tmp_path / "again.toml").is_private == (multiplier > 0)
    shown = []
    finished = resume_run(
        tmp_path / "run", lambda done, all, row: shown.append((done, row["epsilon"]))
    )
    stated = from_json((finished.folder / "guarantee.json").read_text())
    rows = [
        from_json(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()
    ]
    figures = [
        finished.guarantee.epsilon,
        stated["epsilon"],
        open_ledger(population).total(1e-6)[0],
    ]
    figures += [row["epsilon"] for row in rows if row["releases"]] + [
        epsilon for done, epsilon in shown if done > 2
    ]
    assert all(math.isfinite(one) == (multiplier > 0) for one in figures)
    assert ("NO privacy guarantee (ε = ∞)" in (finished.folder / "guarantee.txt").read_text()) == (
        not multiplier
    )
    assert ("no privacy" in (finished.folder / "report.html").read_text()) == (not multiplier)
    assert stated["private"] == (multiplier > 0)
    assert stat.S_IMODE((finished.folder / "model.safetensors").stat().st_mode) == (
        0o644 if multiplier else 0o600
    )
    if multiplier:
        finished.export(tmp_path / "exported")
    else:
        with pytest.raises(ExportRefused, match="`non_private=True`"):
            finished.export(tmp_path / "exported")
        budgeted = {
            "privacy": {"noise_multiplier": None, "epsilon": 8.0},
            "model": {"warm_start": str(finished.folder)},
        }
        with pytest.raises(RecipeError, match="no privacy"):
            train_run(tiny_recipe(population, **budgeted), tmp_path / "next", quietly)


def test_an_adaptive_run_says_where_its_clip_norm_went(population, tmp_path):
    sections = ftrl(
        "tree", clipping="adaptive", restart_rounds=[2, 4], clipped_count_stddev=1.0, clip_norm=0.01
    )
    finished = train_run(
        tiny_recipe(population, **sections, run={"evaluate_every": 1}), tmp_path / "run", quietly
    )
    with open(tmp_path / "run" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    norms = [float(row["clip_norm"]) for row in rows]
    assert norms[0] == norms[1] == pytest.approx(0.01)
    assert norms[2] == norms[3] != norms[4] == norms[5]
    assert [float(rows[n]["clip_estimate"]) for n in (2, 4)] == [norms[2], norms[4]]
    assert "how many updates were within the clip norm" in finished.guarantee.claim
    assert "Clip norm: the estimate it follows" in (tmp_path / "run" / "report.html").read_text()


def test_a_fleet_that_comes_and_goes_trains_and_says_what_happened(population, tmp_path):
    sections = {
        **ftrl("tree"),
        "fleet": {"kind": "check-in", "dropout_rate": 0.2, "timer_hours": 5.0},
    }
    train_run(tiny_recipe(population, **sections), tmp_path / "run", quietly)
    statement = (tmp_path / "run" / "guarantee.txt").read_text()
    assert "simulated days" in " ".join(statement.split())
    assert "failed rounds" in " ".join(statement.split())


def test_who_took_part_stays_a_secret_where_the_claim_rests_on_it(population, tmp_path):
    finished = train_run(
        tiny_recipe(population, **TURNS, run={"rounds": 2, "evaluate_every": 2}),
        tmp_path / "run",
        quietly,
    )
    words = " ".join((tmp_path / "run" / "guarantee.txt").read_text().split())
    assert "Observed" not in words
    assert "one Gaussian mechanism over the whole run" not in words
    assert "a user has a turn every 3 rounds" in finished.guarantee.claim
    wrong = {**TURNS, "privacy": {"bands": 2, "strategy": {"bands": [1.0, 0.5, 0.375]}}}
    with pytest.raises(RecipeError, match="sampling proves nothing"):
        train_run(tiny_recipe(population, **wrong), tmp_path / "wrong", quietly)


def test_a_fleet_of_too_few_devices_stops_with_a_sentence(population, recipe, tmp_path):
    crowd = {"kind": "min-separation", "cohort": 34, "min_separation": 0}
    slow = {
        **ftrl("tree"),
        "participation": crowd,
        "fleet": {"kind": "check-in"},
    }  # 45 of 50 are asked, and never all there
    save_recipe(tiny_recipe(population, **slow), tmp_path / "recipe.toml")
    stopped = run_cli("train", tmp_path / "recipe.toml", "--run", tmp_path / "run")
    assert stopped.exit_code == 0
    assert "smaller cohorts" in " ".join(stopped.output.split())
    assert (tmp_path / "run" / "guarantee.txt").exists()


def test_without_noise_training_learns_what_the_users_have_in_common(population, tmp_path):
    recipe = tiny_recipe(population, **PLAIN, run={"rounds": 30, "evaluate_every": 30})
    finished = train_run(recipe, tmp_path / "run", quietly)
    assert finished.scores["loss"].value < finished.before["loss"].value - 0.5


def test_a_warm_start_from_public_text_costs_nothing_and_is_named(population, vocabulary, tmp_path):
    corpus = PublicCorpus.of(["word1 word2 word3 word4. " * 200] * 4, vocabulary, "a public book")
    recipe = tiny_recipe(population, model={"warm_start": str(tmp_path / "start")})
    pretrain_model(corpus, recipe.model, Schedule(epochs=1), tmp_path / "start", quietly)
    finished = train_run(recipe, tmp_path / "run", quietly)
    assert finished.guarantee.epsilon < 20
    assert "a public book" in (tmp_path / "run" / "guarantee.txt").read_text()


def test_public_parameters_stay_public_whoever_tried_them_before(population, tmp_path):
    recipe = tiny_recipe(
        population, model={"warm_start": str(tmp_path / "start")}, run={"seed": None}
    )
    params = build.language_model(recipe.model, len(population.vocabulary)).init(jax.random.key(0))
    architecture = recipe.model.model_dump(mode="json", exclude={"warm_start"})
    card = ModelCard(
        architecture=architecture,
        vocabulary=population.vocabulary.words,
        text=population.vocabulary.about,
        public_sources=("a book",),
    )
    (tmp_path / "start").mkdir()
    save_model(tmp_path / "start" / "model.safetensors", params, card)
    ledger = open_ledger(population)
    terms = RunTerms(
        name="tried",
        recipe="recipe",
        population=population.id,
        adjacency="add or remove one user",
        randomness="seeded simulation",
        accountant="pld",
        budget=Budget(delta=1e-6),
        rounds=5,
        distance=1e-20,
    )
    tried = Account(ledger=ledger, terms=terms, release=GaussianDpEvent(1.0))
    tried.open()
    tried.record_model(0, params_digest(params))
    found = load_warm_start(recipe, population.vocabulary, ledger)
    assert found is not None
    assert (found.lineage, found.distance, found.seeded) == ((), 0.0, False)
    tried.charge(0, "record")  # the twin: what it released is no longer public
    tried.record_model(1, params_digest(params))
    found = load_warm_start(recipe, population.vocabulary, ledger)
    assert found is not None
    assert found.seeded
    assert (len(found.lineage), found.distance) == (1, 1e-20)


def test_a_warm_start_from_an_earlier_run_counts_its_cost(population, recipe, tmp_path):
    first = train_run(recipe, tmp_path / "first", quietly)
    second = train_run(
        tiny_recipe(population, model={"warm_start": str(tmp_path / "first")}),
        tmp_path / "second",
        quietly,
    )
    assert second.guarantee.epsilon > first.guarantee.epsilon
    assert second.guarantee.rho == pytest.approx(2 * first.guarantee.rho)


def test_a_warm_start_that_does_not_fit_is_refused_in_a_sentence(population, recipe, tmp_path):
    train_run(recipe, tmp_path / "first", quietly)
    with pytest.raises(RecipeError, match="its width is 8, not 16"):
        train_run(
            tiny_recipe(population, model={"width": 16, "warm_start": str(tmp_path / "first")}),
            tmp_path / "second",
            quietly,
        )


def test_other_users_words_are_refused_as_a_warm_start(population, vocabulary, recipe, tmp_path):
    from taciturn.data.vocabulary import Vocabulary

    train_run(recipe, tmp_path / "first", quietly)
    others = Vocabulary(words=(*vocabulary.words[:-1], "another"))
    elsewhere = write_population(
        tmp_path / "elsewhere", made_up_users(50, seed=2), made_up_users(12, seed=3), others, {}
    )
    with pytest.raises(RecipeError, match="other words"):
        train_run(
            tiny_recipe(elsewhere, model={"warm_start": str(tmp_path / "first")}),
            tmp_path / "second",
            quietly,
        )


def test_two_runs_without_a_seed_differ(population, tmp_path):
    recipe: Recipe = tiny_recipe(population, run={"seed": None, "rounds": 1})
    one = train_run(recipe, tmp_path / "one", quietly)
    two = train_run(recipe, tmp_path / "two", quietly)
    assert not jax.numpy.allclose(one.params["embedding"], two.params["embedding"])
    assert one.guarantee.randomness == "operating system"


def test_users_without_anyone_to_measure_with_are_refused_before_anything_is_declared(
    vocabulary, tmp_path
):
    alone = write_population(tmp_path / "alone", made_up_users(50), {}, vocabulary, {})
    with pytest.raises(DataError, match="held-out users"):
        train_run(tiny_recipe(alone), tmp_path / "run", quietly)
    assert not (tmp_path / "run").exists()
    assert Ledger(alone.folder / "ledger.jsonl").runs() == []


def test_nothing_private_can_come_from_a_model_without_privacy(population, tmp_path):
    train_run(tiny_recipe(population, **PLAIN, run={"rounds": 1}), tmp_path / "twin", quietly)
    wishful = tiny_recipe(
        population, privacy={"epsilon": 8.0}, model={"warm_start": str(tmp_path / "twin")}
    )
    with pytest.raises(RecipeError, match="warm_start has no privacy"):
        train_run(wishful, tmp_path / "run", quietly)
