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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from taciturn.core import Strategy


def most_participations(rows: int, min_separation: int) -> int:
    """Return how often a user can take part in this number of rows."""
    return -(-rows // (min_separation + 1))


def segments(rows: int, restarts: tuple[int, ...]) -> list[int]:
    """Return how many rows there are between restarts; the last segment may be incomplete."""
    passed = [restart for restart in restarts if restart < rows]
    bounds = [0, *passed, rows]
    return [end - start for start, end in itertools.pairwise(bounds)]


def _find_restarts(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the first rows of all segments of these lengths but the first."""
    if not lengths or min(lengths) < 1:
        raise ValueError(
            "noise that is restarted has at least one row in every segment; these have"
            f" {list(lengths)}"
        )
    ends = tuple(itertools.accumulate(lengths))
    return ends[:-1]


def _name_with_restarts(name: str, restarts: tuple[int, ...]) -> str:
    if not restarts:
        return name
    rounds = ", ".join(str(restart) for restart in restarts)
    return f"{name}, restarted after {rounds} rounds"


# Independent noise.


def independent(rows: int) -> Strategy:
    """Return the strategy C = 1: fresh noise every round."""
    return Strategy(
        name="independent",
        rows=rows,
        sensitivity_squared=_independent_sensitivity_squared,
        prefix_variance=_independent_prefix_variance,
        bands=1,
    )


def _independent_sensitivity_squared(
    rows: int, min_separation: int, max_participations: int
) -> float:
    possible = most_participations(rows, min_separation)
    return float(min(max_participations, possible))


def _independent_prefix_variance(rows: int) -> np.ndarray:
    return np.arange(1.0, rows + 1)


# For runs of any length up to a million rounds.
INDEPENDENT = independent(10**6)


# Toeplitz strategies: banded, and BLT.


def toeplitz(name: str, *columns: np.ndarray) -> Strategy:
    """Build C from its first column, constant on diagonals.

    Args:
        name: what the noise is called.
        columns: one for each segment; coefficients fall, to no less than 0.

    Raises:
        ValueError: the coefficients of a column do not start with 1 and fall.
    """
    for column in columns:
        _refuse_unless_falling(column)
    lengths = [len(column) for column in columns]
    restarts = _find_restarts(lengths)
    bands = [int(np.flatnonzero(column)[-1]) + 1 for column in columns]
    forms = _ToeplitzForms(
        columns=columns,
        majorants=[_fall_at_least_as_late(column) for column in columns],
        restarts=restarts,
    )
    return Strategy(
        name=_name_with_restarts(name, restarts),
        rows=sum(lengths),
        sensitivity_squared=forms.sensitivity_squared,
        prefix_variance=forms.prefix_variance,
        restarts=restarts,
        bands=max(bands),
    )


def _refuse_unless_falling(column: np.ndarray) -> None:
    is_falling = np.all(np.diff(column) <= 1e-12)
    is_nowhere_negative = np.all(np.asarray(column) >= 0)
    starts_with_one = len(column) > 0 and column[0] == 1
    if not (starts_with_one and is_falling and is_nowhere_negative):
        raise ValueError(
            "coefficients of a Toeplitz strategy start with 1, fall, and are not negative"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _ToeplitzForms:
    """A Toeplitz strategy, by the first column of each segment."""

    columns: Sequence[np.ndarray]
    # The same, but that they never rise, even where rounding made the columns do so.
    majorants: Sequence[np.ndarray]
    restarts: tuple[int, ...]

    def sensitivity_squared(self, rows: int, min_separation: int, max_participations: int) -> float:
        """Return the largest ‖C u‖², over all patterns of the whole run."""
        lengths = segments(rows, self.restarts)
        last = len(lengths) - 1
        patterns: _Patterns = {_SoFar(participations=0, rest=0): 0.0}
        for position, length in enumerate(lengths):
            patterns = _extend_patterns(
                patterns,
                column=self.majorants[position][:length],
                distance=min_separation + 1,
                most=max_participations,
                is_last=position == last,
            )
        return max(patterns.values()) * (1 + 1e-9)

    def prefix_variance(self, rows: int) -> np.ndarray:
        """Return the variance of the noise on the sums of the first 1, 2, … rows."""
        parts = []
        # Noise from before a restart stays in the sum.
        remaining = 0.0
        lengths = segments(rows, self.restarts)
        for column, length in zip(self.columns, lengths, strict=False):
            coefficients = np.asarray(column, np.float64)
            inverse = toeplitz_inverse(coefficients, length)
            of_segment = np.cumsum(np.cumsum(inverse) ** 2)
            variances = remaining + of_segment
            parts.append(variances)
            remaining = variances[-1]
        return np.concatenate(parts)


def _fall_at_least_as_late(column: np.ndarray) -> np.ndarray:
    """Return the smallest coefficients that are no smaller than these, and never rise."""
    backwards = np.asarray(column, np.float64)[::-1]
    return np.maximum.accumulate(backwards)[::-1]


class _SoFar(NamedTuple):
    """Where a user stands before a segment."""

    participations: int
    # Rows of the segment that are too soon.
    rest: int


# The largest ‖C u‖² of all patterns that end there.
_Patterns = dict[_SoFar, float]


def _extend_patterns(
    patterns: _Patterns, *, column: np.ndarray, distance: int, most: int, is_last: bool
) -> _Patterns:
    """Continue patterns of participation by one more segment.

    Args:
        patterns: those of the segments before.
        column: the first of the segment's C.
        distance: the least number of rows from one participation to the next.
        most: participations, in the whole run.
        is_last: whether no segment follows.
    """
    length = len(column)
    extended: _Patterns = {}
    for before, value in patterns.items():
        moved = _square_earliest(
            column,
            rest=before.rest,
            distance=distance,
            most=most - before.participations,
        )
        # More is worse, but what is not spent here can be spent later.
        fewest = len(moved) - 1 if is_last else 0
        for count in range(fewest, len(moved)):
            rest = before.rest + count * distance - length
            after = _SoFar(
                participations=before.participations + count,
                rest=max(0, rest),
            )
            reached = value + moved[count]
            extended[after] = max(extended.get(after, 0.0), reached)
    return extended


def _square_earliest(column: np.ndarray, *, rest: int, distance: int, most: int) -> list[float]:
    """Return ‖C u‖² in one segment for 0, 1, 2, … participations, none in its first `rest` rows.

    Falling coefficients are worst when a user takes part as early as possible (Kalinin and Lampert
    2024, Theorem 2).
    """
    rows = len(column)
    squares = [0.0]
    moved = np.zeros(rows)
    for start in range(rest, rows, distance)[:most]:
        moved[start:] += column[: rows - start]
        squares.append(float(moved @ moved))
    return squares


def toeplitz_inverse(coefficients: np.ndarray, rows: int) -> np.ndarray:
    """Return the first column of C⁻¹."""
    inverse = np.zeros(rows)
    for row in range(rows):
        newest_first = coefficients[1 : row + 1][::-1]
        inverse[row] = (row == 0) - newest_first @ inverse[:row]
    return inverse


def blt_coefficients(decay: Sequence[float], scale: Sequence[float], rows: int) -> np.ndarray:
    """Return 1, Σ ω_j, Σ ω_j θ_j, Σ ω_j θ_j², …: buffered linear Toeplitz (McMahan, Xu and Zhang
    2024).
    """
    powers = np.asarray(decay)[:, None] ** np.arange(rows - 1)
    return np.concatenate([[1.0], np.asarray(scale) @ powers])


# Binary trees.

# Participations. Beyond, the exact search takes seconds.
MOST_EXACT = 64


def tree(*lengths: int, honaker: bool) -> Strategy:
    """Give every complete node of a binary tree over the rounds its own noise (Kairouz et al.
    2021).

    With several lengths there is a tree for each segment between restarts; all but the last are
    completed by empty rows, so that only the noise of a root stays.

    Raises:
        ValueError: a segment has no rows.
    """
    restarts = _find_restarts(lengths)
    levels = max(lengths).bit_length() + 1
    trees = _Trees(
        honaker=honaker,
        weights=tree_weights(levels) if honaker else np.ones(levels),
        restarts=restarts,
    )
    name = "tree with Honaker's variance reduction" if honaker else "tree"
    return Strategy(
        name=_name_with_restarts(name, restarts),
        rows=sum(lengths),
        sensitivity_squared=trees.sensitivity_squared,
        prefix_variance=trees.prefix_variance,
        restarts=restarts,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trees:
    """The strategy of one tree after another."""

    honaker: bool
    # The variance of a node's noise, by level.
    weights: np.ndarray
    restarts: tuple[int, ...]

    def sensitivity_squared(self, rows: int, min_separation: int, max_participations: int) -> float:
        """Return the largest ‖C u‖², over all patterns of the whole run."""
        return tree_sensitivity_squared(
            rows=rows,
            min_separation=min_separation,
            max_participations=max_participations,
            restarts=self.restarts,
        )

    def prefix_variance(self, rows: int) -> np.ndarray:
        """Return the variance of the noise on the sums of the first 1, 2, … rows."""
        parts = []
        # The noise of roots from before a restart stays in the sum.
        remaining = 0.0
        done = 0
        for length in segments(rows, self.restarts):
            sums = np.arange(1, length + 1)
            # There is a covering node for each 1 in the number of rows.
            bits = (sums[:, None] >> np.arange(len(self.weights))) & 1
            variances = remaining + bits @ self.weights
            done += length
            if done in self.restarts:
                root = completed_weights(length, self.honaker)[-1]
                variances[-1] = remaining + root
            parts.append(variances)
            remaining = variances[-1]
        return np.concatenate(parts)


def completed_weights(rows: int, honaker: bool) -> list[float]:
    """Return the `tree_weights` of the nodes over the last row of a tree that ends there.

    The empty part of a node has no noise.
    """
    lowest = (rows & -rows).bit_length() - 1
    height = (rows - 1).bit_length()
    if not honaker:
        return [1.0] * (height - lowest + 1)
    whole = tree_weights(rows.bit_length() + 1)
    weights = [float(whole[lowest])]
    for level in range(lowest, height):
        is_right = (rows - 1) >> level & 1
        below = weights[-1] + (whole[level] if is_right else 0.0)
        weights.append(1 / (1 + 1 / below))
    return weights


def tree_weights(levels: int) -> np.ndarray:
    """Return v_l: v_0 = 1, 1/v_l = 1 + 1/(2 v_{l−1}) (Honaker 2015).

    It is the variance of the best estimate of a node's noise from its own and the nodes below, and
    the weight of its own in it.
    """
    weights = [1.0]
    while len(weights) < levels:
        weights.append(1 / (1 + 1 / (2 * weights[-1])))
    return np.array(weights)


@functools.lru_cache(maxsize=4096)
def tree_sensitivity_squared(
    rows: int, min_separation: int, max_participations: int, restarts: tuple[int, ...] = ()
) -> float:
    """Return the largest Σ (participations inside)² over all nodes that have noise.

    It is exact up to `MOST_EXACT` participations, and an upper bound beyond. Subtrees are joined
    from left to right, each summed up by its frontier.
    """
    possible = most_participations(rows, min_separation)
    claim = _Claim(
        distance=min_separation + 1,
        most=min(max_participations, possible),
    )
    lengths = segments(rows, restarts)
    ends = list(itertools.accumulate(lengths))
    if claim.most > MOST_EXACT:
        return sum(
            _fill_every_node(length, claim, is_completed=end in restarts)
            for length, end in zip(lengths, ends, strict=True)
        )
    whole = _join_whole_subtrees(max(lengths), claim)
    forest = _EMPTY
    for length, end in zip(lengths, ends, strict=True):
        if end in restarts:
            height = (length - 1).bit_length()
            parts = [_join_completed(whole, claim, level=height, length=length)]
        else:
            parts = _cover(whole, length)
        for part in parts:
            forest = _join(forest, part, claim, is_node=False)
    values = [inside.value for inside in forest.room]
    return float(max(values, default=0))


class _Claim(NamedTuple):
    """How often a user takes part."""

    # The least number of rows from one participation to the next.
    distance: int
    # Participations.
    most: int


def _fill_every_node(length: int, claim: _Claim, *, is_completed: bool) -> float:
    """Count every node of a segment as full as it can be.

    It is an upper bound, exact where users may take part in every round.
    """
    if is_completed:
        levels = (length - 1).bit_length() + 1
        sizes = 2 ** np.arange(levels)
        nodes = -(-length // sizes)
    else:
        sizes = 2 ** np.arange(length.bit_length())
        nodes = length // sizes
    possible = -(-sizes // claim.distance)
    inside = np.minimum(claim.most, possible)
    return float(np.sum(nodes * inside**2.0))


class _Inside(NamedTuple):
    """What a user does inside a subtree."""

    participations: int
    # Σ (participations inside a node)².
    value: int


# How much room can be left free at the right end of a subtree, by the room that is to be left free
# at its left end; −1: the participations do not fit.
_Room = np.ndarray


class _Frontier(NamedTuple):
    """A subtree, summed up.

    Two neighbours join if the room between them adds up to the separation.
    """

    room: dict[_Inside, _Room]
    # In rows.
    size: int


_EMPTY = _Frontier({}, 0)


def _join_whole_subtrees(largest: int, claim: _Claim) -> list[_Frontier]:
    """Return complete subtrees by level, as far as they have no more than `largest` rows."""
    margins = np.arange(claim.distance)
    in_its_row = np.where(margins <= 0, 0, -1)
    once = _Inside(participations=1, value=1)
    leaf = _Frontier({once: in_its_row}, 1)
    whole = [leaf]
    while 1 << len(whole) <= largest:
        half = whole[-1]
        whole.append(_join(half, half, claim, is_node=True))
    return whole


def _join_completed(whole: list[_Frontier], claim: _Claim, *, level: int, length: int) -> _Frontier:
    """Return a subtree of this level that has only its first rows."""
    if length == 1 << level:
        return whole[level]
    if length == 0:
        return _EMPTY
    half = 1 << (level - 1)
    left = _join_completed(
        whole,
        claim,
        level=level - 1,
        length=min(length, half),
    )
    right = _join_completed(
        whole,
        claim,
        level=level - 1,
        length=max(0, length - half),
    )
    return _join(left, right, claim, is_node=True)


def _cover(whole: list[_Frontier], length: int) -> list[_Frontier]:
    """Return the complete subtrees that cover these rows; the largest comes first."""
    levels = reversed(range(length.bit_length()))
    return [whole[level] for level in levels if length >> level & 1]


def _join(left: _Frontier, right: _Frontier, claim: _Claim, *, is_node: bool) -> _Frontier:
    """Return what two neighbours are together, with or without a node over both."""
    frontier = _Candidates(claim.most, is_node=is_node)
    for inside, free in left.room.items():
        only_left = np.where(free >= 0, free + right.size, -1)
        frontier.offer(inside, only_left)
    margins = np.arange(claim.distance)
    margins_of_right = np.maximum(margins - left.size, 0)
    for inside, free in right.room.items():
        only_right = free[margins_of_right]
        frontier.offer(inside, only_right)
        for inside_left, free_left in left.room.items():
            in_both = _add(inside_left, inside)
            frontier.offer(in_both, _chain_room(free_left, free))
    return _Frontier(_drop_dominated(frontier.room), left.size + right.size)


def _chain_room(left: _Room, right: _Room) -> _Room:
    """Return the room at the right end of two neighbours, with participations in both."""
    furthest = len(right) - 1
    # What the left one does not leave of the distance, the right one has to.
    missing = np.clip(furthest - left, 0, furthest)
    return np.where(left >= 0, right[missing], -1)


def _add(left: _Inside, right: _Inside) -> _Inside:
    return _Inside(left.participations + right.participations, left.value + right.value)


class _Candidates:
    """The frontier of two neighbours, while it is collected."""

    def __init__(self, most: int, *, is_node: bool) -> None:
        self.room: dict[_Inside, _Room] = {}
        self._most = most
        self._is_node = is_node

    def offer(self, inside: _Inside, free: _Room) -> None:
        """Add these participations, if the claim allows them and they fit."""
        count = inside.participations
        fits = np.any(free >= 0)
        if count > self._most or not fits:
            return
        of_node = count**2 if self._is_node else 0
        inside = _Inside(
            participations=count,
            value=inside.value + of_node,
        )
        if inside in self.room:
            free = np.maximum(self.room[inside], free)
        self.room[inside] = free


def _drop_dominated(room: dict[_Inside, _Room]) -> dict[_Inside, _Room]:
    """Drop those with as many participations as another, a smaller value and nowhere more room."""
    kept: dict[_Inside, _Room] = {}
    for inside in sorted(room, key=_place_largest_first):
        if not _is_dominated(inside, room[inside], kept):
            kept[inside] = room[inside]
    return kept


def _place_largest_first(inside: _Inside) -> tuple[int, int]:
    """Order by the number of participations, and then the largest value first."""
    return inside.participations, -inside.value


def _is_dominated(inside: _Inside, free: _Room, kept: dict[_Inside, _Room]) -> bool:
    for other, other_free in kept.items():
        has_as_many = other.participations == inside.participations
        if has_as_many and np.all(other_free >= free):
            return True
    return False
