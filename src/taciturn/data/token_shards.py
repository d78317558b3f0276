"""Token sequences on disk, memory-mapped, in shards.

There is one sequence per user (or per public document):

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
    """Sequences end to end, and where each starts."""

    tokens: np.ndarray
    offsets: np.ndarray


class Texts:
    """Sequences of tokens, by their position.

    Args:
        shards: open each of the shards.
        lengths: the numbers of sequences in them.
        tokens: in all of them.
    """

    def __init__(
        self, shards: Sequence[Callable[[], Shard]], lengths: Sequence[int], tokens: int
    ) -> None:
        self._open = shards
        self._opened: dict[int, Shard] = {}
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
        self._check_positions(positions)
        shard_of = np.searchsorted(self._starts, positions, "right") - 1
        lengths = np.empty(len(positions), int)
        for number in np.unique(shard_of):
            is_here = shard_of == number
            lengths[is_here] = self._lengths_in_shard(int(number), positions[is_here])
        return lengths

    def _lengths_in_shard(self, number: int, positions: np.ndarray) -> np.ndarray:
        offsets = self.shard(number).offsets
        inside = positions - self._starts[number]
        return offsets[inside + 1] - offsets[inside]

    def _check_positions(self, positions: np.ndarray) -> None:
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"there are {len(self)} texts, and not all of these are among them")

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
        """Return texts in memory, of ids below `words`."""
        dtype = token_type(words)
        arrays = [np.asarray(sequence, dtype) for sequence in sequences]
        ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)
        offsets = np.concatenate([[0], ends])
        tokens = np.concatenate([*arrays, np.zeros(0, dtype)])
        return cls([lambda: Shard(tokens, offsets)], [len(arrays)], len(tokens))

    @classmethod
    def load(cls, folder: Path, name: str, written: dict[str, Any]) -> "Texts":
        """Load texts; `written` is what their writer returned."""
        dtype = np.dtype(written["dtype"])
        shards = []
        lengths = []
        total = 0
        for number, (sequences, tokens) in enumerate(written["shards"]):
            path = folder / f"{name}-{number:05}"
            shards.append(
                partial(_open_shard, path, dtype=dtype, sequences=sequences, tokens=tokens)
            )
            lengths.append(sequences)
            total += tokens
        return cls(shards, lengths, total)


def _open_shard(path: Path, *, dtype: np.dtype, sequences: int, tokens: int) -> Shard:
    offsets = _map_file(path.with_suffix(".offsets"), np.dtype(np.int64), sequences + 1)
    if offsets[0] != 0 or offsets[-1] != tokens or np.any(np.diff(offsets) < 0):
        raise DataError(f"{path}.offsets is damaged; build it again")
    return Shard(_map_file(path.with_suffix(".tokens"), dtype, tokens), offsets)


class TextWriter:
    """Write sequences in the order they come, shard after shard, without keeping them.

    Args:
        folder: of the shards.
        name: what their names begin with.
        words: ids are below this number.
        shard_tokens: how many tokens end a shard.
    """

    def __init__(
        self, folder: Path, name: str, *, words: int, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        self._folder = folder
        self._name = name
        self._limit = shard_tokens
        self._dtype = token_type(words)
        # The numbers of sequences and tokens in the closed shards.
        self._shards: list[tuple[int, int]] = []
        self._file: IO[bytes] | None = None
        # Where each sequence of the open shard starts, and where the last one ends.
        self._ends: list[int] = []

    def add(self, sequence: Sequence[int] | np.ndarray) -> None:
        if self._file is None:
            self._file = self._path.with_suffix(".tokens").open("xb")
            self._ends = [0]
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
        with self._file:
            _sync(self._file)
        with self._path.with_suffix(".offsets").open("xb") as offsets:
            offsets.write(np.array(self._ends, np.int64).tobytes())
            _sync(offsets)
        self._file = None
        sequences = len(self._ends) - 1
        tokens = self._ends[-1]
        self._shards.append((sequences, tokens))


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def token_type(words: int) -> type[np.unsignedinteger]:
    """Return the smallest type that holds ids below `words`."""
    return np.uint16 if words <= 2**16 else np.uint32


def _map_file(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    if not path.exists():
        raise DataError(
            f"{path} is not on this machine: copy this shard here, or train on the machine that"
            " has it"
        )
    if path.stat().st_size != count * dtype.itemsize:
        raise DataError(
            f"{path} is incomplete: its size is not the one in its manifest; build it again"
        )
    if not count:
        return np.zeros(0, dtype)
    # A plain array on top of the map: np.memmap itself costs some microseconds at every access.
    return np.asarray(np.memmap(path, dtype, "r", shape=(count,)))
