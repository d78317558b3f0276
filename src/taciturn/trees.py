"""Arithmetic on parameter trees, and a norm that can be trusted as an upper bound.

>>> import numpy as np
>>> float(norm_upper_bound({"a": np.array([3.0]), "b": np.array([4.0])})) >= 5.0
True
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from taciturn.core import PyTree

# Of float32.
UNIT_ROUNDOFF = 2.0**-24
SMALLEST_NORMAL = 2.0**-126
# Values in a row of a sum, at most.
LONGEST_ROW = 256
# Roundings of one value between the update and its report, beside those of the additions: of the
# norm, and of the clip, the weight and the steps that follow. Proved to be 20 at most.
OTHER_ROUNDINGS = 32


def add(left: PyTree, right: PyTree) -> PyTree:
    """Add two trees, leaf by leaf."""
    return jax.tree.map(jnp.add, left, right)


def subtract(left: PyTree, right: PyTree) -> PyTree:
    """Subtract the second tree from the first, leaf by leaf."""
    return jax.tree.map(jnp.subtract, left, right)


def scale(tree: PyTree, factor: float | jax.Array) -> PyTree:
    """Multiply all leaves by a factor."""
    return jax.tree.map(lambda leaf: leaf * factor, tree)


def zeros_like(tree: PyTree) -> PyTree:
    """Return zeros of the shapes and types of the leaves."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def size(tree: PyTree) -> int:
    """Count the parameters."""
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(tree))


def layer_names(tree: PyTree) -> list[str]:
    """Name the leaves in order, such as `blocks/0/feed_in`."""
    return [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def nest(leaves: Mapping[str, Any]) -> PyTree:
    """Put leaves of such names into nested dicts again."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split("/")
        inside = tree
        for part in path:
            inside = inside.setdefault(part, {})
        inside[last] = leaf
    return tree


def norm_upper_bound(tree: PyTree) -> jax.Array:
    """Return the ℓ2 norm of all leaves together, rounded so that it is never below the true norm.

    It is above by enough that a report stays within its clip norm although scaling and weighting
    it round as well (docs/proofs.md, statement 24). Infinite if a value is infinite, NaN if one is
    NaN.

    A plain float32 sum of a million squares may come out too small by a part in a thousand,
    overflow, or underflow; a clip that divides by it would then let too much through. Here values
    are scaled by a power of two so that the largest is near 1. Squares are summed in short rows,
    each in any order that a compiler likes, and the rows' sums are added in pairs: elementwise
    additions, which no compiler puts into another order. So each square goes through few
    additions, and the most that all of them can round off is added.
    """
    leaves = _join_small([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)])
    if not leaves:
        return jnp.float32(0)
    # Compilers regroup products with constants of a program: C²·shrink² may overflow or underflow.
    leaves = jax.lax.optimization_barrier(leaves)
    exponent = _largest_exponent(leaves)
    shrink = _power_of_two(-exponent)
    rows = [_split_into_rows(leaf) for leaf in leaves]
    sums = jnp.concatenate([_sum_squares(some_rows, shrink) for some_rows in rows])
    norm = jnp.sqrt(_add_in_pairs(sums))
    longest_row = max(some_rows.shape[1] for some_rows in rows)
    rounded = longest_row + _count_halvings(sums.size) + OTHER_ROUNDINGS
    slack = 1.0 + rounded * UNIT_ROUNDOFF
    values = sum(leaf.size for leaf in leaves)
    # Machines may take subnormal values for zero.
    subnormal = 2 * math.sqrt(values) * SMALLEST_NORMAL
    return _power_of_two(exponent) * (norm * slack) + subnormal


def _join_small(leaves: list[jax.Array]) -> list[jax.Array]:
    """Join leaves that are shorter than a row, and leave out empty ones.

    A program with a sum for each of thousands of scalars takes minutes to compile.
    """
    small = [leaf for leaf in leaves if 0 < leaf.size < LONGEST_ROW]
    large = [leaf for leaf in leaves if leaf.size >= LONGEST_ROW]
    return [*large, jnp.concatenate(small)] if small else large


def _largest_exponent(leaves: list[jax.Array]) -> jax.Array:
    """Return the exponent of the largest value, as far as a power of two has it."""
    sizes = [jnp.max(jnp.abs(leaf)) for leaf in leaves]
    largest = jnp.max(jnp.stack(sizes))
    biased = jax.lax.bitcast_convert_type(largest, jnp.int32) >> 23
    return jnp.clip(biased - 127, -126, 126)


def _split_into_rows(leaf: jax.Array) -> jax.Array:
    """Return the values in rows of one length, with zeros at the end if they have to be padded."""
    length = min(leaf.size, LONGEST_ROW)
    # A divisor needs no padding.
    for divisor in range(length, length // 2, -1):
        if leaf.size % divisor == 0:
            length = divisor
            break
    padded = jnp.pad(leaf, (0, -leaf.size % length))
    return padded.reshape(-1, length)


def _sum_squares(rows: jax.Array, shrink: jax.Array) -> jax.Array:
    """Sum the squares of each row, of values scaled by a power of two."""
    # A product, not a division: compilers divide by multiplying with a reciprocal, which may
    # underflow.
    scaled = rows * shrink
    return jnp.sum(jnp.square(scaled), axis=1)


def _add_in_pairs(numbers: jax.Array) -> jax.Array:
    """Add up numbers so that each goes through no more additions than there are halvings.

    A second `jnp.sum` would not do: XLA may merge it with the first into one of all values, in any
    order, which rounds more often than either.
    """
    halvings = _count_halvings(numbers.size)
    numbers = jnp.pad(numbers, (0, 2**halvings - numbers.size))
    for _ in range(halvings):
        half = numbers.size // 2
        numbers = numbers[:half] + numbers[half:]
    return numbers[0]


def _count_halvings(size: int) -> int:
    """Count how often a list of this size is halved until one number is left."""
    return (size - 1).bit_length()


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """Return 2^exponent exactly, for −126 ≤ exponent ≤ 126."""
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
