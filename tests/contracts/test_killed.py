"""Killed for real, a run goes on: the command line, which runs on every core, ends with the
parameters of one core that nobody killed.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from harness import quietly, tiny_recipe
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.recipe.text import save_recipe
from taciturn.release.model_file import load_model
from taciturn.runs.loop import resume_run, train_run

pytestmark = pytest.mark.optimised

CHARGE = b'"kind": "charge"'


def params_of(folder: Path) -> list[np.ndarray]:
    return jax.tree.leaves(load_model(folder)[0])


@pytest.mark.slow
def test_killed_again_and_again_a_run_still_ends_with_the_same_parameters(population, tmp_path):
    """kill −9 at random moments of the training, for real: other processes, their files, their
    locks.
    """
    recipe = tiny_recipe(population, run={"rounds": 40, "save_every": 3, "evaluate_every": 20})
    train_run(recipe, tmp_path / "uninterrupted", quietly)
    save_recipe(recipe, tmp_path / "recipe.toml")
    command = [sys.executable, "-c", "from taciturn.cli import main; main()", "train"]
    folder, ledger, generator = (
        tmp_path / "killed",
        population.folder / "ledger.jsonl",
        random.Random(1),
    )
    kills = 0
    while kills < 6:
        arguments = (
            ["--resume", "--run", folder]
            if folder.exists()
            else [tmp_path / "recipe.toml", "--run", folder]
        )
        charges = ledger.read_bytes().count(CHARGE)
        process = subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.DEVNULL)
        while process.poll() is None and ledger.read_bytes().count(CHARGE) == charges:
            time.sleep(
                0.005
            )  # wait for the first charge of this process, then let it work for a moment
        time.sleep(generator.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        _ledger_counts_what_was_released(population.folder, folder)
        if not (folder / "private").exists():
            break
    assert kills >= 3
    if (folder / "private").exists():
        resume_run(folder, quietly)
    for one, other in zip(params_of(folder), params_of(tmp_path / "uninterrupted"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert Ledger(ledger).guarantee("killed").releases == 40


def _ledger_counts_what_was_released(population: Path, folder: Path) -> None:
    """Any model that a kill leaves behind was paid for, round by round."""
    if (folder / "model.safetensors").exists():
        _, card = load_model(folder)
        ledger = Ledger(population / "ledger.jsonl")
        assert ledger.guarantee(card.run, card.ledger_head).releases >= card.round
