"""The models of one recurrent layer: the LSTM of McMahan et al. 2018, Gboard's CIFG, and a GRU.
What they share is recurrence.py.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import LanguageModel
from taciturn.models.recurrence import Gates, apart, recurrent_model


def lstm_cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Hochreiter and Schmidhuber's cell with forget gates, which start open (+1)."""
    input_gate, forget_gate, candidate, output_gate = map(jnp.add, apart(x, 4), apart(r, 4))
    carry = jax.nn.sigmoid(forget_gate + 1.0) * carry + jax.nn.sigmoid(input_gate) * jnp.tanh(
        candidate
    )
    return jax.nn.sigmoid(output_gate) * jnp.tanh(carry), carry


def lstm(
    vocabulary: int,
    width: int = 96,
    units: int = 256,
    unit_norm: bool = True,
    dropout_rate: float = 0.0,
    product: DTypeLike = jnp.float32,
) -> LanguageModel:
    """McMahan et al. 2018, Appendix B: tied, unit-norm embeddings; 1.35M parameters at 10,000
    words. word → embedding e_t ∈ ℝ^width → state s_t ∈ ℝ^units → output embedding o_t, scored
    against every word's embedding.
    """
    return recurrent_model(
        lstm_cell, 4, (vocabulary, width, units), dropout_rate, product, unit_norm=unit_norm
    )


def cifg_cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Coupled input and forget gate: what is let in is what is forgotten, i = 1 − f. Three gates
    instead of four.
    """
    forget_gate, candidate, output_gate = map(jnp.add, apart(x, 3), apart(r, 3))
    forget = jax.nn.sigmoid(forget_gate + 1.0)
    carry = forget * carry + (1.0 - forget) * jnp.tanh(candidate)
    return jax.nn.sigmoid(output_gate) * jnp.tanh(carry), carry


def cifg(
    vocabulary: int,
    width: int = 96,
    units: int = 670,
    tied: bool = False,
    dropout_rate: float = 0.0,
    product: DTypeLike = jnp.float32,
) -> LanguageModel:
    """Gboard's model, whose state is projected to the width of the embeddings (Ramaswamy et al.
    2020; Xu et al. 2023): 670 units to 96. Tied it has about 1.4M parameters at 10,000 words
    (Ramaswamy's), with separate input and output embeddings 2.4M, 4.3M and 6.2M at 10,000, 20,000
    and 30,000 (Xu's, who need them for fine-tuning).
    """
    return recurrent_model(
        cifg_cell, 3, (vocabulary, width, units), dropout_rate, product, projected=True, tied=tied
    )


def gru_cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The reset gate acts after the recurrent product (as in cuDNN), so that one product serves all
    three gates.
    """
    x_update, x_reset, x_candidate = apart(x, 3)
    r_update, r_reset, r_candidate = apart(r, 3)
    update = jax.nn.sigmoid(x_update + r_update)
    candidate = jnp.tanh(x_candidate + jax.nn.sigmoid(x_reset + r_reset) * r_candidate)
    state = (1.0 - update) * candidate + update * carry
    return state, state


def gru(
    vocabulary: int,
    width: int = 96,
    units: int = 256,
    dropout_rate: float = 0.0,
    product: DTypeLike = jnp.float32,
) -> LanguageModel:
    """A gated recurrent unit with tied embeddings: a third fewer recurrent parameters than the LSTM
    of the same size.
    """
    return recurrent_model(gru_cell, 3, (vocabulary, width, units), dropout_rate, product)
