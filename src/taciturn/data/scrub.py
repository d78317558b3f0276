"""Remove what plainly identifies people: e-mail addresses, web addresses, card and phone numbers.

It is not anonymisation: names and stories stay, and the guarantee does not rest on it. What is
removed leaves one unknown word behind. Every step is linear in the length of the text, whatever is
in it.

>>> scrub("write to ann@example.org or call +1 (555) 010-9999")[0].replace(SCRUBBED, "_")
'write to _ or call _'
"""

import unicodedata
from collections import Counter

import regex

from taciturn.data.vocabulary import SCRUBBED, without_long_runs

_TOKEN = regex.compile(r"\S+")
_HOST = regex.compile(r"[\w-]++(?:\.[\w-]++)*+")
# Hosts that people write without a scheme; endings that are also words (it, no, me) are not among
# them.
_ENDING = regex.compile(
    "com|org|net|edu|gov|mil|info|biz|io|eu|uk|de|fr|nl|ch|pl|ru|cz|dk|fi|pt|br|mx|jp|cn|au|nz|za|kr|рф"
)
# Digits that belong together: at most two spaces, dashes, dots or brackets separate them.
_DIGITS = regex.compile(r"\+?\(?\d(?:[\s\p{Z}\p{Pd}()./_*]{0,2}\d)++")


def scrub(text: str) -> tuple[str, Counter[str]]:
    """Return the text without them, and how many of each there were."""
    removed: Counter[str] = Counter()

    def address(found: regex.Match[str]) -> str:
        kind = _address(found[0])
        if kind is None:
            return found[0]
        removed[kind] += 1
        return SCRUBBED

    def number(found: regex.Match[str]) -> str:
        digits = [int(digit) for digit in found[0] if digit.isdecimal()]
        if len(digits) < 7:
            return found[0]
        removed[
            "card numbers" if 13 <= len(digits) <= 19 and _luhn(digits) else "phone numbers"
        ] += 1
        return SCRUBBED

    # one form for dashes, spaces and wide letters
    text = unicodedata.normalize("NFKC", without_long_runs(text))
    return _DIGITS.sub(number, _TOKEN.sub(address, text)), removed


def _address(token: str) -> str | None:
    """Return the kind of address in a word between spaces."""
    name, at, host = token.partition("@")
    if at and name[-1:].isalnum() and host[:1].isalnum():
        return "e-mail addresses"
    start = token.casefold().lstrip("(<[{\"'«“")
    if "://" in start or start.startswith("www."):
        return "web addresses"
    found = _HOST.match(start)
    if not found or "." not in found[0]:
        return None
    goes_on = start[found.end() : found.end() + 1] in (
        "/",
        ":",
        "?",
        "#",
    ) and found.end() + 1 < len(start)
    ending = found[0].rsplit(".", 1)[1]
    is_host = _ENDING.fullmatch(ending) or (goes_on and ending.isalpha() and len(ending) > 1)
    return "web addresses" if is_host else None


def _luhn(digits: list[int]) -> bool:
    """Return whether the check digit of a card number is right."""
    backwards = digits[::-1]
    doubled = [2 * digit - 9 * (digit > 4) for digit in backwards[1::2]]
    return (sum(backwards[::2]) + sum(doubled)) % 10 == 0
