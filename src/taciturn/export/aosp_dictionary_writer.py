"""Writes AOSP's binary dictionaries: the same bytes as AOSP's own compiler, without Java.

An address is as short as the distance that it holds, and a distance depends on how long all the
addresses on the way are. So all of them begin with three bytes, and shrink together until none is
longer than it needs to be: AOSP's compiler ends with the same ones.
"""

import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from taciturn.data.vocabulary import DataError
from taciturn.export.aosp_dictionary import (
    CHILDREN_WIDTH_SHIFT,
    END_OF_LETTERS,
    ENDS_A_WORD,
    FARTHEST_ADDRESS,
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
    LAST_ONE_BYTE_LETTER,
    LONGEST_KEY,
    LONGEST_VALUE,
    LONGEST_WORD,
    MAGIC,
    MOST_FREQUENT,
    MOST_NODES_IN_ARRAY,
    MOST_NODES_IN_ONE_BYTE,
    VERSION,
    Dictionary,
    Entry,
    Shortcut,
)
from taciturn.files import write_atomically

LONGEST_SHORTCUTS = 0xFFFF


def write_dictionary(path: Path, dictionary: Dictionary) -> None:
    """Write a dictionary atomically.

    Args:
        path: of the file; keyboards want its name to end in .dict.
        dictionary: its words may stand in any order, and each follower is one of them.

    Raises:
        DataError: a file of this kind cannot hold it.
    """
    write_atomically(path, dictionary_bytes(dictionary))


def dictionary_bytes(dictionary: Dictionary) -> bytes:
    """Return the bytes of a dictionary's file."""
    strings = bytearray()
    for key, value in dictionary.header.items():
        if len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            raise DataError(
                f"keyboards read {LONGEST_VALUE:,} characters of a string in the header, and"
                f" {key[:20]!r} has {len(value):,} (or its own name is over {LONGEST_KEY}):"
                " shorten it"
            )
        strings += _spell(key, f"the header's {key!r}")
        strings.append(END_OF_LETTERS)
        strings += _spell(value, f"the header's {key!r}")
        strings.append(END_OF_LETTERS)
    size = struct.calcsize(FIXED_HEADER) + len(strings)
    header = struct.pack(FIXED_HEADER, MAGIC, VERSION, 0, size) + strings
    return header + _Trie(dictionary.words).to_bytes()


