"""One recurrent layer run over time, for every cell whose only matrices are recurrent.

These are LSTM, CIFG and GRU; the model around the layer is here too.

A cell is a function without parameters, `cell(x, r, carry) → (output, carry)`: x is the input's
share of the gates and r = fed_back @ recurrent the share of what the layer fed back at the step
before. A projection, where there is one, sits between the two: fed_back = output @ projection.

The backward pass is written by hand for speed. Differentiating the scan would add up the gradient
of the recurrent matrix step by step: one more read and write of it at each time step and for every
user. Here the gradients of the gates are kept, and the matrix gradients are one product over all
steps at the end. On a GPU both ways over time are kernels (models/kernels/recurrence.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import Key, LanguageModel, Params
from taciturn.models.kernels import recurrence as kernels
from taciturn.models.kernels.recurrence import Backwards, Forwards
from taciturn.models.layers import (
    dense,
    dot,
    dropout,
    embedding,
    flatten_steps,
    look_up_rows,
    transpose,
    unit_rows,
)

# Concatenated in one array, or separate, as a kernel holds them.
Gates = jax.Array | list[jax.Array]
Cell = Callable[[Gates, Gates, jax.Array], tuple[jax.Array, jax.Array]]


def split_gates(gates: Gates, count: int) -> list[jax.Array]:
    """Return the gates one by one, however they are held."""
    return gates if isinstance(gates, list) else jnp.split(gates, count, axis=-1)


def recurrent_model(
    *,
    cell: Cell,
    gates: int,
    vocabulary: int,
    width: int,
    units: int,
    dropout_rate: float,
    product: DTypeLike,
    projected: bool = False,
    tied: bool = True,
    unit_norm: bool = False,
) -> LanguageModel:
    """Build a model with a cell of `gates` gates between embeddings.

    What is scored against the words is the state times a matrix to their width: at the end, or at
    every step, where it is `projected` and fed back.
    """
    word_embedding = "embedding" if tied else "word_embedding"

    def init(key: Key) -> Params:
        keys = jax.random.split(key, 5 if projected else 4)
        all_gates = gates * units
        fed_back = width if projected else units
        to_width = "projection" if projected else "output"
        params = {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "input": dense(keys[1], (width, all_gates)),
            "recurrent": dense(keys[2], (fed_back, all_gates)),
            "gate_bias": jnp.zeros(all_gates),
            to_width: dense(keys[3], (units, width)),
            "word_bias": jnp.zeros(vocabulary),
        }
        if not tied:
            params["word_embedding"] = embedding(keys[4], (vocabulary, width))
        return params

    def scale_rows(matrix: jax.Array) -> jax.Array:
        return unit_rows(matrix) if unit_norm else matrix

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        keys = (None, None) if key is None else jax.random.split(key)
        # Look up, then normalise: only the rows in use are touched.
        rows = look_up_rows(params["embedding"], tokens.T)
        embedded = dropout(scale_rows(rows), dropout_rate, keys[0])
        x = dot(embedded, params["input"], product)
        x = x + params["gate_bias"]
        projection = params.get("projection")
        fed_back: Any = recurrence(cell, product, x, params["recurrent"], projection)
        states = dropout(fed_back, dropout_rate, keys[1])
        if not projected:
            states = dot(states, params["output"], product)
        return jnp.swapaxes(states, 0, 1)

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return scale_rows(params[word_embedding]), params["word_bias"]

    return LanguageModel(
        init=init,
        contexts=contexts,
        words=words,
        word_embedding=word_embedding,
        unit_norm=unit_norm,
    )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def recurrence(
    cell: Cell, product: DTypeLike, x: jax.Array, recurrent: jax.Array, projection: jax.Array | None
) -> jax.Array:
    """Run a cell from a zero state over x, [length, batch, gates].

    Returns:
        What it feeds back, [length, batch, width].
    """
    return _forward(cell, product, x, recurrent, projection)[0]


class _Saved(NamedTuple):
    """What the backward pass needs of the forward pass."""

    x: jax.Array
    recurrent: jax.Array
    projection: jax.Array | None
    forwards: Forwards


def _forward(cell: Cell, product, x: jax.Array, recurrent: jax.Array, projection: jax.Array | None):
    run = _choose_program(
        kernel=partial(kernels.forwards, cell, product),
        scan=partial(scan_forwards, cell, product),
        has_kernel=kernels.fits(x, recurrent, product),
    )
    forwards = run(x, recurrent, projection)
    saved = _Saved(x=x, recurrent=recurrent, projection=projection, forwards=forwards)
    return forwards.fed_back, saved


def _backward(cell: Cell, product, saved: _Saved, gradient):
    x, recurrent, projection, forwards = saved
    run = _choose_program(
        kernel=partial(kernels.backwards, cell, product),
        scan=partial(scan_backwards, cell, product),
        has_kernel=kernels.fits(x, recurrent, product),
    )
    backwards = run(gradient, x, forwards.r, forwards.carries, recurrent, projection)
    # What was fed back at step t meets the recurrent matrix at step t + 1.
    fed_back = flatten_steps(forwards.fed_back[:-1]).astype(product)
    d_recurrent = dot(transpose(fed_back), flatten_steps(backwards.d_r[1:]), product)
    if projection is None:
        return backwards.d_x, d_recurrent, None
    outputs = flatten_steps(forwards.outputs)
    d_projection = dot(outputs.T, flatten_steps(backwards.d_fed_back), product)
    return backwards.d_x, d_recurrent, d_projection


recurrence.defvjp(_forward, _backward)


def _choose_program(*, kernel: Callable, scan: Callable, has_kernel: bool) -> Callable:
    """Return the kernel for GPUs and the scan for all else; only the scan where no kernel fits."""
    if not has_kernel:
        return scan
    return partial(jax.lax.platform_dependent, cuda=kernel, default=scan)


def scan_forwards(
    cell: Cell, product, x: jax.Array, recurrent: jax.Array, projection: jax.Array | None
) -> Forwards:
    """Return what is fed back at each step, and what the backward pass needs."""
    batch = x.shape[1]
    width = len(recurrent)
    units = width if projection is None else len(projection)
    start = (jnp.zeros((batch, width), x.dtype), jnp.zeros((batch, units), x.dtype))
    # Rounded once, not at every step.
    recurrent = recurrent.astype(product)
    if projection is not None:
        projection = projection.astype(product)

    def step(state, x_t):
        fed_back, carry = state
        r = dot(fed_back, recurrent, product)
        output, next_carry = cell(x_t, r, carry)
        if projection is None:
            next_fed_back = output
            kept_output = None
        else:
            next_fed_back = dot(output, projection, product)
            kept_output = output.astype(product)
        step_forwards = Forwards(fed_back=next_fed_back, r=r, carries=carry, outputs=kept_output)
        return (next_fed_back, next_carry), step_forwards

    return jax.lax.scan(step, start, x)[1]


def scan_backwards(
    cell: Cell, product, gradient, x, r, carries, recurrent, projection
) -> Backwards:
    """Return the gradients of x, of r (rounded as products with it are) and of what is fed back."""
    back = transpose(recurrent.astype(product))
    back_projection = None if projection is None else transpose(projection.astype(product))

    def step(state, inputs):
        d_recurrent_input, d_carry = state
        d_fed_back, x_t, r_t, carry = inputs
        d_fed_back = d_fed_back + d_recurrent_input
        if back_projection is None:
            d_output = d_fed_back
        else:
            d_output = dot(d_fed_back, back_projection, product)
        _, pull_back = jax.vjp(cell, x_t, r_t, carry)
        d_x, d_r, d_carry = pull_back((d_output, d_carry))
        next_state = (dot(d_r, back, product), d_carry)
        return next_state, Backwards(d_x=d_x, d_r=d_r.astype(product), d_fed_back=d_fed_back)

    start = (jnp.zeros_like(gradient[0]), jnp.zeros_like(carries[0]))
    return jax.lax.scan(step, start, (gradient, x, r, carries), reverse=True)[1]
