"""A run's people are found, or missed, alike in whichever folder one stands."""

from pathlib import Path

import pytest
from test_carried_away import fingerprint
from typer.testing import CliRunner

from harness import lettered_words, made_up_users, quietly, tiny_recipe
from taciturn.cli import app
from taciturn.data.population import write_population
from taciturn.people import open_ledger
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.privacy.ledger.ledger import FILE_NAME
from taciturn.privacy.ledger.signed_rows import SIGNATURE
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import RunError
from taciturn.runs.loop import train_run


@pytest.fixture
def project(tmp_path) -> Path:
    """A run that was trained from the folder above it, by a recipe that says just `people`."""
    people = write_population(
        tmp_path / "project" / "people",
        made_up_users(50),
        made_up_users(12, seed=1),
        lettered_words(),
        {},
    )
    run = tmp_path / "project" / "runs" / "phone"
    run.parent.mkdir()
    settings = {"rounds": 1, "evaluate_every": 1, "seed": None}
    train_run(tiny_recipe(people, run=settings), run, quietly)
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(people.folder), "people"))
    (tmp_path / "link").symlink_to(run)
    return tmp_path / "project"


@pytest.mark.parametrize("place", [".", "runs", "..", "runs/phone"])
def test_a_run_finds_its_people_from_whichever_folder_one_stands_in(project, place, monkeypatch):
    monkeypatch.chdir(project / place)
    for run in (project / "runs" / "phone", project.parent / "link"):
        finished = FinishedRun(run)
        assert finished.guarantee.standing == "ledger"
        assert finished.compare(finished)
        compared = CliRunner().invoke(app, ["compare", str(run), str(run)])
        assert compared.exit_code == 0, compared.output


def test_a_run_is_printed_with_the_figures_that_its_folder_states(project, monkeypatch):
    monkeypatch.chdir(project)
    run = FinishedRun("runs/phone")
    stated = pair_text(run.guarantee.epsilon, run.guarantee.delta)
    assert repr(run) == f"FinishedRun('runs/phone', guarantee.json: {stated})"
    for nothing in ("{}", "[", '{"private": true, "epsilon": "\\u001b[2J", "delta": 1}'):
        Path("runs/phone/guarantee.json").write_text(nothing)
        assert repr(run) == "FinishedRun('runs/phone')"
    assert repr(FinishedRun("runs/none")) == "FinishedRun('runs/none')"


@pytest.mark.parametrize("others", ["here", "above the run"])
def test_other_people_of_that_name_are_never_taken(project, others, monkeypatch):
    (project / "people").rename(project / "moved")
    here = project.parent / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    run = project / "runs" / "phone"
    place = (here if others == "here" else project) / "people"
    words = lettered_words()
    open_ledger(write_population(place, made_up_users(50), made_up_users(12), words, {}))
    assert FinishedRun(run).guarantee.standing == "stated"
    with pytest.raises(RunError, match=r"people here is not theirs .*; theirs is not here"):
        FinishedRun(run).evaluate()
    # The twin: with the id that is signed they are.
    (project / "moved").rename(project / "runs" / "people")
    assert FinishedRun(run).guarantee.standing == "ledger"


def test_without_a_signature_nobody_above_a_run_is_taken_for_its_people(project, monkeypatch):
    run = project / "runs" / "phone"
    (run / SIGNATURE).unlink()
    monkeypatch.chdir(project.parent)
    with pytest.raises(RunError, match="'people', which is not here"):
        _ = FinishedRun(run).guarantee
    # The twin: where its recipe says they are, nobody compares.
    monkeypatch.chdir(project)
    assert FinishedRun(run).guarantee.standing == "ledger"


@pytest.mark.parametrize("file", ["", FILE_NAME])
def test_who_asks_a_run_for_the_ledger_is_told_where_it_is(project, monkeypatch, file):
    monkeypatch.chdir(project.parent)
    show = ["ledger", "show", str(Path("project/runs/phone") / file)]
    refused = str(CliRunner().invoke(app, show).exception)
    assert "is a run" in refused
    assert f"name the folder of its people, {project / 'people'}" in refused
    shown = CliRunner().invoke(app, [*show[:2], str(project / "people")])
    assert f"fingerprint {fingerprint(project)}" in " ".join(shown.output.split())
    (project / "people").rename(project / "moved")
    refused = str(CliRunner().invoke(app, show).exception)
    assert "its people were in 'people', which is neither here" in refused
    assert "never had one" not in refused


def test_it_is_said_where_people_were_looked_for(project, monkeypatch):
    (project / "people").rename(project / "moved")
    monkeypatch.chdir(project.parent)
    where = r"'people', which is neither here nor in a folder above project/runs/phone: bring"
    with pytest.raises(RunError, match=where):
        FinishedRun("project/runs/phone").evaluate()
