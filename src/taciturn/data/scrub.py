"""Taking out what identifies people in the plain: e-mail addresses, web addresses, card and phone numbers.

It is no anonymisation: names and stories stay, and the guarantee does not rest on it. What is removed leaves one unknown word behind, so
that the sentence around it keeps its shape.

>>> scrub("write to ann@example.org or call +1 (555) 010-9999")[0].replace(SCRUBBED, "_")
'write to _ or call _'
"""

import re
from collections import Counter

from taciturn.data.vocabulary import SCRUBBED

# In this order: an address may hold digits, and a card number looks like a telephone number.
_KINDS = {
    "web addresses": re.compile(r"(?:\b[a-z][a-z0-9+.-]*://|\bwww\.)\S+|\b[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}/\S*", re.I),
    "e-mail addresses": re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+"),
    "card numbers": re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)"),
    "phone numbers": re.compile(r"(?<!\d)\+?\(?\d(?:[ ().\-/]{0,3}\d){6,}"),  # and any other seven digits in a row
}


def scrub(text: str) -> tuple[str, Counter[str]]:
    """The text without them, and how many of each there were."""
    removed: Counter[str] = Counter()
    for kind, pattern in _KINDS.items():

        def replaced(found: re.Match[str], kind: str = kind) -> str:
            if kind == "card numbers" and not _luhn(found[0]):
                return found[0]
            removed[kind] += 1
            return SCRUBBED

        text = pattern.sub(replaced, text)
    return text, removed


def _luhn(number: str) -> bool:
    """Whether the check digit of a card number fits."""
    digits = [int(digit) for digit in reversed(number) if digit.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0
