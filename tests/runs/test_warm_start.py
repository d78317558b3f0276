"""A run that starts from another model carries what that cost, whatever the file says of itself."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from harness import (
    Cut,
    copied_population,
    cut_at,
    made_up_users,
    quietly,
    short_recipe,
    small_population,
    tiny_recipe,
    trained,
)
from pages import changed_card
from taciturn.data.population import Population, write_population
from taciturn.data.vocabulary import DataError
from taciturn.people import open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.accounting.events import event_from_json, repeat
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.recipe import build
from taciturn.recipe.text import RecipeError, save_recipe
from taciturn.release.model_file import ModelCard, load_model, params_digest, save_model
from taciturn.runs import finished, loop, run
from taciturn.runs.finished import FinishedRun
from taciturn.runs.warm_start import load_warm_start


def test_a_warm_start_is_asked_of_the_ledger_by_its_parameters_not_by_what_it_says(
    finished_runs, tmp_path
):
    params, card = load_model(finished_runs / "private")
    save_model(tmp_path / "model.safetensors", params, replace(card, run=None, ledger_head=None))
    disguised = short_recipe(
        Population(finished_runs / "people"), model={"warm_start": str(tmp_path)}
    )
    assert run.Run(tmp_path / "next", disguised, bytes(32)).account.terms.lineage != ()


def test_a_warm_start_of_unknown_parameters_under_a_runs_name_is_refused(finished_runs, tmp_path):
    params, card = load_model(finished_runs / "private")
    save_model(tmp_path / "model.safetensors", jax.tree.map(lambda leaf: leaf + 1.0, params), card)
    disguised = short_recipe(
        Population(finished_runs / "people"), model={"warm_start": str(tmp_path)}
    )
    with pytest.raises(RecipeError, match="no ledger knows"):
        run.Run(tmp_path / "next", disguised, bytes(32))


TWO_ROUNDS = {"rounds": 2, "save_every": 1, "evaluate_every": 2, "seed": None}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, vocabulary) -> Path:
    """A population with a seeded run, `seeded`, and a run that started from it with secret noise,
    `after`.
    """
    folder = tmp_path_factory.mktemp("made")
    people = small_population(folder / "people", vocabulary)
    loop.train_run(tiny_recipe(people, run={**TWO_ROUNDS, "seed": 1}), folder / "seeded", quietly)
    after = tiny_recipe(people, model={"warm_start": str(folder / "seeded")}, run=TWO_ROUNDS)
    loop.train_run(after, folder / "after", quietly)
    return folder


def test_a_start_that_ended_early_counts_with_what_all_its_rounds_would_have(population, tmp_path):
    """When it ended may have been decided by what it showed."""
    with pytest.raises(Cut):
        loop.train_run(tiny_recipe(population, run=TWO_ROUNDS), tmp_path / "early", cut_at(1))
    after = tiny_recipe(population, model={"warm_start": str(tmp_path / "early")})
    (counted,) = run.Run(tmp_path / "next", after, bytes(32)).account.terms.lineage
    opening = open_ledger(population).run_rows("early")[0]
    release = event_from_json(opening["release"])
    assert counted == repeat(release, 2)
    # The twin: what it had spent.
    assert open_ledger(population).cost("early") == [repeat(release, 1)]


def people_of(made: Path, to: Path) -> Population:
    return copied_population(made / "people", to / "people")


def test_a_run_that_starts_from_a_simulation_is_declared_as_one(made):
    guarantee = Ledger(made / "people" / FILE_NAME).guarantee("after")
    assert guarantee.randomness == "seeded simulation"
    assert "SIMULATION" in (made / "after" / "guarantee.txt").read_text()


def test_a_model_can_still_be_measured_and_exported_after_another_run_started_from_it(
    made, tmp_path
):
    before = Ledger(made / "people" / FILE_NAME).guarantee("seeded")
    assert (
        FinishedRun(made / "seeded").export(tmp_path / "out", non_private=True).guarantee.epsilon
        == before.epsilon
    )
    assert finished.FinishedRun(made / "seeded").evaluate().guarantee.releases == before.releases


def test_a_warm_start_is_not_believed_from_a_ledger_that_was_replaced(made, tmp_path):
    people = people_of(made, tmp_path)
    loop.train_run(tiny_recipe(people, run={**TWO_ROUNDS, "rounds": 1}), tmp_path / "dear", quietly)
    rows = Ledger(people.folder / FILE_NAME).run_rows("dear")
    (people.folder / FILE_NAME).unlink()
    (people.folder / FILE_NAME).with_suffix(".head").unlink()
    forged = Ledger(people.folder / FILE_NAME)
    for row in rows:
        if row["kind"] != "charge":
            forged.append(
                {name: value for name, value in row.items() if name not in ("hash", "previous")}
            )
    elsewhere = tiny_recipe(
        Population(made / "people"), model={"warm_start": str(tmp_path / "dear")}
    )
    with pytest.raises(LedgerError, match="it was replaced by another"):
        run.Run(tmp_path / "next", elsewhere, bytes(32))


def test_what_a_run_states_covers_its_lineage_as_the_library_composes_it(made):
    ledger = Ledger(made / "people" / FILE_NAME)
    stated = ledger.guarantee("after")
    direct = RdpAccountant()
    direct.compose(SelfComposedDpEvent(PoissonSampledDpEvent(10 / 50, GaussianDpEvent(1.0)), 4))
    assert stated.releases == 2
    assert stated.epsilon >= direct.get_epsilon(stated.delta) * (1 - 1e-9)
    assert stated.rho == pytest.approx(4 / 2)


def test_a_model_saved_before_its_run_released_anything_costs_what_it_started_from(made):
    ledger = Ledger(made / "people" / FILE_NAME)
    first = next(row for row in ledger.run_rows("after") if row["kind"] == "model")
    assert ledger.guarantee("after", first["hash"]).epsilon == ledger.guarantee("seeded").epsilon
    assert ledger.cost("after", first["hash"]) == ledger.cost("seeded")


def test_all_runs_together_have_no_privacy_under_any_adjacency_once_one_run_had_none(
    made, tmp_path
):
    people = people_of(made, tmp_path)
    fixed = {
        "participation": {"kind": "fixed", "users": 50, "cohort": 10},
        "run": {**TWO_ROUNDS, "rounds": 1},
    }
    loop.train_run(tiny_recipe(people, **fixed), tmp_path / "fixed", quietly)
    bare = tiny_recipe(
        people,
        algorithm="fedavg",
        privacy={"noise_multiplier": None},
        run={**TWO_ROUNDS, "rounds": 1},
    )
    loop.train_run(bare, tmp_path / "bare", quietly)
    assert all(
        np.isinf(epsilon) for _, epsilon, _ in Ledger(people.folder / FILE_NAME).totals(1e-3)
    )


def test_a_private_run_does_not_start_from_counted_n_grams(finished_runs, tmp_path):
    with pytest.raises(RecipeError, match="another model"):
        trained(
            Population(finished_runs / "people"),
            tmp_path / "next",
            model={"warm_start": str(finished_runs / "counted")},
        )


def test_a_private_run_that_starts_from_a_file_that_forgot_its_run_is_still_not_private(
    copied_runs, tmp_path
):
    changed_card(copied_runs / "plain", run=None, ledger_head=None)
    (copied_runs / "plain" / "recipe.toml").unlink()
    run = trained(
        Population(copied_runs / "people"),
        tmp_path / "next",
        model={"warm_start": str(copied_runs / "plain")},
    )
    assert "NO privacy guarantee" in (run / "guarantee.txt").read_text()


@pytest.mark.parametrize("forgets", [False, True])
def test_the_ledger_of_a_fleet_is_asked_although_nobody_is_in_its_population(
    tmp_path, vocabulary, forgets
):
    """A fleet's population has held-out users only, so it counts as false: a model that was trained
    on its devices would be taken for public text if its card named no run.
    """
    on_devices = {"source": "made up", "on_devices": True}
    fleet = write_population(
        tmp_path / "fleet", {}, made_up_users(12, seed=1), vocabulary, on_devices
    )
    assert not fleet
    others = write_population(
        tmp_path / "others",
        made_up_users(50),
        made_up_users(12, seed=2),
        vocabulary,
        {"source": "made up"},
    )
    ledger = open_ledger(fleet)
    terms = RunTerms(
        name="first",
        recipe="of a fleet",
        population=fleet.id,
        adjacency="zero out one user",
        randomness="operating system",
        accountant="pld",
        budget=Budget(delta=1e-6),
        rounds=10,
    )
    account = Account(ledger=ledger, terms=terms, release=GaussianDpEvent(2.0))
    account.open()
    account.charge(0, "record")
    recipe = tiny_recipe(fleet)
    params = build.language_model(recipe.model, len(vocabulary)).init(jax.random.key(0))
    head = account.record_model(1, params_digest(params))
    card = ModelCard(
        architecture=recipe.model.model_dump(mode="json", exclude={"warm_start"}),
        vocabulary=vocabulary.words,
        text=vocabulary.about,
        run=None if forgets else "first",
        ledger_head=None if forgets else head,
        round=1,
    )
    run_folder = tmp_path / "first"
    run_folder.mkdir()
    save_recipe(recipe, run_folder / "recipe.toml")
    save_model(run_folder / "model.safetensors", params, card)
    next_recipe = tiny_recipe(others, model={"warm_start": str(run_folder)})
    with pytest.raises(DataError, match="different hashes"):
        load_warm_start(next_recipe, vocabulary, open_ledger(others))
