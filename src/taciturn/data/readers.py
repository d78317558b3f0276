"""One reader for each kind of file. A reader yields (the fraction read, a batch of rows)."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from taciturn.data.columns import LONGEST, USUAL, Batch, Columns, LeftOut
from taciturn.data.places import Place
from taciturn.data.vocabulary import DataError

BATCH_ROWS, BATCH_BYTES = 1024, 2**22
# of a paragraph
MOST_LINES = 1000
csv.field_size_limit(LONGEST)
# which of a file's columns to read
Choose = Callable[[list[str]], Columns]
Read = Iterator[tuple[float, Batch]]
# values of the wanted columns, and where they stand
Row = tuple[Sequence[str | None], str]


def read_parquet(path: Place, choose: Choose, left_out: LeftOut) -> Read:
    try:
        file = parquet.ParquetFile(
            path if isinstance(path, Path) else path.random_access(), pre_buffer=False
        )
    except pa.ArrowInvalid:
        raise DataError(f"{path} is not a Parquet file, or is incomplete; write it again") from None
    columns, rows = choose(file.schema_arrow.names), max(file.metadata.num_rows, 1)
    batches = file.iter_batches(BATCH_ROWS, columns=columns.names)
    yield from _as_strings(path, columns, batches, lambda row: row / rows, left_out)


def read_arrow(path: Place, choose: Choose, left_out: LeftOut) -> Read:
    """Read an Arrow stream, as Hugging Face saves datasets; or an Arrow file: eight bytes, a
    stream, a table of contents.
    """
    with _opened(path) as (stream, position):
        if stream.peek(6).startswith(b"ARROW1"):
            stream.read(8)
        reader = pa.ipc.open_stream(stream)
        columns = choose(reader.schema.names)
        wanted = (batch.select(columns.names) for batch in reader)
        pieces = (
            batch.slice(start, BATCH_ROWS)
            for batch in wanted
            for start in range(0, len(batch), BATCH_ROWS)
        )
        yield from _as_strings(path, columns, pieces, lambda _: position(), left_out)


def _as_strings(
    path: Place,
    columns: Columns,
    tables: Iterable[pa.RecordBatch],
    share: Callable[[int], float],
    left_out: LeftOut,
) -> Read:
    row = 0
    for table in tables:
        numbers = np.arange(row + 1, row + len(table) + 1)
        row += len(table)
        try:
            strings = _strings(table, columns.text)
        except pa.ArrowInvalid:
            keep = _not_broken(table)
            left_out.add(
                "rows that are not UTF-8",
                keep.count(False),
                f"{path.name}, row {numbers[keep.index(False)]}",
            )
            numbers = numbers[keep]
            strings = _strings(table.filter(pa.array(keep, pa.bool_())), columns.text)
        except TypeError as error:
            raise DataError(f"{path}: {error}") from None
        yield (
            share(row),
            Batch(columns, strings, lambda index, numbers=numbers: f"row {numbers[index]}"),
        )


def _strings(table: pa.RecordBatch, text: str | None) -> dict[str, pa.Array]:
    """Return all columns as strings; ArrowInvalid if one is not UTF-8, TypeError if they cannot be
    strings.
    """
    found = {}
    for name, array in zip(table.schema.names, table.columns, strict=True):
        plain: Any = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        if pa.types.is_nested(plain.type) or (name == text and not _holds_bytes(plain.type)):
            raise TypeError(
                f"the column {'of the text ' if name == text else ''}holds {plain.type}; name"
                " another"
            )
        found[name] = plain.cast(pa.string())
        found[name].validate(full=True)
    return found


def _holds_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.null())


def _not_broken(table: pa.RecordBatch) -> list[bool]:
    """Return which rows are UTF-8 throughout."""
    columns = [
        column.cast(pa.large_binary()).to_pylist()
        for column in table.columns
        if _holds_bytes(column.type)
    ]
    return [
        all(value is None or _is_utf8(value) for value in row) for row in zip(*columns, strict=True)
    ]


def read_csv(path: Place, choose: Choose, left_out: LeftOut, noted: LeftOut) -> Read:
    is_tsv = ".tsv" in [suffix.lower() for suffix in path.suffixes]
    with _opened(path) as (stream, position):
        lines = _Lines(stream, path, left_out)
        first = next(lines, "")
        if not first.strip():
            raise DataError(
                f"{path} is empty: its first line must name the columns, for example user,text"
            )
        # Tab-separated text is not quoted: a quote in it belongs to the text.
        style: Any = (
            {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
            if is_tsv
            else {"delimiter": max(",;\t|", key=first.count)}
        )
        try:
            names = [name.strip() for name in next(csv.reader([first], **style))]
        except csv.Error:
            raise DataError(
                f"{path}, line 1, does not name columns: name a file of text whose first line is"
                " such as user,text"
            ) from None
        columns = choose(names)
        wanted = [names.index(name) for name in columns.names]
        rows = _csv_rows(
            path, lines, csv.reader(lines, strict=True, **style), len(names), left_out, noted
        )
        yield from _batches(
            columns, (([row[column] for column in wanted], place) for row, place in rows), position
        )


def _csv_rows(
    path: Place, lines: "_Lines", reader: Any, width: int, left_out: LeftOut, noted: LeftOut
) -> Iterator[tuple[list[str], str]]:
    while True:
        at, skipped, lines.broken = lines.number + 1, lines.skipped, False
        row, problem, unsure = [], "", ""
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = "malformed rows"
            if "unexpected end" in str(error) or "field larger" in str(error):
                unsure = (
                    "a quote is opened and not closed (or a field is longer than"
                    f" {LONGEST // 2**20} MB)"
                )
        at += lines.skipped - skipped
        if lines.broken:
            problem = "rows that are not UTF-8"
        elif row and len(row) != width:
            problem = "malformed rows"
        if (lines.number > at and (problem or lines.skipped > skipped)) or lines.skipped_quotes % 2:
            unsure = unsure or "a quote opened there swallows other lines, and the row is malformed"
        if unsure:
            raise DataError(
                f"{path}, line {at}: {unsure}, so everything after it is unsure; correct that line"
            )
        if lines.number > at:
            noted.add("rows that span several lines", 1, f"{path.name}, line {at}")
        if problem:
            left_out.add(problem, 1, f"{path.name}, line {at}")
        elif row:
            yield row, f"line {at}"


def read_json(path: Place, choose: Choose, left_out: LeftOut) -> Read:
    with _opened(path) as (stream, position):
        objects = _objects(path, stream, left_out)
        # An object may lack a key that others have; the first few hundred name the columns.
        head, size = [], 0
        for content, place in objects:
            head.append((content, place))
            size += sum(len(value) for value in content.values() if isinstance(value, str))
            if len(head) == 500 or size > BATCH_BYTES:
                break
        if not head:
            raise DataError(
                f"{path} has no line with a JSON object; write one on each line: "
                + '{"user": "ann", "text": "…"}'
            )
        names = dict.fromkeys(chain.from_iterable(content for content, _ in head))
        columns = choose(list(names))
        late = [
            name
            for usual in USUAL.values()
            for name in usual
            if name not in names and columns.time is None
        ]
        yield from _batches(
            columns, _json_rows(path, columns, late, chain(head, objects), left_out), position
        )


def _json_rows(
    path: Place, columns: Columns, late: list[str], objects: Iterable, left_out: LeftOut
) -> Iterator[Row]:
    """Read rows. `late` are names of columns that must not appear any more."""
    for content, place in objects:
        if any(name in content for name in late):
            raise DataError(
                f"{path}, {place}: a column that may be the time appears only here; name it with"
                " --time-column"
            )
        found = (content.get(name) for name in columns.names)
        values = [one if one is None or isinstance(one, str) else json.dumps(one) for one in found]
        if not isinstance(content.get(columns.text or ""), str | None):
            left_out.add("malformed rows", 1, f"{path.name}, {place}")
        elif all(
            value is None or _is_utf8(value.encode("utf-8", "surrogatepass")) for value in values
        ):
            yield values, place
        else:
            left_out.add("rows that are not UTF-8", 1, f"{path.name}, {place}")


def _objects(
    path: Place, stream: IO[bytes], left_out: LeftOut
) -> Iterator[tuple[dict[str, Any], str]]:
    for number, line in _Lines(stream, path, left_out).sound():
        if number == 1 and line.lstrip().startswith("["):
            raise DataError(
                f"{path} is one JSON list; write it as JSON lines, one object a line (jq -c '.[]')"
            )
        if line.strip():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                yield content, f"line {number}"
            else:
                left_out.add("malformed rows", 1, f"{path.name}, line {number}")


def read_messages(path: Place, user: str, name: str, left_out: LeftOut) -> Read:
    """Read a text file of one user: a line is a message, and their order is kept."""
    with _opened(path) as (stream, position):
        lines = _Lines(stream, path, left_out).sound("rows", name)
        rows = (
            ([user, line, f"{name} {number:012}"], f"line {number}")
            for number, line in lines
            if line.strip()
        )
        yield from _batches(Columns(user="user", text="text", time="time"), rows, position)


def read_paragraphs(path: Place, left_out: LeftOut) -> Read:
    """Read a public text file: lines belong together up to an empty one."""

    def paragraphs(stream: IO[bytes]) -> Iterator[Row]:
        lines, paragraph = _Lines(stream, path, left_out), list[str]()
        for _, line in chain(lines.sound("lines"), [(0, "")]):
            if line.strip():
                paragraph.append(line)
            if paragraph and (not line.strip() or len(paragraph) >= MOST_LINES):
                yield [" ".join(paragraph)], f"line {lines.number}"
                paragraph = []

    with _opened(path) as (stream, position):
        yield from _batches(Columns(text="text"), paragraphs(stream), position)


def _batches(columns: Columns, rows: Iterable[Row], position: Callable[[], float]) -> Read:
    """Collect the rows of a text file into batches."""
    values, places, size = [], [], 0
    for row, place in chain(rows, [(None, "")]):
        if values and (row is None or len(values) >= BATCH_ROWS or size >= BATCH_BYTES):
            found = zip(columns.names, zip(*values, strict=True), strict=True)
            yield (
                position(),
                Batch(
                    columns,
                    {name: pa.array(column, pa.string()) for name, column in found},
                    places.__getitem__,
                ),
            )
            values, places, size = [], [], 0
        if row is not None:
            values.append(row)
            places.append(place)
            size += sum(map(len, filter(None, row)))


class _Lines:
    """The lines of a file as strings. One that is too long is left out; `broken` is set when one
    was not UTF-8, until it is reset.
    """

    def __init__(self, stream: IO[bytes], path: Place, left_out: LeftOut) -> None:
        self._stream, self._path, self._left_out = stream, path, left_out
        self.number, self.broken = 0, False
        self.skipped, self.skipped_quotes = 0, 0

    def sound(self, what: str = "rows", name: str = "") -> Iterator[tuple[int, str]]:
        """Yield the numbers and the lines that are UTF-8; count the others."""
        for line in self:
            broken, self.broken = self.broken, False
            if not broken:
                yield self.number, line
            else:
                self._left_out.add(
                    f"{what} that are not UTF-8",
                    1,
                    f"{name or self._path.name}, line {self.number}",
                )

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        while True:
            line = self._stream.readline(LONGEST + 1)
            if not line:
                raise StopIteration
            self.number += 1
            if self.number == 1:
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise DataError(
                        f"{self._path} is UTF-16; save it as UTF-8 (iconv -f utf-16 -t utf-8)"
                    )
                if b"\0" in line:
                    raise DataError(
                        f"{self._path} is not text, as it has null bytes in it; name a file of text"
                        " in UTF-8"
                    )
                line = line.removeprefix(b"\xef\xbb\xbf")
            if len(line) > LONGEST:
                self.skipped += 1
                while line:
                    self.skipped_quotes += line.count(b'"')
                    line = b"" if line.endswith(b"\n") else self._stream.readline(LONGEST)
                where = f"{self._path.name}, line {self.number}"
                self._left_out.add(f"lines longer than {LONGEST // 2**20} MB", 1, where)
                continue
            try:
                return line.decode()
            except UnicodeDecodeError:
                self.broken = True
                return line.decode(errors="replace")


UNPACK: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda file: io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file), "zstd")),
}


@contextmanager
def _opened(path: Place) -> Iterator[tuple[Any, Callable[[], float]]]:
    """Open a file, unpacked while it is read; yield it and a function that returns the fraction
    read.
    """
    size = max(path.stat().st_size, 1)
    with path.open("rb") as file:
        yield (
            UNPACK.get(path.suffix.lower(), lambda file: file)(file),
            lambda: min(file.tell() / size, 1.0),
        )


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
