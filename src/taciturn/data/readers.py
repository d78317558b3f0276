"""One reader for each kind of file.

A reader yields the fraction of the file that is read, and a batch of rows.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from taciturn.data.columns import LONGEST, USUAL, Batch, Columns, LeftOut
from taciturn.data.places import Place
from taciturn.data.vocabulary import DataError

BATCH_ROWS = 1024
BATCH_BYTES = 2**22
# The lines of a paragraph.
MOST_LINES = 1000
# The objects of a JSON file that name its columns.
HEAD_ROWS = 500
csv.field_size_limit(LONGEST)
# Which of a file's columns to read.
Choose = Callable[[list[str]], Columns]
Read = Iterator[tuple[float, Batch]]
# The values of the columns to read, and where they stand.
Row = tuple[Sequence[str | None], str]


def read_parquet(path: Place, choose: Choose, left_out: LeftOut) -> Read:
    """Read a Parquet file, a few rows at a time."""
    file = _open_parquet(path)
    columns = choose(file.schema_arrow.names)
    rows = max(file.metadata.num_rows, 1)
    reader = _TableReader(path, columns, left_out)
    for batch in reader.read(file.iter_batches(BATCH_ROWS, columns=columns.names)):
        yield reader.rows / rows, batch


def _open_parquet(path: Place) -> parquet.ParquetFile:
    try:
        where = path if isinstance(path, Path) else path.random_access()
        return parquet.ParquetFile(where, pre_buffer=False)
    except pa.ArrowInvalid:
        raise DataError(f"{path} is not a Parquet file, or is incomplete; write it again") from None


def read_arrow(path: Place, choose: Choose, left_out: LeftOut) -> Read:
    """Read an Arrow stream, as Hugging Face saves datasets, or an Arrow file.

    A file is eight bytes, a stream, and a table of contents.
    """
    with _open_file(path) as (stream, position):
        is_file = stream.peek(6).startswith(b"ARROW1")
        if is_file:
            stream.read(8)
        tables = pa.ipc.open_stream(stream)
        columns = choose(tables.schema.names)
        reader = _TableReader(path, columns, left_out)
        for batch in reader.read(_cut_tables(tables, columns.names)):
            yield position(), batch


def _cut_tables(tables: Iterable[pa.RecordBatch], names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of tables, a few rows at a time."""
    for table in tables:
        columns = table.select(names)
        for start in range(0, len(columns), BATCH_ROWS):
            yield columns.slice(start, BATCH_ROWS)


class _TableReader:
    """Batches of the tables of a file, and the number of rows so far."""

    def __init__(self, path: Place, columns: Columns, left_out: LeftOut) -> None:
        self._path = path
        self._columns = columns
        self._left_out = left_out
        self.rows = 0

    def read(self, tables: Iterable[pa.RecordBatch]) -> Iterator[Batch]:
        for table in tables:
            numbers = np.arange(self.rows + 1, self.rows + len(table) + 1)
            self.rows += len(table)
            try:
                batch = self._make_batch(table, numbers)
            except TypeError as error:
                raise DataError(f"{self._path}: {error}") from None
            yield batch

    def _make_batch(self, table: pa.RecordBatch, numbers: np.ndarray) -> Batch:
        """Return the rows that are UTF-8; count the others."""
        text = self._columns.text
        try:
            strings = _to_strings(table, text)
        except pa.ArrowInvalid:
            is_utf8 = _find_utf8_rows(table)
            first = numbers[is_utf8.index(False)]
            where = f"{self._path.name}, row {first}"
            self._left_out.add("rows that are not UTF-8", is_utf8.count(False), where)
            numbers = numbers[is_utf8]
            readable = table.filter(pa.array(is_utf8, pa.bool_()))
            strings = _to_strings(readable, text)
        return Batch(
            columns=self._columns,
            strings=strings,
            place=partial(_name_row, numbers),
        )


def _name_row(numbers: np.ndarray, index: int) -> str:
    return f"row {numbers[index]}"


def _to_strings(table: pa.RecordBatch, text: str | None) -> dict[str, pa.Array]:
    """Return all columns as strings.

    Args:
        table: of any types.
        text: the name of the column of the text.

    Raises:
        ArrowInvalid: a column is not UTF-8.
        TypeError: a column cannot be strings, or the text is not text.
    """
    strings = {}
    for name, array in zip(table.schema.names, table.columns, strict=True):
        strings[name] = _cast_to_string(array, is_text=name == text)
    return strings


