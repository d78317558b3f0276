"""The rows of correlated noise, worked out from the definitions in the papers.

An audit guesses by them. They do not share the code that draws the noise
(privacy/noise/correlated.py), so that the two can be compared.

**Guarantee:** each function returns [rows, draws]: the share of each draw of standard white noise
in each row, for one segment between restarts.
"""

import itertools

import numpy as np
from scipy.linalg import toeplitz

from taciturn.privacy.noise.sensitivity import completed_weights, toeplitz_inverse, tree_weights


def toeplitz_rows(column: np.ndarray) -> np.ndarray:
    """Return C⁻¹, of the first column of C."""
    inverse = toeplitz_inverse(column, len(column))
    return toeplitz(inverse, np.zeros(len(inverse)))


def tree_rows(rows: int, honaker: bool, is_completed: bool) -> np.ndarray:
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
    if is_completed:
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
