"""N-grams counted on users' text have no privacy: they are charged as that, and do not leave as
anything else.
"""

import json

import numpy as np
import pytest

from harness import lettered_words, made_up_users, trained
from pages import REFUSED, script_on_page
from taciturn.data.population import write_population
from taciturn.export.word_model import COUNTED_ON
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.release.gate import ExportRefused
from taciturn.runs import ngram_baselines
from taciturn.runs.finished import FinishedRun
from taciturn.runs.ngram_baselines import count_population


def test_n_grams_counted_on_users_do_not_become_public_text_on_the_page_by_way_of_arpa(
    finished_runs, tmp_path
):
    FinishedRun(finished_runs / "counted").export(tmp_path / "out", "arpa", non_private=True)
    script = script_on_page(tmp_path / "out" / "model.arpa")
    assert "no user's text" not in script
    assert '"promises":false' in script


def test_n_grams_counted_on_users_are_for_the_owners_eyes_as_the_text_is(finished_runs):
    assert (finished_runs / "counted" / "model.safetensors").stat().st_mode & 0o077 == 0


def test_counted_n_grams_do_not_leave_by_naming_another_population(copied_runs, tmp_path):
    others = write_population(
        tmp_path / "others",
        made_up_users(50, seed=3),
        made_up_users(12, seed=4),
        lettered_words(),
        {},
    )
    trained(others, tmp_path / "counted")  # a private run of the same name
    (copied_runs / "counted" / COUNTED_ON).write_text(
        json.dumps({"population": str(others.folder)})
    )
    for attempt in (
        lambda: FinishedRun(copied_runs / "counted").export(tmp_path / "out"),
        lambda: script_on_page(copied_runs / "counted"),
    ):
        with pytest.raises(ExportRefused, match="does not know these parameters"):
            attempt()


def test_n_grams_are_not_counted_under_the_name_of_a_run(copied_runs, tmp_path):
    before = (copied_runs / "people" / FILE_NAME).read_bytes()
    with pytest.raises(LedgerError, match="already has a run"):
        count_population(copied_runs / "people", tmp_path / "private", "katz", 2, non_private=True)
    assert (copied_runs / "people" / FILE_NAME).read_bytes() == before
    assert not (tmp_path / "private").exists()


def test_interrupted_counting_of_n_grams_leaves_nothing_that_can_be_used(
    copied_runs, tmp_path, monkeypatch
):
    """After it was charged and counted, before anything is written."""
    monkeypatch.setattr(
        ngram_baselines, "write_atomically", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        count_population(copied_runs / "people", tmp_path / "cut-off", "katz", 2, non_private=True)
    assert Ledger(copied_runs / "people" / FILE_NAME).guarantee("cut-off").epsilon == np.inf
    for attempt in (
        lambda: FinishedRun(tmp_path / "cut-off").export(tmp_path / "out"),
        lambda: script_on_page(tmp_path / "cut-off"),
    ):
        with pytest.raises(REFUSED, match="does not exist; name a folder with a model"):
            attempt()
