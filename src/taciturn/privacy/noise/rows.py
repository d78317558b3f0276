"""The rows of correlated noise, worked out from the definitions in the papers.

An audit guesses by them. They do not share the code that draws the noise
(privacy/noise/correlated.py), so that the two can be compared.

**Guarantee:** each function returns [rows, draws]: the share of each draw of standard white noise
in each row, for one segment between restarts.
"""

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
    weights = tree_weights(levels) if honaker else np.ones(levels)
    nodes = _grow_nodes(rows, weights)
    sums = _sum_covering_nodes(rows, nodes)
    if is_completed:
        sums = _replace_last_by_root(sums, nodes, completed_weights(rows, honaker))
    return np.diff(sums, axis=0)


def _grow_nodes(rows: int, weights: np.ndarray) -> list[np.ndarray]:
    """Return by level the share of each draw in each node, [nodes, draws]."""
    nodes = [np.eye(rows)]
    for level in range(1, len(weights)):
        count = rows >> level
        weight = weights[level]
        below = nodes[-1]
        left = below[0 : 2 * count : 2]
        right = below[1 : 2 * count : 2]
        own_draws = weight * np.eye(count)
        nodes = [_add_draws(shares, count) for shares in nodes]
        nodes.append(np.hstack([(1 - weight) * (left + right), own_draws]))
    return nodes


def _sum_covering_nodes(rows: int, nodes: list[np.ndarray]) -> np.ndarray:
    """Return the share of each draw in the sums of the first 0, 1, 2, … rows."""
    draws = nodes[0].shape[1]
    sums = np.zeros((rows + 1, draws))
    for row in range(1, rows + 1):
        for level, shares in enumerate(nodes):
            # One node for each 1 in the number of rows; the last before this row.
            if row >> level & 1:
                sums[row] += shares[(row >> level) - 1]
    return sums


def _add_draws(shares: np.ndarray, count: int) -> np.ndarray:
    """Add columns for further draws, which have no share in these rows."""
    return np.pad(shares, ((0, 0), (0, count)))


def _replace_last_by_root(
    sums: np.ndarray, nodes: list[np.ndarray], weights: list[float]
) -> np.ndarray:
    """Put the root of the completed tree in place of the last sum."""
    rows = len(sums) - 1
    lowest = (rows & -rows).bit_length() - 1
    root = nodes[lowest][(rows >> lowest) - 1]
    for level, weight in enumerate(weights[1:], lowest):
        place = (rows - 1) >> level
        is_right = place & 1
        if is_right:
            left = nodes[level][place - 1]
            root = root + left
        root = np.append((1 - weight) * root, weight)
        sums = _add_draws(sums, 1)
        nodes = [_add_draws(shares, 1) for shares in nodes]
    return np.vstack([sums[:-1], root])
