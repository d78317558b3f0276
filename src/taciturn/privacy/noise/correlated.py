"""Noise that is correlated over rounds, so that most of it cancels in their sum: DP-FTRL (Kairouz
et al. 2021, Xu et al. 2023).

Each `next` gives the *residual* form (C⁻¹ z)_t: what this round adds on top of the noise of the
rounds before, so that the server's step is plain optax. z is white noise; C is the strategy of
privacy/noise/sensitivity.py, and the cost follows from it.

All of them can be *restarted*: given several segments, noise starts anew after each, and what is in
the sum by then stays there. Only then may a clip norm change (privacy/noise/mechanism.py);
otherwise a restart only costs.

Everything is integers. Trees are exact: only functions of noised sums are rounded there. Toeplitz
strategies feed back the integers that were added, times coefficients that are multiples of 2⁻²⁴,
rounded; by how much that is off is bounded and counts as sensitivity (docs/proofs.md).

**Guarantee:** after t rounds the noise given out is the first t rows of C⁻¹ z, where each entry of
z is drawn once; but for `rounding` steps.

**Assumes:** states are secret: with buffers and nodes the noise can be removed from a model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import PyTree
from taciturn.privacy.noise import int64, sensitivity
from taciturn.privacy.noise.int64 import Int64
from taciturn.privacy.noise.white import Draw, Noise, check_multiplier

Next = Callable[[PyTree, Draw], tuple[Int64, PyTree]]
# Of a coefficient, after the point.
BITS = 24


# Coefficients in integers.


def _round_coefficients(coefficients: Sequence[float]) -> list[int]:
    """Round to multiples of 2⁻²⁴, and count in these."""
    return [round(coefficient * 2**BITS) for coefficient in coefficients]


def _multiply(number: Int64, coefficient: int | jax.Array) -> Int64:
    return int64.times_fraction(number, coefficient, BITS)


def _zero_numbers(count: int, size: int) -> PyTree:
    """Return this many zeros for each coordinate."""
    return [int64.zeros((size,)) for _ in range(count)]


# Buffered linear Toeplitz noise.


class Buffers(NamedTuple):
    """One segment of a BLT: C has 1, Σ ω_j, Σ ω_j θ_j, … down its columns."""

    rows: int
    # θ_j.
    decay: Sequence[float]
    # ω_j.
    scale: Sequence[float]


def blt(multiplier: float, *segments: Buffers) -> Noise:
    """Build buffered linear Toeplitz noise.

    The state is one number of 64 bits for each parameter and buffer.

    Raises:
        ValueError: the coefficients are not those of a BLT, or too fine to be rounded.
    """
    for segment in segments:
        _refuse_impossible_buffers(segment)
    most = max(len(segment.decay) for segment in segments)
    # As they are used, and as the cost is computed for.
    exact = [_ExactBuffers.round(segment) for segment in segments]
    for buffers in exact:
        _refuse_rounded_away(buffers)

    columns = []
    gain = 1.0
    rounding = 0.0
    for buffers in exact:
        column = buffers.column()
        columns.append(column)
        gain = max(gain, buffers.gain(column))
        rounding = max(rounding, buffers.rounding())
    strategy = sensitivity.toeplitz(f"BLT with {most} buffers", *columns)
    check_multiplier(multiplier)
    nexts: list[Next] = [partial(_next_of_blt, buffers) for buffers in exact]
    noise = Noise(
        multiplier=multiplier,
        init=partial(_zero_numbers, most),
        next=nexts[0],
        strategy=strategy,
        gain=gain,
        rounding=rounding,
    )
    return _restart(noise, nexts)


def _refuse_impossible_buffers(segment: Buffers) -> None:
    are_paired = len(segment.decay) == len(segment.scale)
    do_decay = all(0 < theta < 1 for theta in segment.decay)
    are_positive = all(omega > 0 for omega in segment.scale)
    if not (are_paired and do_decay and are_positive):
        raise ValueError(
            "a BLT has as many decays as scales; decays lie between 0 and 1, scales are positive"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _ExactBuffers:
    """A segment of a BLT with the coefficients that are used, in multiples of 2⁻²⁴."""

    rows: int
    decays: list[int]
    scales: list[int]

    @classmethod
    def round(cls, segment: Buffers) -> "_ExactBuffers":
        """Round the coefficients of a segment."""
        return cls(
            rows=segment.rows,
            decays=_round_coefficients(segment.decay),
            scales=_round_coefficients(segment.scale),
        )

    @property
    def _theta(self) -> np.ndarray:
        return np.array(self.decays) / 2**BITS

    @property
    def _omega(self) -> np.ndarray:
        return np.array(self.scales) / 2**BITS

    def column(self) -> np.ndarray:
        """Return the first column of C."""
        decay = self._theta.tolist()
        scale = self._omega.tolist()
        return sensitivity.blt_coefficients(decay=decay, scale=scale, rows=self.rows)

    def gain(self, column: np.ndarray) -> float:
        """Return how much wider than white noise the rows and the buffers become, at most."""
        inverse = sensitivity.toeplitz_inverse(column, self.rows)
        widest = float(np.linalg.norm(inverse))
        for theta in self._theta:
            powers = theta ** np.arange(self.rows)
            buffer = np.convolve(inverse, powers)[: self.rows]
            widest = max(widest, float(np.linalg.norm(buffer)))
        return widest

    def rounding(self) -> float:
        """Return by how many steps what is fed back may be off.

        A buffer is off by half a step each time it moves, and forgets as it decays; each product
        by half a step more.
        """
        theta = self._theta
        of_buffers = np.sum(self._omega / (2 * (1 - theta)))
        of_products = len(theta) / 2
        return float(of_buffers + of_products)


def _refuse_rounded_away(buffers: _ExactBuffers) -> None:
    if any(not 0 < theta < 2**BITS for theta in buffers.decays):
        raise ValueError(
            f"a decay of a BLT is a multiple of 2^-{BITS} between 0 and 1; one of these is rounded"
            " to an end"
        )


def _next_of_blt(segment: _ExactBuffers, buffers: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
    """Solve C y = z for row t: z_t = y_t + Σ_j ω_j b_j, where b_j = Σ_{s < t} θ_j^(t−1−s) y_s."""
    residual = draw(0)
    for omega, buffer in zip(segment.scales, buffers, strict=False):
        residual = int64.subtract(residual, _multiply(buffer, omega))
    moved = []
    for theta, buffer in zip(segment.decays, buffers, strict=False):
        decayed = _multiply(buffer, theta)
        moved.append(int64.add(decayed, residual))
    # Another segment may have more buffers than this one uses.
    unused = buffers[len(moved) :]
    return residual, moved + unused


# Banded Toeplitz noise.


class Bands(NamedTuple):
    """One segment of banded noise: `coefficients` down the columns of C, and 0 after them."""

    rows: int
    coefficients: Sequence[float]


def banded_toeplitz(multiplier: float, *segments: Bands) -> Noise:
    """Build banded Toeplitz noise.

    The state is one number of 64 bits for each parameter and band but the first.

    Raises:
        ValueError: the coefficients do not start with 1 and fall.
    """
    most = max(len(segment.coefficients) for segment in segments)
    columns = []
    nexts: list[Next] = []
    gain = 1.0
    for segment in segments:
        bands = _round_coefficients(segment.coefficients)
        bands += [0] * (most - len(bands))
        nexts.append(partial(_next_of_bands, bands))
        column = _column_of_bands(bands, segment.rows)
        columns.append(column)
        inverse = sensitivity.toeplitz_inverse(column, len(column))
        gain = max(gain, float(np.linalg.norm(inverse)))
    strategy = sensitivity.toeplitz(f"{most}-banded Toeplitz", *columns)
    check_multiplier(multiplier)
    noise = Noise(
        multiplier=multiplier,
        init=partial(_zero_numbers, most - 1),
        next=nexts[0],
        strategy=strategy,
        gain=gain,
        # Each product is off by half a step.
        rounding=(most - 1) / 2,
    )
    return _restart(noise, nexts)


def _column_of_bands(bands: list[int], rows: int) -> np.ndarray:
    """Return the first column of C."""
    zeros = max(0, rows - len(bands))
    return np.pad(np.array(bands) / 2**BITS, (0, zeros))[:rows]


def _next_of_bands(bands: list[int], before: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
    """Solve z_t = y_t + Σ_i c_i y_{t−i} for y_t; `before` holds y_{t−1}, y_{t−2}, …"""
    residual = draw(0)
    for coefficient, past in zip(bands[1:], before, strict=True):
        residual = int64.subtract(residual, _multiply(past, coefficient))
    newest_first = [residual, *before]
    return residual, newest_first[: len(before)]


# Noise aggregated in binary trees.


def tree(multiplier: float, *lengths: int, honaker: bool = True) -> Noise:
    """Aggregate noise in a tree.

    The sum of t rounds has the noise of the nodes that cover them, one for each 1 in t as a binary
    number. With Honaker's reduction a node's noise is the best guess from its own and from those
    of all nodes below it. The state is one number of 64 bits for each parameter and level.

    A tree that is restarted is completed first: in the last row of its segment the nodes that cover
    it are replaced by the root of a tree whose other rows are empty, so that less noise stays in
    the sum.

    Args:
        multiplier: the noise multiplier of a node.
        lengths: the rows of each tree; there is one for each segment between restarts.
        honaker: whether nodes are also estimated from their children.

    Raises:
        ValueError: a segment has no rows.
    """
    strategy = sensitivity.tree(*lengths, honaker=honaker)
    levels = max(lengths).bit_length()
    weights = sensitivity.tree_weights(levels).tolist() if honaker else [1.0] * levels
    rounded = _round_coefficients(weights)
    nodes = _TreeNodes(
        levels=levels,
        honaker=honaker,
        weights=jnp.asarray(rounded, jnp.uint32),
    )
    nexts = [nodes.next_of_completed_tree(length) for length in lengths[:-1]]
    nexts.append(nodes.next)
    check_multiplier(multiplier)
    # Rows 1 to n complete fewer than 2n nodes, and completing a tree takes one for each level.
    spare = len(lengths) * levels
    noise = Noise(
        multiplier=multiplier,
        init=nodes.init,
        next=nodes.next,
        strategy=strategy,
        draws=partial(_draws_of_trees, spare),
        gain=2.0 * levels + 2.0,
    )
    return _restart(noise, nexts)


def _draws_of_trees(spare: int, rows: int) -> int:
    return 2 * rows + spare


@dataclass(frozen=True, kw_only=True, eq=False)
class _TreeNodes:
    """How the nodes of a tree are drawn, row by row.

    The state is the number of rows so far, and for each level the noise of its latest node, where
    that is a left one.
    """

    levels: int
    honaker: bool
    # Of a node's own noise in the best guess, by level, in multiples of 2⁻²⁴.
    weights: jax.Array

    def init(self, size: int) -> PyTree:
        """Return the state of an empty tree."""
        return jnp.int32(0), int64.zeros((self.levels, size))

    def next(self, state: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
        """Return the noise of the node that this row completes, less that of those it replaces."""
        done, nodes = state
        row = done + 1
        # The level of the node.
        completed = _count_trailing_zeros(row)
        node = self._draw_node(nodes, completed, draw)

        def take_back(level: jax.Array, residual: Int64) -> Int64:
            return int64.subtract(residual, _level(nodes, level))

        residual = jax.lax.fori_loop(0, completed, take_back, node)
        return residual, (row, self._keep_node(nodes, completed, node))

    def _draw_node(self, nodes: Int64, completed: jax.Array, draw: Draw) -> Int64:
        """Return the noise of the node that is completed at this level."""
        if not self.honaker:
            # Without the reduction, the nodes below it are never used.
            return draw(completed)

        def climb(level: jax.Array, node: Int64) -> Int64:
            """Guess the node above from its own noise, and from that of the two below, of which
            the left was kept.
            """
            own_noise = draw(level + 1)
            below = int64.add(_level(nodes, level), node)
            return _guess(
                own_noise=own_noise,
                below=below,
                weight=self.weights[level + 1],
            )

        return jax.lax.fori_loop(0, completed, climb, draw(0))

    def _keep_node(self, nodes: Int64, completed: jax.Array, node: Int64) -> Int64:
        """Put the node in its place, and zeros below it."""
        levels = jnp.arange(self.levels)[:, None]
        kept = int64.where(levels < completed, int64.zeros(nodes.high.shape), nodes)
        row_of_node = Int64(high=node.high[None], low=node.low[None])
        return int64.where(levels == completed, row_of_node, kept)

    def next_of_completed_tree(self, rows: int) -> Next:
        """Return the `next` of a tree that is completed after these rows."""
        weights = sensitivity.completed_weights(rows, self.honaker)
        # The first is of the node that the last row completes; the others are above it.
        above = _round_coefficients(weights[1:])
        if not above:
            return self.next
        return partial(self._next_or_complete, rows, above)

    def _next_or_complete(
        self, rows: int, weights: list[int], state: PyTree, draw: Draw
    ) -> tuple[Int64, PyTree]:
        """Return the noise of a row, which in the last row ends with the root's."""
        residual, after = self.next(state, draw)
        row, nodes = after

        def complete() -> Int64:
            return self._complete(rows=rows, weights=weights, nodes=nodes, draw=draw)

        def leave() -> Int64:
            return int64.zeros(residual.high.shape)

        correction = jax.lax.cond(row == rows, complete, leave)
        return int64.add(residual, correction), after

    def _complete(self, *, rows: int, weights: list[int], nodes: Int64, draw: Draw) -> Int64:
        """Return the noise of the root, less that of the nodes that it replaces."""
        lowest = (rows & -rows).bit_length() - 1
        root = _level(nodes, lowest)
        for level, weight in enumerate(weights, start=lowest):
            is_right = (rows - 1) >> level & 1
            if is_right:
                # Of the two, the left one was kept.
                root = int64.add(_level(nodes, level), root)
            root = _guess(own_noise=draw(level + 1), below=root, weight=weight)
        for level in range(self.levels):
            root = int64.subtract(root, _level(nodes, level))
        return root