class _Trie:
    """The trie of a dictionary's words, as bytes with gaps where addresses go."""

    def __init__(self, words: dict[str, Entry]) -> None:
        self._words = words
        self._keys = sorted(words)
        # All bytes of the trie but those of addresses.
        self._bytes = bytearray()
        # Of each address: the bytes before it, where its flags are, and by how much the number
        # of its bytes is shifted there.
        self._bytes_before = array("q")
        self._flags_at = array("q")
        self._width_shift = array("q")
        # Of what each address leads to: the bytes and the addresses before it.
        self._target_bytes = array("q")
        self._target_addresses = array("q")
        # The same of the node of each word, and which word each address of a follower leads to.
        self._node_of: dict[str, tuple[int, int]] = {}
        self._word_of: list[tuple[int, str]] = []
        for word, entry in words.items():
            _check_word(word, entry)
        self._add_arrays()
        self._find_followers()

    def _add_arrays(self) -> None:
        """Add arrays of nodes: each before those of its nodes' children, the first child first."""
        # A range of the words, the letters that all of them begin with, and the address to it.
        waiting = [(0, len(self._keys), 0, -1)]
        while waiting:
            start, end, depth, address = waiting.pop()
            if address >= 0:
                self._target_bytes[address] = len(self._bytes)
                self._target_addresses[address] = len(self._target_bytes)
            children = self._add_array(start, end, depth)
            waiting.extend(reversed(children))

    def _add_array(self, start: int, end: int, depth: int) -> list[tuple[int, int, int, int]]:
        """Add an array of nodes; return what its nodes' children are."""
        groups = self._group_words(start, end, depth)
        self._add_count(len(groups))
        children = []
        for first, last in groups:
            letters_end = _shared_letters(self._keys[first], self._keys[last - 1], depth + 1)
            is_word = len(self._keys[first]) == letters_end
            below = first + is_word
            has_children = below < last
            address = self._add_node(self._keys[first], depth, letters_end, is_word, has_children)
            if has_children:
                children.append((below, last, letters_end, address))
        return children

    def _group_words(self, start: int, end: int, depth: int) -> list[tuple[int, int]]:
        """Return the ranges of words that share their letter at a depth."""
        groups = []
        first = start
        for place in range(start + 1, end + 1):
            if place == end or self._keys[place][depth] != self._keys[first][depth]:
                groups.append((first, place))
                first = place
        return groups

    def _add_count(self, nodes: int) -> None:
        if nodes > MOST_NODES_IN_ARRAY:
            raise DataError(
                f"{nodes:,} words begin alike and differ in the next letter; a dictionary holds"
                f" {MOST_NODES_IN_ARRAY:,} such letters: leave out rare words"
            )
        if nodes > MOST_NODES_IN_ONE_BYTE:
            self._bytes.append(IS_LARGE_ARRAY | nodes >> 8)
        self._bytes.append(nodes & 0xFF)

    def _add_node(
        self, word: str, depth: int, letters_end: int, is_word: bool, has_children: bool
    ) -> int:
        """Add the node of a word's letters up to a place; return the address of its children."""
        flags_at = len(self._bytes)
        letters = word[depth:letters_end]
        flags = HAS_SEVERAL_LETTERS if len(letters) > 1 else 0
        if is_word:
            self._node_of[word] = (flags_at, len(self._target_bytes))
            flags |= _word_flags(self._words[word])
        self._bytes.append(flags)
        self._bytes += _spell(letters, f"the word {word!r}")
        if len(letters) > 1:
            self._bytes.append(END_OF_LETTERS)
        if is_word:
            self._bytes.append(self._words[word].frequency)
        address = -1
        if has_children:
            address = self._add_address(flags_at, CHILDREN_WIDTH_SHIFT)
        if is_word:
            self._add_shortcuts(word)
            self._add_followers(word)
        return address

    def _add_address(self, flags_at: int, width_shift: int) -> int:
        """Leave a gap for an address whose number of bytes stands in flags; return its place."""
        self._bytes_before.append(len(self._bytes))
        self._flags_at.append(flags_at)
        self._width_shift.append(width_shift)
        self._target_bytes.append(0)
        self._target_addresses.append(0)
        return len(self._target_bytes) - 1

    def _add_shortcuts(self, word: str) -> None:
        shortcuts = self._words[word].shortcuts
        if not shortcuts:
            return
        spelled = _spell_shortcuts(shortcuts, word)
        # The size counts its own two bytes.
        size = len(spelled) + 2
        if size > LONGEST_SHORTCUTS:
            raise DataError(f"the word {word!r} has too many shortcuts: leave out some")
        self._bytes += size.to_bytes(2, "big") + spelled

    def _add_followers(self, word: str) -> None:
        followers = self._words[word].followers
        last = len(followers) - 1
        for place, follower in enumerate(followers):
            flags_at = len(self._bytes)
            has_next = HAS_NEXT if place < last else 0
            self._bytes.append(has_next | follower.level)
            address = self._add_address(flags_at, FOLLOWER_WIDTH_SHIFT)
            self._word_of.append((address, follower.word))

    def _find_followers(self) -> None:
        """Lead the addresses of followers to their nodes, now that all of these are there."""
        for address, word in self._word_of:
            if word not in self._node_of:
                raise DataError(
                    f"{word!r} follows another word and is not in the dictionary: add it, or leave"
                    " it out there"
                )
            bytes_before, addresses_before = self._node_of[word]
            self._target_bytes[address] = bytes_before
            self._target_addresses[address] = addresses_before

    def to_bytes(self) -> bytes:
        """Return the trie with its addresses."""
        widths, distances = self._shrink_addresses()
        fixed = np.frombuffer(self._bytes, np.uint8).copy()
        fixed[np.asarray(self._flags_at)] |= _flags_of(widths, distances, self._width_shift)
        # Each byte moves back by the addresses before it.
        before = np.asarray(self._bytes_before)
        ends = np.cumsum(widths)
        gap_starts = before + ends - widths
        content = np.zeros(len(fixed) + int(widths.sum()), np.uint8)
        is_address = np.zeros(len(content), bool)
        for byte in range(3):
            has_byte = widths > byte
            places = gap_starts[has_byte] + byte
            shift = 8 * (widths[has_byte] - 1 - byte)
            content[places] = np.abs(distances[has_byte]) >> shift & 0xFF
            is_address[places] = True
        content[~is_address] = fixed
        return content.tobytes()

    def _shrink_addresses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of each address, and the distance that it holds."""
        bytes_before = np.asarray(self._bytes_before)
        target_bytes = np.asarray(self._target_bytes)
        target_addresses = np.asarray(self._target_addresses)
        widths = np.full(len(bytes_before), 3)
        while True:
            width_before = np.concatenate([[0], np.cumsum(widths)])
            starts = bytes_before + width_before[:-1]
            distances = target_bytes + width_before[target_addresses] - starts
            shortest = 1 + (np.abs(distances) > 0xFF) + (np.abs(distances) > 0xFFFF)
            if np.array_equal(shortest, widths):
                break
            widths = shortest
        if np.any(np.abs(distances) > FARTHEST_ADDRESS):
            raise DataError(
                "these words and followers take more than 16 MB, which a dictionary cannot hold:"
                " leave out rare ones"
            )
        return widths, distances


def _check_word(word: str, entry: Entry) -> None:
    """Refuse what a file cannot hold."""
    if not 0 < len(word) <= LONGEST_WORD:
        raise DataError(
            f"a dictionary holds words of 1 to {LONGEST_WORD} letters, and {word!r} has"
            f" {len(word)}: leave it out"
        )
    levels = (*entry.followers, *entry.shortcuts)
    is_in_range = 0 <= entry.frequency <= MOST_FREQUENT
    if not is_in_range or any(not 0 <= level <= HIGHEST_LEVEL for _, level in levels):
        raise DataError(
            f"the word {word!r} has a frequency that is not in 0 to {MOST_FREQUENT}, or a level"
            f" that is not in 0 to {HIGHEST_LEVEL}: correct it"
        )


def _flags_of(widths: np.ndarray, distances: np.ndarray, width_shift: Sequence[int]) -> np.ndarray:
    """Return what the flags of addresses say of their bytes and their direction."""
    backwards = np.where(distances < 0, IS_BACKWARDS, 0)
    return (widths << np.asarray(width_shift) | backwards).astype(np.uint8)


def _word_flags(entry: Entry) -> int:
    flags = ENDS_A_WORD
    if entry.shortcuts:
        flags |= HAS_SHORTCUTS
    if entry.followers:
        flags |= HAS_FOLLOWERS
    if entry.is_not_a_word:
        flags |= IS_NOT_A_WORD
    if entry.is_offensive:
        flags |= IS_OFFENSIVE
    return flags


def _shared_letters(first: str, last: str, known: int) -> int:
    """Return how many letters two words begin with alike, where some are known to be."""
    longest = min(len(first), len(last))
    while known < longest and first[known] == last[known]:
        known += 1
    return known


def _spell_shortcuts(shortcuts: tuple[Shortcut, ...], word: str) -> bytes:
    spelled = bytearray()
    last = len(shortcuts) - 1
    for place, shortcut in enumerate(shortcuts):
        has_next = HAS_NEXT if place < last else 0
        spelled.append(has_next | shortcut.level)
        spelled += _spell(shortcut.text, f"a shortcut of the word {word!r}")
        spelled.append(END_OF_LETTERS)
    return bytes(spelled)


def _spell(text: str, what: str) -> bytes:
    """Return the bytes of some letters.

    Args:
        text: the letters.
        what: they are, for a refusal.
    """
    if text.isascii() and text.isprintable():
        return text.encode("ascii")
    spelled = bytearray()
    for letter in text:
        code = ord(letter)
        if FIRST_ONE_BYTE_LETTER <= code <= LAST_ONE_BYTE_LETTER:
            spelled.append(code)
        elif 0xD800 <= code <= 0xDFFF:
            raise DataError(f"{what} has half a character in it: leave it out, or correct it")
        else:
            spelled += code.to_bytes(3, "big")
    return bytes(spelled)
