"""What every format keeps: what is said of a model, what is blocked, and that what is checked is
what is written.
"""

import re
from dataclasses import fields, replace

import numpy as np
import pytest

from harness import lettered_words, trained
from pages import REFUSED, counted
from taciturn.data.population import Population
from taciturn.export import formats
from taciturn.export.aosp_dictionary import Entry, Follower, to_level
from taciturn.export.aosp_dictionary_reader import read_dictionary
from taciturn.export.aosp_dictionary_writer import write_dictionary
from taciturn.export.arpa import read_arpa, write_arpa
from taciturn.export.combined import write_combined
from taciturn.export.onnx import onnx_model
from taciturn.export.options import OPTIONS
from taciturn.export.word_model import load_word_model
from taciturn.models.stepping import Recurrent
from taciturn.release.gate import ExportRefused
from taciturn.runs.finished import FinishedRun

FEW = {"words": 16_000, "entries": 2000, "public_words": 300}


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"to": "onyx"}, r"`to` must be one of model, onnx, .*, js, not 'onyx'"),
        ({"to": ["onnx"]}, r"`to` must be one of model, onnx, .*, js, not \['onnx'\]"),
        ({"to": "arpa", "samples": 9}, r"no argument 'samples'; .* it takes blocklist, words, ent"),
        ({"loaded": None}, r"no argument 'loaded'"),
    ],
)
def test_what_no_export_has_is_refused_before_anything_is_written(
    finished_runs, tmp_path, asked, answer
):
    with pytest.raises(ExportRefused, match=answer):
        FinishedRun(finished_runs / "private").export(tmp_path / "out", **asked)
    assert not list(tmp_path.iterdir())


def test_every_argument_of_an_export_is_named_in_its_refusal():
    of_the_run = {"loaded", "guarantee", "learned_from"}
    own = {field.name for field in fields(formats.Export)} - of_the_run - {"to", "non_private"}
    assert set(OPTIONS) == own


def test_a_word_list_made_by_a_simulation_says_so(copied_runs, tmp_path):
    population = Population(copied_runs / "people")
    trained(
        population,
        tmp_path / "seeded",
        run={"rounds": 6, "evaluate_every": 6, "save_every": 6, "seed": 1},
    )
    FinishedRun(tmp_path / "seeded").export(tmp_path / "out", "combined", non_private=True, **FEW)
    assert (
        "simulation" in (tmp_path / "out" / "main_en.combined").read_text().splitlines()[0].lower()
    )


def test_what_is_sampled_from_a_model_without_privacy_is_not_said_to_cost_none(
    finished_runs, tmp_path
):
    FinishedRun(finished_runs / "plain").export(
        tmp_path / "out", "combined", non_private=True, **FEW
    )
    assert (
        "costs no privacy"
        not in (tmp_path / "out" / "main_en.combined").read_text().splitlines()[0]
    )


def test_a_statement_cannot_begin_the_data_of_an_arpa_file(tmp_path):
    model = counted(lettered_words(), "worda wordb .")
    said = ["a\n\\data\\\nngram 1=0\n\n\\end\\", "b\r\\data\\", "c\u2028\\data\\", "d\x0b\\data\\"]
    write_arpa(tmp_path / "model.arpa", model, lettered_words().words, said)
    assert read_arpa(tmp_path / "model.arpa")[0].order == 3
    content = (tmp_path / "model.arpa").read_text()
    assert content.splitlines().count("\\data\\") == 1


def test_a_language_cannot_write_words_into_a_list(tmp_path):
    model = counted(lettered_words(), "worda wordb .")
    injected = "en,description=epsilon 0.1,date=1,version=99\n word=injected,f=255"
    try:
        write_combined(
            tmp_path / "x",
            model,
            lettered_words().words,
            language=injected,
            description="made up",
            version=18,
            date=0,
        )
    except (ValueError, *REFUSED):
        return
    assert "word=injected" not in (tmp_path / "x").read_text()


def test_a_blocked_word_is_in_no_arpa_file(finished_runs, tmp_path):
    FinishedRun(finished_runs / "private").export(
        tmp_path / "out", "arpa", blocklist=["Worda"], **FEW
    )
    grams = (tmp_path / "out" / "model.arpa").read_text().split("\\data\\")[1]
    assert "worda" not in grams.split()


