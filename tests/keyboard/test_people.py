"""Whoever tries a keyboard out was not trained on, and nothing that they type is told."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import lettered_words, made_up_users, trained
from pages import REFUSED
from taciturn.cli import app
from taciturn.data.population import (
    Population,
    hashed_id,
    remember_opt_outs,
    write_population,
)
from taciturn.data.same_people import trained_on
from taciturn.data.sources import Source
from taciturn.data.vocabulary import DataError
from taciturn.export.word_model import COUNTED_ON
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger
from taciturn.runs.finished import FinishedRun
from taciturn.runs.simulate_typing import read_people, simulate_typing


def texts_of(path: Path, *users: str) -> Source:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(
            [("user", "text"), *((user, "worda wordb wordc wordd.") for user in users)]
        )
    return Source(paths=[path])


def test_people_who_were_trained_on_are_known_in_any_spelling(finished_runs, tmp_path):
    spellings = ("USER 0 1", "ｕｓｅｒ 0 2", " user\u200b 0 \u00a0 3 ", "user 0 4\u00ad")
    found = read_people(
        texts_of(tmp_path / "chats.csv", *spellings, "a stranger"),
        [finished_runs / "people"],
        100,
    )
    assert (len(found.messages), found.left_out) == (1, 4)


@pytest.mark.parametrize(
    ("met", "is_unknown"), [("user 0 1", False), ("user 1 1", False), ("12", True)]
)
def test_a_model_whose_people_are_all_unknown_here_is_named(
    finished_runs, tmp_path, met, is_unknown
):
    """By another column of ids nobody could be left out. Whom it held out it knows as well."""
    people = finished_runs / "people"
    source = texts_of(tmp_path / "chats.csv", met, "a stranger")
    assert read_people(source, [people], 100).unknown_to == ([people] if is_unknown else [])
    said = CliRunner().invoke(
        app,
        [
            "keyboard",
            "evaluate",
            str(finished_runs / "private"),
            "--text",
            str(tmp_path / "chats.csv"),
        ],
    )
    assert ("Nobody in this text is known to" in said.output) == is_unknown


@pytest.mark.parametrize("salt", [None, bytes(32)])
def test_nobody_is_taken_for_a_stranger_because_the_salt_is_lost(copied_runs, salt):
    path = copied_runs / "people" / "private" / "salt"
    path.unlink() if salt is None else path.write_bytes(salt)
    with pytest.raises(DataError, match="salt"):
        trained_on(copied_runs / "people")


def test_nobody_is_taken_for_a_stranger_because_the_list_of_users_is_incomplete(copied_runs):
    population = Population(copied_runs / "people")
    path = population.folder / population.manifest["text"] / "users.txt"
    path.write_text("\n".join(path.read_text().split()[:10]))
    with pytest.raises(DataError, match="is incomplete"):
        trained_on(copied_runs / "people")


def test_people_who_were_trained_on_do_not_type_after_the_population_is_built_again(tmp_path):
    rest = made_up_users(12, seed=1), lettered_words(), {}
    run = trained(write_population(tmp_path / "people", made_up_users(50), *rest), tmp_path / "run")
    write_population(tmp_path / "people", made_up_users(50, seed=2), *rest)
    with pytest.raises(REFUSED, match="so its users are no longer known"):
        simulate_typing(
            [run], texts_of(tmp_path / "chats.csv", "user 0 1", "user 0 2"), False, 10, 50
        )


def test_people_whom_the_first_of_two_runs_was_trained_on_do_not_type_with_the_second(
    finished_runs, tmp_path
):
    people = made_up_users(50, seed=3), made_up_users(12, seed=4)
    others = write_population(
        tmp_path / "others", *people, lettered_words(), {}, same_people_as=finished_runs / "people"
    )
    run = trained(others, tmp_path / "second", model={"warm_start": str(finished_runs / "private")})
    assert Ledger(finished_runs / "people" / FILE_NAME).guarantee("second").continued
    with pytest.raises(REFUSED, match="so its users are no longer known"):
        simulate_typing(
            [run], texts_of(tmp_path / "chats.csv", "user 0 1", "user 0 2"), False, 10, 50
        )


def test_people_who_opted_out_do_not_type(tmp_path):
    rest = made_up_users(12, seed=1), lettered_words(), {}
    run = trained(write_population(tmp_path / "people", made_up_users(50), *rest), tmp_path / "run")
    salt = (tmp_path / "people" / "private" / "salt").read_bytes()
    remember_opt_outs(tmp_path / "people", salt, ["gone away"])
    source = texts_of(tmp_path / "chats.csv", "Gone Away", "a stranger")
    assert simulate_typing([run], source, False, 10, 50).people == 1


def test_people_are_left_out_by_the_population_whose_ledger_knows_the_model(copied_runs, tmp_path):
    """A recipe names its population by a path, which may lead elsewhere by now."""
    others = write_population(
        tmp_path / "others",
        made_up_users(50, seed=3),
        made_up_users(12, seed=4),
        lettered_words(),
        {},
    )
    (copied_runs / "counted" / COUNTED_ON).write_text(
        json.dumps({"population": str(others.folder)})
    )
    with pytest.raises(REFUSED, match="does not know these parameters"):
        simulate_typing(
            [copied_runs / "counted"],
            texts_of(tmp_path / "chats.csv", "user 0 1", "user 0 2"),
            False,
            10,
            50,
        )


def test_of_an_arpa_file_it_is_not_said_that_nobody_who_types_was_trained_on(
    finished_runs, tmp_path
):
    FinishedRun(finished_runs / "counted").export(tmp_path / "out", "arpa", non_private=True)
    texts_of(tmp_path / "chats.csv", "user 0 1", "user 0 2")
    asked = [
        "keyboard",
        "evaluate",
        str(tmp_path / "out" / "model.arpa"),
        "--text",
        str(tmp_path / "chats.csv"),
    ]
    said = " ".join(CliRunner().invoke(app, asked).output.split())
    assert "0 whom a model was trained on were left out" not in said


def test_nothing_that_people_typed_is_in_what_is_printed(finished_runs, tmp_path):
    with open(tmp_path / "chats.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [("user", "text"), ("a stranger", "worda xylophonic wordb"), ("user 0 1", "quixotry")]
        )
    for more in ([], ["--json"], ["--history"]):
        asked = [
            "keyboard",
            "evaluate",
            str(finished_runs / "private"),
            "--text",
            str(tmp_path / "chats.csv"),
            *more,
        ]
        said = CliRunner().invoke(app, asked).output
        assert "keystroke" in said
        assert not any(text in said for text in ("xylophonic", "quixotry", "stranger", "user 0 1"))


def test_a_hashed_id_is_no_other_users(finished_runs):
    salt = (finished_runs / "people" / "private" / "salt").read_bytes()
    is_known = trained_on(finished_runs / "people")
    assert is_known("user 0 1")
    assert not is_known(hashed_id(salt, "user 0 1"))
    assert not is_known("")
