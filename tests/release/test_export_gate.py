"""What may leave: a model that the ledger knows, as it knows it, with what it cost."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

from curators import Loop, averaging, opened
from harness import (
    Cut,
    cut_at,
    lettered_words,
    made_up_users,
    quietly,
    short_recipe,
    tiny_recipe,
    trained,
)
from pages import REFUSED, changed_card, script_on_page
from taciturn.data.population import Population, write_population
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger
from taciturn.release.gate import ExportRefused, check_may_leave, verified_guarantee
from taciturn.release.model_file import (
    ModelCard,
    card_digest,
    load_model,
    params_digest,
    save_model,
)
from taciturn.runs import finished, loop
from taciturn.runs.finished import FinishedRun


def test_a_model_moved_to_an_earlier_row_is_not_exported(copied_runs, tmp_path):
    params, card = load_model(copied_runs / "private")
    first = Ledger(copied_runs / "people" / FILE_NAME).run_rows("private")[0]["hash"]
    save_model(
        copied_runs / "private" / "model.safetensors", params, replace(card, ledger_head=first)
    )
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        FinishedRun(copied_runs / "private").export(tmp_path / "out", non_private=False)


def test_what_comes_from_a_non_private_model_is_exported_as_non_private_alone(
    copied_runs, tmp_path
):
    people = Population(copied_runs / "people")
    from_plain = short_recipe(people, model={"warm_start": str(copied_runs / "plain")})
    assert not loop.train_run(from_plain, tmp_path / "laundered", quietly).guarantee.is_private
    with pytest.raises(ExportRefused, match="no privacy"):
        FinishedRun(tmp_path / "laundered").export(tmp_path / "out", non_private=False)


def test_a_model_without_privacy_leaves_only_by_name(finished_runs, tmp_path):
    with pytest.raises(ExportRefused, match="no privacy"):
        FinishedRun(finished_runs / "plain").export(tmp_path / "out", non_private=False)
    assert not (tmp_path / "out").exists()
    assert (
        not FinishedRun(finished_runs / "plain")
        .export(tmp_path / "out", non_private=True)
        .guarantee.is_private
    )
    assert "NO privacy" in (tmp_path / "out" / "guarantee.txt").read_text()


def test_a_model_with_the_name_of_another_run_is_not_exported(copied_runs, tmp_path):
    params, card = load_model(copied_runs / "plain")
    save_model(copied_runs / "plain" / "model.safetensors", params, replace(card, run="private"))
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        FinishedRun(copied_runs / "plain").export(tmp_path / "out", non_private=False)


def test_other_parameters_do_not_leave_with_a_runs_guarantee(tmp_path):
    account, params = (
        opened(averaging(), Loop(), tmp_path / FILE_NAME).account,
        {"w": np.ones(3, np.float32)},
    )
    card = ModelCard(
        architecture={"kind": "lstm"}, vocabulary=("<pad>",), text={"source": "a list"}, run="run"
    )
    card = replace(
        card, ledger_head=account.record_model(0, params_digest(params), card_digest(card))
    )
    assert (
        verified_guarantee(params, card, account.ledger).run == "run"
    )  # the twin: those on record may
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        verified_guarantee({"w": np.full(3, 2.0, np.float32)}, card, account.ledger)


@pytest.mark.parametrize("release", [NonPrivateDpEvent(), GaussianDpEvent(1.0)])
def test_a_model_without_privacy_does_not_leave_unasked(tmp_path, release):
    terms = RunTerms(
        name="run",
        recipe="r",
        population="p",
        adjacency="add or remove one user",
        randomness="operating system",
        accountant="rdp",
        budget=Budget(delta=1e-5),
        rounds=5,
    )
    account = Account(ledger=Ledger(tmp_path / "ledger.jsonl"), terms=terms, release=release)
    account.open()
    account.charge(0, "record")
    check_may_leave(account.guarantee(), non_private=True)
    if isinstance(release, NonPrivateDpEvent):
        with pytest.raises(ExportRefused, match="no privacy"):
            check_may_leave(account.guarantee(), non_private=False)
    else:
        check_may_leave(account.guarantee(), non_private=False)


TWO_ROUNDS = {"rounds": 2, "save_every": 1, "evaluate_every": 2, "seed": None}


def test_a_model_saved_during_an_export_does_not_leave_with_the_older_guarantee(
    population, tmp_path, monkeypatch
):
    folder = tmp_path / "going-on"
    with pytest.raises(Cut):
        loop.train_run(tiny_recipe(population, run=TWO_ROUNDS), folder, cut_at(1))

    class Slow(Ledger):
        """While it works out what the model cost, the run goes on and saves another."""

        def guarantee(self, *which):
            stated = super().guarantee(*which)
            monkeypatch.undo()
            loop.resume_run(folder, quietly)
            return stated

    monkeypatch.setattr(
        finished, "open_ledger", lambda population: Slow(population.folder / FILE_NAME)
    )
    guarantee = FinishedRun(folder).export(tmp_path / "out").guarantee
    exported = load_model(tmp_path / "out")[1]
    assert (exported.round, exported.ledger_head) == (guarantee.releases, guarantee.head)


def test_a_model_that_leaves_early_carries_what_all_rounds_cost(population, tmp_path):
    """Somebody looks at a run and takes its model of the first round."""
    folder = tmp_path / "run"
    with pytest.raises(Cut):
        loop.train_run(tiny_recipe(population, run=TWO_ROUNDS), folder, cut_at(1))
    early = FinishedRun(folder).export(tmp_path / "early").guarantee
    loop.resume_run(folder, quietly)
    whole = FinishedRun(folder).export(tmp_path / "whole").guarantee
    assert (early.releases, whole.releases) == (1, 2)
    assert (early.epsilon, early.rho) == (whole.epsilon, whole.rho)
    assert early.ended_early is not None
    # The twin: what was spent by then is less.
    assert early.ended_early.epsilon_of_made < whole.epsilon
    assert "Ended:" in (tmp_path / "early" / "guarantee.txt").read_text()
    assert "Ended:" not in (tmp_path / "whole" / "guarantee.txt").read_text()


def exported_with(text: str, folder: Path, out: Path) -> bool:
    """Whether a model leaves, and this text with it."""
    try:
        files = FinishedRun(folder).export(out).files
    except REFUSED:
        return False
    return any(text.encode() in file.read_bytes() for file in files)


def test_words_that_the_run_never_had_do_not_leave_under_its_guarantee(copied_runs, tmp_path):
    """Parameters are verified, the list of words beside them is not: any text fits into it."""
    listed = load_model(copied_runs / "private")[1].vocabulary
    changed_card(copied_runs / "private", vocabulary=(*listed[:-1], "somebody-s-secret"))
    assert not exported_with("somebody-s-secret", copied_runs / "private", tmp_path / "out")


def test_the_source_of_the_words_is_not_what_the_file_says_of_itself(copied_runs, tmp_path):
    about = load_model(copied_runs / "private")[1].text
    changed_card(
        copied_runs / "private",
        text={**about, "source": "all was public"},
        public_sources=("all was public",),
    )
    assert not exported_with("all was public", copied_runs / "private", tmp_path / "out")


def test_whom_the_guarantee_protects_is_not_changed_by_building_the_population_again(tmp_path):
    users = made_up_users(50), made_up_users(12, seed=1), lettered_words()
    population = write_population(
        tmp_path / "people", *users, {"simulated": "pieces of a text play the users"}
    )
    trained(population, tmp_path / "run")
    write_population(tmp_path / "people", made_up_users(50, seed=2), *users[1:], {})
    try:
        FinishedRun(tmp_path / "run").export(tmp_path / "out")
    except REFUSED:
        return
    assert "simulated user" in (tmp_path / "out" / "guarantee.txt").read_text()


@pytest.mark.parametrize("without", ["counted", "plain"])
def test_parameters_without_privacy_do_not_leave_with_the_card_of_a_private_run(
    copied_runs, tmp_path, without
):
    save_model(
        copied_runs / "private" / "model.safetensors",
        load_model(copied_runs / without)[0],
        load_model(copied_runs / "private")[1],
    )
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        FinishedRun(copied_runs / "private").export(tmp_path / "out")


def test_a_file_in_another_runs_folder_keeps_its_own_guarantee(copied_runs, tmp_path):
    shutil.copy(
        copied_runs / "plain" / "model.safetensors", copied_runs / "private" / "model.safetensors"
    )
    with pytest.raises(ExportRefused, match="no privacy"):
        FinishedRun(copied_runs / "private").export(tmp_path / "out")
    assert "NO privacy guarantee" in script_on_page(copied_runs / "private")


def test_a_link_to_a_model_without_privacy_is_no_way_out(finished_runs, tmp_path):
    (tmp_path / "private").symlink_to(finished_runs / "plain")
    with pytest.raises(ExportRefused, match="no privacy"):
        FinishedRun(tmp_path / "private").export(tmp_path / "out")


def test_an_export_without_the_rows_of_its_run_is_not_exported_again(finished_runs, tmp_path):
    FinishedRun(finished_runs / "plain").export(tmp_path / "once", non_private=True)
    (tmp_path / "once" / "signature.json").unlink()
    for attempt in (
        lambda: FinishedRun(tmp_path / "once").export(tmp_path / "twice"),
        lambda: script_on_page(tmp_path / "once"),
    ):
        with pytest.raises(REFUSED, match="is an export"):
            attempt()


def test_parameters_with_one_leaf_more_do_not_leave(copied_runs, tmp_path):
    params, card = load_model(copied_runs / "private")
    save_model(
        copied_runs / "private" / "model.safetensors",
        {**params, "note": np.frombuffer(b"secret!!", "u1")},
        card,
    )
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        FinishedRun(copied_runs / "private").export(tmp_path / "out")


def test_what_was_loaded_cannot_be_changed_before_it_leaves(finished_runs):
    """Changed in place, used, and put back, other parameters would leave with the run's
    guarantee.
    """
    run = FinishedRun(finished_runs / "private")
    leaf = run.params["word_bias"]
    with pytest.raises(ValueError, match="read-only"):
        leaf += 1
    np.copy(leaf)[:] = 1  # the twin: a copy may be changed, and is nobody's model
    assert run.guarantee.is_private
