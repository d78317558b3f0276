"""Guess best who was in, from all rows of a run, under noise that is correlated over rounds.

Row t of a run is x_t + n_t, and the noise n has the covariance Σ over rows. For a user with the
turns p (1 in their rounds, else 0) the best statistic is ⟨Σ⁻¹ p, rows⟩. It separates the two cases
by μ = √(pᵀ Σ⁻¹ p) / z, all that the rows together reveal about these turns. Σ is worked out here
from the definitions in the papers and not from the code that draws the noise, so that the two can
be compared.

People pull much the same way in all rounds. What they do in directions that no user sends shows
which sequences of rows to trust less; these directions are orthogonal to the users', so that a
filter chosen by them is fair.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag, toeplitz

from taciturn.privacy.noise.sensitivity import (
    blt_coefficients,
    completed_weights,
    toeplitz_inverse,
    tree_weights,
)


def noise_rows(
    kind: str, lengths: Sequence[int], strategy: Mapping[str, list[float]] | None
) -> np.ndarray:
    """Return [rows, draws]: the share of each draw of standard white noise in each row.

    Args:
        kind: of the noise, as recipes name it.
        lengths: of the segments between restarts.
        strategy: the coefficients of all segments, where the kind has any.
    """
    if kind == "independent":
        return np.eye(sum(lengths))
    if kind in ("tree", "honaker"):
        segments = []
        for part, length in enumerate(lengths):
            is_completed = part < len(lengths) - 1
            segments.append(_tree_rows(length, kind == "honaker", is_completed))
    else:
        segments = [
            toeplitz(inverse, np.zeros(len(inverse)))
            for inverse in _toeplitz_columns(kind, lengths, strategy or {})
        ]
    return np.asarray(block_diag(*segments))


def _toeplitz_columns(
    kind: str, lengths: Sequence[int], strategy: Mapping[str, list[float]]
) -> list[np.ndarray]:
    """Return the first column of each segment of the noise, where it is a Toeplitz matrix."""
    by_segment = {name: np.reshape(values, (len(lengths), -1)) for name, values in strategy.items()}
    inverses = []
    for part, length in enumerate(lengths):
        if kind == "banded":
            bands = by_segment["bands"][part]
            column = np.append(bands, np.zeros(length))[:length]
        else:
            decay = by_segment["decay"][part].tolist()
            scale = by_segment["scale"][part].tolist()
            column = blt_coefficients(decay, scale, length)
        inverses.append(toeplitz_inverse(column, len(column)))
    return inverses


def _tree_rows(rows: int, honaker: bool, completed: bool) -> np.ndarray:
    """Return the rows of a tree.

    The sum of t rows has the noise of the nodes that cover them. A node's noise is its own, or with
    Honaker's reduction the best guess from its own and those of all nodes below. In the last row of
    a completed tree the root stands for all.
    """
    levels = rows.bit_length()
    weights = tree_weights(levels + 1) if honaker else np.ones(levels + 1)
    # By level: the share of each draw in each node.
    nodes = [np.eye(rows)]
    draws = rows
    for level in range(1, levels):
        below = nodes[-1]
        count = rows >> level
        pairs = below[0 : 2 * count : 2] + below[1 : 2 * count : 2]
        own_draws = weights[level] * np.eye(count)
        nodes = [_with_draws(shares, count) for shares in nodes]
        nodes.append(np.hstack([(1 - weights[level]) * pairs, own_draws]))
        draws += count
    sums = np.zeros((rows + 1, draws))
    for row, level in itertools.product(range(1, rows + 1), range(levels)):
        if row >> level & 1:
            sums[row] += nodes[level][(row >> level) - 1]
    if completed:
        sums = _with_root(sums, nodes, completed_weights(rows, honaker))
    return np.diff(sums, axis=0)


def _with_draws(shares: np.ndarray, count: int) -> np.ndarray:
    """Add columns for further draws, which have no share in these rows."""
    return np.pad(shares, ((0, 0), (0, count)))


def _with_root(sums: np.ndarray, nodes: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """Put the root of the completed tree in place of the last sum."""
    rows = len(sums) - 1
    level = (rows & -rows).bit_length() - 1
    root = nodes[level][(rows >> level) - 1]
    for height, weight in enumerate(weights[1:], level):
        if (rows - 1) >> height & 1:
            root = root + nodes[height][((rows - 1) >> height) - 1]
        root = np.append((1 - weight) * root, weight)
        sums = _with_draws(sums, 1)
        nodes = [_with_draws(shares, 1) for shares in nodes]
    return np.vstack([sums[:-1], root])


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
    seen = np.linalg.solve(root, bystanders)
    rows, count = seen.shape
    # A covariance estimated from few directions is uncertain: the fewer, the more of it is the
    # noise that is claimed.
    trust = count / (count + rows)
    covariance = trust * (seen @ seen.T) / max(count, 1) + (1 - trust) * np.eye(rows)
    best = np.linalg.solve(covariance, white_turns)
    best /= np.maximum(np.linalg.norm(best, axis=0), 1e-30)
    weights = np.linalg.solve(root.T, best)
    mu = np.sum(best * white_turns, axis=0)
    return Filters(weights, mu)
