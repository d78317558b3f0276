"""Raw text from anywhere as one stream of rows (user, text, time), all strings.

    a table   .parquet  .arrow  .csv  .tsv  .jsonl  .ndjson, the last four also packed as .gz .bz2
    .xz .zst; columns by name a folder  of tables (the shards that Spark or BigQuery write), or of
    .txt files, one per user, one message a line elsewhere all of these at an address: s3://…,
    gs://…, or any that fsspec knows

A row that cannot be used is left out and counted, with the first place; anything that makes the
rest of a file unsure stops the build.
"""

import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from re import sub
from typing import Any

import pyarrow as pa
import pyarrow.compute

from taciturn.data.columns import LONGEST, Batch, Columns, LeftOut
from taciturn.data.places import Place, place
from taciturn.data.readers import (
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

# its functions are made at run time, so type checkers do not know them
pc: Any = pyarrow.compute
ROWS = pa.schema({"user": pa.string(), "text": pa.string(), "time": pa.string()})
TABLES = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")
# what Hugging Face writes beside its .arrow files
ABOUT = (
    "dataset_dict.json",
    "dataset_info.json",
    "state.json",
)
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


@dataclass
class Source:
    """Files to read. After reading, `rows` and `left_out` say what was found."""

    paths: Sequence[Path | Place]
    columns: Columns = field(default_factory=Columns)
    # public text has none
    with_user: bool = True
    # that can be used
    rows: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)
    # read, but worth a note
    noted: LeftOut = field(default_factory=LeftOut)
    # for the record; no others are ever looked at
    read_columns: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paths = [place(path) if isinstance(path, Path) else path for path in self.paths]
        self._files = [found for path in self.paths for found in _files(path, self.noted)]
        self._sizes = [file.stat().st_size for _, file in self._files]

    @property
    def bytes(self) -> int:
        return sum(self._sizes)

    def batches(self, progress: Progress = ignore_progress) -> Iterator[pa.RecordBatch]:
        """Yield all rows that have a user and a text. `progress` gets bytes."""
        done, total = 0, self.bytes
        self.rows, self.left_out = 0, LeftOut()
        for (top, path), size in zip(self._files, self._sizes, strict=True):
            try:
                for share, batch in self._read(top, path):
                    progress(done + int(share * size), total)
                    usable = self._usable(batch, path)
                    self.rows += len(usable)
                    yield usable
            except DAMAGE as error:
                reason = (str(error) or type(error).__name__).split("\n")[0].rstrip(".")
                raise DataError(
                    f"{path} is damaged or incomplete ({reason}); get it again, or leave it out"
                ) from None
            except OSError as error:
                hint = "; unpack it first: zstd -d --long=31" if path.suffix == ".zst" else ""
                raise DataError(
                    f"{path} cannot be read: {(error.strerror or str(error)).lower()}{hint}"
                ) from None
            done += size
        progress(total, total)

    def _read(self, folder: Any, path: Place) -> Iterator[tuple[float, Batch]]:
        kind = _kind(path)
        if kind == ".txt" and not self.with_user:
            return read_paragraphs(path, self.left_out)
        if kind == ".txt":
            inside = path.relative_to(folder) if folder else PurePath(path.name)
            # Users are the folders below the named one, or else its files: bob/1.txt and bob/2.txt
            # are both Bob's.
            user = (
                inside.parts[0]
                if len(inside.parts) > 1
                else sub(r"(?i)\.txt(\.\w+)?$", "", path.name)
            )
            self.read_columns[
                "the name of the folder" if len(inside.parts) > 1 else "the name of the file"
            ] = None
            return read_messages(path, user, str(inside), self.left_out)

        def choose(names: list[str]) -> Columns:
            columns = self.columns.resolve(names, path, self.with_user)
            self.read_columns.update(dict.fromkeys(columns.names))
            return columns

        if kind in (".csv", ".tsv"):
            return read_csv(path, choose, self.left_out, self.noted)
        return {".parquet": read_parquet, ".arrow": read_arrow}.get(kind or "", read_json)(
            path, choose, self.left_out
        )

    def _usable(self, batch: Batch, path: Place) -> pa.RecordBatch:
        """Return the rows that can be used; count the others."""
        columns, strings = batch.columns, batch.strings
        length = len(next(iter(strings.values())))
        user, text, time = (
            strings[name] if name else pa.nulls(length, pa.string())
            for name in (columns.user, columns.text, columns.time)
        )
        keep = pa.array([True] * length, pa.bool_())

        def drop(reason: str, which: Any) -> None:
            nonlocal keep
            which = pc.and_(which, keep)
            count = pc.sum(which).as_py()
            if count:
                self.left_out.add(
                    reason, count, f"{path.name}, {batch.place(pc.index(which, True).as_py())}"
                )
                keep = pc.and_not(keep, which)

        for flag in columns.sensitive:
            lowered = pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(strings[flag], "")))
            drop("rows flagged sensitive", pc.invert(pc.is_in(lowered, pa.array(NOT_FLAGGED))))
        if self.with_user:
            drop("rows without a user", _blank(user))
        drop("rows without text", _blank(text))
        too_long = pc.greater(pc.fill_null(pc.binary_length(text), 0), LONGEST)
        drop(f"texts longer than {LONGEST // 2**20} MB", too_long)
        table = pa.record_batch([user, text, time], schema=ROWS)
        return table if pc.all(keep).as_py() else table.filter(keep)


