"""A user's own words come in by the formula of MacKay and Peto, in the order in which they are
typed, and are forgotten in that order.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.core import BEGIN, END, PADDING, UNKNOWN
from taciturn.keyboard.user_history import WithHistory
from taciturn.models.ngram import kneser_ney

VOCABULARY = 9
BASE = kneser_ney([np.array([4, 5, 6, END, 5, 4, UNKNOWN, 7, END, 4, 5])], VOCABULARY, 3)
STRENGTHS = (7.0, 3.0, 0.5)
TEXT = st.lists(st.sampled_from([UNKNOWN, END, 4, 5, 5, 6, 8]), max_size=40).map(
    lambda words: np.array(words, np.uint16)
)


def typing(model: WithHistory, words: np.ndarray) -> list[np.ndarray]:
    """The scores before each word, which is then typed."""
    state, along = model.start(), []
    for word in words.tolist():
        along.append(model.scores(state))
        model.learn(state, word)
        state = model.read(state, word)
    return along


def after(model: WithHistory, words: list[int]):
    state = model.start()
    for word in words:
        state = model.read(state, word)
    return state


def slow_probability(typed: list[int], word: int, strengths=STRENGTHS) -> float:
    """Of a word after all that was typed, straight from the formula."""
    start = len(typed) - typed[::-1].index(END) if END in typed else 0
    message = [BEGIN, *typed[start:]]
    state = BASE.start()
    for one in typed[start:]:
        state = BASE.read(state, one)
    probability = float(np.exp(BASE.scores(state)[word]))
    events = []  # each word that counts, with the words before it in its message
    before = [BEGIN]
    for one in typed:
        if one not in (UNKNOWN, END):
            events.append((before, one))
        before = [BEGIN] if one == END else [*before, one]
    for length, strength in enumerate(strengths):
        if length > len(message):
            break
        context = message[len(message) - length :]
        following = [
            one
            for words, one in events
            if words[len(words) - length :] == context and len(words) >= length
        ]
        probability = (following.count(word) + strength * probability) / (len(following) + strength)
    return probability


@given(TEXT, st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_scores_are_those_of_the_formula_and_sum_to_one(words, order):
    model = WithHistory(BASE, STRENGTHS[:order])
    for position, scores in enumerate(typing(model, words)):
        expected = [
            slow_probability(words[:position].tolist(), word, STRENGTHS[:order])
            for word in range(VOCABULARY)
        ]
        np.testing.assert_allclose(np.exp(scores), expected, rtol=2e-4, atol=1e-7)
        assert np.exp(scores.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
        assert np.isneginf(scores[[PADDING, BEGIN]]).all()


@given(TEXT, TEXT)
@settings(max_examples=40, deadline=None)
def test_later_words_never_help_earlier_ones(words, later):
    alone = typing(WithHistory(BASE), words)
    followed = (typing(WithHistory(BASE), np.concatenate([words, later])))[: len(words)]
    assert np.array_equal(np.array(alone), np.array(followed))


def test_earlier_words_help_later_ones():
    model = WithHistory(BASE, STRENGTHS)
    first, *_, last = (scores[8] for scores in typing(model, np.array([8, END, 8, END, 8])))
    assert last > first + 1


def test_reading_alone_changes_nothing():
    """The twin of the test above."""
    model = WithHistory(BASE, STRENGTHS)
    before = model.scores(model.start())
    for word in (8, 8, END, 8):
        model.read(model.start(), word)
    assert np.array_equal(model.scores(model.start()), before)


def test_without_a_history_the_model_below_speaks_alone():
    model = WithHistory(BASE)
    state = model.read(model.start(), 4)
    np.testing.assert_allclose(
        model.scores(state)[3:], BASE.scores(BASE.read(BASE.start(), 4))[3:], atol=1e-6
    )


@pytest.mark.parametrize("word", [PADDING, UNKNOWN, BEGIN, END])
def test_punctuation_is_not_learned(word):
    model = WithHistory(BASE)
    model.learn(after(model, [4, 5]), word)
    assert all(
        np.array_equal(*pair)
        for pair in zip(typing(model, TYPED), typing(WithHistory(BASE), TYPED), strict=True)
    )


TYPED = np.array([4, 5, 6, 4, 5, END, 8, 8])


@pytest.mark.parametrize("remembered", [0, 1, 5])
def test_the_oldest_words_are_forgotten(remembered):
    typed = [
        ([], 6),
        ([6], 8),
        ([6, 8], 8),
        ([], 5),
        ([5], 8),
        ([5, 8], 4),
        ([5, 8, 4], 6),
        ([], 8),
    ]
    model, short = WithHistory(BASE, STRENGTHS, remembered), WithHistory(BASE, STRENGTHS)
    for before, word in typed:
        model.learn(after(model, before), word)
    for before, word in typed[len(typed) - remembered :]:
        short.learn(after(short, before), word)
    for words in ([], [6], [6, 8], [5, 8], [5, 8, 4], [4]):
        state = model.start()
        for word in words:
            state = model.read(state, word)
        assert np.array_equal(model.scores(state), short.scores(state))


def test_the_next_user_starts_with_nothing():
    model = WithHistory(BASE, STRENGTHS, 100)
    (typing(model, TYPED))
    other = model.copy_without_history()
    assert (other.strengths, other.remembered) == (STRENGTHS, 100)
    assert np.array_equal(
        other.scores(other.start()), WithHistory(BASE, STRENGTHS).scores(other.start())
    )
    assert not np.array_equal(other.scores(other.start()), model.scores(model.start()))
