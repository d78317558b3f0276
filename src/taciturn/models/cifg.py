"""Gboard's model: a CIFG-LSTM whose state is projected to the width of the embeddings (Ramaswamy et al. 2020; Xu et al. 2023).

670 units, projected to 96. Tied it has about 1.4M parameters at 10,000 words (Ramaswamy's), with separate input and output
embeddings 2.4M, 4.3M and 6.2M at 10,000, 20,000 and 30,000 (Xu's, who need them for fine-tuning).
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import LanguageModel
from taciturn.models.recurrence import Gates, apart, recurrent_model


def cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Couple input and forget gate: i = 1 − f, so what is let in replaces what is forgotten. Three gates instead of four."""
    forget_gate, candidate, output_gate = map(jnp.add, apart(x, 3), apart(r, 3))
    forget = jax.nn.sigmoid(forget_gate + 1.0)
    carry = forget * carry + (1.0 - forget) * jnp.tanh(candidate)
    return jax.nn.sigmoid(output_gate) * jnp.tanh(carry), carry


def cifg(
    vocabulary: int, width: int = 96, units: int = 670, tied: bool = False, dropout_rate: float = 0.0, product: DTypeLike = jnp.float32
) -> LanguageModel:
    return recurrent_model(cell, 3, (vocabulary, width, units), dropout_rate, product, projected=True, tied=tied)
