"""Simulate a person at a keyboard, and measure what a model saves them.

The text was written by people, and the model was not trained on it. Keystroke saving rate (Popov et
al. 2018, §2.4): the share of the non-space characters that need not be typed, if each word is
picked as soon as a strip of three shows it. Recall and picked rate over the strips shown before a
word (Ramaswamy et al. 2020, Table 2; Xu et al. 2023, §3). Smart compose: how often a continuation
is shown, at the threshold at which a fixed share of those is taken. Re-scoring: how many words come
out wrong from noisy taps (keyboard/taps.py), and words a minute, under the times below.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from taciturn.core import END, UNKNOWN, WordModel
from taciturn.data.vocabulary import Vocabulary, is_word
from taciturn.evaluation.accuracy import rank_among_answers
from taciturn.evaluation.intervals import BUCKETS, Figures, Sums, share
from taciturn.keyboard.predictor import LEAST_COMPOSED, PLACES, Composed, Predictor
from taciturn.keyboard.taps import TapDecoder, draw_taps, keys_of
from taciturn.keyboard.user_history import WithHistory
from taciturn.models.suggestion_dictionary import SuggestionDictionary
from taciturn.progress import Progress, ignore_progress

THRESHOLDS = np.linspace(0.3, 0.95, 14)
# At which models' smart compose is compared.
PICKED_RATE = 0.6
# Letters that a person wants to save before looking up.
WORTH_PICKING = 2

# Seconds. A person taps five letters a second, checks each word, and corrects a wrong one: from the
# strip of readings if it is there, else by deleting it and typing it again with care.
TAP = 0.2
PICK = 1.0
RETYPE = 0.5
# The same taps for every model.
TAP_SEED = 20230521


def _trigger_rate(sums: "Typing", kept: np.ndarray) -> float:
    """Return the share of words with a continuation shown.

    The threshold is the lowest at which the share taken is `PICKED_RATE`.
    """
    triggered = sums.triggered[:, kept].sum(1)
    composed = sums.composed[:, kept].sum(1)
    words = max(sums.words[kept].sum(), 1.0)
    return float(_count_triggered(triggered, composed) / words)


def _count_triggered(triggered: np.ndarray, composed: np.ndarray) -> float:
    """Return how many continuations are shown where `PICKED_RATE` of them are taken.

    Args:
        triggered: how many are shown at each threshold.
        composed: how many of these are taken.
    """
    rates = composed / np.maximum(triggered, 1.0)
    is_enough = (rates >= PICKED_RATE) & (triggered > 0)
    if not is_enough.any():
        return 0.0
    high = int(np.flatnonzero(is_enough)[0])
    if high == 0:
        return triggered[0]
    # Between two thresholds: where the line between them passes the rate.
    low = high - 1
    along = (PICKED_RATE - rates[low]) / (rates[high] - rates[low])
    return triggered[low] + along * (triggered[high] - triggered[low])


@dataclass(frozen=True, kw_only=True)
class Typing(Sums):
    """Sums over buckets of users; `Sums.tokens` counts words, punctuation and ends of messages."""

    # Tokens that are the likeliest, as evaluation/accuracy.py counts.
    top1: np.ndarray
    top3: np.ndarray
    # Non-space characters.
    letters: np.ndarray
    # Those typed by hand, where everything offered is picked.
    typed: np.ndarray
    # Words: before each of them a strip is shown.
    words: np.ndarray
    # Words that were the first of the strip.
    first: np.ndarray
    # Words that were on it.
    offered: np.ndarray
    # Words that were on it and worth picking.
    picked: np.ndarray
    # Words that were tapped with noise.
    tapped: np.ndarray
    # Those of them that came out wrong, so that they had to be corrected.
    modified: np.ndarray
    # That tapping and correcting took.
    seconds: np.ndarray
    # Words at which a continuation was shown, [thresholds, buckets].
    triggered: np.ndarray
    # Continuations that matched what was then written, [thresholds, buckets].
    composed: np.ndarray

    metrics: ClassVar[Figures] = {
        "accuracy_top1": share("top1", "tokens"),
        "accuracy_top3": share("top3", "tokens"),
        "keystroke_saving": lambda sums, kept: 1 - share("typed", "letters")(sums, kept),
        "recall_top1": share("first", "words"),
        "recall_top3": share("offered", "words"),
        "picked_rate": lambda sums, kept: share("picked", "words")(sums, kept) / PLACES,
        "trigger_rate": _trigger_rate,
        "word_modified_ratio": share("modified", "tapped"),
        "words_per_minute": lambda sums, kept: 60 * share("tapped", "seconds")(sums, kept),
    }

    def pool(self, people: np.ndarray) -> "Typing":
        """Pool these people's columns into buckets, at most 100; the n-th goes to n mod 100."""
        number = min(BUCKETS, len(people))
        sums = {}
        for field in fields(self):
            columns = getattr(self, field.name)[..., people]
            pooled = [columns[..., bucket::number].sum(-1) for bucket in range(number)]
            sums[field.name] = np.stack(pooled, axis=-1)
        return Typing(**sums)


