"""Raw text from anywhere as one stream of rows (user, text, time), all strings.

    a table     .parquet  .arrow  .csv  .tsv  .jsonl  .ndjson, the last four also packed as .gz .bz2
                .xz .zst; columns by name
    a folder    of tables (the shards that Spark or BigQuery write), or of .txt files, one per user,
                one message a line
    elsewhere   all of these at an address: s3://…, gs://…, or any that fsspec knows

A row that cannot be used is left out and counted, with the first place; anything that makes the
rest of a file unsure stops the build.
"""

import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from re import sub
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute

from taciturn.data.columns import LONGEST, USUAL, Batch, Columns, LeftOut
from taciturn.data.places import Place, locate
from taciturn.data.readers import (
    Read,
    read_arrow,
    read_csv,
    read_json,
    read_messages,
    read_paragraphs,
    read_parquet,
)
from taciturn.data.vocabulary import DataError
from taciturn.files import HOLDS
from taciturn.progress import Progress, ignore_progress

# Its functions are made at run time, so type checkers do not know them.
pc: Any = pyarrow.compute
ROWS = pa.schema({"user": pa.string(), "text": pa.string(), "time": pa.string()})
TABLES = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")
KINDS = (*TABLES, ".txt")
PACKED = (".gz", ".bz2", ".xz", ".zst")
# What Hugging Face writes beside its .arrow files.
ABOUT = (
    "dataset_dict.json",
    "dataset_info.json",
    "state.json",
)
# Files by which folders are known that taciturn wrote.
OURS = ("manifest.json", "about.json", "recipe.toml")
# Names begin with these that are not of text, such as Spark's _SUCCESS.
HIDDEN = (".", "_")
# Where text files have no column of users.
FILE_NAMES = "the name of the file"
FOLDER_NAMES = "the name of the folder"
# What the libraries raise on files that are not what their names say.
DAMAGE = (
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    pa.ArrowException,
    ValueError,
    OverflowError,
    MemoryError,
)
NOT_FLAGGED = ("", "0", "0.0", "false", "no", "n", "f", "null", "none")


class _File(NamedTuple):
    """A file to read, and the folder it was found in, if one was named."""

    path: Place
    folder: Any
    size: int


@dataclass(kw_only=True)
class Source:
    """Files to read. After reading, `rows` and `left_out` say what was found."""

    paths: Sequence[Path | Place]
    columns: Columns = field(default_factory=Columns)
    # Rows of public text have none.
    with_user: bool = True
    # Rows that can be used.
    rows: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)
    # What was read, but is worth a note.
    noted: LeftOut = field(default_factory=LeftOut)
    # The columns that were read, for the record; no others are ever looked at.
    read_columns: dict[str, None] = field(default_factory=dict)
    # Those of them that hold the user, the text and the time.
    roles: dict[str, list[str]] = field(default_factory=lambda: {role: [] for role in USUAL})

    def __post_init__(self) -> None:
        self.paths = [locate(path) if isinstance(path, Path) else path for path in self.paths]
        self._files: list[_File] = []
        for path in self.paths:
            self._files += _find_files(path, self.noted)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self._files)

    def batches(self, progress: Progress = ignore_progress) -> Iterator[pa.RecordBatch]:
        """Yield all rows that have a user and a text. `progress` gets bytes."""
        total = self.bytes
        done = 0
        self.rows = 0
        self.left_out = LeftOut()
        for file in self._files:
            with _explain_damage(file.path):
                for share, batch in self._read(file):
                    progress(done + int(share * file.size), total)
                    usable = self._select_usable(batch, file.path.name)
                    self.rows += len(usable)
                    yield usable
            done += file.size
        progress(total, total)

    def _read(self, file: _File) -> Read:
        kind = _find_kind(file.path)
        if kind == ".txt":
            return self._read_text(file)
        choose = partial(self._choose_columns, file.path)
        if kind in (".csv", ".tsv"):
            return read_csv(
                file.path,
                choose,
                left_out=self.left_out,
                noted=self.noted,
            )
        readers = {".parquet": read_parquet, ".arrow": read_arrow}
        read = readers.get(kind or "", read_json)
        return read(file.path, choose, self.left_out)

    def _read_text(self, file: _File) -> Read:
        """Read a text file: of public text, or of one user.

        Users are the folders below the named one, or else its files: bob/1.txt and bob/2.txt are
        both Bob's.
        """
        if not self.with_user:
            return read_paragraphs(file.path, self.left_out)
        name = file.path.name
        inside = file.path.relative_to(file.folder) if file.folder else PurePath(name)
        if not _is_utf8(str(inside)):
            self.left_out.add("files whose names are not UTF-8", where=_spell_out(str(inside)))
            return iter(())
        if len(inside.parts) > 1:
            user = inside.parts[0]
            name_of = FOLDER_NAMES
        else:
            user = sub(r"(?i)\.txt(\.\w+)?$", "", name)
            name_of = FILE_NAMES
        self.read_columns[name_of] = None
        self._note_role("user", name_of)
        return read_messages(
            file.path,
            user=user,
            name=str(inside),
            left_out=self.left_out,
        )

    def _choose_columns(self, path: Place, names: list[str]) -> Columns:
        columns = self.columns.resolve(names, path, self.with_user)
        self.read_columns.update(dict.fromkeys(columns.names))
        for role in USUAL:
            self._note_role(role, getattr(columns, role))
        return columns

    def _note_role(self, role: str, name: str | None) -> None:
        if name is not None and name not in self.roles[role]:
            self.roles[role].append(name)

    def _select_usable(self, batch: Batch, file: str) -> pa.RecordBatch:
        """Return the rows that can be used; count the others."""
        columns = batch.columns
        sieve = _Sieve(batch, file, self.left_out)
        user = sieve.column(columns.user)
        text = sieve.column(columns.text)
        time = sieve.column(columns.time)
        for name in columns.sensitive:
            sieve.drop("rows flagged sensitive", _is_flagged(sieve.column(name)))
        if self.with_user:
            sieve.drop("rows without a user", _is_blank(user))
        sieve.drop("rows without text", _is_blank(text))
        too_long = f"texts longer than {LONGEST // 2**20} MB"
        sieve.drop(too_long, _is_too_long(text))
        return sieve.filter(pa.record_batch([user, text, time], schema=ROWS))


