"""What the keyboard models share: word embeddings, their use as the output layer, and dropout."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import Key

# The most places whose changes are summed before they are added to rows: the sum takes the square
# of their number, and training on public text does not need it.
MOST_PLACES = 2048
# A unit variance at every output for inputs of unit variance.
dense = jax.nn.initializers.lecun_normal()
# Rows of about unit length, uniform on the sphere when normalised.
embedding = jax.nn.initializers.variance_scaling(1.0, "fan_out", "normal")


def dot(left: jax.Array, right: jax.Array, product: DTypeLike = jnp.float32) -> jax.Array:
    """Return left @ right with both rounded to `product`, summed in float32."""
    return jnp.matmul(
        left.astype(product), right.astype(product), preferred_element_type=jnp.float32
    )


def flatten_steps(values: jax.Array) -> jax.Array:
    """Reshape [length, batch, width] → [length · batch, width]."""
    return values.reshape(-1, values.shape[-1])


def transpose(matrix: jax.Array) -> jax.Array:
    """Transpose a matrix for products.

    On a CPU it is copied: products with a transposed view take twice as long.
    """
    return jax.lax.platform_dependent(matrix, cpu=_copy_transposed, default=jnp.transpose)


def _copy_transposed(matrix: jax.Array) -> jax.Array:
    # Flattening is what copies it.
    return jax.lax.optimization_barrier(matrix.T.reshape(-1)).reshape(matrix.T.shape)


def prevent_fusion(values: jax.Array) -> jax.Array:
    """Return the values unchanged, through an operation that XLA's library for CPUs lacks.

    Without it that library (YNNPACK) would also do what follows a sum or a maximum of rows, at a
    third of the speed of XLA's own loops.
    """
    return jnp.where(jnp.isnan(values), jnp.nan, values)


def unit_rows(matrix: jax.Array) -> jax.Array:
    """Scale each row to length 1.

    Embeddings have a fixed norm in McMahan et al. 2018, Appendix B.
    """
    squared_norms = jnp.sum(jnp.square(matrix), axis=-1, keepdims=True)
    return matrix * jax.lax.rsqrt(squared_norms + 1e-12)


def dropout(
    values: jax.Array, rate: float, key: Key | None, alike_in_time: bool = False
) -> jax.Array:
    """Zero a share `rate` of the values and scale the rest up; do nothing without a key.

    There is no key in evaluation. Time is the first axis.
    """
    if key is None or rate == 0.0:
        return values
    shape = (1, *values.shape[1:]) if alike_in_time else values.shape
    is_kept = jax.random.bernoulli(key, 1.0 - rate, shape)
    return jnp.where(is_kept, values / (1.0 - rate), 0.0)


@jax.custom_vjp
def look_up_rows(matrix: jax.Array, places: jax.Array) -> jax.Array:
    """Return matrix[places], with a gradient that `add_rows` sums."""
    return matrix[places]


def _look_up_forward(matrix: jax.Array, places: jax.Array):
    return matrix[places], (matrix, places)


def _look_up_backward(saved, gradient: jax.Array):
    matrix, places = saved
    changes = gradient.reshape(-1, matrix.shape[-1])
    zeros = jnp.zeros_like(matrix)
    if places.size > MOST_PLACES:
        return zeros.at[places.reshape(-1)].add(changes), None
    return add_rows(zeros, places.reshape(-1), changes), None


look_up_rows.defvjp(_look_up_forward, _look_up_backward)


def add_rows(matrix: jax.Array, places: jax.Array, changes: jax.Array) -> jax.Array:
    """Return the matrix with each change added to the row at its place.

    A row with several places gets the sum of their changes.

    Sums come first, so that each row is written once. `matrix.at[places].add(changes)` adds them
    one after another, on a GPU in an order that depends on who else is trained there: the last bits
    of a user's update then depend on other users, and at high learning rates all of it does.
    """
    is_same_row = places[:, None] == places[None, :]
    sums = jnp.matmul(
        is_same_row.astype(changes.dtype), changes, precision=jax.lax.Precision.HIGHEST
    )
    # The sums at all places of a row may be rounded differently: take that of the first.
    first_place = jnp.argmax(is_same_row, axis=1)
    return matrix.at[places].set(matrix[places] + sums[first_place])
