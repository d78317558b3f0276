"""One recurrent layer run over time, for every cell whose only matrices are recurrent (LSTM, CIFG,
GRU); and the model around it.

A cell is a function without parameters, `cell(x, r, carry) → (output, carry)`: x is the input's
share of the gates and r = fed_back @ recurrent the share of what the layer fed back at the step
before. A projection, where there is one,
sits between the two: fed_back = output @ projection.

The backward pass is written by hand for speed. Differentiating the scan would add up the gradient
of the recurrent
matrix step by step: one more read and write of it at each time step and for every user. Here the
gradients of the gates are kept, and the matrix gradients are one product over all steps at the end.
On a GPU both ways over time are kernels (models/kernels/recurrence.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import Key, LanguageModel, Params
from taciturn.models.kernels import recurrence as kernels
from taciturn.models.layers import (
    dense,
    dot,
    dropout,
    embedding,
    flat,
    looked_up,
    transpose,
    unit_rows,
)

# concatenated in one array, or separate, as a kernel holds them
Gates = jax.Array | list[jax.Array]
Cell = Callable[[Gates, Gates, jax.Array], tuple[jax.Array, jax.Array]]


def apart(gates: Gates, count: int) -> list[jax.Array]:
    return gates if isinstance(gates, list) else jnp.split(gates, count, axis=-1)


def recurrent_model(
    cell: Cell,
    gates: int,
    sizes: tuple[int, int, int],
    dropout_rate: float,
    product: DTypeLike,
    *,
    projected: bool = False,
    tied: bool = True,
    unit_norm: bool = False,
) -> LanguageModel:
    """Build a model with a cell of `gates` gates between embeddings; `sizes` are vocabulary, width
    and units. What is scored against the words is the state times a matrix to their width: at the
    end, or at every step, where it is `projected` and fed back.
    """
    vocabulary, width, units = sizes
    rows, word_embedding = (
        unit_rows if unit_norm else lambda matrix: matrix,
        "embedding" if tied else "word_embedding",
    )

    def init(key: Key) -> Params:
        keys = jax.random.split(key, 5 if projected else 4)
        params = {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "input": dense(keys[1], (width, gates * units)),
            "recurrent": dense(keys[2], (width if projected else units, gates * units)),
            "gate_bias": jnp.zeros(gates * units),
            "projection" if projected else "output": dense(keys[3], (units, width)),
            "word_bias": jnp.zeros(vocabulary),
        }
        return (
            params if tied else params | {"word_embedding": embedding(keys[4], (vocabulary, width))}
        )

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        keys = (None, None) if key is None else jax.random.split(key)
        # Look up, then normalise: only the rows in use are touched.
        embedded = dropout(rows(looked_up(params["embedding"], tokens.T)), dropout_rate, keys[0])
        x = dot(embedded, params["input"], product) + params["gate_bias"]
        fed_back: Any = recurrence(cell, product, x, params["recurrent"], params.get("projection"))
        states = dropout(fed_back, dropout_rate, keys[1])
        return jnp.swapaxes(states if projected else dot(states, params["output"], product), 0, 1)

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return rows(params[word_embedding]), params["word_bias"]

    return LanguageModel(init, contexts, words, word_embedding=word_embedding, unit_norm=unit_norm)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def recurrence(
    cell: Cell, product: DTypeLike, x: jax.Array, recurrent: jax.Array, projection: jax.Array | None
) -> jax.Array:
    """Run a cell from a zero state: x [length, batch, gates] → what it feeds back, [length, batch,
    width].
    """
    return _forward(cell, product, x, recurrent, projection)[0]


def _forward(cell: Cell, product, x: jax.Array, recurrent: jax.Array, projection: jax.Array | None):
    run = _on_this_machine(kernels.forwards, scan_forwards, cell, product, x, recurrent)
    fed_back, *kept = run(x, recurrent, projection)
    return fed_back, (x, recurrent, projection, fed_back, *kept)


def _backward(cell: Cell, product, saved, gradient):
    x, recurrent, projection, fed_back, r, carries, outputs = saved
    run = _on_this_machine(kernels.backwards, scan_backwards, cell, product, x, recurrent)
    d_x, d_r, d_fed_back = run(gradient, x, r, carries, recurrent, projection)
    # What was fed back at step t meets the recurrent matrix at step t + 1.
    d_recurrent = dot(transpose(flat(fed_back[:-1]).astype(product)), flat(d_r[1:]), product)
    d_projection = None if projection is None else dot(flat(outputs).T, flat(d_fed_back), product)
    return d_x, d_recurrent, d_projection


recurrence.defvjp(_forward, _backward)


def _on_this_machine(
    kernel: Callable, scan: Callable, cell: Cell, product, x: jax.Array, recurrent: jax.Array
) -> Callable:
    kernel, scan = partial(kernel, cell, product), partial(scan, cell, product)
    if not kernels.fits(x, recurrent, product):
        return scan
    return partial(jax.lax.platform_dependent, cuda=kernel, default=scan)


def scan_forwards(
    cell: Cell, product, x: jax.Array, recurrent: jax.Array, projection: jax.Array | None
):
    """Return what is fed back at each step, and for the backward pass r, the carry before each
    step, and what was projected, if any.
    """
    units = len(recurrent if projection is None else projection)
    start = (
        jnp.zeros((x.shape[1], len(recurrent)), x.dtype),
        jnp.zeros((x.shape[1], units), x.dtype),
    )
    # once, not at every step
    recurrent = recurrent.astype(product)
    projection = None if projection is None else projection.astype(product)

    def step(state, x_t):
        fed_back, carry = state
        r = dot(fed_back, recurrent, product)
        output, next_carry = cell(x_t, r, carry)
        next_fed_back = output if projection is None else dot(output, projection, product)
        return (next_fed_back, next_carry), (
            next_fed_back,
            r,
            carry,
            None if projection is None else output.astype(product),
        )

    return jax.lax.scan(step, start, x)[1]


def scan_backwards(cell: Cell, product, gradient, x, r, carries, recurrent, projection):
    """Return the gradients of x, of r (rounded as products with it are) and of what is fed back."""
    back = transpose(recurrent.astype(product))
    back_projection = None if projection is None else transpose(projection.astype(product))

    def step(state, inputs):
        d_recurrent_input, d_carry = state
        d_fed_back, x_t, r_t, carry = inputs
        d_fed_back = d_fed_back + d_recurrent_input
        d_output = (
            d_fed_back if back_projection is None else dot(d_fed_back, back_projection, product)
        )
        _, pull_back = jax.vjp(cell, x_t, r_t, carry)
        d_x, d_r, d_carry = pull_back((d_output, d_carry))
        return (dot(d_r, back, product), d_carry), (d_x, d_r.astype(product), d_fed_back)

    start = jnp.zeros_like(gradient[0]), jnp.zeros_like(carries[0])
    return jax.lax.scan(step, start, (gradient, x, r, carries), reverse=True)[1]
