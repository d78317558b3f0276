"""Guess best who was in, from all rows of a run: for noise that is correlated over rounds as the
recipe says.

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
    """Return [rows, draws]: the share of each draw of standard white noise in each row. `lengths`
    are those of the segments between restarts; `strategy` has the coefficients of all of them,
    where the kind has any.
    """
    if kind == "independent":
        return np.eye(sum(lengths))
    if kind in ("tree", "honaker"):
        last = len(lengths) - 1
        return np.asarray(
            block_diag(
                *(
                    _tree(length, kind == "honaker", part < last)
                    for part, length in enumerate(lengths)
                )
            )
        )
    found = {
        name: np.reshape(values, (len(lengths), -1)) for name, values in (strategy or {}).items()
    }
    if kind == "banded":
        columns = [
            np.append(bands, np.zeros(length))[:length]
            for bands, length in zip(found["bands"], lengths, strict=True)
        ]
    else:
        pairs = zip(found["decay"], found["scale"], lengths, strict=True)
        columns = [
            blt_coefficients(decay.tolist(), scale.tolist(), length)
            for decay, scale, length in pairs
        ]
    inverses = [toeplitz_inverse(column, len(column)) for column in columns]
    return np.asarray(block_diag(*(toeplitz(one, np.zeros(len(one))) for one in inverses)))


def _tree(rows: int, honaker: bool, completed: bool) -> np.ndarray:
    """Build the rows of a tree: the sum of t rows has the noise of the nodes that cover them; a
    node's is its own, or with Honaker's reduction the best guess from its own and those of all
    nodes below. In the last row of a completed tree the root stands for all.
    """
    levels = rows.bit_length()
    weights = tree_weights(levels + 1) if honaker else np.ones(levels + 1)
    # by level: the share of each draw in each node
    nodes = [np.eye(rows)]
    draws = rows
    for level in range(1, levels):
        below, count = nodes[-1], rows >> level
        pairs = below[0 : 2 * count : 2] + below[1 : 2 * count : 2]
        own = weights[level] * np.eye(count)
        nodes = [np.pad(one, ((0, 0), (0, count))) for one in nodes]
        nodes.append(np.hstack([(1 - weights[level]) * pairs, own]))
        draws += count
    sums = np.zeros((rows + 1, draws))
    for row, level in itertools.product(range(1, rows + 1), range(levels)):
        if row >> level & 1:
            sums[row] += nodes[level][(row >> level) - 1]
    if completed:
        sums = _with_root(sums, nodes, rows, completed_weights(rows, honaker))
    return np.diff(sums, axis=0)


def _with_root(
    sums: np.ndarray, nodes: list[np.ndarray], rows: int, weights: list[float]
) -> np.ndarray:
    level = (rows & -rows).bit_length() - 1
    root = nodes[level][(rows >> level) - 1]
    for height, weight in enumerate(weights[1:], level):
        if (rows - 1) >> height & 1:
            root = root + nodes[height][((rows - 1) >> height) - 1]
        sums, root = np.pad(sums, ((0, 0), (0, 1))), np.append((1 - weight) * root, weight)
        nodes = [np.pad(one, ((0, 0), (0, 1))) for one in nodes]
    return np.vstack([sums[:-1], root])


def filters(
    noise: np.ndarray, turns: np.ndarray, multiplier: float, bystanders: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each column of `turns` [rows, users] and the `noise` [rows, draws] of these rows,
    weights with which the sum of the rows has noise of standard deviation 1, and the μ by which it
    is larger where a user was in. `bystanders` [rows, directions] are the rows in directions that
    no user sends.
    """
    root = multiplier * np.linalg.cholesky(noise @ noise.T)
    white, seen = np.linalg.solve(root, turns), np.linalg.solve(root, bystanders)
    rows, count = seen.shape
    # A covariance estimated from few directions is uncertain: the fewer, the more of it is the
    # noise that is claimed.
    known = count / (count + rows)
    found = known * (seen @ seen.T) / max(count, 1) + (1 - known) * np.eye(rows)
    best = np.linalg.solve(found, white)
    best /= np.maximum(np.linalg.norm(best, axis=0), 1e-30)
    return np.linalg.solve(root.T, best), np.sum(best * white, axis=0)
