"""Keep the estimates of a run's first rounds, for an audit of their noise.

They are what anyone sees who watches the models: an estimate is what moves the model in its round.
The file is as private as the model. Where there are more than `MOST_PARAMETERS`, stretches of them
are kept, chosen at random but the same in all runs.
"""

import io
import json
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn.core import PyTree
from taciturn.files import write_atomically

FILE_NAME = "audit_noise.npy"
LAYERS = "audit_noise.json"
# Consecutive ones, from the first on: what their noise shares with rows before them is then known.
# Eight of them show beyond doubt that 256 parameters have the noise of 256 others.
ROUNDS = 8
MOST_PARAMETERS = 2**22
STRETCH = 4096


class FirstEstimates:
    """Keeps the first estimates of one run."""

    def __init__(self, *, rounds: int, layers: list[int]) -> None:
        """Prepare to keep estimates.

        Args:
            rounds: of the run.
            layers: the number of parameters of each layer.
        """
        self._rounds = min(rounds, ROUNDS)
        self._layers = layers
        self._is_kept = choose_kept(sum(layers))
        # Estimates that are not written yet, by round.
        self._seen: dict[int, np.ndarray] = {}

    def observe(self, round: int, estimate: PyTree, deviation: float) -> None:
        """Keep an estimate, if its round is one of the first.

        Args:
            round: its number.
            estimate: as it was released.
            deviation: of white noise in it, as claimed: the unit of what is kept.
        """
        if round >= self._rounds:
            return
        leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(estimate)]
        values = np.concatenate(leaves)[self._is_kept] / deviation
        # A float16 has no larger number.
        self._seen[round] = np.clip(values, -6e4, 6e4).astype(np.float16)

    def save(self, folder: Path, mode: int) -> None:
        """Save what was kept; a round repeated after a crash overwrites its row.

        Args:
            folder: the run's.
            mode: of the model's file.
        """
        path = folder / FILE_NAME
        if not path.exists():
            write_atomically(folder / LAYERS, json.dumps(self._layers).encode(), mode)
            write_atomically(path, self._rows_to_come(), mode)
        if not self._seen:
            return
        written = np.lib.format.open_memmap(path, "r+")
        for round, values in self._seen.items():
            written[round] = values
        written.flush()
        self._seen.clear()

    def _rows_to_come(self) -> bytes:
        """Return a file of rows that are not numbers yet."""
        file = io.BytesIO()
        shape = (self._rounds, int(self._is_kept.sum()))
        np.save(file, np.full(shape, np.nan, np.float16))
        return file.getvalue()


class KeptEstimates(NamedTuple):
    """What was kept of a run."""

    # [rows, parameters that are kept], in deviations of white noise, as claimed.
    rows: np.ndarray
    # Of all parameters.
    is_kept: np.ndarray
    # The number of parameters of each layer.
    layers: list[int]


def load_first_estimates(folder: Path) -> KeptEstimates | None:
    """Return what a run kept; None where it kept nothing, as older versions did.

    Raises:
        ValueError: a file is damaged.
    """
    if not (folder / FILE_NAME).exists():
        return None
    layers: list[int] = json.loads((folder / LAYERS).read_text())
    values = np.load(folder / FILE_NAME)
    is_kept = choose_kept(sum(layers))
    # NumPy's archives are read as other types.
    if not isinstance(values, np.ndarray) or values.shape[1:] != (is_kept.sum(),):
        raise ValueError(f"{FILE_NAME} is of another model than {LAYERS}")
    # A run that was interrupted, or that an older version began, has not all of some rounds.
    is_missing = np.isnan(values).any(axis=1)
    seen = int(np.argmax(is_missing)) if is_missing.any() else len(values)
    if not seen:
        return None
    return KeptEstimates(
        rows=values[:seen].astype(np.float32),
        is_kept=is_kept,
        layers=layers,
    )


def choose_kept(size: int) -> np.ndarray:
    """Return which of this number of parameters are kept.

    >>> int(choose_kept(1000).sum()), int(choose_kept(10_000_000).sum())
    (1000, 4194304)
    """
    if size <= MOST_PARAMETERS:
        return np.ones(size, bool)
    # The last stretch may be shorter, and is never chosen.
    stretches = size // STRETCH
    generator = np.random.default_rng(0)
    chosen = generator.choice(stretches, MOST_PARAMETERS // STRETCH, replace=False)
    is_kept = np.zeros(size, bool)
    is_kept[: stretches * STRETCH].reshape(stretches, STRETCH)[chosen] = True
    return is_kept
