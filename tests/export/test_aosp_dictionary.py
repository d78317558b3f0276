"""A binary dictionary reads back as it was written, has the bytes that AOSP's own compiler writes,
and a reader of files from anywhere refuses in a sentence whatever is not one.
"""

import hashlib
import random
import struct
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.data.vocabulary import DataError
from taciturn.export import aosp_dictionary_reader
from taciturn.export.aosp_dictionary import (
    Dictionary,
    Entry,
    Follower,
    Shortcut,
    from_level,
    to_level,
)
from taciturn.export.aosp_dictionary_reader import parse_dictionary, read_dictionary
from taciturn.export.aosp_dictionary_writer import dictionary_bytes, write_dictionary

HEADER = {
    "dictionary": "main:en",
    "locale": "en",
    "description": "ε, all the same",
    "version": "18",
}
# What AOSP's dicttool (aosp-dictionary-tools, of 2017, under Java 17) made on 2026-11-20 of the
# words of `many_words`, written as a .combined list.
MADE_BY_DICTTOOL = "b09a46a37e791375aaccc60f1d0fc08239d753ac2ee986d4af6d481f110d0705"
ALPHABETS = (
    "etaoinshrdlu",
    "ñüßéøþ",
    "оеаинтсрвл",
    "कखगतनमरसािी्",
    "אבגדהול",
    "日本語人大",
    "🙂👍🏽",
)


def many_words(size: int = 12_000) -> Dictionary:
    """Return words of many scripts, with all that a dictionary can say of them."""
    generator = random.Random(0)
    spelled = {
        "".join(generator.choices(alphabet, k=generator.randint(1, 9)))
        for alphabet in generator.choices(ALPHABETS, weights=(9, 2, 4, 4, 2, 1, 1), k=size)
    }
    words = sorted(spelled)
    frequency = {word: generator.randint(0, 255) for word in words}
    entries = {}
    for word in words:
        followers = []
        for follower in generator.sample(words, generator.choice((0, 0, 1, 3, 6))):
            least = frequency[follower]
            level = to_level(least, generator.randint(least, 255))
            followers.append(Follower(word=follower, level=level))
        shortcuts = ()
        if generator.random() < 0.02:
            shortcuts = (Shortcut("🙂", 15), Shortcut("ok!", generator.randint(0, 14)))
        entries[word] = Entry(
            frequency=frequency[word],
            followers=tuple(followers),
            shortcuts=shortcuts,
            is_not_a_word=generator.random() < 0.01,
            is_offensive=generator.random() < 0.01,
        )
    header = {"date": "1414726260", "dictionary": "main:xx", "description": "of many scripts"}
    return Dictionary(header=header | {"locale": "xx", "version": "54"}, words=entries)


def few_words() -> Dictionary:
    words = {
        "a": Entry(frequency=200, followers=(Follower("any", 3), Follower("a", 0))),
        "an": Entry(frequency=150, is_offensive=True),
        "any": Entry(frequency=7, shortcuts=(Shortcut("all", 15),)),
        "नमस्ते": Entry(frequency=255, is_not_a_word=True, followers=(Follower("a", 15),)),
    }
    return Dictionary(header=HEADER, words=words)


@st.composite
def dictionaries(draw):
    letters = st.characters(exclude_categories=["Cs"])
    words = draw(st.lists(st.text(letters, min_size=1, max_size=12), unique=True, max_size=60))
    levels = st.integers(0, 15)
    entries = {}
    for word in words:
        followers = st.builds(Follower, st.sampled_from(words), levels)
        shortcuts = st.builds(Shortcut, st.text(letters, max_size=4), levels)
        entries[word] = Entry(
            frequency=draw(st.integers(0, 255)),
            followers=tuple(draw(st.lists(followers, max_size=3))),
            shortcuts=tuple(draw(st.lists(shortcuts, max_size=2))),
            is_not_a_word=draw(st.booleans()),
            is_offensive=draw(st.booleans()),
        )
    strings = st.text(letters, max_size=20)
    keys = st.text(letters, max_size=20).filter(lambda key: key != "codePointTable")
    return Dictionary(header=draw(st.dictionaries(keys, strings, max_size=4)), words=entries)


