"""What a keyboard asks at every keystroke.

It asks for the next word, the rest of this one, the rest of the sentence, and the best of several
readings. Next word, smart compose and on-the-fly re-scoring are those of Xu et al. 2023, Figure 1.
One call serves one keystroke and takes the text before the caret. `export/runtime/predictor.js` is
the same in the browser, and a test compares the two.
"""

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import reduce
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
    spell_for_display,
)

# Of the strip.
PLACES = 3
# In a continuation, at most.
COMPOSED_WORDS = 5
# Letters that a continuation must save to be worth showing.
LEAST_COMPOSED = 4
# Texts whose state is kept.
KEPT = 64
# Characters that are read of an unknown (pasted) text.
FAR_BACK = 500
# A word outside the list has this share, as a logarithm, of what the model gives to all of them.
UNKNOWN_WORDS = math.log(1e5)

# The half-typed word at the end of a text. Apostrophes belong to it («don'»), spelled in any way.
_HALF_TYPED = regex.compile(r"[\p{L}\p{M}][\p{L}\p{M}'’‘ʼ`´·\u200c\u200d]*\Z|\d+\Z")
# The letters before the caret among which it is looked for.
_LONGEST_HALF_TYPED = 100
# No space follows them.
_OPENING = "([{¿¡«“‘„"

# A word, and the log-likelihood of what was tapped under it.
Reading = tuple[str, float]


class Suggestions(NamedTuple):
    """What a keyboard shows."""

    # For the strip, best first.
    words: tuple[str, ...]
    # To be shown behind the caret, and taken as it is; often empty.
    continuation: str
    # Characters before the caret that a word of the strip stands for.
    replaces: int


NOTHING = Suggestions(words=(), continuation="", replaces=0)


class Composed(NamedTuple):
    """A continuation: its words, and the probability of the first one, the first two, …"""

    words: tuple[int, ...]
    probabilities: tuple[float, ...]


class _FirstWord(NamedTuple):
    """The first word of a continuation, once its prefix is typed."""

    place: int
    probability: float


