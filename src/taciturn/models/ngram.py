"""N-gram models: Katz's back-off (Katz 1987) and interpolated, modified Kneser–Ney (Chen and
Goodman 1999).

Both are stored as back-off models. With h' for the context h without its first word,

    p(w | h) = what is stored, if the n-gram h w is in the model
               weight(h) · p(w | h') otherwise, where a context that is not in the model has weight 1

and for every context the probabilities of all words but PADDING and BEGIN, which are never typed,
sum to 1. An n-gram is identified by its place among those of its length, which are sorted by
context and then by word, so that its context is a place at the level below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from taciturn.core import BEGIN, END, PADDING, Params

# no model predicts them
NEVER = np.array([PADDING, BEGIN])
# larger counts are trusted as they are
GOOD_TURING = 5
# a probability too small to distribute
NOTHING = 1e-9
NONE = np.zeros(0, np.float32)


class Level(NamedTuple):
    """The n-grams of one length n, sorted by context, so that the words that follow a context are
    adjacent.
    """

    # uint64: the place of the context at the level before × vocabulary + the word; the word at
    # level 1
    keys: np.ndarray
    # float32: natural logarithm
    probability: np.ndarray
    # float32: natural logarithm of the weight of the n-gram as a context; empty at the last level
    backoff: np.ndarray


# the places of the last 1, 2, … words as n-grams; −1 for one not in the model
State = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class NGram:
    """A `WordModel`. Level 1 holds every word, at the place of its id."""

    levels: tuple[Level, ...]
    vocabulary: int

    @property
    def order(self) -> int:
        return len(self.levels)

    def start(self) -> State:
        return (BEGIN,)[: self.order - 1]

    def read(self, state: State, word: int) -> State:
        if word == END:
            return self.start()
        longer = zip(self.levels[1:-1], state, strict=False)
        found = (
            followers(level.keys, np.array([place]), np.array([word]), self.vocabulary).item()
            for level, place in longer
        )
        return (word, *found)[: self.order - 1]

    def scores(self, state: State) -> np.ndarray:
        scores = self.levels[0].probability.copy()
        for level, longer, place in zip(self.levels, self.levels[1:], state, strict=False):
            if place < 0:
                continue
            scores += level.backoff[place]
            first = np.uint64(place * self.vocabulary)
            start, end = np.searchsorted(longer.keys, [first, first + np.uint64(self.vocabulary)])
            scores[longer.keys[start:end] - first] = longer.probability[start:end]
        return scores

    def params(self) -> Params:
        """Return its arrays by name, as files hold them; `of` reads them."""
        named = {str(n): level._asdict() for n, level in enumerate(self.levels, 1)}
        del named[str(self.order)]["backoff"]
        return named

    @classmethod
    def of(cls, params: Params, vocabulary: int) -> NGram:
        levels = [{"backoff": NONE, **params[str(n)]} for n in range(1, len(params) + 1)]
        return cls(tuple(Level(**level) for level in levels), vocabulary)


def katz(texts: Iterable[np.ndarray], vocabulary: int, order: int = 4) -> NGram:
    """Count texts of one user each: messages closed by END, except perhaps the last."""
    return _estimated(count_ngrams(texts, vocabulary, order), vocabulary, _katz)


def kneser_ney(texts: Iterable[np.ndarray], vocabulary: int, order: int = 4) -> NGram:
    """Count texts as `katz` does."""
    return _estimated(
        continuations(count_ngrams(texts, vocabulary, order)), vocabulary, _kneser_ney
    )


# Probabilities of n-grams, and weights of their contexts, from: counts > 0, the places of the
# contexts, how many contexts there are, and the probabilities of the n-grams without their first
# words.
Estimator = Callable[[np.ndarray, np.ndarray, int, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _estimated(counts: list[Counts], vocabulary: int, estimator: Estimator) -> NGram:
    levels, probability = [], _unigrams(counts[0].counts, estimator)
    for level, longer in pairwise(counts):
        contexts, _ = split_keys(longer.keys, vocabulary)
        longer_probability, weights = estimator(
            longer.counts, contexts, len(level.keys), probability[longer.shorter]
        )
        levels.append(Level(level.keys, _log(probability), _log(weights)))
        probability = longer_probability
    return NGram((*levels, Level(counts[-1].keys, _log(probability), NONE)), vocabulary)


def _unigrams(counts: np.ndarray, estimator: Estimator) -> np.ndarray:
    """Estimate unigrams over the uniform distribution; unseen words share what is left for it."""
    seen = np.flatnonzero(counts)
    uniform = 1 / (len(counts) - len(NEVER))
    probabilities, weights = estimator(
        counts[seen], np.zeros(len(seen), np.int32), 1, np.full(len(seen), uniform)
    )
    unigrams = np.full(len(counts), weights[0] * uniform)
    unigrams[seen] = probabilities
    unigrams[NEVER] = 0.0
    return unigrams


def _katz(
    counts: np.ndarray, contexts: np.ndarray, size: int, lower: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Departs from Katz 1987 where that leaves nothing for unseen words: a context of large counts
    only, none of them discounted, counts one more occurrence. Where every word was seen, what was
    taken away is given back in proportion.
    """
    kept = _good_turing(counts)
    kept_sums = np.bincount(contexts, kept, size)
    totals = np.bincount(contexts, counts, size)
    totals += kept_sums == totals
    unseen = 1 - np.bincount(contexts, lower, size)
    none_unseen = unseen < NOTHING
    totals[none_unseen] = kept_sums[none_unseen]
    unseen[none_unseen] = 1.0
    return kept / totals[contexts], np.where(none_unseen, 1.0, (1 - kept_sums / totals) / unseen)


