"""Noise that comes from a seed can be removed by anyone who knows the seed: on people such a run
costs ε = ∞ in every total, budget and export, does not start under a budget, and leaves by name
alone. The attack that shows why is here too.
"""

import json
import math
import shutil
from dataclasses import replace
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from typer.testing import CliRunner

from harness import Cut, cut_at, lettered_words, made_up_users, quietly, short_recipe
from taciturn import randomness, trees
from taciturn.cli import app
from taciturn.core import END
from taciturn.data.population import write_population
from taciturn.names import ExportFormat
from taciturn.people import open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.accounting.events import event_to_json
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger import account as account_module
from taciturn.privacy.ledger import run_rows as rows_module
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import Ledger, LedgerError
from taciturn.privacy.ledger.ledger_export import events_for_others
from taciturn.privacy.ledger.population_budget import PopulationBudget
from taciturn.privacy.noise.chacha20 import key_words
from taciturn.recipe import build
from taciturn.recipe.text import load_recipe
from taciturn.release.gate import ExportRefused, check_may_leave
from taciturn.release.model_file import load_model
from taciturn.runs.loop import resume_run, train_run

SEEDED = "seeded simulation"
SECRET = "operating system"
PEOPLE = "one user"
MADE_UP = "one simulated user (pieces of a book play the users)"
DELTA = 1e-6


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def people(tmp_path):
    return write_population(
        tmp_path / "people", made_up_users(50), made_up_users(12, seed=1), lettered_words(), {}
    )


def account(path, randomness=SEEDED, unit=PEOPLE, name="run") -> Account:
    terms = RunTerms(
        name=name,
        recipe="recipe",
        population="text",
        adjacency="add or remove one user",
        randomness=randomness,
        accountant="pld",
        budget=Budget(delta=DELTA),
        rounds=5,
        unit=unit,
    )
    release = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))
    return Account(ledger=Ledger(path), terms=terms, release=release)


def spent(path, randomness=SEEDED, unit=PEOPLE, name="run") -> Account:
    made = account(path, randomness, unit, name)
    made.open()
    made.charge(0, "record")
    return made


def with_budget(path) -> Ledger:
    book = Ledger(path)
    book.set_budget(PopulationBudget(epsilon=15.0, delta=DELTA))
    return book


