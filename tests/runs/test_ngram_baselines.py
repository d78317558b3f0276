"""N-grams counted on users' text have no privacy: they are charged as that, and do not leave as
anything else.
"""

import json

import numpy as np
import pytest

from harness import WORDS, lettered_words, made_up_users, trained
from pages import REFUSED, script_on_page
from taciturn.core import END
from taciturn.data.population import (
    LEAST_HELD_OUT,
    HeldOutUsers,
    Population,
    write_population,
)
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.export.word_model import COUNTED_ON, load_word_model
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.release.gate import ExportRefused
from taciturn.runs import ngram_baselines
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import RunError
from taciturn.runs.ngram_baselines import HELD_BACK, count_population, hold_back
from taciturn.runs.ngram_worth import measure_with_history


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


def writers(count: int, step: int, seed: int) -> dict[str, list[int]]:
    """People who mostly count by this step, and say some words at random."""
    generator = np.random.default_rng(seed)
    people = {}
    for person in range(count):
        words = np.cumsum(np.where(generator.random(60) < 0.7, step, generator.integers(WORDS)))
        people[f"writer {seed} {person}"] = [*(4 + words % (WORDS - 4)).tolist(), END]
    return people


def saved_public(folder, seed: int, step: int = 2) -> PublicCorpus:
    """Public text of people like these, but who count by another step."""
    words = lettered_words()
    documents = [np.array(text) for text in writers(60, step, seed).values()]
    corpus = PublicCorpus(Texts.of(documents, len(words)), words, "what anyone may read")
    corpus.save(folder)
    return corpus


def count_beside_public(folder, train: dict, held_out: dict):
    """Count n-grams of both; returns what they are worth, and the population."""
    people = write_population(folder / "people", train, held_out, lettered_words(), {})
    saved_public(folder / "public", seed=9)
    baseline = count_population(
        people.folder,
        folder / "counted",
        "kneser-ney",
        3,
        non_private=True,
        public=[folder / "public"],
    )
    return baseline, people


@pytest.mark.parametrize("careless", [False, True])
def test_the_share_of_public_text_has_nothing_of_the_people_it_is_measured_on(
    tmp_path, monkeypatch, careless
):
    """Whether they write like the public text or like the others. The twin fits it on them."""
    if careless:
        monkeypatch.setattr(
            ngram_baselines,
            "hold_back",
            lambda texts: (texts, HeldOutUsers(Population(current).folder).texts),
        )
    shares = []
    for name, step in (("like the people", 1), ("like the public text", 2)):
        current = tmp_path / name / "people"
        baseline, _ = count_beside_public(
            tmp_path / name, writers(50, 1, seed=1), writers(12, step, seed=2)
        )
        shares.append(baseline.people_share.value)
    assert (shares[0] == shares[1]) != careless


@pytest.mark.parametrize("careless", [False, True])
def test_the_share_is_fitted_on_people_whose_text_is_not_counted_for_it(
    tmp_path, monkeypatch, careless
):
    """A person's own counts make their text look likelier than the next person's. So the twin,
    which counts everybody, trusts counts of the people although they know no more.
    """
    if careless:
        monkeypatch.setattr(ngram_baselines, "hold_back", lambda texts: (texts, texts))
    baseline, _ = count_beside_public(tmp_path, writers(20, 2, seed=1), writers(12, 2, seed=2))
    assert (baseline.people_share.value > 0.9) == careless


def test_every_tenth_is_held_back_and_all_others_are_counted(finished_runs):
    texts = Population(finished_runs / "people").texts
    others, held_back = hold_back(texts)
    assert held_back.places.tolist() == [9, 19, 29, 39, 49]
    assert sorted([*others.places, *held_back.places]) == list(range(len(texts)))
    for some in (others, held_back):
        for place, text in zip(some.places, some, strict=True):
            assert np.array_equal(text, texts[place])


