"""The releases of a run, on disk before they are charged and published: a charged row is given out from here, and never computed again.

A sum may come out differently a second time (another machine, other devices), and noise must not meet two sums. So what leaves is written
down first, noised; whatever happens then, there is one release for each charge. One that was written and not charged has never left,
and the next one takes its place.

**Guarantee:** a release is on disk (fsync) when `write` returns. `read` gives what was written, or raises: a charge carries the keyed
checksum of its release. A plain hash would let anyone confirm a guess at what is beneath the noise of a release that was never published.

Records are kept in a run's private folder until its state is saved, and deleted with it.
"""

import hmac
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy

from taciturn.core import Params, Release
from taciturn.files import write_atomically

SHARE, DRAWN = "share", "drawn"


class RecordError(Exception):
    """A release that was charged cannot be given out."""


class Records:
    def __init__(self, folder: Path | None, key: bytes) -> None:
        """`key` is the run's own secret. Without a folder records last as long as the process, and no run goes on after it."""
        self._folder, self._key = folder, key
        self._in_memory: dict[int, bytes] = {}

    def write(self, row: int, release: Release, drawn: str) -> str:
        """Keeps a release, and under which name its noise was drawn; returns the checksum for its charge."""
        estimate, share = jax.device_get(release)
        leaves = {f"{index}": np.ascontiguousarray(leaf) for index, leaf in enumerate(jax.tree.leaves(estimate))}
        if share is not None:
            leaves[SHARE] = np.asarray(share)
        leaves[DRAWN] = np.frombuffer(f"{row} {drawn}".encode(), np.uint8)
        content = safetensors.numpy.save(leaves)
        if self._folder is None:
            self._in_memory[row] = content
        else:
            if not self._folder.exists():
                self._folder.mkdir(mode=0o700, parents=True)
            write_atomically(self._path(self._folder, row), content, 0o600)
        return self._checksum(content)

    def read(self, row: int, checksum: str, like: Params) -> tuple[Release, str]:
        """The release that a charge was made for; `like` has its shapes."""
        content = self._content(row)
        if content is None:
            raise RecordError(
                f"the release of round {row} is charged, and its record is gone: it cannot be made again without giving away more than was "
                "charged, so this run cannot go on. Restore its private folder from a copy, or start a new run with model.warm_start"
            )
        if not hmac.compare_digest(self._checksum(content), checksum):
            raise RecordError(
                f"the record of round {row} is not the one that was charged: it was damaged, or belongs to another run. Restore the run's "
                "private folder from a copy, or start a new run with model.warm_start"
            )
        leaves = safetensors.numpy.load(content)
        share, (_, drawn) = leaves.pop(SHARE, None), leaves.pop(DRAWN).tobytes().decode().split()
        estimate = jax.tree.unflatten(
            jax.tree.structure(like), [jax.numpy.asarray(leaves[f"{index}"]) for index in range(len(leaves))]
        )
        return Release(estimate, None if share is None else jax.numpy.asarray(share)), drawn

    def forget(self, before: int) -> None:
        """Those of rows before that one, whose effect is saved in the run's state."""
        for row in [row for row in self._in_memory if row < before]:
            del self._in_memory[row]
        for path in [] if self._folder is None else self._folder.glob("release-*.safetensors"):
            if int(path.stem.removeprefix("release-")) < before:
                path.unlink()

    def _content(self, row: int) -> bytes | None:
        if self._folder is None:
            return self._in_memory.get(row)
        path = self._path(self._folder, row)
        return path.read_bytes() if path.exists() else None

    @staticmethod
    def _path(folder: Path, row: int) -> Path:
        return folder / f"release-{row}.safetensors"

    def _checksum(self, content: bytes) -> str:
        return hmac.digest(self._key, content, "sha256").hex()
