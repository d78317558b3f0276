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

CHECK_IN, ADVERTISE, SHARE, REPORT, SIGN, UNMASK = (
    "check-in",
    "advertise",
    "share",
    "report",
    "sign",
    "unmask",
)
# after a number of seconds
COME_BACK = "come back"
SECONDS = struct.Struct(">d")
READY, NOT_NOW = b"ready", b"not now"
# of an attempt at a round
NAME_BYTES = 16
# of a round's number; the bits above are when its run began
ROUND_BITS = 16


def pack_fields(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">Q", len(part)) + part for part in parts)


def unpack_fields(content: bytes, count: int) -> list[bytes]:
    parts, start = [], 0
    for _ in range(count):
        end = start + 8 + int.from_bytes(content[start : start + 8], "big")
        parts.append(content[start + 8 : end])
        start = end
    if start != len(content):
        raise ValueError("a message is incomplete, or continues after its end")
    return parts


def new_name() -> bytes:
    """Name an attempt at a round: names rise, and are never reused."""
    return struct.pack(">Q", _microseconds()) + os.urandom(NAME_BYTES - 8)


def first_round() -> int:
    """Number a run's first round, above all rounds of runs that began before it."""
    return _microseconds() << ROUND_BITS


def latest(name: bytes, round: int) -> float:
    """Return the later of the times, in seconds, in a name and a round's number."""
    return max(int.from_bytes(name[:8], "big"), round >> ROUND_BITS) / 1e6


def _microseconds() -> int:
    return int(1e6 * datetime.now(UTC).timestamp())


def message_hash(run: bytes, round: bytes, model: bytes, key: bytes) -> bytes:
    """Hash all that a device is given to train on: `model` is parameters and public part (clip
    norm), `key` that of local training.
    """
    return hashlib.sha256(
        b"taciturn fleet: message\0" + pack_fields(run, round, model, key)
    ).digest()


def arrays_to_bytes(arrays: PyTree) -> bytes:
    """Write leaf after leaf, little-endian."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(arrays)]
    return b"".join(leaf.astype(leaf.dtype.newbyteorder("<")).tobytes() for leaf in leaves)


def arrays_from_bytes(content: bytes, like: PyTree) -> PyTree:
    """Read arrays; `like` has the shapes and types, as arrays or as jax.ShapeDtypeStruct."""
    leaves, structure = jax.tree.flatten(like)
    sizes = [int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in leaves]
    if len(content) != sum(sizes):
        raise ValueError(
            f"a message has {len(content)} bytes where the recipe's model has {sum(sizes)}"
        )
    arrays, start = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        kind = np.dtype(leaf.dtype).newbyteorder("<")
        arrays.append(
            np.frombuffer(content, kind, size // kind.itemsize, start).reshape(leaf.shape)
        )
        start += size
    return jax.tree.unflatten(structure, arrays)