@settings(max_examples=150, deadline=None)
@given(dictionaries())
def test_what_is_written_is_read(dictionary):
    content = dictionary_bytes(dictionary)
    assert parse_dictionary(content, "x") == dictionary
    shuffled = replace(dictionary, words=dict(reversed(dictionary.words.items())))
    assert dictionary_bytes(shuffled) == content


def test_a_small_dictionary_is_laid_out_as_aosp_describes():
    words = {
        "a": Entry(frequency=10, followers=(Follower("an", 9),)),
        "an": Entry(frequency=20),
        "ж": Entry(frequency=30, is_offensive=True),
    }
    content = dictionary_bytes(Dictionary(header={"locale": "en"}, words=words))
    header = struct.pack(">IHHI", 0x9BC13AFE, 202, 0, 22) + b"locale\x1fen\x1f"
    # a: a word with children and a follower, both at addresses of a byte.
    first = bytes([0b01_0_1_0_1_0_0, ord("a"), 10, 8, 0b0_0_01_1001, 7])
    second = bytes([0b00_0_1_0_0_0_1, 0, 0x04, 0x36, 30])
    children = bytes([1, 0b00_0_1_0_0_0_0, ord("n"), 20])
    assert content == header + bytes([2]) + first + second + children


def test_the_bytes_are_those_of_aosps_own_compiler():
    content = dictionary_bytes(many_words())
    assert hashlib.sha256(content).hexdigest() == MADE_BY_DICTTOOL


def test_levels_are_near_and_never_below():
    for frequency in range(255):
        for after in range(frequency, 256):
            near = from_level(frequency, to_level(frequency, after))
            step = (255 - frequency) / 16.5
            assert abs(near - after) <= max(step, step / 2 + 2)
            assert near >= frequency
    assert to_level(255, 255) == 0
    assert to_level(200, 100) == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"": Entry(frequency=1)}, "1 to 47 letters"),
        ({"x" * 48: Entry(frequency=1)}, "1 to 47 letters"),
        ({"b": Entry(frequency=256)}, "not in 0 to 255"),
        ({"b": Entry(frequency=1, followers=(Follower("a", 16),))}, "not in 0 to 15"),
        ({"b": Entry(frequency=1, followers=(Follower("c", 1),))}, "not in the dictionary"),
        ({"\ud800": Entry(frequency=1)}, "half a character"),
    ],
)
def test_what_a_file_cannot_hold_is_not_written(tmp_path, changes, why):
    few = few_words()
    with pytest.raises(DataError, match=why):
        write_dictionary(tmp_path / "x.dict", replace(few, words=few.words | changes))
    assert not (tmp_path / "x.dict").exists()


@pytest.mark.parametrize("header", [{"k" * 256: "v"}, {"description": "x" * 2048}])
def test_a_header_that_keyboards_would_cut_is_not_written(header):
    with pytest.raises(DataError, match="keyboards"):
        dictionary_bytes(replace(few_words(), header=header))


def trie(*body: int) -> bytes:
    return struct.pack(">IHHI", 0x9BC13AFE, 202, 0, 12) + bytes(body)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a dictionary"),
        (b"PK\x03\x04 and so on", "is not a dictionary"),
        (b"dictionary=main:en,locale=en\n word=a,f=1\n", "the source of a dictionary"),
        (b"\x1f\x8b\x08\x00", "gunzip"),
        (b"\x78\xb1\x01\x00", "version 1"),
        (struct.pack(">IHHI", 0x9BC13AFE, 2, 0, 12) + b"\0", "version 2,"),
        (struct.pack(">IHHI", 0x9BC13AFE, 403, 0, 12) + b"\0", "version 403, which is a folder"),
        (struct.pack(">IHHI", 0x9BC13AFE, 999, 0, 12) + b"\0", "version 999"),
        (struct.pack(">IHHI", 0x9BC13AFE, 202, 0, 2**31) + b"\0", "at byte 8, its header"),
        (struct.pack(">IHHI", 0x9BC13AFE, 202, 0, 14) + b"ab\x1fc\x1f\0", "beyond its end"),
        (trie(1, 0x10, 97), "ends in the middle"),
        (trie(1, 0x10, 0x1F, 9), "no letters"),
        (trie(1, 0x30, 97, 98), "ends in the middle"),
        (trie(1, 0x10, 0x11, 0, 0, 9), "no letter 0x110000"),
        (trie(2, 0x10, 97, 9, 0x10, 97, 9), "'a' is there for the second time"),
        (trie(1, 0x50, 97, 9, 200), "ends in the middle"),
        (trie(2, 0x40, 97, 4, 0x40, 98, 1, 1, 0x10, 99, 9), "the same children"),
        (trie(1, 0x14, 97, 9, 0x00), "no address"),
        (trie(1, 0x14, 97, 9, 0x10, 9), "a word should begin there"),
        (trie(1, 0x04, 97, 0x10, 9), "not a word, and something follows"),
        (trie(1, 0x18, 97, 9, 0, 9, 1, 98, 0x1F), "shortcuts have 5 bytes, not 9"),
        (trie(1, 0x30, *[97] * 48, 0x1F, 9), "more than the 47 letters"),
    ],
)
def test_what_is_not_a_dictionary_is_refused_with_its_place(tmp_path, content, why):
    (tmp_path / "some.dict").write_bytes(content)
    with pytest.raises(DataError, match=why) as refusal:
        read_dictionary(tmp_path / "some.dict")
    assert "some.dict" in str(refusal.value)


