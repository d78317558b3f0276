"""No text that a person can write keeps others from being trained on: not in a build, and not in
the round that its author is drawn for.
"""

import csv
import json
import math
from pathlib import Path

import pytest

from harness import quietly, tiny_recipe
from taciturn.data import ingest as ingesting
from taciturn.data import readers, sources
from taciturn.data.population import COUNTS, Population
from taciturn.data.vocabulary import DataError, public_vocabulary
from taciturn.people import build_population
from taciturn.runs.loop import train_run

WORDS = public_vocabulary(300)
TEXT = "and the one that you have is not what they said to me about this"
HOSTILE = {
    "zeros": "the\0you " * 50,
    "only zeros": "\0" * 1000,
    "half a character": "the \ud800 you " * 50,
    "both halves, in the wrong order": "\udfff\ud800",
    "a word of a megabyte": "a" * 2**20,
    "a line of ten megabytes": "the you " * (10 * 2**17),
    "too long": "x" * (2**24 + 1),
    "blanks": " \t\n\u00a0\u3000" * 1000,
    "nothing to see": "\u200b\u2060\ufeff\U000e0020" * 1000,
    "lines": "\r\n\u2028\x0b\x0c\x85" * 1000,
    "accents on one letter": "e" + "\u0301\u0316" * 50_000,
    "letters that unfold": "\ufdfa\u1100\u1161\u11a8ŉǰΐßﬃ" * 1000,
    "no character": "\uffff\ufffe\U0010ffff\ue000\u0378 the " * 50,
    "backwards": "\u202e\u2066 the you " * 50,
    "names of tokens": "<pad><bos><eos><unk> <eos>",
    "punctuation": "'.-,\"\\" * 10_000,
    "digits": "1" * 50_000,
    "one letter": "a",
    "commands": "\x1b[2J\x1b]0;title\x07 the you " * 50,
}
USERS = 40


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.setattr(ingesting, "SMALL", 2**30)


def write_lines(path: Path, hostile=HOSTILE) -> Path:
    """Write JSON lines: authors of hostile texts, each with a plain one too, and others."""
    rows = [(f"author {name}", text) for name, text in hostile.items()]
    rows += [(f"author {name} too", f"{TEXT}. {text}") for name, text in hostile.items()]
    rows += [(f"user {number}", f"{TEXT} {number}") for number in range(USERS)]
    lines = (json.dumps({"user": user, "text": text}) for user, text in rows)
    path.write_text("\n".join(lines))
    return path


def build(source: Path, folder: Path, **how) -> Population:
    how = {"vocabulary": WORDS, "least_tokens": 1, "held_out": 0.2, **how}
    return build_population(source, folder, **how)


@pytest.mark.parametrize("layout", ["unrolls", "sentences"])
def test_whatever_people_wrote_all_are_trained_on_when_they_are_drawn(tmp_path, layout):
    population = build(write_lines(tmp_path / "chats.jsonl"), tmp_path / "people", scrub=True)
    recipe = tiny_recipe(
        population,
        data={"layout": layout},
        # Everybody is drawn, but for one in a thousand.
        participation={"users": 1000, "cohort": 999},
        run={"rounds": 1},
    )
    train_run(recipe, tmp_path / "run", quietly)
    with (tmp_path / "run" / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["uploads"]) >= len(population) - 1
    assert math.isfinite(float(last["loss"]))


def test_words_of_hostile_texts_are_words_of_the_list(tmp_path):
    population = build(write_lines(tmp_path / "chats.jsonl"), tmp_path / "people")
    least = min(int(text.min()) for text in population.texts)
    most = max(int(text.max()) for text in population.texts)
    assert least >= 1
    assert most < len(WORDS)
    left_out = population.manifest[COUNTS]["left_out"]
    assert left_out["rows that are not UTF-8"] == 4
    assert left_out["lines longer than 16 MB"] == 2
    assert left_out["rows without text"] == 2


def test_the_twin_that_lets_half_characters_in_builds_nothing(tmp_path, monkeypatch):
    write_lines(tmp_path / "chats.jsonl")
    monkeypatch.setattr(readers, "_is_encodable", lambda _: True)
    with pytest.raises(DataError, match="is damaged"):
        build(tmp_path / "chats.jsonl", tmp_path / "people")


def write_files(folder: Path) -> None:
    """Write a text file for each user; one has a name in Latin-1, as old systems gave them."""
    folder.mkdir()
    for number in range(USERS):
        (folder / f"user {number}.txt").write_text(f"{TEXT} {number}")
    (folder / "jos\udce9.txt").write_text(TEXT)


def test_a_file_whose_name_is_not_utf8_is_left_out_and_counted(tmp_path):
    write_files(tmp_path / "chats")
    population = build(tmp_path / "chats", tmp_path / "people")
    counts = population.manifest[COUNTS]
    assert counts["left_out"] == {"files whose names are not UTF-8": 1}
    assert counts["first_left_out"] == {"files whose names are not UTF-8": "jos\\udce9.txt"}
    assert counts["train_users"] + counts["held_out_users"] == USERS


def test_the_twin_that_takes_any_name_builds_nothing(tmp_path, monkeypatch):
    write_files(tmp_path / "chats")
    monkeypatch.setattr(sources, "_is_utf8", lambda _: True)
    with pytest.raises(DataError, match="is damaged"):
        build(tmp_path / "chats", tmp_path / "people")