def _cast_to_string(array: pa.Array, is_text: bool) -> pa.Array:
    values: Any = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    is_nested = pa.types.is_nested(values.type)
    # Numbers and dates can be strings, but are not text.
    can_be_string = _holds_bytes(values.type) if is_text else not is_nested
    if not can_be_string:
        which = "of the text " if is_text else ""
        raise TypeError(f"the column {which}holds {values.type}; name another")
    strings = values.cast(pa.string())
    strings.validate(full=True)
    return strings


def _holds_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.null())


def _find_utf8_rows(table: pa.RecordBatch) -> list[bool]:
    """Return, for each row, whether it is UTF-8 throughout."""
    columns = []
    for column in table.columns:
        if _holds_bytes(column.type):
            columns.append(column.cast(pa.large_binary()).to_pylist())
    return [all(map(_is_utf8, row)) for row in zip(*columns, strict=True)]


def read_csv(path: Place, choose: Choose, *, left_out: LeftOut, noted: LeftOut) -> Read:
    """Read a file whose first line names the columns.

    Args:
        path: of the file.
        choose: which of its columns to read.
        left_out: counts the rows that cannot be used.
        noted: counts the rows that can be used and are unusual.
    """
    with _open_file(path) as (stream, position):
        lines = _Lines(stream, path, left_out)
        header = next(lines, "")
        if not header.strip():
            raise DataError(
                f"{path} is empty: its first line must name the columns, for example user,text"
            )
        style = _guess_style(path, header)
        try:
            names = [name.strip() for name in next(csv.reader([header], **style))]
        except csv.Error:
            raise DataError(
                f"{path}, line 1, does not name columns: name a file of text whose first line is"
                " such as user,text"
            ) from None
        columns = choose(names)
        rows = _CsvRows(
            path=path,
            lines=lines,
            reader=csv.reader(lines, strict=True, **style),
            width=len(names),
            left_out=left_out,
            noted=noted,
        )
        places = [names.index(name) for name in columns.names]
        yield from _batches(columns, _select_fields(rows, places), position)


