"""What a keyboard asks at every keystroke: the next word, the rest of this one, the rest of the
sentence, the best of several readings.

Next word, smart compose and on-the-fly re-scoring are those of Xu et al. 2023, Figure 1. One call
serves one keystroke and takes the text before the caret. `export/runtime/predictor.js` is the same
in the browser, and a test compares the two.
"""

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex

from taciturn.core import UNKNOWN, WordModel
from taciturn.data.users import read_lines
from taciturn.data.vocabulary import (
    SEGMENTED,
    SENTENCE_ENDS,
    DataError,
    Vocabulary,
    is_word,
    normalize,
)

# of the strip
PLACES = 3
# in a continuation, at most
COMPOSED_WORDS = 5
# letters that a continuation must save to be worth showing
LEAST_COMPOSED = 4
# texts whose state is kept
KEPT = 64
# characters that are read of an unknown (pasted) text
FAR_BACK = 500
# a word outside the list has this share, as a logarithm, of what the model gives to all of them
UNKNOWN_WORDS = math.log(1e5)

# The half-typed word at the end of a text. Apostrophes belong to it («don'»), spelled in any way.
_HALF_TYPED = regex.compile(r"[\p{L}\p{M}][\p{L}\p{M}'’‘ʼ`´·\u200c\u200d]*\Z|\d+\Z")
# no space follows them
_OPENING = "([{¿¡«“‘„"


class Suggestions(NamedTuple):
    # for the strip, best first
    words: tuple[str, ...]
    # to be shown behind the caret, and taken as it is; often empty
    continuation: str
    # characters before the caret that a word of the strip stands for
    replaces: int


NOTHING = Suggestions((), "", 0)


class Composed(NamedTuple):
    """A continuation: its words, and the probability of the first one, the first two, …"""

    words: tuple[int, ...]
    probabilities: tuple[float, ...]