def _files(path: Any, noted: LeftOut) -> list[tuple[Place | None, Place]]:
    """Return (folder it was found in, file), sorted by name, so that the order of reading is
    fixed.
    """
    if path.is_file():
        if _kind(path) is None:
            kinds = f"{' '.join(TABLES)} .txt (and .gz .bz2 .xz .zst of all but Parquet and Arrow)"
            raise DataError(f"{path} is not of a kind that can be read; save it as one of {kinds}")
        return [(None, path)]
    if not path.is_dir():
        raise DataError(f"{path} does not exist: name a file or folder of text")
    names = ("manifest.json", "about.json", "recipe.toml") if isinstance(path, Path) else ()
    if kind := next((HOLDS[name] for name in names if (path / name).exists()), None):
        raise DataError(
            f"{path} is {kind}, not text: name the files or the folder that people's text is in"
        )
    # such as Spark's _SUCCESS
    hidden = (".", "_")
    found = (
        one
        for one in path.rglob("*")
        if not any(part.startswith(hidden) for part in one.relative_to(path).parts)
    )
    inside = sorted(one for one in found if one.is_file())
    if any(_kind(one) == ".arrow" for one in inside):
        inside = [one for one in inside if one.name not in ABOUT]
    tables, texts = (
        [one for one in inside if _kind(one) in kinds] for kinds in (TABLES, (".txt",))
    )
    if tables and texts:
        raise DataError(
            f"{path} holds tables ({tables[0].name}) and text files ({texts[0].name}); name files"
            " of one kind"
        )
    if not tables and not texts:
        raise DataError(
            f"{path} is a folder without text; put files into it ({' '.join(TABLES)} or .txt), or"
            " name another"
        )
    others = [one for one in inside if _kind(one) is None]
    noted.add("files of other kinds, not read", len(others), others[0].name if others else "")
    return [(path, one) for one in tables or texts]


def _kind(path: Place) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".bz2", ".xz", ".zst"):
        suffixes.pop()
        if not suffixes or suffixes[-1] not in (*TABLES, ".txt"):
            # Reddit's dumps are called RC_2015-01.zst
            return ".jsonl"
    return suffixes[-1] if suffixes and suffixes[-1] in (*TABLES, ".txt") else None


def _blank(strings: Any) -> Any:
    """Mark strings that are empty, or only white space and control characters."""
    return pc.fill_null(pc.match_substring_regex(strings, r"^[\s\pC]*$"), True)
