"""Reads AOSP's binary dictionaries, which may come from anywhere.

Whatever is in a file, reading it takes time and memory in proportion to its size, and what cannot
be a dictionary is refused with its place in the file.
"""

import struct
from pathlib import Path
from typing import NamedTuple

from taciturn.data.vocabulary import DataError
from taciturn.export.aosp_dictionary import (
    CHILDREN_WIDTH_SHIFT,
    END_OF_LETTERS,
    ENDS_A_WORD,
    FIRST_ONE_BYTE_LETTER,
    FIXED_HEADER,
    FOLLOWER_WIDTH_SHIFT,
    HAS_FOLLOWERS,
    HAS_NEXT,
    HAS_SEVERAL_LETTERS,
    HAS_SHORTCUTS,
    HIGHEST_LEVEL,
    IS_BACKWARDS,
    IS_LARGE_ARRAY,
    IS_NOT_A_WORD,
    IS_OFFENSIVE,
    LONGEST_WORD,
    MAGIC,
    VERSION,
    Dictionary,
    Entry,
    Follower,
    Shortcut,
)

# Four times the largest that keyboards come with.
LARGEST_FILE = 2**24
FIXED_HEADER_SIZE = struct.calcsize(FIXED_HEADER)
# Some dictionaries name their commonest letters here, each of which is then one byte.
LETTER_TABLE = "codePointTable"
# What else a version says.
OTHER_VERSIONS = {
    2: ", of before 2015",
    201: ", of before 2015",
    402: ", which is a folder that a keyboard keeps for itself",
    403: ", which is a folder that a keyboard keeps for itself",
}
OLD_MAGIC = b"\x78\xb1"
UNFINISHED = "the file ends in the middle of something"
ADVICE = "download or compile it again"


def read_dictionary(path: Path) -> Dictionary:
    """Read a dictionary.

    Args:
        path: of the file.

    Raises:
        DataError: it is not a dictionary of version 202, or is damaged.
    """
    if path.stat().st_size > LARGEST_FILE:
        raise DataError(
            f"{path} has more than {LARGEST_FILE // 2**20} MB, and no keyboard's dictionary has:"
            " name another file"
        )
    return parse_dictionary(path.read_bytes(), str(path))


def parse_dictionary(content: bytes, name: str) -> Dictionary:
    """Return the dictionary that some bytes are; the name is for refusals."""
    return _Parser(content, name).parse()


class _WordNode(NamedTuple):
    """What a node says of the word that ends there."""

    flags: int
    frequency: int
    shortcuts: tuple[Shortcut, ...]
    # Their addresses and levels.
    followers: list[tuple[int, int]]


