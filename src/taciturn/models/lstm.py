"""The LSTM of McMahan et al. 2018, Appendix B: tied, unit-norm embeddings; 1.35M parameters at 10,000 words."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import LanguageModel
from taciturn.models.recurrence import Gates, apart, recurrent_model


def cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Apply Hochreiter and Schmidhuber's cell with forget gates, which start open (+1)."""
    input_gate, forget_gate, candidate, output_gate = map(jnp.add, apart(x, 4), apart(r, 4))
    carry = jax.nn.sigmoid(forget_gate + 1.0) * carry + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
    return jax.nn.sigmoid(output_gate) * jnp.tanh(carry), carry


def lstm(
    vocabulary: int, width: int = 96, units: int = 256, unit_norm: bool = True, dropout_rate: float = 0.0, product: DTypeLike = jnp.float32
) -> LanguageModel:
    """Map word → embedding e_t ∈ ℝ^width → state s_t ∈ ℝ^units → output embedding o_t, scored against every word's embedding."""
    return recurrent_model(cell, 4, (vocabulary, width, units), dropout_rate, product, unit_norm=unit_norm)
