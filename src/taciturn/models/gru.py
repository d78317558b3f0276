"""A gated recurrent unit with tied embeddings: a third fewer recurrent parameters than the LSTM of the same size."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import LanguageModel
from taciturn.models.recurrence import Gates, apart, recurrent_model


def cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Apply the reset gate after the recurrent product (as cuDNN does), so that one product serves all three gates."""
    x_update, x_reset, x_candidate = apart(x, 3)
    r_update, r_reset, r_candidate = apart(r, 3)
    update = jax.nn.sigmoid(x_update + r_update)
    candidate = jnp.tanh(x_candidate + jax.nn.sigmoid(x_reset + r_reset) * r_candidate)
    state = (1.0 - update) * candidate + update * carry
    return state, state


def gru(vocabulary: int, width: int = 96, units: int = 256, dropout_rate: float = 0.0, product: DTypeLike = jnp.float32) -> LanguageModel:
    return recurrent_model(cell, 3, (vocabulary, width, units), dropout_rate, product)