def _good_turing(counts: np.ndarray) -> np.ndarray:
    """Return what is left of counts when something is set aside for unseen n-grams. Katz's k is 5,
    or the largest number below it for which all his discounts lie between 0 and 1. Where a small
    text has none, every count gives up a half.
    """
    n = np.bincount(np.minimum(counts, GOOD_TURING + 2), minlength=GOOD_TURING + 3).astype(
        np.float64
    )
    for k in range(GOOD_TURING, 1, -1):
        r = np.arange(1, k + 1)
        large = (k + 1) * n[k + 1]
        if not n[r].all() or n[1] <= large:
            continue
        discounts = ((r + 1) * n[r + 1] / (r * n[r]) - large / n[1]) / (1 - large / n[1])
        if np.all((discounts > 0) & (discounts < 1)):
            return counts * np.concatenate([[1.0], discounts, [1.0]])[np.minimum(counts, k + 1)]
    return counts - 0.5


def _kneser_ney(
    counts: np.ndarray, contexts: np.ndarray, size: int, lower: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    discounts = _discounts(counts)[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, size)
    weights = np.where(
        totals > 0, np.bincount(contexts, discounts, size) / np.maximum(totals, 1), 1.0
    )
    return (counts - discounts) / totals[contexts] + weights[contexts] * lower, weights


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Return Chen and Goodman's discounts of counts 0, 1, 2, and 3 or more; a half of each step
    where a small text gives none above 0.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6).astype(np.float64)
    if n[1:5].all():
        r = np.arange(1, 4)
        discounts = r - (r + 1) * n[1] / (n[1] + 2 * n[2]) * n[r + 1] / n[r]
        if np.all(discounts > 0):
            return np.concatenate([[0.0], discounts])
    return np.array([0.0, 0.5, 1.0, 1.5])


class Counts(NamedTuple):
    """How often the n-grams of one length occur."""

    # uint64, sorted: the place of the context one length below × vocabulary + the word
    keys: np.ndarray
    counts: np.ndarray
    # the place, at the level below, of the n-gram without its first word
    shorter: np.ndarray


