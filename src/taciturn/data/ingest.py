"""From rows of (user, text) to a population: grouped by user out of core, tokenised on every core, written as it comes.

The same text gives the same population, byte for byte, whatever the files, their order or the number of cores: a user's messages are
taken in the order of their times, or, without times, of a hash of their text; users in the order of a hash of their ids. Everything done
to a user's text depends on that user alone (repeats are looked for *within* a user, never across), so that nobody can change what another
one contributes.
"""

import errno
import os
import signal
import tempfile
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from taciturn.data.population import (
    Population,
    PopulationError,
    PopulationWriter,
    hashed_id,
    position_key,
    remembered_opt_outs,
    writing_population,
)
from taciturn.data.scrub import scrub
from taciturn.data.sources import ROWS, Source
from taciturn.data.texts import SHARD_TOKENS, token_type
from taciturn.data.vocabulary import END, UNKNOWN, DataError, Vocabulary

MEMORY = "512MB"  # of the sorting; it spills to disk beyond
PIECE_ROWS = 8192
MOST_OF_ONE_USER = 2**26  # bytes of text; whatever a user has beyond is not looked at
SMALL = 2**23  # bytes of sources for which other processes are not worth starting

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much

# One person may be spelled in several ways. Two people taken for one are both protected; one taken for two would not be.
# (Tables that once had a gap in a column of numbers write 7 as 7.0.)
_TRIMMED = r"""regexp_replace(nfc_normalize("user"), '^[\s\pC]+|[\s\pC]+$', '', 'g')"""
_ID = rf"""lower(regexp_replace({_TRIMMED}, '^(\d+)\.0$', '\1'))"""
_BY_USER = f"""
    SELECT id, "user", text FROM (SELECT {_ID} AS id, * FROM rows)
    ORDER BY CAST('0x' || substr(sha256(id), 1, 16) AS UBIGINT), id, TRY_CAST(time AS DOUBLE), time, md5_number(text), text
"""


@dataclass(frozen=True)
class Rules:
    """What is done to every user's text."""

    vocabulary: Vocabulary
    least_tokens: int = 50  # users with fewer are not trained on
    most_tokens: int = 1600  # longer ones are cut there (McMahan et al. 2018, Appendix B)
    held_out_share: float = 1 / 16
    scrub: bool = False

    def __post_init__(self) -> None:
        if self.most_tokens < self.least_tokens:
            raise DataError(
                f"users are cut at {self.most_tokens} tokens and left out below {self.least_tokens}: nobody would be left"
            )


def ingest(
    source: Source,
    folder: Path,
    rules: Rules,
    opt_outs: Iterable[str] = (),
    progress: Progress = lambda what, done, all: None,
    shard_tokens: int = SHARD_TOKENS,
) -> Population:
    """Build a population. `opt_outs` are users to leave out, now and in every later build in this folder."""
    with _full_disk_in_words(folder), writing_population(folder, rules.vocabulary, shard_tokens) as writer:
        check_protections(folder, source, rules)
        listed = user_ids(opt_outs)
        opted_out = remembered_opt_outs(folder, writer.salt, listed)
        tokenizer = _Tokenizer(rules, writer.salt, opted_out)
        tally: Counter[str] = Counter()
        with tempfile.TemporaryDirectory(dir=writer.text) as scratch:
            pieces = _whole_users(_by_user(source, Path(scratch), progress))
            done = 0
            for users in _mapped(tokenizer, pieces, source.bytes):
                tally += users.tally
                done += users.rows
                _write(writer, users)
                progress("tokenising", done, max(source.rows, 1))
        return writer.finish(_about(source, rules, len(opted_out)), _counts(source, tally))


