"""LSTM layers on top of each other, with dropout between them but not in time.

So did Zaremba et al. 2014. With 2 × 650 units at 30,000 words it has 45.8M parameters, the model of
Popov et al. 2018; with 2 × 1500, tied, and one dropout mask for a whole sequence ("variational") it
is the one of their Table 4, which Lin et al. 2018 took from Inan et al. 2016.

Departs from Inan et al.: what a layer feeds back to itself is never dropped.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import BEGIN, Key, LanguageModel, Params
from taciturn.models.cells import lstm_cell
from taciturn.models.layers import dense, dot, dropout, embedding, look_up_rows
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
    """Build the layers between two embeddings, or one that is tied."""
    if tied and width != units:
        raise ValueError(
            f"tied embeddings need words as wide as the state: width = {width}, units = {units}"
        )
    word_embedding = "embedding" if tied else "word_embedding"

    def init(key: Key) -> Params:
        keys = jax.random.split(key, layers + 2)
        params = {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "layers": {},
            "word_bias": jnp.zeros(vocabulary),
        }
        for index in range(layers):
            inputs = units if index else width
            params["layers"][f"{index}"] = _init_layer(keys[index + 2], inputs, units)
        if not tied:
            params["word_embedding"] = embedding(keys[1], (vocabulary, units))
        return params

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        count = layers + 1
        keys = [None] * count if key is None else list(jax.random.split(key, count))
        embedded = look_up_rows(params["embedding"], tokens.T)
        values = dropout(embedded, dropout_rate, keys[0], variational)
        for index in range(layers):
            layer = params["layers"][f"{index}"]
            gates = dot(values, layer["input"], product)
            gates = gates + layer["gate_bias"]
            states: Any = recurrence(lstm_cell, product, gates, layer["recurrent"], None)
            values = dropout(states, dropout_rate, keys[index + 1], variational)
        return jnp.swapaxes(values, 0, 1)

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return params[word_embedding], params["word_bias"]

    return LanguageModel(init=init, contexts=contexts, words=words, word_embedding=word_embedding)


def _init_layer(key: Key, inputs: int, units: int) -> Params:
    input_key, recurrent_key = jax.random.split(key)
    gates = 4 * units
    return {
        "input": dense(input_key, (inputs, gates)),
        "recurrent": dense(recurrent_key, (units, gates)),
        "gate_bias": jnp.zeros(gates),
    }


class Stacked(Carrying, Windowed):
    """A `core.WordModel` of a deep LSTM, which carries the states of all layers."""

    def __init__(
        self, model: LanguageModel, params: Params, restarts: tuple[int, ...] = ()
    ) -> None:
        super().__init__(model, params, restarts)
        params = jax.device_put(params)
        layers = _in_order(params["layers"])

        def step(states: tuple[State, ...], word: jax.Array) -> tuple[tuple[State, ...], jax.Array]:
            value = params["embedding"][word]
            next_states = []
            for layer, state in zip(layers, states, strict=True):
                state = _step_layer(layer, state, value)
                value, _ = state
                next_states.append(state)
            matrix, bias = model.words(params)
            scores = jax.nn.log_softmax(matrix @ value + bias)
            return tuple(next_states), scores

        self._step = jax.jit(step)
        zero_states = tuple(_zero_state(layer) for layer in layers)
        self._start = self._step(zero_states, BEGIN)


def _in_order(layers: Params) -> list[Params]:
    return [layers[f"{index}"] for index in range(len(layers))]


def _step_layer(layer: Params, state: State, value: jax.Array) -> State:
    """Return what a layer gives for a value from below, and its next carry."""
    output, carry = state
    gates = value @ layer["input"] + layer["gate_bias"]
    recurrent = output @ layer["recurrent"]
    return lstm_cell(gates, recurrent, carry)


def _zero_state(layer: Params) -> State:
    units = layer["recurrent"].shape[0]
    return jnp.zeros(units), jnp.zeros(units)
