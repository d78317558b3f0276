"""The LSTM of McMahan et al. 2018, Appendix B: tied, unit-norm embeddings; 1.35M parameters at 10,000 words."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import Key, LanguageModel, Params
from taciturn.models.layers import dense, dot, dropout, embedding, looked_up, unit_rows
from taciturn.models.recurrence import recurrence


def cell(x: jax.Array, r: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Hochreiter and Schmidhuber's cell with forget gates, which start open (+1)."""
    input_gate, forget_gate, candidate, output_gate = jnp.split(x + r, 4, axis=-1)
    carry = jax.nn.sigmoid(forget_gate + 1.0) * carry + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
    return jax.nn.sigmoid(output_gate) * jnp.tanh(carry), carry


def lstm(
    vocabulary: int, width: int = 96, units: int = 256, unit_norm: bool = True, dropout_rate: float = 0.0, product: DTypeLike = jnp.float32
) -> LanguageModel:
    """word → embedding e_t ∈ ℝ^width → state s_t ∈ ℝ^units → output embedding o_t, scored against every word's embedding."""
    rows = unit_rows if unit_norm else lambda matrix: matrix

    def init(key: Key) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "input": dense(keys[1], (width, 4 * units)),
            "recurrent": dense(keys[2], (units, 4 * units)),
            "gate_bias": jnp.zeros(4 * units),
            "output": dense(keys[3], (units, width)),
            "word_bias": jnp.zeros(vocabulary),
        }

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        keys = (None, None) if key is None else jax.random.split(key)
        # Look up, then normalise: only the rows in use are touched.
        embedded = dropout(rows(looked_up(params["embedding"], tokens.T)), dropout_rate, keys[0])
        gates = dot(embedded, params["input"], product) + params["gate_bias"]
        states = recurrence(cell, gates, params["recurrent"], None, units, product)
        return jnp.swapaxes(dot(dropout(states, dropout_rate, keys[1]), params["output"], product), 0, 1)

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return rows(params["embedding"]), params["word_bias"]

    return LanguageModel(init, contexts, words, unit_norm=unit_norm)
