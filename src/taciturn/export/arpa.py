"""N-gram models as ARPA files, which Presage, fcitx, KenLM, SRILM and IRSTLM read.

They are text: one n-gram a line, logarithms to base 10.
"""

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from taciturn.core import BEGIN, END, PADDING, UNKNOWN
from taciturn.data.vocabulary import SPECIAL as NAMES
from taciturn.data.vocabulary import DataError
from taciturn.files import write_atomically
from taciturn.models.ngram import NEVER, NONE, Level, NGram, followers, join_keys, split_keys

# How ARPA files spell the special tokens, and which ids we give to either spelling.
SPECIAL = {UNKNOWN: "<unk>", BEGIN: "<s>", END: "</s>"}
IDS = {
    b"<UNK>": UNKNOWN,
    b"<s>": BEGIN,
    b"</s>": END,
    **{name.encode(): place for place, name in enumerate(NAMES)},
}
# ARPA files write this for the logarithm of 0.
IMPOSSIBLE = -99.0
# The logarithms of a special token that is not in a file.
ABSENT = (-math.inf, 0.0)
MISSING = "the n-gram of all these words but the last is not in the file"
REPEATED = "this n-gram is here for the second time"
# The n-grams in memory at a time.
BLOCK = 100_000
LN10 = math.log(10)


class Entry(NamedTuple):
    """A line of an ARPA file: an n-gram, with logarithms to base 10."""

    words: list[bytes]
    probability: float
    backoff: float


def write_arpa(path: Path, model: NGram, words: Sequence[str], comments: Sequence[str]) -> None:
    """Write a file atomically, with comments at its top."""
    if len(words) != model.vocabulary:
        raise DataError(
            f"the model has {model.vocabulary} words and the list {len(words)}: they do not belong"
            " together"
        )
    names = ["<pad>", *arpa_words(words)]
    _check_names(names)
    parts = _write_parts(model, np.array(names, object), comments)
    write_atomically(path, (part.encode() for part in parts))


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that a file would not keep apart."""
    if len(set(names)) != len(names):
        raise DataError(
            "a word is in the list twice, or has the name of a special token (<s>, </s>, <unk>)"
        )
    for name in names:
        # Readers split lines at gaps of ASCII; other gaps are harmless.
        if name.encode().split() != [name.encode()]:
            raise DataError(
                f"an ARPA file cannot hold the word {name!r}: gaps separate words there"
            )


def arpa_words(words: Sequence[str]) -> list[str]:
    """Spell words as the file does.

    It has its own names for special tokens, and none for PADDING.
    """
    return [SPECIAL.get(place, word) for place, word in enumerate(words) if place != PADDING]


def _write_parts(model: NGram, names: np.ndarray, comments: Sequence[str]) -> Iterator[str]:
    """Yield a file's header, its n-grams, a block at a time, and its end."""
    levels = [level for level in model.levels if len(level.keys)]
    yield from _write_header(levels, comments)
    for n in range(1, len(levels) + 1):
        yield f"\n\\{n}-grams:\n"
        is_last = n == len(levels)
        yield from _write_level(levels[:n], names, model.vocabulary, with_backoff=not is_last)
    yield "\n\\end\\\n"


def _write_level(
    levels: Sequence[Level], names: np.ndarray, vocabulary: int, with_backoff: bool
) -> Iterator[str]:
    """Yield the lines of the last of the levels, a block at a time."""
    first = PADDING + 1 if len(levels) == 1 else 0
    for start in range(first, len(levels[-1].keys), BLOCK):
        spelled = _spell_block(levels, start, names, vocabulary)
        yield _format_block(levels[-1], start, spelled, with_backoff=with_backoff)


def _write_header(levels: Sequence[Level], comments: Sequence[str]) -> Iterator[str]:
    for comment in comments:
        for line in comment.splitlines():
            yield f"# {line}\n"
    yield "\n\\data\\\n"
    for n, level in enumerate(levels, 1):
        # PADDING is not in the file.
        size = len(level.keys) - 1 if n == 1 else len(level.keys)
        yield f"ngram {n}={size}\n"


def _spell_block(
    levels: Sequence[Level], start: int, names: np.ndarray, vocabulary: int
) -> np.ndarray:
    """Return the words of some n-grams of the last of the levels, as text."""
    *shorter, level = levels
    contexts, words = split_keys(level.keys[start : start + BLOCK], vocabulary)
    spelled = names[words]
    for above in reversed(shorter):
        contexts, words = split_keys(above.keys[contexts], vocabulary)
        spelled = names[words] + (" " + spelled)
    return spelled


