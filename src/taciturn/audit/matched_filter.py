"""Guess best who was in, from all rows of a run, under noise that is correlated over rounds.

Row t of a run is x_t + n_t, and the noise n has the covariance Σ over rows. For a user with the
turns p (1 in their rounds, else 0) the best statistic is ⟨Σ⁻¹ p, rows⟩. It separates the two cases
by μ = √(pᵀ Σ⁻¹ p) / z, all that the rows together reveal about these turns. Σ is worked out from
the definitions in the papers (privacy/noise/rows.py) and not from the code that draws the noise, so
that the two can be compared.

People pull much the same way in all rounds. What they do in directions that no user sends shows
which sequences of rows to trust less; these directions are orthogonal to the users', so that a
filter chosen by them is fair.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from taciturn.names import NoiseName
from taciturn.privacy.noise.registry import NOISES, split_by_segment


def noise_rows(
    kind: NoiseName, lengths: Sequence[int], strategy: Mapping[str, list[float]] | None
) -> np.ndarray:
    """Return [rows, draws]: the share of each draw of standard white noise in each row.

    Args:
        kind: of the noise, as recipes name it.
        lengths: of the segments between restarts.
        strategy: the coefficients of all segments, where the kind has any.
    """
    noise = NOISES[kind]
    segments = split_by_segment(lengths, strategy)
    restarted = [noise.rows(segment, True) for segment in segments[:-1]]
    last = noise.rows(segments[-1], False)
    return np.asarray(block_diag(*restarted, last))


class Filters(NamedTuple):
    """How best to add up the rows, for each user."""

    # [rows, users]; the sum of the rows then has noise of standard deviation 1.
    weights: np.ndarray
    # [users]; by which that sum is larger where the user was in.
    mu: np.ndarray


def best_filters(
    noise: np.ndarray, turns: np.ndarray, multiplier: float, bystanders: np.ndarray
) -> Filters:
    """Return the best filter for each user.

    Args:
        noise: [rows, draws], of these rows.
        turns: [rows, users]: 1 in their rounds, else 0.
        multiplier: of the noise.
        bystanders: [rows, directions]: the rows in directions that no user sends.
    """
    root = multiplier * np.linalg.cholesky(noise @ noise.T)
    white_turns = np.linalg.solve(root, turns)
    white_bystanders = np.linalg.solve(root, bystanders)
    covariance = _estimate_covariance(white_bystanders)
    best = _normalise_columns(np.linalg.solve(covariance, white_turns))
    return Filters(
        weights=np.linalg.solve(root.T, best),
        mu=np.sum(best * white_turns, axis=0),
    )


def _normalise_columns(matrix: np.ndarray) -> np.ndarray:
    return matrix / np.maximum(np.linalg.norm(matrix, axis=0), 1e-30)


def _estimate_covariance(seen: np.ndarray) -> np.ndarray:
    """Return the covariance over rows, [rows, rows], of what is seen in some directions.

    One estimated from few directions is uncertain: the fewer, the more of it is the noise that is
    claimed.
    """
    rows, count = seen.shape
    trust = count / (count + rows)
    return trust * (seen @ seen.T) / max(count, 1) + (1 - trust) * np.eye(rows)
