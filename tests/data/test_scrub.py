"""What identifies people in the plain is taken out, in time that does not depend on how hard it is
made.
"""

import time

import pytest

from taciturn.data.scrub import scrub
from taciturn.data.vocabulary import SCRUBBED, public_vocabulary


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ann@example.org", "e-mail addresses"),
        ("<Ann.B+c@mail.example.co.uk>,", "e-mail addresses"),
        ("ann.smith@example.org/x", "e-mail addresses"),
        ("ann＠example.org", "e-mail addresses"),
        ("ann@localhost", "e-mail addresses"),
        ("https://example.org/a?b=c#d", "web addresses"),
        ("(www.example.org)", "web addresses"),
        ("example.com", "web addresses"),
        ("example.com:80/x", "web addresses"),
        ("example.com?x=ann", "web addresses"),
        ("sub.example.travel/path", "web addresses"),
        ("пример.рф/путь", "web addresses"),
        ("4111 1111 1111 1111", "card numbers"),
        ("4111\u00a01111\u00a01111\u00a01111", "card numbers"),
        ("4111-1111-1111-1111", "card numbers"),
        ("+1 (555) 010-9999", "phone numbers"),
        ("5550109", "phone numbers"),
        ("0171\u20115550\u2011109", "phone numbers"),
        ("0171–555–0109", "phone numbers"),
        ("0171_555*0109", "phone numbers"),
        ("४११११११११", "phone numbers"),
    ],
)
def test_addresses_and_numbers_are_taken_out(text, kind):
    scrubbed, removed = scrub(f"before {text} after")
    assert dict(removed) == {kind: 1}
    assert scrubbed.count(SCRUBBED) == 1
    assert scrubbed.startswith("before ")
    assert scrubbed.endswith(" after")
    assert not any(character.isdecimal() for character in scrubbed)


@pytest.mark.parametrize(
    "text",
    [
        "at 5 @ home",
        "it was fine.it rained",
        "1,000 or 12.50",
        "on 24.12.",
        "and/or",
        "he said:yes",
        "a@",
    ],
)
def test_ordinary_text_stays(text):
    assert scrub(text) == (text, {})


@pytest.mark.parametrize(
    "piece",
    [
        "a-",
        "a.",
        "a@",
        "1",
        "1 ",
        "a",
        ".",
        "@",
        "(((",
        "://",
        "w.",
        "+1(",
        "a@a.",
        "e\u0301\u0316",
    ],
)
def test_long_hostile_texts_take_no_time(piece):
    """Found by a second reader: some of these took hours."""
    began = time.perf_counter()
    scrub(piece * (2 * 10**5 // len(piece)))
    scrub("a@" + piece * (2 * 10**5 // len(piece)))
    assert time.perf_counter() - began < 2


def test_the_twin_with_backtracking_takes_time_that_grows_with_the_square():
    import re

    def seconds(length):
        began = time.perf_counter()
        re.search(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+", "a" * length)
        return time.perf_counter() - began

    assert seconds(16_000) > 4 * seconds(4_000)


def test_long_runs_are_read_in_time():
    for language, text in (("zh", "我" * 300_000), ("en", "a" + "\u0301\u0316" * 300_000)):
        vocabulary = public_vocabulary(1000, language)
        began = time.perf_counter()
        vocabulary.encode(text)
        assert time.perf_counter() - began < 5
