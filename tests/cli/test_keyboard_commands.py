"""From people's messages to files that keyboards load, as a person goes there; and everything that
must not leave.
"""

import csv
import json
import shutil
import urllib.request
from threading import Thread

import numpy as np
import pytest
from typer.testing import CliRunner

from harness import mostly_slow, quietly, tiny_recipe
from taciturn.cli import app, main
from taciturn.data.population import Population
from taciturn.data.same_people import trained_on
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import DataError
from taciturn.export import formats
from taciturn.export.aosp_dictionary_reader import read_dictionary
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import load_model, save_model
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import RunError
from taciturn.runs.loop import train_run
from taciturn.runs.ngram_baselines import count_population
from taciturn.runs.try_keyboard import make_keyboard_server

SAYINGS = (
    "I want to go home now.",
    "Do you know what time it is?",
    "We will see you there, I think.",
    "This is not the way to do it!",
    "He said that they would come back soon...",
)
FORMATS = {
    "model": "model.safetensors",
    "onnx": "model.onnx",
    "onnx-int8": "model.int8.onnx",
    "arpa": "model.arpa",
    "combined": "main_en.combined",
    "dict": "main_en.dict",
    "js": "model.js",
}


def run_cli(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A population of people who say the same few things, one private run, and one without
    noise.
    """
    folder = tmp_path_factory.mktemp("keyboard")
    generator = np.random.default_rng(0)
    with open(folder / "chats.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "text"])
        for person in range(60):
            writer.writerows(
                [f"person {person}", saying] for saying in generator.choice(SAYINGS, 8)
            )
    built = run_cli(
        "data",
        "build",
        folder / "chats.csv",
        "--out",
        folder / "people",
        "--vocabulary",
        200,
        "--held-out",
        0.3,
        "--least-tokens",
        5,
    )
    assert built.exit_code == 0
    people = Population(folder / "people")
    cifg = {"kind": "cifg", "width": 8, "units": 12}
    train_run(
        tiny_recipe(people, model=cifg, run={"evaluate_every": 6, "seed": None}),
        folder / "private-run",
        quietly,
    )
    plain = tiny_recipe(
        people,
        algorithm="fedavg",
        model=cifg,
        privacy={"noise_multiplier": None},
        participation={"cohort": 10},
    )
    train_run(plain, folder / "plain-run", quietly)
    return folder


@pytest.mark.parametrize(
    "to", mostly_slow(FORMATS, *(set(FORMATS) - {"onnx-int8", "combined"}))
)  # siblings of onnx and arpa
def test_every_export_carries_its_guarantee_and_was_held_against_the_model(made, tmp_path, to):
    if to.startswith("onnx"):
        pytest.importorskip("onnxruntime")
    exported = FinishedRun(made / "private-run").export(
        tmp_path / "out", to, words=20_000, entries=2000
    )
    guarantee = Ledger(made / "people" / "ledger.jsonl").guarantee("private-run")
    content = (tmp_path / "out" / FORMATS[to]).read_bytes()
    assert json.loads((tmp_path / "out" / "guarantee.json").read_text())["head"] == guarantee.head
    assert guarantee.head.encode() in content
    if to == "model":
        assert exported.check is None
    else:
        assert exported.check is not None
        # Of a model that is mostly noise, a word list keeps no best word, but about its
        # probabilities.
        if to in ("combined", "dict"):
            assert exported.check.difference < 0.15
        else:
            assert exported.check.agreement > (0.15 if to == "arpa" else 0.98)
        assert exported.check.positions > 1000


def test_the_command_says_why_a_word_list_differs_and_does_not_alarm(made, tmp_path):
    said = run_cli(
        "export",
        made / "private-run",
        "--to",
        "combined",
        "--samples",
        20_000,
        "--out",
        tmp_path / "out",
    ).output
    assert "as expected: this file looks back at a word or two" in said
    assert "probabilities differ" not in said


def test_the_command_says_what_it_wrote_and_how_near_it_is(made, tmp_path):
    pytest.importorskip("onnxruntime")
    said = " ".join(
        run_cli(
            "export", made / "private-run", "--to", "onnx", "--out", tmp_path / "out"
        ).output.split()
    )
    assert "the same best word at 100.00%; probabilities differ by" in said
    assert "model.onnx" in said
    assert "ε =" in said


@pytest.mark.parametrize("to", FORMATS)
def test_a_model_without_a_guarantee_is_exported_only_with_non_private(made, tmp_path, to):
    with pytest.raises(ExportRefused, match="no privacy"):
        FinishedRun(made / "plain-run").export(tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_guarantee_says_so_in_the_file(made, tmp_path):
    FinishedRun(made / "plain-run").export(tmp_path / "js", "js", non_private=True)
    assert "NO privacy guarantee" in (tmp_path / "js" / "model.js").read_text()


@pytest.mark.parametrize("to", FORMATS)
def test_changed_parameters_leave_in_no_form(made, tmp_path, to):
    shutil.copytree(made / "private-run", tmp_path / "private-run")
    params, card = load_model(tmp_path / "private-run")
    changed = {**params, "word_bias": params["word_bias"] + 1e-6}
    save_model(tmp_path / "private-run" / "model.safetensors", changed, card)
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        FinishedRun(tmp_path / "private-run").export(tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


def test_a_file_that_does_not_say_what_the_model_says_is_not_written(made, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    right = formats.onnx_scores
    monkeypatch.setattr(
        formats, "onnx_scores", lambda *arguments: np.roll(right(*arguments), 1, axis=1)
    )
    with pytest.raises(ExportRefused, match="nothing was written"):
        FinishedRun(made / "private-run").export(tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow  # sampled word by word, over windows
def test_a_transformer_leaves_as_n_grams(made, tmp_path):
    transformer = {"kind": "transformer", "width": 4, "units": None, "layers": 1, "heads": 1}
    train_run(
        tiny_recipe(
            Population(made / "people"), model=transformer, run={"rounds": 3, "seed": None}
        ),
        tmp_path / "transformer",
        quietly,
    )
    few = {"words": 16_000, "entries": 500}
    assert (
        FinishedRun(tmp_path / "transformer").export(tmp_path / "arpa", "arpa", **few).check
        is not None
    )


def test_a_blocked_word_is_in_no_word_list(made, tmp_path):
    few = {"words": 16_000, "entries": 2000, "public_words": 300}
    for blocklist, there in (([], True), (["Home"], False)):
        out = tmp_path / f"out-{there}"
        FinishedRun(made / "private-run").export(out, "combined", blocklist=blocklist, **few)
        assert ("word=home," in (out / "main_en.combined").read_text()) == there
    FinishedRun(made / "private-run").export(tmp_path / "d", "dict", blocklist=["Home"], **few)
    words = read_dictionary(tmp_path / "d" / "main_en.dict").words
    assert "home" not in words
    assert "want" in words


def test_counting_users_words_is_refused_without_non_private(made, tmp_path):
    before = (made / "people" / "ledger.jsonl").read_bytes()
    with pytest.raises(RunError, match="no guarantee"):
        count_population(made / "people", tmp_path / "ngram", "katz", 3, non_private=False)
    assert (made / "people" / "ledger.jsonl").read_bytes() == before


def test_counted_n_grams_are_in_the_ledger_before_the_first_text_is_read(
    made, tmp_path, monkeypatch
):
    def read(self, position):
        rows = Ledger(made / "people" / "ledger.jsonl").run_rows("cut-off")
        assert [row["kind"] for row in rows] == ["open", "charge"]
        raise KeyboardInterrupt

    monkeypatch.setattr(Texts, "__getitem__", read)
    with pytest.raises(KeyboardInterrupt):
        count_population(made / "people", tmp_path / "cut-off", "katz", 3, non_private=True)
    assert Ledger(made / "people" / "ledger.jsonl").guarantee("cut-off").epsilon == np.inf


def test_counted_n_grams_say_that_they_have_no_guarantee_and_leave_only_so(made, tmp_path):
    counted = run_cli(
        "keyboard",
        "ngram",
        made / "people",
        "--out",
        tmp_path / "kn",
        "--non-private",
        "--order",
        3,
    )
    assert "NO privacy guarantee" in counted.output
    assert "NO privacy guarantee" in (tmp_path / "kn" / "guarantee.txt").read_text()
    with pytest.raises(ExportRefused, match="no privacy"):
        FinishedRun(tmp_path / "kn").export(tmp_path / "out", "arpa")
    exported = FinishedRun(tmp_path / "kn").export(tmp_path / "out", "arpa", non_private=True)
    assert exported.check is not None
    assert exported.check.agreement == 1.0
    assert "NO privacy guarantee" in (tmp_path / "out" / "model.arpa").read_text()
    FinishedRun(tmp_path / "kn").export(tmp_path / "list", "combined", non_private=True)
    assert "NO privacy" in (tmp_path / "list" / "main_en.combined").read_text().splitlines()[0]


def test_people_who_were_trained_on_do_not_type(made, tmp_path):
    run_cli(
        "keyboard",
        "ngram",
        made / "people",
        "--out",
        tmp_path / "kn-typing",
        "--non-private",
        "--order",
        3,
    )
    ran = run_cli(
        "keyboard",
        "evaluate",
        made / "private-run",
        tmp_path / "kn-typing",
        "--text",
        made / "chats.csv",
        "--json",
    )
    tried = json.loads(ran.output)
    trained = len(Population(made / "people"))
    assert tried["people"] == 60 - trained
    private, counted = tried["models"]
    assert 0 < private["keystroke_saving"]["value"] < counted["keystroke_saving"]["value"]


def test_text_of_people_who_were_trained_on_alone_is_refused(made, tmp_path):
    is_known = trained_on(made / "people")
    with open(made / "chats.csv") as file, open(tmp_path / "trained.csv", "w", newline="") as kept:
        header, *rows = csv.reader(file)
        csv.writer(kept).writerows([header, *(row for row in rows if is_known(row[0]))])
    with pytest.raises(DataError, match="were trained on"):
        run_cli("keyboard", "evaluate", made / "private-run", "--text", tmp_path / "trained.csv")


def test_two_models_are_shown_as_an_a_b_table(made, tmp_path):
    said = run_cli(
        "keyboard",
        "evaluate",
        made / "private-run",
        made / "plain-run",
        "--text",
        made / "chats.csv",
        "--history",
    ).output
    assert "keystroke saving rate" in said
    assert "B over A" in said
    assert "with each person's own history" in said


def test_history_is_given_to_both_or_to_neither(made):
    """Of one model twice there is no change. The twin: one without, beside one with, has one."""
    found = {}
    for history in ([], ["--history"]):
        asked = ["keyboard", "evaluate", made / "private-run", made / "private-run"]
        ran = run_cli(*asked, "--text", made / "chats.csv", "--json", *history)
        content = json.loads(ran.output)
        assert content["change"]["keystroke_saving"]["value"] == 0.0
        found[bool(history)] = content["models"][0]["keystroke_saving"]["value"]
    assert found[False] != found[True]


def test_the_page_serves_each_model_with_its_guarantee(made):
    server = make_keyboard_server([made / "private-run", made / "plain-run"], ["home"], 0)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = urllib.request.urlopen(server.url).read().decode()
        private, plain = (
            urllib.request.urlopen(f"{server.url}model-{n}.js").read().decode() for n in (1, 2)
        )
    finally:
        server.close()
    assert "model-1.js" in page
    guarantee = Ledger(made / "people" / "ledger.jsonl").guarantee("private-run")
    assert guarantee.head in private
    assert "NO privacy guarantee" in plain


def test_two_models_of_one_name_are_told_apart(made):
    server = make_keyboard_server([made / "private-run", made / "private-run"], [], 0)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        scripts = [
            urllib.request.urlopen(f"{server.url}model-{n}.js").read().decode() for n in (1, 2)
        ]
    finally:
        server.close()
    for name, script, other in (("private-run A", *scripts), ("private-run B", *scripts[::-1])):
        assert name in script
        assert name not in other


def test_the_page_shows_no_model_that_its_ledger_does_not_know(made, tmp_path):
    (tmp_path / "stranger").mkdir()
    for name in ("recipe.toml", "model.safetensors"):
        (tmp_path / "stranger" / name).write_bytes((made / "private-run" / name).read_bytes())
    content = bytearray((tmp_path / "stranger" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "stranger" / "model.safetensors").write_bytes(content)
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        make_keyboard_server([tmp_path / "stranger"], [], 0)


def test_errors_are_sentences(made, tmp_path, monkeypatch, capsys):
    (tmp_path / "half.arpa").write_text("\\data\\\nngram 1=5\n\n\\1-grams:\n-1\ta\n")
    FinishedRun(made / "private-run").export(tmp_path / "exported")
    asked = {
        (
            "keyboard",
            "evaluate",
            tmp_path / "half.arpa",
            "--text",
            made / "chats.csv",
        ): "half.arpa, line",
        (
            "keyboard",
            "evaluate",
            tmp_path / "exported",
            "--text",
            made / "chats.csv",
        ): "is an export",
        (
            "keyboard",
            "open",
            made / "private-run",
            "--blocklist",
            tmp_path / "none.txt",
        ): "none.txt cannot be read",
        (
            "export",
            made / "private-run",
            "--out",
            tmp_path / "exported",
        ): "exists already: name a new folder",
    }
    for arguments, said in asked.items():
        monkeypatch.setattr("sys.argv", ["taciturn", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_n_grams_of_two_texts_say_on_whom_their_weight_was_fitted(made, tmp_path):
    """Nobody here has a message of 13 words that could stand in the public text."""
    (tmp_path / "other.txt").write_text("\n\n".join(SAYINGS))
    asked = ["keyboard", "ngram", made / "people", "--public", tmp_path / "other.txt"]
    counted = run_cli(*asked, "--out", tmp_path / "of-both", "--non-private", "--order", 2)
    said = " ".join(counted.output.split())
    held_back = len(Population(made / "people")) // 10
    assert f"fitted on {held_back} of the people to learn from" in said
    assert "No sequence of 13 tokens of theirs stands in the public text" in said
    assert "each person's history" in said