def check_protections(folder: Path, source: Source, rules: Rules) -> None:
    """A population that is built again is protected no less than before."""
    try:
        before = Population(folder).manifest
    except DataError:
        return  # there is none, or none that could be read
    about = before["about"]
    if about.get("scrubbed") and not rules.scrub:
        raise PopulationError(f"{folder} was built with --scrub: say it again, or build a new folder")
    dropped = set(about.get("sensitive_columns", ())) - set(source.columns.sensitive)
    if dropped:
        raise PopulationError(
            f"{folder} was built with --sensitive-column {min(dropped)}: say it again, or build a new folder"
        )
    if before["ledger"] is not None and about.get("held_out_share", rules.held_out_share) != rules.held_out_share:
        raise PopulationError(
            f"{folder} has runs that held out a share of {about['held_out_share']:g}: with --held-out {rules.held_out_share:g} users "
            "they were trained on would pass for held out"
        )


def user_ids(spellings: Iterable[str]) -> list[str]:
    """The ids that these spellings of users stand for."""
    rows = pa.table({"user": pa.array(list(spellings), pa.string())})  # noqa: F841 (read by name)
    with duckdb.connect() as database:
        return [row[0] for row in database.sql(f"SELECT {_ID} FROM rows").fetchall()]


def _by_user(source: Source, scratch: Path, progress: Progress) -> Iterator[pa.RecordBatch]:
    """All rows, users one after another."""
    failures: list[Exception] = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from source.batches(lambda done, all: progress("reading", done, all))
        except Exception as error:  # the database would say it in its own words
            failures.append(error)
            raise

    rows = pa.RecordBatchReader.from_batches(ROWS, batches())
    settings: dict[str, Any] = {
        "memory_limit": MEMORY,
        "temp_directory": str(scratch),
        "preserve_insertion_order": "false",
    }
    try:
        with duckdb.connect(config=settings) as database:
            database.register("rows", rows)
            yield from database.sql(_BY_USER).to_arrow_reader(PIECE_ROWS)
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if failures:
            raise failures[0] from None
        if "No space left" in str(error) or "File too large" in str(error):
            raise OSError(errno.ENOSPC, "no space left") from None
        raise DataError(f"sorting the text by user failed: {str(error).splitlines()[0]}") from None


