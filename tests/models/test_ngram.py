"""N-gram models agree with slow ones that are written straight from the papers, and every context's
probabilities sum to 1.
"""

import math
from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.core import BEGIN, END, PADDING, UNKNOWN
from taciturn.models import ngram
from taciturn.models.ngram import NGram, katz, kneser_ney, prune

VOCABULARY, LARGE = 8, 44
PREDICTED = np.setdiff1d(np.arange(VOCABULARY), [PADDING, BEGIN])
PREDICTED_OF_LARGE = np.setdiff1d(np.arange(LARGE), [PADDING, BEGIN])
# The words 6 and 7 are rare or never seen; the others are frequent enough for all kinds of counts.
WORD = st.sampled_from([UNKNOWN, END, 4, 4, 4, 4, 5, 5, 6])
TEXTS = st.lists(
    st.lists(WORD, max_size=60).map(lambda words: np.array(words, np.uint16)), max_size=4
)
ESTIMATORS = {"katz": katz, "kneser-ney": kneser_ney}


def long_text(seed: int = 0, words: int = 4000) -> list[np.ndarray]:
    """Enough for Good–Turing and for three discounts: words that depend on the one before, rare
    ones among them.
    """
    generator = np.random.default_rng(seed)
    steps = np.minimum(generator.geometric(0.35, words), 12)
    text = 4 + np.cumsum(steps) % 40
    text[generator.random(words) < 0.1] = END
    text[generator.random(words) < 0.03] = UNKNOWN
    return np.split(text, 10)


def messages(texts) -> list[list[int]]:
    found = []
    for text in texts:
        for position, word in enumerate(text.tolist()):
            if position == 0 or text[position - 1] == END:
                found.append([BEGIN])
            found[-1].append(word)
    return found


def counts_by_context(texts, order: int) -> dict[tuple[int, ...], Counter]:
    counts = defaultdict(Counter)
    for message in messages(texts):
        for end in range(1, len(message)):
            for length in range(min(order, end + 1)):
                counts[tuple(message[end - length : end])][message[end]] += 1
    return counts


def of_length(counts, length: int) -> Counter:
    return Counter(
        count
        for context, words in counts.items()
        if len(context) == length
        for count in words.values()
    )


class SlowKatz:
    """Katz 1987, with the departures that models/ngram.py names."""

    def __init__(self, texts, vocabulary: int, order: int) -> None:
        self.words = vocabulary - 2
        self.counts = counts_by_context(texts, order)
        self.discounts = [
            self._discounts(of_length(self.counts, length)) for length in range(order)
        ]

    def _discounts(self, n):
        for k in (5, 4, 3, 2):
            if not all(n[r] for r in range(1, k + 1)) or n[1] <= (k + 1) * n[k + 1]:
                continue
            d = {}
            for r in range(1, k + 1):
                star = (r + 1) * n[r + 1] / n[r]
                d[r] = (star / r - (k + 1) * n[k + 1] / n[1]) / (1 - (k + 1) * n[k + 1] / n[1])
            if all(0 < one < 1 for one in d.values()):
                return lambda r, d=d: d.get(r, 1.0)
        return lambda r: (r - 0.5) / r

    def probability(self, context, word):
        below = (
            (lambda w: 1 / self.words)
            if not context
            else (lambda w: self.probability(context[1:], w))
        )
        counts = self.counts.get(context)
        if not counts:
            return below(word)
        kept = {w: r * self.discounts[len(context)](r) for w, r in counts.items()}
        if len(counts) == self.words:
            return kept[word] / sum(kept.values())
        total = counts.total() + (sum(kept.values()) == counts.total())
        if word in kept:
            return kept[word] / total
        return (1 - sum(kept.values()) / total) * below(word) / (1 - sum(below(w) for w in kept))


