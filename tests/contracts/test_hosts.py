"""Two hosts, as two processes: the same totals, the same model, and an end when one of them dies."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from compiling import another_process
from harness import quietly, tiny_recipe
from taciturn import cli
from taciturn.recipe.text import save_recipe
from taciturn.release.model_file import load_model
from taciturn.runs.loop import train_run

MAIN = "from taciturn.cli import main; main()"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(folder: Path, *arguments: object) -> subprocess.Popen:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [*another_process(MAIN), "train", *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def two_hosts(folder: Path, *arguments: object) -> list[subprocess.Popen]:
    place = f"127.0.0.1:{free_port()}"
    return [start(folder, *arguments, "--hosts", 2, "--host", n, "--coordinator", place) for n in range(2)]


def params_of(folder: Path) -> list[np.ndarray]:
    return jax.tree.leaves(load_model(folder)[0])


def test_two_hosts_train_the_model_that_one_trains(population, tmp_path):
    recipe = tiny_recipe(population)
    save_recipe(recipe, tmp_path / "recipe.toml")
    train_run(recipe, tmp_path / "one", quietly)
    hosts = two_hosts(tmp_path, "recipe.toml", "--run", "two")
    said = [host.communicate(timeout=120)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert "host 1 of 2" in said[1]
    for one, two in zip(params_of(tmp_path / "one"), params_of(tmp_path / "two"), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not (tmp_path / "two" / "private").exists()


@pytest.mark.slow
def test_a_host_that_dies_ends_the_run_and_resume_goes_on(population, tmp_path):
    long = {"rounds": 300, "save_every": 1, "evaluate_every": 300}
    save_recipe(tiny_recipe(population, run=long), tmp_path / "recipe.toml")
    hosts = two_hosts(tmp_path, "recipe.toml", "--run", "run")
    state = tmp_path / "run" / "private" / "state.safetensors"
    until = time.monotonic() + 100
    while not state.exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1.0)
    hosts[1].send_signal(signal.SIGKILL)
    said = hosts[0].communicate(timeout=100)[0]
    assert hosts[0].returncode == 2, said
    assert "another host is gone" in said
    hosts[1].communicate()
    again = start(tmp_path, "--resume", "--run", "run")
    assert again.wait(timeout=200) == 0
    assert "300 releases" in (tmp_path / "run" / "guarantee.txt").read_text()


@pytest.mark.parametrize("arguments", [("--hosts", "2"), ("--hosts", "two", "--coordinator", "here:1")])
def test_hosts_that_cannot_meet_are_told_how(population, tmp_path, monkeypatch, capsys, arguments):
    save_recipe(tiny_recipe(population), tmp_path / "recipe.toml")
    monkeypatch.setattr(sys, "argv", ["taciturn", "train", str(tmp_path / "recipe.toml"), *arguments])
    monkeypatch.setattr(os, "_exit", sys.exit)  # this process has other tests to do
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "--coordinator ADDRESS:PORT" in capsys.readouterr().err
