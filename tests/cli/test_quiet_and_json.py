"""Every command takes --quiet and --json alike, and the doctor says what is wrong."""

import json
import re
import time
from importlib import metadata

import pytest
import typer
from typer.testing import CliRunner

from harness import short_recipe
from taciturn.bench import health
from taciturn.cli import app, progress_display
from taciturn.cli.command_classes import Commands
from taciturn.cli.output import console
from taciturn.cli.progress_display import stages
from taciturn.data.population import Population
from taciturn.fleets.simulation.in_process import NotAdditive, SimulatedFleet
from taciturn.recipe.text import save_recipe

ENDLESS = {
    ("keyboard", "open"),
    ("fleet", "front-end"),
    ("fleet", "device"),
}  # they run until they are stopped, and find nothing


def run_cli(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def leaves(command, path=()):
    below = getattr(command, "commands", {})
    return (
        [one for name, each in below.items() for one in leaves(each, (*path, name))]
        if below
        else [(path, command)]
    )


def test_every_command_takes_both_and_one_that_never_ends_is_only_quiet():
    found = leaves(typer.main.get_command(app))
    assert len(found) > 30
    for path, command in found:
        options = {option for one in command.params for option in one.opts}
        assert "--quiet" in options, path
        assert ("--json" in options) == (path not in ENDLESS), path


@pytest.mark.parametrize(
    "command",
    [
        "evaluate",
        "compare",
        "report",
        "ledger show",
        "data show",
        "export",
        "keyboard ngram",
        "plan",
        "train",
    ],
)
def test_json_is_all_that_is_printed_and_quiet_prints_nothing(
    copied_runs, population, tmp_path, command
):
    save_recipe(short_recipe(Population(copied_runs / "people")), tmp_path / "recipe.toml")
    run, people = copied_runs / "private", copied_runs / "people"
    given = {
        "evaluate": [run],
        "compare": [run, run],
        "report": [run, "--no-open"],
        "ledger show": [people],
        "data show": [population.folder],
        "export": [run, "--out", tmp_path / "out{}"],
        "keyboard ngram": [people, "--non-private", "--out", tmp_path / "ngram{}"],
        "plan": [
            "--population",
            1000,
            "--rounds",
            10,
            "--report-goal",
            10,
            "--noise-multiplier",
            1,
            "--mechanism",
            "poisson",
        ],
        "train": [tmp_path / "recipe.toml", "--run", tmp_path / "run{}"],
    }[command]

    def said(number, *options):
        done = run_cli(*command.split(), *(str(one).format(number) for one in given), *options)
        assert done.exit_code == 0, done.output
        return done.output

    assert json.loads(said(1, "--json"))
    assert said(2, "--quiet") == ""
    assert said(3).strip()  # the twin
    assert not console.quiet


def test_a_status_comes_after_the_json_and_an_error_ends_the_quiet():
    commands = Commands()

    @commands.command()
    def found(wrong: bool = False):
        """Example."""
        console.print("words")
        if wrong:
            raise ValueError("wrong")
        return {"a": 1, "b": float("inf")}, 3

    done = CliRunner().invoke(commands, ["--json"])
    assert (json.loads(done.output), done.exit_code) == ({"a": 1, "b": "infinity"}, 3)
    assert CliRunner().invoke(commands, []).output == "words\n"
    assert CliRunner().invoke(commands, ["--quiet", "--wrong"]).exit_code == 1
    assert not console.quiet


def test_progress_in_a_pipe_is_lines_with_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress_display.time, "monotonic", lambda: now[0])
    with stages() as show:
        for done in range(31):
            now[0] = float(done)
            show("measuring", done, 40)
    assert capsys.readouterr().out.splitlines() == [
        f"measuring: {done} of 40  0:00:{40 - done} left" for done in (2, 12, 22)
    ]


def test_training_says_what_begins_and_the_time_left_does_not_count_compiling(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress_display.time, "monotonic", lambda: now[0])
    with progress_display.training_bar("run") as progress:
        for done, now[0] in ((0, 15.0), (1, 60.0), (11, 70.0)):
            row = {"accuracy_top1": 0.2, "epsilon": 0.0, "delta": 1e-8, "round": 0}
            progress(done, 41, row)
    start = "Top1 20.00%, ε = 0.00 at δ = 1e-08 after round 0"
    assert capsys.readouterr().out.splitlines() == [
        "run: compiling, and measuring the start",
        "run: 0 of 41 rounds  compiling a round",
        f"run: 1 of 41 rounds  {start}",
        f"run: 11 of 41 rounds  {start}  0:00:30 left",
    ]


def test_a_finished_run_is_not_resumed_and_nothing_is_compiled_for_it(copied_runs):
    done = CliRunner().invoke(app, ["train", "--resume", "--run", str(copied_runs / "private")])
    assert "is finished" in str(done.exception)
    assert done.output == f"reading {copied_runs / 'private'} …\n"


def test_a_pipe_sees_that_a_job_goes_on_though_nothing_new_is_known(monkeypatch, capsys):
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 1.0)
    with stages() as show:
        show("choosing a recipe", 0, None, "compiling")
        time.sleep(2.2)
    first, *later = capsys.readouterr().out.splitlines()
    assert first == "choosing a recipe: compiling"
    assert later
    assert all(
        re.fullmatch(r"choosing a recipe: compiling  \(for 0:00:0\d now\)", line) for line in later
    )
    time.sleep(1.5)
    assert not capsys.readouterr().out  # nor after its end


def test_lines_that_something_new_is_known_for_have_the_time_left(monkeypatch, capsys):
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 1.0)
    with stages(stay=True) as show:
        for done in range(25):
            show("training", done, 100)
            time.sleep(0.15)
    _, *later = capsys.readouterr().out.splitlines()
    assert len(later) >= 2
    assert all(line.endswith(" left") for line in later)


def test_the_doctor_finds_a_machine_that_can_train():
    done = run_cli("doctor", "--json")
    found = {one["name"]: one for one in json.loads(done.output)}
    assert done.exit_code == 0
    assert {
        "Python",
        "taciturn",
        "packages",
        "memory",
        "disk",
        "devices",
        "additivity",
        "ray",
        "onnx",
    } <= set(found)
    assert found["taciturn"]["said"] == metadata.version("taciturn")
    assert "This machine can train" in run_cli("doctor").output


def test_the_doctor_notices_what_stands_in_the_way_and_what_is_missing(monkeypatch):
    def not_additive(*_):
        raise NotAdditive("what a user reports depends on others")

    monkeypatch.setattr(SimulatedFleet, "_check_additive", not_additive)
    version = metadata.version
    old = {"jax": "0.1.0", "ray": None}

    def other(name):
        if name in old and old[name] is None:
            raise metadata.PackageNotFoundError(name)
        return old.get(name) or version(name)

    monkeypatch.setattr(health.metadata, "version", other)
    done = run_cli("doctor", "--json")
    found = {one["name"]: one for one in json.loads(done.output)}
    assert done.exit_code == 1
    assert found["additivity"]["state"] == found["packages"]["state"] == "broken"
    assert "jax is 0.1.0" in found["packages"]["said"]
    assert (found["ray"]["state"], found["ray"]["to_do"]) == (
        "missing",
        "pip install 'taciturn[ray]'",
    )
    assert "Broken: packages, additivity" in run_cli("doctor").output