class Predictor:
    """Suggest words to one keyboard, and remember the state of the model after its texts."""

    def __init__(
        self,
        model: WordModel,
        vocabulary: Vocabulary,
        *,
        blocklist: Iterable[str] = (),
        threshold: float = 0.5,
    ) -> None:
        """Make a predictor.

        Args:
            model: what finds words likely.
            vocabulary: its words.
            blocklist: words that are never suggested, by any model.
            threshold: the probability that a continuation must have.

        Raises:
            DataError: the model has other words, or characters.
        """
        if model.vocabulary != len(vocabulary):
            raise DataError(
                f"the model knows {model.vocabulary} words, and its word list has {len(vocabulary)}"
            )
        if vocabulary.unit != "word":
            raise DataError("a keyboard suggests words; this model was trained on characters")
        self.model = model
        self.vocabulary = vocabulary
        self.threshold = threshold
        self._blocked = _normalize_blocklist(blocklist, vocabulary.language)
        words = _list_words(vocabulary)
        allowed = [(word, place) for word, place in words if word not in self._blocked]
        self._all = _Alphabet(words)
        self._alphabet = _Alphabet(allowed)
        self.may_be_suggested = np.zeros(len(vocabulary), bool)
        self.may_be_suggested[self._alphabet.places] = True
        self._states: OrderedDict[str, Any] = OrderedDict()
        self._rests: OrderedDict[tuple[str, int], Composed] = OrderedDict()

    def suggest(self, text: str, private: bool = False) -> Suggestions:
        """Return what to show for the text before the caret.

        In a private field that is nothing, and nothing is kept.
        """
        if private:
            return NOTHING
        done, typed = self._split_half_typed(text)
        prefix = normalize(typed, self.vocabulary.language)
        state = self._state_after(done)
        scores = self.model.scores(state)
        composed = self.compose(
            scores,
            prefix=prefix,
            state=state,
            threshold=self.threshold,
            key=done,
        )
        return Suggestions(
            words=self._write_strip(
                self.candidates(scores, prefix),
                done=done,
                typed=typed,
            ),
            continuation=self._write_continuation(
                composed,
                done=done,
                typed=typed,
                prefix=prefix,
            ),
            replaces=len(typed),
        )

    def forget(self) -> None:
        """Forget what was typed: a message was sent, or a field left."""
        self._states.clear()
        self._rests.clear()

    def candidates(self, scores: np.ndarray, prefix: str = "", count: int = PLACES) -> list[int]:
        """Return the likeliest words that begin with the prefix and are longer."""
        places = self._alphabet.beginning_with(prefix, longer=True)
        if len(places) > count:
            last = np.partition(scores[places], -count)[-count]
            # With all that are as likely as the last.
            places = places[scores[places] >= last]
        ranked = sorted(places.tolist(), key=lambda place: (-scores[place], place))
        return [place for place in ranked[:count] if scores[place] > -math.inf]

    def rank(self, scores: np.ndarray, place: int, prefix: str = "") -> int | None:
        """Return a word's place among all with this prefix, 0 for the first `candidate`.

        It is None where the word is never suggested.
        """
        if not self.may_be_suggested[place] or scores[place] == -math.inf:
            return None
        places = self._alphabet.beginning_with(prefix, longer=True)
        others = scores[places]
        is_as_likely_and_before = (others == scores[place]) & (places < place)
        is_preferred = (others > scores[place]) | is_as_likely_and_before
        return int(np.count_nonzero(is_preferred))

    def compose(
        self,
        scores: np.ndarray,
        *,
        prefix: str,
        state: Any,
        threshold: float,
        key: str | None = None,
    ) -> Composed:
        """Return the likeliest continuation, word by word, while it is likely enough.

        Args:
            scores: of the words to come next.
            prefix: what is typed of the first one.
            state: of the model, in which it gave these scores.
            threshold: the least probability of a continuation.
            key: of the text before it, under which the words after the first one are kept.
        """
        first = self._choose_first_word(scores, prefix)
        if first.probability < threshold:
            return Composed((), ())
        rest = self._compose_rest(state, first.place, threshold, key)
        probabilities = [first.probability * probability for probability in rest.probabilities]
        kept = [probability for probability in probabilities if probability >= threshold]
        return Composed(rest.words[: len(kept)], tuple(kept))

    def _choose_first_word(self, scores: np.ndarray, prefix: str) -> _FirstWord:
        """Return the likeliest word with this prefix, which may be all of it."""
        places = self._alphabet.beginning_with(prefix)
        if not len(places):
            return _FirstWord(UNKNOWN, 0.0)
        best = int(places[np.argmax(scores[places])])
        probability = math.exp(scores[best])
        whole = self._probability_of_prefix(scores, prefix) if prefix else 1.0
        return _FirstWord(best, probability / whole if whole > 0 else 0.0)

    def _probability_of_prefix(self, scores: np.ndarray, prefix: str) -> float:
        """Return how likely it was that this would be typed.

        Blocked words may be meant too, and words outside the list, which are assumed to begin like
        those in it.
        """
        meant = self._all.beginning_with(prefix)
        unknown = math.exp(scores[UNKNOWN]) * len(meant) / len(self._all.places)
        return float(np.exp(scores[meant]).sum()) + unknown

    def _compose_rest(self, state: Any, first: int, threshold: float, key: str | None) -> Composed:
        """Return the words from the first on; they are kept while it is being typed."""
        if key is None:
            return self._continue_word(state, first, threshold)
        if (key, first) not in self._rests:
            rest = self._continue_word(state, first, threshold)
            _keep(self._rests, (key, first), rest)
            return rest
        return self._rests[key, first]

    def _continue_word(self, state: Any, first: int, threshold: float) -> Composed:
        words = [first]
        probabilities = [1.0]
        while len(words) < COMPOSED_WORDS:
            state = self.model.read(state, words[-1])
            scores = self.model.scores(state)
            word = int(np.argmax(scores))
            probability = probabilities[-1] * math.exp(scores[word])
            if probability < threshold or not self.may_be_suggested[word]:
                break
            words.append(word)
            probabilities.append(probability)
        return Composed(
            words=tuple(words),
            probabilities=tuple(probabilities),
        )

    def _write_strip(self, places: list[int], *, done: str, typed: str) -> tuple[str, ...]:
        words = [self._shout_like(typed, self._spell(place)) for place in places]
        is_capitalised = typed[:1].isupper() if typed else _begins_sentence(done)
        if is_capitalised:
            words = [self._capitalise(word) for word in words]
        return tuple(words)

    def _write_continuation(self, composed: Composed, *, done: str, typed: str, prefix: str) -> str:
        is_segmented = self.vocabulary.language in SEGMENTED
        between = "" if is_segmented else " "
        text = between.join(map(self._spell, composed.words))
        letters = len(text) - text.count(" ")
        if letters - len(prefix) < LEAST_COMPOSED:
            return ""
        # Without spaces, a blocked word may be assembled from its parts.
        if is_segmented and self._has_blocked_word(text):
            return ""
        if prefix:
            return self._shout_like(typed, text[len(prefix) :])
        space = between if _wants_space(done) else ""
        if _begins_sentence(done + space):
            text = self._capitalise(text)
        return space + text

    def _has_blocked_word(self, text: str) -> bool:
        return any(word in text for word in self._blocked)

    def rescore(
        self,
        text: str,
        readings: Sequence[Reading],
        weight: float = 1.0,
        private: bool = False,
    ) -> list[Reading]:
        """Rank readings by what the model expects next; in a private field only by the taps.

        Args:
            text: before the word that was tapped.
            readings: words, each with the log-likelihood of the taps.
            weight: of what the model expects.
            private: whether the model must not read the text.
        """
        if private:
            return _rank_readings(readings)
        scores = self.model.scores(self._state_after(text))
        weighted = [
            (word, taps + weight * self.score_word(scores, word)) for word, taps in readings
        ]
        return _rank_readings(weighted)

    def score_word(self, scores: np.ndarray, word: str) -> float:
        """Return the log-probability of a word, known or not."""
        spelling = normalize(word, self.vocabulary.language)
        place = self.vocabulary.ids.get(spelling, UNKNOWN)
        share = UNKNOWN_WORDS if place == UNKNOWN else 0.0
        return float(scores[place]) - share

    def _split_half_typed(self, text: str) -> tuple[str, str]:
        """Return what is finished, and the word that is being typed."""
        if self.vocabulary.language in SEGMENTED:
            return text, ""
        half_typed = _HALF_TYPED.search(text, max(0, len(text) - _LONGEST_HALF_TYPED))
        if not half_typed:
            return text, ""
        return text[: half_typed.start()], half_typed[0]

    def _state_after(self, done: str) -> Any:
        """Return the model's state after a text."""
        if done not in self._states:
            _keep(self._states, done, self._read_on(done))
        self._states.move_to_end(done)
        return self._states[done]

    def _read_on(self, done: str) -> Any:
        """Read a text, from the longest known text before it on."""
        beginning = self._longest_known_beginning(done)
        new = done[len(beginning) :]
        if len(new) > FAR_BACK:
            beginning = ""
            new = _drop_incomplete_word(new[-FAR_BACK:])
        state = self._states[beginning] if beginning else self.model.start()
        return reduce(self.model.read, self.vocabulary.encode(new), state)

    def _longest_known_beginning(self, done: str) -> str:
        """Return the longest text whose state is kept and with which this one begins, or ""."""
        beginnings = [text for text in self._states if done.startswith(text)]
        # A word may continue after anything but a space («...»), so a text may be split only there.
        known = [text for text in beginnings if text[-1:].isspace()]
        return max(known, key=len, default="")

    def _spell(self, place: int) -> str:
        return spell_for_display(self.vocabulary.words[place], self.vocabulary.language)

    def _capitalise(self, word: str) -> str:
        return self._to_upper(word[:1]) + word[1:]

    def _shout_like(self, typed: str, word: str) -> str:
        """Write a word in capitals, where the person types in capitals."""
        return self._to_upper(word) if len(typed) > 1 and typed.isupper() else word

    def _to_upper(self, word: str) -> str:
        if self.vocabulary.language == "tr":
            word = word.replace("i", "İ")
        return word.upper()


