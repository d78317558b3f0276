"""How far one user can move a whole run under noise that is correlated over rounds.

Row t of a run is x_t + (C⁻¹ z)_t: the estimate of round t and correlated noise, where z is white noise of noise multiplier × clip
norm and C, the *strategy*, is lower triangular with entries ≥ 0. Multiplied by C that is C x + z, one Gaussian mechanism, so all that
counts is ‖C u‖ for the rounds in which a user takes part. A claim about participation (at least MinS rounds strictly between two of
them, at most MaxP in all) leaves a largest one; its square is computed here.

**Guarantee:** `sensitivity_squared(rows, MinS, MaxP)` is at least ‖C U‖² for all participations that the claim allows among the first
`rows` rows and all reports of norm at most 1 (no entry of C is negative, so reports that point the same way are the worst). For trees
it is exact.
"""

import functools
from typing import NamedTuple

import numpy as np

from taciturn.core import Strategy


def most_participations(rows: int, min_separation: int) -> int:
    """How often a user can take part in so many rows at all."""
    return -(-rows // (min_separation + 1))


def independent(rows: int) -> Strategy:
    """C = 1: fresh noise every round."""

    def squared(rows: int, min_separation: int, max_participations: int) -> float:
        return float(min(max_participations, most_participations(rows, min_separation)))

    return Strategy("independent", rows, squared, lambda rows: np.arange(1.0, rows + 1))


# Toeplitz strategies: banded, and BLT.


def toeplitz(name: str, coefficients: np.ndarray) -> Strategy:
    """C with `coefficients` down its first column, and the same on every diagonal. They must fall and not be negative."""
    coefficients = np.asarray(coefficients, np.float64)
    falling = np.all(np.diff(coefficients) <= 1e-12) and np.all(coefficients >= 0)
    if not (len(coefficients) and coefficients[0] == 1 and falling):
        raise ValueError("coefficients of a Toeplitz strategy start with 1, fall, and are not negative")

    majorant = np.maximum.accumulate(coefficients[::-1])[::-1]  # falls strictly, where rounding did not

    def squared(rows: int, min_separation: int, max_participations: int) -> float:
        # Falling coefficients are worst when a user comes as early and as often as possible (Kalinin and Lampert 2024, Theorem 2).
        column, moved = majorant[:rows], np.zeros(rows)
        for start in range(0, rows, min_separation + 1)[:max_participations]:
            moved[start:] += column[: rows - start]
        return float(moved @ moved) * (1 + 1e-9)

    def prefix_variance(rows: int) -> np.ndarray:
        inverse = toeplitz_inverse(coefficients, rows)
        return np.cumsum(np.cumsum(inverse) ** 2)

    return Strategy(name, len(coefficients), squared, prefix_variance)


def toeplitz_inverse(coefficients: np.ndarray, rows: int) -> np.ndarray:
    """The first column of C⁻¹."""
    inverse = np.zeros(rows)
    for row in range(rows):
        inverse[row] = (row == 0) - coefficients[1 : row + 1][::-1] @ inverse[:row]
    return inverse


def blt_coefficients(decay: tuple[float, ...], scale: tuple[float, ...], rows: int) -> np.ndarray:
    """1, Σ ω_j, Σ ω_j θ_j, Σ ω_j θ_j², …: buffered linear Toeplitz (McMahan, Xu and Zhang 2024)."""
    powers = np.asarray(decay)[:, None] ** np.arange(rows - 1)
    return np.concatenate([[1.0], np.asarray(scale) @ powers])


# Binary trees.

MOST_EXACT = 64  # participations; the exact search takes seconds beyond


def tree(rows: int, honaker: bool) -> Strategy:
    """Every complete node of a binary tree over the rounds has noise of its own (Kairouz et al. 2021)."""
    own = tree_weights(rows.bit_length()) if honaker else np.ones(rows.bit_length())

    def prefix_variance(rows: int) -> np.ndarray:
        bits = (np.arange(1, rows + 1)[:, None] >> np.arange(len(own))) & 1
        return bits @ own

    name = "tree with Honaker's variance reduction" if honaker else "tree"
    return Strategy(name, rows, tree_sensitivity_squared, prefix_variance)


def tree_weights(levels: int) -> np.ndarray:
    """v_l, the variance of the best estimate of a node's noise from the nodes below it and its own, and the weight of its own in it
    (Honaker 2015): v_0 = 1, 1/v_l = 1 + 1/(2 v_{l−1})."""
    weights = [1.0]
    while len(weights) < levels:
        weights.append(1 / (1 + 1 / (2 * weights[-1])))
    return np.array(weights)


@functools.lru_cache(maxsize=4096)
def tree_sensitivity_squared(rows: int, min_separation: int, max_participations: int) -> float:
    """The largest Σ (participations inside)² over all complete nodes; exact.

    A subtree is summed up by its frontier: for each number of participations in it and each value of the sum, how much room can be
    left free at its right end, as a function of the room that is to be left free at its left end. Two neighbours join if the room
    between them adds up to the separation.
    """
    distance = min_separation + 1
    most = min(max_participations, most_participations(rows, min_separation))
    if (
        most > MOST_EXACT
    ):  # every node as full as it can be: an upper bound, and exact where users may come to every round
        sizes = 2 ** np.arange(rows.bit_length())
        return float(np.sum(rows // sizes * np.minimum(most, -(-sizes // distance)) ** 2.0))
    forest = _Frontier({}, 0)
    subtree = _Frontier({(1, 1): np.where(np.arange(distance) <= 0, 0, -1)}, 1)
    parts = []  # complete subtrees, from the smallest
    for level in range(rows.bit_length()):
        subtree = _joined(subtree, subtree, distance, most, square=True) if level else subtree
        if rows >> level & 1:
            parts.append(subtree)
    for part in reversed(parts):  # the largest comes first
        forest = _joined(forest, part, distance, most, square=False)
    return float(max((value for _, value in forest.room), default=0))


class _Frontier(NamedTuple):
    room: dict[
        tuple[int, int], np.ndarray
    ]  # (participations, value) → free room at the right by free room at the left; −1: none
    size: int


def _joined(left: _Frontier, right: _Frontier, distance: int, most: int, square: bool) -> _Frontier:
    margins = np.arange(distance)
    room: dict[tuple[int, int], np.ndarray] = {}

    def offer(count: int, value: int, free: np.ndarray) -> None:
        if count <= most and np.any(free >= 0):
            key = (count, value + (count**2 if square else 0))
            room[key] = np.maximum(room[key], free) if key in room else free

    for (count, value), free in left.room.items():
        offer(count, value, np.where(free >= 0, free + right.size, -1))
    for (count, value), free in right.room.items():
        inside = np.maximum(margins - left.size, 0)
        offer(count, value, free[inside])
        for (count_before, value_before), free_before in left.room.items():
            missing = np.clip(distance - 1 - free_before, 0, distance - 1)
            offer(count_before + count, value_before + value, np.where(free_before >= 0, free[missing], -1))
    return _Frontier(_undominated(room), left.size + right.size)


def _undominated(room: dict[tuple[int, int], np.ndarray]) -> dict[tuple[int, int], np.ndarray]:
    """Without those that have as many participations, a smaller value and nowhere more room."""
    kept: dict[tuple[int, int], np.ndarray] = {}
    for (count, value), free in sorted(room.items(), key=lambda item: (item[0][0], -item[0][1])):
        better = [other for (c, _), other in kept.items() if c == count]
        if not any(np.all(other >= free) for other in better):
            kept[count, value] = free
    return kept