class _Sieve:
    """Which rows of a batch are kept, and a count of the others, with the first place."""

    def __init__(self, batch: Batch, file: str, left_out: LeftOut) -> None:
        self._batch = batch
        self._file = file
        self._left_out = left_out
        self._length = len(next(iter(batch.strings.values())))
        self._kept: Any = pa.array([True] * self._length, pa.bool_())

    def column(self, name: str | None) -> Any:
        """Return the strings of a column; nulls if the file has none."""
        return self._batch.strings[name] if name else pa.nulls(self._length, pa.string())

    def drop(self, reason: str, which: Any) -> None:
        dropped = pc.and_(which, self._kept)
        count = pc.sum(dropped).as_py()
        if count:
            first = self._batch.place(pc.index(dropped, True).as_py())
            self._left_out.add(reason, count, f"{self._file}, {first}")
            self._kept = pc.and_not(self._kept, dropped)

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if pc.all(self._kept).as_py() else rows.filter(self._kept)


def _is_flagged(flags: Any) -> Any:
    """Mark values that are true, whatever they are written as."""
    lowered = pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(flags, "")))
    return pc.invert(pc.is_in(lowered, pa.array(NOT_FLAGGED)))


def _is_blank(strings: Any) -> Any:
    """Mark strings that are empty, or only white space and control characters."""
    return pc.fill_null(pc.match_substring_regex(strings, r"^[\s\pC]*$"), True)


def _is_too_long(texts: Any) -> Any:
    return pc.greater(pc.fill_null(pc.binary_length(texts), 0), LONGEST)


@contextmanager
def _explain_damage(path: Place) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        reason = (str(error) or type(error).__name__).split("\n")[0].rstrip(".")
        raise DataError(
            f"{path} is damaged or incomplete ({reason}); get it again, or leave it out"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "; unpack it first: zstd -d --long=31" if path.suffix == ".zst" else ""
        raise DataError(f"{path} cannot be read: {reason}{hint}") from None


def _is_utf8(name: str) -> bool:
    """Tell a name from one with bytes that are not UTF-8, which no id can hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _spell_out(name: str) -> str:
    """Return a name with an escape for each byte that is not UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _find_files(path: Any, noted: LeftOut) -> list[_File]:
    """Return the files to read at a path, sorted by name, so that the order of reading is fixed."""
    if path.is_dir():
        if isinstance(path, Path):
            _check_not_ours(path)
        inside = _choose_files(path, noted)
        return [_File(path=file, folder=path, size=file.stat().st_size) for file in inside]
    if not path.is_file():
        raise DataError(f"{path} does not exist: name a file or folder of text")
    if _find_kind(path) is None:
        kinds = f"{' '.join(TABLES)} .txt (and .gz .bz2 .xz .zst of all but Parquet and Arrow)"
        raise DataError(f"{path} is not of a kind that can be read; save it as one of {kinds}")
    return [_File(path=path, folder=None, size=path.stat().st_size)]


def _choose_files(folder: Any, noted: LeftOut) -> list[Any]:
    """Return the tables in a folder, or else its text files; note the others."""
    inside = _list_files(folder)
    tables = [file for file in inside if _find_kind(file) in TABLES]
    texts = [file for file in inside if _find_kind(file) == ".txt"]
    if tables and texts:
        raise DataError(
            f"{folder} holds tables ({tables[0].name}) and text files ({texts[0].name}); name files"
            " of one kind"
        )
    if not tables and not texts:
        raise DataError(
            f"{folder} is a folder without text; put files into it ({' '.join(TABLES)} or .txt), or"
            " name another"
        )
    others = [file for file in inside if _find_kind(file) is None]
    if others:
        noted.add("files of other kinds, not read", len(others), others[0].name)
    return tables or texts


def _check_not_ours(folder: Path) -> None:
    """Refuse a folder that taciturn wrote in place of one of text."""
    for name in OURS:
        if (folder / name).exists():
            raise DataError(
                f"{folder} is {HOLDS[name]}, not text: name the files or the folder that people's"
                " text is in"
            )


def _list_files(folder: Any) -> list[Any]:
    """Return the files in a folder, sorted by name, less those that are hidden."""
    files = [file for file in folder.rglob("*") if not _is_hidden(file, folder) and file.is_file()]
    files.sort()
    if any(_find_kind(file) == ".arrow" for file in files):
        return [file for file in files if file.name not in ABOUT]
    return files


def _is_hidden(file: Any, folder: Any) -> bool:
    return any(part.startswith(HIDDEN) for part in file.relative_to(folder).parts)


def _find_kind(path: Place) -> str | None:
    """Return the ending by which a file is read, or None if it is not of text."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
        if not suffixes or suffixes[-1] not in KINDS:
            # Reddit's dumps are called RC_2015-01.zst.
            return ".jsonl"
    return suffixes[-1] if suffixes and suffixes[-1] in KINDS else None
