"""Gboard's model: a CIFG-LSTM whose state is projected to the width of the embeddings (Ramaswamy et al. 2020; Xu et al. 2023).

670 units, projected to 96. Tied it has about 1.4M parameters at 10,000 words (Ramaswamy's), with separate input and output
embeddings 2.4M, 4.3M and 6.2M at 10,000, 20,000 and 30,000 (Xu's, who need them for fine-tuning).
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import Key, LanguageModel, Params
from taciturn.models.layers import dense, dot, dropout, embedding, looked_up
from taciturn.models.recurrence import recurrence


def cell(x: jax.Array, r: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Coupled input and forget gate: what is let in is what is forgotten, i = 1 − f. Three gates instead of four."""
    forget_gate, candidate, output_gate = jnp.split(x + r, 3, axis=-1)
    forget = jax.nn.sigmoid(forget_gate + 1.0)
    carry = forget * carry + (1.0 - forget) * jnp.tanh(candidate)
    return jax.nn.sigmoid(output_gate) * jnp.tanh(carry), carry


def cifg(
    vocabulary: int, width: int = 96, units: int = 670, tied: bool = False, dropout_rate: float = 0.0, product: DTypeLike = jnp.float32
) -> LanguageModel:
    def init(key: Key) -> Params:
        keys = jax.random.split(key, 5)
        params = {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "input": dense(keys[1], (width, 3 * units)),
            "recurrent": dense(keys[2], (width, 3 * units)),
            "gate_bias": jnp.zeros(3 * units),
            "projection": dense(keys[3], (units, width)),
            "word_bias": jnp.zeros(vocabulary),
        }
        return params if tied else params | {"word_embedding": embedding(keys[4], (vocabulary, width))}

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        keys = (None, None) if key is None else jax.random.split(key)
        embedded = dropout(looked_up(params["embedding"], tokens.T), dropout_rate, keys[0])
        gates = dot(embedded, params["input"], product) + params["gate_bias"]
        states = recurrence(cell, gates, params["recurrent"], params["projection"], units, product)
        return jnp.swapaxes(dropout(states, dropout_rate, keys[1]), 0, 1)

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return params["embedding" if tied else "word_embedding"], params["word_bias"]

    return LanguageModel(init, contexts, words, word_embedding="embedding" if tied else "word_embedding")
