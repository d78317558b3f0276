"""Remove what plainly identifies people: e-mail addresses, web addresses, card and phone numbers.

It is not anonymisation: names and stories stay, and the guarantee does not rest on it. What is
removed leaves one unknown word behind. Every step is linear in the length of the text, whatever is
in it.

>>> scrub("write to ann@example.org or call +1 (555) 010-9999")[0].replace(SCRUBBED, "_")
'write to _ or call _'
"""

import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import partial

import regex

from taciturn.data.vocabulary import SCRUBBED, without_long_runs

_TOKEN = regex.compile(r"\S+")
_HOST = regex.compile(r"[\w-]++(?:\.[\w-]++)*+")
# Hosts that people write without a scheme; endings that are also words (it, no, me) are not among
# them.
_ENDING = regex.compile(
    "com|org|net|edu|gov|mil|info|biz|io|eu|uk|de|fr|nl|ch|pl|ru|cz|dk|fi|pt|br|mx|jp|cn|au|nz|za"
    "|kr|рф"
)
# Digits that belong together: at most two spaces, dashes, dots or brackets separate them.
_DIGITS = regex.compile(r"\+?\(?\d(?:[\s\p{Z}\p{Pd}()./_*]{0,2}\d)++")


def scrub(text: str) -> tuple[str, Counter[str]]:
    """Return the text without them, and how many of each there were."""
    removed: Counter[str] = Counter()

    def remove(find_kind: Callable[[str], str | None], match: regex.Match[str]) -> str:
        kind = find_kind(match[0])
        if kind is None:
            return match[0]
        removed[kind] += 1
        return SCRUBBED

    # One form for dashes, spaces and wide letters.
    text = unicodedata.normalize("NFKC", without_long_runs(text))
    text = _TOKEN.sub(partial(remove, _find_kind_of_address), text)
    text = _DIGITS.sub(partial(remove, _find_kind_of_number), text)
    return text, removed


def _find_kind_of_address(token: str) -> str | None:
    """Return the kind of address in a word between spaces, or None if there is none."""
    name, at, host = token.partition("@")
    if at and name[-1:].isalnum() and host[:1].isalnum():
        return "e-mail addresses"
    start = token.casefold().lstrip("(<[{\"'«“")
    if "://" in start or start.startswith("www."):
        return "web addresses"
    return "web addresses" if _begins_with_host(start) else None


def _begins_with_host(token: str) -> bool:
    """Tell whether a word begins with the name of a computer, written without a scheme."""
    host = _HOST.match(token)
    if not host or "." not in host[0]:
        return False
    ending = host[0].rsplit(".", 1)[1]
    if _ENDING.fullmatch(ending):
        return True
    # Any other ending needs something that names a page after it.
    rest = token[host.end() :]
    has_page = len(rest) > 1 and rest[0] in "/:?#"
    return has_page and ending.isalpha() and len(ending) > 1


def _find_kind_of_number(text: str) -> str | None:
    """Return the kind of number that digits are, or None if there are too few of them."""
    digits = [int(digit) for digit in text if digit.isdecimal()]
    if len(digits) < 7:
        return None
    is_card = 13 <= len(digits) <= 19 and _has_check_digit(digits)
    return "card numbers" if is_card else "phone numbers"


def _has_check_digit(digits: list[int]) -> bool:
    """Tell whether the check digit of a card number is right (Luhn's)."""
    backwards = digits[::-1]
    doubled = [2 * digit - 9 * (digit > 4) for digit in backwards[1::2]]
    return (sum(backwards[::2]) + sum(doubled)) % 10 == 0
