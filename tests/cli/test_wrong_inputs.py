"""Hundreds of wrong inputs (wrong_inputs.txt): the answer to each says what is wrong and what to
do, and nothing is changed.
"""

import dataclasses
import errno
import gzip
import os
import shlex
import shutil
import socket
import sys
from pathlib import Path

import pytest

from harness import copied_population, lettered_words, small_population, tiny_recipe
from taciturn import cli
from taciturn.data.population import Population
from taciturn.data.public import PublicCorpus, save_words
from taciturn.data.vocabulary import Vocabulary
from taciturn.errors import describe_os_error
from taciturn.export.aosp_dictionary import Dictionary, Entry
from taciturn.export.aosp_dictionary_writer import write_dictionary
from taciturn.fleets import enrolment
from taciturn.fleets.wire.tls import certify_server, device_request, make_authority
from taciturn.recipe.text import save_recipe
from taciturn.release.model_file import load_model, save_model

LINES = (Path(__file__).parent / "wrong_inputs.txt").read_text().splitlines()
CASES = [line.split(" | ") for line in LINES if line and not line.startswith("#")]
TEXT = "worda wordb wordc wordd worde"
# Words of libraries, of the interpreter and of half-finished files: no answer to a person has them.
NEVER = (
    "Traceback",
    "Errno",
    "codec",
    "Input should",
    "object has no",
    "<class",
    "None",
    "pydantic",
    ".partial",
    "deserializ",
)


def files(folder: Path) -> None:
    """Files that are not what is asked for."""
    rows = [f"u{user},{TEXT} {user}\n" for user in range(60) for _ in range(12)]
    text = "user,text\n" + "".join(rows)
    for name in (
        "binary.csv",
        "binary.parquet",
        "binary.jsonl",
        "binary.txt",
        "binary.toml",
        "messages.xlsx",
    ):
        (folder / name).write_bytes(bytes(range(256)) * 8)
    contents = {
        "messages.csv": text,
        "empty.csv": "",
        "header.csv": "user,text\n",
        "plain.csv": "a,b\n" + "".join(rows),
        "headless.csv": "".join(rows),
        "twice.csv": "user,text,text\nann,worda,wordb\n",
        "few.csv": "user,text\n" + "".join(rows[:24]),
        "blank.txt": "\n \n\n",
        "short.txt": "worda\n",
        "mine.txt": f"{TEXT}\n" * 40,
        "book.txt": f"{TEXT}\n\n{TEXT}\n",
        "broken.jsonl": '{"user": "a", "text"\n{"us\n',
        "numbers.jsonl": "1\n2\n3\n",
        "broken.toml": "[run\nrounds = 3\n",
        "broken.arpa": "\\data\\\nngram 1=three\n",
        "mixed-folder/a.csv": text,
        "mixed-folder/b.txt": TEXT,
    }
    (folder / "mixed-folder").mkdir()
    (folder / "empty-folder").mkdir()
    for name, content in contents.items():
        (folder / name).write_text(content)
    (folder / "utf16.csv").write_text(text, encoding="utf-16")
    (folder / "latin.csv").write_text(text.replace("worde", "café"), encoding="latin-1")
    (folder / "latin.toml").write_text('algorithm = "fédavg"', encoding="latin-1")
    (folder / "cut.csv.gz").write_bytes(gzip.compress(text.encode())[:100])


def populations(folder: Path, finished: Path) -> None:
    """People and public text, whole and damaged."""
    for name in (
        "people",
        "broken-people",
        "broken-ledger",
        "cut-ledger",
        "lost-ledger",
        "no-words",
    ):
        copied_population(finished / "people", folder / name)
    shutil.copytree(finished / "people", folder / "copied-people")
    small_population(folder / "others", Vocabulary(words=(*lettered_words().words[:-1], "other")))
    (folder / "broken-people" / "manifest.json").write_text('{"format": 2, "id"')
    (folder / "no-words" / "text-1" / "vocabulary.txt").unlink()
    (folder / "lost-ledger" / "ledger.jsonl").unlink()
    changed, cut = folder / "broken-ledger" / "ledger.jsonl", folder / "cut-ledger" / "ledger.jsonl"
    changed.write_text(changed.read_text().replace("private", "privatf", 1))
    cut.write_bytes(cut.read_bytes()[:200])
    for name in ("public", "broken-public", "cut-public"):
        PublicCorpus.of([TEXT] * 40, lettered_words(), "a book").save(folder / name)
    (folder / "broken-public" / "about.json").write_text("not JSON")
    os.truncate(folder / "cut-public" / "documents-00000.tokens", 7)
    save_words(lettered_words(), folder / "words")
    words = {"worda": Entry(frequency=9), "wordb": Entry(frequency=5)}
    write_dictionary(folder / "few.dict", Dictionary(header={"locale": "en"}, words=words))
    (folder / "cut.dict").write_bytes((folder / "few.dict").read_bytes()[:-2])


