"""Word by word a model says what it says over a whole text, and its samples follow its
probabilities.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import mostly_slow
from taciturn.core import BEGIN, END, PADDING
from taciturn.models import losses
from taciturn.models.cells import cifg, gru, lstm
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.registry import model_kind
from taciturn.models.sampling import choose_words, samples
from taciturn.models.stepping import WINDOW
from taciturn.models.transformer import transformer

pytestmark = pytest.mark.optimised

WORDS = 30
MODELS = {
    "lstm": lstm(WORDS, 8, 12),
    "lstm of free length": lstm(WORDS, 8, 12, unit_norm=False),
    "cifg": cifg(WORDS, 8, 12),
    "cifg tied": cifg(WORDS, 8, 12, tied=True),
    "gru": gru(WORDS, 8, 12),
    "transformer": transformer(WORDS, 8, layers=2, heads=2),
    "deep lstm": deep_lstm(WORDS, 8, 12),
    "deep lstm tied": deep_lstm(WORDS, 12, 12, layers=3, tied=True),
}
TEXT = np.random.default_rng(0).integers(1, WORDS, 40)


@functools.cache
def made(name: str, restarts=()):
    model = MODELS[name]
    params = jax.tree.map(lambda leaf: 3 * leaf, model.init(jax.random.key(1)))
    kind = "deep-lstm" if name.startswith("deep") else name.split()[0]
    return model, params, model_kind(kind).stepper(model, params, restarts)


def scores_along(model, text) -> np.ndarray:
    state, rows = model.start(), []
    for word in text.tolist():
        rows.append(model.scores(state))
        state = model.read(state, word)
    return np.stack(rows)


SIBLINGS = {"lstm of free length", "cifg tied", "deep lstm"}


@pytest.mark.parametrize("name", mostly_slow(MODELS, *(set(MODELS) - SIBLINGS)))
def test_word_by_word_a_model_says_what_it_says_over_a_whole_text(name):
    model, params, stepping = made(name)
    whole = jax.jit(lambda text: jax.nn.log_softmax(losses.logits(model, params, text)))(
        np.array([[BEGIN, *TEXT[:-1]]])
    )[0]
    np.testing.assert_allclose(scores_along(stepping, TEXT), whole, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_sentences_starts_afresh_after_each(name):
    _, _, stepping = made(name, restarts=(END,))
    state = stepping.read(stepping.read(stepping.start(), 7), END)
    np.testing.assert_array_equal(stepping.scores(state), stepping.scores(stepping.start()))
    _, _, going_on = made(name)
    state = going_on.read(going_on.read(going_on.start(), 7), END)
    assert not np.allclose(going_on.scores(state), going_on.scores(going_on.start()))


def test_reading_leaves_a_state_as_it_was():
    _, _, stepping = made("cifg")
    state = stepping.read(stepping.start(), 7)
    before = stepping.scores(state).copy()
    stepping.read(stepping.read(state, 8), 9)
    np.testing.assert_array_equal(stepping.scores(state), before)


def test_a_model_without_a_state_goes_on_past_its_window():
    _, _, stepping = made("transformer")
    state = stepping.start()
    for word in [*range(4, 24)] * 5:
        state = stepping.read(state, word)
    assert len(state) == WINDOW
    assert np.isfinite(stepping.scores(state)).all()


def test_a_word_is_chosen_as_often_as_it_is_likely():
    probabilities = np.array([0.05, 0.1, 0.15, 0.2, 0.0, 0.3, 0.1, 0.1])
    uniform = jax.random.uniform(jax.random.key(0), (50_000,))
    words = choose_words(jnp.tile(jnp.log(probabilities), (50_000, 1)), uniform)
    expected = np.where(np.isin(np.arange(8), [PADDING, BEGIN]), 0.0, probabilities)
    np.testing.assert_allclose(
        np.bincount(words, minlength=8) / 50_000, expected / expected.sum(), atol=0.01
    )


@pytest.mark.parametrize("name", mostly_slow(["cifg", "transformer"], "cifg"))
def test_samples_have_the_model_s_probabilities(name):
    _, _, stepping = made(name)
    texts = list(samples(stepping, 20_000, jax.random.key(2)))
    assert sum(map(len, texts)) >= 20_000
    firsts = np.bincount([text[0] for text in texts[:256]], minlength=WORDS)
    assert firsts[[PADDING, BEGIN]].sum() == 0
    # How likely what was said is, on average, is the model's entropy; of words drawn alike it would
    # be far less.
    said = np.stack(texts[:8])
    rows = [(scores_along(stepping, text), text) for text in said]
    likely = np.mean([scores[np.arange(len(text)), text].mean() for scores, text in rows])
    entropy = np.mean([-(np.exp(scores) * scores).sum(1).mean() for scores, _ in rows])
    alike = np.mean([scores[:, 3:].mean() for scores, _ in rows])
    assert abs(likely + entropy) < 0.25
    assert alike < likely - 0.5
