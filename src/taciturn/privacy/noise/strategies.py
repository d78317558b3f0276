"""Find the best strategies for given rounds and participation once, and keep them on disk, because
it takes up to a minute.

The optimiser is jax-privacy's. What it finds costs no privacy and needs no trust: the cost of a run
is computed from the coefficients themselves (privacy/noise/sensitivity.py), whoever found them.
"""

import json
import os
from pathlib import Path
from typing import Any

from taciturn.files import write_atomically


def optimal_blt(
    rounds: int, min_separation: int, max_participations: int, buffers: int = 3
) -> dict[str, list[float]]:
    """Return `decay` and `scale` of the BLT with the smallest mean error over all rounds, with this
    number of buffers; or with fewer, where
    one would be of no use: there the optimiser diverges to values that are not numbers.
    """

    def optimize() -> dict[str, list[float]]:
        from jax_privacy.matrix_factorization import buffered_toeplitz

        # jax-privacy counts from round to round, papers the rounds between
        apart = min_separation + 1
        turns = {"n": rounds, "min_sep": apart, "max_participations": max_participations}
        for count in range(buffers, 0, -1):
            try:
                found = buffered_toeplitz.optimize(
                    **turns, error="mean", min_buffers=count, max_buffers=count
                )
            except RuntimeError:
                continue
            return {
                "decay": [float(one) for one in found.buf_decay],
                "scale": [float(one) for one in found.output_scale],
            }
        raise ValueError(
            f"no BLT was found for {rounds} rounds, {min_separation} of them between two turns:"
            ' take noise = "banded"'
        )

    return _kept(f"blt-{rounds}-{min_separation}-{max_participations}-{buffers}", optimize)


def optimal_bands(rounds: int, bands: int) -> dict[str, list[float]]:
    """Return coefficients of the banded Toeplitz strategy with the smallest mean error, for users
    at least `bands` rounds apart.
    """

    def optimize() -> dict[str, list[float]]:
        from jax_privacy.matrix_factorization import toeplitz

        found = toeplitz.optimize_banded_toeplitz(n=rounds, bands=bands)
        return {"bands": [float(one) / float(found[0]) for one in found[:bands]]}

    return _kept(f"banded-{rounds}-{bands}", optimize)


def _kept(name: str, work: Any) -> dict[str, list[float]]:
    folder = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taciturn" / "strategies"
    )
    path = folder / f"{name}.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        found = work()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found).encode())
    # a home that cannot be written to only means waiting again next time
    except OSError:
        pass
    return found
