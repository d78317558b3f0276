"""Compute how far one user can move a whole run under noise that is correlated over rounds.

Row t of a run is x_t + (C⁻¹ z)_t: the estimate of round t and correlated noise, where z is white
noise of noise multiplier × clip norm and C, the *strategy*, is lower triangular with entries ≥ 0.
Multiplied by C that is C x + z, one Gaussian mechanism, so only ‖C u‖ counts, for the rounds in
which a user takes part. A claim about participation (at least MinS rounds strictly between two of
them, at most MaxP in all) leaves a largest one; its square is computed here.

**Guarantee:** `sensitivity_squared(rows, MinS, MaxP)` is at least ‖C U‖² for all participations
that the claim allows among the first `rows` rows and all reports of norm at most 1 (no entry of C
is negative, so reports that point the same way are the worst). It is exact, but for trees of more
than 64 participations.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from taciturn.core import Strategy


def most_participations(rows: int, min_separation: int) -> int:
    """Return how often a user can take part in this number of rows."""
    return -(-rows // (min_separation + 1))


def independent(rows: int) -> Strategy:
    """Return the strategy C = 1: fresh noise every round."""

    def squared(rows: int, min_separation: int, max_participations: int) -> float:
        return float(min(max_participations, most_participations(rows, min_separation)))

    return Strategy("independent", rows, squared, lambda rows: np.arange(1.0, rows + 1), bands=1)


def segments(rows: int, restarts: tuple[int, ...]) -> list[int]:
    """Return how many rows there are between restarts; the last segment may be incomplete."""
    bounds = [0, *(restart for restart in restarts if restart < rows), rows]
    return [end - start for start, end in itertools.pairwise(bounds)]


def _restarts(lengths: Sequence[int]) -> tuple[int, ...]:
    if not lengths or min(lengths) < 1:
        raise ValueError(
            "noise that is restarted has at least one row in every segment; these have"
            f" {list(lengths)}"
        )
    return tuple(itertools.accumulate(lengths))[:-1]


def _named(name: str, restarts: tuple[int, ...]) -> str:
    return f"{name}, restarted after {', '.join(map(str, restarts))} rounds" if restarts else name


# Toeplitz strategies: banded, and BLT.


def toeplitz(name: str, *columns: np.ndarray) -> Strategy:
    """Build C from its first column, constant on diagonals, one column for each segment;
    coefficients must fall to no less than 0.
    """
    for column in columns:
        falling = np.all(np.diff(column) <= 1e-12) and np.all(np.asarray(column) >= 0)
        if not (len(column) and column[0] == 1 and falling):
            raise ValueError(
                "coefficients of a Toeplitz strategy start with 1, fall, and are not negative"
            )
    restarts = _restarts([len(column) for column in columns])
    # Never rises, even where rounding did.
    majorants = [
        np.maximum.accumulate(np.asarray(column, np.float64)[::-1])[::-1] for column in columns
    ]

    def squared(rows: int, min_separation: int, max_participations: int) -> float:
        lengths = segments(rows, restarts)
        # (participations so far, rows of the next segment that are too soon) → ‖C u‖²
        largest = {(0, 0): 0.0}
        for position, (column, length) in enumerate(zip(majorants, lengths, strict=False)):
            after: dict[tuple[int, int], float] = {}
            for (before, rest), value in largest.items():
                moved = _earliest(
                    column[:length], rest, min_separation + 1, max_participations - before
                )
                # More is worse, but what is not spent here can be spent later.
                for count in range(
                    len(moved) - 1 if position == len(lengths) - 1 else 0, len(moved)
                ):
                    state = before + count, max(0, rest + count * (min_separation + 1) - length)
                    after[state] = max(after.get(state, 0.0), value + moved[count])
            largest = after
        return max(largest.values()) * (1 + 1e-9)

    def prefix_variance(rows: int) -> np.ndarray:
        parts, done = [], 0.0
        for column, length in zip(columns, segments(rows, restarts), strict=False):
            inverse = toeplitz_inverse(np.asarray(column, np.float64), length)
            parts.append(done + np.cumsum(np.cumsum(inverse) ** 2))
            done = parts[-1][-1]
        return np.concatenate(parts)

    bands = max(int(np.flatnonzero(column)[-1]) + 1 for column in columns)
    return Strategy(
        _named(name, restarts), sum(map(len, columns)), squared, prefix_variance, restarts, bands
    )


def _earliest(column: np.ndarray, rest: int, distance: int, most: int) -> list[float]:
    """Return ‖C u‖² in one segment for 0, 1, 2, … participations, none in its first `rest` rows.
    Falling coefficients are worst when a user takes part as early as possible (Kalinin and Lampert
    2024, Theorem 2).
    """
    squares, moved = [0.0], np.zeros(len(column))
    for start in range(rest, len(column), distance)[:most]:
        moved[start:] += column[: len(column) - start]
        squares.append(float(moved @ moved))
    return squares


def toeplitz_inverse(coefficients: np.ndarray, rows: int) -> np.ndarray:
    """Return the first column of C⁻¹."""
    inverse = np.zeros(rows)
    for row in range(rows):
        inverse[row] = (row == 0) - coefficients[1 : row + 1][::-1] @ inverse[:row]
    return inverse


def blt_coefficients(decay: Sequence[float], scale: Sequence[float], rows: int) -> np.ndarray:
    """Return 1, Σ ω_j, Σ ω_j θ_j, Σ ω_j θ_j², …: buffered linear Toeplitz (McMahan, Xu and Zhang
    2024).
    """
    powers = np.asarray(decay)[:, None] ** np.arange(rows - 1)
    return np.concatenate([[1.0], np.asarray(scale) @ powers])


# Binary trees.

# participations; the exact search takes seconds beyond
MOST_EXACT = 64


def tree(*lengths: int, honaker: bool) -> Strategy:
    """Give every complete node of a binary tree over the rounds its own noise (Kairouz et al.
    2021). With several lengths there is a tree for each segment between restarts; all but the last
    are completed by empty rows, so that only the noise of a root stays.
    """
    restarts = _restarts(lengths)
    levels = max(lengths).bit_length() + 1
    own = tree_weights(levels) if honaker else np.ones(levels)

    def squared(rows: int, min_separation: int, max_participations: int) -> float:
        return tree_sensitivity_squared(rows, min_separation, max_participations, restarts)

    def prefix_variance(rows: int) -> np.ndarray:
        parts, done = [], 0.0
        for length in segments(rows, restarts):
            bits = (np.arange(1, length + 1)[:, None] >> np.arange(levels)) & 1
            parts.append(done + bits @ own)
            if sum(map(len, parts)) in restarts:
                parts[-1][-1] = done + completed_weights(length, honaker)[-1]
            done = parts[-1][-1]
        return np.concatenate(parts)

    name = "tree with Honaker's variance reduction" if honaker else "tree"
    return Strategy(_named(name, restarts), sum(lengths), squared, prefix_variance, restarts)


def completed_weights(rows: int, honaker: bool) -> list[float]:
    """Return the `tree_weights` of the nodes over the last row of a tree that ends there; the empty
    part of a node has no noise.
    """
    level = (rows & -rows).bit_length() - 1
    weights = [float(tree_weights(level + 1)[-1]) if honaker else 1.0]
    whole = tree_weights(rows.bit_length() + 1)
    while 1 << level < rows:
        is_right = (rows - 1) >> level & 1
        below = weights[-1] + (whole[level] if is_right else 0.0)
        weights.append(1 / (1 + 1 / below) if honaker else 1.0)
        level += 1
    return weights


def tree_weights(levels: int) -> np.ndarray:
    """Return v_l, the variance of the best estimate of a node's noise from its own and the nodes
    below, and the weight of its own in it (Honaker 2015): v_0 = 1, 1/v_l = 1 + 1/(2 v_{l−1}).
    """
    weights = [1.0]
    while len(weights) < levels:
        weights.append(1 / (1 + 1 / (2 * weights[-1])))
    return np.array(weights)


@functools.lru_cache(maxsize=4096)
def tree_sensitivity_squared(
    rows: int, min_separation: int, max_participations: int, restarts: tuple[int, ...] = ()
) -> float:
    """Return the largest Σ (participations inside)² over all nodes that have noise; exact. A
    subtree is summed up by its frontier: for each number of participations in it and each value of
    the sum, how much room can be left free at its right end, as a function of the room that is to
    be left free at its left end. Two neighbours join if the room between them adds up to the
    separation.
    """
    distance = min_separation + 1
    most = min(max_participations, most_participations(rows, min_separation))
    lengths = segments(rows, restarts)
    ends = list(itertools.accumulate(lengths))
    if most > MOST_EXACT:
        return sum(
            _fullest(length, end in restarts, distance, most)
            for length, end in zip(lengths, ends, strict=True)
        )
    leaf = _Frontier({(1, 1): np.where(np.arange(distance) <= 0, 0, -1)}, 1)
    # complete subtrees by level
    whole = [leaf]
    while 1 << len(whole) <= max(lengths):
        whole.append(_joined(whole[-1], whole[-1], distance, most, square=True))

    def completed(level: int, length: int) -> _Frontier:
        """Return a subtree that has only its first rows."""
        if length == 1 << level:
            return whole[level]
        if length == 0:
            return _Frontier({}, 0)
        half = 1 << (level - 1)
        left, right = (
            completed(level - 1, min(length, half)),
            completed(level - 1, max(0, length - half)),
        )
        return _joined(left, right, distance, most, square=True)

    forest = _Frontier({}, 0)
    for length, end in zip(lengths, ends, strict=True):
        if end in restarts:
            parts = [completed((length - 1).bit_length(), length)]
        else:
            # the largest comes first
            parts = [
                whole[level]
                for level in reversed(range(length.bit_length()))
                if length >> level & 1
            ]
        for part in parts:
            forest = _joined(forest, part, distance, most, square=False)
    return float(max((value for _, value in forest.room), default=0))


def _fullest(length: int, is_completed: bool, distance: int, most: int) -> float:
    """Count every node of a segment as full as it can be: an upper bound, exact where users may
    take part in every round.
    """
    levels = (length - 1).bit_length() + 1 if is_completed else length.bit_length()
    sizes = 2 ** np.arange(levels)
    nodes = -(-length // sizes) if is_completed else length // sizes
    return float(np.sum(nodes * np.minimum(most, -(-sizes // distance)) ** 2.0))


class _Frontier(NamedTuple):
    # (participations, value) → free room at the right by free room at the left; −1: none
    room: dict[tuple[int, int], np.ndarray]
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
            offer(
                count_before + count,
                value_before + value,
                np.where(free_before >= 0, free[missing], -1),
            )
    return _Frontier(_undominated(room), left.size + right.size)


def _undominated(room: dict[tuple[int, int], np.ndarray]) -> dict[tuple[int, int], np.ndarray]:
    """Drop those with as many participations as another, a smaller value and nowhere more room."""
    kept: dict[tuple[int, int], np.ndarray] = {}
    for (count, value), free in sorted(room.items(), key=lambda item: (item[0][0], -item[0][1])):
        better = [other for (c, _), other in kept.items() if c == count]
        if not any(np.all(other >= free) for other in better):
            kept[count, value] = free
    return kept
