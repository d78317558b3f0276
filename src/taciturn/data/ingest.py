"""From rows of (user, text) to a population: grouped by user out of core, tokenised on every core,
and streamed to disk.

The same text gives the same population, byte for byte, whatever the files, their order or the
number of cores. What is done to a user's text depends on that user alone (repeats are looked for
*within* a user), so no user can change what another contributes.
"""

import errno
import os
import signal
import tempfile
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from taciturn.core import END, UNKNOWN
from taciturn.data import grouping
from taciturn.data.grouping import Deal, group_small_files, groups, place_rows, read_batches
from taciturn.data.population import (
    Population,
    check_protections,
    hashed_id,
    remembered_opt_outs,
    writing_population,
)
from taciturn.data.scrub import scrub
from taciturn.data.sources import Source
from taciturn.data.token_shards import SHARD_TOKENS, token_type
from taciturn.data.users import user_id
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.progress import StageProgress, ignore_progress

# bytes of sources below which other processes are not worth starting
SMALL = 2**23
# characters of text read for each token that a user may have
LONGEST_WORD = 100

# Only the order is queried: texts do not go through the database.
_TIME = "nullif(trim(time), '')"
_ORDER = (
    f"SELECT number FROM rows ORDER BY position, id, TRY_CAST({_TIME} AS DOUBLE), {_TIME},"
    " md5_number(text)"
)


@dataclass(frozen=True)
class Rules:
    """What is done to every user's text."""

    vocabulary: Vocabulary
    # users with fewer are not trained on
    least_tokens: int = 50
    # longer texts are truncated (McMahan et al. 2018, Appendix B)
    most_tokens: int = 1600
    held_out_share: float = 1 / 16
    scrub: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share <= 0.9:
            raise DataError(
                f"--held-out must lie between 0 and 0.9, not {self.held_out_share}: leave it out"
                " for 1/16"
            )
        if self.most_tokens < self.least_tokens:
            cut = (
                f"users are cut at {self.most_tokens} tokens and left out below {self.least_tokens}"
            )
            raise DataError(
                f"{cut}, so no user would be left: lower --least-tokens, or raise --most-tokens"
            )


def ingest(
    source: Source,
    folder: Path,
    rules: Rules,
    opt_outs: Iterable[str] = (),
    progress: StageProgress = ignore_progress,
    shard_tokens: int = SHARD_TOKENS,
    same_people_as: Path | None = None,
) -> Population:
    """Build a population, as `populations.build_population` describes."""
    for path in source.paths:
        if isinstance(path, Path) and path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{path} lies inside --out {folder}; name another --out")
    writing = writing_population(folder, rules.vocabulary, shard_tokens, same_people_as)
    with _full_disk_in_words(folder), writing as writer:
        check_protections(
            folder,
            same_people_as or folder,
            rules.scrub,
            source.columns.sensitive,
            rules.held_out_share,
        )
        opted_out = remembered_opt_outs(folder, writer.salt, filter(None, map(user_id, opt_outs)))
        tokenizer = _Tokenizer(rules, writer.salt, opted_out)
        tally: Counter[str] = Counter()
        with tempfile.TemporaryDirectory(dir=writer.text) as scratch:
            files = _dealt(source, Path(scratch), progress)
            parts, done = (
                group_small_files(part for file in files for part in groups(file, tally)),
                0,
            )
            for piece in _mapped(tokenizer, parts, source.bytes):
                tally += piece.tally
                done += piece.rows
                for user in piece.users:
                    writer.add(*user)
                progress("tokenising", done, max(source.rows, 1))
        return writer.finish(*_record(source, rules, len(opted_out), tally))


def _dealt(source: Source, scratch: Path, progress: StageProgress) -> list[Path]:
    """Write all rows to disk, in files of users with neighbouring positions."""
    deal = Deal(scratch)
    for batch in source.batches(lambda done, all: progress("reading", done, all)):
        rows, nobody = place_rows(batch)
        source.left_out.add("rows without a user", nobody)
        source.rows -= nobody
        deal.add(rows)
    return deal.close()


class _Tokenized(NamedTuple):
    rows: int
    # split, hashed id and tokens of each
    users: list[tuple[str, str, np.ndarray]]
    tally: Counter[str]


