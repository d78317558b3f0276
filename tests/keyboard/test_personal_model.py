"""A model of one's own: that it learns, that it stays, and that its text is deleted when it may be
and not before.
"""

import csv
import inspect
import os
import shutil
import stat
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import jax
import numpy as np
import pytest
import safetensors
from typer.testing import CliRunner

from harness import made_up_users, mostly_slow, quietly, tiny_recipe
from taciturn import files
from taciturn.cli import app, main
from taciturn.cli import personalise as personalise_command
from taciturn.data.layout import Unrolls
from taciturn.data.population import Population, write_population
from taciturn.data.public import PublicCorpus
from taciturn.data.sources import Source
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, DataError, Vocabulary
from taciturn.evaluation.accuracy import evaluate
from taciturn.export.arpa import write_arpa
from taciturn.export.word_model import load_word_model
from taciturn.keyboard import personal_model
from taciturn.keyboard.personal_model import Learning, personalise
from taciturn.keyboard.server import KeyboardServer
from taciturn.models.ngram import katz
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import (
    ModelCard,
    card_digest,
    load_model,
    params_digest,
    save_model,
)
from taciturn.runs.finished import FinishedRun, guarantee_of
from taciturn.runs.loop import train_run
from taciturn.runs.ngram_baselines import count_public
from taciturn.runs.simulate_typing import simulate_typing
from taciturn.runs.try_keyboard import make_keyboard_server
from taciturn.runs.warm_start import load_warm_start

CIFG = {"kind": "cifg", "width": 8, "units": 12}
PHRASES = ("worda wordf wordb wordk.", "wordc wordc wordq wordd!", "wordj wordb wordb wordh wordp.")
QUICK = Learning(epochs=20, learning_rate=1.0)


def words() -> Vocabulary:
    fixed = SPECIAL + PUNCTUATION
    return Vocabulary(words=fixed + tuple(f"word{chr(97 + n)}" for n in range(40 - len(fixed))))


