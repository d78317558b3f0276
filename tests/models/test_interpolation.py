"""The mixture of two models is what its formula says, sums to 1, and its share is the likeliest."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.core import BEGIN, END, PADDING, UNKNOWN
from taciturn.models import interpolation
from taciturn.models.interpolation import fit_share, interpolate, log_probabilities
from taciturn.models.ngram import NGram, concatenate_messages, katz, kneser_ney, prune

VOCABULARY = 8
ESTIMATORS = {"katz": katz, "kneser-ney": kneser_ney}
WORD = st.sampled_from([UNKNOWN, END, 4, 4, 4, 4, 5, 5, 6])
TEXTS = st.lists(
    st.lists(WORD, max_size=60).map(lambda words: np.array(words, np.uint16)), max_size=4
)
SHARE = st.floats(0.0, 1.0)
# Small enough to be worked out by hand: after 4 comes 5 in the one text and 6 in the other.
ONE = [np.array([4, 5, END])]
OTHER = [np.array([4, 6, END])]


def contexts(longest: int = 3):
    for length in range(longest + 1):
        yield from product([UNKNOWN, 4, 5, 6, 7], repeat=length)


def scores_after(model: NGram, words) -> np.ndarray:
    state = model.start()
    for word in words:
        state = model.read(state, word)
    return np.exp(model.scores(state).astype(np.float64))


def sums(model: NGram) -> np.ndarray:
    return np.array([scores_after(model, words).sum() for words in contexts()])


def ngrams_of(texts) -> set[tuple[int, ...]]:
    found = set()
    for text in texts:
        message = [BEGIN]
        for word in text.tolist():
            message.append(word)
            found |= {tuple(message[-length:]) for length in range(1, len(message) + 1)}
            if word == END:
                message = [BEGIN]
    return found


@pytest.mark.parametrize("kind", ESTIMATORS)
@given(TEXTS, TEXTS, SHARE, st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_context_sums_to_one(kind, one, other, share, order):
    first, second = (ESTIMATORS[kind](texts, VOCABULARY, order) for texts in (one, other))
    np.testing.assert_allclose(sums(interpolate(first, second, share)), 1, atol=1e-5)


def test_with_the_weights_of_one_of_them_it_would_not_sum_to_one(monkeypatch):
    """The twin that must fail."""
    first, second = (kneser_ney(texts, VOCABULARY, 3) for texts in (ONE, OTHER))
    monkeypatch.setattr(
        interpolation,
        "context_weights",
        lambda probability, lower, contexts, size: np.zeros(size, np.float32),
    )
    assert not np.allclose(sums(interpolate(first, second, 0.5)), 1, atol=1e-3)


@pytest.mark.parametrize("kind", ESTIMATORS)
@given(TEXTS, TEXTS, SHARE)
@settings(max_examples=60, deadline=None)
def test_every_n_gram_of_either_text_has_the_mixture_of_both(kind, one, other, share):
    order = 3
    first, second = (ESTIMATORS[kind](texts, VOCABULARY, order) for texts in (one, other))
    mixed = interpolate(first, second, share)
    in_text = ngrams_of(one) | ngrams_of(other)
    for words in contexts(2):
        context = (BEGIN, *words)[max(0, len(words) + 2 - order) :]
        expected = share * scores_after(first, words) + (1 - share) * scores_after(second, words)
        found = scores_after(mixed, words)
        for word in (UNKNOWN, END, 4, 5, 6, 7):
            if (*context, word) in in_text:
                assert found[word] == pytest.approx(expected[word], rel=1e-4)


def test_small_texts_give_what_a_hand_gives():
    """Kneser–Ney of bigrams, with discounts of a half for one occurrence, as small texts have.

    Words that can come: <unk>, <eos>, 4, 5, 6, 7. In the first text the unigrams 4, 5 and <eos>
    each count one continuation of 3, so each has (1 − ½)/3 + ½ · 1/6 = ¼, all others 1/12. After 4
    comes 5 with ½ + ½ · ¼ = 0.625; in the second text it has only what is left: ½ · 1/12 = 1/24.
    """
    first, second = (kneser_ney(texts, VOCABULARY, 2) for texts in (ONE, OTHER))
    assert scores_after(first, [4])[5] == pytest.approx(0.625)
    assert scores_after(second, [4])[5] == pytest.approx(1 / 24)
    mixed = scores_after(interpolate(first, second, 0.8), [4])
    assert mixed[5] == pytest.approx(0.8 * 0.625 + 0.2 / 24)
    assert mixed[6] == pytest.approx(0.8 / 24 + 0.2 * 0.625)
    # 7 is in neither: the weight of 4 is what 5 and 6 leave, over what they leave further back.
    unigrams = scores_after(interpolate(first, second, 0.8), [7])
    left = (1 - mixed[5] - mixed[6]) / (1 - unigrams[5] - unigrams[6])
    assert mixed[7] == pytest.approx(left * unigrams[7])
    assert unigrams[7] == pytest.approx(1 / 12)


def test_katz_by_hand():
    """Counts of one give up a half: after 4, 5 has ½, and the others share the rest.

    Unigrams: each of the three words that occur has (1 − ½)/3 = 1/6, and the other three have the
    other half between them, 1/6 each as well.
    """
    model = katz(ONE, VOCABULARY, 2)
    assert scores_after(model, [7])[[4, 7]] == pytest.approx([1 / 6, 1 / 6])
    assert scores_after(model, [4])[5] == pytest.approx(1 / 2)
    assert scores_after(model, [4])[7] == pytest.approx((1 / 2) / (5 / 6) / 6)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_everything_is_one_of_the_models(kind, share):
    generator = np.random.default_rng(0)
    one, other = ([generator.integers(UNKNOWN, VOCABULARY, 300)] for _ in range(2))
    for texts in (one, other):
        texts[0][texts[0] == BEGIN] = END
    first, second = (ESTIMATORS[kind](texts, VOCABULARY, 3) for texts in (one, other))
    mixed = interpolate(first, second, share)
    for words in contexts(2):
        expected = scores_after(first if share else second, words)
        np.testing.assert_allclose(scores_after(mixed, words), expected, rtol=1e-3, atol=1e-6)


def test_pruned_models_can_be_interpolated_and_a_mixture_pruned():
    generator = np.random.default_rng(1)
    one, other = ([4 + generator.integers(0, 4, 500) ** 2 % 4] for _ in range(2))
    first, second = (prune(katz(texts, VOCABULARY, 3), 12) for texts in (one, other))
    mixed = interpolate(first, second, 0.3)
    np.testing.assert_allclose(sums(mixed), 1, atol=1e-5)
    np.testing.assert_allclose(sums(prune(mixed, 10)), 1, atol=1e-5)


@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_looked_up_in_blocks_it_is_the_same(monkeypatch, block):
    generator = np.random.default_rng(2)
    one, other = ([4 + generator.integers(0, 4, 200)] for _ in range(2))
    first, second = (kneser_ney(texts, VOCABULARY, 4) for texts in (one, other))
    whole = interpolate(first, second, 0.4)
    monkeypatch.setattr(interpolation, "BLOCK", block)
    for level, same in zip(whole.levels, interpolate(first, second, 0.4).levels, strict=True):
        for array, other_array in zip(level, same, strict=True):
            assert np.array_equal(array, other_array)


@pytest.mark.parametrize(
    ("other", "share", "words"),
    [
        (kneser_ney(OTHER, VOCABULARY, 3), 0.5, "one order"),
        (kneser_ney(OTHER, VOCABULARY + 1, 2), 0.5, "one word list"),
        (kneser_ney(OTHER, VOCABULARY, 2), 1.5, "`share` lies between 0 and 1"),
    ],
)
def test_models_that_do_not_go_together_are_refused(other, share, words):
    with pytest.raises(ValueError, match=words):
        interpolate(kneser_ney(ONE, VOCABULARY, 2), other, share)


@given(TEXTS, TEXTS)
@settings(max_examples=40, deadline=None)
def test_probabilities_along_a_text_are_those_that_are_typed_with(counted, read):
    model = kneser_ney(counted, VOCABULARY, 3)
    along = log_probabilities(model, concatenate_messages(read, VOCABULARY))
    expected = []
    for text in read:
        if not len(text):
            continue
        state = model.start()
        expected.append(0.0)
        for position, word in enumerate(text.tolist()):
            expected.append(model.scores(state)[word])
            state = model.read(state, word)
            if word == END and position + 1 < len(text):
                expected.append(0.0)
    np.testing.assert_allclose(along, expected, atol=1e-6)


def likelihood(first: NGram, second: NGram, share: float, texts) -> float:
    """Straight from the definition; unknown words do not count."""
    words = concatenate_messages(texts, VOCABULARY)
    counted = (words != BEGIN) & (words != UNKNOWN) & (words != PADDING)
    of_first, of_second = (
        np.exp(log_probabilities(model, words).astype(float)) for model in (first, second)
    )
    return float(np.log(share * of_first + (1 - share) * of_second)[counted].sum())


def test_the_share_is_the_likeliest():
    generator = np.random.default_rng(3)
    steps = generator.integers(0, 4, (3, 400))
    one, other, mixed = ([4 + row] for row in (steps[0] // 2, steps[1], steps[2] ** 2 % 4))
    first, second = (kneser_ney(texts, VOCABULARY, 2) for texts in (one, other))
    texts = [np.concatenate([one[0][:150], other[0][:50], mixed[0][:50]])]
    share = fit_share(first, second, texts)
    best = likelihood(first, second, share, texts)
    assert 0.1 < share < 0.99
    assert all(best >= likelihood(first, second, other, texts) for other in np.linspace(0, 1, 101))
    # The twin: the share of the one is not that of the other.
    assert fit_share(second, first, texts) == pytest.approx(1 - share, abs=1e-6)


def along_a_line(generator, steps: list[int], words: int) -> np.ndarray:
    """Words of which each lies one of these steps behind the one before, among four."""
    return 4 + np.cumsum(generator.choice(steps, words)) % 4


def mean_log_probability(model: NGram, texts) -> float:
    words = concatenate_messages(texts, VOCABULARY)
    return float(log_probabilities(model, words)[words != BEGIN].mean())


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("seed", range(5))
def test_on_what_its_share_is_fitted_on_the_mixture_is_better_than_both(kind, seed):
    generator = np.random.default_rng(seed)
    one = [along_a_line(generator, [1, 1, 2], 200)]
    other = [along_a_line(generator, [2, 3], 2000)]
    first, second = (ESTIMATORS[kind](texts, VOCABULARY, 3) for texts in (one, other))
    held_back = [along_a_line(generator, [1, 1, 2], 300), along_a_line(generator, [2, 3], 60)]
    share = fit_share(first, second, held_back)
    of_either = [mean_log_probability(model, held_back) for model in (first, second)]
    assert mean_log_probability(interpolate(first, second, share), held_back) > max(of_either)
    # The twin: with the share on the wrong side it is worse than one of them.
    assert mean_log_probability(interpolate(second, first, share), held_back) < max(of_either)