# Of these, anyone can remove the noise of the first alone.
KINDS = [(SEEDED, PEOPLE), (SECRET, PEOPLE), (SEEDED, MADE_UP), (SECRET, MADE_UP)]
KNOWN = {kind: kind == (SEEDED, PEOPLE) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_only_noise_from_a_seed_on_people_costs_infinity_in_totals(path, kind):
    guarantee = spent(path, *kind).guarantee()
    book = Ledger(path)
    ((_, of_adjacency, _),) = book.totals(DELTA)
    for epsilon in (*book.total(DELTA), of_adjacency, *guarantee.counted_spending):
        assert (epsilon == math.inf) == KNOWN[kind]
    # Its own guarantee describes the mechanism, and says whether it is one.
    assert guarantee.epsilon < 1
    assert guarantee.is_noise_known == KNOWN[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_seeded_run_on_people_does_not_start_under_a_budget(path, kind):
    before = with_budget(path).rows
    if KNOWN[kind]:
        for start in (account(path, *kind).open, account(path, *kind).check_budget):
            with pytest.raises(LedgerError, match=r"takes its noise from a seed.*Leave out"):
                start()
        assert Ledger(path).rows == before
    else:
        account(path, *kind).open()


@pytest.mark.parametrize("kind", KINDS)
def test_no_budget_is_set_over_a_seeded_run_on_people(path, kind):
    spent(path, *kind).close()
    if KNOWN[kind]:
        with pytest.raises(LedgerError, match="noise came from a seed"):
            with_budget(path)
    else:
        with_budget(path)


@pytest.mark.parametrize("releases", [0, 1])
def test_a_seeded_run_that_an_older_version_opened_under_a_budget_counts_as_infinity(
    path, monkeypatch, releases
):
    """It may end if it has released something: that cannot be undone. Nothing else starts."""
    with_budget(path)
    with monkeypatch.context() as patch:
        patch.setattr(account_module, "is_noise_known", lambda *_: False)
        patch.setattr(rows_module, "is_noise_known", lambda *_: False)
        opened = account(path)
        opened.open()
        for round in range(releases):
            opened.charge(round, "record")
    rows = Ledger(path).rows
    again = account(path)
    if releases:
        again.reopen(None)
        again.charge(releases, "record")
        assert Ledger(path).total(DELTA).epsilon == math.inf
    else:
        with pytest.raises(LedgerError, match="takes its noise from a seed"):
            again.reopen(None)
        assert Ledger(path).rows == rows
    with pytest.raises(LedgerError, match="noise came from a seed"):
        account(path, SECRET, name="other").open()


@pytest.mark.parametrize("kind", KINDS)
def test_others_who_recompute_epsilon_from_the_export_get_infinity(path, kind):
    spent(path, *kind)
    (row,) = events_for_others(Ledger(path))
    assert (row["event"] == {"class_name": "NonPrivateDpEvent"}) == KNOWN[kind]
    assert (row["epsilon"] == math.inf) == KNOWN[kind]
    assert row["noise_is_known"] == KNOWN[kind]
    assert (row["randomness"], row["unit"]) == kind


def test_what_a_seeded_run_started_from_is_no_cheaper_in_the_export(path):
    opened = account(path)
    opened.terms = replace(opened.terms, lineage=(GaussianDpEvent(5.0),))
    opened.open()
    (row,) = events_for_others(Ledger(path))
    assert row["event"] == {"class_name": "NonPrivateDpEvent"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_runs_says_whose_noise_is_known(path, kind):
    spent(path, *kind)
    shown = CliRunner().invoke(app, ["ledger", "show", str(path)]).output
    assert ("noise from a seed" in shown) == KNOWN[kind]
    assert ("can remove it, so such a run" in " ".join(shown.split())) == KNOWN[kind]
    assert ("∞" in shown.split("All runs")[0]) == KNOWN[kind]
    content = json.loads(CliRunner().invoke(app, ["ledger", "show", str(path), "--json"]).stdout)
    (run,) = content["runs"]
    for figures in (run, content["total"]):
        assert (figures["epsilon"] == figures["rho"] == "infinity") == KNOWN[kind]
    assert run["noise_is_known"] == KNOWN[kind]
    assert run["randomness"] == kind[0]


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_model_with_known_noise_on_people_needs_to_be_named_non_private(path, kind):
    guarantee = spent(path, *kind).guarantee()
    check_may_leave(guarantee, non_private=True)
    if KNOWN[kind]:
        with pytest.raises(ExportRefused, match="came from a seed"):
            check_may_leave(guarantee, non_private=False)
    else:
        check_may_leave(guarantee, non_private=False)


# --- whole runs -----------------------------------------------------------------------------------


def test_a_recipe_with_a_seed_is_refused_under_a_budget_before_anything_is_drawn(
    people, tmp_path, monkeypatch
):
    book = open_ledger(people)
    book.set_budget(PopulationBudget(epsilon=15.0, delta=DELTA))
    rows = book.rows
    asked = []
    monkeypatch.setattr(Curator, "private_mean", lambda *_: asked.append(1))
    with pytest.raises(LedgerError, match=r"Leave out \[run\] seed"):
        train_run(short_recipe(people, run={"seed": 1}), tmp_path / "run", quietly)
    assert not asked
    assert not (tmp_path / "run").exists()
    assert open_ledger(people).rows == rows


def test_a_run_without_a_seed_starts_under_the_same_budget(people, tmp_path):
    """The twin."""
    open_ledger(people).set_budget(PopulationBudget(epsilon=15.0, delta=DELTA))
    assert train_run(short_recipe(people), tmp_path / "run", quietly).guarantee.releases == 1


def test_what_starts_from_a_seeded_model_is_refused_under_a_budget_too(people, tmp_path):
    train_run(short_recipe(people, run={"seed": 1}), tmp_path / "seeded", quietly)
    book = open_ledger(people)
    # As an older version would have allowed.
    book.append({"kind": "budget", "epsilon": 15.0, "delta": DELTA})
    recipe = short_recipe(people, model={"warm_start": str(tmp_path / "seeded")})
    with pytest.raises(LedgerError, match="starts from a model that did"):
        train_run(recipe, tmp_path / "after", quietly)


@pytest.fixture
def pieces(people, tmp_path):
    """Pieces of a book, which play the users, beside the same ledger."""
    text = {"simulated": "pieces of a book play the users"}
    open_ledger(people)
    return write_population(
        tmp_path / "pieces",
        made_up_users(50, seed=2),
        made_up_users(12, seed=3),
        lettered_words(),
        text,
        same_people_as=people.folder,
    )


@pytest.mark.parametrize("seed", [1, None])
def test_simulated_users_do_not_launder_a_model_of_people(people, pieces, tmp_path, seed):
    train_run(short_recipe(people, run={"seed": seed}), tmp_path / "first", quietly)
    recipe = short_recipe(pieces, model={"warm_start": str(tmp_path / "first")})
    run = train_run(recipe, tmp_path / "after", quietly)
    assert run.guarantee.unit == PEOPLE
    if seed is None:
        run.export(tmp_path / "out")
    else:
        with pytest.raises(ExportRefused, match="came from a seed"):
            run.export(tmp_path / "out")


def test_what_starts_from_seeded_simulated_users_has_secret_noise_of_its_own(
    people, pieces, tmp_path
):
    """The twin: nobody is beneath the noise that can be removed."""
    train_run(short_recipe(pieces, run={"seed": 1}), tmp_path / "first", quietly)
    open_ledger(people).set_budget(PopulationBudget(epsilon=15.0, delta=DELTA))
    recipe = short_recipe(people, model={"warm_start": str(tmp_path / "first")})
    run = train_run(recipe, tmp_path / "after", quietly)
    assert (run.guarantee.unit, run.guarantee.randomness) == (PEOPLE, SECRET)
    assert run.guarantee.continued
    run.export(tmp_path / "out")


def test_an_interrupted_seeded_run_is_not_resumed_under_a_budget(people, tmp_path):
    with pytest.raises(Cut):
        train_run(short_recipe(people, run={"seed": 1}), tmp_path / "run", cut_at(0))
    open_ledger(people).append({"kind": "budget", "epsilon": 15.0, "delta": DELTA})
    rows = open_ledger(people).rows
    with pytest.raises(LedgerError, match="takes its noise from a seed"):
        resume_run(tmp_path / "run", quietly)
    assert open_ledger(people).rows == rows


@pytest.mark.parametrize("to", get_args(ExportFormat))
def test_a_seeded_run_on_people_leaves_in_no_format_unless_asked_for(people, tmp_path, to):
    run = train_run(short_recipe(people, run={"seed": 1}), tmp_path / "run", quietly)
    with pytest.raises(ExportRefused, match="came from a seed"):
        run.export(tmp_path / "out", to)
    assert not (tmp_path / "out").exists()
    if to == "model":
        run.export(tmp_path / "out", to, non_private=True)
        assert "SIMULATION" in (tmp_path / "out" / "guarantee.txt").read_text()


@pytest.mark.parametrize("seed", [1, None])
def test_an_export_prints_infinity_where_the_noise_came_from_a_seed(people, tmp_path, seed):
    train_run(short_recipe(people, run={"seed": seed}), tmp_path / "run", quietly)
    words = ["export", str(tmp_path / "run"), "--to", "model", "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, [*words, "--non-private"]).output
    assert ("ε = ∞, as its noise came from a seed" in " ".join(said.split())) == (seed == 1)


def test_only_the_owner_reads_a_model_whose_noise_is_known(people, tmp_path):
    for seed, mode in ((1, 0o600), (None, 0o644)):
        folder = tmp_path / f"{seed}"
        train_run(short_recipe(people, run={"seed": seed}), folder, quietly)
        assert (folder / "model.safetensors").stat().st_mode & 0o777 == mode


# --- why ------------------------------------------------------------------------------------------


def words_named_by_published_files(folder, seed) -> set[int]:
    """From a recipe and two models: subtract the noise that a seed gives, and see what is left."""
    recipe = load_recipe(folder / "recipe.toml")
    before, _ = load_model(folder / "0.safetensors")
    after, card = load_model(folder / "1.safetensors")
    algorithm = build.algorithm(recipe, len(card.vocabulary))
    mechanism = algorithm.mechanism
    cost = json.dumps(event_to_json(mechanism.event(algorithm.participation)))
    root = randomness.root_from_seed(seed)
    bound_root = randomness.derive(root, f"run {recipe.fingerprint} {cost}", 0)
    key = key_words(randomness.derive(bound_root, "noise -0", 0))
    params = jax.tree.map(jnp.asarray, before)
    state = mechanism.init(params)
    report = jax.eval_shape(
        lambda: mechanism.bound(mechanism.public(state), params, jnp.float32(0), jax.random.key(0))
    )
    noise, _ = jax.jit(mechanism.release)(state, trees.zeros_like(report), key)
    added = recipe.server.learning_rate * np.asarray(noise.estimate["embedding"], np.float64)
    moved = np.asarray(after["embedding"], np.float64) - np.asarray(before["embedding"], np.float64)
    left = np.abs(moved - added).max(axis=1)
    named = np.flatnonzero(left > 1e-4 * np.abs(added).mean())
    return {word for word in named.tolist() if word > END}


@pytest.mark.parametrize("seed", [12345, None])
def test_a_seed_gives_away_who_typed_what_at_any_epsilon(tmp_path, seed):
    """The attack; without a seed (the twin that must fail) the same subtraction shows nothing."""
    typed = {10, 11, 12, 17, 23}
    text = {f"user {n}": [word for word in typed for _ in range(4)] for n in range(10)}
    people = write_population(
        tmp_path / "people", text, made_up_users(12, seed=1), lettered_words(), {}
    )
    recipe = short_recipe(
        people,
        model={"tied": False},
        server={"optimizer": "sgd", "learning_rate": 0.05, "momentum": None},
        participation={"users": 12, "cohort": 12},
        privacy={"noise_multiplier": 20.0, "delta": DELTA},
        run={"seed": seed},
    )
    run = tmp_path / "run"

    def keep_what_is_published(done, *_):
        shutil.copy(run / "model.safetensors", tmp_path / f"{done}.safetensors")

    guarantee = train_run(recipe, run, keep_what_is_published).guarantee
    assert guarantee.epsilon < 0.5
    shutil.copy(run / "recipe.toml", tmp_path)
    named = words_named_by_published_files(tmp_path, 12345)
    assert (named == typed) == (seed is not None)
    assert (open_ledger(people).total(DELTA).epsilon == math.inf) == (seed is not None)
