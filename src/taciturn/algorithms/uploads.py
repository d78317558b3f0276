"""Sending less (Konečný et al. 2016; Popov et al. 2018, §2.6).

Devices send only the largest values of an update, or values of few bits; the size of such an upload
in bytes is here too.

Both happen to the update, *before* it is bounded: the clip holds for whatever it gets, and rounding
could carry a clipped update out of its ball (tests/algorithms/test_uploads.py does it). A clip
scales all values of an update alike, so few values of few levels stay so.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from taciturn.algorithms.local_training import UserUpdate
from taciturn.core import Key, Message, PyTree, Update, UserData

# Of w_k.
WEIGHT_BYTES = 2
# Of the place of a value in its layer, or of the size of a level.
NUMBER_BYTES = 4
# By which the search for the largest values gets nearer in each of its passes.
BITS_A_PASS = 2


def compress_updates(user_update: UserUpdate, share: float, bits: int) -> UserUpdate:
    """Compress what a device computes to what it may send.

    Args:
        user_update: what the device computes.
        share: of the values in each layer, the largest; the others become zero.
        bits: of each value.
    """

    def compressed_update(message: Message, user: UserData, key: Key) -> Update:
        update_key, rounding_key = jax.random.split(key)
        update = user_update(message, user, update_key)
        layers, structure = jax.tree.flatten(update)
        if share < 1:
            layers = [_keep_largest(layer, share) for layer in layers]
        if bits < 32:
            keys = jax.random.split(rounding_key, len(layers))
            pairs = zip(layers, keys, strict=True)
            layers = [round_at_random(layer, bits, layer_key) for layer, layer_key in pairs]
        return jax.tree.unflatten(structure, layers)

    is_smaller = share < 1 or bits < 32
    return compressed_update if is_smaller else user_update


def _keep_largest(layer: jax.Array, share: float) -> jax.Array:
    count = math.ceil(share * layer.size)
    return jnp.where(mark_largest(layer, count), layer, 0.0)


def round_at_random(layer: jax.Array, bits: int, key: Key) -> jax.Array:
    """Round each value at random to one of the two levels beside it, without bias.

    The largest value has the last level.
    """
    last_level = 2 ** (bits - 1) - 1
    unit = jnp.max(jnp.abs(layer)) / last_level
    scaled = layer / jnp.maximum(unit, jnp.finfo(jnp.float32).tiny)
    levels = jnp.floor(scaled + jax.random.uniform(key, layer.shape))
    # Float error may leave the largest value a little above the last level, from where it could be
    # rounded to one that does not exist.
    return jnp.clip(levels, -last_level, last_level) * unit


def upload_bytes(update: PyTree, share: float = 1.0, bits: int = 32) -> int:
    """Return the size of a report about an update of this shape.

    Integers, in reports with privacy, take 32 bits as floats do.
    """
    total = WEIGHT_BYTES
    for layer in jax.tree.leaves(update):
        values = math.ceil(share * layer.size)
        total += math.ceil(values * bits / 8)
        if share < 1:
            total += NUMBER_BYTES * values
        if bits < 32:
            total += NUMBER_BYTES
    return total


def mark_largest(values: jax.Array, count: int | jax.Array) -> jax.Array:
    """Mark exactly `count` entries, those of the greatest magnitude.

    Among equal ones, those that come first.

    Departs from Lin et al.: they (§5) estimate the threshold from a sample and look again where it
    lets too many through. Here it is found exactly, two bits at a time, by counting how many
    entries reach it: 16 passes, where sorting millions of entries takes far longer.
    """
    # Floats without a sign are ordered like their bits.
    magnitudes = jnp.abs(values.astype(jnp.float32))
    magnitudes = jax.lax.bitcast_convert_type(magnitudes, jnp.uint32)
    raise_threshold = partial(_raise_threshold, magnitudes, count)
    # The greatest number that `count` entries reach: the magnitude of the last of them.
    threshold = jax.lax.fori_loop(0, 32 // BITS_A_PASS, raise_threshold, jnp.uint32(0))
    is_above = magnitudes > threshold
    is_equal = magnitudes == threshold
    rank_among_equal = jnp.cumsum(is_equal).reshape(is_equal.shape)
    is_first = rank_among_equal <= count - jnp.sum(is_above)
    return is_above | (is_equal & is_first)


def _raise_threshold(
    magnitudes: jax.Array, count: int | jax.Array, stage: jax.Array, threshold: jax.Array
) -> jax.Array:
    """Raise the next bits of the threshold as far as `count` entries still reach it."""
    shift = 32 - BITS_A_PASS * (stage + 1)
    unit = jnp.uint32(1) << shift.astype(jnp.uint32)
    raises = []
    for step in range(1, 2**BITS_A_PASS):
        reached = jnp.sum(magnitudes >= threshold + step * unit)
        raises.append((reached >= count).astype(jnp.uint32))
    return threshold + unit * sum(raises)
