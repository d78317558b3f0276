"""What the keyboard models share: word embeddings, their use as the output layer, and dropout."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import Key

# summed first at most: it takes the square of their number, and training on public text does not
# need it
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


def flat(values: jax.Array) -> jax.Array:
    """Reshape [length, batch, width] → [length · batch, width]."""
    return values.reshape(-1, values.shape[-1])


def transpose(matrix: jax.Array) -> jax.Array:
    """Transpose for products. On a CPU it is copied, by flattening it: products with a transposed
    view take twice as long.
    """

    def copied(matrix: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(matrix.T.reshape(-1)).reshape(matrix.T.shape)

    return jax.lax.platform_dependent(matrix, cpu=copied, default=jnp.transpose)


def by_itself(values: jax.Array) -> jax.Array:
    """Return the values unchanged, through an operation that XLA's library for CPUs (YNNPACK)
    lacks. Without it the library would also do what follows a sum or a maximum of rows, at a third
    of the speed of XLA's own loops.
    """
    return jnp.where(jnp.isnan(values), jnp.nan, values)


def unit_rows(matrix: jax.Array) -> jax.Array:
    """Scale each row to length 1 (McMahan et al. 2018, Appendix B: embeddings have a fixed
    norm).
    """
    return matrix * jax.lax.rsqrt(jnp.sum(jnp.square(matrix), axis=-1, keepdims=True) + 1e-12)


def dropout(
    values: jax.Array, rate: float, key: Key | None, alike_in_time: bool = False
) -> jax.Array:
    """Zero a share `rate` of the values and scale the rest up; nothing without a key, as in
    evaluation. Time is the first axis.
    """
    if key is None or rate == 0.0:
        return values
    shape = (1, *values.shape[1:]) if alike_in_time else values.shape
    kept = jax.random.bernoulli(key, 1.0 - rate, shape)
    return jnp.where(kept, values / (1.0 - rate), 0.0)


@jax.custom_vjp
def looked_up(matrix: jax.Array, places: jax.Array) -> jax.Array:
    """Return matrix[places], with a gradient that `add_rows` sums."""
    return matrix[places]


def _looked_up_backward(saved, gradient: jax.Array):
    matrix, places = saved
    flat, nothing = gradient.reshape(-1, matrix.shape[-1]), jnp.zeros_like(matrix)
    if places.size > MOST_PLACES:
        return nothing.at[places.reshape(-1)].add(flat), None
    return add_rows(nothing, places.reshape(-1), flat), None


looked_up.defvjp(lambda matrix, places: (matrix[places], (matrix, places)), _looked_up_backward)


def add_rows(matrix: jax.Array, places: jax.Array, changes: jax.Array) -> jax.Array:
    """Return the matrix with a change added to the row at each place; to a row with several places,
    their sum.

    Sums come first, so that each row is written once. `matrix.at[places].add(changes)` adds them
    one after another, on a GPU in an order that depends on who else is trained there: the last bits
    of a user's update then depend on other users, and at high learning rates all of it does.
    """
    same = places[:, None] == places[None, :]
    summed = jnp.matmul(same.astype(changes.dtype), changes, precision=jax.lax.Precision.HIGHEST)
    # of all places of a row, whose sums may be rounded differently
    first = jnp.argmax(same, axis=1)
    return matrix.at[places].set(matrix[places] + summed[first])
