"""A keyboard's dictionary as it suggests: words with frequencies, and words that follow others.

So AOSP's LatinIME uses one, and HeliBoard after it (read in its version 3.9, of March 2026):

- A frequency is a logarithm of a probability: 255 for certainty, one less for each factor of 1.15.
- Before a word is begun, only words that follow the last one are suggested, the likeliest first;
  at the beginning of a sentence none, unless the dictionary says what begins one.
- A begun word is completed to any word of the dictionary. Those that follow the last word have the
  frequency that they have there, which is never below their own; all others have their own. (AOSP's
  penalty for these is switched off.) Every letter that is missing costs 1.4 steps of frequency.

Left out are corrections of what was typed, the words that a keyboard learns from its owner, and the
limit of the app's search: it keeps a few hundred beginnings of words, and may lose long words.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taciturn.core import BEGIN, END

MOST = 255
STEP = math.log(1.15)
# No frequency: such a word is never suggested.
NEVER = -1
# Costs of LatinIME (scoring_params.cpp): of a letter that completes, and of all of f together.
LETTER_COST = 0.00624
LANGUAGE_COST = 1.1214
LETTER_STEPS = MOST * LETTER_COST / LANGUAGE_COST

# The word before, or BEGIN at the beginning of a sentence.
State = int


@dataclass(frozen=True, eq=False)
class SuggestionDictionary:
    """A `WordModel` whose scores order suggestions, but are not those of a distribution."""

    # [vocabulary]; `NEVER` for what is not suggested.
    frequency: np.ndarray
    # [vocabulary], of each word.
    letters: np.ndarray
    # [vocabulary + 1]: where the followers of a word begin and end.
    starts: np.ndarray
    # [followers]: their ids, and the frequencies they have there.
    followers: np.ndarray
    follower_frequency: np.ndarray
    # After these a sentence begins.
    sentence_ends: frozenset[int]

    @classmethod
    def of(
        cls,
        words: tuple[str, ...],
        frequency: Mapping[int, int],
        followers: Mapping[int, Mapping[int, int]],
        sentence_ends: Iterable[int],
    ) -> "SuggestionDictionary":
        """Return the dictionary of these words.

        Args:
            words: the vocabulary.
            frequency: of the words that are suggested.
            followers: of each word, the words that follow it, with the frequencies they have there;
                those of BEGIN begin sentences.
            sentence_ends: words after which a sentence begins.
        """
        frequencies = np.full(len(words), NEVER, np.int32)
        frequencies[list(frequency)] = list(frequency.values())
        counts = np.zeros(len(words) + 1, np.int64)
        for word, after_word in followers.items():
            counts[word + 1] = len(after_word)
        in_order = [followers[word] for word in sorted(followers)]
        return cls(
            frequency=frequencies,
            letters=np.array([len(word) for word in words]),
            starts=np.cumsum(counts),
            followers=np.array([place for after in in_order for place in after], np.int32),
            follower_frequency=np.array(
                [f for after in in_order for f in after.values()], np.int32
            ),
            sentence_ends=frozenset((END, *sentence_ends)),
        )

    @property
    def vocabulary(self) -> int:
        """Return the number of its words."""
        return len(self.frequency)

    def start(self) -> State:
        """Return the state at the beginning of a message, where a sentence begins."""
        return BEGIN

    def read(self, state: State, word: int) -> State:
        """Return the state after one more word."""
        return BEGIN if word in self.sentence_ends else word

    def scores(self, state: State) -> np.ndarray:
        """Return what orders the words to suggest before one is begun; −∞ for all others."""
        scores = np.full(self.vocabulary, -np.inf, np.float32)
        places = self._places_of_followers(state)
        scores[self.followers[places]] = STEP * (self.follower_frequency[places] - MOST)
        return scores

    def completion_scores(self, state: State) -> np.ndarray:
        """Return what orders the words to which a begun word may be completed."""
        scores = self._scores_alone.copy()
        places = self._places_of_followers(state)
        words = self.followers[places]
        scores[words] = self._score_completions(words, self.follower_frequency[places])
        return scores

    def _places_of_followers(self, state: State) -> slice:
        return slice(int(self.starts[state]), int(self.starts[state + 1]))

    @cached_property
    def _scores_alone(self) -> np.ndarray:
        """Score completions that follow no word."""
        everything = np.arange(self.vocabulary)
        scores = self._score_completions(everything, self.frequency)
        scores[self.frequency == NEVER] = -np.inf
        return scores

    def _score_completions(self, words: np.ndarray, frequency: np.ndarray) -> np.ndarray:
        steps = frequency - MOST - LETTER_STEPS * self.letters[words]
        return (STEP * steps).astype(np.float32)
