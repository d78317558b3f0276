"""The releases of a run, on disk before they are charged and published.

A charged row is given out from here, and never computed again.

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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from taciturn.core import Params, Release
from taciturn.errors import TaciturnError
from taciturn.files import sync_folder, write_atomically
from taciturn.privacy.noise import sampler

# The bytes that one core hashes at a time: a GPU waits for all of them.
PIECE = 2**18
RESTORE = (
    "Restore the run's private folder from its newest copy, or start a new run from the parameters"
    " of this one (in a recipe, with model.warm_start)"
)


class ReleaseError(TaciturnError):
    """A release that was charged cannot be given out."""


class _Record(NamedTuple):
    """What a file holds."""

    # What the release is, as a line of JSON.
    header: bytes
    # Its numbers.
    numbers: memoryview


class Releases:
    """The records of a run's releases, row by row."""

    def __init__(self, folder: Path | None, key: bytes) -> None:
        """Open the records.

        Args:
            folder: where they are. Without one only the last is kept, in memory, and no run can be
                resumed.
            key: the run's own secret.
        """
        self._folder = folder
        self._key = key
        self._in_memory: dict[int, _Record] = {}
        self._beside = ThreadPoolExecutor()

    def write(self, row: int, release: Release, noise_name: str) -> str:
        """Keep a release; return the checksum for its charge.

        Args:
            row: of the noise.
            release: what is kept.
            noise_name: the name under which its noise was drawn.
        """
        leaves = jax.tree.leaves(release)
        fields = {"row": row, "drawn": noise_name, "shapes": [np.shape(leaf) for leaf in leaves]}
        header = json.dumps(fields).encode() + b"\n"
        numbers = _copy_to_host(leaves)
        # It starts now, beside the writing: hashing releases Python's lock.
        hashes = self._beside.map(_hash, _cut_into_pieces(numbers))
        self._keep(row, _Record(header, numbers))
        return self._checksum(header, hashes)

    def _keep(self, row: int, record: _Record) -> None:
        if self._folder is None:
            self._in_memory = {row: record}
            return
        if not self._folder.exists():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(self._folder.parent)
        write_atomically(self._folder / f"release-{row}", [record.header, record.numbers], 0o600)

    def read(self, row: int, checksum: str, like: Params) -> tuple[Release, str]:
        """Return the release of a charge, and the name under which its noise was drawn.

        Args:
            row: of the noise.
            checksum: which the charge has.
            like: anything with the parameters' structure.

        Raises:
            ReleaseError: if the record is gone, or is not the one that was charged.
        """
        record = self._find(row)
        hashes = map(_hash, _cut_into_pieces(record.numbers))
        if not hmac.compare_digest(self._checksum(record.header, hashes), checksum):
            raise ReleaseError(
                f"the record of round {row} is not the one that was charged: it was damaged,"
                " belongs to another run, or was written by another version of Taciturn (resume"
                f" the run with that one). {RESTORE}"
            )
        fields = json.loads(record.header)
        leaves = _cut_into_leaves(record.numbers, fields["shapes"])
        return _nest(leaves, like), fields["drawn"]

    def forget(self, before: int) -> None:
        """Delete the records of rows before this one, whose effect is saved in the run's state."""
        self._in_memory = {row: record for row, record in self._in_memory.items() if row >= before}
        if self._folder is None:
            return
        for path in self._folder.glob("release-*"):
            if int(path.name.removeprefix("release-")) < before:
                path.unlink()

    def _find(self, row: int) -> _Record:
        if self._folder is None:
            if row not in self._in_memory:
                raise ReleaseError(
                    f"the release of round {row} is charged, and without a folder only the last one"
                    " is kept: begin anew with a new curator, whose releases are charged beside"
                    " those of this one, and give it a `folder` to resume from"
                )
            return self._in_memory[row]
        path = self._folder / f"release-{row}"
        if not path.exists():
            raise ReleaseError(
                f"the release of round {row} is charged, and its record is gone: to make it again"
                f" would give away more than was charged, so this run cannot continue. {RESTORE}"
            )
        header, end, numbers = path.read_bytes().partition(b"\n")
        return _Record(header + end, memoryview(numbers))

    def _checksum(self, header: bytes, hashes: Iterable[bytes]) -> str:
        content = sampler.KNOWN.encode() + header + b"".join(hashes)
        return hmac.new(self._key, content, "sha256").hexdigest()


def _nest(leaves: list[jax.Array], like: Params) -> Release:
    structure = jax.tree.structure(like)
    size = structure.num_leaves
    share = leaves[size] if len(leaves) > size else None
    return Release(jax.tree.unflatten(structure, leaves[:size]), share)


def _cut_into_leaves(numbers: memoryview, shapes: list[list[int]]) -> list[jax.Array]:
    values = np.frombuffer(numbers, "<f4")
    leaves = []
    for shape in shapes:
        size = math.prod(shape)
        leaves.append(jnp.asarray(values[:size].reshape(shape)))
        values = values[size:]
    return leaves


def _copy_to_host(leaves: list[jax.Array]) -> memoryview:
    """Return all numbers, one leaf after another."""
    devices = set()
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            devices |= leaf.devices()
    # They may be on several, or on none.
    if len(devices) != 1:
        leaves = jax.device_get(leaves)
        devices = {jax.local_devices()[0]}
    (device,) = devices
    copy = _copier_from(device)
    return np.asarray(copy(leaves)).view(np.uint8).data


@functools.cache
def _copier_from(device: Any) -> Callable[[list[jax.Array]], jax.Array]:
    """Return what copies leaves into one row of words.

    They are words, so that nothing is rounded. The row is in memory that a GPU writes to directly:
    touching new pages takes longer.
    """
    kinds = {memory.kind for memory in device.addressable_memories()}
    kind = "pinned_host" if "pinned_host" in kinds else None
    place = SingleDeviceSharding(device, memory_kind=kind)
    return jax.jit(_concatenate_words, out_shardings=place)


def _concatenate_words(leaves: list[jax.Array]) -> jax.Array:
    rows = [jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves]
    return jnp.concatenate([jax.lax.bitcast_convert_type(row, jnp.uint32) for row in rows])


def _cut_into_pieces(numbers: memoryview) -> list[memoryview]:
    return [numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE)]


def _hash(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()
