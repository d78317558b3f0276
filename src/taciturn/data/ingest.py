"""From rows of (user, text) to a population.

Rows are grouped by user out of core, tokenised on every core, and streamed to disk.

The same text gives the same population, byte for byte, whatever the files, their order or the
number of cores. What is done to a user's text depends only on that user (repeats are looked for
*within* a user), so no user can change what another contributes.
"""

import errno
import os
import signal
import tempfile
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from taciturn.core import END, UNKNOWN
from taciturn.data import grouping
from taciturn.data.grouping import Deal, group_small_files, place_rows, read_batches, split_file
from taciturn.data.population import (
    Population,
    PopulationWriter,
    check_protections,
    hashed_id,
    id_rule,
    remember_opt_outs,
    writing_population,
)
from taciturn.data.same_people import EarlierBuild, earlier_builds, same_split_as
from taciturn.data.scrub import scrub
from taciturn.data.sources import Source
from taciturn.data.tally import Tally
from taciturn.data.token_shards import SHARD_TOKENS, token_type
from taciturn.data.users import ID_RULE, first_user_id, position, possible_ids, user_id
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.progress import StageProgress, ignore_progress

# The bytes of sources below which other processes are not worth starting.
SMALL = 2**23
# The characters of text that are read for each token that a user may have.
LONGEST_WORD = 100

# Only the order is queried: texts do not go through the database.
_TIME = "nullif(trim(time), '')"
_ORDER = (
    f"SELECT number FROM rows ORDER BY position, id, TRY_CAST({_TIME} AS DOUBLE), {_TIME},"
    " md5_number(text)"
)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What is done to every user's text."""

    vocabulary: Vocabulary
    # Users with fewer are not trained on.
    least_tokens: int = 50
    # Longer texts are truncated (McMahan et al. 2018, Appendix B).
    most_tokens: int = 1600
    held_out_share: float = 1 / 16
    scrub: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share <= 0.9:
            raise DataError(
                f"`held_out` must lie between 0 and 0.9, not {self.held_out_share}: leave it out"
                " for 1/16"
            )
        if self.most_tokens < self.least_tokens:
            cut = (
                f"users are cut at {self.most_tokens} tokens and left out below {self.least_tokens}"
            )
            raise DataError(
                f"{cut}, so no user would be left: lower `least_tokens`, or raise `most_tokens`"
            )


def ingest(
    source: Source,
    folder: Path,
    rules: Rules,
    *,
    opt_outs: Iterable[str] = (),
    progress: StageProgress = ignore_progress,
    shard_tokens: int = SHARD_TOKENS,
    same_people_as: Path | None = None,
) -> Population:
    """Build a population, as `people.build_population` describes."""
    _check_apart(source, folder)
    writing = writing_population(
        folder,
        rules.vocabulary,
        shard_tokens=shard_tokens,
        same_people_as=same_people_as,
    )
    with _explain_full_disk(folder), writing as writer:
        check_protections(
            folder,
            with_runs=same_people_as or folder,
            scrub=rules.scrub,
            sensitive=source.columns.sensitive,
            held_out_share=rules.held_out_share,
        )
        rule = id_rule(folder)
        ids = chain.from_iterable(possible_ids(spelling, rule) for spelling in opt_outs)
        opted_out = remember_opt_outs(folder, writer.salt, ids)
        tokenizer = _Tokenizer(
            rules,
            salt=writer.salt,
            id_rule=rule,
            opted_out=opted_out,
        )
        earlier = earlier_builds(folder, same_people_as, opted_out)
        tally = _write_users(
            writer,
            source=source,
            tokenizer=tokenizer,
            earlier=earlier,
            progress=progress,
        )
        about = _describe_build(source, rules, len(opted_out))
        met_again = [build.count_met() for build in earlier]
        return writer.finish(
            about=about | {"same_split_as": same_split_as(folder)},
            counts=_count_build(source, tally) | {"met_again": met_again},
        )


def _check_apart(source: Source, folder: Path) -> None:
    """Refuse text that lies where the population is to be."""
    for path in source.paths:
        if isinstance(path, Path) and path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{path} lies inside `folder={folder}`; name another `folder`")


def _write_users(
    writer: PopulationWriter,
    *,
    source: Source,
    tokenizer: "_Tokenizer",
    earlier: Sequence[EarlierBuild],
    progress: StageProgress,
) -> Tally:
    """Write every user that a source has text of; return what was counted on the way.

    Other people than those of earlier builds under the ledger are refused.
    """
    tally = Tally()
    rows = 0
    with tempfile.TemporaryDirectory(dir=writer.text) as scratch:
        files = _distribute_rows(source, Path(scratch), progress)
        for build in earlier:
            for change in build.check_columns(source.roles):
                source.noted.add(change)
        packs = group_small_files(_split_files(files, tally))
        for piece in _tokenize_files(tokenizer, packs, source.bytes):
            tally.add(piece.tally)
            for user in piece.users:
                for build in earlier:
                    build.meet(user.possible_hashes)
                    if user.split == "held_out":
                        build.check_may_hold_out(user.hashed_id)
                if user.split is not None:
                    writer.add(user.split, user.hashed_id, user.tokens)
            rows += piece.rows
            progress("tokenising", rows, max(source.rows, 1))
    for build in earlier:
        build.check_met()
    return tally


