"""Token sequences on disk, memory-mapped, in shards: one sequence per user (or per public
document).

    NAME-00000.tokens    ids end to end, uint16 (uint32 for more than 65,536 words)
    NAME-00000.offsets   where each sequence starts, int64, and where the last one ends

A shard is opened when it is first read, so a host needs only the files of its own users, and
nothing is copied into memory.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from taciturn.data.vocabulary import DataError

SHARD_TOKENS = 2**25


class Shard(NamedTuple):
    tokens: np.ndarray
    offsets: np.ndarray


class Texts:
    def __init__(
        self, shards: Sequence[Callable[[], Shard]], lengths: Sequence[int], tokens: int
    ) -> None:
        """`lengths` are the numbers of sequences in the shards, `tokens` their total."""
        self._open, self._opened = shards, {}
        self._starts = [0, *np.cumsum(lengths, dtype=int).tolist()]
        self.tokens = tokens

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, position: int) -> np.ndarray:
        number = bisect_right(self._starts, position) - 1
        if not 0 <= position < len(self):
            raise IndexError(f"there are {len(self)} texts; there is no text {position}")
        tokens, offsets = self.shard(number)
        inside = position - self._starts[number]
        return tokens[offsets[inside] : offsets[inside + 1]]

    def lengths(self, positions: np.ndarray) -> np.ndarray:
        """Count the tokens of each, without reading them."""
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"there are {len(self)} texts, and not all of these are among them")
        numbers, found = (
            np.searchsorted(self._starts, positions, "right") - 1,
            np.empty(len(positions), int),
        )
        for number in np.unique(numbers):
            here, offsets = numbers == number, self.shard(int(number)).offsets
            inside = positions[here] - self._starts[number]
            found[here] = offsets[inside + 1] - offsets[inside]
        return found

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[position] for position in range(len(self)))

    @property
    def shards(self) -> Iterator[Shard]:
        return map(self.shard, range(len(self._open)))

    def shard(self, number: int) -> Shard:
        if number not in self._opened:
            self._opened[number] = self._open[number]()
        return self._opened[number]

    @classmethod
    def of(cls, sequences: Iterable[list[int] | np.ndarray], words: int) -> "Texts":
        arrays = [np.asarray(sequence, token_type(words)) for sequence in sequences]
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays], dtype=np.int64)])
        tokens = np.concatenate([*arrays, np.zeros(0, token_type(words))])
        return cls([lambda: Shard(tokens, offsets)], [len(arrays)], len(tokens))

    @classmethod
    def load(cls, folder: Path, name: str, written: dict[str, Any]) -> "Texts":
        """Load texts; `written` is what their writer returned."""
        dtype, sizes = np.dtype(written["dtype"]), written["shards"]
        shards = [
            partial(_open_shard, folder / f"{name}-{number:05}", dtype, *size)
            for number, size in enumerate(sizes)
        ]
        return cls(
            shards, [sequences for sequences, _ in sizes], sum(tokens for _, tokens in sizes)
        )


def _open_shard(path: Path, dtype: np.dtype, sequences: int, tokens: int) -> Shard:
    offsets = _mapped(path.with_suffix(".offsets"), np.dtype(np.int64), sequences + 1)
    if offsets[0] != 0 or offsets[-1] != tokens or np.any(np.diff(offsets) < 0):
        raise DataError(f"{path}.offsets is damaged; build it again")
    return Shard(_mapped(path.with_suffix(".tokens"), dtype, tokens), offsets)


class TextWriter:
    """Write sequences in the order they come, shard after shard, without keeping them."""

    def __init__(
        self, folder: Path, name: str, words: int, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        self._folder, self._name, self._limit = folder, name, shard_tokens
        self._dtype = token_type(words)
        # sequences and tokens of the closed shards
        self._shards: list[tuple[int, int]] = []
        self._file: IO[bytes] | None = None

    def add(self, sequence: Sequence[int] | np.ndarray) -> None:
        if self._file is None:
            self._file, self._ends = self._path.with_suffix(".tokens").open("xb"), [0]
        self._file.write(np.asarray(sequence, self._dtype).tobytes())
        self._ends.append(self._ends[-1] + len(sequence))
        if self._ends[-1] >= self._limit:
            self._close_shard()

    def close(self) -> dict[str, Any]:
        """Return what `Texts.load` needs: the sizes by which it notices an incomplete file."""
        if self._file:
            self._close_shard()
        return {"dtype": np.dtype(self._dtype).name, "shards": self._shards}

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._name}-{len(self._shards):05}"

    def _close_shard(self) -> None:
        assert self._file is not None
        with self._file, self._path.with_suffix(".offsets").open("xb") as offsets:
            offsets.write(np.array(self._ends, np.int64).tobytes())
            for file in (self._file, offsets):
                file.flush()
                os.fsync(file.fileno())
        self._shards.append((len(self._ends) - 1, self._ends[-1]))
        self._file = None


def token_type(words: int) -> type[np.unsignedinteger]:
    return np.uint16 if words <= 2**16 else np.uint32


def _mapped(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    if not path.exists():
        raise DataError(
            f"{path} is not on this machine: copy this shard here, or train on the machine that"
            " has it"
        )
    if path.stat().st_size != count * dtype.itemsize:
        raise DataError(
            f"{path} is incomplete: its size is not the one in its manifest; build it again"
        )
    # A plain array on top of the map: np.memmap itself costs some microseconds at every access.
    return np.asarray(np.memmap(path, dtype, "r", shape=(count,))) if count else np.zeros(0, dtype)