def _guess_style(path: Place, header: str) -> dict[str, Any]:
    """Return how a file separates its fields, as csv.reader takes it."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".tsv" in suffixes:
        # Tab-separated text is not quoted: a quote in it belongs to the text.
        return {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    return {"delimiter": max(",;\t|", key=header.count)}


def _select_fields(rows: Iterable[tuple[list[str], str]], places: list[int]) -> Iterator[Row]:
    for fields, where in rows:
        yield [fields[place] for place in places], where


class _CsvRows:
    """The rows of a CSV file that can be used, and the lines that they begin on.

    The others are counted. Where a row makes everything after it unsure, the file is refused.
    """

    def __init__(
        self,
        *,
        path: Place,
        lines: "_Lines",
        reader: Iterator[list[str]],
        width: int,
        left_out: LeftOut,
        noted: LeftOut,
    ) -> None:
        self._path = path
        self._lines = lines
        self._reader = reader
        self._width = width
        self._left_out = left_out
        self._noted = noted

    def __iter__(self) -> Iterator[tuple[list[str], str]]:
        lines = self._lines
        while True:
            start = lines.number + 1
            skipped = lines.skipped
            lines.is_broken = False
            row: list[str] = []
            error = ""
            try:
                row = next(self._reader)
            except StopIteration:
                return
            except csv.Error as problem:
                error = str(problem)
            skipped_here = lines.skipped - skipped
            # Lines that are too long are skipped, so the row begins after them.
            start += skipped_here
            spans_lines = lines.number > start
            problem = self._find_problem(row, error)
            is_swallowing = spans_lines and (problem or skipped_here)
            doubt = self._find_doubt(error, is_swallowing=bool(is_swallowing))
            if doubt:
                raise DataError(
                    f"{self._path}, line {start}: {doubt}, so everything after it is unsure;"
                    " correct that line"
                )
            if spans_lines:
                where = f"{self._path.name}, line {start}"
                self._noted.add("rows that span several lines", where=where)
            if problem:
                self._left_out.add(problem, where=f"{self._path.name}, line {start}")
            elif row:
                yield row, f"line {start}"

    def _find_problem(self, row: list[str], error: str) -> str:
        """Return why a row cannot be used; nothing if it can."""
        if self._lines.is_broken:
            return "rows that are not UTF-8"
        if error or (row and len(row) != self._width):
            return "malformed rows"
        return ""

    def _find_doubt(self, error: str, is_swallowing: bool) -> str:
        """Return why everything after a row is unsure; nothing if it is not."""
        if "unexpected end" in error or "field larger" in error:
            return (
                "a quote is opened and not closed (or a field is longer than"
                f" {LONGEST // 2**20} MB)"
            )
        if is_swallowing or self._lines.skipped_quotes % 2:
            return "a quote opened there swallows other lines, and the row is malformed"
        return ""


def read_json(path: Place, choose: Choose, left_out: LeftOut) -> Read:
    """Read JSON lines, one object a line."""
    with _open_file(path) as (stream, position):
        objects = _read_objects(path, stream, left_out)
        head = _read_head(objects)
        if not head:
            raise DataError(
                f"{path} has no line with a JSON object; write one on each line: "
                + '{"user": "ann", "text": "…"}'
            )
        names = dict.fromkeys(chain.from_iterable(content for content, _ in head))
        columns = choose(list(names))
        rows = _JsonRows(
            path=path,
            columns=columns,
            late=_find_late(columns, names),
            left_out=left_out,
        )
        yield from _batches(columns, rows.read(chain(head, objects)), position)


def _find_late(columns: Columns, names: Container[str]) -> AbstractSet[str]:
    """Return usual names of columns that must not appear after the head.

    A time that appears only then would be missing before.
    """
    if columns.time is not None:
        return set()
    return {name for name in chain.from_iterable(USUAL.values()) if name not in names}


def _read_head(objects: Iterable[tuple[dict[str, Any], str]]) -> list[tuple[dict[str, Any], str]]:
    """Return the first objects, which name the columns: one may lack a key that others have."""
    head = []
    size = 0
    for content, where in objects:
        head.append((content, where))
        size += sum(len(value) for value in content.values() if isinstance(value, str))
        if len(head) == HEAD_ROWS or size > BATCH_BYTES:
            break
    return head


class _JsonRows:
    """Rows of JSON objects; those that cannot be used are counted.

    `late` are names of columns that must not appear any more.
    """

    def __init__(
        self, *, path: Place, columns: Columns, late: AbstractSet[str], left_out: LeftOut
    ) -> None:
        self._path = path
        self._text = columns.text or ""
        self._names = columns.names
        self._late = late
        self._left_out = left_out

    def read(self, objects: Iterable[tuple[dict[str, Any], str]]) -> Iterator[Row]:
        for content, where in objects:
            if not self._late.isdisjoint(content):
                raise DataError(
                    f"{self._path}, {where}: a column that may be the time appears only here; name"
                    " it with `columns.time`"
                )
            values = [_to_string(content.get(name)) for name in self._names]
            if not isinstance(content.get(self._text), str | None):
                self._leave_out("malformed rows", where)
            elif all(map(_is_encodable, values)):
                yield values, where
            else:
                self._leave_out("rows that are not UTF-8", where)

    def _leave_out(self, reason: str, where: str) -> None:
        self._left_out.add(reason, where=f"{self._path.name}, {where}")


def _to_string(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _is_encodable(value: str | None) -> bool:
    """Tell a string from one with half a character, which JSON can escape and UTF-8 cannot hold."""
    return value is None or _is_utf8(value.encode("utf-8", "surrogatepass"))


def _read_objects(
    path: Place, stream: IO[bytes], left_out: LeftOut
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of a file, and where they stand; count lines that are not objects."""
    for number, line in _Lines(stream, path, left_out).read_sound():
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
                left_out.add("malformed rows", where=f"{path.name}, line {number}")


def read_messages(path: Place, *, user: str, name: str, left_out: LeftOut) -> Read:
    """Read a text file of one user: a line is a message, and their order is kept.

    Args:
        path: of the file.
        user: who wrote it.
        name: of the file, in the folder that was named.
        left_out: counts the lines that cannot be used.
    """
    columns = Columns(user="user", text="text", time="time")
    with _open_file(path) as (stream, position):
        lines = _Lines(stream, path, left_out).read_sound(name=name)
        rows = _read_message_rows(lines, user=user, name=name)
        yield from _batches(columns, rows, position)


def _read_message_rows(lines: Iterable[tuple[int, str]], *, user: str, name: str) -> Iterator[Row]:
    for number, line in lines:
        if line.strip():
            time = f"{name} {number:012}"
            yield [user, line, time], f"line {number}"


