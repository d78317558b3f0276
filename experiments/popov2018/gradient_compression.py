"""Deep Gradient Compression (Lin et al. 2018, Appendix D): a node uploads the few largest entries
of its gradient, and keeps the rest.

Popov et al. 2018, §2.6, hold it against training for several epochs and averaging models. It sends
little but often, and is no part of
the private road: what is uploaded is neither bounded nor noised.

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

BYTES_OF_AN_ENTRY = 8  # its place in the leaf, 32 bits, and its value, 32 bits
FINAL_SHARE = Fraction(1, 1000)  # a sparsity of 99.9 %
WARM_UP_SHARES = tuple(
    Fraction(1, 4**stage) for stage in range(1, 5)
)  # 75 %, 93.75 %, 98.4375 %, 99.6 %


class Memory(NamedTuple):
    """What a node keeps from one iteration to the next."""

    velocity: Params  # U: the momentum
    unsent: Params  # V: all that was never uploaded, added up


class Upload(NamedTuple):
    """What leaves a node, as arrays of the model's shapes; `encode` writes it as it travels."""

    places: PyTree  # bool: which entries are sent
    values: Params  # G̃: V at these places, 0 elsewhere


def empty_memory(params: Params) -> Memory:
    return Memory(trees.zeros_like(params), trees.zeros_like(params))


def share_sent(epoch: Fraction | int, warm_up: Fraction | int = 4) -> Fraction:
    """1 − sparsity in an epoch, or at a part of one (§3.3, warm-up training): stages of equal
    length, each a quarter of the one before.

    >>> [f"{1 - float(share_sent(epoch)):.2%}" for epoch in range(6)]
    ['75.00%', '93.75%', '98.44%', '99.61%', '99.90%', '99.90%']
    """
    return (
        FINAL_SHARE
        if epoch >= warm_up
        else WARM_UP_SHARES[int(epoch * len(WARM_UP_SHARES) / Fraction(warm_up))]
    )


def entries_sent(params: Params, share: Fraction) -> PyTree:
    """k, for each leaf: the share of its size, rounded up, so that even a small bias sends
    something.
    """
    return jax.tree.map(lambda leaf: math.ceil(share * math.prod(leaf.shape)), params)


def clip_locally(gradient: Params, threshold: float, nodes: int) -> Params:
    """Local gradient clipping (§3.2): to N^(−1/2) of the threshold for the sum, before anything is
    added to what was kept.
    """
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)))
    return trees.scale(gradient, jnp.minimum(1.0, threshold / math.sqrt(nodes) / norm))


def compress(
    memory: Memory, gradient: Params, entries: PyTree, momentum: float
) -> tuple[Upload, Memory]:
    """Momentum correction, local gradient accumulation and momentum factor masking, for `entries`
    entries of each leaf.
    """
    velocity = jax.tree.map(lambda u, g: momentum * u + g, memory.velocity, gradient)  # U ← m·U + G
    unsent = trees.add(memory.unsent, velocity)  # V ← V + U
    places = jax.tree.map(mark_largest, unsent, entries)  # Mask ← |V| > thr
    values = jax.tree.map(
        lambda is_sent, v: jnp.where(is_sent, v, 0.0), places, unsent
    )  # G̃ ← V ⊙ Mask

    def masked(kept: Params) -> Params:
        return jax.tree.map(lambda is_sent, one: jnp.where(is_sent, 0.0, one), places, kept)

    # The momentum of what is sent is forgotten with it: it would carry the entry on in a direction
    # that is stale by then.
    return Upload(places, values), Memory(
        masked(velocity), masked(unsent)
    )  # U ← U ⊙ ¬Mask, V ← V ⊙ ¬Mask


def upload_bytes(entries: PyTree) -> int:
    """The length of what `encode` writes."""
    return BYTES_OF_AN_ENTRY * sum(jax.tree.leaves(entries))


def encode(upload: Upload) -> bytes:
    """Leaf by leaf: the places, in ascending order, then the values there. How many there are, both
    sides know.
    """
    parts = []
    for places, values in zip(
        jax.tree.leaves(upload.places), jax.tree.leaves(upload.values), strict=True
    ):
        sent = np.flatnonzero(places)
        parts += [sent.astype("<u4").tobytes(), np.ravel(values)[sent].astype("<f4").tobytes()]
    return b"".join(parts)


def decode(data: bytes, params: Params, entries: PyTree) -> Params:
    """`Upload.values` of what was encoded, for a model with these leaves."""
    start = 0

    def leaf(like: jax.Array, count: int) -> np.ndarray:
        nonlocal start
        places, values = (
            np.frombuffer(data, kind, count, start + offset)
            for kind, offset in (("<u4", 0), ("<f4", 4 * count))
        )
        start += BYTES_OF_AN_ENTRY * count
        flat = np.zeros(math.prod(like.shape), np.float32)
        flat[places] = values
        return flat.reshape(like.shape)

    return jax.tree.map(leaf, params, entries)
