"""N-gram models as ARPA files, which Presage, fcitx, KenLM, SRILM and IRSTLM read: text, one n-gram
a line, logarithms to base 10.
"""

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from taciturn.core import BEGIN, END, PADDING, UNKNOWN
from taciturn.data.vocabulary import SPECIAL as NAMES
from taciturn.data.vocabulary import DataError
from taciturn.files import write_atomically
from taciturn.models.ngram import NEVER, NONE, Level, NGram, followers, join_keys, split_keys

SPECIAL = {UNKNOWN: "<unk>", BEGIN: "<s>", END: "</s>"}
IDS = {b"<UNK>": UNKNOWN, b"<s>": BEGIN, b"</s>": END} | {
    name.encode(): place for place, name in enumerate(NAMES)
}
# what ARPA files write for the logarithm of 0
IMPOSSIBLE = -99.0
# n-grams in memory at a time
BLOCK = 100_000
LN10 = math.log(10)


def write_arpa(path: Path, model: NGram, words: Sequence[str], comments: Sequence[str]) -> None:
    """Write a file atomically, with comments at its top."""
    if len(words) != model.vocabulary:
        raise DataError(
            f"the model has {model.vocabulary} words and the list {len(words)}: they do not belong"
            " together"
        )
    names = ["<pad>", *arpa_words(words)]
    if len(set(names)) != len(names):
        raise DataError(
            "a word is in the list twice, or has the name of a special token (<s>, </s>, <unk>)"
        )
    for name in names:
        # a gap that is not ASCII is harmless
        if name.encode().split() != [name.encode()]:
            raise DataError(
                f"an ARPA file cannot hold the word {name!r}: gaps separate words there"
            )
    write_atomically(
        path, (part.encode() for part in _parts(model, np.array(names, object), comments))
    )


def _parts(model: NGram, names: np.ndarray, comments: Sequence[str]) -> Iterator[str]:
    levels = [level for level in model.levels if len(level.keys)]
    yield from (f"# {line}\n" for comment in comments for line in comment.splitlines())
    # without PADDING
    sizes = [len(levels[0].keys) - 1, *(len(level.keys) for level in levels[1:])]
    yield "\n\\data\\\n" + "".join(f"ngram {n}={size}\n" for n, size in enumerate(sizes, 1))
    for n in range(1, len(levels) + 1):
        yield f"\n\\{n}-grams:\n"
        for start in range(PADDING + 1 if n == 1 else 0, len(levels[n - 1].keys), BLOCK):
            yield _block(levels[:n], start, names, model.vocabulary, n < len(levels))
    yield "\n\\end\\\n"


def arpa_words(words: Sequence[str]) -> list[str]:
    """Spell words as the file does, which has its own names for special tokens, and none for
    PADDING.
    """
    return [SPECIAL.get(place, word) for place, word in enumerate(words) if place != PADDING]


def _block(
    levels: Sequence[Level], start: int, names: np.ndarray, vocabulary: int, weights: bool
) -> str:
    """Format some n-grams of the last of the levels as lines."""
    *shorter, level = levels
    some = slice(start, start + BLOCK)
    contexts, words = split_keys(level.keys[some], vocabulary)
    spelled = names[words]
    for above in reversed(shorter):
        contexts, words = split_keys(above.keys[contexts], vocabulary)
        spelled = names[words] + (" " + spelled)
    # A sum that was rounded up must not make a probability exceed 1, which KenLM refuses.
    probabilities = np.clip(level.probability[some] / LN10, IMPOSSIBLE, 0).tolist()
    if not weights:
        return "".join(f"{p:.7g}\t{text}\n" for p, text in zip(probabilities, spelled, strict=True))
    backoffs = (level.backoff[some] / LN10).tolist()
    return "".join(
        f"{p:.7g}\t{t}\t{b:.7g}\n" for p, t, b in zip(probabilities, spelled, backoffs, strict=True)
    )


def read_arpa(path: Path) -> tuple[NGram, list[str]]:
    """Read a model from any ARPA file, and its words: the special tokens first, then the likeliest.
    Without <unk> or </s> in the file, unknown words, or ends, are impossible. N-grams that run over
    the end of a message are left out.
    """
    with path.open("rb") as file:
        lines = _Lines(path, file)
        sizes = _sizes(lines)
        if not sizes:
            raise lines.error("there are no n-grams in this file")
        level, words = _unigrams(lines, sizes[0])
        ids = {word.encode(): place for place, word in enumerate(words)} | IDS
        levels = [level]
        for n, size in enumerate(sizes[1:], 2):
            lines.expect(f"\\{n}-grams:")
            levels.append(_longer(lines, n, size, ids, levels))
        lines.expect("\\end\\")
    levels[-1] = levels[-1]._replace(backoff=NONE)
    return NGram(tuple(levels), len(words)), words