def _split_files(files: Iterable[Path], tally: Tally) -> Iterator[Path]:
    for file in files:
        yield from split_file(file, tally)


def _distribute_rows(source: Source, scratch: Path, progress: StageProgress) -> list[Path]:
    """Write all rows to disk, in files of users with neighbouring positions."""
    deal = Deal(scratch)
    for batch in source.batches(partial(progress, "reading")):
        rows = place_rows(batch)
        without_user = len(batch) - len(rows)
        source.left_out.add("rows without a user", without_user)
        source.rows -= without_user
        deal.add(rows)
    return deal.close()


class _UserRows(NamedTuple):
    """What one user wrote, in order."""

    id: str
    # Of the user, one for each message.
    spellings: list[str]
    messages: list[str]


class _TokenizedUser(NamedTuple):
    # None if the user is left out.
    split: str | None
    hashed_id: str
    possible_hashes: frozenset[str]
    tokens: np.ndarray


class _Identity(NamedTuple):
    """Who a user is on disk."""

    # That the user is listed by.
    hashed_id: str
    # By which this user may have been listed, or have opted out.
    possible_hashes: frozenset[str]
    is_held_out: bool


class _Tokenized(NamedTuple):
    """The users of some files, and what was counted on the way."""

    rows: int
    users: list[_TokenizedUser]
    tally: Tally


class _Tokenizer:
    """Turn the texts of whole users into tokens. Runs in any process."""

    def __init__(
        self, rules: Rules, *, salt: bytes, id_rule: int, opted_out: frozenset[str]
    ) -> None:
        self.rules = rules
        self._salt = salt
        self._id_rule = id_rule
        self._opted_out = opted_out

    def __call__(self, files: list[Path]) -> _Tokenized:
        rows = _read_in_order(files)
        tally = Tally()
        users = []
        for user in _group_by_user(rows):
            users.append(self._tokenize_user(user, tally))
        return _Tokenized(
            rows=len(rows),
            users=users,
            tally=tally,
        )

    def _tokenize_user(self, user: _UserRows, tally: Tally) -> _TokenizedUser:
        """Return a user's tokens; count the reason and return none if the user is left out."""
        identity = self._identify(user)
        nobody = _TokenizedUser(
            split=None,
            hashed_id=identity.hashed_id,
            possible_hashes=identity.possible_hashes,
            tokens=np.zeros(0),
        )
        exclusion = self._find_exclusion(user, identity)
        if exclusion is not None:
            tally.left_out[exclusion] += 1
            return nobody
        tokens = self._tokenize(user.messages, tally)
        is_too_short = len(tokens) < self.rules.least_tokens and not identity.is_held_out
        if not tokens or is_too_short:
            tally.left_out[f"users with fewer than {self.rules.least_tokens} tokens"] += 1
            return nobody
        if len(set(user.spellings)) > 1:
            tally.changed["users spelled in several ways, taken as one"] += 1
        split = "held_out" if identity.is_held_out else "train"
        tally.unknown[split] += tokens.count(UNKNOWN)
        dtype = token_type(len(self.rules.vocabulary))
        return _TokenizedUser(
            split=split,
            hashed_id=identity.hashed_id,
            possible_hashes=identity.possible_hashes,
            tokens=np.array(tokens, dtype),
        )

    def _identify(self, user: _UserRows) -> _Identity:
        """Return who a user is on disk.

        One who was several users by an earlier rule is held out only if all of them were.
        """
        ids = {user.id}
        if self._id_rule < ID_RULE:
            first_ids = {first_user_id(spelling) for spelling in user.spellings} - {""}
            ids = first_ids or ids
        first, *others = ids
        # Nor may two users have one id: a character that neither rule knew parts them now.
        keeps_first = not others and user_id(first) == user.id
        own_id = first if keeps_first else user.id
        most = self.rules.held_out_share * 2**64
        return _Identity(
            hashed_id=hashed_id(self._salt, own_id),
            possible_hashes=frozenset(hashed_id(self._salt, id) for id in ids | {user.id}),
            is_held_out=all(position(id) < most for id in ids),
        )

    def _find_exclusion(self, user: _UserRows, identity: _Identity) -> str | None:
        """Return why a user is left out without a look at the words; None if they are not."""
        if _is_giant(user.messages):
            return grouping.describe_giants()
        has_opted_out = not identity.possible_hashes.isdisjoint(self._opted_out)
        return "users who opted out" if has_opted_out else None

    def _tokenize(self, messages: Iterable[str], tally: Tally) -> list[int]:
        """Return the tokens of one user's messages, each ended with <eos>.

        Repeats are left out, and the text is truncated at the maximum.
        """
        most = self.rules.most_tokens
        tokens: list[int] = []
        seen: set[str] = set()
        for message in messages:
            if message in seen:
                tally.left_out["texts that repeat one of the same user"] += 1
                continue
            seen.add(message)
            words = self._encode(message[: LONGEST_WORD * most], tally)
            if not words:
                tally.left_out["texts without a word"] += 1
                continue
            tokens += words
            tokens.append(END)
            if len(tokens) > most:
                tally.changed[f"users cut at {most} tokens"] += 1
                return tokens[:most]
        return tokens

    def _encode(self, message: str, tally: Tally) -> list[int]:
        if self.rules.scrub:
            message, removed = scrub(message)
            tally.scrubbed.update(removed)
        return self.rules.vocabulary.encode(message)


