"""The lines beside an export run as they stand there."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import lettered_words
from taciturn.core import END
from taciturn.export.usage import FILE_NAME, write_javascript_usage
from taciturn.runs.finished import FinishedRun


def blocks(folder: Path, language: str) -> list[str]:
    text = (folder / FILE_NAME).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_in(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("to", ["onnx", "onnx-int8"])
def test_the_lines_beside_a_graph_print_its_ten_likeliest_words(finished_runs, tmp_path, to):
    pytest.importorskip("onnxruntime")
    run = FinishedRun(finished_runs / "private")
    run.export(tmp_path / "out", to)
    (lines,) = blocks(tmp_path / "out", "python")
    printed = run_in(tmp_path / "out", sys.executable, "-c", lines)
    model, vocabulary = run.model.model, run.model.vocabulary
    state = model.start()
    for place in range(vocabulary.first_word, vocabulary.first_word + 2):
        state = model.read(state, place)
    # Special tokens, the end among them, are never suggested.
    suggested = model.scores(state)[END + 1 :]
    best = vocabulary.words[END + 1 + int(suggested.argmax())]
    words = ast.literal_eval(printed)
    assert len(words) == 10
    assert best in words


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_lines_beside_a_script_print_what_a_keyboard_suggests(finished_runs, tmp_path):
    run = FinishedRun(finished_runs / "private")
    run.export(tmp_path / "out", "js")
    (lines,) = blocks(tmp_path / "out", "js")
    printed = run_in(tmp_path / "out", "node", "-e", lines)
    assert len(re.findall(r"'\w+'", printed)) == 3
    (page,) = blocks(tmp_path / "out", "html")
    name = json.loads(re.search(r"taciturn\.models\[(.*)\]", page)[1])
    (script,) = re.findall(r"<script>(.*)</script>", page)
    loaded = 'globalThis.window = globalThis; eval(require("fs").readFileSync("model.js", "utf8"));'
    assert name == "private"
    run_in(tmp_path / "out", "node", "-e", f"{loaded}\n{script}")


def test_the_name_of_a_run_ends_no_script_of_a_page():
    """A run may have come from anywhere."""
    name = "</script><script>alert(1)</script>"
    usage = write_javascript_usage(name, lettered_words())
    assert usage.count("</script>") == write_javascript_usage("run", lettered_words()).count(
        "</script>"
    )
    assert json.loads(re.search(r"taciturn\.models\[(.*)\]", usage)[1]) == name