def test_nodes_that_overlap_are_refused_at_once():
    """An array begins at every fourth byte, and each has 16,128 nodes: these 200 kB would be read
    as 500 MB.
    """
    children = 8000
    first = bytes([0x80 | children >> 8, children & 0xFF])
    nodes = bytearray()
    for place in range(children):
        start = 2 + 5 * children + 2 + 4 * place
        distance = start - (2 + 5 * place + 2)
        nodes += bytes([0xC0, ord("a")]) + distance.to_bytes(3, "big")
    overlapping = trie(*first, *nodes, *[0x00, 0x01, 0xBF, 0x00] * (children + 16_200))
    started = time.monotonic()
    with pytest.raises(DataError, match="overlap"):
        parse_dictionary(overlapping, "x")
    assert time.monotonic() - started < 10


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(aosp_dictionary_reader, "LARGEST_FILE", 100)
    write_dictionary(tmp_path / "x.dict", few_words())
    with pytest.raises(DataError, match="no keyboard's dictionary has"):
        read_dictionary(tmp_path / "x.dict")


def test_letters_that_a_file_spells_in_a_byte_of_its_own_are_read():
    """Dictionaries may name their commonest letters; ours are spelled in full."""
    table = b"codePointTable\x1f" + b"\0\x04\x36\0\x04\x35\x1f"
    header = struct.pack(">IHHI", 0x9BC13AFE, 202, 0, 12 + len(table)) + table
    content = header + bytes([1, 0x30, 0x20, 0x21, ord("a"), 0x1F, 9])
    assert parse_dictionary(content, "x") == Dictionary(
        header={}, words={"жеa": Entry(frequency=9)}
    )


def spoil(content: bytes, generator: random.Random) -> bytes:
    """Return bytes that someone flipped, cut or spliced."""
    spoiled = bytearray(content)
    for _ in range(generator.choice((1, 1, 2, 5))):
        place = generator.randrange(len(spoiled) + 1)
        match generator.randrange(4):
            case 0 if place < len(spoiled):
                spoiled[place] ^= 1 << generator.randrange(8)
            case 1:
                del spoiled[place:]
            case 2:
                start = generator.randrange(len(spoiled) + 1)
                spoiled[place:place] = spoiled[start : start + generator.randrange(40)]
            case _:
                del spoiled[place : place + generator.randrange(9)]
    return bytes(spoiled)


def read_spoiled(content: bytes, times: int) -> int:
    """Read spoiled bytes again and again; return how often they were refused."""
    generator = random.Random(1)
    refused = 0
    for _ in range(times):
        spoiled = spoil(content, generator)
        try:
            read = parse_dictionary(spoiled, "x")
        except DataError:
            refused += 1
            continue
        # What was read is a dictionary: it can be written, and is the same again.
        written = dictionary_bytes(replace(read, header={}))
        assert parse_dictionary(written, "x").words == read.words
    return refused


def test_spoiled_files_are_refused_or_read_as_something_else():
    assert 0 < read_spoiled(dictionary_bytes(few_words()), 1500) < 1500


@pytest.mark.slow  # the same at length
def test_spoiled_files_of_many_words_are_refused_or_read_as_something_else():
    assert read_spoiled(dictionary_bytes(few_words()), 100_000)
    assert read_spoiled(dictionary_bytes(many_words(300)), 20_000)