class Predictor:
    def __init__(
        self,
        model: WordModel,
        vocabulary: Vocabulary,
        blocklist: Iterable[str] = (),
        threshold: float = 0.5,
    ) -> None:
        """`threshold` is the probability that a continuation must have. Blocked words are never
        suggested, whoever trained the model.
        """
        if model.vocabulary != len(vocabulary):
            raise DataError(
                f"the model knows {model.vocabulary} words, and its word list has {len(vocabulary)}"
            )
        if vocabulary.unit != "word":
            raise DataError("a keyboard suggests words; this model was trained on characters")
        self.model, self.vocabulary, self.threshold = model, vocabulary, threshold
        self._blocked = {normalize(word, vocabulary.language).strip() for word in blocklist} - {""}
        # No special tokens, and no punctuation, which is typed faster than picked.
        words = [(word, place) for place, word in enumerate(vocabulary.words) if is_word(word)]
        self._all = _Alphabet(words)
        self._alphabet = _Alphabet(
            (word, place) for word, place in words if word not in self._blocked
        )
        self.may_be_suggested = np.zeros(len(vocabulary), bool)
        self.may_be_suggested[self._alphabet.places] = True
        self._states: OrderedDict[str, Any] = OrderedDict()
        self._rests: OrderedDict[tuple[str, int], Composed] = OrderedDict()

    def suggest(self, text: str, private: bool = False) -> Suggestions:
        """Return what to show for the text before the caret: nothing, and nothing is kept, in a
        private field.
        """
        if private:
            return NOTHING
        half = (
            None
            if self.vocabulary.language in SEGMENTED
            else _HALF_TYPED.search(text, max(0, len(text) - 100))
        )
        # what is finished, and the word that is being typed
        done, typed = (text[: half.start()], half[0]) if half else (text, "")
        state = self._state(done)
        scores = self.model.scores(state)
        prefix = normalize(typed, self.vocabulary.language)
        capital = typed[:1].isupper() if typed else _begins_sentence(done)
        words = (
            self._shouted(self._spelled(place), typed) for place in self.candidates(scores, prefix)
        )
        strip = tuple(self._capital(word) if capital else word for word in words)
        composed = self.compose(scores, prefix, state, self.threshold, done)
        return Suggestions(strip, self._continuation(composed, done, typed, prefix), len(typed))

    def forget(self) -> None:
        """Forget what was typed: a message was sent, or a field left."""
        self._states.clear()
        self._rests.clear()

    def candidates(self, scores: np.ndarray, prefix: str = "", count: int = PLACES) -> list[int]:
        """Return the likeliest words that begin with the prefix and are longer."""
        places = self._alphabet.beginning_with(prefix, longer=True)
        if len(places) > count:
            last = np.partition(scores[places], -count)[-count]
            # with all that are as likely as the last
            places = places[scores[places] >= last]
        ranked = sorted(places.tolist(), key=lambda place: (-scores[place], place))
        return [place for place in ranked[:count] if scores[place] > -math.inf]

    def rank(self, scores: np.ndarray, place: int, prefix: str = "") -> int | None:
        """Return a word's place among all with this prefix, 0 for the first `candidate`; None where
        it is never suggested.
        """
        if not self.may_be_suggested[place]:
            return None
        places = self._alphabet.beginning_with(prefix, longer=True)
        others, own = scores[places], scores[place]
        return int(np.count_nonzero((others > own) | ((others == own) & (places < place))))

    def compose(
        self, scores: np.ndarray, prefix: str, state: Any, threshold: float, key: str | None = None
    ) -> Composed:
        """Return the likeliest continuation, word by word, as long as its probability is at least
        the threshold.
        """
        first, probability = self._first_word(scores, prefix)
        if probability < threshold:
            return Composed((), ())
        rest = self._rest(state, first, threshold, key)
        kept = [probability * one for one in rest.probabilities if probability * one >= threshold]
        return Composed(rest.words[: len(kept)], tuple(kept))

    def _first_word(self, scores: np.ndarray, prefix: str) -> tuple[int, float]:
        """Return the likeliest word with this prefix (which may be all of it), and how likely it is
        once the prefix is typed.
        """
        places = self._alphabet.beginning_with(prefix)
        if not len(places):
            return UNKNOWN, 0.0
        best = int(places[np.argmax(scores[places])])
        probability = math.exp(scores[best])
        if not prefix:
            return best, probability
        # Blocked words may be meant too, and words outside the list, which are assumed to begin
        # like those in it.
        meant = self._all.beginning_with(prefix)
        unknown = math.exp(scores[UNKNOWN]) * len(meant) / len(self._all.places)
        whole = float(np.exp(scores[meant]).sum()) + unknown
        return best, probability / whole if whole > 0 else 0.0

    def _rest(self, state: Any, first: int, threshold: float, key: str | None) -> Composed:
        """Return the words from the first on; they are kept while it is being typed."""
        known = (key, first) if key is not None else None
        if known in self._rests:
            return self._rests[known]
        words, probabilities, state = [first], [1.0], self.model.read(state, first)
        while len(words) < COMPOSED_WORDS:
            scores = self.model.scores(state)
            following = int(np.argmax(scores))
            probability = probabilities[-1] * math.exp(scores[following])
            if probability < threshold or not self.may_be_suggested[following]:
                break
            words.append(following)
            probabilities.append(probability)
            state = self.model.read(state, following)
        rest = Composed(tuple(words), tuple(probabilities))
        if known:
            _keep(self._rests, known, rest)
        return rest

    def _continuation(self, composed: Composed, done: str, typed: str, prefix: str) -> str:
        between = "" if self.vocabulary.language in SEGMENTED else " "
        text = between.join(map(self._spelled, composed.words))
        if sum(letter != " " for letter in text) - len(prefix) < LEAST_COMPOSED:
            return ""
        # assembled from its parts
        if not between and any(word in text for word in self._blocked):
            return ""
        if prefix:
            return self._shouted(text[len(prefix) :], typed)
        space = between if _wants_space(done) else ""
        return space + (self._capital(text) if _begins_sentence(done + space) else text)

    def rescore(
        self,
        text: str,
        readings: Sequence[tuple[str, float]],
        weight: float = 1.0,
        private: bool = False,
    ) -> list[tuple[str, float]]:
        """Rank readings (word, log-likelihood of the taps) by what the model expects next; in a
        private field by the taps alone.
        """
        if private:
            return sorted(readings, key=lambda one: -one[1])
        scores = self.model.scores(self._state(text))
        return sorted(
            ((word, taps + weight * self.expected(scores, word)) for word, taps in readings),
            key=lambda one: -one[1],
        )

    def expected(self, scores: np.ndarray, word: str) -> float:
        """Return the log-probability of a word, known or not."""
        place = self.vocabulary.ids.get(normalize(word, self.vocabulary.language), UNKNOWN)
        return float(scores[place]) - (UNKNOWN_WORDS if place == UNKNOWN else 0.0)

    def _state(self, done: str) -> Any:
        """Return the model's state after a text, continued from the longest known text before
        it.
        """
        if done not in self._states:
            # A word may continue after anything but a space («...»), so a text may be split only
            # there.
            before = (
                text for text in self._states if done.startswith(text) and text[-1:].isspace()
            )
            known = max(before, key=len, default="")
            new = done[len(known) :]
            state = self._states[known] if known else self.model.start()
            if len(new) > FAR_BACK:
                # Without the incomplete word at its beginning, if the text has spaces at all.
                state, new = self.model.start(), regex.sub(r"\A\S*\s", "", new[-FAR_BACK:])
            for word in self.vocabulary.encode(new):
                state = self.model.read(state, word)
            _keep(self._states, done, state)
        self._states.move_to_end(done)
        return self._states[done]

    def _spelled(self, place: int) -> str:
        """Spell a word of the list, which has no capitals; English has one that is always
        written.
        """
        word = self.vocabulary.words[place]
        return (
            self._capital(word)
            if self.vocabulary.language == "en" and regex.match(r"i(?:'|\Z)", word)
            else word
        )

    def _capital(self, word: str) -> str:
        return self._upper(word[:1]) + word[1:]

    def _shouted(self, word: str, typed: str) -> str:
        """Write it in capitals, where the person does."""
        return self._upper(word) if len(typed) > 1 and typed.isupper() else word

    def _upper(self, word: str) -> str:
        return (word.replace("i", "İ") if self.vocabulary.language == "tr" else word).upper()


