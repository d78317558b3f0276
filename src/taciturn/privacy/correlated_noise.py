"""Noise that is correlated over rounds, so that most of it cancels in their sum: DP-FTRL (Kairouz et al. 2021, Xu et al. 2023).

Each `next` gives the *residual* form (C⁻¹ z)_t: what this round adds on top of the noise of the rounds before, so that the server's
step is plain optax. z is white noise; C is the strategy of privacy/sensitivity.py, and the cost follows from it.

**Guarantee:** after t rounds the noise given out is the first t rows of C⁻¹ z, where each entry of z is drawn once, with standard
deviation `stddev`.

**Assumes:** `stddev` is the same in all rounds (privacy/mechanism.py refuses a clip norm that changes), and states are secret: buffers
and nodes take the noise off a model.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import tree as trees
from taciturn.core import Params, PyTree
from taciturn.privacy import sensitivity
from taciturn.privacy.noise import DRAWS, Noise, check_multiplier, white


def blt(multiplier: float, rounds: int, decay: Sequence[float], scale: Sequence[float]) -> Noise:
    """Buffered linear Toeplitz noise: C has 1, Σ ω_j, Σ ω_j θ_j, … down its columns. The state is one model for each buffer."""
    check_multiplier(multiplier)
    if len(decay) != len(scale) or not all(0 < theta < 1 for theta in decay) or not all(omega > 0 for omega in scale):
        raise ValueError("a BLT has as many decays as scales; decays lie between 0 and 1, scales are positive")
    # As float32 holds them, and so as they are used: the cost is computed for these.
    decays, scales = np.asarray(decay, np.float32), np.asarray(scale, np.float32)

    def init(params: Params) -> PyTree:
        return [trees.zeros_like(params) for _ in decays]

    def next(buffers: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
        # C y = z row by row: z_t = y_t + Σ_j ω_j b_j, where b_j = Σ_{s < t} θ_j^(t−1−s) y_s.
        residual, _ = white((), like, stddev, keys)
        for omega, buffer in zip(scales, buffers, strict=True):
            residual = jax.tree.map(lambda y, b, omega=omega: y - omega * b, residual, buffer)
        return residual, [
            jax.tree.map(lambda b, y, theta=theta: theta * b + y, buffer, residual)
            for theta, buffer in zip(decays, buffers, strict=True)
        ]

    exact = tuple(map(float, decays)), tuple(map(float, scales))
    coefficients = sensitivity.blt_coefficients(*exact, rounds)
    return Noise(multiplier, init, next, DRAWS, sensitivity.toeplitz(f"BLT with {len(decays)} buffers", coefficients))


def banded(multiplier: float, rounds: int, coefficients: Sequence[float]) -> Noise:
    """Banded Toeplitz noise. The state is one model for each band but the first."""
    check_multiplier(multiplier)
    bands = np.asarray(coefficients, np.float32)

    def init(params: Params) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros((len(bands) - 1, *jnp.shape(leaf)), jnp.float32), params)

    def next(before: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
        # z_t = y_t + Σ_i c_i y_{t−i}; `before` holds y_{t−1}, y_{t−2}, …
        fresh, _ = white((), like, stddev, keys)
        residual = jax.tree.map(
            lambda z, past: z - jnp.tensordot(bands[1:], past, axes=1, precision="highest"), fresh, before
        )
        return residual, jax.tree.map(lambda y, past: jnp.concatenate([y[None], past[:-1]]), residual, before)

    column = np.zeros(rounds)
    column[: min(rounds, len(bands))] = bands[:rounds]
    return Noise(multiplier, init, next, DRAWS, sensitivity.toeplitz(f"{len(bands)}-banded Toeplitz", column))


def tree(multiplier: float, rounds: int, honaker: bool = True) -> Noise:
    """Tree aggregation: the sum of t rounds has the noise of the nodes that cover them, one for each 1 in t as a binary number.

    With Honaker's reduction a node's noise is the best guess from its own and from those of all nodes below it. The state is one
    model for each level.
    """
    check_multiplier(multiplier)
    levels = rounds.bit_length()
    own = (sensitivity.tree_weights(levels) if honaker else np.ones(levels)).astype(np.float32)

    def init(params: Params) -> PyTree:
        return jnp.int32(0), jax.tree.map(lambda leaf: jnp.zeros((levels, *jnp.shape(leaf)), jnp.float32), params)

    def next(state: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
        done, nodes = state
        round = done + 1
        completed = jnp.int32(jax.lax.population_count((round & -round) - 1))  # the level that this round completes

        def draw(level: jax.Array | int) -> Params:
            return white((), like, stddev, jax.vmap(lambda key: jax.random.fold_in(key, level))(keys))[0]

        def climb(level: jax.Array, node: Params) -> Params:
            """The node above: its own noise, and that of the two below, of which the left was kept."""
            weight = jnp.asarray(own)[level + 1]
            below = jax.tree.map(lambda kept, node: kept[level] + node, nodes, node)
            return jax.tree.map(lambda z, below: weight * z + (1 - weight) * below, draw(level + 1), below)

        # Without the reduction, nodes below the one that is completed are never used.
        node = jax.lax.fori_loop(0, completed, climb, draw(0)) if honaker else draw(completed)
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

    return Noise(multiplier, init, next, DRAWS, sensitivity.tree(rounds, honaker))
