"""One process at a run: a second is refused before it can spend anything, and goes on once the
first is dead.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compiling import another_process
from harness import quietly, tiny_recipe
from taciturn import cli
from taciturn.privacy.ledger.account import Account
from taciturn.recipe.text import save_recipe
from taciturn.runs.folder import RunError
from taciturn.runs.loop import resume_run, train_run

# After two rounds it starts a program that outlives it, and then hangs.
FIRST = """
import subprocess, sys, time
from pathlib import Path
from taciturn.recipe.text import load_recipe
from taciturn.runs.loop import train_run

def progress(done, rounds, row):
    if done == 2:
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(sleep, close_fds=False)
        print(child.pid, flush=True)
        time.sleep(600)

train_run(load_recipe(Path(sys.argv[1])), Path(sys.argv[2]), progress)
"""


def contents(*folders: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_second_process_is_refused_and_resumes_once_the_first_was_killed(
    population, tmp_path, monkeypatch, capsys
):
    recipe, run = tiny_recipe(population), tmp_path / "run"
    save_recipe(recipe, tmp_path / "recipe.toml")
    first = subprocess.Popen(
        [*another_process(FIRST), str(tmp_path / "recipe.toml"), str(run)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    child = int(first.stdout.readline())
    try:
        before = contents(run, population.folder)
        monkeypatch.setattr(sys, "argv", ["taciturn", "train", "--resume", "--run", str(run)])
        with pytest.raises(SystemExit) as second:
            cli.main()
        assert second.value.code == 2
        said = f"taciturn: another process is using {run}: wait until it ends, or stop it"
        assert said in capsys.readouterr().err
        assert contents(run, population.folder) == before
        first.send_signal(signal.SIGKILL)
        first.wait()
        os.kill(child, 0)  # what the first has started is still there, and holds no lock
        assert resume_run(run, quietly).guarantee.releases == recipe.run.rounds
    finally:
        first.kill()
        os.kill(child, signal.SIGKILL)


def test_the_second_is_refused_until_the_very_end_when_the_secrets_are_gone(
    population, tmp_path, monkeypatch
):
    recipe, run, close, asked = (
        tiny_recipe(population, run={"rounds": 1}),
        tmp_path / "run",
        Account.close,
        [],
    )

    def meanwhile(account):
        assert not (run / "private").exists()
        with pytest.raises(RunError, match="another process is using"):
            resume_run(run, quietly)
        asked.append(account)
        close(account)

    monkeypatch.setattr(Account, "close", meanwhile)
    train_run(recipe, run, quietly)
    assert asked
    with pytest.raises(RunError, match="is finished"):
        resume_run(run, quietly)