def _is_giant(messages: Sequence[str]) -> bool:
    """Tell whether a user has far too much text."""
    # A character has four bytes at most, so few texts need to be encoded.
    if sum(map(len, messages)) <= grouping.MOST_OF_ONE_USER // 4:
        return False
    return sum(len(message.encode()) for message in messages) > grouping.MOST_OF_ONE_USER


def _read_in_order(files: list[Path]) -> pa.Table:
    """Return the rows of some files in order.

    Users are in the order of their positions; messages are ordered by time, or else by a hash of
    their text.
    """
    rows = pa.Table.from_batches(read_batches(*files), grouping.PLACED)
    for file in files:
        # So that the disk holds the text once while it is sorted.
        file.unlink()
    return rows.take(pa.array(_find_order(rows)))


def _find_order(rows: pa.Table) -> np.ndarray:
    # Imported only here, as it is not needed on a machine that only trains.
    import duckdb

    numbered = rows.append_column("number", pa.array(np.arange(len(rows))))
    with duckdb.connect(config={"threads": 1, "memory_limit": "1GB"}) as database:
        database.register("rows", numbered)
        return database.sql(_ORDER).fetchnumpy()["number"]


def _group_by_user(rows: pa.Table) -> Iterator[_UserRows]:
    """Yield the users of rows that are in order."""
    columns = [rows.column(name).to_pylist() for name in ("id", "user", "text")]
    records = zip(*columns, strict=True)
    for id, of_user in groupby(records, key=itemgetter(0)):
        user = _UserRows(
            id=id,
            spellings=[],
            messages=[],
        )
        for _, spelling, message in of_user:
            user.spellings.append(spelling.strip())
            user.messages.append(message)
        yield user


def _tokenize_files(
    tokenizer: _Tokenizer, packs: Iterable[list[Path]], size: int
) -> Iterator[_Tokenized]:
    """Tokenise packs of files on every core, in order, a few packs ahead.

    Args:
        tokenizer: of a pack.
        packs: of files that hold whole users.
        size: of the sources, in bytes.
    """
    processes = len(os.sched_getaffinity(0))
    if size < SMALL or processes == 1:
        yield from map(tokenizer, packs)
        return
    pool = ProcessPoolExecutor(
        max_workers=processes,
        mp_context=get_context("spawn"),
        # Ctrl-C is for the main process, which ends the others.
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    with pool:
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
                "a tokenising process ended, most likely because memory ran out, or because a"
                ' script builds people outside of `if __name__ == "__main__":`; nothing was changed'
            ) from None


def _describe_build(source: Source, rules: Rules, opted_out: int) -> dict[str, Any]:
    """Return what was done, for the record."""
    return {
        "source": ", ".join(path.name for path in source.paths),
        "columns": list(source.read_columns),
        "roles": source.roles,
        "least_tokens": rules.least_tokens,
        "most_tokens": rules.most_tokens,
        "held_out_share": rules.held_out_share,
        "scrubbed": rules.scrub,
        "sensitive_columns": list(source.columns.sensitive),
        "opt_outs": opted_out,
        "unicode": unicodedata.unidata_version,
    }


def _count_build(source: Source, tally: Tally) -> dict[str, Any]:
    """Return what was counted, for the record."""
    return {
        "rows": source.rows,
        "left_out": source.left_out.counts | _sort_counts(tally.left_out),
        "first_left_out": source.left_out.first,
        "noted": source.noted.counts,
        "changed": _sort_counts(tally.changed),
        "scrubbed": _sort_counts(tally.scrubbed),
        "unknown": {split: tally.unknown[split] for split in ("train", "held_out")},
    }


def _sort_counts(counts: Counter[str]) -> dict[str, int]:
    """Return the counts that are not 0, sorted by name."""
    return {name: count for name, count in sorted(counts.items()) if count}


@contextmanager
def _explain_full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"the disk of {folder} is full; a build needs twice the size of the text. Nothing"
                " was changed."
            ) from None
        raise
