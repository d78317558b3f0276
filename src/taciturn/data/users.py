"""Who wrote a row. One person may be spelled in several ways, and must still be one user.

Two people taken for one are both protected; one person taken for two would not be. So case, white
space, invisible characters, width and other forms of the same letters make no difference, nor does
the way in which a table writes a number.

>>> user_id(" Ann\\u00a0LEE ") == user_id("ann lee")
True
>>> user_id("007") == user_id("7.0") == user_id("7")
True
"""

import functools
import hashlib
import unicodedata
from pathlib import Path

import regex

from taciturn.data.vocabulary import DataError

# Columns of tables that usually name who wrote a row.
USER_COLUMNS = ("user_id", "user", "author", "username", "sender")
# In characters; nothing longer is an id.
LONGEST_ID = 1000
# There is no user, or it is any of the deleted ones.
NOBODY = {
    "",
    "[deleted]",
    "[removed]",
    "nan",
    "none",
    "null",
    "<na>",
}
# Which spellings are one user, as manifests say it: 1 is the rule of `first_user_id`.
ID_RULE = 2
# Control characters, joiners, variation selectors, fillers, tags; and the blank of Braille. Not
# \p{Cn}: characters that this version of Unicode does not know, such as next year's emoji, would
# be in an id after an update, and its person another.
_INVISIBLE = regex.compile(
    r"[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Noncharacter_Code_Point}\p{Default_Ignorable_Code_Point}\u2800]"
)
# In Turkish, i and ı have capitals of their own, İ and I, which other languages fold to i with a
# dot above, and to i. Marks that stand between the two do not change it.
_DOTLESS = "ı"
_DOT_ON_I = regex.compile(r"(?<=i[^\P{M}\u0307]*)\u0307+")
# 007, 7 and 7.0 are one number in tables that another program has written again.
_NUMBER = regex.compile(r"([+-]?)(\d+)(?:\.0*)?")
# As pyarrow writes large numbers of a column that has gaps.
_FLOAT = regex.compile(r"([0-9])(?:\.([0-9]+))?e\+([0-9]{2})")

_FIRST_INVISIBLE = regex.compile(r"\p{C}+")
_FIRST_NUMBER = regex.compile(r"(\d+)\.0")


@functools.lru_cache(maxsize=2**18)
def user_id(spelling: str) -> str:
    """Return the one id that all spellings of a user share; empty where there is no user."""
    if len(spelling) > LONGEST_ID:
        return ""
    id = " ".join(_fold(spelling).split())
    id = _plain_number(id)
    return "" if id in NOBODY else id


def _fold(spelling: str) -> str:
    """Return a spelling without case, width and invisible characters.

    One step may make work for another, so all are repeated until nothing changes.
    """
    # Most spellings are plain, and need none of it.
    if spelling.isascii() and spelling.isprintable():
        return spelling.lower()
    before = None
    folded = spelling
    while folded != before:
        before = folded
        folded = _fold_once(folded)
    return folded


def _fold_once(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold()
    text = _INVISIBLE.sub(lambda match: " " if match[0].isspace() else "", text)
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFD", text).replace(_DOTLESS, "i")
    return unicodedata.normalize("NFKC", _DOT_ON_I.sub("", apart))


def _plain_number(id: str) -> str:
    """Return a number as its digits, and anything else as it is."""
    if not id[:1].isdecimal() and id[:1] not in ("+", "-"):
        return id
    number = _NUMBER.fullmatch(id)
    # regex may know digits of a newer Unicode than Python does.
    if number and number[2].isdecimal():
        return number[1].strip("+") + str(int(number[2]))
    number = _FLOAT.fullmatch(id)
    if number:
        first, rest, power = number.groups(default="")
        if len(rest) <= int(power):
            return (first + rest).ljust(int(power) + 1, "0")
    return id


@functools.lru_cache(maxsize=2**18)
def first_user_id(spelling: str) -> str:
    """Return a user's id by the first rule, which populations of earlier versions keep.

    Their people were held out, opted out and hashed by it. It took invisible characters that are
    letters or marks for a difference, and the dotless ı, and 007.
    """
    if len(spelling) > LONGEST_ID:
        return ""
    folded = unicodedata.normalize("NFKC", spelling).casefold()
    folded = unicodedata.normalize("NFKC", folded)
    folded = _FIRST_INVISIBLE.sub(lambda match: " " if match[0].isspace() else "", folded)
    id = " ".join(folded.split())
    number = _FIRST_NUMBER.fullmatch(id)
    id = number[1] if number else id
    return "" if id in NOBODY else id


def possible_ids(spelling: str, rule: int) -> list[str]:
    """Return every id by which a population may know a user, its own first.

    Args:
        spelling: of the user.
        rule: of the population.
    """
    id = user_id(spelling)
    if not id or rule >= ID_RULE:
        return [id] if id else []
    first = first_user_id(spelling)
    return list(dict.fromkeys(filter(None, (first, id))))


@functools.lru_cache(maxsize=2**18)
def position(id: str) -> int:
    """Return 64 bits of a hash: users are stored in its order and split by it."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big")


def read_lines(path: Path, what: str) -> list[str]:
    """Read a file with one `what` on each line, whatever editor wrote it."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            why = (error.strerror or "").lower()
        else:
            why = f"not UTF-8, at byte {error.start}"
        raise DataError(
            f"{path} cannot be read ({why}): name a file in UTF-8 with one {what} on each line"
        ) from None


def read_users(path: Path) -> list[str]:
    """Read a file of users who opted out, one id a line (`exclude` of a build)."""
    lines = read_lines(path, "id of a user to `exclude`")
    for number, line in enumerate(lines, 1):
        if any(sign in line for sign in ',\t"'):
            raise DataError(
                f"{path} (`exclude`), line {number}, looks like a table; write one id on each line,"
                " and nothing else"
            )
    return [line for line in lines if line.strip()]
