"""Text sampled from a model. What a private model generates is as private as the model, so samples
may be kept, counted and published.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import BEGIN, PADDING, Key, LanguageModel, Params
from taciturn.models.stepping import (
    Neural,
    Recurrent,
    State,
    StepWeights,
    Windowed,
    step,
    zero_state,
)
from taciturn.progress import Progress, ignore_progress

# texts
SIDE_BY_SIDE = 256
# words of a text between two calls of `progress`
LENGTH = 64


@jax.jit
def choose_words(scores: jax.Array, uniform: jax.Array) -> jax.Array:
    """Choose a word for each row of log-probabilities, by a uniform number in [0, 1): first a block
    of the vocabulary, then a word of it, so that a step costs two short sums in place of a random
    number for every word. Padding and <bos> are never chosen.
    """
    probabilities = jnp.exp(scores).at[:, np.array([PADDING, BEGIN])].set(0.0)
    block = int(np.ceil(np.sqrt(scores.shape[1])))
    padded = jnp.pad(probabilities, ((0, 0), (0, block * block - scores.shape[1]))).reshape(
        -1, block, block
    )
    up_to_block = jnp.cumsum(jnp.sum(padded, axis=2), axis=1)
    wanted = uniform[:, None] * up_to_block[:, -1:]
    which = jnp.argmax(up_to_block > wanted, axis=1)
    inside = jnp.take_along_axis(padded, which[:, None, None], axis=1)[:, 0]
    before = jnp.take_along_axis(up_to_block, which[:, None], axis=1)[:, 0] - jnp.sum(
        inside, axis=1
    )
    up_to_word = before[:, None] + jnp.cumsum(inside, axis=1)
    # Rounding may put the number past the last word of its block: then take the likeliest in it.
    found = (up_to_word > wanted) & (inside > 0)
    place = jnp.where(jnp.any(found, axis=1), jnp.argmax(found, axis=1), jnp.argmax(inside, axis=1))
    return which * block + place


def samples(
    model: Neural, words: int, key: Key, progress: Progress = ignore_progress
) -> Iterator[np.ndarray]:
    """Sample texts with at least this many words in all."""
    streams = (
        _recurrent_streams(model, key)
        if isinstance(model, Recurrent)
        else _windowed_streams(model, key)
    )
    made = 0
    for texts in streams:
        made += texts.size
        yield from texts
        progress(min(made, words), words)
        if made >= words:
            return


def _recurrent_streams(model: Recurrent, key: Key) -> Iterator[np.ndarray]:
    """Continue each text where it was cut before, from the state it had."""
    state, word = zero_state(model.weights, SIDE_BY_SIDE), jnp.full(SIDE_BY_SIDE, BEGIN)
    restarts = jnp.isin(jnp.arange(model.vocabulary), np.array(sorted(model.restarts), int))
    while True:
        key, now = jax.random.split(key)
        (state, word), texts = _said(model.cell, model.weights, restarts, state, word, now)
        yield np.asarray(texts).T


@partial(jax.jit, static_argnums=0)
def _said(cell, weights: StepWeights, restarts: jax.Array, state: State, word: jax.Array, key: Key):
    def say(state_and_word, uniform):
        state, word = state_and_word
        afresh = restarts[word][:, None]
        state = jax.tree.map(lambda one: jnp.where(afresh, 0.0, one), state)
        state, scores = step(cell, weights, state, jnp.where(restarts[word], BEGIN, word))
        word = choose_words(scores, uniform)
        return (state, word), word

    return jax.lax.scan(say, (state, word), jax.random.uniform(key, (LENGTH, SIDE_BY_SIDE)))


def _windowed_streams(model: Windowed, key: Key) -> Iterator[np.ndarray]:
    while True:
        key, now = jax.random.split(key)
        uniforms = jax.random.uniform(now, (LENGTH, SIDE_BY_SIDE))
        texts = np.zeros((SIDE_BY_SIDE, LENGTH + 1), np.int32)
        texts[:, 0] = BEGIN
        for place in range(LENGTH):
            texts[:, place + 1] = choose_words(
                model.scores_at(texts[:, :-1], place), uniforms[place]
            )
        yield texts[:, 1:]


def beginnings(model: LanguageModel, params: Params, rows: int, length: int, key: Key) -> jax.Array:
    """Sample the first words of texts after <bos>: int [rows, length + 1]. For short texts: every
    word reads the whole text.
    """
    uniforms = jax.random.uniform(key, (length, rows))
    matrix, bias = model.words(params)

    def say(place: jax.Array | int, texts: jax.Array) -> jax.Array:
        context = model.contexts(params, texts[:, :-1], None)[:, place]
        word = choose_words(jax.nn.log_softmax(context @ matrix.T + bias), uniforms[place])
        return texts.at[:, place + 1].set(word)

    return jax.lax.fori_loop(
        0, length, say, jnp.zeros((rows, length + 1), jnp.int32).at[:, 0].set(BEGIN)
    )
