"""Gaussian noise: step D) of McMahan et al. 2018. The only place of the package where noise is drawn.

**Guarantee:** every coordinate of every leaf gets its own draw of N(0, stddev²).

**Assumes:** the keys are secret, uniform, and never used for a second total (privacy/curator.py sees to that).

A draw is half the sum of four float32 normals under four keys. The sum is exactly as wide as one normal, but its floating-point
grid no longer gives away the value noised, its tail goes to 10 standard deviations instead of 5, and whoever would guess
the noise has four keys of 64 bits to guess (Holohan and Braghin 2021, "Secure random sampling in differential privacy").
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from taciturn import tree
from taciturn.core import Params, PyTree, Strategy
from taciturn.privacy.sensitivity import independent

DRAWS = 4
INDEPENDENT = independent(10**6)


class Noise(NamedTuple):
    multiplier: float  # z: stddev over sensitivity; 0 means no privacy
    init: Callable[[Params], PyTree]
    next: Callable[[PyTree, Params, jax.Array, jax.Array], tuple[Params, PyTree]]  # state, shapes, stddev, keys
    keys: int
    strategy: Strategy  # how it is correlated over rounds


def gaussian(multiplier: float) -> Noise:
    """Fresh noise every round, independent of all other rounds."""
    check_multiplier(multiplier)
    return Noise(multiplier, lambda params: (), white, DRAWS, INDEPENDENT)


def check_multiplier(multiplier: float) -> None:
    if not 1e-3 <= multiplier < math.inf:
        raise ValueError(f"a noise multiplier is a positive number of at least 0.001; {multiplier} is not")


def white(state: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
    """Independent normals in the shape of `like`."""
    leaves, structure = jax.tree.flatten(like)
    leaf_keys = jax.vmap(lambda key: jax.random.split(key, len(leaves)))(keys)  # [draws, leaves]

    def one(position: int, leaf: jax.Array) -> jax.Array:
        draws = [jax.random.normal(leaf_keys[index, position], jnp.shape(leaf)) for index in range(DRAWS)]
        return stddev * (sum(draws[1:], draws[0]) / math.sqrt(DRAWS))

    return jax.tree.unflatten(structure, [one(position, leaf) for position, leaf in enumerate(leaves)]), state


def no_noise() -> Noise:
    """For runs without privacy only."""

    def nothing(state: PyTree, like: Params, stddev: jax.Array, keys: jax.Array) -> tuple[Params, PyTree]:
        return tree.zeros_like(like), state

    return Noise(0.0, lambda params: (), nothing, 1, INDEPENDENT)