def run_cli(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def messages(folder: Path, count: int = 60) -> Path:
    """What somebody wrote who says the same few things."""
    chosen = np.random.default_rng(0).choice(PHRASES, count)
    path = folder / "sent.txt"
    path.write_text("".join(f"{phrase}\n" for phrase in chosen))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """People, a private run on them, and a personal model that went on from it."""
    folder = tmp_path_factory.mktemp("personal")
    population = write_population(
        folder / "people", made_up_users(50), made_up_users(12, seed=1), words(), {}
    )
    run = {"rounds": 2, "save_every": 2, "evaluate_every": 2}
    train_run(tiny_recipe(population, model=CIFG, run=run), folder / "private", quietly)
    personalise(folder / "private", messages(folder), folder / "mine", QUICK)
    return folder


@pytest.fixture
def in_its_place(made, tmp_path) -> Path:
    """The run's folder, with the personal model where the private one was: all that is missing is a
    guarantee.
    """
    shutil.copytree(made / "private", tmp_path / "private")
    shutil.copy(made / "mine" / "model.safetensors", tmp_path / "private" / "model.safetensors")
    return tmp_path / "private"


@pytest.fixture
def refused(monkeypatch, capsys):
    """What a command says on its way out where it refuses."""

    def said(*arguments) -> str:
        monkeypatch.setattr("sys.argv", ["taciturn", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    return said


# ——— What it learns ———


def test_it_learns_what_its_owner_says_and_says_what_changed(made, tmp_path):
    said = run_cli(
        "personalise",
        made / "private",
        messages(tmp_path),
        "--out",
        tmp_path / "mine",
        "--learning-rate",
        1,
    )
    done = personalise(made / "private", messages(tmp_path), tmp_path / "again", QUICK)
    assert done.after["loss"].value < 0.6 * done.before["loss"].value
    assert (done.messages, done.held_out, done.unknown) == (60, 6, 0)
    assert done.before["perplexity"].value == pytest.approx(
        _shown(said.output, "perplexity"), abs=0.1
    )
    assert "learned from 54 messages" in said.output
    assert "stays on this device" in said.output


def test_the_command_learns_as_the_library_does():
    defaults = {
        name: option.default
        for name, option in inspect.signature(personalise_command.personalise).parameters.items()
    }
    assert (
        Learning(
            epochs=defaults["epochs"],
            learning_rate=defaults["learning_rate"],
            general=defaults["general"],
            user_share=defaults["user_share"],
        )
        == Learning()
    )


def _shown(output: str, name: str) -> float:
    line = next(line for line in output.splitlines() if name in line)
    return float(line.split("│")[2])


def test_the_last_messages_are_not_trained_on(made, tmp_path):
    text, digests = tmp_path / "sent.txt", []
    first, last = [PHRASES[0]] * 18, [PHRASES[0]] * 2
    changed = {
        "first": [*first[:-1], PHRASES[1], *last],
        "last": [*first, *PHRASES[1:]],
        "nothing": [*first, *last],
    }
    for name, lines in changed.items():
        text.write_text("\n".join(lines))
        personalise(made / "private", text, tmp_path / name, QUICK._replace(epochs=2))
        digests.append(params_digest(load_model(tmp_path / name)[0]))
    assert digests[1] == digests[2]
    assert digests[0] != digests[2]  # the twin: the message before them is


def test_rehearsal_keeps_the_general_language():
    vocabulary = words()
    general = PublicCorpus.of(["wordm wordn wordo wordm worde wordl."] * 40, vocabulary, "made up")
    model = build.language_model(ModelSection(**CIFG), len(vocabulary))
    encoded = [[*vocabulary.encode(phrase), 3] for phrase in PHRASES] * 20
    cut = Unrolls(personal_model.UNROLL)
    start = personal_model.train_personal_model(
        model,
        model.init(jax.random.key(0)),
        list(map(list, general.documents)),
        cut=cut,
        learning=QUICK,
        dropout=False,
    )
    own, rehearsed = (
        personal_model.train_personal_model(
            model,
            start,
            encoded,
            cut=cut,
            learning=QUICK._replace(general=text),
            dropout=False,
        )
        for text in (None, general)
    )
    forgotten, kept = (
        evaluate(model, params, general.documents)["loss"].value for params in (own, rehearsed)
    )
    assert kept < 0.5 * forgotten


def test_general_text_is_named_as_a_source_and_must_have_the_models_words(made, tmp_path, refused):
    text = messages(tmp_path)
    PublicCorpus.of(["wordm wordn wordo."] * 20, words(), "a public book").save(tmp_path / "book")
    done = (
        "personalise",
        made / "private",
        text,
        "--out",
        tmp_path / "mine",
        "--general",
        tmp_path / "book",
    )
    run_cli(*done, "--learning-rate", 1)
    assert "a public book" in load_model(tmp_path / "mine")[1].public_sources
    others = Vocabulary(words=(*words().words[:-1], "another"))
    PublicCorpus.of(["another book."], others, "").save(tmp_path / "other")
    assert "other words than the model" in refused(
        "personalise",
        made / "private",
        text,
        "--out",
        tmp_path / "no",
        "--general",
        tmp_path / "other",
    )


def test_a_personal_model_can_be_trained_further(made, tmp_path):
    text = messages(tmp_path)
    once = personalise(made / "private", text, tmp_path / "once", QUICK._replace(epochs=1))
    twice = personalise(tmp_path / "once", text, tmp_path / "twice", QUICK)
    assert twice.before["loss"].value == once.after["loss"].value
    assert (
        load_model(tmp_path / "twice")[1]
        == load_model(tmp_path / "once")[1]
        == load_model(made / "mine")[1]
    )


def test_a_model_that_got_no_better_is_not_kept(made, tmp_path):
    for learning in (Learning(learning_rate=0.0), Learning(learning_rate=1e9)):
        with pytest.raises(DataError, match="did not improve"):
            personalise(made / "private", messages(tmp_path), tmp_path / "mine", learning)
    assert not (tmp_path / "mine").exists()


# ——— What comes out ———


def test_it_is_for_its_owners_eyes_and_names_what_it_started_from(made):
    mine, private = (load_model(made / name)[1] for name in ("mine", "private"))
    assert stat.S_IMODE((made / "mine").stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "mine" / "model.safetensors").stat().st_mode) == 0o600
    assert [path.name for path in (made / "mine").iterdir()] == ["model.safetensors"]
    assert mine == replace(private, personal=True)


def test_cards_that_are_not_personal_are_those_of_old(made):
    """What ledgers recorded before there were personal models must still name the same cards."""
    card = ModelCard(
        architecture={"kind": "lstm"},
        vocabulary=("<pad>", "word"),
        text={"language": "en"},
        run="run",
        ledger_head="head",
        round=3,
        public_sources=("a book",),
        sentences=True,
    )
    assert card_digest(card) == "382b4bfbd1049bc166cbf477a1d8e97f05fb462e6faea8de2b0a47f5f57fef27"
    assert card_digest(replace(card, personal=True)) != card_digest(card)
    with safetensors.safe_open(made / "private" / "model.safetensors", "numpy") as file:
        assert "personal" not in file.metadata()["taciturn"]
    assert not load_model(made / "private")[1].personal


# ——— Nothing leaves ———


def _exported(to):
    few = {"words": 16_000, "entries": 500}
    return lambda folder, made, out: FinishedRun(folder).export(out, to, non_private=True, **few)


def _warm_start(folder, made, out):
    people = Population(made / "people")
    recipe = tiny_recipe(people, model={**CIFG, "warm_start": str(folder)})
    return load_warm_start(recipe, people.vocabulary, Ledger(people.folder / FILE_NAME))


EXITS = {
    **{
        f"export --to {to}": _exported(to)
        for to in ("model", "onnx", "onnx-int8", "arpa", "combined", "js")
    },
    "warm_start": _warm_start,
    "guarantee": lambda folder, made, out: guarantee_of(load_word_model(folder)),
    "evaluate": lambda folder, made, out: FinishedRun(folder).evaluate(),
    "compare": lambda folder, made, out: FinishedRun(made / "private").compare(FinishedRun(folder)),
    "compare, the other way": lambda folder, made, out: FinishedRun(folder).compare(
        FinishedRun(made / "private")
    ),
}


SIBLINGS = {"export --to onnx-int8", "export --to combined"}  # of onnx and arpa


@pytest.mark.parametrize("way", mostly_slow(EXITS, *(set(EXITS) - SIBLINGS)))
def test_a_personal_model_leaves_by_no_way_wherever_it_lies_and_whatever_it_is_called(
    made, in_its_place, tmp_path, way
):
    if "onnx" in way:
        pytest.importorskip("onnxruntime")
    (tmp_path / "named").mkdir()
    renamed = shutil.copy(
        made / "mine" / "model.safetensors", tmp_path / "named" / "private.safetensors"
    )
    for folder in (made / "mine", in_its_place, renamed):
        with pytest.raises(
            ExportRefused,
            match="is a personal model of one person's own text, which stays on this device",
        ):
            EXITS[way](folder, made, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert EXITS[way](
        made / "private", made, tmp_path / "out"
    )  # the twin: the model it started from


def test_a_personal_model_of_public_text_is_not_taken_for_public_text(made, tmp_path):
    params, card = load_model(made / "private")
    save_model(
        tmp_path / "public.safetensors", params, replace(card, run=None, ledger_head=None, round=0)
    )
    personalise(tmp_path / "public.safetensors", messages(tmp_path), tmp_path / "mine", QUICK)
    with pytest.raises(ExportRefused, match="personal model"):
        guarantee_of(load_word_model(tmp_path / "mine"))
    assert "no user's text" not in _script(tmp_path / "mine")


def test_it_is_refused_for_its_card_even_with_the_parameters_of_the_run(
    in_its_place, made, tmp_path
):
    params, card = load_model(made / "private")
    save_model(in_its_place / "model.safetensors", params, replace(card, personal=True))
    with pytest.raises(ExportRefused, match="personal model"):
        FinishedRun(in_its_place).export(tmp_path / "out")


def test_it_is_not_passed_off_as_the_private_one_by_changing_its_card(in_its_place, made, tmp_path):
    params, card = load_model(in_its_place)
    save_model(in_its_place / "model.safetensors", params, replace(card, personal=False))
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        FinishedRun(in_its_place).export(tmp_path / "out")
    with pytest.raises(RecipeError, match="no ledger knows its parameters"):
        _warm_start(in_its_place, made, tmp_path)


# ——— At the keyboard ———


def _served(path: Path, ask: str) -> tuple[int, str]:
    server = make_keyboard_server([path], [], 0)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        host, _, home = server.url.removeprefix("http://").partition("/")
        connection = HTTPConnection(host, timeout=10)
        connection.request("GET", ask.format(home=home))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        server.close()


def _script(path: Path) -> str:
    status, script = _served(path, "/{home}model-1.js")
    assert status == 200
    return script


def test_the_page_says_that_it_is_personal_and_shows_no_guarantee(made):
    mine, private = _script(made / "mine"), _script(made / "private")
    sentence = "Personal model: learned from your own text, stays here."
    assert sentence in mine
    assert '"promises":false' in mine
    assert '"head":null' in mine
    assert "differential privacy" not in mine
    assert "run private at ledger row" in " ".join(
        mine.replace("\\n", " ").split()
    )  # where it started
    assert sentence not in private  # the twin
    assert "differential privacy" in private


@pytest.mark.parametrize("path", ["/", "/index.html", "/model-1.js", "//model-1.js"])
def test_others_on_this_machine_do_not_get_it_from_the_page(made, path):
    assert _served(made / "mine", path)[0] == 404
    assert (
        _served(made / "private", path.replace("//", "/"))[0] == 200
    )  # the twin: what may be shown to anyone


def test_its_address_is_not_shown_to_others_as_an_argument_of_a_browser(made, monkeypatch):
    def ended(self):
        raise KeyboardInterrupt

    opened: list[str] = []
    monkeypatch.setattr(KeyboardServer, "serve_forever", ended)
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert (
        "open the address yourself"
        in run_cli("keyboard", "open", made / "mine", "--port", 0).output
    )
    assert opened == []
    run_cli("keyboard", "open", made / "private", "--port", 0)
    assert len(opened) == 1


def test_people_may_type_with_it(made, tmp_path):
    text = messages(tmp_path)
    mine = simulate_typing([made / "mine"], Source(paths=[text]), False, 10, 100)
    private = simulate_typing([made / "private"], Source(paths=[text]), False, 10, 100)
    assert mine.typings[0]["keystroke_saving"].value > private.typings[0]["keystroke_saving"].value
    assert (
        mine.left_out is None
    )  # whom it, or the model before it, learned from is not known on a device


# ——— Its text ———


def test_the_text_is_deleted_where_that_is_asked_for_and_only_there(made, tmp_path):
    text = messages(tmp_path)
    personalise(made / "private", text, tmp_path / "kept", QUICK)
    assert text.exists()
    said = run_cli(
        "personalise",
        made / "private",
        text,
        "--out",
        tmp_path / "mine",
        "--delete-text",
        "--learning-rate",
        1,
    )
    assert not text.exists()
    assert f"{text} is deleted" in said.output.replace("\n", "")


def test_the_text_is_there_until_the_model_is_on_disk(made, tmp_path, monkeypatch):
    text, saved, synced = messages(tmp_path), personal_model.save_model, []

    def save(path, *arguments, **settings):
        saved(path, *arguments, **settings)
        assert text.exists()

    def sync(folder):
        synced.append(
            (folder, text.exists(), (tmp_path / "a" / "mine" / "model.safetensors").exists())
        )

    monkeypatch.setattr(personal_model, "save_model", save)
    monkeypatch.setattr(personal_model, "sync_folder", sync)
    monkeypatch.setattr(files, "sync_folder", sync)
    personalise(made / "private", text, tmp_path / "a" / "mine", QUICK, delete_text=True)
    (beside, *first), *others = synced
    assert (beside.parent, first) == (
        tmp_path / "a",
        [True, False],
    )  # where it is written before it takes its place
    assert others == [(tmp_path / "a", True, True), (tmp_path, True, True), (tmp_path, False, True)]


def test_whatever_fails_leaves_the_text_and_no_model(made, tmp_path, monkeypatch):
    text = messages(tmp_path)
    content = text.read_bytes()
    with pytest.raises(DataError, match="did not improve"):
        personalise(
            made / "private", text, tmp_path / "mine", Learning(learning_rate=0.0), delete_text=True
        )

    def full(path, *_, **__):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(personal_model, "save_model", full)
        with pytest.raises(OSError, match="No space"):
            personalise(made / "private", text, tmp_path / "mine", QUICK, delete_text=True)
    with monkeypatch.context() as patched:
        patched.setattr(
            personal_model, "fedavg_update", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            personalise(made / "private", text, tmp_path / "mine", QUICK, delete_text=True)
    assert text.read_bytes() == content
    assert not (tmp_path / "mine").exists()
    personalise(
        made / "private", text, tmp_path / "mine", QUICK, delete_text=True
    )  # the twin: nothing fails
    assert not text.exists()


def test_a_text_that_grew_meanwhile_is_not_deleted(made, tmp_path):
    text = messages(tmp_path)

    def typed(done, all):
        if done == all:
            text.write_text(text.read_text() + "a message that nobody learned from\n")

    with pytest.raises(DataError, match="changed meanwhile"):
        personalise(made / "private", text, tmp_path / "mine", QUICK, True, typed)
    assert "nobody learned from" in text.read_text()
    assert load_model(tmp_path / "mine")[1].personal


def test_what_cannot_be_deleted_whole_is_refused_before_any_training(made, tmp_path, monkeypatch):
    text = messages(tmp_path)
    (tmp_path / "link.txt").symlink_to(text)
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "link.txt", tmp_path / "folder"):
        with pytest.raises(DataError, match="a link or a folder"):
            personalise(made / "private", path, tmp_path / "mine", QUICK, True)
    os.link(text, tmp_path / "other.txt")
    with pytest.raises(DataError, match="another name"):
        personalise(made / "private", text, tmp_path / "mine", QUICK, True)
    (tmp_path / "other.txt").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: text.stat().st_uid + 1)
        with pytest.raises(DataError, match="somebody else"):
            personalise(made / "private", text, tmp_path / "mine", QUICK, True)
    text.write_bytes(text.read_bytes() + b"\xff\xfe broken\n")
    with pytest.raises(DataError, match="not UTF-8: 1"):
        personalise(made / "private", text, tmp_path / "mine", QUICK, True)
    assert text.exists()
    assert not (tmp_path / "mine").exists()
    assert personalise(made / "private", text, tmp_path / "mine", QUICK).left_out == {
        "rows that are not UTF-8": 1
    }


# ——— What cannot be used ———


def test_what_cannot_be_used_is_refused_in_a_sentence_and_nothing_is_written(
    made, tmp_path, refused
):
    text, out = messages(tmp_path), tmp_path / "mine"
    for name, content in (
        ("empty", ""),
        ("one", "worda wordb.\n"),
        ("strange", "Fußgänger überqueren\n" * 20),
    ):
        (tmp_path / f"{name}.txt").write_text(content)
    (tmp_path / "late.txt").write_text("worda wordb.\n" * 18 + "Fußgänger\n" * 2)
    with open(tmp_path / "two.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [("user", "text"), *((user, PHRASES[0]) for user in ("one", "other") * 10)]
        )
    PublicCorpus.of(PHRASES * 10, words(), "made up").save(tmp_path / "public")
    count_public(tmp_path / "public", tmp_path / "counted", "katz", 2)
    write_arpa(tmp_path / "model.arpa", katz([np.array([20, 21, 3])], 40, 2), words().words, [])
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "letter.txt").write_text("mine")
    asked = {
        (made / "private", tmp_path / "empty.txt", out): "holds no text",
        (
            made / "private",
            tmp_path / "one.txt",
            out,
        ): "holds one message, and at least two messages are needed",
        (made / "private", tmp_path / "strange.txt", out): "knows no word of the first 18 messages",
        (made / "private", tmp_path / "late.txt", out): "knows no word of the last 2 messages",
        (made / "private", tmp_path / "none.txt", out): "none.txt does not exist",
        (made / "private", tmp_path / "there", out): "is a folder; name one file",
        (made / "private", tmp_path / "two.csv", out): "holds the text of 2 people",
        (tmp_path / "counted", text, out): "holds n-grams, which are counted and not trained",
        (tmp_path / "model.arpa", text, out): "holds n-grams, which are counted and not trained",
        (
            tmp_path / "nothing",
            text,
            out,
        ): "nothing does not exist; name a folder with a model.safetensors",
        (text, text, out): "is not a model file",
        (made / "private", text, tmp_path / "there"): "exists already: name a new folder",
    }
    for (model, of, to), said in asked.items():
        assert said in refused("personalise", model, of, "--out", to)
        assert not out.exists()
    assert refused(
        "personalise", made / "private", tmp_path / "none.txt", "--out", out, "--delete-text"
    )
    assert [(path.name, path.read_text()) for path in (tmp_path / "there").iterdir()] == [
        ("letter.txt", "mine")
    ]


def test_a_table_of_one_person_is_read_as_other_commands_read_it(made, tmp_path):
    with open(tmp_path / "sent.csv", "w", newline="") as file:
        csv.writer(file).writerows([("user", "text"), *(("Me", phrase) for phrase in PHRASES * 10)])
    assert (
        personalise(made / "private", tmp_path / "sent.csv", tmp_path / "mine", QUICK).messages
        == 30
    )