class _Alphabet:
    """A flattened trie: sorted words, so that those with a common prefix are adjacent."""

    def __init__(self, words: Iterable[tuple[str, int]]) -> None:
        """Sort words, which come with their ids."""
        ordered = sorted(words)
        self._spellings = [word for word, _ in ordered]
        self.places = np.array([place for _, place in ordered], np.int64)

    def beginning_with(self, prefix: str, longer: bool = False) -> np.ndarray:
        """Return the ids of the words that start with this prefix.

        Args:
            prefix: which may be empty.
            longer: leaves out the prefix itself, where it is a word.
        """
        if not prefix:
            return self.places
        start = bisect_left(self._spellings, prefix)
        end = bisect_left(self._spellings, f"{prefix}\U0010ffff")
        if longer and self._spellings[start : start + 1] == [prefix]:
            start += 1
        return self.places[start:end]


def _list_words(vocabulary: Vocabulary) -> list[tuple[str, int]]:
    """Return the words and their ids, without special tokens and punctuation.

    Punctuation is typed faster than picked.
    """
    return [(word, place) for place, word in enumerate(vocabulary.words) if is_word(word)]


def _normalize_blocklist(blocklist: Iterable[str], language: str) -> set[str]:
    words = {normalize(word, language).strip() for word in blocklist}
    return words - {""}


def _drop_incomplete_word(text: str) -> str:
    """Drop the word that a text begins with, if it has spaces at all."""
    return regex.sub(r"\A\S*\s", "", text)


def _rank_readings(readings: Sequence[Reading]) -> list[Reading]:
    return sorted(readings, key=lambda reading: -reading[1])


def _wants_space(done: str) -> bool:
    """Return whether a space must separate the text from what follows."""
    if not done or done[-1].isspace() or done[-1] in _OPENING:
        return False
    is_quotation_mark = done[-1] in "\"'"
    opens_what_follows = len(done) == 1 or done[-2].isspace()
    return not (is_quotation_mark and opens_what_follows)


def _begins_sentence(done: str) -> bool:
    before = done.rstrip(" ")
    if not before or before[-1] == "\n":
        return True
    is_followed_by_space = len(before) < len(done)
    return is_followed_by_space and before.endswith(SENTENCE_ENDS)


def _keep(kept: OrderedDict, key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > KEPT:
        kept.popitem(last=False)


def load_blocklist(path: Path) -> list[str]:
    """Read one word a line; what follows a # is a comment."""
    lines = [line.split("#")[0].strip() for line in read_lines(path, "word")]
    return [word for word in lines if word]
