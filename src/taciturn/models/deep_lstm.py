"""LSTM layers on top of each other, with dropout between them but not in time (Zaremba et al.
2014).

With 2 × 650 units at 30,000 words it has 45.8M parameters, the model of Popov et al. 2018; with 2 ×
1500, tied, and one dropout mask for a whole sequence ("variational") it is the one of their Table
4, which Lin et al. 2018 took from Inan et al. 2016.

Departs from Inan et al.: what a layer feeds back to itself is never dropped.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import BEGIN, Key, LanguageModel, Params
from taciturn.models.cells import lstm_cell
from taciturn.models.layers import dense, dot, dropout, embedding, looked_up
from taciturn.models.recurrence import recurrence
from taciturn.models.stepping import Carrying, State, Windowed


def deep_lstm(
    vocabulary: int,
    width: int = 650,
    units: int = 650,
    layers: int = 2,
    tied: bool = False,
    dropout_rate: float = 0.0,
    variational: bool = False,
    product: DTypeLike = jnp.float32,
) -> LanguageModel:
    if tied and width != units:
        raise ValueError(
            f"tied embeddings need words as wide as the state: width = {width}, units = {units}"
        )

    def init_layer(key: Key, inputs: int) -> Params:
        (one, other), gates = jax.random.split(key), 4 * units
        return {
            "input": dense(one, (inputs, gates)),
            "recurrent": dense(other, (units, gates)),
            "gate_bias": jnp.zeros(gates),
        }

    def init(key: Key) -> Params:
        keys = jax.random.split(key, layers + 2)
        params = {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "layers": {
                f"{index}": init_layer(keys[index + 2], units if index else width)
                for index in range(layers)
            },
            "word_bias": jnp.zeros(vocabulary),
        }
        return (
            params if tied else params | {"word_embedding": embedding(keys[1], (vocabulary, units))}
        )

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        keys = [None] * (layers + 1) if key is None else list(jax.random.split(key, layers + 1))
        values = dropout(
            looked_up(params["embedding"], tokens.T), dropout_rate, keys[0], variational
        )
        for index in range(layers):
            layer = params["layers"][f"{index}"]
            gates = dot(values, layer["input"], product) + layer["gate_bias"]
            states: Any = recurrence(lstm_cell, product, gates, layer["recurrent"], None)
            values = dropout(states, dropout_rate, keys[index + 1], variational)
        return jnp.swapaxes(values, 0, 1)

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return params["embedding" if tied else "word_embedding"], params["word_bias"]

    return LanguageModel(
        init, contexts, words, word_embedding="embedding" if tied else "word_embedding"
    )


class Stacked(Carrying, Windowed):
    """A `core.WordModel` of a deep LSTM, which carries the states of all layers."""

    def __init__(
        self, model: LanguageModel, params: Params, restarts: tuple[int, ...] = ()
    ) -> None:
        super().__init__(model, params, restarts)
        params = jax.device_put(params)
        layers = [params["layers"][f"{index}"] for index in range(len(params["layers"]))]

        def step(states: tuple[State, ...], word: jax.Array) -> tuple[tuple[State, ...], jax.Array]:
            value, after = params["embedding"][word], []
            for layer, (output, carry) in zip(layers, states, strict=True):
                gates = value @ layer["input"] + layer["gate_bias"]
                value, carry = lstm_cell(gates, output @ layer["recurrent"], carry)
                after.append((value, carry))
            matrix, bias = model.words(params)
            return tuple(after), jax.nn.log_softmax(matrix @ value + bias)

        self._step = jax.jit(step)
        units = layers[0]["recurrent"].shape[0]
        self._start = self._step(tuple((jnp.zeros(units), jnp.zeros(units)) for _ in layers), BEGIN)