class _Tokenizer:
    """Turn the texts of whole users into tokens. Runs in any process."""

    def __init__(self, rules: Rules, salt: bytes, opted_out: frozenset[str]) -> None:
        self.rules, self._salt, self._opted_out = rules, salt, opted_out

    def __call__(self, files: list[Path]) -> _Tokenized:
        piece = _in_order(files)
        tally: Counter[str] = Counter()
        users: list[tuple[str, str, np.ndarray]] = []
        columns = (piece.column(name).to_pylist() for name in ("id", "position", "user", "text"))
        for (user, position), rows in groupby(zip(*columns, strict=True), key=lambda row: row[:2]):
            spelled, messages = zip(*((row[2].strip(), row[3]) for row in rows), strict=True)
            too_long = sum(map(len, messages)) > grouping.MOST_OF_ONE_USER // 4
            if (
                too_long
                and sum(len(message.encode()) for message in messages) > grouping.MOST_OF_ONE_USER
            ):
                tally[f"left out: {grouping.too_much()}"] += 1
                continue
            hashed = hashed_id(self._salt, user)
            if hashed in self._opted_out:
                tally["left out: users who opted out"] += 1
                continue
            held_out = position < self.rules.held_out_share * 2**64
            tokens = self._tokens(messages, tally)
            if not tokens or (len(tokens) < self.rules.least_tokens and not held_out):
                tally[f"left out: users with fewer than {self.rules.least_tokens} tokens"] += 1
                continue
            tally["changed: users spelled in several ways, taken as one"] += len(set(spelled)) > 1
            split = "held_out" if held_out else "train"
            tally[f"{split}_unknown"] += tokens.count(UNKNOWN)
            users.append((split, hashed, np.array(tokens, token_type(len(self.rules.vocabulary)))))
        return _Tokenized(len(piece), users, tally)

    def _tokens(self, messages: Iterable[str], tally: Counter[str]) -> list[int]:
        """Return one user's messages, each ended with <eos>, without repeats, truncated at the
        maximum.
        """
        tokens: list[int] = []
        seen: set[str] = set()
        for message in messages:
            if message in seen:
                tally["left out: texts that repeat one of the same user"] += 1
                continue
            seen.add(message)
            message = message[: LONGEST_WORD * self.rules.most_tokens]
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


def _in_order(files: list[Path]) -> pa.Table:
    """Return the rows of some files, users by position, messages by time or else by a hash of their
    text.
    """
    # not needed on a machine that only trains
    import duckdb

    rows = pa.Table.from_batches(read_batches(*files), grouping.DEALT)
    for file in files:
        # so that the disk holds the text once while it is sorted
        file.unlink()
    rows = rows.append_column("number", pa.array(np.arange(len(rows))))
    with duckdb.connect(config={"threads": 1, "memory_limit": "1GB"}) as database:
        database.register("rows", rows)
        order = database.sql(_ORDER).fetchnumpy()["number"]
    return rows.take(pa.array(order))


def _mapped(tokenizer: _Tokenizer, packs: Iterable[list[Path]], size: int) -> Iterator[_Tokenized]:
    """Tokenise on every core, in order, a few packs of files ahead."""
    processes = len(os.sched_getaffinity(0))
    if size < SMALL or processes == 1:
        yield from map(tokenizer, packs)
        return
    # the main process ends the others
    without_ctrl_c = (
        signal.signal,
        (signal.SIGINT, signal.SIG_IGN),
    )
    with ProcessPoolExecutor(processes, get_context("spawn"), *without_ctrl_c) as pool:
        ahead: deque[Future[_Tokenized]] = deque()
        try:
            for pack in packs:
                ahead.append(pool.submit(tokenizer, pack))
                if len(ahead) > 2 * processes:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except BrokenProcessPool:
            raise DataError(
                "a tokenising process was killed, most likely because memory ran out; nothing was"
                " changed"
            ) from None


def _record(
    source: Source, rules: Rules, opted_out: int, tally: Counter[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what was done and what was counted, for the record."""

    def under(prefix: str) -> dict[str, int]:
        return {
            name.removeprefix(prefix): count
            for name, count in sorted(tally.items())
            if count and name.startswith(prefix)
        }

    about = {
        "source": ", ".join(path.name for path in source.paths),
        "columns": list(source.read_columns),
    }
    about |= {
        name: getattr(rules, name) for name in ("least_tokens", "most_tokens", "held_out_share")
    } | {"scrubbed": rules.scrub}
    about |= {
        "sensitive_columns": list(source.columns.sensitive),
        "opt_outs": opted_out,
        "unicode": unicodedata.unidata_version,
    }
    left_out = {
        "left_out": source.left_out.counts | under("left out: "),
        "first_left_out": source.left_out.first,
    }
    changed = {
        "noted": source.noted.counts,
        "changed": under("changed: "),
        "scrubbed": under("scrubbed: "),
    }
    unknown = {split: tally[f"{split}_unknown"] for split in ("train", "held_out")}
    return about, {"rows": source.rows, **left_out, **changed, "unknown": unknown}


@contextmanager
def _full_disk_in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"the disk of {folder} is full; a build needs twice the size of the text. Nothing"
                " was changed."
            ) from None
        raise
