"""`taciturn data …` as a newcomer types it."""

import csv
import gzip
import json
import subprocess
import sys

import pytest
import synthetic_corpus
from typer.testing import CliRunner

from taciturn.cli import app
from taciturn.data.population import COUNTS, NamedLedger, Population
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import DataError
from taciturn.export.aosp_dictionary import Dictionary, Entry
from taciturn.export.aosp_dictionary_writer import write_dictionary
from taciturn.files import FolderExists

TEXT = "the quick messages that people write to each other every day are not long"


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def table(tmp_path):
    with (tmp_path / "messages.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["author", "body", "secret"])
        for user in range(60):
            for number in range(3):
                writer.writerow(
                    [f"User{user}", f"{TEXT} {number}", "yes" if number == 2 and user < 30 else ""]
                )
        writer.writerow(["", "nobody wrote this", ""])
    return tmp_path / "messages.csv"


def test_a_table_becomes_a_population_that_says_what_is_in_it(tmp_path, table):
    out = run(
        "data",
        "build",
        table,
        "--out",
        tmp_path / "p",
        "--least-tokens",
        10,
        "--sensitive-column",
        "secret",
    )
    assert "private counts" in out
    assert "Left out: rows flagged sensitive: 30 (first: messages.csv, line 4)" in out
    assert "Left out: rows without a user: 1 (first: messages.csv, line 182)" in out
    assert "messages.csv: author, body, secret" in out
    assert "Tokens per user" in out
    assert "quick" not in out  # no text of users, ever
    assert out == f"reading {table} …\n" + run("data", "show", tmp_path / "p")
    manifest = json.loads(run("data", "show", tmp_path / "p", "--json"))
    assert manifest[COUNTS]["rows"] == 150


def test_an_existing_population_is_not_overwritten_by_accident(tmp_path, table):
    run("data", "build", table, "--out", tmp_path / "p", "--least-tokens", 10)
    with pytest.raises(DataError, match="--replace"):
        run("data", "build", table, "--out", tmp_path / "p")
    (tmp_path / "gone.txt").write_text("user3\nUSER4\n")
    out = run(
        "data",
        "build",
        table,
        "--out",
        tmp_path / "p",
        "--replace",
        "--least-tokens",
        10,
        "--exclude",
        tmp_path / "gone.txt",
    )
    assert "Left out: users who opted out: 2" in out
    with pytest.raises(DataError, match="--exclude"):
        run("data", "build", table, "--out", tmp_path / "q", "--exclude", tmp_path / "nothing.txt")
    with pytest.raises(DataError, match="is a file"):
        run("data", "build", table, "--out", table)


def test_public_text_shows_samples_and_lends_its_words(tmp_path, table):
    (tmp_path / "book.txt").write_text(
        "A public book speaks\nof quick public messages.\n\nSo it does.\n"
    )
    counted = ("--count-words", "--vocabulary", 24, "--name", "A book")
    out = run("data", "public", tmp_path / "book.txt", "--out", tmp_path / "public", *counted)
    assert "2 documents" in out
    assert "Source: A book" in out
    assert "public book" in out
    corpus = PublicCorpus.load(tmp_path / "public")
    assert len(corpus.vocabulary) == 24
    assert corpus.vocabulary.words[16] == "public"
    run(
        "data",
        "build",
        table,
        "--out",
        tmp_path / "p",
        "--least-tokens",
        1,
        "--vocabulary",
        tmp_path / "public",
    )
    assert Population(tmp_path / "p").vocabulary == corpus.vocabulary
    with pytest.raises(FolderExists, match="exists already: name a new --out"):
        run("data", "public", tmp_path / "book.txt", "--out", tmp_path / "public")
    with pytest.raises(DataError, match="is neither"):
        run("data", "build", table, "--out", tmp_path / "q", "--vocabulary", "many")


def test_a_keyboards_dictionary_lends_its_words(tmp_path, table):
    """They come by frequency, as keyboards suggest them, in the one spelling that text has here."""
    words = {
        "the": Entry(frequency=222),
        "Messages": Entry(frequency=190),
        "messages": Entry(frequency=30),
        "quick": Entry(frequency=201),
        "wierd": Entry(frequency=220, is_not_a_word=True),
        "damned": Entry(frequency=220, is_offensive=True),
        "unseen": Entry(frequency=0),
        "e-mail": Entry(frequency=221),
        "rare": Entry(frequency=1),
    }
    header = {"locale": "de_AT"}
    write_dictionary(tmp_path / "main.dict", Dictionary(header=header, words=words))
    asked = ("--dict", tmp_path / "main.dict", "--vocabulary", 19)
    out = " ".join(run("data", "public", *asked, "--out", tmp_path / "words").split())
    assert "19 public words, punctuation included (main.dict): the, quick, messages" in out
    assert f"taciturn data public BOOKS --vocabulary {tmp_path / 'words'} --out PUBLIC" in out
    assert "19 public words" in run("data", "show", tmp_path / "words")
    (tmp_path / "book.txt").write_text("The quick messages are rare.\n")
    run("data", "public", tmp_path / "book.txt", *asked, "--out", tmp_path / "book")
    corpus = PublicCorpus.load(tmp_path / "book").vocabulary
    asked = ("--vocabulary", tmp_path / "words", "--least-tokens", 1)
    run("data", "build", table, "--out", tmp_path / "p", *asked)
    for vocabulary in (corpus, Population(tmp_path / "p").vocabulary):
        assert vocabulary.words[16:] == ("the", "quick", "messages")
        assert vocabulary.language == "de"


def test_characters_and_other_languages_by_an_option(tmp_path):
    (tmp_path / "users").mkdir()
    for user in range(40):
        (tmp_path / "users" / f"{user}.txt").write_text(
            f"Привет, как дела? Сегодня {user} очень холодно.\n"
        )
    run(
        "data",
        "build",
        tmp_path / "users",
        "--out",
        tmp_path / "w",
        "--language",
        "ru",
        "--least-tokens",
        5,
    )
    counts = Population(tmp_path / "w").manifest[COUNTS]
    assert counts["unknown"]["train"] <= counts["train_users"]  # the two-digit numbers alone
    out = run(
        "data",
        "build",
        tmp_path / "users",
        "--out",
        tmp_path / "c",
        "--language",
        "ru",
        "--characters",
        "--least-tokens",
        5,
    )
    assert "characters" in out
    assert Population(tmp_path / "c").manifest[COUNTS]["unknown"] == {"train": 0, "held_out": 0}


def test_simulated_users_are_a_source_like_any_other(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys,
        "argv",
        ["synthetic_corpus.py", str(tmp_path / "raw"), "--users", "300", "--tokens", "60"],
    )
    synthetic_corpus.main()
    out = run("data", "build", tmp_path / "raw", "--out", tmp_path / "p")
    assert "0.0%" in out or "%" in out
    assert len(Population(tmp_path / "p")) > 250


def test_bad_input_is_one_sentence_and_a_status(tmp_path, table):
    command = [
        sys.executable,
        "-c",
        "from taciturn.cli import main; main()",
        "data",
        "build",
        str(table),
        "--out",
        str(tmp_path / "p"),
    ]
    done = subprocess.run(
        [*command, "--text-column", "nothing"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stdout == f"reading {table} …\n"
    assert done.stderr.startswith("taciturn: ")
    assert "has no column nothing; its columns are author, body, secret" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "p").exists()


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path, table):
    (tmp_path / "book.txt").write_text("Public words.\n")
    run("data", "public", tmp_path / "book.txt", "--out", tmp_path / "public")
    with pytest.raises(DataError, match="already holds other things"):
        run("data", "build", table, "--out", tmp_path / "public")
    assert sorted(path.name for path in (tmp_path / "public").iterdir())[0] == "about.json"
    assert not (tmp_path / "public" / "private").exists()


def test_building_again_protects_no_less(tmp_path, table):
    protected = ("--least-tokens", 10, "--scrub", "--sensitive-column", "secret")
    run("data", "build", table, "--out", tmp_path / "p", *protected)
    (
        tmp_path / "p" / "text-1" / "vocabulary.txt"
    ).unlink()  # a population that cannot be opened is protected all the same
    for fewer, missing in (
        (protected[:3], "--sensitive-column secret"),
        (protected[:2] + protected[3:], "--scrub"),
    ):
        with pytest.raises(DataError, match=missing):
            run("data", "build", table, "--out", tmp_path / "p", "--replace", *fewer)
    run(
        "data", "build", table, "--out", tmp_path / "p", "--replace", *protected, "--held-out", 0.25
    )
    Population(tmp_path / "p").pin_ledger(NamedLedger("a ledger"))  # as the first run does
    with pytest.raises(DataError, match="pass for held out"):
        run("data", "build", table, "--out", tmp_path / "p", "--replace", *protected)
    run(
        "data", "build", table, "--out", tmp_path / "p", "--replace", *protected, "--held-out", 0.25
    )


def test_what_looks_wrong_is_reported(tmp_path, table):
    (tmp_path / "gone.txt").write_text("nobody\n")
    doubtful = (
        "--language",
        "RU",
        "--held-out",
        0,
        "--exclude",
        tmp_path / "gone.txt",
        "--least-tokens",
        1,
    )
    out = " ".join(run("data", "build", table, "--out", tmp_path / "p", *doubtful).split())
    assert "of the words are unknown: is the language ru" in out
    assert "only 60 users" in out
    assert "nobody is held out" in out
    assert "1 on record, 0 of them found in this text" in out
    assert "none of the users who opted out appears" in out
    (tmp_path / "table.csv").write_text("user_id,reason\nuser3,left\n")
    with pytest.raises(DataError, match="line 1, looks like a table"):
        run("data", "build", table, "--out", tmp_path / "q", "--exclude", tmp_path / "table.csv")
    with pytest.raises(DataError, match="leave out --language and --characters"):
        run(
            "data",
            "build",
            table,
            "--out",
            tmp_path / "q",
            "--vocabulary",
            tmp_path / "p",
            "--characters",
        )
    with pytest.raises(DataError, match="no user would be left"):
        run(
            "data",
            "build",
            table,
            "--out",
            tmp_path / "q",
            "--least-tokens",
            50,
            "--most-tokens",
            20,
        )
    with pytest.raises(DataError, match=r"fewer than 90 tokens: 60"):
        run("data", "build", table, "--out", tmp_path / "q", "--least-tokens", 90, "--held-out", 0)


def test_ids_that_stand_for_no_one_are_not_users(tmp_path):
    rows = [
        {"author": name, "body": TEXT} for name in ("[deleted]", "NaN", None, "ann", 7, 7.0, "7.0")
    ]
    (tmp_path / "RC_2020-01.gz").write_bytes(
        gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    )
    run(
        "data",
        "build",
        tmp_path / "RC_2020-01.gz",
        "--out",
        tmp_path / "p",
        "--least-tokens",
        1,
        "--held-out",
        0,
    )
    counts = Population(tmp_path / "p").manifest[COUNTS]
    assert counts["left_out"]["rows without a user"] == 3
    assert counts["train_users"] == 2
