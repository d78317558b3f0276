"""Simulate a person at a keyboard: what a model saves them, on text that people wrote and the model
was not trained on.

Keystroke saving rate (Popov et al. 2018, §2.4): the share of the non-space characters that need not
be typed, if each word is picked as soon as a strip of three shows it. Recall and picked rate over
the strips shown before a word (Ramaswamy et al. 2020, Table 2; Xu et al. 2023, §3). Smart compose:
how often a continuation is shown, at the threshold at which a fixed share of those is taken.
Re-scoring: how many words come out wrong from noisy taps (keyboard/taps.py), and words a minute,
under the times below.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from taciturn.core import END, UNKNOWN, WordModel
from taciturn.data.vocabulary import Vocabulary, is_word
from taciturn.evaluation.accuracy import rank_among_answers
from taciturn.evaluation.intervals import BUCKETS, Figures, Sums, share
from taciturn.keyboard.predictor import LEAST_COMPOSED, PLACES, Composed, Predictor
from taciturn.keyboard.taps import TapDecoder, draw_taps, keys_of
from taciturn.keyboard.user_history import WithHistory
from taciturn.progress import Progress, ignore_progress

THRESHOLDS = np.linspace(0.3, 0.95, 14)
# at which models' smart compose is compared
PICKED_RATE = 0.6
# letters that a person wants to save before looking up
WORTH_PICKING = 2

# Seconds. A person taps five letters a second, checks each word, and corrects a wrong one: from the
# strip of readings if it is there, else by deleting it and typing it again with care.
TAP, PICK, RETYPE = 0.2, 1.0, 0.5
# the same taps for every model
TAP_SEED = 20230521


def _trigger_rate(sums: "Typing", kept: np.ndarray) -> float:
    """Return the share of words with a continuation shown, at the lowest threshold at which the
    share taken is `PICKED_RATE`.
    """
    triggered, composed = sums.triggered[:, kept].sum(1), sums.composed[:, kept].sum(1)
    words = max(sums.words[kept].sum(), 1.0)
    rates = composed / np.maximum(triggered, 1.0)
    enough = np.flatnonzero((rates >= PICKED_RATE) & (triggered > 0))
    if not len(enough):
        return 0.0
    high = int(enough[0])
    if high == 0:
        return float(triggered[0] / words)
    # Between two thresholds: where the line between them passes the rate.
    along = (PICKED_RATE - rates[high - 1]) / (rates[high] - rates[high - 1])
    return float((triggered[high - 1] + along * (triggered[high] - triggered[high - 1])) / words)


@dataclass(frozen=True)
class Typing(Sums):
    """Sums over buckets of users; `Sums.tokens` counts words, punctuation and ends of messages."""

    # tokens that are the likeliest, as evaluation/accuracy.py counts
    top1: np.ndarray
    top3: np.ndarray
    # non-space characters
    letters: np.ndarray
    # by hand, where everything offered is picked
    typed: np.ndarray
    # before each of them a strip is shown
    words: np.ndarray
    # words that were the first of the strip
    first: np.ndarray
    # words that were on it
    offered: np.ndarray
    # … and worth picking
    picked: np.ndarray
    # words that were tapped with noise
    tapped: np.ndarray
    # … and came out wrong, so that they had to be corrected
    modified: np.ndarray
    # that tapping and correcting took
    seconds: np.ndarray
    # [thresholds, buckets] words at which a continuation was shown
    triggered: np.ndarray
    # [thresholds, buckets] continuations that matched what was then written
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


def simulate(
    model: WordModel,
    vocabulary: Vocabulary,
    people: Sequence[Sequence[str]],
    progress: Progress = ignore_progress,
) -> Typing:
    """Simulate each person typing their messages. The n-th goes to bucket n mod 100."""
    if not people:
        raise ValueError("there are no people to simulate: name other text")
    predictor, decoder = Predictor(model, vocabulary), TapDecoder(vocabulary)
    buckets = min(BUCKETS, len(people))
    sums = {
        one.name: np.zeros(
            (len(THRESHOLDS), buckets) if one.name in ("triggered", "composed") else buckets
        )
        for one in fields(Typing)
    }
    for person, messages in enumerate(people):
        if isinstance(model, WithHistory):
            predictor.model = model.fresh()
        typist = _Typist(predictor, decoder, np.random.default_rng([TAP_SEED, person]))
        for message in messages:
            typist.type(message)
        for name, value in typist.counts.items():
            sums[name][..., person % buckets] += value
        progress(person + 1, len(people))
    return Typing(**sums)


class _Typist:
    """One simulated person, and their sums."""

    def __init__(
        self, predictor: Predictor, decoder: TapDecoder, generator: np.random.Generator
    ) -> None:
        self.predictor, self.model, self.decoder, self.generator = (
            predictor,
            predictor.model,
            decoder,
            generator,
        )
        self.vocabulary = predictor.vocabulary
        self.state: Any = self.model.start()
        self.counts: dict[str, np.ndarray] = {field.name: np.zeros(()) for field in fields(Typing)}
        self.counts |= {name: np.zeros(len(THRESHOLDS)) for name in ("triggered", "composed")}

    def type(self, message: str) -> None:
        words = self.vocabulary.split(message)
        places = [self.vocabulary.ids.get(word, UNKNOWN) for word in words]
        self.predictor.forget()
        # for each threshold, the first word that no continuation has written
        free_from = np.zeros(len(THRESHOLDS), int)
        for index, (word, place) in enumerate(zip(words, places, strict=True)):
            scores = self.model.scores(self.state)
            self._count_token(scores, place)
            self.counts["letters"] += len(word)
            if is_word(word):
                self._pick(scores, word, place)
                self._compose(scores, word, places, index, free_from)
                self._tap(scores, word)
            else:
                self.counts["typed"] += len(word)
            self._read(place)
        self._count_token(self.model.scores(self.state), END)
        self._read(END)

    def _read(self, place: int) -> None:
        if isinstance(self.model, WithHistory):
            self.model.learn(self.state, place)
        self.state = self.model.read(self.state, place)

    def _count_token(self, scores: np.ndarray, place: int) -> None:
        self.counts["tokens"] += 1
        if place != UNKNOWN:
            rank = rank_among_answers(scores, place)
            self.counts["top1"] += rank < 1
            self.counts["top3"] += rank < 3

    def _pick(self, scores: np.ndarray, word: str, place: int) -> None:
        """Type letter by letter until the word is on the strip."""
        self.counts["words"] += 1
        ranks = (self.predictor.rank(scores, place, word[:n]) for n in range(len(word)))
        typed = next(
            (n for n, rank in enumerate(ranks) if rank is not None and rank < PLACES), len(word)
        )
        self.counts["typed"] += typed
        if typed == 0:
            self.counts["offered"] += 1
            self.counts["first"] += self.predictor.rank(scores, place) == 0
            self.counts["picked"] += len(word) >= WORTH_PICKING

    def _compose(
        self, scores: np.ndarray, word: str, places: list[int], index: int, free_from: np.ndarray
    ) -> None:
        """At each threshold, show the first continuation while the word is typed, and take it if it
        is right.
        """
        waiting = free_from <= index
        for typed in range(len(word)):
            if not waiting.any():
                return
            composed = self.predictor.compose(
                scores, word[:typed], self.state, THRESHOLDS[0], str(index)
            )
            for number in np.flatnonzero(waiting):
                shown = self._shown(composed, THRESHOLDS[number], typed)
                if shown:
                    waiting[number] = False
                    self.counts["triggered"][number] += 1
                    if list(shown) == places[index : index + len(shown)]:
                        self.counts["composed"][number] += 1
                        free_from[number] = index + len(shown)

    def _shown(self, composed: Composed, threshold: float, typed: int) -> tuple[int, ...]:
        words = composed.words[
            : sum(probability >= threshold for probability in composed.probabilities)
        ]
        spared = sum(len(self.vocabulary.words[place]) for place in words) - typed
        return words if spared >= LEAST_COMPOSED else ()

    def _tap(self, scores: np.ndarray, word: str) -> None:
        """Tap the word with noise, take the best reading, and correct it where it is wrong."""
        keys = keys_of(word)
        if keys is None:
            return
        readings = self.decoder.readings(draw_taps(keys, self.generator))
        ranked = sorted(readings, key=lambda one: -one[1] - self.predictor.expected(scores, one[0]))
        self.counts["tapped"] += 1
        self.counts["seconds"] += TAP * (len(word) + 1)
        if ranked[0][0] != word:
            self.counts["modified"] += 1
            at_hand = word in [reading for reading, _ in ranked[1 : 1 + PLACES]]
            self.counts["seconds"] += PICK if at_hand else PICK + (TAP + RETYPE) * len(word)


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
