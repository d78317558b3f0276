"""Find the best strategies for given rounds and participation once, and keep them on disk, because
it takes up to a minute.

The optimiser is jax-privacy's. What it finds costs no privacy and needs no trust: the cost of a run
is computed from the coefficients themselves (privacy/noise/sensitivity.py), however they were
found.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from taciturn.files import write_atomically

# Of one segment, by name.
Coefficients = dict[str, list[float]]


def optimal_blt(
    rounds: int, min_separation: int, max_participations: int, buffers: int = 3
) -> Coefficients:
    """Return `decay` and `scale` of the BLT with the smallest mean error over all rounds.

    It has this number of buffers; or fewer, where one would be of no use: there the optimiser
    diverges to values that are not numbers.

    Raises:
        ValueError: none was found.
    """

    def optimize() -> Coefficients:
        from jax_privacy.matrix_factorization import buffered_toeplitz

        for count in range(buffers, 0, -1):
            try:
                best = buffered_toeplitz.optimize(
                    n=rounds,
                    # jax-privacy counts from round to round, papers the rounds between.
                    min_sep=min_separation + 1,
                    max_participations=max_participations,
                    error="mean",
                    min_buffers=count,
                    max_buffers=count,
                )
            except RuntimeError:
                continue
            return {
                "decay": [float(decay) for decay in best.buf_decay],
                "scale": [float(scale) for scale in best.output_scale],
            }
        raise ValueError(
            f"no BLT was found for {rounds} rounds, {min_separation} of them between two turns:"
            ' take noise = "banded"'
        )

    name = f"blt-{rounds}-{min_separation}-{max_participations}-{buffers}"
    return _find_once(name, optimize)


def optimal_bands(rounds: int, bands: int) -> Coefficients:
    """Return `bands` of the banded Toeplitz strategy with the smallest mean error, for users at
    least that many rounds apart.
    """

    def optimize() -> Coefficients:
        from jax_privacy.matrix_factorization import toeplitz

        best = toeplitz.optimize_banded_toeplitz(n=rounds, bands=bands)
        first = float(best[0])
        return {"bands": [float(coefficient) / first for coefficient in best[:bands]]}

    return _find_once(f"banded-{rounds}-{bands}", optimize)


def _find_once(name: str, optimize: Callable[[], Coefficients]) -> Coefficients:
    """Return coefficients from the disk, or optimise them and keep them there."""
    path = _cache_folder() / f"{name}.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        coefficients = optimize()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(coefficients).encode())
    except OSError:
        # A home that cannot be written to only means waiting again next time.
        pass
    return coefficients


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "taciturn" / "strategies"
