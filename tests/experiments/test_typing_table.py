"""Tables of people who type compare like with like, on the people that they name, and say which
command made them.
"""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from harness import lettered_words
from keyboard import table
from lib import run_lists
from taciturn.core import END
from taciturn.data.population import write_population
from taciturn.data.public import PublicCorpus
from taciturn.export.word_model import load_word_model
from taciturn.keyboard.typing_simulation import Typing, simulate
from taciturn.keyboard.user_history import WithHistory
from taciturn.runs.ngram_baselines import count_population

WORDS = lettered_words()
RESULTS = sorted(
    path
    for name in ("typing-*-shipped.json", "front-page.json")
    for path in run_lists.HERE.glob(f"keyboard/results/{name}")
)
SAID = "worda wordb wordc wordd worde wordf wordg wordh wordi wordj wordk wordl wordm wordn."


def ids(text: str) -> list[int]:
    return [*WORDS.encode(text), END]


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> Path:
    """N-grams of two kinds, and the people whom they were counted on."""
    folder = tmp_path_factory.mktemp("table")
    generator = np.random.default_rng(0)
    people = {}
    for person in range(40):
        words = np.cumsum(generator.choice([1, 1, 2], 40)) % 20
        people[f"{person}"] = [*(WORDS.first_word + words).tolist(), END]
    held_out = {f"held out {number}": ids(SAID) for number in range(12)}
    write_population(folder / "people", people, held_out, WORDS, {})
    for smoothing in ("katz", "kneser-ney"):
        count_population(folder / "people", folder / smoothing, smoothing, 3, non_private=True)
    return folder


@pytest.fixture
def typed(counted, tmp_path) -> dict[str, Typing]:
    """What three people type with both, without history and with."""
    messages = [[SAID, SAID], ["wordb wordd wordf.", "wordb wordd wordf."], ["worda wordc."]]
    typings = {}
    for name in ("katz", "kneser-ney"):
        for has_history in (False, True):
            row = table.Row(name, counted / name, has_history)
            typings[row.title] = table.type_with(row, messages, tmp_path, quick=True)
    return typings


def test_like_is_compared_with_like(typed):
    found = table.figures(typed, np.arange(3), table.COMPARED)
    assert list(found["changes"]) == ["kneser-ney", "kneser-ney, with history"]
    pooled = {title: typing.pool(np.arange(3)) for title, typing in typed.items()}

    def change(model: str, baseline: str) -> list[float]:
        return table.as_pair(pooled[model].change_from(pooled[baseline], "keystroke_saving"))

    shown = {title: changes["keystroke_saving"] for title, changes in found["changes"].items()}
    assert shown["kneser-ney"] == change("kneser-ney", "katz")
    assert shown["kneser-ney, with history"] == change(
        "kneser-ney, with history", "katz, with history"
    )
    # The twin: from the one without, history itself would look like a gain of the model.
    assert shown["kneser-ney, with history"] != change("kneser-ney, with history", "katz")


def test_figures_without_some_people_are_those_of_the_others(typed, counted):
    public = PublicCorpus.of([f"wordz {SAID} wordz"], WORDS, "read by anyone")
    public.save(counted / "public")
    messages = [[SAID, SAID], ["wordb wordd wordf.", "wordb wordd wordf."], ["worda wordc."]]
    overlap = table.find_public(messages, WORDS, [counted / "public"])
    assert overlap.is_found.tolist() == [True, False, False]
    without = table.describe_overlap(overlap, typed, table.COMPARED)["without"]
    assert without["people"] == 2
    for title, name in (("katz", "katz"), ("kneser-ney, with history", "kneser-ney")):
        model = load_word_model(counted / name).model
        if title != name:
            model = WithHistory(model)
        expected = simulate(model, WORDS, messages[1:])["accuracy_top1"]
        assert without["models"][title]["accuracy_top1"] == table.as_pair(expected)


def test_what_was_typed_is_kept_by_model_people_and_history(counted, tmp_path, monkeypatch):
    messages = [["worda wordb."], ["wordc wordd."]]
    row = table.Row("katz", counted / "katz", False)
    first = table.type_with(row, messages, tmp_path, quick=True)
    monkeypatch.setattr(table, "simulate_each", lambda *_, **__: pytest.fail("typed again"))
    again = table.type_with(row, messages, tmp_path, quick=True)
    assert np.array_equal(first.top1, again.top1)
    others = {
        "another model": (table.Row("katz", counted / "kneser-ney", False), messages, True),
        "history": (table.Row("katz", counted / "katz", True), messages, True),
        "other people": (row, messages[:1], True),
        "all figures": (row, messages, False),
    }
    for other_row, other_messages, quick in others.values():
        with pytest.raises(pytest.fail.Exception, match="typed again"):
            table.type_with(other_row, other_messages, tmp_path, quick=quick)


def test_a_command_names_files_elsewhere_without_where_they_lie():
    arguments = ["local/people", "/elsewhere/blogs.parquet", "ε = 4=/elsewhere/model", "--quick"]
    assert table.describe_command(arguments) == (
        "python experiments/keyboard/table.py local/people blogs.parquet 'ε = 4=model' --quick"
    )


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_committed_table_is_what_its_command_gives(path):
    result = json.loads(path.read_text())
    assert re.fullmatch("[0-9a-f]{40}", result["commit"])
    arguments = shlex.split(result["command"])
    assert not [argument for argument in arguments if argument.rpartition("=")[2].startswith("/")]
    named = [argument.rpartition("=")[0] for argument in arguments if "=" in argument]
    shares = result["people_share"]
    assert [name for name in named if "public" in name] == list(shares)
    assert all(0.5 < share < 0.95 for share in shares.values())
    both = [title for name in named for title in (name, f"{name}{table.WITH_HISTORY}")]
    for found in (result, result["overlap"]["without"]):
        assert list(found["models"]) == both
        assert found["from"] == both[0]
    assert result["overlap"]["without"]["people"] == result["people"] - result["overlap"]["people"]


@pytest.mark.parametrize("text", ["blogs", "sms"])
def test_the_guide_shows_what_dictionaries_saved(text):
    """What docs/keyboard.md says of a phone's dictionaries is what was measured."""
    path = run_lists.HERE / "keyboard" / "results" / f"typing-{text}-dictionary.json"
    measured = json.loads(path.read_text())
    page = (run_lists.HERE.parent / "docs" / "keyboard.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for name, metrics in measured["models"].items():
        value, margin = (100 * figure for figure in metrics["keystroke_saving"])
        (row,) = [line for line in rows if line.startswith(f"| {name} |")]
        assert f"| {value:.2f} ± {margin:.2f} |" in row
    for name, metrics in measured["changes"].items():
        value, margin = (100 * figure for figure in metrics["keystroke_saving"])
        (row,) = [line for line in rows if line.startswith(f"| {name}, over theirs |")]
        assert f"| {value:+.1f} ± {margin:.1f} % |" in row
