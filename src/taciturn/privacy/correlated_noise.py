"""Noise that is correlated over rounds, so that most of it cancels in their sum: DP-FTRL (Kairouz et al. 2021, Xu et al. 2023).

Each `next` gives the *residual* form (C⁻¹ z)_t: what this round adds on top of the noise of the rounds before, so that the server's
step is plain optax. z is white noise; C is the strategy of privacy/sensitivity.py, and the cost follows from it.

All of them can be *restarted*: given several segments, noise starts anew after each, and what is in the sum by then stays there. Only
then may a clip norm change (privacy/mechanism.py); otherwise a restart only costs.

**Guarantee:** after t rounds the noise given out is the first t rows of C⁻¹ z, where each entry of z is drawn once, with standard
deviation `stddev`.

**Assumes:** `stddev` is the same in all rounds of a segment, and states are secret: buffers and nodes take the noise off a model.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import tree as trees
from taciturn.core import Params, PyTree, Strategy
from taciturn.privacy import sensitivity
from taciturn.privacy.noise import DRAWS, Noise, check_multiplier, white

Next = Callable[[PyTree, Params, jax.Array, jax.Array], tuple[Params, PyTree]]


class Buffers(NamedTuple):
    """One segment of a BLT: C has 1, Σ ω_j, Σ ω_j θ_j, … down its columns."""

    rows: int
    decay: Sequence[float]  # θ_j
    scale: Sequence[float]  # ω_j


def blt(multiplier: float, *segments: Buffers) -> Noise:
    """Buffered linear Toeplitz noise. The state is one model for each buffer."""
    for _, decay, scale in segments:
        if len(decay) != len(scale) or not all(0 < one < 1 for one in decay) or not all(one > 0 for one in scale):
            raise ValueError("a BLT has as many decays as scales; decays lie between 0 and 1, scales are positive")
    most = max(len(decay) for _, decay, _ in segments)
    # As float32 holds them, and so as they are used: the cost is computed for these.
    exact = [(rows, np.asarray(decay, np.float32), np.asarray(scale, np.float32)) for rows, decay, scale in segments]

    def init(params: Params) -> PyTree:
        return [trees.zeros_like(params) for _ in range(most)]

    def buffered(decays: np.ndarray, scales: np.ndarray) -> Next:
        def next(buffers: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
            # C y = z row by row: z_t = y_t + Σ_j ω_j b_j, where b_j = Σ_{s < t} θ_j^(t−1−s) y_s.
            residual, _ = white((), like, stddev, keys)
            for omega, buffer in zip(scales, buffers, strict=False):
                residual = jax.tree.map(lambda y, b, omega=omega: y - omega * b, residual, buffer)
            moved = [
                jax.tree.map(lambda b, y, theta=theta: theta * b + y, buffer, residual)
                for theta, buffer in zip(decays, buffers, strict=False)
            ]
            return residual, moved + buffers[len(moved) :]

        return next

    columns = [sensitivity.blt_coefficients(decay.tolist(), scale.tolist(), rows) for rows, decay, scale in exact]
    strategy = sensitivity.toeplitz(f"BLT with {most} buffers", *columns)
    return _noise(multiplier, init, [buffered(decays, scales) for _, decays, scales in exact], strategy)


class Bands(NamedTuple):
    """One segment of banded noise: `coefficients` down the columns of C, and 0 after them."""

    rows: int
    coefficients: Sequence[float]


def banded(multiplier: float, *segments: Bands) -> Noise:
    """Banded Toeplitz noise. The state is one model for each band but the first."""
    most = max(len(coefficients) for _, coefficients in segments)
    exact = [np.pad(np.asarray(bands, np.float32), (0, most - len(bands))) for _, bands in segments]

    def init(params: Params) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros((most - 1, *jnp.shape(leaf)), jnp.float32), params)

    def with_bands(bands: np.ndarray) -> Next:
        def next(before: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
            # z_t = y_t + Σ_i c_i y_{t−i}; `before` holds y_{t−1}, y_{t−2}, …
            fresh, _ = white((), like, stddev, keys)
            residual = jax.tree.map(
                lambda z, past: z - jnp.tensordot(bands[1:], past, axes=1, precision="highest"), fresh, before
            )
            return residual, jax.tree.map(
                lambda y, past: jnp.concatenate([y[None], past])[: most - 1], residual, before
            )

        return next

    columns = [np.pad(bands, (0, max(0, rows - most)))[:rows] for (rows, _), bands in zip(segments, exact, strict=True)]
    strategy = sensitivity.toeplitz(f"{most}-banded Toeplitz", *columns)
    return _noise(multiplier, init, [with_bands(bands) for bands in exact], strategy)


def tree(multiplier: float, *lengths: int, honaker: bool = True) -> Noise:
    """Tree aggregation: the sum of t rounds has the noise of the nodes that cover them, one for each 1 in t as a binary number.

    With Honaker's reduction a node's noise is the best guess from its own and from those of all nodes below it. The state is one
    model for each level. A tree that is restarted is completed first: in the last row of its segment the nodes that cover it are
    replaced by the root of a tree whose other rows are empty, so that less noise stays in the sum.
    """
    strategy = sensitivity.tree(*lengths, honaker=honaker)
    levels = max(lengths).bit_length()
    own = (sensitivity.tree_weights(levels) if honaker else np.ones(levels)).astype(np.float32)

    def init(params: Params) -> PyTree:
        return jnp.int32(0), jax.tree.map(lambda leaf: jnp.zeros((levels, *jnp.shape(leaf)), jnp.float32), params)

    def next(state: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
        done, nodes = state
        round = done + 1
        completed = jnp.int32(jax.lax.population_count((round & -round) - 1))  # the level that this round completes

        def climb(level: jax.Array, node: Params) -> Params:
            """The node above: its own noise, and that of the two below, of which the left was kept."""
            weight = jnp.asarray(own)[level + 1]
            below = jax.tree.map(lambda kept, node: kept[level] + node, nodes, node)
            own_noise = _node(like, stddev, keys, level + 1)
            return jax.tree.map(lambda z, below: weight * z + (1 - weight) * below, own_noise, below)

        # Without the reduction, nodes below the one that is completed are never used.
        node = (
            jax.lax.fori_loop(0, completed, climb, _node(like, stddev, keys, 0))
            if honaker
            else _node(like, stddev, keys, completed)
        )
        # What stood for the rounds that it covers is taken back.
        taken = jnp.arange(levels) < completed
        residual = jax.tree.map(
            lambda node, kept: node - jnp.tensordot(taken.astype(jnp.float32), kept, axes=1, precision="highest"),
            node,
            nodes,
        )
        place = jnp.arange(levels) == completed

        def keep(kept: jax.Array, node: jax.Array) -> jax.Array:
            shape = (levels,) + (1,) * node.ndim
            return jnp.where(place.reshape(shape), node[None], jnp.where(taken.reshape(shape), 0.0, kept))

        return residual, (round, jax.tree.map(keep, nodes, node))

    def ending(rows: int) -> Next:
        """A tree that is completed after so many rows."""
        first, *above = sensitivity.completed_weights(rows, honaker)
        del first
        level = (rows & -rows).bit_length() - 1

        def complete(nodes: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> Params:
            """The root, less the nodes that it replaces."""
            root = jax.tree.map(lambda kept: kept[level], nodes)
            for height, weight in enumerate(above, level):
                if (rows - 1) >> height & 1:  # the right one of two, of which the left was kept
                    root = jax.tree.map(lambda kept, node, height=height: kept[height] + node, nodes, root)
                own_noise = _node(like, stddev, keys, height + 1)
                root = jax.tree.map(lambda z, below, w=np.float32(weight): w * z + (1 - w) * below, own_noise, root)
            return jax.tree.map(lambda root, kept: root - jnp.sum(kept, axis=0), root, nodes)

        def last(state: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
            residual, (round, nodes) = next(state, like, stddev, keys)
            correction = jax.lax.cond(
                round == rows,
                lambda: complete(nodes, like, stddev, keys),
                lambda: trees.zeros_like(residual),
            )
            return trees.add(residual, correction), (round, nodes)

        return last if above else next

    return _noise(multiplier, init, [*(ending(length) for length in lengths[:-1]), next], strategy)


def _node(like: Params, stddev: jax.Array, keys: jax.Array, level: jax.Array | int) -> Params:
    """The own noise of the node of a level that holds this round."""
    return white((), like, stddev, jax.vmap(lambda key: jax.random.fold_in(key, level))(keys))[0]


def _noise(multiplier: float, init: Callable[[Params], PyTree], nexts: list[Next], strategy: Strategy) -> Noise:
    """One `next` for each segment of the strategy; the state starts anew with each."""
    check_multiplier(multiplier)
    if not strategy.restarts:
        return Noise(multiplier, init, nexts[0], DRAWS, strategy)
    starts = np.array(strategy.restarts)

    def begin(params: Params) -> PyTree:
        return jnp.int32(0), init(params)

    def next(state: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
        row, inner = state
        is_new = jnp.any(row == starts)
        inner = jax.tree.map(lambda fresh, old: jnp.where(is_new, fresh, old), init(like), inner)
        residual, inner = jax.lax.switch(jnp.sum(row >= starts), nexts, inner, like, stddev, keys)
        return residual, (row + 1, inner)

    return Noise(multiplier, begin, next, DRAWS, strategy)
