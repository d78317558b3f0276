"""How often each n-gram occurs, counted by sorting: what the estimators of models/ngram.py begin with.

An n-gram is known by its place among those of its length, which are sorted by context and then by word. So its context is a place one
length below, and no number of words is too large: nothing is ever packed but one place and one word.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from taciturn.core import BEGIN, END, PADDING


class Counts(NamedTuple):
    """The n-grams of one length."""

    keys: np.ndarray  # uint64, sorted: the place of the context one length below × vocabulary + the word
    counts: np.ndarray
    shorter: np.ndarray  # int32: the place, one length below, of the n-gram without its first word


def counted(texts: Iterable[np.ndarray], vocabulary: int, order: int) -> list[Counts]:
    """The n-grams of all lengths up to `order`. None crosses the end of a message, and none ends in BEGIN."""
    if not 1 <= order <= 5:
        raise ValueError(f"an n-gram model has an order from 1 to 5, and not {order}")
    words = _messages(texts, vocabulary)
    unigrams = np.bincount(words, minlength=vocabulary)
    unigrams[BEGIN] = 0
    levels = [Counts(np.arange(vocabulary, dtype=np.uint64), unigrams, np.zeros(vocabulary, np.int32))]
    places = words  # of the n-gram that ends at each position; −1 where a message is not that long yet
    for _ in range(1, order):
        ends = (np.flatnonzero((places[:-1] >= 0) & (words[1:] != BEGIN)) + 1).astype(np.int32)
        keys = joined(places[ends - 1], words[ends], vocabulary)
        by_key = np.argsort(keys)
        keys, ends = keys[by_key], ends[by_key]
        del by_key
        is_first = np.ones(len(keys), bool)
        is_first[1:] = keys[1:] != keys[:-1]
        first = np.flatnonzero(is_first)
        counts = np.diff(first, append=len(keys)).astype(np.int32)
        levels.append(Counts(keys[first], counts, places[ends[first]]))
        del keys, first
        places = np.full(len(words), -1, np.int32)
        places[ends] = np.cumsum(is_first, dtype=np.int32) - 1
    return levels


def joined(contexts: np.ndarray, words: np.ndarray, vocabulary: int) -> np.ndarray:
    """The keys of n-grams: the places of their contexts and their words."""
    keys = contexts.astype(np.uint64)
    keys *= np.uint64(vocabulary)
    keys += words.astype(np.uint64)
    return keys


def parted(keys: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """The contexts' places and the words of keys, int32."""
    contexts = keys // np.uint64(vocabulary)
    return contexts.astype(np.int32), (keys - contexts * np.uint64(vocabulary)).astype(np.int32)


def continuations(levels: list[Counts]) -> list[Counts]:
    """Kneser and Ney's counts: below the highest order, an n-gram counts once for each word that was seen before it. Nothing is ever
    before BEGIN, so n-grams that start there keep their own."""
    below = []
    for level, longer in pairwise(levels):
        seen_before = np.bincount(longer.shorter, minlength=len(level.counts))
        below.append(level._replace(counts=np.where(seen_before > 0, seen_before, level.counts)))
    return [*below, levels[-1]]


def _messages(texts: Iterable[np.ndarray], vocabulary: int) -> np.ndarray:
    """All texts end to end as int32, with BEGIN before every message."""
    parts = [np.asarray(text, np.int32) for text in texts if len(text)]
    words = np.concatenate([*parts, np.zeros(0, np.int32)])
    if not len(words):
        return words
    if words.min() < 0 or words.max() >= vocabulary:
        raise ValueError(f"a text holds the word {words.max()}, and there are {vocabulary} words: it is of another list")
    if np.any((words == PADDING) | (words == BEGIN)):
        raise ValueError("a text to count holds padding or <bos>; give the words alone, each message closed by <eos>")
    starts_text = np.cumsum([0, *map(len, parts)])[:-1]
    starts = np.union1d(starts_text, 1 + np.flatnonzero(words[:-1] == END))
    return np.insert(words, starts, BEGIN)