# The metrics that are measured where smart compose and noisy taps are left out.
OF_NEXT_WORDS = (
    "accuracy_top1",
    "accuracy_top3",
    "keystroke_saving",
    "recall_top1",
    "recall_top3",
    "picked_rate",
)
# Sums that there is one of for each threshold.
BY_THRESHOLD = ("triggered", "composed")


def simulate(
    model: WordModel,
    vocabulary: Vocabulary,
    people: Sequence[Sequence[str]],
    progress: Progress = ignore_progress,
    *,
    next_words_only: bool = False,
) -> Typing:
    """Simulate each person typing, as `simulate_each`. The n-th goes to bucket n mod 100."""
    each = simulate_each(model, vocabulary, people, progress, next_words_only=next_words_only)
    return each.pool(np.arange(len(people)))


def simulate_each(
    model: WordModel,
    vocabulary: Vocabulary,
    people: Sequence[Sequence[str]],
    progress: Progress = ignore_progress,
    *,
    next_words_only: bool = False,
) -> Typing:
    """Simulate each person typing their messages, with a column for each.

    Args:
        model: what suggests words; one with history starts without it for each person.
        vocabulary: the words of the model.
        people: the messages of each.
        progress: called with people who are done, and how many there are.
        next_words_only: leave out smart compose and noisy taps, which take most of the time.
    """
    if not people:
        raise ValueError("there are no people to simulate: name other text")
    predictor = Predictor(model, vocabulary)
    decoder = TapDecoder(vocabulary)
    sums = _no_sums(len(people))
    for person, messages in enumerate(people):
        if isinstance(model, WithHistory):
            predictor.model = model.copy_without_history()
        typist = _Typist(
            predictor=predictor,
            decoder=decoder,
            generator=np.random.default_rng([TAP_SEED, person]),
            next_words_only=next_words_only,
        )
        counts = typist.type_all(messages)
        for name, value in counts.items():
            sums[name][..., person] += value
        progress(person + 1, len(people))
    return Typing(**sums)


def _no_sums(*shape: int) -> dict[str, np.ndarray]:
    """Return zeros of this shape for each sum; there are more of those `BY_THRESHOLD`."""
    sums = {field.name: np.zeros(shape) for field in fields(Typing)}
    for name in BY_THRESHOLD:
        sums[name] = np.zeros((len(THRESHOLDS), *shape))
    return sums


class _Message(NamedTuple):
    """A message while it is typed."""

    words: list[str]
    # Their ids.
    places: list[int]
    # For each threshold, the first word that no continuation has written.
    free_from: np.ndarray


