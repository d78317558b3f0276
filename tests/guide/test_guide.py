"""The guide does what it says: its commands and programs are run here, in order, on text that is
made here; and its pages build.

Of a page under docs/, blocks marked `sh` and `python` are run, and one that has a title is a file.
Others (`text`, or no mark) are not.
"""

import ast
import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import taciturn as tt
from harness import carried_away, copied_population, trained
from taciturn.algorithms.pretraining import Schedule
from taciturn.cli import app
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import DataError, public_vocabulary
from taciturn.recipe import autoplan
from taciturn.recipe.sections import ModelSection
from taciturn.release import model_file
from taciturn.runs import for_people
from taciturn.runs.finished import FinishedRun
from taciturn.runs.pretrain import pretrain_model

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
WORDS = 300
WAITS = "taciturn keyboard open"  # for somebody to type
QUICKER = {
    "data build": f"--vocabulary {WORDS}",
    "--to phone": "--samples 1000 --public-words 2000",
    "--to arpa": "--samples 1000",
    "keyboard evaluate": "--people 10",
}
ON_THEIR_OWN = ("walks/in_a_hurry.md", "walks/own_algorithm.md", "walks/word_list.md")
AFTER_THE_TUTORIAL = (
    "guarantee.md",
    "how_to/choose_epsilon.md",
    "how_to/audit.md",
    "how_to/export.md",
    "how_to/fleet.md",
)


def blocks(page):
    return BLOCK.findall((DOCS / page).read_text())


def follow(page, run):
    """What a reader does; `run` says how a command is."""
    known = {"__name__": "guide"}
    for kind, title, block in blocks(page):
        if title:
            Path(title).write_text(block)
        elif kind == "python":
            exec(compile(block, page, "exec"), known)
        elif kind == "sh":
            for line in block.splitlines():
                if not line.startswith(WAITS):
                    run(line)
    return known


def here(line):
    """In this process, where taciturn is imported and compiled once; with fewer words, and less
    text made up and typed.
    """
    if not line.startswith("taciturn "):
        return in_a_shell(line)
    more = " ".join(more for part, more in QUICKER.items() if part in line)
    done = CliRunner().invoke(
        app, shlex.split(f"{line} {more}", comments=True)[1:], catch_exceptions=False
    )
    assert done.exit_code == 0, f"{line}: {done.output}"
    return done.output