class SlowKneserNey:
    """Chen and Goodman 1999, with raw counts where nothing can stand before."""

    def __init__(self, texts, vocabulary: int, order: int) -> None:
        self.words = vocabulary - 2
        raw = counts_by_context(texts, order)
        self.counts = {context: Counter(words) for context, words in raw.items()}
        for context, words in raw.items():
            if len(context) < order - 1 and context[:1] != (BEGIN,):
                for word in words:
                    self.counts[context][word] = sum(
                        word in raw[c] for c in raw if c[1:] == context and c
                    )
        self.discounts = [
            self._discounts(of_length(self.counts, length)) for length in range(order)
        ]

    def _discounts(self, n):
        d = [0, 0.5, 1, 1.5]
        if n[1] and n[2] and n[3] and n[4]:
            y = n[1] / (n[1] + 2 * n[2])
            better = [0, 1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3]]
            d = better if min(better[1:]) > 0 else d
        return lambda r: d[min(r, 3)]

    def probability(self, context, word):
        below = 1 / self.words if not context else self.probability(context[1:], word)
        counts = self.counts.get(context)
        if not counts:
            return below
        d, total = self.discounts[len(context)], counts.total()
        weight = sum(d(r) for r in counts.values()) / total
        return (counts[word] - d(counts[word])) / total + weight * below


SLOW = {"katz": SlowKatz, "kneser-ney": SlowKneserNey}


def contexts(longest: int):
    """What may stand before a word: the beginning of a message and some words."""
    words = [word for word in PREDICTED.tolist() if word != END]
    for length in range(longest + 1):
        yield from product(words, repeat=length)


def scores_after(model: NGram, words) -> np.ndarray:
    state = model.start()
    for word in words:
        state = model.read(state, word)
    return model.scores(state)


def sums(model: NGram, longest: int = 3) -> np.ndarray:
    scores = [scores_after(model, words) for words in contexts(longest)]
    assert all(np.isneginf(one[[PADDING, BEGIN]]).all() for one in scores)
    return np.exp(np.array(scores, np.float64)).sum(1)


