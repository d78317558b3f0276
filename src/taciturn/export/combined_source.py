"""Reads `.combined` word lists of others, from which AOSP's compiler makes dictionaries.

Only words, their frequencies and what is marked in them are read; followers and shortcuts are not.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from taciturn.data.vocabulary import DataError
from taciturn.export.aosp_dictionary import LONGEST_WORD, MOST_FREQUENT, Dictionary, Entry

ENDINGS = (".combined", ".combined.gz")
# Unpacked; the largest that is published has 20 MB.
LARGEST_SOURCE = 2**26
WORD = re.compile(r"word=(?P<word>.+?), ?f=(?P<frequency>\d{1,3})(?P<more>[:,].*)?")
# How lines begin that say more of the word above them.
OF_WORD = ("bigram=", "ngram=", "prev_word[", "shortcut=")


def is_combined_source(path: Path) -> bool:
    """Tell by its name whether a file is the source of a dictionary."""
    return path.name.lower().endswith(ENDINGS)


def read_combined_source(path: Path) -> Dictionary:
    """Return the words of a source; where one is there twice, the higher frequency counts.

    Args:
        path: of the file, packed (.combined.gz) or not.

    Raises:
        DataError: it is not such a file, or is damaged.
    """
    lines = _read_lines(path)
    _, first = next(lines, (1, ""))
    if not first.startswith("dictionary="):
        raise DataError(
            f"{path} is not the source of a dictionary, which begins with dictionary=: name"
            " another file"
        )
    header = dict(part.split("=", 1) for part in first.split(",") if "=" in part)
    words: dict[str, Entry] = {}
    for number, line in lines:
        if line and not line.startswith(("#", *OF_WORD)):
            word, entry = _read_word(line, f"{path}, line {number}")
            is_rarer = word in words and words[word].frequency >= entry.frequency
            # As the compiler does, longer words are left out.
            if len(word) <= LONGEST_WORD and not is_rarer:
                words[word] = entry
    return Dictionary(header=header, words=words)


def _read_word(line: str, where: str) -> tuple[str, Entry]:
    match = WORD.fullmatch(line)
    if match is None or int(match["frequency"]) > MOST_FREQUENT:
        raise DataError(
            f"{where}: a word and its frequency should stand there, as in word=the,f=222 (up to"
            f" {MOST_FREQUENT}): correct that line"
        )
    more = match["more"] or ""
    entry = Entry(
        frequency=int(match["frequency"]),
        is_not_a_word="not_a_word=true" in more,
        is_offensive="possibly_offensive=true" in more,
    )
    return match["word"], entry


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file without the gaps around them, and their numbers."""
    content = _read_content(path)
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            yield number, line.decode().strip()
        except UnicodeDecodeError:
            raise DataError(f"{path}, line {number} is not UTF-8: correct that line") from None


def _read_content(path: Path) -> bytes:
    is_packed = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            content = file.read(LARGEST_SOURCE + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path} is damaged or incomplete: download it again") from None
    if len(content) > LARGEST_SOURCE:
        raise DataError(
            f"{path} has more than {LARGEST_SOURCE // 2**20} MB, and no keyboard's list has: name"
            " another file"
        )
    return content
