"""Who wrote a row. One person may be spelled in several ways, and must still be one user.

Two people taken for one are both protected; one person taken for two would not be. So case, white
space, invisible characters, width and other forms of the same letters make no difference.

>>> user_id(" Ann\\u00a0LEE ") == user_id("ann lee")
True
"""

import functools
import hashlib
import unicodedata
from pathlib import Path

import regex

from taciturn.data.vocabulary import DataError

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
_INVISIBLE = regex.compile(r"\p{C}+")
# Tables that once had a gap in a numeric column write 7 as 7.0.
_NUMBER = regex.compile(r"(\d+)\.0")


@functools.lru_cache(maxsize=2**18)
def user_id(spelling: str) -> str:
    """Return the one id that all spellings of a user share; empty where there is no user."""
    if len(spelling) > LONGEST_ID:
        return ""
    id = " ".join(_fold(spelling).split())
    number = _NUMBER.fullmatch(id)
    id = number[1] if number else id
    return "" if id in NOBODY else id


def _fold(spelling: str) -> str:
    """Return a spelling without case, width and invisible characters."""
    folded = unicodedata.normalize("NFKC", spelling).casefold()
    # Folding may take letters apart again.
    folded = unicodedata.normalize("NFKC", folded)
    return _INVISIBLE.sub(lambda match: " " if match[0].isspace() else "", folded)


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
