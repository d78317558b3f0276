"""AOSP's binary dictionaries (`.dict`, version 202), of HeliBoard and other keyboards.

The file is a header of strings, then a trie of words: arrays of nodes, each with some letters and,
where a word ends, with its frequency. `aosp_dictionary_writer` writes one and
`aosp_dictionary_reader` reads one; here is what both know.

The layout is the one that AOSP's FormatSpec.java describes.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MAGIC = 0x9BC13AFE
VERSION = 202
# The magic number, the version, flags that mean nothing any more, and the size of the header.
FIXED_HEADER = ">IHHI"

MOST_FREQUENT = 255
HIGHEST_LEVEL = 15
# AOSP's compiler leaves out longer words.
LONGEST_WORD = 47
# They read a header's strings into room for these, and lose their place after a longer one.
LONGEST_KEY = 255
LONGEST_VALUE = 2047
MOST_NODES_IN_ARRAY = 0x7FFF
FARTHEST_ADDRESS = 0xFFFFFF

# A letter between these is one byte, any other is three.
FIRST_ONE_BYTE_LETTER = 0x20
LAST_ONE_BYTE_LETTER = 0xFF
END_OF_LETTERS = 0x1F

# Arrays of more nodes have their number in two bytes, and this bit in the first.
MOST_NODES_IN_ONE_BYTE = 0x7F
IS_LARGE_ARRAY = 0x80

# The flags of a node; the two bits above them are the bytes of its children's address.
CHILDREN_WIDTH_SHIFT = 6
HAS_SEVERAL_LETTERS = 0x20
ENDS_A_WORD = 0x10
HAS_SHORTCUTS = 0x08
HAS_FOLLOWERS = 0x04
IS_NOT_A_WORD = 0x02
IS_OFFENSIVE = 0x01

# The flags of a follower or a shortcut; bits 4 and 5 are the bytes of a follower's address.
HAS_NEXT = 0x80
IS_BACKWARDS = 0x40
FOLLOWER_WIDTH_SHIFT = 4


class Follower(NamedTuple):
    """A word that may follow another, and by how much it is likelier there: 0 to 15."""

    word: str
    level: int


class Shortcut(NamedTuple):
    """What a keyboard suggests in place of a word, and how strongly: 0 to 15."""

    text: str
    level: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What a dictionary says of a word."""

    # From 0, which is never suggested, to 255.
    frequency: int
    followers: tuple[Follower, ...] = ()
    shortcuts: tuple[Shortcut, ...] = ()
    is_not_a_word: bool = False
    is_offensive: bool = False


@dataclass(frozen=True, kw_only=True)
class Dictionary:
    """Words and what is said of them, and a header of strings such as its locale."""

    header: dict[str, str]
    words: dict[str, Entry]


def to_level(frequency: int, frequency_after: int) -> int:
    """Return the level that a file keeps of how frequent a word is after another.

    Args:
        frequency: of the word, after any other.
        frequency_after: of the word, after this one.

    >>> to_level(100, 180)
    7
    """
    return _levels()[frequency][frequency_after]


def from_level(frequency: int, level: int) -> int:
    """Return how frequent a keyboard takes a word to be after another.

    Args:
        frequency: of the word, after any other.
        level: of the word, after this one.

    >>> from_level(100, 7)
    175
    """
    return _frequencies_after()[frequency][level]


# Keyboards and AOSP's compiler compute with 32 bits, which decides what is halfway between levels.
@functools.cache
def _levels() -> list[list[int]]:
    """Return the level by a word's frequency and its frequency after another word."""
    frequency, frequency_after = np.indices((MOST_FREQUENT + 1, MOST_FREQUENT + 1), np.float32)
    step = _level_step(frequency)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = (frequency_after - (1 + frequency + step / 2)) / step
    levels = np.where(step > 0, levels, 0)
    return levels.clip(0, HIGHEST_LEVEL).astype(int).tolist()


@functools.cache
def _frequencies_after() -> list[list[int]]:
    """Return the frequency after another word by a word's frequency and its level."""
    frequency, level = np.indices((MOST_FREQUENT + 1, HIGHEST_LEVEL + 1), np.float32)
    beyond = (level + 1) * _level_step(frequency)
    return (frequency.astype(int) + beyond.astype(int)).tolist()


def _level_step(frequency: np.ndarray) -> np.ndarray:
    return (MOST_FREQUENT - frequency) / np.float32(HIGHEST_LEVEL + 1.5)