def _format_block(level: Level, start: int, spelled: np.ndarray, with_backoff: bool) -> str:
    """Format some n-grams of a level as lines."""
    block = slice(start, start + BLOCK)
    probabilities = level.probability[block] / LN10
    # A sum that was rounded up must not make a probability exceed 1, which KenLM refuses.
    probabilities = np.clip(probabilities, IMPOSSIBLE, 0)
    lines = []
    if with_backoff:
        backoffs = level.backoff[block] / LN10
        columns = (probabilities.tolist(), spelled, backoffs.tolist())
        for probability, words, backoff in zip(*columns, strict=True):
            lines.append(f"{probability:.7g}\t{words}\t{backoff:.7g}\n")
    else:
        for probability, words in zip(probabilities.tolist(), spelled, strict=True):
            lines.append(f"{probability:.7g}\t{words}\n")
    return "".join(lines)


def read_arpa(path: Path) -> tuple[NGram, list[str]]:
    """Read a model from any ARPA file, and its words.

    The special tokens come first, then the likeliest. Without <unk> or </s> in the file, unknown
    words, or ends, are impossible. N-grams that run over the end of a message are left out.
    """
    with path.open("rb") as file:
        lines = _Lines(path, file)
        sizes = _read_sizes(lines)
        if not sizes:
            raise lines.error("there are no n-grams in this file")
        level, words = _read_unigrams(lines, sizes[0])
        ids = {word.encode(): place for place, word in enumerate(words)} | IDS
        levels = [level]
        for n, size in enumerate(sizes[1:], 2):
            lines.expect(f"\\{n}-grams:")
            level = _read_longer(
                lines,
                n=n,
                size=size,
                ids=ids,
                levels=levels,
            )
            levels.append(level)
        lines.expect("\\end\\")
    levels[-1] = levels[-1]._replace(backoff=NONE)
    return NGram(tuple(levels), len(words)), words


