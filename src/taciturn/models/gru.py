"""A gated recurrent unit with tied embeddings: a third fewer recurrent parameters than the LSTM of the same size."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import Key, LanguageModel, Params
from taciturn.models.layers import dense, dot, dropout, embedding, looked_up
from taciturn.models.recurrence import recurrence


def cell(x: jax.Array, r: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The reset gate acts after the recurrent product (as in cuDNN), so that one product serves all three gates."""
    x_update, x_reset, x_candidate = jnp.split(x, 3, axis=-1)
    r_update, r_reset, r_candidate = jnp.split(r, 3, axis=-1)
    update = jax.nn.sigmoid(x_update + r_update)
    candidate = jnp.tanh(x_candidate + jax.nn.sigmoid(x_reset + r_reset) * r_candidate)
    state = (1.0 - update) * candidate + update * carry
    return state, state


def gru(vocabulary: int, width: int = 96, units: int = 256, dropout_rate: float = 0.0, product: DTypeLike = jnp.float32) -> LanguageModel:
    def init(key: Key) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "input": dense(keys[1], (width, 3 * units)),
            "recurrent": dense(keys[2], (units, 3 * units)),
            "gate_bias": jnp.zeros(3 * units),
            "output": dense(keys[3], (units, width)),
            "word_bias": jnp.zeros(vocabulary),
        }

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        keys = (None, None) if key is None else jax.random.split(key)
        embedded = dropout(looked_up(params["embedding"], tokens.T), dropout_rate, keys[0])
        gates = dot(embedded, params["input"], product) + params["gate_bias"]
        states = recurrence(cell, gates, params["recurrent"], None, units, product)
        return jnp.swapaxes(dot(dropout(states, dropout_rate, keys[1]), params["output"], product), 0, 1)

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return params["embedding"], params["word_bias"]

    return LanguageModel(init, contexts, words)
