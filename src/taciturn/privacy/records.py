"""The releases of a run, on disk before they are charged and published: a charged row is given out from here, and never computed again.

A sum may come out differently a second time (another machine, other devices), and noise must not meet two sums. So what leaves is written
down first, noised; whatever happens then, there is one release for each charge. One that was written and not charged has never left,
and the next one takes its place. The mechanism's next state is not in it: it follows from the state before and the noise key, in whole
numbers that are the same on every machine (`Mechanism.follow`).

**Guarantee:** a release is on disk (fsync) when `write` returns. `read` gives what was written, or raises: a charge carries the keyed
checksum of its release. A plain hash would let anyone confirm a guess at what is beneath the noise.

Records are kept in a run's private folder until its state is saved, and deleted with it.
"""

import hmac
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

from taciturn.core import Params, Release
from taciturn.errors import TaciturnError
from taciturn.files import write_atomically

Parts = Sequence[bytes | memoryview]


class RecordError(TaciturnError):
    """A release that was charged cannot be given out."""


class Records:
    def __init__(self, folder: Path | None, key: bytes) -> None:
        """`key` is the run's own secret. Without a folder records last as long as the process, and no run goes on after it."""
        self._folder, self._key = folder, key
        self._in_memory: dict[int, bytes] = {}

    def write(self, row: int, release: Release, drawn: str) -> str:
        """Keeps a release, and under which name its noise was drawn; returns the checksum for its charge."""
        leaves = [np.asarray(leaf, "<f4", order="C") for leaf in jax.device_get(jax.tree.leaves(release))]
        about = json.dumps({"row": row, "drawn": drawn, "shapes": [leaf.shape for leaf in leaves]}).encode()
        parts = [about + b"\n", *(leaf.reshape(-1).view(np.uint8).data for leaf in leaves)]
        with ThreadPoolExecutor(1) as beside:  # a model is hashed about as fast as it is written
            checksum = beside.submit(self._checksum, parts)
            if self._folder is None:
                self._in_memory[row] = b"".join(parts)
            else:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(self._path(self._folder, row), parts, 0o600)
            return checksum.result()

    def read(self, row: int, checksum: str, like: Params) -> tuple[Release, str]:
        """The release that a charge was made for, and under which name its noise was drawn; `like` has the parameters' structure."""
        content = self._content(row)
        if content is None:
            raise RecordError(
                f"the release of round {row} is charged, and its record is gone: to make it again would give away more than was charged, "
                "so this run cannot go on. Restore its private folder from a copy, or start a new run with model.warm_start"
            )
        if not hmac.compare_digest(self._checksum([content]), checksum):
            raise RecordError(
                f"the record of round {row} is not the one that was charged: it was damaged, or belongs to another run. Restore the run's "
                "private folder from a copy, or start a new run with model.warm_start"
            )
        header, _, numbers = content.partition(b"\n")
        about, values, leaves = json.loads(header), np.frombuffer(numbers, "<f4"), []
        for shape in about["shapes"]:
            leaves.append(jax.numpy.asarray(values[: math.prod(shape)].reshape(shape)))
            values = values[math.prod(shape) :]
        size, structure = len(jax.tree.leaves(like)), jax.tree.structure(like)
        share = leaves[size] if len(leaves) > size else None
        return Release(jax.tree.unflatten(structure, leaves[:size]), share), about["drawn"]

    def forget(self, before: int) -> None:
        """Those of rows before that one, whose effect is saved in the run's state."""
        self._in_memory = {row: content for row, content in self._in_memory.items() if row >= before}
        for path in [] if self._folder is None else self._folder.glob("release-*"):
            if int(path.name.removeprefix("release-")) < before:
                path.unlink()

    def _content(self, row: int) -> bytes | None:
        if self._folder is None:
            return self._in_memory.get(row)
        path = self._path(self._folder, row)
        return path.read_bytes() if path.exists() else None

    @staticmethod
    def _path(folder: Path, row: int) -> Path:
        return folder / f"release-{row}"

    def _checksum(self, parts: Parts) -> str:
        made = hmac.new(self._key, digestmod="sha256")
        for part in parts:
            made.update(part)
        return made.hexdigest()
