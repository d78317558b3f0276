"""Sending less (Konečný et al. 2016; Popov et al. 2018, §2.6): only the largest values of an
update, or values of few bits; and the size of an upload in bytes.

Both happen to the update, *before* it is bounded: the clip holds for whatever it gets, and rounding
could carry a clipped update out of its ball (tests/algorithms/test_uploads.py does it). A clip
scales all values of an update alike, so few values of few levels stay so.
"""

import math

import jax
import jax.numpy as jnp

from taciturn.algorithms.local_training import UserUpdate
from taciturn.core import Key, Message, PyTree, Update, UserData

WEIGHT_BYTES, NUMBER_BYTES = 2, 4  # w_k; the place of a value in its layer, or the size of a level
BITS_AT_A_TIME = 2


def compress_updates(user_update: UserUpdate, share: float, bits: int) -> UserUpdate:
    """Compress what a device computes to what it may send: the largest values of each layer, a
    `share` of them, of so many bits each.
    """

    def smaller(message: Message, user: UserData, key: Key) -> Update:
        update_key, rounding_key = jax.random.split(key)
        layers, structure = jax.tree.flatten(user_update(message, user, update_key))
        if share < 1:
            layers = [
                jnp.where(largest(layer, math.ceil(share * layer.size)), layer, 0.0)
                for layer in layers
            ]
        if bits < 32:
            keys = jax.random.split(rounding_key, len(layers))
            layers = [rounded(layer, bits, key) for layer, key in zip(layers, keys, strict=True)]
        return jax.tree.unflatten(structure, layers)

    return smaller if share < 1 or bits < 32 else user_update


def rounded(layer: jax.Array, bits: int, key: Key) -> jax.Array:
    """Round each value at random to one of the two levels beside it, without bias; the largest
    value has the last level.
    """
    most = 2 ** (bits - 1) - 1
    level = jnp.max(jnp.abs(layer)) / most
    scaled = layer / jnp.maximum(level, jnp.finfo(jnp.float32).tiny)
    # Float error may leave the largest value a little above the last level, from where it could be
    # rounded to one that does not exist.
    return jnp.clip(jnp.floor(scaled + jax.random.uniform(key, layer.shape)), -most, most) * level


def upload_bytes(update: PyTree, share: float = 1.0, bits: int = 32) -> int:
    """Return the size of a report about an update of this shape. Integers, in reports with privacy,
    take 32 bits as floats do.
    """
    total = WEIGHT_BYTES
    for layer in jax.tree.leaves(update):
        values = math.ceil(share * layer.size)
        total += math.ceil(values * bits / 8)
        total += NUMBER_BYTES * values if share < 1 else 0
        total += NUMBER_BYTES if bits < 32 else 0
    return total


def largest(values: jax.Array, count: int | jax.Array) -> jax.Array:
    """Mark exactly `count` entries, those of the greatest magnitude; among equal ones, those that
    come first. Departs from Lin et al.: they (§5) estimate the threshold from a sample and look
    again where it lets too many through. Here it is found exactly, two bits at a time, by counting
    how many entries reach it: 16 passes, where sorting millions of entries takes far longer.
    """
    # Floats without a sign are ordered like their bits.
    magnitude = jax.lax.bitcast_convert_type(jnp.abs(values.astype(jnp.float32)), jnp.uint32)

    def finer(stage: jax.Array, threshold: jax.Array) -> jax.Array:
        unit = jnp.uint32(1) << (32 - BITS_AT_A_TIME * (stage + 1)).astype(jnp.uint32)
        enough = [
            jnp.sum(magnitude >= threshold + step * unit) >= count
            for step in range(1, 2**BITS_AT_A_TIME)
        ]
        return threshold + unit * sum(one.astype(jnp.uint32) for one in enough)

    # The greatest number that `count` entries reach: the magnitude of the last of them.
    threshold = jax.lax.fori_loop(0, 32 // BITS_AT_A_TIME, finer, jnp.uint32(0))
    above, equal = magnitude > threshold, magnitude == threshold
    return above | (equal & (jnp.cumsum(equal).reshape(equal.shape) <= count - jnp.sum(above)))
