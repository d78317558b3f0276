"""docs/how_to/fleet.md does what it says: its recipe has enough devices, and its commands train."""

import csv
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_of_devices import FleetOfDevices
from typer.testing import CliRunner

from harness import quietly, until
from taciturn.cli import app
from taciturn.fleets.assemble import count_needed
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError, load_recipe
from taciturn.runs.loop import train_run
from taciturn.runs.metrics import read_rows

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how_to" / "fleet.md").read_text()
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
PHONES = 7
PEOPLE = 300
SERVER = "fleet.example.org:8443"
# Seconds for a training.
LONGEST = 1500
# Settings with which `fleet up` and `fleet new` make a recipe one for devices.
OVER_DEVICES = ["fleet.kind=devices", "privacy.encoding=modular"]


def lines(command):
    """Return the lines of the page's commands in which these words are."""
    found = []
    for kind, _, block in BLOCK.findall(PAGE):
        if kind in ("", "sh"):
            found += [line for line in block.splitlines() if command in line]
    return found


def save_page_recipe(folder) -> Recipe:
    (block,) = (block for _, title, block in BLOCK.findall(PAGE) if title == "fleet.toml")
    (folder / "fleet.toml").write_text(block)
    return load_recipe(folder / "fleet.toml", OVER_DEVICES)


def test_the_recipe_of_the_page_has_the_devices_that_it_needs(tmp_path):
    recipe = save_page_recipe(tmp_path)
    (up,) = lines("fleet up")
    there = int(up.split()[3])
    assert up == f"taciturn fleet up {there} fleet.toml --out try"
    assert count_needed(recipe) == PHONES <= there
    for line in lines("for n in"):
        assert line.startswith(f"for n in {' '.join(map(str, range(1, PHONES + 1)))}; do ")
    assert len(lines("for n in")) == 3
    assert f"with {_in_words(PHONES)}\ndevices or more" in PAGE


def test_the_recipe_of_the_page_keeps_its_devices_and_its_server_together_in_time(tmp_path):
    """A round begins before the server's patience ends, though all devices have to rest."""
    recipe = save_page_recipe(tmp_path)
    assert 3600 * recipe.fleet.timer_hours < recipe.fleet.patience / 10
    assert recipe.server.optimizer == "sgd"


def test_a_new_fleet_says_how_many_devices_it_needs_and_waits_for_no_fewer(population, tmp_path):
    save_page_recipe(tmp_path)
    fleet = tmp_path / "keyboard"
    people = f"data.population={population.folder}"
    new = ["fleet", "new", str(fleet), str(tmp_path / "fleet.toml"), "--set", people]
    said = CliRunner().invoke(app, new, catch_exceptions=False).output
    assert f"Enrol {PHONES} devices or more" in " ".join(said.split())
    with pytest.raises(RecipeError, match=f"0 devices are too few, {PHONES} are needed"):
        CliRunner().invoke(
            app, ["fleet", "serve", str(fleet), "--port", "0"], catch_exceptions=False
        )
    assert not (fleet / "run").exists()


def test_a_fleet_whose_model_gets_worse_stops_by_itself(tmp_path, vocabulary):
    """As the recipe that this page had before: it spent everything."""
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        server={"learning_rate": 2.0, "momentum": 0.99},
        privacy={"clip_norm": 5.0, "noise_multiplier": 20.0},
        run={"rounds": 30, "evaluate_every": 30, "seed": None},
    )
    finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases < 30
    assert finished.stopped is not None
    assert "the rest is noise" in finished.stopped
    assert "A device that does not send what it was asked for can do the same" in finished.stopped
    assert finished.scores["loss"].value <= finished.before["loss"].value


def _in_words(number):
    return {7: "seven"}[number]


class Reader:
    """Somebody who types what the page says, in a folder of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        own = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{own}:{os.environ['PATH']}"}
        self.type_in(self.make_messages())
        self.type_in("taciturn data build messages.csv --out people")

    def make_messages(self):
        tutorial = (DOCS / "tutorial.md").read_text()
        (program,) = (
            block for _, title, block in BLOCK.findall(tutorial) if title == "make_messages.py"
        )
        fewer = program.replace("range(3000)", f"range({PEOPLE})")
        (self.folder / "make_messages.py").write_text(fewer)
        return f"{sys.executable} make_messages.py"

    def type_in(self, line):
        done = subprocess.run(
            line,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def start(self, line, log):
        with open(self.folder / log, "w") as file:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
            )
        self.started.append(process)
        return process

    def end(self):
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def reader(tmp_path):
    reader = Reader(tmp_path)
    yield reader
    reader.end()


def is_better_than_its_start(run):
    """By as much as the page says, at the price that it names."""
    rows = read_rows(run)
    start, end = rows[0], rows[-1]
    price = pair_text(end["epsilon"], end["delta"])
    has_all_rounds = end["round"] == 8 and not (run / "stopped.txt").exists()
    has_learned = start["accuracy_top1"] < 0.01 and 0.11 < end["accuracy_top1"] < 0.15
    return (
        price in " ".join(PAGE.split())
        and has_all_rounds
        and has_learned
        and end["loss"] < start["loss"] - 0.1
    )


@pytest.mark.slow
def test_a_fleet_on_one_machine_as_the_page_has_it(reader):
    save_page_recipe(reader.folder)
    (up,) = lines("fleet up")
    reader.type_in(up)
    assert is_better_than_its_start(reader.folder / "try" / "try-run")


@pytest.mark.slow
def test_a_fleet_of_machines_as_the_page_has_it(reader):
    """All of them are this one, as the page says how."""
    save_page_recipe(reader.folder)
    (new,) = lines("fleet new")
    assert f"Enrol {PHONES} devices or more" in reader.type_in(new)
    for line in lines("for n in"):
        reader.type_in(line)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    (serve,) = (line for line in lines("fleet serve") if "--resume" not in line)
    assert serve.endswith("--host 0.0.0.0 --port 8443")
    server = reader.start(serve.replace("0.0.0.0", "127.0.0.1").replace("8443", str(port)), "serve")
    (device,) = lines(f"--server {SERVER}")
    assert "phone-1 " in device
    device = device.replace(SERVER, f"localhost:{port}").replace(" --while charging,unmetered", "")
    with open(reader.folder / "messages.csv") as file:
        rows = list(csv.DictReader(file))
    for phone in range(1, PHONES + 1):
        own = [row["text"] for row in rows if row["sender"] == f"person {phone}"]
        (reader.folder / f"messages-{phone}.txt").write_text("\n".join(own))
        command = device.replace("phone-1", f"phone-{phone}")
        reader.start(command.replace("messages.txt", f"messages-{phone}.txt"), f"phone-{phone}.log")
    until(lambda: server.poll() is not None, LONGEST)
    assert server.returncode == 0, (reader.folder / "serve").read_text()
    assert is_better_than_its_start(reader.folder / "keyboard" / "run")
    (dismiss,) = lines("fleet dismiss keyboard 0")
    assert "1 devices are dismissed" in reader.type_in(dismiss)