class _Lines:
    """The lines that are not empty, and the current position."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.number = 0
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self.number += 1
            content = line.strip()
            if content and not content.startswith(b"#"):
                yield content

    def expect(self, wanted: str) -> None:
        line = next(iter(self), None)
        if line != wanted.encode():
            raise self.error(f"expected {wanted}, found {_quote(line)}")

    def error(self, reason: str, number: int | None = None) -> DataError:
        return DataError(f"{self.path}, line {number or self.number}: {reason}")


def _quote(line: bytes | None) -> str:
    """Return the beginning of a line, as an error shows it."""
    return "the end of the file" if line is None else repr(line[:60].decode(errors="replace"))


def _read_sizes(lines: _Lines) -> list[int]:
    """Return the number of n-grams of each length that the file declares."""
    if not any(line == b"\\data\\" for line in lines):
        raise lines.error("there is no \\data\\ in this file: it is not an ARPA file")
    sizes = []
    for line in lines:
        if line == b"\\1-grams:":
            return sizes
        match = re.fullmatch(rb"ngram\s+(\d+)\s*=\s*(\d+)", line)
        if not match or int(match[1]) != len(sizes) + 1:
            raise lines.error(
                f"expected 'ngram {len(sizes) + 1}=' with a number, or \\1-grams:, found"
                f" {_quote(line)}"
            )
        sizes.append(int(match[2]))
    raise lines.error("the file ends before its n-grams begin")


def _read_entries(lines: _Lines, n: int, size: int) -> Iterator[Entry]:
    """Yield `size` n-grams."""
    read = 0
    for read, line in enumerate(islice(lines, size), 1):
        entry = _parse_entry(line, n)
        if entry is None:
            raise lines.error(
                f"expected number {read:,} of {size:,} n-grams of length {n} (a logarithm, words,"
                f" perhaps a weight), found {_quote(line)}"
            )
        yield entry
    if read < size:
        raise lines.error(f"the file ends after {read:,} of {size:,} n-grams of length {n}")


def _parse_entry(line: bytes, n: int) -> Entry | None:
    """Return the n-gram of a line, or None where it is not one."""
    fields = line.split()
    has_backoff = len(fields) == n + 2
    if len(fields) != n + 1 and not has_backoff:
        return None
    try:
        probability = float(fields[0])
        backoff = float(fields[-1]) if has_backoff else 0.0
    except ValueError:
        return None
    # NaN is neither.
    if not probability <= 0 or not backoff < math.inf:
        return None
    return Entry(
        words=fields[1 : n + 1],
        probability=probability,
        backoff=backoff,
    )


def _read_unigrams(lines: _Lines, size: int) -> tuple[Level, list[str]]:
    """Return all 1-grams, in our order, and their names."""
    logarithms = _read_names(lines, size)
    special = [logarithms.pop(place, ABSENT) for place in range(len(NAMES))]
    # The likeliest words come first.
    words = sorted(map(str, logarithms), key=lambda name: -logarithms[name][0])
    of_words = [logarithms[name] for name in words]
    values = np.array([*special, *of_words]) * LN10
    return _make_unigrams(values), [*NAMES, *words]


def _make_unigrams(values: np.ndarray) -> Level:
    """Return the first level, of logarithms [words, 2]."""
    values[NEVER, 0] = -math.inf
    probability, backoff = values.T.astype(np.float32)
    keys = np.arange(len(values), dtype=np.uint64)
    return Level(keys, probability, backoff)


def _read_names(lines: _Lines, size: int) -> dict[int | str, tuple[float, float]]:
    """Return the logarithms of all 1-grams, by word, or by id if they are special tokens."""
    logarithms: dict[int | str, tuple[float, float]] = {}
    for entry in _read_entries(lines, 1, size):
        (word,) = entry.words
        try:
            name = IDS.get(word, word.decode())
        except UnicodeDecodeError:
            raise lines.error(f"the word {_quote(word)} is not written in UTF-8") from None
        if name in logarithms:
            raise lines.error(f"the word {_quote(word)} is here for the second time")
        logarithms[name] = (entry.probability, entry.backoff)
    return logarithms


class _Table(NamedTuple):
    """The n-grams of one length, as a file has them, one in a row."""

    # int32 [n-grams, n].
    words: np.ndarray
    # float32 [n-grams, 2]: natural logarithms.
    values: np.ndarray
    # The lines they stand on, for errors that show only once all are read.
    lines: np.ndarray

    def select(self, rows: np.ndarray | slice) -> "_Table":
        return _Table(words=self.words[rows], values=self.values[rows], lines=self.lines[rows])


def _read_table(lines: _Lines, *, n: int, size: int, ids: dict[bytes, int]) -> _Table:
    words = array("i")
    values = array("f")
    numbers = array("q")
    for entry in _read_entries(lines, n, size):
        try:
            words.extend([ids[name] for name in entry.words])
        except KeyError as error:
            word = _quote(error.args[0])
            raise lines.error(f"the word {word} is not among the 1-grams") from None
        values.append(entry.probability * LN10)
        values.append(entry.backoff * LN10)
        numbers.append(lines.number)
    return _Table(
        words=np.array(words, np.int32).reshape(-1, n),
        values=np.array(values, np.float32).reshape(-1, 2),
        lines=np.array(numbers, np.int64),
    )


def _read_longer(
    lines: _Lines, *, n: int, size: int, ids: dict[bytes, int], levels: Sequence[Level]
) -> Level:
    """Return the n-grams of one length above the first, sorted."""
    table = _read_table(lines, n=n, size=size, ids=ids)
    table = table.select(_is_within_message(table.words))
    contexts = _find_contexts(table.words, levels)
    _check_none(contexts < 0, table, lines=lines, reason=MISSING)
    keys = join_keys(contexts, table.words[:, -1], len(levels[0].keys))
    by_key = np.argsort(keys, kind="stable")
    return _make_level(keys[by_key], table.select(by_key), lines)


def _make_level(keys: np.ndarray, table: _Table, lines: _Lines) -> Level:
    """Return the level of n-grams that are sorted by key."""
    is_repeated = keys[1:] == keys[:-1]
    repetitions = table.select(slice(1, None))
    _check_none(is_repeated, repetitions, lines=lines, reason=REPEATED)
    probability, backoff = table.values.T.copy()
    return Level(keys, probability, backoff)


def _find_contexts(words: np.ndarray, levels: Sequence[Level]) -> np.ndarray:
    """Return the place of each n-gram without its last word; negative where it is missing."""
    vocabulary = len(levels[0].keys)
    contexts = words[:, 0]
    for level, column in zip(levels[1:], words.T[1:], strict=False):
        contexts = followers(level.keys, contexts, column, vocabulary)
    return contexts


def _check_none(is_wrong: np.ndarray, table: _Table, *, lines: _Lines, reason: str) -> None:
    """Refuse a file at the first n-gram of a table that is wrong."""
    if np.any(is_wrong):
        raise lines.error(reason, table.lines[np.argmax(is_wrong)])


def _is_within_message(table: np.ndarray) -> np.ndarray:
    """Tell whether an n-gram can be typed: it does not run over the end of a message."""
    starts_late = np.isin(table[:, 1:], NEVER).any(1)
    ends_early = (table[:, :-1] == END).any(1)
    is_padded = table[:, 0] == PADDING
    return ~starts_late & ~ends_early & ~is_padded
