"""Group rows in any order by user, in bounded memory.

Rows are distributed to files by the first bits of a hash of the user, and files that grew too large
again by the next bits, until each can be sorted in memory. (Sorting whole texts in one database
query ran out of memory on texts of 10 kB.)
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc

from taciturn.data.users import position, user_id

pc: Any = pyarrow.compute
# bits, and so 64 files at each level
SPREAD = 6
# that a file may hold before it is distributed again
FILE_BYTES = 2**26
# that wait to be distributed together
BUFFER_BYTES = 2**25
# bytes of text; no person writes more, and a user who does is left out entirely
MOST_OF_ONE_USER = 2**25
DEALT = pa.schema(
    {
        "position": pa.uint64(),
        "id": pa.string(),
        "user": pa.string(),
        "text": pa.string(),
        "time": pa.string(),
    }
)


def place_rows(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Return rows with the id and position of their users, and how many had none after all."""
    ids = [user_id(spelling) for spelling in rows.column("user").to_pylist()]
    positions = np.fromiter((position(id) for id in ids), np.uint64, len(ids))
    columns = [
        pa.array(positions),
        pa.array(ids, pa.string()),
        *(rows.column(name) for name in ("user", "text", "time")),
    ]
    table = pa.record_batch(columns, schema=DEALT)
    nobody = ids.count("")
    return (table.filter(pa.array([bool(id) for id in ids])) if nobody else table), nobody


class Deal:
    """Distribute rows to files by `SPREAD` bits of the position, those at `level`."""

    def __init__(self, folder: Path, level: int = 0) -> None:
        self._folder, self._shift = folder, np.uint64(64 - SPREAD * (level + 1))
        self._waiting, self._bytes = list[pa.RecordBatch](), 0
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
        rows = pa.Table.from_batches(self._waiting, DEALT).combine_chunks()
        places = (rows["position"].to_numpy() >> self._shift) & np.uint64(2**SPREAD - 1)
        order = np.argsort(places, kind="stable")
        dealt, bounds = (
            rows.take(pa.array(order)),
            np.searchsorted(places[order], np.arange(2**SPREAD + 1)),
        )
        for place in np.flatnonzero(np.diff(bounds)).tolist():
            path = self._folder / f"{place:02}.arrow"
            if path not in self._files:
                self._files[path] = pa.ipc.new_stream(str(path), DEALT)
            self._files[path].write_table(
                dealt.slice(bounds[place], bounds[place + 1] - bounds[place])
            )
        self._waiting, self._bytes = [], 0


def groups(file: Path, tally: Counter[str], level: int = 0) -> Iterator[Path]:
    """Yield the file itself if it is small enough, or else the files that it is split into, without
    users who have far too much text.
    """
    if file.stat().st_size <= FILE_BYTES or SPREAD * (level + 2) > 64:
        yield file
        return
    amounts: Counter[str] = Counter()
    for batch in read_batches(file):
        lengths = pc.binary_length(batch.column("text")).to_pylist()
        for id, length in zip(batch.column("id").to_pylist(), lengths, strict=True):
            amounts[id] += length
    giants = {id for id, amount in amounts.items() if amount > MOST_OF_ONE_USER}
    tally[f"left out: {too_much()}"] += len(giants)
    folder = file.with_suffix("")
    folder.mkdir()
    deal = Deal(folder, level + 1)
    for batch in read_batches(file):
        deal.add(
            batch.filter(pa.array([id not in giants for id in batch.column("id").to_pylist()]))
            if giants
            else batch
        )
    file.unlink()
    for part in deal.close():
        yield from groups(part, tally, level + 1)


def group_small_files(files: Iterable[Path]) -> Iterator[list[Path]]:
    """Group small files that follow each other."""
    pack: list[Path] = []
    for file in files:
        if pack and sum(one.stat().st_size for one in pack) + file.stat().st_size > FILE_BYTES / 4:
            yield pack
            pack = []
        pack.append(file)
    if pack:
        yield pack


def too_much() -> str:
    return f"users with more than {MOST_OF_ONE_USER // 2**20} MB of text"


def read_batches(*files: Path) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pa.OSFile(str(file)) as source:
            yield from pa.ipc.open_stream(source)