def count_ngrams(texts: Iterable[np.ndarray], vocabulary: int, order: int) -> list[Counts]:
    """Count the n-grams of all lengths up to `order`. None crosses the end of a message, and none
    ends in BEGIN.
    """
    if not 1 <= order <= 5:
        raise ValueError(f"an n-gram model has an order from 1 to 5, not {order}")
    words = _messages(texts, vocabulary)
    unigrams = np.bincount(words, minlength=vocabulary)
    unigrams[BEGIN] = 0
    levels = [
        Counts(np.arange(vocabulary, dtype=np.uint64), unigrams, np.zeros(vocabulary, np.int32))
    ]
    places = (
        # of the n-gram that ends at each position; −1 where a message is not that long yet
        words
    )
    for _ in range(1, order):
        ends = (np.flatnonzero((places[:-1] >= 0) & (words[1:] != BEGIN)) + 1).astype(np.int32)
        keys = join_keys(places[ends - 1], words[ends], vocabulary)
        by_key = np.argsort(keys)
        keys, ends = keys[by_key], ends[by_key]
        is_first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
        first = np.flatnonzero(is_first)
        counts = np.diff(first, append=len(keys)).astype(np.int32)
        levels.append(Counts(keys[first], counts, places[ends[first]]))
        # to save memory
        del by_key, keys, first
        places = np.full(len(words), -1, np.int32)
        places[ends] = np.cumsum(is_first, dtype=np.int32) - 1
    return levels