def read_paragraphs(path: Place, left_out: LeftOut) -> Read:
    """Read a public text file: lines belong together up to an empty one."""
    with _open_file(path) as (stream, position):
        lines = _Lines(stream, path, left_out)
        yield from _batches(Columns(text="text"), _read_paragraph_rows(lines), position)


def _read_paragraph_rows(lines: "_Lines") -> Iterator[Row]:
    paragraph: list[str] = []
    # An empty line after the last ends the last paragraph.
    for _, line in chain(lines.read_sound("lines"), [(0, "")]):
        is_empty = not line.strip()
        if not is_empty:
            paragraph.append(line)
        is_complete = is_empty or len(paragraph) >= MOST_LINES
        if paragraph and is_complete:
            text = " ".join(paragraph)
            yield [text], f"line {lines.number}"
            paragraph = []


def _batches(columns: Columns, rows: Iterable[Row], position: Callable[[], float]) -> Read:
    """Collect the rows of a text file into batches."""
    values: list[Sequence[str | None]] = []
    places: list[str] = []
    size = 0
    for row, place in rows:
        is_full = len(values) >= BATCH_ROWS or size >= BATCH_BYTES
        if values and is_full:
            yield position(), _make_batch(columns, values, places)
            values = []
            places = []
            size = 0
        values.append(row)
        places.append(place)
        size += sum(map(len, filter(None, row)))
    if values:
        yield position(), _make_batch(columns, values, places)


def _make_batch(
    columns: Columns, values: Sequence[Sequence[str | None]], places: list[str]
) -> Batch:
    by_column = zip(*values, strict=True)
    strings = {}
    for name, column in zip(columns.names, by_column, strict=True):
        strings[name] = pa.array(column, pa.string())
    return Batch(columns, strings, places.__getitem__)


class _Lines:
    """The lines of a file as strings.

    One that is too long is left out; `is_broken` is set when one was not UTF-8, until it is reset.
    """

    def __init__(self, stream: IO[bytes], path: Place, left_out: LeftOut) -> None:
        self._stream = stream
        self._path = path
        self._left_out = left_out
        self.number = 0
        self.is_broken = False
        self.skipped = 0
        self.skipped_quotes = 0

    def read_sound(self, what: str = "rows", name: str = "") -> Iterator[tuple[int, str]]:
        """Yield the numbers and the lines that are UTF-8; count the others.

        Args:
            what: the lines are.
            name: of the file, where it is not the last part of its path.
        """
        for line in self:
            if not self.is_broken:
                yield self.number, line
                continue
            self.is_broken = False
            where = f"{name or self._path.name}, line {self.number}"
            self._left_out.add(f"{what} that are not UTF-8", where=where)

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        while True:
            line = self._stream.readline(LONGEST + 1)
            if not line:
                raise StopIteration
            self.number += 1
            if self.number == 1:
                line = self._check_first(line)
            if len(line) > LONGEST:
                self._skip(line)
                continue
            try:
                return line.decode()
            except UnicodeDecodeError:
                self.is_broken = True
                return line.decode(errors="replace")

    def _check_first(self, line: bytes) -> bytes:
        """Return the first line without a byte order mark; refuse a file that is not UTF-8 text."""
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{self._path} is UTF-16; save it as UTF-8 (iconv -f utf-16 -t utf-8)")
        if b"\0" in line:
            raise DataError(
                f"{self._path} is not text, as it has null bytes in it; name a file of text in"
                " UTF-8"
            )
        return line.removeprefix(b"\xef\xbb\xbf")

    def _skip(self, line: bytes) -> None:
        """Read a line to its end; count it and the quotes in it."""
        self.skipped += 1
        while line:
            self.skipped_quotes += line.count(b'"')
            line = b"" if line.endswith(b"\n") else self._stream.readline(LONGEST)
        where = f"{self._path.name}, line {self.number}"
        self._left_out.add(f"lines longer than {LONGEST // 2**20} MB", where=where)


UNPACK: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda file: io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file), "zstd")),
}


@contextmanager
def _open_file(path: Place) -> Iterator[tuple[Any, Callable[[], float]]]:
    """Open a file; yield it, unpacked while it is read, and what returns the fraction read."""
    size = max(path.stat().st_size, 1)
    with path.open("rb") as file:

        def fraction_read() -> float:
            return min(file.tell() / size, 1.0)

        unpack = UNPACK.get(path.suffix.lower())
        yield unpack(file) if unpack else file, fraction_read


def _is_utf8(content: bytes | None) -> bool:
    """Tell whether bytes are UTF-8, if there are any."""
    if content is None:
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
