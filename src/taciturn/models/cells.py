"""The models of one recurrent layer: the LSTM of McMahan et al. 2018, Gboard's CIFG, and a GRU.

What they share is recurrence.py.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import LanguageModel
from taciturn.models.recurrence import Gates, recurrent_model, split_gates


def _add_gates(x: Gates, r: Gates, count: int) -> list[jax.Array]:
    """Return each gate, the sum of its two shares."""
    return list(map(jnp.add, split_gates(x, count), split_gates(r, count)))


def lstm_cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Run Hochreiter and Schmidhuber's cell with forget gates, which start open (+1)."""
    input_gate, forget_gate, candidate, output_gate = _add_gates(x, r, 4)
    remembered = jax.nn.sigmoid(forget_gate + 1.0) * carry
    carry = remembered + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
    return jax.nn.sigmoid(output_gate) * jnp.tanh(carry), carry


def lstm(
    vocabulary: int,
    width: int = 96,
    units: int = 256,
    unit_norm: bool = True,
    dropout_rate: float = 0.0,
    product: DTypeLike = jnp.float32,
) -> LanguageModel:
    """Build the model of McMahan et al. 2018, Appendix B: tied, unit-norm embeddings.

    A word is embedded, e_t ∈ ℝ^width, read into the state s_t ∈ ℝ^units, and from there comes the
    output embedding o_t, which is scored against every word's embedding. There are 1.35M parameters
    at 10,000 words.
    """
    return recurrent_model(
        cell=lstm_cell,
        gates=4,
        vocabulary=vocabulary,
        width=width,
        units=units,
        dropout_rate=dropout_rate,
        product=product,
        unit_norm=unit_norm,
    )


def cifg_cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Run a cell with coupled input and forget gates: three gates instead of four.

    What is let in is what is forgotten, i = 1 − f.
    """
    forget_gate, candidate, output_gate = _add_gates(x, r, 3)
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
    """Build Gboard's model, whose state is projected to the width of the embeddings.

    It goes from 670 units to 96 (Ramaswamy et al. 2020; Xu et al. 2023). Tied it has about 1.4M
    parameters at 10,000 words (Ramaswamy's), with separate input and output embeddings 2.4M, 4.3M
    and 6.2M at 10,000, 20,000 and 30,000 (Xu's, who need them for fine-tuning).
    """
    return recurrent_model(
        cell=cifg_cell,
        gates=3,
        vocabulary=vocabulary,
        width=width,
        units=units,
        dropout_rate=dropout_rate,
        product=product,
        projected=True,
        tied=tied,
    )


def gru_cell(x: Gates, r: Gates, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Run a gated recurrent unit.

    The reset gate acts after the recurrent product (as in cuDNN), so that one product serves all
    three gates.
    """
    x_update, x_reset, x_candidate = split_gates(x, 3)
    r_update, r_reset, r_candidate = split_gates(r, 3)
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
    """Build a gated recurrent unit with tied embeddings.

    It has a third fewer recurrent parameters than the LSTM of the same size.
    """
    return recurrent_model(
        cell=gru_cell,
        gates=3,
        vocabulary=vocabulary,
        width=width,
        units=units,
        dropout_rate=dropout_rate,
        product=product,
    )