def _count_trailing_zeros(number: jax.Array) -> jax.Array:
    lowest_bit = number & -number
    return jnp.int32(jax.lax.population_count(lowest_bit - 1))


def _level(nodes: Int64, level: jax.Array | int) -> Int64:
    return Int64(high=nodes.high[level], low=nodes.low[level])


def _guess(*, own_noise: Int64, below: Int64, weight: jax.Array | int) -> Int64:
    """Return weight · own + (1 − weight) · below, as below + weight · (own − below).

    Where both are of noised sums over the same rows, only noise is rounded, to the same number
    whatever the rows summed to.
    """
    difference = int64.subtract(own_noise, below)
    return int64.add(below, _multiply(difference, weight))


# Restarts.


def _restart(noise: Noise, nexts: list[Next]) -> Noise:
    """Start the noise anew at the restarts of its strategy; each segment has its own `next`."""
    if not noise.strategy.restarts:
        return noise
    # Trees of a power of two rows have the same one, which is compiled once.
    distinct = list(dict.fromkeys(nexts))
    segments = _Segments(
        init_segment=noise.init,
        starts=np.array(noise.strategy.restarts),
        distinct=distinct,
        which=jnp.array([distinct.index(segment_next) for segment_next in nexts]),
    )
    return noise._replace(init=segments.init, next=segments.next)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Segments:
    """Noise that starts anew: the state is the number of rows so far, and that of the segment."""

    init_segment: Callable[[int], PyTree]
    # The first rows of all segments but the first.
    starts: np.ndarray
    distinct: list[Next]
    # The place of each segment's `next` among the distinct ones.
    which: jax.Array

    def init(self, size: int) -> PyTree:
        """Return the state before the first segment."""
        return jnp.int32(0), self.init_segment(size)

    def next(self, state: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
        """Return the noise of a row, from the segment that it lies in."""
        row, inner = state
        inner = self._forget_before(row, inner)
        segment = jnp.sum(row >= self.starts)
        branches = [partial(_draw_from, draw, segment_next) for segment_next in self.distinct]
        residual, inner = jax.lax.switch(self.which[segment], branches, inner)
        return residual, (row + 1, inner)

    def _forget_before(self, row: jax.Array, inner: PyTree) -> PyTree:
        """Return the state of the segment, or zeros where the row begins another."""
        is_new = jnp.any(row == self.starts)

        def forget(old: jax.Array) -> jax.Array:
            return jnp.where(is_new, jnp.zeros_like(old), old)

        return jax.tree.map(forget, inner)


def _draw_from(draw: Draw, segment_next: Next, inner: PyTree) -> tuple[Int64, PyTree]:
    return segment_next(inner, draw)