def test_a_blocklist_that_a_format_cannot_hold_is_not_passed_over_in_silence(
    finished_runs, tmp_path
):
    with pytest.raises(REFUSED, match="cannot hold a blocklist"):
        FinishedRun(finished_runs / "private").export(
            tmp_path / "out", "model", blocklist=["worda"]
        )


def test_where_fewer_than_ten_words_are_allowed_the_graph_offers_none_that_is_not(finished_runs):
    runtime = pytest.importorskip("onnxruntime")
    model = load_word_model(finished_runs / "private").model
    assert isinstance(model, Recurrent)
    allowed = range(len(lettered_words()) - 5, len(lettered_words()))
    never = [word for word in range(len(lettered_words())) if word not in allowed]
    graph = onnx_model(
        cell=model.cell,
        weights=model.weights,
        never=never,
        restarts=(),
        about={},
        as_bytes=False,
    )
    session = runtime.InferenceSession(graph.SerializeToString())
    state = {
        one.name: np.zeros((1, one.shape[1]), np.float32)
        for one in session.get_inputs()
        if one.name != "word"
    }
    best = session.run(["top_words"], {"word": np.array([2]), **state})[0]
    assert set(best.ravel().tolist()) <= set(allowed)


def test_a_word_list_that_does_not_say_what_the_model_says_is_not_written(
    finished_runs, tmp_path, monkeypatch
):
    """The n-grams are checked, and not the file that is made of them."""
    written = formats.write_combined

    def wrong(path, model, listed, **others):
        written(path, model, (*listed[:16], *reversed(listed[16:])), **others)

    monkeypatch.setattr(formats, "write_combined", wrong)
    with pytest.raises(ExportRefused, match="nothing was written"):
        FinishedRun(finished_runs / "private").export(tmp_path / "out", "combined", **FEW)


def test_a_dictionary_has_the_words_and_followers_of_a_word_list(finished_runs, tmp_path):
    run = FinishedRun(finished_runs / "private")
    run.export(tmp_path / "text", "combined", **FEW)
    run.export(tmp_path / "phone", "dict", **FEW)
    lines = (tmp_path / "text" / "main_en.combined").read_text().splitlines()
    dictionary = read_dictionary(tmp_path / "phone" / "main_en.dict")
    listed = {}
    for line in lines[1:]:
        kind, word, f = re.fullmatch(r" +(word|bigram)=([^,]*),f=(\d+)", line).groups()
        if kind == "word":
            listed[word] = Entry(frequency=int(f))
            last = word
        else:
            follower = Follower(word, int(f))
            followers = (*listed[last].followers, follower)
            listed[last] = replace(listed[last], followers=followers)
    assert any(entry.followers for entry in listed.values())
    for word, entry in listed.items():
        levels = tuple(
            Follower(after, to_level(listed[after].frequency, f)) for after, f in entry.followers
        )
        assert dictionary.words[word] == replace(entry, followers=levels)
    assert len(dictionary.words) == len(listed)
    assert dictionary.header["locale"] == "en"
    said = dictionary.header["description"]
    assert f"ledger row {run.guarantee.head}" in said
    assert "epsilon" in said
    assert "at delta" in said


def test_a_dictionary_that_does_not_say_what_the_model_says_is_not_written(
    finished_runs, tmp_path, monkeypatch
):
    run = FinishedRun(finished_runs / "private")
    right = formats.list_words
    with monkeypatch.context() as broken:
        broken.setattr(
            formats,
            "list_words",
            lambda model, words, *others: right(
                model, (*words[:16], *reversed(words[16:])), *others
            ),
        )
        with pytest.raises(ExportRefused, match="nothing was written"):
            run.export(tmp_path / "out", "dict", **FEW)

    def write_less(path, dictionary):
        words = dict(list(dictionary.words.items())[:1])
        words = {word: replace(entry, followers=()) for word, entry in words.items()}
        write_dictionary(path, replace(dictionary, words=words))

    monkeypatch.setattr(formats, "write_dictionary", write_less)
    with pytest.raises(ExportRefused, match="reads back as another one"):
        run.export(tmp_path / "out", "dict", **FEW)
    assert not (tmp_path / "out").exists()