def in_a_shell(line):
    program = re.sub("^python ", f"{shlex.quote(sys.executable)} ", line)
    program = re.sub(
        "(^|; do )taciturn ",
        rf"\1{shlex.quote(sys.executable)} -c 'from taciturn.cli import main; main()' ",
        program,
    )
    return subprocess.run(program, shell=True, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder to be in; the start that ships is a small one, a machine has one speed, and
    trainings have few rounds.
    """
    words = public_vocabulary(WORDS)
    text = Texts.of([np.arange(5, 105)] * 10, len(words))
    shape = ModelSection(kind="cifg", width=8, units=12)
    pretrain_model(
        PublicCorpus(text, words, "made-up text"),
        shape,
        Schedule(epochs=1, batch_size=8),
        tmp_path / "start",
        lambda *_: None,
    )
    (tmp_path / "start" / "model.safetensors").rename(tmp_path / "start" / "english.safetensors")
    monkeypatch.setattr(model_file, "_STARTS", tmp_path / "start")
    timing = for_people.Timing(compile_s=2.0, users_per_s=0.6, overhead_s=0.0, evaluate_s=1.0)
    monkeypatch.setattr(for_people, "measure_speed", lambda *_: timing)
    monkeypatch.setattr(autoplan, "with_exact_noise", lambda task, plan: plan)
    monkeypatch.setattr(autoplan, "ROUNDS", (12,))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def messages(people):
    (program,) = (block for _, title, block in blocks("tutorial.md") if title == "make_messages.py")
    assert "range(3000)" in program
    Path("make_messages.py").write_text(program.replace("range(3000)", f"range({people})"))
    in_a_shell("python make_messages.py")


@pytest.mark.slow
def test_the_tutorial_and_what_continues_it(small):
    def with_fewer_people(line):
        return messages(240) if line == "python make_messages.py" else here(line)

    follow("tutorial.md", with_fewer_people)
    assert "(4.00, " in Path("runs/first/guarantee.txt").read_text()
    assert "(4.00, " in Path("for-phones/read_me.html").read_text()
    for page in AFTER_THE_TUTORIAL:
        follow(page, here)
    assert json.loads(Path("runs/watched/audit.json").read_text())
    assert json.loads(Path("costs.json").read_text())


@pytest.mark.parametrize("page", ON_THEIR_OWN)
def test_a_walk_leads_where_it_says(page, small):
    messages(240)
    found = follow(page, here)
    made = {
        "in_a_hurry": "runs/people-1/guarantee.txt",
        "word_list": "phone/read_me.html",
        "own_algorithm": "ledger.jsonl",
    }
    assert Path(made[Path(page).stem]).exists()
    assert "guarantee" not in found or found["guarantee"].releases == 8


def first_screens_from_python() -> set[str]:
    """Return the first program of the page on Python, and those of README, without comments."""
    first, *_ = (block for kind, _, block in blocks("api.md") if kind == "python")
    readme = BLOCK.findall((ROOT / "README.md").read_text())
    programs = [first, *(block for kind, _, block in readme if kind == "python")]
    return {ast.unparse(ast.parse(program)) for program in programs}


def test_the_same_from_python_does_what_the_commands_do(small, monkeypatch):
    build = tt.build_population
    monkeypatch.setattr(tt, "build_population", partial(build, vocabulary=WORDS))
    for number, program in enumerate(first_screens_from_python()):
        (small / str(number)).mkdir()
        monkeypatch.chdir(small / str(number))
        messages(240)
        known = {"tt": tt}
        exec(compile(program, "the first screen", "exec"), known)
        assert known["run"].folder == Path("runs/people-1")
        assert 3.9 < known["run"].guarantee.epsilon <= 4
        assert "# " in Path("runs/people-1.toml").read_text()


@pytest.mark.slow
def test_the_tutorial_as_it_is_printed(tmp_path, monkeypatch):
    """With the model that ships, and all of its people."""
    monkeypatch.chdir(tmp_path)
    follow("tutorial.md", in_a_shell)
    said = json.loads(Path("runs/first/guarantee.json").read_text())
    assert said["private"]
    assert 3.9 < said["epsilon"] <= 4


def test_every_page_with_commands_is_followed():
    with_commands = {
        str(page.relative_to(DOCS))
        for page in DOCS.rglob("*.md")
        if re.search(r"^```sh", page.read_text(), re.MULTILINE)
    }
    assert with_commands <= {
        "tutorial.md",
        "how_to/warehouse.md",
        *ON_THEIR_OWN,
        *AFTER_THE_TUTORIAL,
    }  # the warehouse's: test_stores.py
    assert len(with_commands) > 6


def test_a_command_that_fails_is_noticed(small):
    """The twin that must fail."""
    with pytest.raises(DataError, match="nothing does not exist"):
        here("taciturn data show nothing")
    with pytest.raises(AssertionError, match="No such option"):
        here("taciturn data show --nothing")


PAGES = [
    *ROOT.glob("*.md"),
    *(
        page
        for room in ("benchmarks", "docs", "experiments", "src")
        for page in (ROOT / room).rglob("*.md")
    ),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_wrapped(page):
    """But for tables, which cannot be."""
    wide = [
        line
        for line in page.read_text().splitlines()
        if len(line) > 120 and not line.startswith("|")
    ]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = [
        target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in target
    ]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_the_guide_builds_strictly_and_asks_for_nothing_over_a_network(tmp_path):
    pytest.importorskip("mkdocs")
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = {
        str(path.relative_to(tmp_path / "site")): path.read_text()
        for path in (tmp_path / "site").rglob("*.html")
    }
    assert {
        "index.html",
        "tutorial.html",
        "api.html",
        "experiments/index.html",
        "walks/word_list.html",
    } <= set(pages)
    fetched = re.compile(
        r'<(?:script|img|iframe|source)[^>]*src="?(?:https?:)?//'
        r'|<link[^>]*rel="?stylesheet[^>]*href="?(?:https?:)?//'
    )
    assert [
        page
        for page, content in pages.items()
        if fetched.search(content) or "fonts.googleapis" in content
    ] == []
    assert 'id="taciturn.runs.train.train"' in pages["api.html"]


def test_the_schema_of_a_statement_is_that_of_statements(finished_runs, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((DOCS / "guarantee.schema.json").read_text())
    trained(
        copied_population(finished_runs / "people", tmp_path / "people"),
        tmp_path / "seeded",
        run={"seed": 3},
    )
    for run in (finished_runs / "private", finished_runs / "plain", tmp_path / "seeded"):
        said = json.loads((run / "guarantee.json").read_text())
        jsonschema.validate(said, schema)
        assert set(said) == set(schema["required"])
        # Only a run that ended early has the one, only one away from its ledger the other.
        fields = {*said, "ended_early", "signed"}
        assert fields == set(schema["properties"])
        page = (DOCS / "guarantee.md").read_text()
        assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == fields
    early = {"declared": 9, "epsilon_of_made": 0.5, "epsilon_ex_post": "infinity"}
    jsonschema.validate(said | {"ended_early": early}, schema)
    carried_away(finished_runs / "private", tmp_path / "away")
    FinishedRun(tmp_path / "away").export(tmp_path / "out")
    stated = json.loads((tmp_path / "out" / "guarantee.json").read_text())
    jsonschema.validate(stated, schema)
    assert stated["signed"]
    with pytest.raises(jsonschema.ValidationError, match="-1 is less than the minimum"):
        jsonschema.validate(said | {"releases": -1}, schema)