class _Alphabet:
    """A flattened trie: sorted words, so that those with a common prefix are adjacent."""

    def __init__(self, words: Iterable[tuple[str, int]]) -> None:
        ordered = sorted(words)
        self._spellings = [word for word, _ in ordered]
        self.places = np.array([place for _, place in ordered], np.int64)

    def beginning_with(self, prefix: str, longer: bool = False) -> np.ndarray:
        """Return the ids of the words that start with this prefix; with `longer`, without the
        prefix itself.
        """
        if not prefix:
            return self.places
        start, end = (
            bisect_left(self._spellings, prefix),
            bisect_left(self._spellings, f"{prefix}\U0010ffff"),
        )
        return self.places[
            start + (longer and start < end and self._spellings[start] == prefix) : end
        ]


def _wants_space(done: str) -> bool:
    """Return whether a space must separate the text from what follows."""
    if not done or done[-1].isspace() or done[-1] in _OPENING:
        return False
    # a quotation mark that opens
    return done[-1] not in "\"'" or not (len(done) == 1 or done[-2].isspace())


def _begins_sentence(done: str) -> bool:
    before = done.rstrip(" ")
    return (
        not before
        or before[-1] == "\n"
        or (before.endswith(SENTENCE_ENDS) and len(before) < len(done))
    )


def _keep(kept: OrderedDict, key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > KEPT:
        kept.popitem(last=False)


def load_blocklist(path: Path) -> list[str]:
    """Read one word a line; what follows a # is a comment."""
    return [word for line in read_lines(path, "word") if (word := line.split("#")[0].strip())]
