"""Text sampled from a model.

What a private model generates is as private as the model, so samples may be kept, counted and
published.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import BEGIN, PADDING, Key, LanguageModel, Params
from taciturn.models.recurrence import Cell
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

# Texts that are sampled together.
SIDE_BY_SIDE = 256
# Words of a text between two calls of `progress`.
LENGTH = 64
# Words that are never typed.
NEVER = np.array([PADDING, BEGIN])


@jax.jit
def choose_words(scores: jax.Array, uniform: jax.Array) -> jax.Array:
    """Choose a word for each row of log-probabilities, by a uniform number in [0, 1).

    First a block of the vocabulary, then a word of it, so that a step costs two short sums in place
    of a random number for every word. Padding and <bos> are never chosen.
    """
    probabilities = jnp.exp(scores)
    probabilities = probabilities.at[:, NEVER].set(0.0)
    blocks = _split_into_blocks(probabilities)
    of_block = jnp.sum(blocks, axis=2)
    up_to_block = jnp.cumsum(of_block, axis=1)
    wanted = uniform[:, None] * up_to_block[:, -1:]
    which = jnp.argmax(up_to_block > wanted, axis=1)
    inside = _take(blocks, which[:, None, None])
    through_block = _take(up_to_block, which[:, None])
    before = through_block - jnp.sum(inside, axis=1)
    place = _choose_inside(inside, before, wanted)
    return which * blocks.shape[1] + place


def _split_into_blocks(probabilities: jax.Array) -> jax.Array:
    """Reshape [rows, vocabulary] → [rows, blocks, words], as many blocks as a block has words."""
    vocabulary = probabilities.shape[1]
    block = int(np.ceil(np.sqrt(vocabulary)))
    padding = block * block - vocabulary
    padded = jnp.pad(probabilities, ((0, 0), (0, padding)))
    return padded.reshape(-1, block, block)


def _take(values: jax.Array, places: jax.Array) -> jax.Array:
    """Return what each row has at its place."""
    return jnp.take_along_axis(values, places, axis=1)[:, 0]


def _choose_inside(inside: jax.Array, before: jax.Array, wanted: jax.Array) -> jax.Array:
    """Return the place of the word in its block, where `before` is the sum up to the block."""
    up_to_word = before[:, None] + jnp.cumsum(inside, axis=1)
    is_reached = (up_to_word > wanted) & (inside > 0)
    is_any_reached = jnp.any(is_reached, axis=1)
    first_reached = jnp.argmax(is_reached, axis=1)
    # Rounding may put the number past the last word of its block: then take the likeliest in it.
    likeliest = jnp.argmax(inside, axis=1)
    return jnp.where(is_any_reached, first_reached, likeliest)


def samples(
    model: Neural, words: int, key: Key, progress: Progress = ignore_progress
) -> Iterator[np.ndarray]:
    """Sample texts with at least this many words in all."""
    if isinstance(model, Recurrent):
        streams = _recurrent_streams(model, key)
    else:
        streams = _windowed_streams(model, key)
    sampled = 0
    for texts in streams:
        sampled += texts.size
        yield from texts
        progress(min(sampled, words), words)
        if sampled >= words:
            return


def _recurrent_streams(model: Recurrent, key: Key) -> Iterator[np.ndarray]:
    """Resume each text where it stopped before, from the state it had."""
    state = zero_state(model.weights, SIDE_BY_SIDE)
    word = jnp.full(SIDE_BY_SIDE, BEGIN)
    extend = partial(_extend_texts, model.cell, model.weights, _mark_restarts(model))
    while True:
        key, extend_key = jax.random.split(key)
        (state, word), texts = extend(state, word, extend_key)
        yield np.asarray(texts).T


def _mark_restarts(model: Recurrent) -> jax.Array:
    """Return for each word whether the model begins anew after it."""
    restarts = np.array(sorted(model.restarts), int)
    return jnp.isin(jnp.arange(model.vocabulary), restarts)


@partial(jax.jit, static_argnums=0)
def _extend_texts(
    cell: Cell,
    weights: StepWeights,
    restarts: jax.Array,
    state: State,
    word: jax.Array,
    key: Key,
) -> tuple[tuple[State, jax.Array], jax.Array]:
    """Return the texts' last states and words, and their next words, [LENGTH, SIDE_BY_SIDE]."""

    def sample_word(
        state_and_word: tuple[State, jax.Array], uniform: jax.Array
    ) -> tuple[tuple[State, jax.Array], jax.Array]:
        state, word = state_and_word
        is_restart = restarts[word][:, None]
        state = jax.tree.map(lambda part: jnp.where(is_restart, 0.0, part), state)
        word = jnp.where(restarts[word], BEGIN, word)
        state, scores = step(cell, weights, state, word)
        word = choose_words(scores, uniform)
        return (state, word), word

    uniforms = jax.random.uniform(key, (LENGTH, SIDE_BY_SIDE))
    return jax.lax.scan(sample_word, (state, word), uniforms)


def _windowed_streams(model: Windowed, key: Key) -> Iterator[np.ndarray]:
    """Begin new texts each time."""
    while True:
        key, texts_key = jax.random.split(key)
        uniforms = jax.random.uniform(texts_key, (LENGTH, SIDE_BY_SIDE))
        yield _sample_windowed(model, uniforms)


def _sample_windowed(model: Windowed, uniforms: jax.Array) -> np.ndarray:
    """Return a text for each uniform number of a row, a word for each row."""
    length, rows = uniforms.shape
    texts = np.zeros((rows, length + 1), np.int32)
    texts[:, 0] = BEGIN
    for place in range(length):
        scores = model.scores_at(texts[:, :-1], place)
        texts[:, place + 1] = choose_words(scores, uniforms[place])
    return texts[:, 1:]


def beginnings(model: LanguageModel, params: Params, rows: int, length: int, key: Key) -> jax.Array:
    """Sample the first words of texts after <bos>: int [rows, length + 1].

    For short texts: every word reads the whole text.
    """
    uniforms = jax.random.uniform(key, (length, rows))
    matrix, bias = model.words(params)

    def sample_word(place: jax.Array | int, texts: jax.Array) -> jax.Array:
        contexts = model.contexts(params, texts[:, :-1], None)
        context = contexts[:, place]
        logits = context @ matrix.T + bias
        scores = jax.nn.log_softmax(logits)
        word = choose_words(scores, uniforms[place])
        return texts.at[:, place + 1].set(word)

    start = _start_texts(rows, length)
    return jax.lax.fori_loop(0, length, sample_word, start)


def _start_texts(rows: int, length: int) -> jax.Array:
    texts = jnp.zeros((rows, length + 1), jnp.int32)
    return texts.at[:, 0].set(BEGIN)
