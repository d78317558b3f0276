"""N-gram models: Katz's back-off (Katz 1987) and interpolated, modified Kneser–Ney.

Kneser–Ney is that of Chen and Goodman 1999. Both are stored as back-off models. With h' for the
context h without its first word,

    p(w | h) = what is stored, if the n-gram h w is in the model
               weight(h) · p(w | h') otherwise; a context that is not in the model has weight 1

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

# Words that no model predicts.
NEVER = np.array([PADDING, BEGIN])
# Larger counts are trusted as they are.
GOOD_TURING = 5
# A probability too small to distribute.
NOTHING = 1e-9
NONE = np.zeros(0, np.float32)


class Level(NamedTuple):
    """The n-grams of one length n.

    They are sorted by context, so that the words that follow a context are adjacent.
    """

    # uint64: the place of the context at the level before × vocabulary + the word; the word at
    # level 1.
    keys: np.ndarray
    # float32: natural logarithm.
    probability: np.ndarray
    # float32: natural logarithm of the weight of the n-gram as a context; empty at the last level.
    backoff: np.ndarray


# The places of the last 1, 2, … words as n-grams; −1 for one not in the model.
State = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class NGram:
    """A `WordModel`. Level 1 holds every word, at the place of its id."""

    levels: tuple[Level, ...]
    vocabulary: int

    @property
    def order(self) -> int:
        """Return the length of the longest n-grams."""
        return len(self.levels)

    def start(self) -> State:
        """Return the state at the beginning of a message."""
        return (BEGIN,)[: self.order - 1]

    def read(self, state: State, word: int) -> State:
        """Return the state after one more word; END begins a new message."""
        if word == END:
            return self.start()
        places = [word]
        for level, context in zip(self.levels[1:-1], state, strict=False):
            longer = followers(level.keys, np.array([context]), np.array([word]), self.vocabulary)
            places.append(longer.item())
        return tuple(places[: self.order - 1])

    def scores(self, state: State) -> np.ndarray:
        """Return the log-probability of each word to come next, float32 [vocabulary]."""
        scores = self.levels[0].probability.copy()
        for level, longer, place in zip(self.levels, self.levels[1:], state, strict=False):
            if place < 0:
                continue
            scores += level.backoff[place]
            first_key = np.uint64(place * self.vocabulary)
            keys = [first_key, first_key + np.uint64(self.vocabulary)]
            start, end = np.searchsorted(longer.keys, keys)
            words = longer.keys[start:end] - first_key
            scores[words] = longer.probability[start:end]
        return scores

    def params(self) -> Params:
        """Return its arrays by name, as files hold them; `of` reads them."""
        named = {str(n): level._asdict() for n, level in enumerate(self.levels, 1)}
        del named[str(self.order)]["backoff"]
        return named

    @classmethod
    def of(cls, params: Params, vocabulary: int) -> NGram:
        """Return the model with these arrays, as `params` gives them."""
        levels = []
        for n in range(1, len(params) + 1):
            arrays = {"backoff": NONE, **params[str(n)]}
            levels.append(Level(**arrays))
        return cls(tuple(levels), vocabulary)


def katz(texts: Iterable[np.ndarray], vocabulary: int, order: int = 4) -> NGram:
    """Build a model from texts of one user each.

    They are messages closed by END, except perhaps the last.
    """
    counts = count_ngrams(texts, vocabulary, order)
    return _estimate_model(counts, vocabulary, _katz)


def kneser_ney(texts: Iterable[np.ndarray], vocabulary: int, order: int = 4) -> NGram:
    """Build a model from texts as `katz` does."""
    counts = continuations(count_ngrams(texts, vocabulary, order))
    return _estimate_model(counts, vocabulary, _kneser_ney)


class _Estimates(NamedTuple):
    """Estimates for the n-grams of one length."""

    # Of the n-grams.
    probabilities: np.ndarray
    # Of their contexts.
    weights: np.ndarray


# Of counts > 0, the places of the contexts, how many contexts there are, and the probabilities of
# the n-grams without their first words.
Estimator = Callable[[np.ndarray, np.ndarray, int, np.ndarray], _Estimates]


def _estimate_model(counts: list[Counts], vocabulary: int, estimator: Estimator) -> NGram:
    levels = []
    probability = _unigrams(counts[0].counts, estimator)
    for level, longer in pairwise(counts):
        contexts, _ = split_keys(longer.keys, vocabulary)
        lower = probability[longer.shorter]
        estimates = estimator(longer.counts, contexts, len(level.keys), lower)
        levels.append(
            Level(
                keys=level.keys,
                probability=_log(probability),
                backoff=_log(estimates.weights),
            )
        )
        probability = estimates.probabilities
    last = Level(keys=counts[-1].keys, probability=_log(probability), backoff=NONE)
    return NGram((*levels, last), vocabulary)


def _unigrams(counts: np.ndarray, estimator: Estimator) -> np.ndarray:
    """Estimate unigrams over the uniform distribution; unseen words share what is left for it."""
    seen = np.flatnonzero(counts)
    possible = len(counts) - len(NEVER)
    uniform = 1 / possible
    only_context = np.zeros(len(seen), np.int32)
    lower = np.full(len(seen), uniform)
    estimates = estimator(counts[seen], only_context, 1, lower)
    unigrams = np.full(len(counts), estimates.weights[0] * uniform)
    unigrams[seen] = estimates.probabilities
    unigrams[NEVER] = 0.0
    return unigrams


def _katz(counts: np.ndarray, contexts: np.ndarray, size: int, lower: np.ndarray) -> _Estimates:
    """Departs from Katz 1987 where that leaves nothing for unseen words.

    A context of large counts only, none of them discounted, counts one more occurrence. Where every
    word was seen, what was taken away is given back in proportion.
    """
    kept = _good_turing(counts)
    kept_sums = np.bincount(contexts, kept, size)
    totals = np.bincount(contexts, counts, size)
    totals += kept_sums == totals
    unseen = 1 - np.bincount(contexts, lower, size)
    none_unseen = unseen < NOTHING
    totals[none_unseen] = kept_sums[none_unseen]
    unseen[none_unseen] = 1.0
    left = 1 - kept_sums / totals
    return _Estimates(
        probabilities=kept / totals[contexts],
        weights=np.where(none_unseen, 1.0, left / unseen),
    )


def _good_turing(counts: np.ndarray) -> np.ndarray:
    """Return what is left of counts when something is set aside for unseen n-grams.

    Katz's k is 5, or the largest number below it for which all his discounts lie between 0 and 1.
    Where a small text has none, every count gives up a half.
    """
    n = _count_counts(counts, GOOD_TURING + 2)
    for k in range(GOOD_TURING, 1, -1):
        discounts = _katz_discounts(n, k)
        if discounts is None:
            continue
        if np.all((discounts > 0) & (discounts < 1)):
            factors = np.concatenate([[1.0], discounts, [1.0]])
            return counts * factors[np.minimum(counts, k + 1)]
    return counts - 0.5


def _katz_discounts(n: np.ndarray, k: int) -> np.ndarray | None:
    """Return Katz's discounts of counts 1 … k, from the number n[r] of n-grams with each count r.

    None where they are undefined.
    """
    r = np.arange(1, k + 1)
    large = (k + 1) * n[k + 1]
    if not n[r].all() or n[1] <= large:
        return None
    good_turing = (r + 1) * n[r + 1] / (r * n[r])
    return (good_turing - large / n[1]) / (1 - large / n[1])


def _count_counts(counts: np.ndarray, most: int) -> np.ndarray:
    """Return how many n-grams have each count, as floats; larger counts go with `most`."""
    capped = np.minimum(counts, most)
    return np.bincount(capped, minlength=most + 1).astype(np.float64)


def _kneser_ney(
    counts: np.ndarray, contexts: np.ndarray, size: int, lower: np.ndarray
) -> _Estimates:
    discounts = _discounts(counts)[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, size)
    shares = np.bincount(contexts, discounts, size) / np.maximum(totals, 1)
    weights = np.where(totals > 0, shares, 1.0)
    kept = (counts - discounts) / totals[contexts]
    return _Estimates(probabilities=kept + weights[contexts] * lower, weights=weights)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Return Chen and Goodman's discounts of counts 0, 1, 2, and 3 or more.

    They are a half of each step where a small text gives none above 0.
    """
    n = _count_counts(counts, 5)
    if n[1:5].all():
        r = np.arange(1, 4)
        discounts = r - (r + 1) * n[1] / (n[1] + 2 * n[2]) * n[r + 1] / n[r]
        if np.all(discounts > 0):
            return np.concatenate([[0.0], discounts])
    return np.array([0.0, 0.5, 1.0, 1.5])


class Counts(NamedTuple):
    """How often the n-grams of one length occur."""

    # uint64, sorted: the place of the context one length below × vocabulary + the word.
    keys: np.ndarray
    counts: np.ndarray
    # The place, at the level below, of the n-gram without its first word.
    shorter: np.ndarray


def count_ngrams(texts: Iterable[np.ndarray], vocabulary: int, order: int) -> list[Counts]:
    """Count the n-grams of all lengths up to `order`.

    None crosses the end of a message, and none ends in BEGIN.
    """
    if not 1 <= order <= 5:
        raise ValueError(f"an n-gram model has an order from 1 to 5, not {order}")
    words = concatenate_messages(texts, vocabulary)
    levels = [_count_unigrams(words, vocabulary)]
    # The place of the n-gram that ends at each position; −1 where a message is not that long yet.
    places = words
    for _ in range(1, order):
        level, places = _count_longer(words, places, vocabulary)
        levels.append(level)
    return levels


def _count_unigrams(words: np.ndarray, vocabulary: int) -> Counts:
    counts = np.bincount(words, minlength=vocabulary)
    counts[BEGIN] = 0
    return Counts(
        keys=np.arange(vocabulary, dtype=np.uint64),
        counts=counts,
        shorter=np.zeros(vocabulary, np.int32),
    )