def runs(folder: Path, finished: Path) -> None:
    """Runs, whole and damaged, and recipes."""
    for name in ("private", "plain", "counted"):
        shutil.copytree(finished / name, folder / name)
    for name in (
        "broken-run",
        "cut-run",
        "swapped-run",
        "early-run",
        "no-recipe",
        "exported",
        "damaged-root",
        "lost-people",
    ):
        shutil.copytree(finished / "private", folder / name)
    (folder / "broken-run" / "model.safetensors").write_bytes(b"not a model at all")
    os.truncate(folder / "cut-run" / "model.safetensors", 3000)
    shutil.copy(folder / "plain" / "model.safetensors", folder / "swapped-run")
    for gone in (
        "early-run/model.safetensors",
        "no-recipe/recipe.toml",
        "no-recipe/guarantee.json",
        "exported/recipe.toml",
    ):
        (folder / gone).unlink()
    (folder / "damaged-root" / "private").mkdir()
    (folder / "damaged-root" / "private" / "root").write_bytes(b"short")
    (params, card), people = load_model(folder / "private"), Population(folder / "people")
    (folder / "personal").mkdir()
    save_model(
        folder / "personal" / "model.safetensors", params, dataclasses.replace(card, personal=True)
    )
    devices = {"kind": "min-separation", "min_separation": 1, "cohort": 5}
    fleet = {
        "algorithm": "dp-ftrl",
        "participation": devices,
        "privacy": {"encoding": "modular"},
        "fleet": {"kind": "devices"},
    }
    save_recipe(tiny_recipe(people), folder / "recipe.toml")
    save_recipe(
        tiny_recipe(people, algorithm="fedavg", privacy={"noise_multiplier": None}),
        folder / "plain.toml",
    )
    save_recipe(tiny_recipe(people, **fleet), folder / "ftrl.toml")
    recipe = (folder / "recipe.toml").read_text()
    (folder / "no-population.toml").write_text(recipe.replace("population =", "# population ="))
    lost = (
        (folder / "lost-people" / "recipe.toml")
        .read_text()
        .replace(str(finished / "people"), "gone")
    )
    (folder / "lost-people" / "recipe.toml").write_text(lost)


def fleets(folder: Path) -> None:
    """A fleet without devices, a damaged one, and a device of neither."""
    for name in ("fleet", "broken-fleet"):
        fleet, authority = folder / name, enrolment.authority_folder_beside(folder / name)
        fleet.mkdir()
        authority.mkdir()
        make_authority(authority)
        certify_server(authority, fleet / "wire", ["localhost"])
        signing_authority = enrolment.new_authority(authority, fleet)
        shutil.copy(folder / "ftrl.toml", fleet / "recipe.toml")
        (fleet / "for-devices").mkdir()
        (fleet / "for-devices" / "enrolment.pub").write_text(
            b"".join(signing_authority.authority).hex()
        )
    (folder / "broken-fleet" / "enrolled.txt").write_text("nobody")
    device_request(folder / "device")


@pytest.fixture(scope="module")
def world(finished_runs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    files(folder)
    populations(folder, finished_runs)
    runs(folder, finished_runs)
    fleets(folder)
    return folder


@pytest.fixture(scope="module")
def port():
    """One that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def contents(folder: Path) -> dict[Path, int]:
    """Every file and its size; whoever opens a folder may leave a lock in it."""
    found = (
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if "lock" not in name
    )
    return {path: path.stat().st_size for path in found}


def check(line: str, fragments: list[str], monkeypatch, capsys) -> None:
    """Refuse an answer that is a traceback, a status of 0, a library's words, or that does not say
    what is wrong and what to do.
    """
    monkeypatch.setattr(sys, "argv", ["taciturn", *shlex.split(line)])
    try:
        code = cli.main()
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        raise AssertionError(f"this would be a traceback: {error!r}") from error
    said = " ".join(capsys.readouterr().err.split())
    assert code in (1, 2), said
    for fragment in fragments:
        assert fragment in said, said
    assert not [word for word in NEVER if word in said], said
    assert len(said) < 700, said


@pytest.mark.parametrize(
    ("line", "fragments"),
    [(line, fragments) for line, *fragments in CASES],
    ids=[line for line, *_ in CASES],
)
def test_a_wrong_input_is_answered_by_what_is_wrong_and_what_to_do(
    line, fragments, world, port, monkeypatch, capsys
):
    monkeypatch.chdir(world)
    before = contents(world)
    check(
        line.replace("{port}", str(port)),
        [one.replace("{port}", str(port)) for one in fragments],
        monkeypatch,
        capsys,
    )
    assert contents(world) == before


def test_there_are_hundreds_of_them_and_of_every_command():
    assert len(CASES) >= 200
    assert len({line for line, *_ in CASES}) == len(CASES)
    tried = {word for line, *_ in CASES for word in line.split()[:1]}
    assert {
        command.name or command.callback.__name__ for command in cli.app.registered_commands
    } <= tried
    assert {group.typer_instance.info.name for group in cli.app.registered_groups} <= tried


def test_a_full_disk_is_told_by_the_file_that_did_not_fit():
    error = OSError(
        errno.ENOSPC, "No space left on device", "runs/first/.model.safetensors.4711.partial"
    )
    assert (
        describe_os_error(error)
        == "runs/first/model.safetensors: no space left on device; free some space, then run the"
        " command again"
    )


@pytest.mark.parametrize(
    "raised", [KeyError("what"), ValueError("Input should be a valid integer"), None]
)
def test_a_malformed_answer_would_be_noticed(raised, monkeypatch, capsys):
    """The twin that must fail: a traceback, a library's words in place of ours, a wrong input that
    is taken.
    """

    def command(**_) -> None:
        if isinstance(raised, ValueError):
            raise cli.TaciturnError(str(raised))
        if raised:
            raise raised

    monkeypatch.setattr(cli, "app", command)
    with pytest.raises(AssertionError):
        check("data show people", [], monkeypatch, capsys)
