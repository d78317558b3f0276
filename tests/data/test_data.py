"""Words, users' text on disk, and public text."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from conftest import made_up_users
from taciturn.data.ingest import from_parquet
from taciturn.data.population import HeldOutUsers, Population, PopulationError, build_population
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import END, UNKNOWN, DataError, Vocabulary, public_vocabulary, tokenize


def test_words_of_many_languages_are_words():
    assert tokenize("Don’t stop, über-cool Привет 42!") == [
        "don't",
        "stop",
        ",",
        "über",
        "-",
        "cool",
        "привет",
        "42",
        "!",
    ]


def test_the_public_vocabulary_has_the_size_asked_for_and_survives_being_saved(tmp_path):
    words = public_vocabulary(500)
    assert len(words) == 500
    words.save(tmp_path / "words.txt")
    assert Vocabulary.load(tmp_path / "words.txt") == words
    assert words.encode("the zzyzx")[1] == UNKNOWN
    with pytest.raises(DataError, match="no room"):
        public_vocabulary(10)
    with pytest.raises(DataError, match="no list for the language 'xx'"):
        public_vocabulary(500, "xx")


def test_a_population_comes_back_as_it_was_written_with_users_in_an_order_that_says_nothing(tmp_path, vocabulary):
    users = made_up_users(20)
    population = build_population(tmp_path / "p", users, made_up_users(3, seed=1), vocabulary, {"source": "made up"})
    stored = sorted(text.tolist() for text in Population(tmp_path / "p").texts)
    assert stored == sorted(users.values())
    assert [text.tolist() for text in population.texts] != list(users.values())
    assert len(HeldOutUsers(tmp_path / "p")) == 3
    listed = (tmp_path / "p" / f"text-{population.id}" / "users.txt").read_text()
    assert "user" not in listed  # hashed ids only


def test_building_again_keeps_the_ledger_and_its_salt(tmp_path, vocabulary):
    build_population(tmp_path / "p", made_up_users(20), {}, vocabulary, {})
    (tmp_path / "p" / "ledger.jsonl").write_text("history")
    salt = (tmp_path / "p" / "private" / "salt").read_bytes()
    population = build_population(tmp_path / "p", made_up_users(30), {}, vocabulary, {})
    assert len(population) == 30
    assert (tmp_path / "p" / "ledger.jsonl").read_text() == "history"
    assert (tmp_path / "p" / "private" / "salt").read_bytes() == salt
    assert len(list((tmp_path / "p").glob("text-*"))) == 1


def test_counts_of_users_text_are_marked_private(population):
    manifest = json.loads((population.folder / "manifest.json").read_text())
    assert [name for name in manifest if "do not publish" in name]
    assert "users" not in manifest


def test_what_is_no_population_is_said_to_be_none(tmp_path, vocabulary):
    with pytest.raises(PopulationError, match="not a population"):
        Population(tmp_path)
    with pytest.raises(PopulationError, match="no user is left"):
        build_population(tmp_path / "p", {}, {}, vocabulary, {})


def test_rows_of_a_parquet_file_become_users_cut_and_split_by_their_id(tmp_path, vocabulary):
    rows = [(f"user{index % 40}", "alpha beta gamma.") for index in range(400)] + [
        ("short", "word1"),
        (None, "word1"),
        ("x", None),
    ]
    parquet.write_table(
        pa.table({"user_id": [r[0] for r in rows], "text": [r[1] for r in rows]}), tmp_path / "rows.parquet"
    )
    population = from_parquet(tmp_path / "rows.parquet", tmp_path / "p", vocabulary, least_tokens=10, most_tokens=33)
    assert len(population) + len(HeldOutUsers(tmp_path / "p")) in (40, 41)  # a short user may be held out
    assert all(len(text) == 33 for text in population.texts)
    assert all(text[4] == END for text in population.texts)
    again = from_parquet(tmp_path / "rows.parquet", tmp_path / "q", vocabulary, least_tokens=10, most_tokens=33)
    assert len(again) == len(population)


def test_a_file_without_the_columns_is_refused_with_those_it_has(tmp_path, vocabulary):
    parquet.write_table(pa.table({"author": ["a"], "text": ["b"]}), tmp_path / "rows.parquet")
    with pytest.raises(PopulationError, match="no column user_id; its columns are author, text"):
        from_parquet(tmp_path / "rows.parquet", tmp_path / "p", vocabulary, 1, 10)
    with pytest.raises(PopulationError, match="not a file"):
        from_parquet(tmp_path, tmp_path / "p", vocabulary, 1, 10)


def test_public_text_survives_being_saved(tmp_path, vocabulary):
    corpus = PublicCorpus.of(["word1 word2", "word3"], vocabulary, "a book")
    corpus.save(tmp_path / "public")
    loaded = PublicCorpus.load(tmp_path / "public")
    assert loaded.source == "a book"
    assert [document.tolist() for document in loaded.documents] == [document.tolist() for document in corpus.documents]
    assert np.array_equal(loaded.vocabulary.words, vocabulary.words)
