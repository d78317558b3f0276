"""Fingers on glass: where taps land, and which words they may have meant.

A stated model, so that figures can be compared: a QWERTY of keys one wide and 1.4 high, taps normal
around the middle of the intended key. The decoder proposes the words of the list, as long as what
was tapped, under which the taps are likeliest, and what the taps spell; a language model then ranks
them (on-the-fly re-scoring, Xu et al. 2023).
"""

import unicodedata
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from taciturn.data.vocabulary import Vocabulary, is_word

ROWS = (("qwertyuiop", 0.0), ("asdfghjkl'", 0.25), ("zxcvbnm", 0.75))
HEIGHT = 1.4
# Standard deviation of a tap, in widths of a key: about one in twelve lands on another key.
SPREAD = 0.28
READINGS = 10


def _place_keys() -> dict[str, tuple[float, float]]:
    """Return the middle of the key of each letter."""
    places = {}
    for row, (letters, offset) in enumerate(ROWS):
        for column, letter in enumerate(letters):
            places[letter] = (offset + column, HEIGHT * row)
    return places


_PLACES = _place_keys()
_LETTERS = "".join(_PLACES)
_CENTRES = np.array([_PLACES[letter] for letter in _LETTERS])


def keys_of(word: str) -> np.ndarray | None:
    """Return the keys a word is typed with, as numbers; None if a character is on no key.

    Accents are left to the keyboard.
    """
    decomposed = unicodedata.normalize("NFD", word)
    letters = [letter for letter in decomposed if not unicodedata.combining(letter)]
    keys = [_LETTERS.find(letter) for letter in letters]
    can_be_typed = bool(keys) and min(keys) >= 0
    return np.array(keys) if can_be_typed else None


def draw_taps(keys: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw where the finger lands for each key, [taps, 2]."""
    return _CENTRES[keys] + generator.normal(0.0, SPREAD, (len(keys), 2))


class _Words(NamedTuple):
    """The words that are typed with the same number of keys."""

    # Their ids, [words].
    places: np.ndarray
    # [words, keys].
    keys: np.ndarray


def _stack_words(words: list[tuple[int, np.ndarray]]) -> _Words:
    places = [place for place, _ in words]
    keys = [word_keys for _, word_keys in words]
    return _Words(np.array(places), np.array(keys))


class TapDecoder:
    """Propose words for taps, with the log-likelihood of the taps under each."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        by_length: defaultdict[int, list[tuple[int, np.ndarray]]] = defaultdict(list)
        for place, word in enumerate(vocabulary.words):
            keys = keys_of(word)
            if keys is not None and is_word(word):
                by_length[len(keys)].append((place, keys))
        self._by_length = {length: _stack_words(words) for length, words in by_length.items()}

    def propose(self, taps: np.ndarray) -> list[tuple[str, float]]:
        """Return the likeliest words, best first; last what the taps spell, if it is not a word."""
        likelihoods = _score_keys(taps)
        words = self._find_likeliest(likelihoods)
        spelled = _spell(likelihoods)
        if spelled[0] in dict(words):
            return words
        return [*words, spelled]

    def _find_likeliest(self, likelihoods: np.ndarray) -> list[tuple[str, float]]:
        length = len(likelihoods)
        if length not in self._by_length:
            return []
        words = self._by_length[length]
        scores = likelihoods[np.arange(length), words.keys].sum(axis=1)
        # Among equally likely words the more frequent first, which is the order of the list.
        likeliest = np.argsort(-scores, kind="stable")[:READINGS]
        proposed = []
        for number in likeliest:
            word = self.vocabulary.words[words.places[number]]
            proposed.append((word, float(scores[number])))
        return proposed


def _score_keys(taps: np.ndarray) -> np.ndarray:
    """Return how likely each tap is for each key, as a logarithm: [taps, keys]."""
    distances = np.sum((taps[:, None] - _CENTRES) ** 2, axis=2)
    return -distances / (2 * SPREAD**2)


def _spell(likelihoods: np.ndarray) -> tuple[str, float]:
    """Return the nearest keys as a word, and how likely the taps are for them."""
    nearest = np.argmax(likelihoods, axis=1)
    word = "".join(_LETTERS[key] for key in nearest)
    likelihood = likelihoods[np.arange(len(nearest)), nearest].sum()
    return word, float(likelihood)
