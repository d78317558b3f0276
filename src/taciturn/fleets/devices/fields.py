"""A round's questions and answers in bytes, besides those of the secure sum (messages.py).

Both sides know from the recipe which arrays a message has, so none is described: a message of
another length is refused.
"""

import hashlib
import os
import struct
from datetime import UTC, datetime

import jax
import numpy as np

from taciturn.core import PyTree

# The kinds of questions besides those of a secure round (stages.py).
CHECK_IN = "check-in"
# Followed by a number of seconds.
COME_BACK = "come back"
SECONDS = struct.Struct(">d")
# Answers to a check-in.
READY = b"ready"
NOT_NOW = b"not now"
# Of the name of an attempt at a round.
NAME_BYTES = 16
# Of a round's number; the bits above are when its run began.
ROUND_BITS = 16
# Of the length in front of a field, and of the time in front of a name.
_WORD_BYTES = 8


def pack_fields(*parts: bytes) -> bytes:
    """Write one field after another, each behind its length."""
    return b"".join(struct.pack(">Q", len(part)) + part for part in parts)


def unpack_fields(content: bytes, count: int) -> list[bytes]:
    """Read this number of fields, and refuse anything that is there besides."""
    parts = []
    start = 0
    for _ in range(count):
        begin = start + _WORD_BYTES
        end = begin + int.from_bytes(content[start:begin], "big")
        parts.append(content[begin:end])
        start = end
    if start != len(content):
        raise ValueError("a message is incomplete, or continues after its end")
    return parts


def new_name() -> bytes:
    """Name an attempt at a round: names rise, and are never reused."""
    return struct.pack(">Q", _microseconds()) + os.urandom(NAME_BYTES - _WORD_BYTES)


def first_round() -> int:
    """Number a run's first round, above all rounds of runs that began before it."""
    return _microseconds() << ROUND_BITS


def latest_time(name: bytes, round: int) -> float:
    """Return the later of the times, in seconds, in a name and a round's number."""
    named_at = int.from_bytes(name[:_WORD_BYTES], "big")
    run_began_at = round >> ROUND_BITS
    return max(named_at, run_began_at) / 1e6


def _microseconds() -> int:
    return int(1e6 * datetime.now(UTC).timestamp())


def message_hash(run: bytes, round: bytes, model: bytes, key: bytes) -> bytes:
    """Hash all that a device is given to train on.

    Args:
        run: its name.
        round: its number.
        model: the parameters and the public part of the message (the clip norm).
        key: of local training.
    """
    content = pack_fields(run, round, model, key)
    return hashlib.sha256(b"taciturn fleet: message\0" + content).digest()


def model_digest(params: PyTree) -> str:
    """Name a model by its values: the same whatever run, round or key it is sent with."""
    digest = hashlib.sha256(b"taciturn fleet: model\0")
    for leaf in jax.tree.leaves(params):
        # Adding zero makes one of the two zeros that floats have, which train alike.
        digest.update(arrays_to_bytes(np.asarray(leaf) + np.zeros((), leaf.dtype)))
    return digest.hexdigest()


def arrays_to_bytes(arrays: PyTree) -> bytes:
    """Write leaf after leaf, little-endian."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(arrays)]
    return b"".join(leaf.astype(leaf.dtype.newbyteorder("<")).tobytes() for leaf in leaves)


def arrays_from_bytes(content: bytes, like: PyTree) -> PyTree:
    """Read arrays; `like` has the shapes and types, as arrays or as jax.ShapeDtypeStruct."""
    leaves, structure = jax.tree.flatten(like)
    size = sum(_count_bytes(leaf) for leaf in leaves)
    if len(content) != size:
        raise ValueError(f"a message has {len(content)} bytes where the recipe's model has {size}")
    arrays = []
    start = 0
    for leaf in leaves:
        kind = np.dtype(leaf.dtype)
        values = np.frombuffer(
            content,
            dtype=kind.newbyteorder("<"),
            count=int(np.prod(leaf.shape)),
            offset=start,
        )
        arrays.append(values.reshape(leaf.shape))
        start += values.nbytes
    return jax.tree.unflatten(structure, arrays)


def _count_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize
