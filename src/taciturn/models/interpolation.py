"""Interpolate the n-grams of two texts, with a share for each, as one n-gram model.

With p_1 and p_2 for the models and s for the share of the first, every n-gram that is in either has

    p(w | h) = s · p_1(w | h) + (1 − s) · p_2(w | h)

and the weights of contexts are worked out anew, so that every context sums to 1 (SRILM's static
mixture, Stolcke 2002). Between n-grams that are in neither, the two are mixed further back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from taciturn.core import BEGIN, UNKNOWN
from taciturn.models.ngram import (
    NONE,
    Level,
    NGram,
    back_off,
    concatenate_messages,
    context_weights,
    followers,
    join_keys,
    split_keys,
)
from taciturn.progress import Progress, ignore_progress

# The n-grams whose probabilities are looked up at a time, to save memory.
BLOCK = 4_000_000
# A share is never 0 or 1: either text may have what the other lacks.
LEAST_SHARE = 0.001
# Each halves the interval in which a share lies.
HALVINGS = 30


def interpolate(
    first: NGram, second: NGram, share: float, progress: Progress = ignore_progress
) -> NGram:
    """Return the mixture of two models of the same words and order.

    Args:
        first: a model.
        second: another one.
        share: of the first, from 0 to 1.
        progress: called with n-grams of both that are done, and how many there are.
    """
    _check_alike(first, second)
    if not 0 <= share <= 1:
        raise ValueError(f"`share` lies between 0 and 1, not {share}")
    vocabulary = first.vocabulary
    unigrams = _mix(first.levels[0].probability, second.levels[0].probability, share)
    every_word = np.arange(vocabulary)
    levels = [Level(keys=first.levels[0].keys, probability=unigrams, backoff=NONE)]
    sides = [_Side(model) for model in (first, second)]
    states = [every_word]
    done = 0
    most = sum(len(level.keys) for model in (first, second) for level in model.levels)
    for n in range(1, first.order):
        keys = _merge([side.keys_in_union(n) for side in sides])
        contexts, words = split_keys(keys, vocabulary)
        for side in sides:
            side.find_places(n, keys)
        of_first = sides[0].look_up(n, contexts, words)
        of_second = sides[1].look_up(n, contexts, words)
        probability = _mix(of_first, of_second, share)
        lower, states = _look_up(levels, states, contexts, words)
        # Every n-gram of both is in the mixture.
        states[-1] = np.arange(len(keys))
        size = len(levels[-1].keys)
        weights = context_weights(probability, lower, contexts, size)
        levels[-1] = levels[-1]._replace(backoff=weights)
        levels.append(Level(keys=keys, probability=probability, backoff=NONE))
        done += len(first.levels[n].keys) + len(second.levels[n].keys)
        progress(done, most)
    return NGram(tuple(levels), vocabulary)


def _check_alike(first: NGram, second: NGram) -> None:
    if first.vocabulary != second.vocabulary or first.order != second.order:
        raise ValueError(
            f"only n-grams of one word list and one order can be interpolated, not"
            f" {first.order}-grams of {first.vocabulary} words and {second.order}-grams of"
            f" {second.vocabulary}"
        )


class _Side:
    """One of the two models, beside the n-grams that are in either."""

    def __init__(self, model: NGram) -> None:
        self._model = model
        # Of the model's n-grams of the last length, among those of both.
        self._places = np.arange(model.vocabulary)
        # After each n-gram of both, as places of this model; −1 for one that it does not have.
        self._states = [np.arange(model.vocabulary)]

    def keys_in_union(self, n: int) -> np.ndarray:
        """Return the keys of the model's n-grams above level n, with contexts of both."""
        vocabulary = self._model.vocabulary
        contexts, words = split_keys(self._model.levels[n].keys, vocabulary)
        return join_keys(self._places[contexts], words, vocabulary)

    def find_places(self, n: int, keys: np.ndarray) -> None:
        """Find the model's n-grams above level n among those of both."""
        self._places = np.searchsorted(keys, self.keys_in_union(n))

    def look_up(self, n: int, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return what this model makes of the n-grams of both above level n."""
        levels = self._model.levels[: n + 1]
        scores, states = _look_up(levels, self._states, contexts, words)
        self._states = states
        return scores


def _look_up(
    levels: Sequence[Level], states: list[np.ndarray], contexts: np.ndarray, words: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return what `back_off` does, a block at a time."""
    vocabulary = len(levels[0].keys)
    scores = np.empty(len(words), np.float32)
    # One for each length, as `back_off` has it.
    states_after = [np.empty(len(words), np.int32) for _ in range(len(states) + 1)]
    for start in range(0, len(words), BLOCK):
        block = slice(start, start + BLOCK)
        scores[block], states_of_block = back_off(
            levels, states, contexts[block], words[block], vocabulary
        )
        for state, part in zip(states_after, states_of_block, strict=False):
            state[block] = part
    return scores, states_after


def _merge(parts: list[np.ndarray]) -> np.ndarray:
    """Return the union of sorted arrays, sorted."""
    # A stable sort only merges what is sorted already.
    keys = np.sort(np.concatenate(parts), kind="stable")
    is_first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    return keys[is_first]


def _mix(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """Return the logarithm of a mixture of probabilities, which are given as logarithms."""
    with np.errstate(divide="ignore"):
        of_first = first + np.log(share)
        of_second = second + np.log1p(-share)
    return np.logaddexp(of_first, of_second).astype(np.float32)


def fit_share(first: NGram, second: NGram, texts: Iterable[np.ndarray]) -> float:
    """Return the share of the first model under which texts are likeliest.

    Neither model may have been counted on them. Unknown words, which no keyboard suggests, do not
    count.
    """
    words = concatenate_messages(texts, first.vocabulary)
    counts = (words != BEGIN) & (words != UNKNOWN)
    of_first = np.exp(log_probabilities(first, words)[counts].astype(np.float64))
    of_second = np.exp(log_probabilities(second, words)[counts].astype(np.float64))
    low = LEAST_SHARE
    high = 1 - LEAST_SHARE
    for _ in range(HALVINGS):
        share = (low + high) / 2
        # The likelihood is concave in the share: its slope falls, and is 0 where it is largest.
        mixed = share * of_first + (1 - share) * of_second
        slope = np.sum((of_first - of_second) / mixed)
        if slope > 0:
            low = share
        else:
            high = share
    return (low + high) / 2


def log_probabilities(model: NGram, words: np.ndarray) -> np.ndarray:
    """Return the log-probability of each word after those before it, float32; 0 at BEGIN.

    Args:
        model: n-grams.
        words: messages, with BEGIN before each.
    """
    scores = model.levels[0].probability[words]
    # The place of the n-gram that ends at each position; −1 for one not in the model.
    places = words.astype(np.int64)
    for level, longer in zip(model.levels, model.levels[1:], strict=False):
        contexts = np.append(-1, places[:-1])[: len(words)]
        longer_places = followers(longer.keys, contexts, words, model.vocabulary)
        is_context = contexts >= 0
        scores[is_context] += level.backoff[contexts[is_context]]
        is_longer = longer_places >= 0
        scores[is_longer] = longer.probability[longer_places[is_longer]]
        places = longer_places
    return np.where(words == BEGIN, np.float32(0), scores)
