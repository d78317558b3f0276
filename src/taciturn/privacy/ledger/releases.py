"""The releases of a run, on disk before they are charged and published: a charged row is given out
from here, and never computed again.

A sum may differ the second time (another machine, other devices), and the same noise must not be
added to two sums. So a noised release is written first; whatever happens then, there is one release
for each charge. One that was written and not charged has never left, and the next one takes its
place. The mechanism's next state is not in it: it follows from the state before and the noise key,
in integers that are the same on every machine (`Mechanism.follow`).

**Guarantee:** a release is on disk (fsync) when `write` returns. `read` gives what was written, or
raises: a charge carries the keyed checksum of its release. A plain hash would let anyone confirm a
guess at what is beneath the noise. The release is hashed in pieces, side by side, and the checksum
is of their hashes: to change a piece, or their order or number, takes a collision. The checksum
also covers which noise was drawn: from other bits, as another version draws them, another state
would follow.

Records are kept in a run's private folder until its state is saved, and deleted with it.
"""

import functools
import hashlib
import hmac
import json
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from taciturn.core import Params, Release
from taciturn.errors import TaciturnError
from taciturn.files import sync_folder, write_atomically
from taciturn.privacy.noise import sampler

# bytes that one core hashes: a GPU waits for all of them
PIECE = 2**18
RESTORE = "Restore the run's private folder from a copy, or start a new run with model.warm_start"
# what it is, in a line, and its numbers
Content = tuple[bytes, memoryview]


class ReleaseError(TaciturnError):
    """A release that was charged cannot be given out."""


class Releases:
    def __init__(self, folder: Path | None, key: bytes) -> None:
        """Open records; `key` is the run's own secret. Without a folder only the last one is kept,
        in memory, and no run can be resumed.
        """
        self._folder, self._key = folder, key
        self._in_memory: dict[int, Content] = {}
        self._beside = ThreadPoolExecutor()

    def write(self, row: int, release: Release, drawn: str) -> str:
        """Keep a release and the name under which its noise was drawn; return the checksum for its
        charge.
        """
        leaves = jax.tree.leaves(release)
        about = (
            json.dumps(
                {"row": row, "drawn": drawn, "shapes": [np.shape(leaf) for leaf in leaves]}
            ).encode()
            + b"\n"
        )
        numbers = _on_host(leaves)
        # starts now; hashing releases Python's lock
        hashes = self._beside.map(_hash, _pieces(numbers))
        if self._folder is None:
            self._in_memory = {row: (about, numbers)}
        else:
            if not self._folder.exists():
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(self._folder.parent)
            write_atomically(self._folder / f"release-{row}", [about, numbers], 0o600)
        return self._checksum(about, hashes)

    def read(self, row: int, checksum: str, like: Params) -> tuple[Release, str]:
        """Return the release of a charge and the name under which its noise was drawn; `like` has
        the parameters' structure.
        """
        content = self._content(row)
        if content is None and self._folder is None:
            anew = (
                "begin anew with a new curator, whose releases are charged beside those of this one"
            )
            raise ReleaseError(
                f"the release of round {row} is charged, and without a folder only the last one is"
                f" kept: {anew}"
            )
        if content is None:
            again = (
                "to make it again would give away more than was charged, so this run cannot go on"
            )
            raise ReleaseError(
                f"the release of round {row} is charged, and its record is gone: {again}. {RESTORE}"
            )
        about, numbers = content
        if not hmac.compare_digest(self._checksum(about, map(_hash, _pieces(numbers))), checksum):
            other = (
                "it was damaged, belongs to another run, or was written by another version of"
                " Taciturn (resume the run with that one)"
            )
            raise ReleaseError(
                f"the record of round {row} is not the one that was charged: {other}. {RESTORE}"
            )
        said, values, leaves = json.loads(about), np.frombuffer(numbers, "<f4"), []
        for shape in said["shapes"]:
            leaves.append(jnp.asarray(values[: math.prod(shape)].reshape(shape)))
            values = values[math.prod(shape) :]
        size, structure = len(jax.tree.leaves(like)), jax.tree.structure(like)
        share = leaves[size] if len(leaves) > size else None
        return Release(jax.tree.unflatten(structure, leaves[:size]), share), said["drawn"]

    def forget(self, before: int) -> None:
        """Delete the records of rows before this one, whose effect is saved in the run's state."""
        self._in_memory = {
            row: content for row, content in self._in_memory.items() if row >= before
        }
        for path in [] if self._folder is None else self._folder.glob("release-*"):
            if int(path.name.removeprefix("release-")) < before:
                path.unlink()

    def _content(self, row: int) -> Content | None:
        if self._folder is None:
            return self._in_memory.get(row)
        path = self._folder / f"release-{row}"
        if not path.exists():
            return None
        about, end, numbers = path.read_bytes().partition(b"\n")
        return about + end, memoryview(numbers)

    def _checksum(self, about: bytes, hashes: Iterable[bytes]) -> str:
        return hmac.new(
            self._key, sampler.KNOWN.encode() + about + b"".join(hashes), "sha256"
        ).hexdigest()


def _on_host(leaves: list[jax.Array]) -> memoryview:
    """Return all numbers, one leaf after another."""
    devices = {
        device for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()
    }
    # of several, or of none
    if len(devices) != 1:
        leaves, devices = jax.device_get(leaves), {jax.local_devices()[0]}
    return np.asarray(_words(*devices)(leaves)).view(np.uint8).data


@functools.cache
def _words(device: Any) -> Callable[[list[jax.Array]], jax.Array]:
    """Copy leaves as words, so that nothing is rounded, into memory that a GPU writes to directly:
    touching new pages takes longer.
    """
    kinds = {memory.kind for memory in device.addressable_memories()}
    place = SingleDeviceSharding(
        device, memory_kind="pinned_host" if "pinned_host" in kinds else None
    )
    return jax.jit(
        lambda leaves: jnp.concatenate(
            [
                jax.lax.bitcast_convert_type(jnp.ravel(leaf).astype(jnp.float32), jnp.uint32)
                for leaf in leaves
            ]
        ),
        out_shardings=place,
    )


def _pieces(numbers: memoryview) -> list[memoryview]:
    return [numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE)]


def _hash(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()