def test_figures_stand_beside_those_without_people_whose_text_is_public(tmp_path):
    learned_from = writers(50, 1, seed=1)
    strangers = writers(23, 1, seed=2)
    # Seven who say what documents of the public text say.
    copied = list(writers(60, 2, seed=9).values())[:7]
    known = {f"known {number}": text for number, text in enumerate(copied)}
    baseline, _ = count_beside_public(tmp_path / "some", learned_from, strangers | known)
    content = json.loads(json.dumps(baseline.to_json()))
    assert content["people_share"]["held_back"] == 50 / HELD_BACK
    assert content["people_share"]["counted"] == 50 - 50 / HELD_BACK
    assert content["public_text"] == ["what anyone may read"]
    assert content["overlap"]["people"] == 7
    assert content["overlap"]["share"] == pytest.approx(7 / 30)
    without = content["held_out_without_overlap"]
    alone, _ = count_beside_public(tmp_path / "others", learned_from, strangers)
    assert alone.overlap.people == 0
    assert without == alone.to_json()["held_out"]
    # The twin: with them the figures are others.
    assert content["held_out"]["no_history"] != without["no_history"]


def test_figures_of_a_few_held_out_people_are_not_published(tmp_path):
    """Nor where they are few only without those whose text is public."""
    held_out = writers(LEAST_HELD_OUT - 1, 1, seed=2)
    copied = list(writers(60, 2, seed=9).values())[:20]
    known = {f"known {number}": text for number, text in enumerate(copied)}
    baseline, people = count_beside_public(
        tmp_path / "some", writers(50, 1, seed=1), held_out | known
    )
    assert baseline.worth.people == LEAST_HELD_OUT + 19
    assert baseline.overlap.people == 20
    assert baseline.worth_without_overlap is None
    texts = HeldOutUsers(people.folder).texts
    model = load_word_model(tmp_path / "some" / "counted").model
    assert measure_with_history(model, texts) is not None
    few = Texts.of([texts[place] for place in range(LEAST_HELD_OUT - 1)], model.vocabulary)
    assert measure_with_history(model, few) is None


def test_people_are_charged_before_some_are_held_back(copied_runs, tmp_path, monkeypatch):
    saved_public(tmp_path / "public", seed=9)

    def hold_nobody_back(texts):
        raise KeyboardInterrupt

    monkeypatch.setattr(ngram_baselines, "hold_back", hold_nobody_back)
    with pytest.raises(KeyboardInterrupt):
        count_population(
            copied_runs / "people",
            tmp_path / "cut-off",
            "katz",
            2,
            True,
            public=[tmp_path / "public"],
        )
    assert Ledger(copied_runs / "people" / FILE_NAME).guarantee("cut-off").epsilon == np.inf


def test_too_few_people_to_hold_one_in_ten_back_are_refused_before_they_are_charged(tmp_path):
    people = write_population(
        tmp_path / "people", writers(9, 1, seed=1), writers(12, 1, seed=2), lettered_words(), {}
    )
    saved_public(tmp_path / "public", seed=9)
    with pytest.raises(RunError, match="9 people to learn from"):
        count_population(
            people.folder, tmp_path / "out", "katz", 3, True, public=[tmp_path / "public"]
        )
    assert not (people.folder / FILE_NAME).exists() or not Ledger(people.folder / FILE_NAME).runs()


def test_public_text_of_other_words_is_refused_before_anybody_is_charged(tmp_path):
    people = write_population(
        tmp_path / "people", writers(20, 1, seed=1), writers(12, 1, seed=2), lettered_words(), {}
    )
    other = lettered_words(WORDS - 1)
    PublicCorpus.of(["worda wordb"], other, "others").save(tmp_path / "public")
    with pytest.raises(ValueError, match="has other words than the population"):
        count_population(
            people.folder, tmp_path / "out", "katz", 3, True, public=[tmp_path / "public"]
        )
    assert not (people.folder / FILE_NAME).exists() or not Ledger(people.folder / FILE_NAME).runs()


def test_text_files_are_public_text_too(copied_runs, tmp_path):
    (tmp_path / "read-by-anyone.txt").write_text("worda wordb wordc\n\nwordb wordc wordd\n")
    shown = []
    baseline = count_population(
        copied_runs / "people",
        tmp_path / "of-both",
        "katz",
        3,
        non_private=True,
        progress=lambda stage, done, all: shown.append((stage, done, all)),
        public=[tmp_path / "read-by-anyone.txt"],
    )
    assert baseline.public_sources == ("read-by-anyone.txt",)
    # What takes longest is shown when it begins, and when it is done.
    for whose in ("public text", "nine tenths", "everybody"):
        begun = shown.index((f"counting {whose}", 0, 1))
        assert shown[begun - 1][0] == f"reading {whose}"
        assert shown[begun + 1] == (f"counting {whose}", 1, 1)