def _count_longer(
    words: np.ndarray, places: np.ndarray, vocabulary: int
) -> tuple[Counts, np.ndarray]:
    """Count the n-grams that are one word longer than those at the places; return their places."""
    ends = _longer_ends(words, places)
    keys = join_keys(places[ends - 1], words[ends], vocabulary)
    by_key = np.argsort(keys)
    keys = keys[by_key]
    ends = ends[by_key]
    # To save memory.
    del by_key
    is_first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    first = np.flatnonzero(is_first)
    counts = Counts(
        keys=keys[first],
        counts=np.diff(first, append=len(keys)).astype(np.int32),
        shorter=places[ends[first]],
    )
    # To save memory.
    del keys, first
    longer_places = np.full(len(words), -1, np.int32)
    longer_places[ends] = np.cumsum(is_first, dtype=np.int32) - 1
    return counts, longer_places


def _longer_ends(words: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return where n-grams end that are one word longer than those at the places."""
    can_grow = (places[:-1] >= 0) & (words[1:] != BEGIN)
    return (np.flatnonzero(can_grow) + 1).astype(np.int32)


def join_keys(contexts: np.ndarray, words: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return the keys of n-grams: the places of their contexts and their words."""
    keys = contexts.astype(np.uint64)
    keys *= np.uint64(vocabulary)
    keys += words.astype(np.uint64)
    return keys


def split_keys(keys: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Split keys into the places of the contexts and the words, int32."""
    contexts = keys // np.uint64(vocabulary)
    words = keys - contexts * np.uint64(vocabulary)
    return contexts.astype(np.int32), words.astype(np.int32)


def continuations(levels: list[Counts]) -> list[Counts]:
    """Return Kneser and Ney's counts.

    Below the highest order, an n-gram counts once for each word seen before it. Nothing is ever
    before BEGIN, so n-grams that start there keep their own.
    """
    below = []
    for level, longer in pairwise(levels):
        seen_before = np.bincount(longer.shorter, minlength=len(level.counts))
        counts = np.where(seen_before > 0, seen_before, level.counts)
        below.append(level._replace(counts=counts))
    return [*below, levels[-1]]


def concatenate_messages(texts: Iterable[np.ndarray], vocabulary: int) -> np.ndarray:
    """Concatenate all texts as int32, with BEGIN before every message."""
    parts = [np.asarray(text, np.int32) for text in texts if len(text)]
    if not parts:
        return np.zeros(0, np.int32)
    words = np.concatenate(parts)
    _check_words(words, vocabulary)
    lengths = [len(part) for part in parts]
    text_starts = np.cumsum([0, *lengths])[:-1]
    message_ends = np.flatnonzero(words[:-1] == END)
    starts = np.union1d(text_starts, message_ends + 1)
    return np.insert(words, starts, BEGIN)


def _check_words(words: np.ndarray, vocabulary: int) -> None:
    """Refuse words of another vocabulary, and what is not a word."""
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


def prune(model: NGram, entries: int) -> NGram:
    """Keep all unigrams and the `entries` longer n-grams that matter most, with matching weights.

    An n-gram matters by the relative entropy of the model with and without it (Stolcke 1998), and
    at least as much as any of which it is the beginning or the end. Departs from Stolcke: a number
    of n-grams is given, not a threshold, as keyboards have limited space; and the end of an n-gram
    stays as its beginning does, which KenLM requires. Katz models lose less by pruning (Chelba et
    al. 2010).
    """
    longer_levels = model.levels[1:]
    if entries >= sum(len(level.keys) for level in longer_levels):
        return model
    is_kept = _choose_kept(_worth(model), entries)
    pruned = [model.levels[0]]
    # Where the n-grams of the level below are now; only those that are kept are looked up.
    places = np.arange(model.vocabulary)
    states = [np.arange(model.vocabulary)]
    for level, keep in zip(longer_levels, is_kept, strict=True):
        contexts, words = split_keys(level.keys[keep], model.vocabulary)
        contexts = places[contexts]
        places = np.cumsum(keep) - 1
        probability = level.probability[keep]
        lower, states = back_off(pruned, states, contexts, words, model.vocabulary)
        weights = context_weights(probability, lower, contexts, len(pruned[-1].keys))
        pruned[-1] = pruned[-1]._replace(backoff=weights)
        keys = join_keys(contexts, words, model.vocabulary)
        pruned.append(Level(keys=keys, probability=probability, backoff=NONE))
    return NGram(tuple(pruned), model.vocabulary)


def _choose_kept(worth: list[np.ndarray], entries: int) -> list[np.ndarray]:
    """Mark the n-grams of each level that are worth most; among equals the shorter."""
    sizes = [len(level) for level in worth]
    is_kept = np.zeros(sum(sizes), bool)
    by_worth = np.argsort(-np.concatenate(worth), kind="stable")
    is_kept[by_worth[:entries]] = True
    return np.split(is_kept, np.cumsum(sizes[:-1]))


def _worth(model: NGram) -> list[np.ndarray]:
    """Return the worth of each n-gram above the first level."""
    # Of n-grams in text, as a logarithm.
    frequency = model.levels[0].probability.copy()
    # As many messages begin as end.
    frequency[BEGIN] = frequency[END]
    worth = []
    parts = []
    states = [np.arange(model.vocabulary)]
    for n, level in enumerate(model.levels[1:], 1):
        contexts, words = split_keys(level.keys, model.vocabulary)
        below = model.levels[:n]
        lower, states = back_off(below, states, contexts, words, model.vocabulary)
        shares = _shares(level.probability, lower, contexts, len(below[-1].keys))
        change = _entropy_change(level.probability, lower, shares.of(contexts))
        worth.append(np.exp(frequency[contexts]) * change)
        frequency = frequency[contexts] + level.probability
        # Each n-gram without its last word, and without its first.
        parts.append((contexts, states[-2]))
    _raise_parts(worth, parts)
    return worth


def _entropy_change(probability: np.ndarray, lower: np.ndarray, shares: _Shares) -> np.ndarray:
    """Return the relative entropy of a context's words with and without each of its n-grams.

    Args:
        probability: logarithms, of the n-grams.
        lower: logarithms, of the same one word further back.
        shares: of the context of each n-gram.
    """
    share = np.exp(probability)
    # The weight that the context would have without this n-gram.
    without = np.log((shares.left + share) / (shares.unseen + np.exp(lower)))
    change_of_word = share * (probability - lower - without)
    change_of_rest = shares.left * (np.log(shares.left / shares.unseen) - without)
    return change_of_word + change_of_rest


def _raise_parts(worth: list[np.ndarray], parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Raise the worth of n-grams to that of any of which they are a part, from the longest down."""
    for n in range(len(worth) - 1, 0, -1):
        for part in parts[n]:
            is_there = part >= 0
            np.maximum.at(worth[n - 1], part[is_there], worth[n][is_there])


def back_off(
    levels: Sequence[Level],
    states: list[np.ndarray],
    contexts: np.ndarray,
    words: np.ndarray,
    vocabulary: int,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return log p(w | h') for many n-grams h w at once, and the states after them.

    This is the arithmetic of `NGram.scores` and `NGram.read`.

    Args:
        levels: the model, up to the contexts.
        states: after all n-grams of the last level, an array for each length.
        contexts: h, as places of the last level.
        words: w.
        vocabulary: the number of words.
    """
    scores = levels[0].probability[words]
    states_after = [words]
    for level, longer, state in zip(levels, levels[1:], states, strict=False):
        places = state[contexts]
        longer_places = followers(longer.keys, places, words, vocabulary)
        is_context = places >= 0
        scores[is_context] += level.backoff[places[is_context]]
        is_longer = longer_places >= 0
        scores[is_longer] = longer.probability[longer_places[is_longer]]
        states_after.append(longer_places)
    states_after.append(np.arange(len(words)))
    return scores, states_after


class _Shares(NamedTuple):
    """The probability that the n-grams of each context leave to other words."""

    left: np.ndarray
    # What those words have one word further back.
    unseen: np.ndarray

    def of(self, contexts: np.ndarray) -> _Shares:
        """Return the shares of some contexts."""
        return _Shares(left=self.left[contexts], unseen=self.unseen[contexts])


def _shares(probability: np.ndarray, lower: np.ndarray, contexts: np.ndarray, size: int) -> _Shares:
    left = 1 - np.bincount(contexts, np.exp(probability), size)
    unseen = 1 - np.bincount(contexts, np.exp(lower), size)
    return _Shares(left=np.maximum(left, NOTHING), unseen=np.maximum(unseen, NOTHING))


def context_weights(
    probability: np.ndarray, lower: np.ndarray, contexts: np.ndarray, size: int
) -> np.ndarray:
    """Return the weights, as logarithms, under which every context sums to 1.

    Args:
        probability: logarithms, of n-grams.
        lower: logarithms, of the same one word further back.
        contexts: of each n-gram, as places of the level before.
        size: how many n-grams that level has.
    """
    shares = _shares(probability, lower, contexts, size)
    return _log(shares.left / shares.unseen)


def followers(
    keys: np.ndarray, contexts: np.ndarray, words: np.ndarray, vocabulary: int
) -> np.ndarray:
    """Return the places of many n-grams among sorted keys.

    −1 stands for one that is absent, or whose context is (−1).
    """
    wanted = join_keys(np.maximum(contexts, 0), words, vocabulary)
    places = np.searchsorted(keys, wanted)
    is_there = (contexts >= 0) & (places < len(keys))
    is_there[is_there] = keys[places[is_there]] == wanted[is_there]
    return np.where(is_there, places, -1)


def _log(values: np.ndarray) -> np.ndarray:
    # PADDING and BEGIN have probability 0.
    with np.errstate(divide="ignore"):
        return np.log(values).astype(np.float32)
