"""Fingers on glass: where taps land, and which words they may have meant.

A stated model, so that figures can be compared: a QWERTY of keys one wide and 1.4 high, taps normal
around the middle of the intended key. The decoder proposes the words of the list, as long as what
was tapped, under which the taps are likeliest, and what the taps spell; a language model then ranks
them (on-the-fly re-scoring, Xu et al. 2023).
"""

import unicodedata

import numpy as np

from taciturn.data.vocabulary import Vocabulary, is_word

ROWS = (("qwertyuiop", 0.0), ("asdfghjkl'", 0.25), ("zxcvbnm", 0.75))
HEIGHT = 1.4
# standard deviation of a tap, in widths of a key: about one in twelve lands on another key
SPREAD = 0.28
READINGS = 10

_PLACES = {
    letter: (offset + column, HEIGHT * row)
    for row, (letters, offset) in enumerate(ROWS)
    for column, letter in enumerate(letters)
}
_LETTERS = "".join(_PLACES)
_CENTRES = np.array([_PLACES[letter] for letter in _LETTERS])


def keys_of(word: str) -> np.ndarray | None:
    """Return the keys a word is typed with, as numbers; accents are left to the keyboard. None if a
    character is on no key.
    """
    letters = "".join(
        letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter)
    )
    places = [_LETTERS.find(letter) for letter in letters]
    return np.array(places) if places and min(places) >= 0 else None


def draw_taps(keys: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw where the finger lands for each key, [taps, 2]."""
    return _CENTRES[keys] + generator.normal(0.0, SPREAD, (len(keys), 2))


class TapDecoder:
    """Propose words for taps, with the log-likelihood of the taps under each."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, found = vocabulary, dict[int, list[tuple[int, np.ndarray]]]()
        for place, word in enumerate(vocabulary.words):
            keys = keys_of(word)
            if keys is not None and is_word(word):
                found.setdefault(len(keys), []).append((place, keys))
        # for each length, the ids of the words and their keys
        self._by_length = {
            length: tuple(map(np.array, zip(*words, strict=True)))
            for length, words in found.items()
        }

    def readings(self, taps: np.ndarray) -> list[tuple[str, float]]:
        """Return the likeliest words, best first, and last what the taps spell, if that is not
        among them.
        """
        # [taps, keys]: how likely each tap is for each key.
        distances = np.sum((taps[:, None] - _CENTRES) ** 2, axis=2)
        likelihoods = -distances / (2 * SPREAD**2)
        nearest = np.argmax(likelihoods, axis=1)
        spelled = "".join(_LETTERS[key] for key in nearest)
        literal = float(likelihoods[np.arange(len(taps)), nearest].sum())
        places, keys = self._by_length.get(
            len(taps), (np.zeros(0, int), np.zeros((0, len(taps)), int))
        )
        scores = likelihoods[np.arange(len(taps)), keys].sum(axis=1)
        # Among equally likely words the more frequent first, which is the order of the list.
        best = np.argsort(-scores, kind="stable")[:READINGS]
        words = [(self.vocabulary.words[places[one]], float(scores[one])) for one in best]
        return words if spelled in dict(words) else [*words, (spelled, literal)]