def join_keys(contexts: np.ndarray, words: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return the keys of n-grams: the places of their contexts and their words."""
    keys = contexts.astype(np.uint64)
    keys *= np.uint64(vocabulary)
    keys += words.astype(np.uint64)
    return keys


def split_keys(keys: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Split keys into the places of the contexts and the words, int32."""
    contexts = keys // np.uint64(vocabulary)
    return contexts.astype(np.int32), (keys - contexts * np.uint64(vocabulary)).astype(np.int32)


def continuations(levels: list[Counts]) -> list[Counts]:
    """Return Kneser and Ney's counts: below the highest order, an n-gram counts once for each word
    seen before it. Nothing is ever before BEGIN, so n-grams that start there keep their own.
    """
    below = []
    for level, longer in pairwise(levels):
        seen_before = np.bincount(longer.shorter, minlength=len(level.counts))
        below.append(level._replace(counts=np.where(seen_before > 0, seen_before, level.counts)))
    return [*below, levels[-1]]


def _messages(texts: Iterable[np.ndarray], vocabulary: int) -> np.ndarray:
    """Concatenate all texts as int32, with BEGIN before every message."""
    parts = [np.asarray(text, np.int32) for text in texts if len(text)]
    words = np.concatenate([*parts, np.zeros(0, np.int32)])
    if not len(words):
        return words
    if words.min() < 0 or words.max() >= vocabulary:
        raise ValueError(
            f"a text has word id {words.max()}, and there are {vocabulary} words: it has another"
            " vocabulary"
        )
    if np.any((words == PADDING) | (words == BEGIN)):
        raise ValueError(
            "a text to count holds padding or <bos>; give only words, with each message closed by"
            " <eos>"
        )
    starts_text = np.cumsum([0, *map(len, parts)])[:-1]
    starts = np.union1d(starts_text, 1 + np.flatnonzero(words[:-1] == END))
    return np.insert(words, starts, BEGIN)


def prune(model: NGram, entries: int) -> NGram:
    """Keep all unigrams and the `entries` longer n-grams that matter most, with matching weights.

    An n-gram matters by the relative entropy of the model with and without it (Stolcke 1998), and
    at least as much as any of which it is the beginning or the end. Departs from Stolcke: a number
    of n-grams is given, not a threshold, as keyboards have limited space; and the end of an n-gram
    stays as its beginning does, which KenLM requires. Katz models lose less by pruning (Chelba et
    al. 2010).
    """
    if entries >= sum(len(level.keys) for level in model.levels[1:]):
        return model
    worth = _worth(model)
    kept = np.zeros(sum(map(len, worth)), bool)
    kept[np.argsort(-np.concatenate(worth), kind="stable")[:entries]] = (
        # among equals the shorter
        True
    )
    made = [model.levels[0]]
    places, states = np.arange(model.vocabulary), [np.arange(model.vocabulary)]
    for level, keep in zip(
        model.levels[1:], np.split(kept, np.cumsum([len(one) for one in worth[:-1]])), strict=True
    ):
        contexts, words = split_keys(level.keys[keep], model.vocabulary)
        contexts, places = places[contexts], np.cumsum(keep) - 1
        lower, states = _backed_off(made, states, contexts, words, model.vocabulary)
        left, unseen = _shares(level.probability[keep], lower, contexts, len(made[-1].keys))
        made[-1] = made[-1]._replace(backoff=_log(left / unseen))
        made.append(
            Level(join_keys(contexts, words, model.vocabulary), level.probability[keep], NONE)
        )
    return NGram(tuple(made), model.vocabulary)


def _worth(model: NGram) -> list[np.ndarray]:
    """Return the worth of each n-gram above the first level."""
    # log, of n-grams in text
    frequency = model.levels[0].probability.copy()
    # as many messages begin as end
    frequency[BEGIN] = frequency[END]
    worth, parts, states = [], [], [np.arange(model.vocabulary)]
    for n, level in enumerate(model.levels[1:], 1):
        contexts, words = split_keys(level.keys, model.vocabulary)
        lower, states = _backed_off(model.levels[:n], states, contexts, words, model.vocabulary)
        left, unseen = _shares(level.probability, lower, contexts, len(model.levels[n - 1].keys))
        left, unseen = left[contexts], unseen[contexts]
        probability = np.exp(level.probability)
        # The weight that the context would have without this n-gram.
        without = np.log((left + probability) / (unseen + np.exp(lower)))
        change = probability * (level.probability - lower - without) + left * (
            np.log(left / unseen) - without
        )
        worth.append(np.exp(frequency[contexts]) * change)
        frequency = frequency[contexts] + level.probability
        # without the last word, and without the first
        parts.append((contexts, states[-2]))
    for n in range(len(worth) - 1, 0, -1):
        for part in parts[n]:
            np.maximum.at(worth[n - 1], part[part >= 0], worth[n][part >= 0])
    return worth


def _backed_off(
    levels: Sequence[Level],
    states: list[np.ndarray],
    contexts: np.ndarray,
    words: np.ndarray,
    vocabulary: int,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return log p(w | h') for many n-grams h w at once, and the states after them: the arithmetic
    of `scores` and `read`. h are places of the last level, and `states` are the states after all of
    that level's n-grams, an array for each length.
    """
    scores, after = levels[0].probability[words], [words]
    for level, longer, state in zip(levels, levels[1:], states, strict=False):
        places = state[contexts]
        following = followers(longer.keys, places, words, vocabulary)
        known, there = places >= 0, following >= 0
        scores[known] += level.backoff[places[known]]
        scores[there] = longer.probability[following[there]]
        after.append(following)
    return scores, [*after, np.arange(len(words))]


def _shares(
    probability: np.ndarray, lower: np.ndarray, contexts: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the n-grams leave of each context's probability to unseen words, and what those
    have one word further back.
    """
    left = 1 - np.bincount(contexts, np.exp(probability), size)
    unseen = 1 - np.bincount(contexts, np.exp(lower), size)
    return np.maximum(left, NOTHING), np.maximum(unseen, NOTHING)


def followers(
    keys: np.ndarray, contexts: np.ndarray, words: np.ndarray, vocabulary: int
) -> np.ndarray:
    """Return the places of many n-grams among sorted keys; −1 for one that is absent, or whose
    context is (−1).
    """
    wanted = join_keys(np.maximum(contexts, 0), words, vocabulary)
    places = np.searchsorted(keys, wanted)
    there = (contexts >= 0) & (places < len(keys))
    there[there] = keys[places[there]] == wanted[there]
    return np.where(there, places, -1)


def _log(values: np.ndarray) -> np.ndarray:
    # PADDING and BEGIN have probability 0
    with np.errstate(divide="ignore"):
        return np.log(values).astype(np.float32)
