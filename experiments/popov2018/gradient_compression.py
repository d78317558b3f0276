"""Deep Gradient Compression (Lin et al. 2018, Appendix D): a node uploads the few largest entries
of its gradient, and keeps the rest.

Popov et al. 2018, §2.6, hold it against training for several epochs and averaging models. It sends
little but often, and does not belong to the private road: what is uploaded is neither bounded nor
noised.

On a node, in every iteration: clip the gradient, then `compress` it; the server adds up the uploads
of all nodes and takes a step of plain SGD along the sum. A node's gradient is its share of that
sum: of a mean over everybody's rows, 1/N of the mean over its own.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import trees
from taciturn.algorithms.uploads import mark_largest
from taciturn.core import Params, PyTree

# Its place in the leaf, 32 bits, and its value, 32 bits.
BYTES_OF_AN_ENTRY = 8
# A sparsity of 99.9 %.
FINAL_SHARE = Fraction(1, 1000)
# Sparsities of 75 %, 93.75 %, 98.4375 % and 99.6 %.
WARM_UP_SHARES = tuple(Fraction(1, 4**stage) for stage in range(1, 5))


class Memory(NamedTuple):
    """What a node keeps from one iteration to the next."""

    # U: the momentum.
    velocity: Params
    # V: all that was never uploaded, added up.
    unsent: Params


class Upload(NamedTuple):
    """What leaves a node, as arrays of the model's shapes; `encode` writes it as it travels."""

    # bool: which entries are sent.
    places: PyTree
    # G̃: V at these places, 0 elsewhere.
    values: Params


def empty_memory(params: Params) -> Memory:
    return Memory(trees.zeros_like(params), trees.zeros_like(params))


def share_sent(epoch: Fraction | int, warm_up: Fraction | int = 4) -> Fraction:
    """Return 1 − sparsity in an epoch, or at a part of one (§3.3, warm-up training).

    Stages have equal lengths, and each sends a quarter of what the one before does.

    >>> [f"{1 - float(share_sent(epoch)):.2%}" for epoch in range(6)]
    ['75.00%', '93.75%', '98.44%', '99.61%', '99.90%', '99.90%']
    """
    if epoch >= warm_up:
        return FINAL_SHARE
    stage = int(epoch * len(WARM_UP_SHARES) / Fraction(warm_up))
    return WARM_UP_SHARES[stage]


def entries_sent(params: Params, share: Fraction) -> PyTree:
    """Return k, for each leaf: the share of its size, rounded up, so that even a small bias sends
    something.
    """
    return jax.tree.map(lambda leaf: math.ceil(share * math.prod(leaf.shape)), params)


def clip_locally(gradient: Params, threshold: float, nodes: int) -> Params:
    """Clip a node's gradient (§3.2): to N^(−1/2) of the threshold for the sum, before anything is
    added to what was kept.
    """
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)))
    factor = jnp.minimum(1.0, threshold / math.sqrt(nodes) / norm)
    return trees.scale(gradient, factor)


def compress(
    memory: Memory, gradient: Params, entries: PyTree, momentum: float
) -> tuple[Upload, Memory]:
    """Choose what leaves a node, and what it keeps, for `entries` entries of each leaf: momentum
    correction, local gradient accumulation and momentum factor masking.
    """

    def correct(velocity: jax.Array, gradient: jax.Array) -> jax.Array:
        return momentum * velocity + gradient

    def keep_sent(is_sent: jax.Array, values: jax.Array) -> jax.Array:
        return jnp.where(is_sent, values, 0.0)

    def keep_unsent(is_sent: jax.Array, values: jax.Array) -> jax.Array:
        return jnp.where(is_sent, 0.0, values)

    # U ← m·U + G.
    velocity = jax.tree.map(correct, memory.velocity, gradient)
    # V ← V + U.
    unsent = trees.add(memory.unsent, velocity)
    # Mask ← |V| > thr.
    places = jax.tree.map(mark_largest, unsent, entries)
    # G̃ ← V ⊙ Mask.
    values = jax.tree.map(keep_sent, places, unsent)
    upload = Upload(places=places, values=values)
    # U ← U ⊙ ¬Mask, V ← V ⊙ ¬Mask. The momentum of what is sent is forgotten with it: it would
    # carry the entry further in a direction that is stale by then.
    kept = Memory(
        velocity=jax.tree.map(keep_unsent, places, velocity),
        unsent=jax.tree.map(keep_unsent, places, unsent),
    )
    return upload, kept


def upload_bytes(entries: PyTree) -> int:
    """Return the length of what `encode` writes."""
    return BYTES_OF_AN_ENTRY * sum(jax.tree.leaves(entries))


def encode(upload: Upload) -> bytes:
    """Write leaf by leaf the places, in ascending order, then the values there. How many there are,
    both sides know.
    """
    parts = []
    places_of_leaves = jax.tree.leaves(upload.places)
    values_of_leaves = jax.tree.leaves(upload.values)
    for is_sent, values in zip(places_of_leaves, values_of_leaves, strict=True):
        places = np.flatnonzero(is_sent)
        sent = np.ravel(values)[places]
        parts.append(places.astype("<u4").tobytes())
        parts.append(sent.astype("<f4").tobytes())
    return b"".join(parts)


def decode(data: bytes, params: Params, entries: PyTree) -> Params:
    """Return `Upload.values` of what was encoded, for a model with these leaves."""
    shapes, structure = jax.tree.flatten(params)
    leaves = []
    start = 0
    counts = jax.tree.leaves(entries)
    for like, count in zip(shapes, counts, strict=True):
        places = np.frombuffer(data, "<u4", count, start)
        values = np.frombuffer(data, "<f4", count, start + 4 * count)
        start += BYTES_OF_AN_ENTRY * count
        flat = np.zeros(math.prod(like.shape), np.float32)
        flat[places] = values
        leaves.append(flat.reshape(like.shape))
    return jax.tree.unflatten(structure, leaves)