@pytest.mark.parametrize("kind", ESTIMATORS)
@given(TEXTS, st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_probabilities_are_those_of_the_paper(kind, texts, order):
    model, slow = ESTIMATORS[kind](texts, VOCABULARY, order), SLOW[kind](texts, VOCABULARY, order)
    for words in contexts(2):
        context = (BEGIN, *words)[max(0, len(words) + 2 - order) :] if order > 1 else ()
        expected = [math.log(slow.probability(context, word)) for word in PREDICTED]
        np.testing.assert_allclose(scores_after(model, words)[PREDICTED], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_probabilities_are_those_of_the_paper_where_text_is_enough_for_its_discounts(kind):
    texts = long_text()
    model, slow = ESTIMATORS[kind](texts, LARGE, 3), SLOW[kind](texts, LARGE, 3)
    for words in messages(texts)[:50]:
        for end in range(1, len(words)):
            expected = math.log(slow.probability(tuple(words[max(0, end - 2) : end]), words[end]))
            assert scores_after(model, words[1:end])[words[end]] == pytest.approx(
                expected, abs=1e-5
            )


def test_counts_of_occurrences_instead_of_contexts_are_not_kneser_ney(monkeypatch):
    """The twin that must fail."""
    texts = long_text()
    right = kneser_ney(texts, LARGE, 3)
    monkeypatch.setitem(
        vars(ngram), "continuations", lambda levels: levels
    )  # counts are not traced: programs can stay
    assert not np.allclose(
        scores_after(kneser_ney(texts, LARGE, 3), [5])[4:], scores_after(right, [5])[4:], atol=0.01
    )


@pytest.mark.parametrize("kind", ESTIMATORS)
@given(TEXTS, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_context_sums_to_one(kind, texts, order):
    np.testing.assert_allclose(sums(ESTIMATORS[kind](texts, VOCABULARY, order)), 1, atol=1e-5)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_wrong_weights_would_not_sum_to_one(kind):
    """The twin that must fail."""
    model = ESTIMATORS[kind]([np.array([4, 5, 6, 4, 5, END, 4, 4])], VOCABULARY)
    first, *longer = model.levels
    wrong = NGram((first._replace(backoff=first.backoff + np.float32(0.1)), *longer), VOCABULARY)
    assert not np.allclose(sums(wrong), 1, atol=1e-3)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_words_before_the_end_of_a_message_do_not_matter(kind):
    model = ESTIMATORS[kind](long_text(), LARGE)
    assert np.array_equal(scores_after(model, [7, 9, END, 11]), scores_after(model, [11]))
    assert not np.array_equal(scores_after(model, [7, 9, 11]), scores_after(model, [11]))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_messages_of_one_text_count_like_texts_of_their_own(kind):
    together = ESTIMATORS[kind]([np.array([4, 5, END, 6, 4, END, END])], VOCABULARY)
    apart = ESTIMATORS[kind](
        [np.array([4, 5, END]), np.array([6, 4, END]), np.array([END])], VOCABULARY
    )
    assert_same(together, apart)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("texts", [[], [np.zeros(0, np.uint16)]], ids=["no text", "an empty text"])
@pytest.mark.parametrize("order", [1, 4])
def test_without_text_all_words_are_alike(kind, texts, order):
    scores = scores_after(ESTIMATORS[kind](texts, VOCABULARY, order), [4, 5])
    np.testing.assert_allclose(np.exp(scores[PREDICTED]), 1 / 6, rtol=1e-6)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("word", [4, UNKNOWN, END])
def test_a_text_of_one_word_makes_it_the_likeliest(kind, word):
    model = ESTIMATORS[kind]([np.array([word] * 3)], VOCABULARY)
    assert scores_after(model, []).argmax() == word
    np.testing.assert_allclose(sums(model), 1, atol=1e-5)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_unseen_context_is_ignored(kind):
    model = ESTIMATORS[kind](long_text(), 50)
    assert np.array_equal(scores_after(model, [49, 48]), model.levels[0].probability)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_parameters_are_plain_arrays_that_make_the_model_again(kind):
    model = ESTIMATORS[kind](long_text(), LARGE)
    params = model.params()
    assert sorted(params) == ["1", "2", "3", "4"]
    assert sorted(params["3"]) == ["backoff", "keys", "probability"]
    assert sorted(params["4"]) == ["keys", "probability"]
    assert_same(NGram.of(params, LARGE), model)


@pytest.mark.parametrize(
    ("words", "order", "reason"),
    [
        ([4, 8], 4, "another vocabulary"),
        ([4, -1], 4, "another vocabulary"),
        ([4, PADDING], 4, "padding"),
        ([4], 6, "from 1 to 5"),
    ],
)
def test_what_cannot_be_counted_is_refused_with_the_reason(words, order, reason):
    with pytest.raises(ValueError, match=reason):
        katz([np.array(words)], VOCABULARY, order)


@pytest.mark.parametrize("kind", ESTIMATORS)
@given(TEXTS, st.integers(2, 5), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_pruned_model_sums_to_one_and_holds_what_it_may(kind, texts, order, share, share_again):
    model = ESTIMATORS[kind](texts, VOCABULARY, order)
    for one in (share, share_again):
        entries = int(one * above_unigrams(model))
        model = prune(model, entries)
        assert above_unigrams(model) == entries
        np.testing.assert_allclose(sums(model), 1, atol=1e-5)


def test_every_part_of_an_n_gram_that_is_kept_is_kept():
    model = prune(katz(long_text(), LARGE), 500)
    spelled = [{()}, {(word,) for word in range(LARGE)}]
    ordered = [[()], [(word,) for word in range(LARGE)]]
    for level in model.levels[1:]:
        ordered.append([(*ordered[-1][int(key) // LARGE], int(key) % LARGE) for key in level.keys])
        assert {words[1:] for words in ordered[-1]} <= spelled[-1]
        spelled.append(set(ordered[-1]))
    assert len(spelled[4]) > 10


def test_weights_are_right_where_the_end_of_an_n_gram_is_not_in_the_model():
    """As in files of other tools: here BEGIN 4 5 is there, and 4 5 is not."""
    unigrams = np.full(VOCABULARY, np.log(1 / 6), np.float32)
    unigrams[[PADDING, BEGIN]] = -np.inf
    params = {
        "1": {
            "keys": np.arange(8, dtype=np.uint64),
            "probability": unigrams,
            "backoff": np.zeros(8, np.float32),
        },
        "2": {
            "keys": np.array([BEGIN * 8 + 4, 4 * 8 + 6, 5 * 8 + 6], np.uint64),
            "probability": np.log(np.array([0.5, 0.7, 0.2], np.float32)),
            "backoff": np.zeros(3, np.float32),
        },
        "3": {
            "keys": np.array([0 * 8 + 5], np.uint64),
            "probability": np.log(np.array([0.9], np.float32)),
        },
    }
    model = prune(NGram.of(params, VOCABULARY), 3)
    assert [len(level.keys) for level in model.levels] == [8, 2, 1]
    np.testing.assert_allclose(sums(model), 1, atol=1e-5)
    assert scores_after(model, [4])[5] == pytest.approx(np.log(0.9))


def test_a_model_pruned_to_everything_is_the_model():
    model = kneser_ney(long_text(), LARGE)
    assert_same(prune(model, above_unigrams(model)), model)


def test_what_is_pruned_first_is_missed_least():
    """Against the relative entropy between the two models, summed over all words of all contexts of
    a bigram model.
    """
    model = katz(long_text(words=800), LARGE, 2)
    unigrams, bigrams = model.levels
    often = np.exp(unigrams.probability, dtype=np.float64)
    often[BEGIN] = often[END]

    def entropy(smaller: NGram, context: int) -> float:
        before, after = (
            one.scores((context,)).astype(np.float64)[PREDICTED_OF_LARGE]
            for one in (model, smaller)
        )
        return float(often[context] * np.sum(np.exp(before) * (before - after)))

    def without(place: int) -> NGram:
        context, word = divmod(int(bigrams.keys[place]), LARGE)
        following = {
            int(key) % LARGE: p
            for key, p in zip(*bigrams[:2], strict=True)
            if key // LARGE == context
        }
        del following[word]
        left = 1 - sum(math.exp(p) for p in following.values())
        unseen = 1 - sum(math.exp(unigrams.probability[one]) for one in following)
        backoff = unigrams.backoff.copy()
        backoff[context] = math.log(left / unseen)
        kept = np.arange(len(bigrams.keys)) != place
        return NGram(
            (
                unigrams._replace(backoff=backoff),
                bigrams._replace(keys=bigrams[0][kept], probability=bigrams[1][kept]),
            ),
            LARGE,
        )

    costs = [
        entropy(without(place), int(bigrams.keys[place]) // LARGE)
        for place in range(len(bigrams.keys))
    ]
    for entries in (len(costs) - 1, len(costs) - 20):
        kept = prune(model, entries).levels[1].keys
        missing = np.flatnonzero(~np.isin(bigrams.keys, kept))
        cheapest = np.sort(costs)[: len(missing)]
        np.testing.assert_allclose(np.sort(np.array(costs)[missing]), cheapest, atol=1e-6)


def above_unigrams(model: NGram) -> int:
    return sum(len(level.keys) for level in model.levels[1:])


def assert_same(one: NGram, other: NGram) -> None:
    for left, right in zip(one.levels, other.levels, strict=True):
        for a, b in zip(left, right, strict=True):
            assert np.array_equal(a, b)
            assert a.dtype == b.dtype