class _Parser:
    """Reads the bytes of a dictionary from its start to its end."""

    def __init__(self, content: bytes, name: str) -> None:
        self._content = content
        self._name = name
        # The next byte to read.
        self._at = 0
        self._nodes: dict[str, _WordNode] = {}
        # The word whose node is at an address.
        self._word_at: dict[int, str] = {}
        # Where arrays of nodes are that have not been read, and the letters on the way to each.
        self._waiting: list[tuple[int, str]] = []
        self._arrays: set[int] = set()
        self._letter_table = ""

    def parse(self) -> Dictionary:
        body = self._read_fixed_header()
        header = self._read_strings(body)
        # It says how this file is spelled; one that is written again is spelled in full.
        self._letter_table = header.pop(LETTER_TABLE, "")
        self._wait_for_array(body, "")
        read = 0
        while self._waiting:
            self._at, prefix = self._waiting.pop()
            start = self._at
            self._read_array(prefix)
            read += self._at - start
            # Addresses only lead forward, so there is no loop; but without this, arrays that
            # overlap would let a small file take for ever.
            if read > len(self._content) - body:
                raise self._refuse_damage(start, "nodes there overlap others")
        words = {word: self._make_entry(word, node) for word, node in self._nodes.items()}
        return Dictionary(header=header, words=words)

    def _read_fixed_header(self) -> int:
        """Return where the trie begins; refuse another kind of file."""
        if len(self._content) < FIXED_HEADER_SIZE or self._content[:4] != MAGIC.to_bytes(4, "big"):
            raise DataError(f"{self._name} {_describe_other(self._content)}")
        _, version, _, size = struct.unpack_from(FIXED_HEADER, self._content)
        if version != VERSION:
            raise DataError(
                f"{self._name} is a dictionary of version {version}"
                f"{OTHER_VERSIONS.get(version, '')}, and only version {VERSION} is read here:"
                " compile it again with AOSP's dicttool"
            )
        if not FIXED_HEADER_SIZE <= size < len(self._content):
            raise self._refuse_damage(
                8, f"its header has {size:,} bytes, and the file {len(self._content):,}"
            )
        self._at = FIXED_HEADER_SIZE
        return size

    def _read_strings(self, end: int) -> dict[str, str]:
        """Return the strings of the header, which ends there."""
        strings = {}
        while self._at < end:
            start = self._at
            key = self._read_string()
            strings[key] = self._read_string()
            if self._at > end:
                raise self._refuse_damage(start, "a string of the header goes beyond its end")
        return strings

    def _wait_for_array(self, place: int, prefix: str) -> None:
        if place in self._arrays:
            raise self._refuse_damage(self._at, "two nodes have the same children")
        self._arrays.add(place)
        self._waiting.append((place, prefix))

    def _read_array(self, prefix: str) -> None:
        nodes = self._read_byte()
        if nodes & IS_LARGE_ARRAY:
            nodes = (nodes & ~IS_LARGE_ARRAY) << 8 | self._read_byte()
        for _ in range(nodes):
            self._read_node(prefix)

    def _read_node(self, prefix: str) -> None:
        start = self._at
        flags = self._read_byte()
        word = prefix + self._read_letters(flags)
        if len(word) > LONGEST_WORD:
            raise self._refuse_damage(
                start, f"a word has more than the {LONGEST_WORD} letters that keyboards hold"
            )
        frequency = self._read_byte() if flags & ENDS_A_WORD else 0
        width = flags >> CHILDREN_WIDTH_SHIFT
        if width:
            place = self._at
            self._wait_for_array(place + self._read_number(width), word)
        shortcuts = self._read_shortcuts() if flags & HAS_SHORTCUTS else ()
        followers = self._read_followers() if flags & HAS_FOLLOWERS else []
        if flags & ENDS_A_WORD:
            if word in self._nodes:
                raise self._refuse_damage(start, f"the word {word!r} is there for the second time")
            self._word_at[start] = word
            self._nodes[word] = _WordNode(
                flags=flags,
                frequency=frequency,
                shortcuts=shortcuts,
                followers=followers,
            )
        elif shortcuts or followers:
            raise self._refuse_damage(start, f"{word!r} is not a word, and something follows it")

    def _read_letters(self, flags: int) -> str:
        """Return the letters of a node, whose flags say whether they are several."""
        table = self._letter_table
        if flags & HAS_SEVERAL_LETTERS:
            return self._read_string(table)
        letter = self._read_letter(table)
        if letter is None:
            raise self._refuse_damage(self._at - 1, "a node has no letters")
        return letter

    def _read_string(self, table: str = "") -> str:
        """Return letters up to their end; a table has those that are spelled as one byte."""
        letters = []
        while (letter := self._read_letter(table)) is not None:
            letters.append(letter)
        return "".join(letters)

    def _read_letter(self, table: str) -> str | None:
        """Return the next letter; None at their end."""
        first = self._read_byte()
        if first == END_OF_LETTERS:
            return None
        if first >= FIRST_ONE_BYTE_LETTER:
            place = first - FIRST_ONE_BYTE_LETTER
            return table[place] if place < len(table) else chr(first)
        code = first << 16 | self._read_number(2)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self._refuse_damage(self._at - 3, f"there is no letter {code:#x}")
        return chr(code)

    def _read_shortcuts(self) -> tuple[Shortcut, ...]:
        start = self._at
        size = self._read_number(2)
        shortcuts = []
        has_next = True
        while has_next:
            flags = self._read_byte()
            text = self._read_string()
            shortcuts.append(Shortcut(text=text, level=flags & HIGHEST_LEVEL))
            has_next = bool(flags & HAS_NEXT)
        if self._at - start != size:
            raise self._refuse_damage(start, f"shortcuts have {self._at - start} bytes, not {size}")
        return tuple(shortcuts)

    def _read_followers(self) -> list[tuple[int, int]]:
        """Return the addresses and the levels of the words that may follow a word."""
        followers = []
        has_next = True
        while has_next:
            flags = self._read_byte()
            width = flags >> FOLLOWER_WIDTH_SHIFT & 3
            if not width:
                raise self._refuse_damage(
                    self._at - 1, "a word that follows another has no address"
                )
            start = self._at
            distance = self._read_number(width)
            address = start - distance if flags & IS_BACKWARDS else start + distance
            followers.append((address, flags & HIGHEST_LEVEL))
            has_next = bool(flags & HAS_NEXT)
        return followers

    def _make_entry(self, word: str, node: _WordNode) -> Entry:
        """Return what a word's node says, now that it is known which word is at which address."""
        followers = []
        for address, level in node.followers:
            follower = self._word_at.get(address)
            if follower is None:
                raise self._refuse_damage(
                    address, f"a word should begin there, as it may follow {word!r}"
                )
            followers.append(Follower(word=follower, level=level))
        return Entry(
            frequency=node.frequency,
            followers=tuple(followers),
            shortcuts=node.shortcuts,
            is_not_a_word=bool(node.flags & IS_NOT_A_WORD),
            is_offensive=bool(node.flags & IS_OFFENSIVE),
        )

    def _read_byte(self) -> int:
        at = self._at
        if at >= len(self._content):
            raise self._refuse_damage(len(self._content), UNFINISHED)
        self._at = at + 1
        return self._content[at]

    def _read_number(self, width: int) -> int:
        at = self._at
        if at + width > len(self._content):
            raise self._refuse_damage(len(self._content), UNFINISHED)
        self._at = at + width
        return int.from_bytes(self._content[at : at + width])

    def _refuse_damage(self, place: int, what: str) -> DataError:
        return DataError(f"{self._name} is damaged: at byte {place:,}, {what}; {ADVICE}")


def _describe_other(content: bytes) -> str:
    """Say what a file is that is not a dictionary."""
    if content.lstrip(b" \r\n").startswith(b"dictionary="):
        return (
            "is the source of a dictionary (.combined), not a dictionary: compile it with AOSP's"
            " dicttool"
        )
    if content.startswith(b"\x1f\x8b"):
        return "is packed: unpack it with gunzip"
    if content.startswith(OLD_MAGIC):
        return "is a dictionary of version 1, which keyboards no longer read: name a newer one"
    return "is not a dictionary (.dict) of an AOSP keyboard: name another file"
