"""Group rows in any order by user, in bounded memory.

Rows are distributed to files by the first bits of a hash of the user, and files that grew too large
again by the next bits, until each can be sorted in memory. (Sorting whole texts in one database
query ran out of memory on texts of 10 kB.)
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc

from taciturn.data.tally import Tally
from taciturn.data.users import position, user_id

pc: Any = pyarrow.compute
# Bits of the position that choose a file, and so 64 files at each level.
SPREAD = 6
# What a file may hold before it is distributed again.
FILE_BYTES = 2**26
# What waits to be distributed together.
BUFFER_BYTES = 2**25
# The bytes of text that a person may write at most; a user with more is left out entirely.
MOST_OF_ONE_USER = 2**25
PLACED = pa.schema(
    {
        "position": pa.uint64(),
        "id": pa.string(),
        "user": pa.string(),
        "text": pa.string(),
        "time": pa.string(),
    }
)


def place_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with the id and position of their users, less those without a user after all."""
    spellings = rows.column("user").to_pylist()
    ids = [user_id(spelling) for spelling in spellings]
    columns = [
        pa.array(_find_positions(ids)),
        pa.array(ids, pa.string()),
        rows.column("user"),
        rows.column("text"),
        rows.column("time"),
    ]
    placed = pa.record_batch(columns, schema=PLACED)
    has_user = [bool(id) for id in ids]
    return placed if all(has_user) else placed.filter(pa.array(has_user))


def _find_positions(ids: list[str]) -> np.ndarray:
    return np.fromiter((position(id) for id in ids), np.uint64, len(ids))


class Deal:
    """Distribute rows to files by `SPREAD` bits of the position, those at `level`."""

    def __init__(self, folder: Path, level: int = 0) -> None:
        self._folder = folder
        self._shift = np.uint64(64 - SPREAD * (level + 1))
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._files: dict[Path, pa.ipc.RecordBatchStreamWriter] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > BUFFER_BYTES:
            self._flush()

    def close(self) -> list[Path]:
        """Return the files, in order of position."""
        self._flush()
        for file in self._files.values():
            file.close()
        return sorted(self._files)

    def _flush(self) -> None:
        """Write what waits, each row to the file of its place."""
        waiting = pa.Table.from_batches(self._waiting, PLACED).combine_chunks()
        places = self._find_places(waiting["position"].to_numpy())
        by_place = np.argsort(places, kind="stable")
        self._write(waiting.take(pa.array(by_place)), places[by_place])
        self._waiting = []
        self._bytes = 0

    def _write(self, rows: pa.Table, places: np.ndarray) -> None:
        """Write rows that are in the order of their places."""
        starts = np.searchsorted(places, np.arange(2**SPREAD + 1))
        sizes = np.diff(starts)
        for place in np.flatnonzero(sizes).tolist():
            file = self._open_file(place)
            file.write_table(rows.slice(starts[place], sizes[place]))

    def _find_places(self, positions: np.ndarray) -> np.ndarray:
        """Return the numbers of the files that users at these positions belong to."""
        last_bits = np.uint64(2**SPREAD - 1)
        return (positions >> self._shift) & last_bits

    def _open_file(self, place: int) -> pa.ipc.RecordBatchStreamWriter:
        path = self._folder / f"{place:02}.arrow"
        if path not in self._files:
            self._files[path] = pa.ipc.new_stream(str(path), PLACED)
        return self._files[path]


def split_file(file: Path, tally: Tally, level: int = 0) -> Iterator[Path]:
    """Yield the file itself if it is small enough, or else the files that it is split into.

    Users who have far too much text are left out of these.
    """
    is_last_level = SPREAD * (level + 2) > 64
    if file.stat().st_size <= FILE_BYTES or is_last_level:
        yield file
        return
    giants = _find_giants(file)
    tally.left_out[describe_giants()] += len(giants)
    for part in _deal_again(file, level, giants):
        yield from split_file(part, tally, level + 1)


def _deal_again(file: Path, level: int, left_out: Container[str]) -> list[Path]:
    """Distribute the rows of a file to others, less those of some users, and remove it."""
    folder = file.with_suffix("")
    folder.mkdir()
    deal = Deal(folder, level + 1)
    for batch in read_batches(file):
        deal.add(_without_users(batch, left_out))
    file.unlink()
    return deal.close()


def _find_giants(file: Path) -> set[str]:
    """Return the ids of users who have far too much text in a file."""
    amounts: Counter[str] = Counter()
    for batch in read_batches(file):
        ids = batch.column("id").to_pylist()
        lengths = pc.binary_length(batch.column("text")).to_pylist()
        for id, length in zip(ids, lengths, strict=True):
            amounts[id] += length
    return {id for id, amount in amounts.items() if amount > MOST_OF_ONE_USER}


def _without_users(batch: pa.RecordBatch, users: Container[str]) -> pa.RecordBatch:
    is_kept = [id not in users for id in batch.column("id").to_pylist()]
    return batch if all(is_kept) else batch.filter(pa.array(is_kept))


def group_small_files(files: Iterable[Path]) -> Iterator[list[Path]]:
    """Group small files that follow each other."""
    pack: list[Path] = []
    pack_bytes = 0
    for file in files:
        file_bytes = file.stat().st_size
        if pack and pack_bytes + file_bytes > FILE_BYTES / 4:
            yield pack
            pack = []
            pack_bytes = 0
        pack.append(file)
        pack_bytes += file_bytes
    if pack:
        yield pack


def describe_giants() -> str:
    """Return whom a build leaves out for far too much text, as its record says it."""
    return f"users with more than {MOST_OF_ONE_USER // 2**20} MB of text"


def read_batches(*files: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, one file after another."""
    for file in files:
        with pa.OSFile(str(file)) as source:
            yield from pa.ipc.open_stream(source)