class _Lines:
    """The lines that are not empty, and the current position."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.number, self._file = path, 0, file

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self.number += 1
            said = line.strip()
            if said and not said.startswith(b"#"):
                yield said

    def expect(self, wanted: str) -> None:
        line = next(iter(self), None)
        if line != wanted.encode():
            raise self.error(f"expected {wanted}, found {_shown(line)}")

    def error(self, reason: str, number: int | None = None) -> DataError:
        return DataError(f"{self.path}, line {number or self.number}: {reason}")


def _shown(line: bytes | None) -> str:
    return "the end of the file" if line is None else repr(line[:60].decode(errors="replace"))


def _sizes(lines: _Lines) -> list[int]:
    """Return the number of n-grams of each length that the file declares."""
    if not any(line == b"\\data\\" for line in lines):
        raise lines.error("there is no \\data\\ in this file: it is not an ARPA file")
    sizes = []
    for line in lines:
        if line == b"\\1-grams:":
            return sizes
        found = re.fullmatch(rb"ngram\s+(\d+)\s*=\s*(\d+)", line)
        if not found or int(found[1]) != len(sizes) + 1:
            raise lines.error(
                f"expected 'ngram {len(sizes) + 1}=' with a number, or \\1-grams:, found"
                f" {_shown(line)}"
            )
        sizes.append(int(found[2]))
    raise lines.error("the file ends before its n-grams begin")


def _entries(lines: _Lines, n: int, size: int) -> Iterator[tuple[list[bytes], float, float]]:
    """Yield words, probability and weight of `size` n-grams."""
    read = 0
    for read, line in enumerate(islice(lines, size), 1):
        fields = line.split()
        try:
            probability, weight = (
                float(fields[0]),
                float(fields[n + 1]) if len(fields) > n + 1 else 0.0,
            )
        except ValueError:
            probability = weight = math.nan
        if not n + 1 <= len(fields) <= n + 2 or not probability <= 0 or not weight < math.inf:
            wanted = (
                f"number {read:,} of {size:,} n-grams of length {n} (a logarithm, words, perhaps a"
                " weight)"
            )
            raise lines.error(f"expected {wanted}, found {_shown(line)}")
        yield fields[1 : n + 1], probability, weight
    if read < size:
        raise lines.error(f"the file ends after {read:,} of {size:,} n-grams of length {n}")


def _unigrams(lines: _Lines, size: int) -> tuple[Level, list[str]]:
    """Return all 1-grams, in our order, and their names."""
    found: dict[int | str, tuple[float, float]] = {}
    for (word,), probability, weight in _entries(lines, 1, size):
        try:
            name = IDS.get(word, word.decode())
        except UnicodeDecodeError:
            raise lines.error(f"the word {_shown(word)} is not written in UTF-8") from None
        if name in found:
            raise lines.error(f"the word {_shown(word)} is here for the second time")
        found[name] = probability, weight
    special = [found.pop(place, (-math.inf, 0.0)) for place in range(len(NAMES))]
    words = sorted(map(str, found), key=lambda name: -found[name][0])
    values = np.array([*special, *(found[name] for name in words)]) * LN10
    values[NEVER, 0] = -math.inf
    level = Level(np.arange(len(values), dtype=np.uint64), *values.T.astype(np.float32))
    return level, [*NAMES, *words]


def _longer(
    lines: _Lines, n: int, size: int, ids: dict[bytes, int], levels: Sequence[Level]
) -> Level:
    """Return the n-grams of one length above the first, sorted."""
    words, values, numbers = array("i"), array("f"), array("q")
    for names, *logarithms in _entries(lines, n, size):
        try:
            words.extend([ids[name] for name in names])
        except KeyError as error:
            raise lines.error(
                f"the word {_shown(error.args[0])} is not among the 1-grams"
            ) from None
        values.extend(one * LN10 for one in logarithms)
        numbers.append(lines.number)
    table = np.array(words, np.int32).reshape(-1, n)
    starts_late, ends_early = np.isin(table[:, 1:], NEVER).any(1), (table[:, :-1] == END).any(1)
    reached = np.flatnonzero(~starts_late & ~ends_early & (table[:, 0] != PADDING))
    table, vocabulary = table[reached], len(levels[0].keys)
    contexts = table[:, 0]
    for level, column in zip(levels[1:], table.T[1:], strict=False):
        contexts = followers(level.keys, contexts, column, vocabulary)
    if np.any(contexts < 0):
        where = numbers[reached[np.argmax(contexts < 0)]]
        raise lines.error("the n-gram of all these words but the last is not in the file", where)
    keys = join_keys(contexts, table[:, -1], vocabulary)
    by_key = np.argsort(keys, kind="stable")
    keys, reached = keys[by_key], reached[by_key]
    if np.any(keys[1:] == keys[:-1]):
        where = numbers[reached[1:][np.argmax(keys[1:] == keys[:-1])]]
        raise lines.error("this n-gram is here for the second time", where)
    return Level(keys, *np.array(values, np.float32).reshape(-1, 2)[reached].T.copy())