class _Typist:
    """One simulated person, and their sums."""

    def __init__(
        self,
        *,
        predictor: Predictor,
        decoder: TapDecoder,
        generator: np.random.Generator,
        next_words_only: bool = False,
    ) -> None:
        self.next_words_only = next_words_only
        self.predictor = predictor
        self.model = predictor.model
        self.vocabulary = predictor.vocabulary
        self.decoder = decoder
        self.generator = generator
        self.state: Any = self.model.start()
        self.counts = _no_sums()

    def type_all(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Type messages, and return the sums."""
        for text in texts:
            self.type(text)
        return self.counts

    def type(self, text: str) -> None:
        message = self._begin_message(text)
        self.predictor.forget()
        for index in range(len(message.words)):
            self._type_word(message, index)
        self._count_token(self.model.scores(self.state), END)
        self._read(END)

    def _begin_message(self, text: str) -> _Message:
        words = self.vocabulary.split(text)
        return _Message(
            words=words,
            places=[self.vocabulary.ids.get(word, UNKNOWN) for word in words],
            free_from=np.zeros(len(THRESHOLDS), int),
        )

    def _type_word(self, message: _Message, index: int) -> None:
        word = message.words[index]
        place = message.places[index]
        scores = self.model.scores(self.state)
        self._count_token(scores, place)
        self.counts["letters"] += len(word)
        if is_word(word):
            self._pick(scores, word, place)
            if not self.next_words_only:
                self._compose(scores, message, index)
                self._tap(scores, word)
        else:
            self.counts["typed"] += len(word)
        self._read(place)

    def _read(self, place: int) -> None:
        if isinstance(self.model, WithHistory):
            self.model.learn(self.state, place)
        self.state = self.model.read(self.state, place)

    def _count_token(self, scores: np.ndarray, place: int) -> None:
        self.counts["tokens"] += 1
        # A dictionary suggests a few words, and neither punctuation nor the end.
        if place != UNKNOWN and scores[place] > -np.inf:
            rank = rank_among_answers(scores, place)
            self.counts["top1"] += rank < 1
            self.counts["top3"] += rank < 3

    def _pick(self, scores: np.ndarray, word: str, place: int) -> None:
        """Type letter by letter until the word is on the strip."""
        typed = self._letters_until_offered(scores, word, place)
        self.counts["words"] += 1
        self.counts["typed"] += typed
        if typed == 0:
            self.counts["offered"] += 1
            self.counts["first"] += self.predictor.rank(scores, place) == 0
            self.counts["picked"] += len(word) >= WORTH_PICKING

    def _letters_until_offered(self, scores: np.ndarray, word: str, place: int) -> int:
        for typed in range(len(word)):
            if typed == 1 and isinstance(self.model, SuggestionDictionary):
                scores = self.model.completion_scores(self.state)
            rank = self.predictor.rank(scores, place, word[:typed])
            if rank is not None and rank < PLACES:
                return typed
        return len(word)

    def _compose(self, scores: np.ndarray, message: _Message, index: int) -> None:
        """At each threshold, show the first continuation while the word is typed."""
        word = message.words[index]
        is_waiting = message.free_from <= index
        for typed in range(len(word)):
            if not is_waiting.any():
                return
            composed = self.predictor.compose(
                scores,
                prefix=word[:typed],
                state=self.state,
                threshold=THRESHOLDS[0],
                key=str(index),
            )
            for number in np.flatnonzero(is_waiting).tolist():
                shown = self._choose_shown(
                    composed,
                    threshold=THRESHOLDS[number],
                    typed=typed,
                )
                if shown:
                    is_waiting[number] = False
                    self._judge_continuation(
                        shown,
                        message=message,
                        index=index,
                        number=number,
                    )

    def _judge_continuation(
        self, shown: tuple[int, ...], *, message: _Message, index: int, number: int
    ) -> None:
        """Take a continuation, at one of the thresholds, if it is right."""
        end = index + len(shown)
        self.counts["triggered"][number] += 1
        if list(shown) == message.places[index:end]:
            self.counts["composed"][number] += 1
            message.free_from[number] = end

    def _choose_shown(self, composed: Composed, *, threshold: float, typed: int) -> tuple[int, ...]:
        """Return the words of a continuation that are likely enough, if they are worth showing."""
        likely = sum(probability >= threshold for probability in composed.probabilities)
        words = composed.words[:likely]
        letters = sum(len(self.vocabulary.words[place]) for place in words)
        return words if letters - typed >= LEAST_COMPOSED else ()

    def _tap(self, scores: np.ndarray, word: str) -> None:
        """Tap the word with noise, take the best reading, and correct it where it is wrong."""
        keys = keys_of(word)
        if keys is not None:
            taps = draw_taps(keys, self.generator)
            self._count_taps(word, self._read_taps(scores, taps))

    def _count_taps(self, word: str, readings: list[str]) -> None:
        best, *others = readings
        self.counts["tapped"] += 1
        self.counts["seconds"] += TAP * (len(word) + 1)
        if best != word:
            self.counts["modified"] += 1
            self.counts["seconds"] += _seconds_to_correct(word, others[:PLACES])

    def _read_taps(self, scores: np.ndarray, taps: np.ndarray) -> list[str]:
        """Return the readings of taps, best first."""

        def improbability(reading: tuple[str, float]) -> float:
            word, likelihood = reading
            return -likelihood - self.predictor.score_word(scores, word)

        readings = sorted(self.decoder.propose(taps), key=improbability)
        return [word for word, _ in readings]


def _seconds_to_correct(word: str, strip: list[str]) -> float:
    if word in strip:
        return PICK
    return PICK + (TAP + RETYPE) * len(word)


def enough_words(messages: Iterable[str], vocabulary: Vocabulary, words: int) -> list[str]:
    """Return messages until they have `words` words; the last is cut there."""
    kept: list[str] = []
    for message in messages:
        parts = vocabulary.split(message)[:words]
        words -= len(parts)
        if parts:
            kept.append(" ".join(parts))
        if words <= 0:
            break
    return kept
