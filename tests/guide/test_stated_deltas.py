"""Every ε that is shown states its δ: on pages, in pictures, in terminals (stated_deltas.py)."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import quietly, tiny_recipe
from stated_deltas import bare_in_html, bare_in_output, bare_in_picture, bare_on_page
from taciturn.cli import app, demo, output, progress_display
from taciturn.data.population import Population
from taciturn.recipe.text import save_recipe
from taciturn.runs.loop import train_run

ROOT = Path(__file__).parents[2]
ROOMS = ("benchmarks", "docs", "experiments", "src")
PAGES = [*ROOT.glob("*.md"), *(page for room in ROOMS for page in (ROOT / room).rglob("*.md"))]
PICTURES = [picture for room in ROOMS for picture in (ROOT / room).rglob("*.svg")]


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_a_page_states_the_delta_of_every_epsilon(page):
    found = bare_on_page(page.read_text())
    assert [f"{short(page)}:{bare.line}: {bare.text}" for bare in found] == []


@pytest.mark.parametrize("picture", PICTURES, ids=short)
def test_a_picture_states_the_delta_of_every_epsilon(picture):
    assert bare_in_picture(picture.read_text()) == []


PLAN = "plan --population 100000 --rounds 50 --report-goal 1000 --mechanism"


@pytest.mark.parametrize(
    ("command", "shows"),
    [
        ("evaluate private", r"ε at δ = \S+\s*│\s*\d"),
        ("compare private plain", r"private  \(ε = \d"),
        ("ledger show people", r"All runs on these people together: ε = "),
        ("report private --no-open", "report.html"),
        ("export private --to js --out js", r"ε = \d"),
        (f"{PLAN} tree --noise-multiplier 2", "┃ +ε ┃"),
        (f"{PLAN} poisson --epsilon 2", "┃ +ε ┃"),
    ],
)
def test_a_command_states_the_delta_of_every_epsilon(copied_runs, monkeypatch, command, shows):
    monkeypatch.chdir(copied_runs)
    printed = CliRunner().invoke(app, command.split(), catch_exceptions=False).output
    assert re.search(shows, printed), printed
    assert bare_in_output(printed) == []


@pytest.fixture
def trained_run(population: Population, tmp_path):
    """A run as `train_run` returns it, which knows where it started."""
    recipe = tiny_recipe(population, run={"rounds": 2, "evaluate_every": 1, "seed": None})
    return train_run(recipe, tmp_path / "run", quietly)


def test_a_training_states_the_delta_of_every_epsilon(population, tmp_path, monkeypatch):
    """Its progress, its end and all that it leaves behind."""
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.0)
    recipe = tiny_recipe(population, run={"rounds": 2, "evaluate_every": 1, "seed": None})
    save_recipe(recipe, tmp_path / "recipe.toml")
    run = tmp_path / "run"
    arguments = ["train", str(tmp_path / "recipe.toml"), "--run", str(run)]
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False).output
    assert re.search(r"Top1 .*ε = \d", printed)
    assert bare_in_output(printed) == []
    assert bare_in_output((run / "guarantee.txt").read_text()) == []
    page = (run / "report.html").read_text()
    assert "ε spent" in page
    assert bare_in_html(page) == []
    assert bare_in_html(page.replace("δ = ", "")) != []
    head, *_ = (run / "metrics.csv").read_text().splitlines()
    assert {"epsilon", "delta"} <= set(head.split(","))


def test_the_demonstration_states_the_delta_of_every_epsilon(trained_run, capsys, monkeypatch):
    monkeypatch.setattr(output.console, "soft_wrap", True)
    demo._print_comparison(trained_run, trained_run)
    demo._print_worth(trained_run, trained_run)
    printed = capsys.readouterr().out
    assert re.search(r"\(ε = \d", printed)
    assert bare_in_output(printed) == []


def test_a_fleet_states_the_delta_of_every_epsilon(capsys, monkeypatch):
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.0)
    row = {"accuracy_top1": 0.2, "epsilon": 1.0, "delta": 1e-8}
    counts = {"uploads": 10, "dropped_out": 1, "failed_rounds": 0}
    with progress_display.fleet_view("here", 20) as view:
        view.progress(20, 20, row | counts)
    printed = capsys.readouterr().out
    assert "ε = 1.00" in printed
    assert bare_in_output(printed) == []


# Pages with an ε alone, each with what would be enough.
ALONE = [
    ("It has ε = 4 for everybody.", "It has ε = 4 at δ = 1e-8 for everybody."),
    ("An ε of 3.6 is stated.", "An ε of 3.6 is stated for a δ of 10⁻⁸."),
    ("The true ε of this run is at least 28.8.", "The true ε of this run is at least 28.8 (1/N²)."),
    ("# Title\n\nWords.\n\n## At ε = 4\n\nWords.", "# Title\n\n## At ε = 4, δ = 1e-8\n\nε = 4."),
    # The word alone is no δ, nor is that of another row, table or section.
    ("ε = 4, and a small δ.", "ε = 4, and a small δ, 1/users²."),
    ("- ε = 4 at δ = 1e-8\n- ε = 8", "- ε = 4 at δ = 1e-8\n- ε = 8 at δ = 1e-8"),
    ("| ε | gain |\n|---|---|\n| 4 | 1 |", "| ε at δ = 1e-8 | gain |\n|---|---|\n| 4 | 1 |"),
    ("| ε | δ |\n|---|---|\n| 4 | |", "| ε | δ |\n|---|---|\n| 4 | 1e-8 |"),
    ("| |\n|---|\n| at ε = 4 |", "| |\n|---|\n| at ε = 4, δ = 1/users² |"),
    ("| | A |\n|---|---|\n| ε | 4 |", "| | A |\n|---|---|\n| ε | 4 (δ = 1e-8) |"),
    (
        "At δ = 1e-8.\n\n## Next\n\n| ε |\n|---|\n| 4 |",
        "## Next\n\nAt δ = 1e-8.\n\nWords.\n\n| ε |\n|---|\n| 4 |",
    ),
    (
        "# Title\n\nδ = 1e-8 is usual.\n\n## Next\n\nε = 4.",
        "# Title\n\nEvery ε here is at δ = 1e-8.\n\n## Next\n\nε = 4.",
    ),
    ("```text\nround 3, ε 4.00\n```", "```text\nround 3, ε 4.00 at δ = 1e-8\n```"),
    (
        "```text\nmodel   ρ   ε\ntree    1   4.00\n```",
        "```text\nAll at δ = 1e-8\nmodel   ρ   ε\ntree    1   4.00\n```",
    ),
    ('```json\n{"epsilon": 4.0}\n```', '```json\n{"epsilon": 4.0,\n"delta": 1e-8}\n```'),
]


@pytest.mark.parametrize(("alone", "enough"), ALONE)
def test_an_epsilon_alone_is_noticed(alone, enough):
    """The twins that must fail."""
    assert bare_on_page(alone) != []
    assert bare_on_page(enough) == []


@pytest.mark.parametrize(
    "page",
    [
        "No privacy: ε = ∞. With e^ε = 2 it would be another. `--epsilon 4` is typed.",
        "| ε | |\n|---|---|\n| ∞ | no privacy |\n| 0 | nothing released |",
        "```sh\ntaciturn train people --epsilon 4\n```",
        "```toml\nepsilon = 4.0\n```",
    ],
)
def test_what_is_no_figure_needs_no_delta(page):
    assert bare_on_page(page) == []


def test_a_picture_with_an_epsilon_alone_is_noticed():
    axis = "<svg><text>ε</text><text>0.5</text></svg>"
    assert bare_in_picture(axis) != []
    assert bare_in_picture(axis.replace("ε", "ε at δ = 1e-8")) == []
    assert bare_in_html(f"<main><figure>{axis}</figure></main>") != []
    assert bare_in_html("<table><tr><th>ε</th></tr><tr><td>4</td></tr></table>") != []


def test_a_command_that_forgets_a_delta_is_noticed(copied_runs, monkeypatch):
    """As `compare` did, which named each model's ε alone."""
    monkeypatch.chdir(copied_runs)
    monkeypatch.setattr("taciturn.cli.evaluate.pair_text", lambda epsilon, _: f"ε {epsilon:.2f}")
    command = ["compare", "private", "plain"]
    assert bare_in_output(CliRunner().invoke(app, command, catch_exceptions=False).output) != []
