"""Noise that is correlated over rounds, so that most of it cancels in their sum: DP-FTRL (Kairouz
et al. 2021, Xu et al. 2023).

Each `next` gives the *residual* form (C⁻¹ z)_t: what this round adds on top of the noise of the
rounds before, so that the server's step is plain optax. z is white noise; C is the strategy of
privacy/noise/sensitivity.py, and the cost follows from it.

All of them can be *restarted*: given several segments, noise starts anew after each, and what is in
the sum by then stays there. Only then may a clip norm change (privacy/noise/mechanism.py); otherwise a
restart only costs.

Everything is integers. Trees are exact: only functions of noised sums are rounded there. Toeplitz
strategies feed back the integers that were added, times coefficients that are multiples of 2⁻²⁴,
rounded; by how much that is off is bounded and counts as sensitivity (docs/proofs.md).

**Guarantee:** after t rounds the noise given out is the first t rows of C⁻¹ z, where each entry of
z is drawn once; but for `rounding` steps.

**Assumes:** states are secret: with buffers and nodes the noise can be removed from a model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import PyTree, Strategy
from taciturn.privacy.noise import int64, sensitivity
from taciturn.privacy.noise.int64 import Int64
from taciturn.privacy.noise.white import Draw, Noise, check_multiplier

Next = Callable[[PyTree, Draw], tuple[Int64, PyTree]]
# of a coefficient after the point
BITS = 24


class Buffers(NamedTuple):
    """One segment of a BLT: C has 1, Σ ω_j, Σ ω_j θ_j, … down its columns."""

    rows: int
    # θ_j
    decay: Sequence[float]
    # ω_j
    scale: Sequence[float]


def blt(multiplier: float, *segments: Buffers) -> Noise:
    """Make buffered linear Toeplitz noise. The state is one number of 64 bits for each parameter
    and buffer.
    """
    for _, decay, scale in segments:
        if (
            len(decay) != len(scale)
            or not all(0 < one < 1 for one in decay)
            or not all(one > 0 for one in scale)
        ):
            raise ValueError(
                "a BLT has as many decays as scales; decays lie between 0 and 1, scales are"
                " positive"
            )
    most = max(len(decay) for _, decay, _ in segments)
    # As they are used, and as the cost is computed for.
    exact = [(rows, _fixed(decay), _fixed(scale)) for rows, decay, scale in segments]
    if any(not 0 < one < 2**BITS for _, decays, _ in exact for one in decays):
        raise ValueError(
            f"a decay of a BLT is a multiple of 2^-{BITS} between 0 and 1; one of these is rounded"
            " to an end"
        )

    def init(size: int) -> PyTree:
        return [int64.zeros((size,)) for _ in range(most)]

    def next(
        decays: list[int], scales: list[int], buffers: PyTree, draw: Draw
    ) -> tuple[Int64, PyTree]:
        # C y = z row by row: z_t = y_t + Σ_j ω_j b_j, where b_j = Σ_{s < t} θ_j^(t−1−s) y_s.
        residual = draw(0)
        for omega, buffer in zip(scales, buffers, strict=False):
            residual = int64.subtract(residual, _times(buffer, omega))
        moved = [
            int64.add(_times(buffer, theta), residual)
            for theta, buffer in zip(decays, buffers, strict=False)
        ]
        return residual, moved + buffers[len(moved) :]

    columns, gain, rounding = [], 1.0, 0.0
    for rows, decays, scales in exact:
        theta, omega = (np.array(values) / 2**BITS for values in (decays, scales))
        columns.append(sensitivity.blt_coefficients(theta.tolist(), omega.tolist(), rows))
        inverse = sensitivity.toeplitz_inverse(columns[-1], rows)
        kept = [np.convolve(inverse, one ** np.arange(rows))[:rows] for one in theta]
        gain = max(gain, *(float(np.linalg.norm(row)) for row in (inverse, *kept)))
        # A buffer is off by half a step each time it moves, and forgets as it decays; each product
        # by half a step more.
        rounding = max(rounding, float(np.sum(omega / (2 * (1 - theta))) + len(theta) / 2))
    strategy = sensitivity.toeplitz(f"BLT with {most} buffers", *columns)
    return _noise(
        multiplier,
        init,
        [partial(next, *fixed) for _, *fixed in exact],
        strategy,
        gain=gain,
        rounding=rounding,
    )


class Bands(NamedTuple):
    """One segment of banded noise: `coefficients` down the columns of C, and 0 after them."""

    rows: int
    coefficients: Sequence[float]


def banded_toeplitz(multiplier: float, *segments: Bands) -> Noise:
    """Make banded Toeplitz noise. The state is one number of 64 bits for each parameter and band
    but the first.
    """
    most = max(len(coefficients) for _, coefficients in segments)
    exact = [_fixed(bands) + [0] * (most - len(bands)) for _, bands in segments]

    def init(size: int) -> PyTree:
        return [int64.zeros((size,)) for _ in range(most - 1)]

    def next(bands: list[int], before: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
        # z_t = y_t + Σ_i c_i y_{t−i}; `before` holds y_{t−1}, y_{t−2}, …
        residual = draw(0)
        for coefficient, past in zip(bands[1:], before, strict=True):
            residual = int64.subtract(residual, _times(past, coefficient))
        return residual, [residual, *before][: most - 1]

    columns = [
        np.pad(np.array(bands) / 2**BITS, (0, max(0, rows - most)))[:rows]
        for (rows, _), bands in zip(segments, exact, strict=True)
    ]
    gain = max(
        float(np.linalg.norm(sensitivity.toeplitz_inverse(column, len(column))))
        for column in columns
    )
    strategy = sensitivity.toeplitz(f"{most}-banded Toeplitz", *columns)
    return _noise(
        multiplier,
        init,
        [partial(next, bands) for bands in exact],
        strategy,
        gain=max(gain, 1.0),
        rounding=(most - 1) / 2,
    )


def _fixed(coefficients: Sequence[float]) -> list[int]:
    """Round to multiples of 2⁻²⁴."""
    return [round(one * 2**BITS) for one in coefficients]


def _times(number: Int64, coefficient: int) -> Int64:
    return int64.times_fraction(number, coefficient, BITS)


def tree(multiplier: float, *lengths: int, honaker: bool = True) -> Noise:
    """Aggregate in a tree: the sum of t rounds has the noise of the nodes that cover them, one for
    each 1 in t as a binary number.

    With Honaker's reduction a node's noise is the best guess from its own and from those of all
    nodes below it. The state is one number of 64 bits for each parameter and level. A tree that is
    restarted is completed first: in the last row of its segment the nodes that cover it are
    replaced by the root of a tree whose other rows are empty, so that less noise stays in the sum.
    """
    strategy = sensitivity.tree(*lengths, honaker=honaker)
    levels = max(lengths).bit_length()
    own = jnp.asarray(
        _fixed(sensitivity.tree_weights(levels).tolist() if honaker else [1.0] * levels), jnp.uint32
    )

    def init(size: int) -> PyTree:
        return jnp.int32(0), int64.zeros((levels, size))

    def guess(own_noise: Int64, below: Int64, weight: jax.Array | int) -> Int64:
        """Return weight · own + (1 − weight) · below, as below + weight · (own − below): where both
        are of noised sums over the same rows, only noise is rounded, to the same number whatever
        the rows summed to.
        """
        return int64.add(
            below, int64.times_fraction(int64.subtract(own_noise, below), weight, BITS)
        )

    def next(state: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
        done, nodes = state
        round = done + 1
        # the level that this round completes
        completed = jnp.int32(jax.lax.population_count((round & -round) - 1))

        def climb(level: jax.Array, node: Int64) -> Int64:
            """Combine the node above: its own noise, and that of the two below, of which the left
            was kept.
            """
            return guess(draw(level + 1), int64.add(_level(nodes, level), node), own[level + 1])

        # Without the reduction, nodes below the one that is completed are never used.
        node = jax.lax.fori_loop(0, completed, climb, draw(0)) if honaker else draw(completed)

        def take_back(level: jax.Array, residual: Int64) -> Int64:
            """Subtract the nodes that the completed one replaces."""
            return int64.subtract(residual, _level(nodes, level))

        residual = jax.lax.fori_loop(0, completed, take_back, node)
        places = jnp.arange(levels)[:, None]
        kept = int64.where(places < completed, int64.zeros(nodes.high.shape), nodes)
        kept = int64.where(places == completed, Int64(node.high[None], node.low[None]), kept)
        return residual, (round, kept)

    def ending(rows: int) -> Next:
        """Return the `next` of a tree that is completed after these rows."""
        _, *above = sensitivity.completed_weights(rows, honaker)
        level = (rows & -rows).bit_length() - 1

        def complete(nodes: Int64, draw: Draw) -> Int64:
            """Return the root, less the nodes that it replaces."""
            root = _level(nodes, level)
            for height, weight in zip(range(level, level + len(above)), _fixed(above), strict=True):
                # the right one of two, of which the left was kept
                if (rows - 1) >> height & 1:
                    root = int64.add(_level(nodes, height), root)
                root = guess(draw(height + 1), root, weight)
            for height in range(levels):
                root = int64.subtract(root, _level(nodes, height))
            return root

        def last(state: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
            residual, (round, nodes) = next(state, draw)
            correction = jax.lax.cond(
                round == rows,
                lambda: complete(nodes, draw),
                lambda: int64.zeros(residual.high.shape),
            )
            return int64.add(residual, correction), (round, nodes)

        return last if above else next

    nexts = [*(ending(length) for length in lengths[:-1]), next]
    # Rows 1 to n complete fewer than 2n nodes, and completing a tree takes one for each level.
    spare = len(lengths) * levels
    return _noise(
        multiplier,
        init,
        nexts,
        strategy,
        draws=lambda rows: 2 * rows + spare,
        gain=2.0 * levels + 2.0,
    )


def _level(nodes: Int64, level: jax.Array | int) -> Int64:
    return Int64(nodes.high[level], nodes.low[level])


def _noise(
    multiplier: float,
    init: Callable[[int], PyTree],
    nexts: list[Next],
    strategy: Strategy,
    **width: Any,
) -> Noise:
    """Join one `next` for each segment of the strategy; the state starts anew with each. `width`
    are the last fields of `Noise`.
    """
    check_multiplier(multiplier)
    if not strategy.restarts:
        return Noise(multiplier, init, nexts[0], strategy, **width)
    # trees of a power of two rows are compiled once
    starts, distinct = (
        np.array(strategy.restarts),
        list(dict.fromkeys(nexts)),
    )
    which = jnp.array([distinct.index(one) for one in nexts])

    def begin(size: int) -> PyTree:
        return jnp.int32(0), init(size)

    def next(state: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
        row, inner = state
        is_new = jnp.any(row == starts)
        inner = jax.tree.map(lambda old: jnp.where(is_new, jnp.zeros_like(old), old), inner)
        segments = [lambda inner, one=one: one(inner, draw) for one in distinct]
        residual, inner = jax.lax.switch(which[jnp.sum(row >= starts)], segments, inner)
        return residual, (row + 1, inner)

    return Noise(multiplier, begin, next, strategy, **width)