def _whole_users(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in pieces that never end within a user."""
    waiting: list[pa.RecordBatch] = []  # of the last user, who may go on in the next batch
    waiting_bytes = 0
    for batch in batches:
        if not len(batch):
            continue
        ids = batch.column("id")
        same = len(batch) - 1
        while same > 0 and ids[same - 1] == ids[len(batch) - 1]:
            same -= 1
        if waiting and ids[0] != waiting[-1].column("id")[0]:
            yield pa.Table.from_batches(waiting)
            waiting, waiting_bytes = [], 0
        if same > 0:
            yield pa.Table.from_batches([*waiting, batch.slice(0, same)])
            waiting, waiting_bytes = [], 0
        if waiting_bytes < MOST_OF_ONE_USER:
            waiting.append(batch.slice(same))
            waiting_bytes += batch.slice(same).nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


class _Users(NamedTuple):
    """Users of one piece, tokenised."""

    rows: int
    splits: list[str]
    ids: list[str]
    ends: np.ndarray
    tokens: np.ndarray
    tally: Counter[str]


class _Tokenizer:
    """Texts of whole users in, tokens out. Runs in any process."""

    def __init__(self, rules: Rules, salt: bytes, opted_out: frozenset[str]) -> None:
        self.rules, self._salt, self._opted_out = rules, salt, opted_out

    def __call__(self, piece: pa.Table) -> _Users:
        tally: Counter[str] = Counter()
        splits, ids, texts = [], [], []
        columns = (piece.column(name).to_pylist() for name in ("id", "user", "text"))
        for user, rows in groupby(zip(*columns, strict=True), key=lambda row: row[0]):
            spelled, messages = zip(*((row[1].strip(), row[2]) for row in rows), strict=True)
            hashed = hashed_id(self._salt, user)
            if hashed in self._opted_out:
                tally["left out: users who opted out"] += 1
                continue
            held_out = position_key(user)[0] < self.rules.held_out_share * 2**64
            tokens = self._tokens(messages, tally)
            if not tokens or (len(tokens) < self.rules.least_tokens and not held_out):
                tally[f"left out: users with fewer than {self.rules.least_tokens} tokens"] += 1
                continue
            tally["changed: users spelled in several ways, taken as one"] += len(set(spelled)) > 1
            split = "held_out" if held_out else "train"
            texts.append(np.array(tokens, token_type(len(self.rules.vocabulary))))
            tally[f"{split}_unknown"] += int(np.count_nonzero(texts[-1] == UNKNOWN))
            splits.append(split)
            ids.append(hashed)
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        return _Users(len(piece), splits, ids, ends, np.concatenate([np.zeros(0, np.uint16), *texts]), tally)

    def _tokens(self, messages: Iterable[str], tally: Counter[str]) -> list[int]:
        """One user's messages, each ended with <eos>, without repeats, cut at the maximum."""
        tokens: list[int] = []
        seen: set[str] = set()
        for message in messages:
            if message in seen:
                tally["left out: texts that repeat one of the same user"] += 1
                continue
            seen.add(message)
            if self.rules.scrub:
                message, removed = scrub(message)
                tally.update({f"scrubbed: {kind}": count for kind, count in removed.items()})
            words = self.rules.vocabulary.encode(message)
            if not words:
                tally["left out: texts without a word"] += 1
                continue
            tokens += words
            tokens.append(END)
            if len(tokens) > self.rules.most_tokens:
                tally[f"changed: users cut at {self.rules.most_tokens} tokens"] += 1
                return tokens[: self.rules.most_tokens]
        return tokens


_of_this_process: _Tokenizer | None = None


def _start(tokenizer: _Tokenizer) -> None:
    global _of_this_process
    _of_this_process = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others


def _tokenize_packed(packed: bytes) -> _Users:
    assert _of_this_process is not None
    return _of_this_process(pa.ipc.open_stream(packed).read_all())


def _mapped(tokenizer: _Tokenizer, pieces: Iterable[pa.Table], size: int) -> Iterator[_Users]:
    """Tokenise on every core, in order, a few pieces ahead."""
    processes = len(os.sched_getaffinity(0))
    if size < SMALL or processes == 1:
        yield from map(tokenizer, pieces)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _start, (tokenizer,)) as pool:
        ahead: deque[Any] = deque()
        try:
            for piece in pieces:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, piece.schema) as stream:
                    stream.write_table(piece)
                ahead.append(pool.submit(_tokenize_packed, sink.getvalue().to_pybytes()))
                if len(ahead) > 2 * processes:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except BrokenProcessPool:
            raise DataError(
                "a tokenising process was killed, most likely for want of memory; nothing was written"
            ) from None


def _write(writer: PopulationWriter, users: _Users) -> None:
    starts = [0, *users.ends[:-1]]
    for split, hashed, start, end in zip(users.splits, users.ids, starts, users.ends, strict=False):
        writer.add(split, hashed, users.tokens[start:end])


def _about(source: Source, rules: Rules, opted_out: int) -> dict[str, Any]:
    """What was done, for whoever must answer for it later."""
    return {
        "source": ", ".join(path.name for path in source.paths),
        "columns": list(source.read_columns),
        "least_tokens": rules.least_tokens,
        "most_tokens": rules.most_tokens,
        "held_out_share": rules.held_out_share,
        "scrubbed": rules.scrub,
        "sensitive_columns": list(source.columns.sensitive),
        "opt_outs": opted_out,
        "unicode": unicodedata.unidata_version,
    }


def _counts(source: Source, tally: Counter[str]) -> dict[str, Any]:
    def under(prefix: str) -> dict[str, int]:
        return {
            name.removeprefix(prefix): count
            for name, count in sorted(tally.items())
            if count and name.startswith(prefix)
        }

    return {
        "rows": source.rows,
        "left_out": source.left_out.counts | under("left out: "),
        "first_left_out": source.left_out.first,
        "changed": under("changed: "),
        "scrubbed": under("scrubbed: "),
        "unknown": {split: tally[f"{split}_unknown"] for split in ("train", "held_out")},
    }


@contextmanager
def _full_disk_in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise PopulationError(
                f"the disk of {folder} is full; a build needs about twice the size of the text while it sorts. Nothing was changed."
            ) from None
        raise
