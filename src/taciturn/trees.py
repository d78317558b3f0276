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

    A plain float32 sum of a million squares may come out too small by a part in a thousand,
    overflow, or underflow; a clip that divides by it would then let too much through. Here values
    are scaled by a power of two so that the largest is near 1, squares are summed in two levels of
    about √n terms each, whose rounding error is bounded by (terms) × 2⁻²⁴, and that bound is added.
    Infinite if a value is infinite, NaN if one is NaN.
    """
    leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)]
    exponent = _largest_exponent(leaves)
    shrink = _power_of_two(-exponent)
    squares = []
    terms = len(leaves)
    for leaf in leaves:
        rows = _split_into_rows(leaf)
        squares.append(_sum_squares(rows, shrink))
        count, length = rows.shape
        terms = max(terms, len(leaves) + length + count)
    slack = 1.0 + (terms + 8) * UNIT_ROUNDOFF
    square = jnp.sum(jnp.stack(squares))
    norm = jnp.sqrt(square)
    return _power_of_two(exponent) * (norm * slack)


def _largest_exponent(leaves: list[jax.Array]) -> jax.Array:
    """Return the exponent of the largest value, as far as a power of two has it."""
    sizes = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
    largest = jnp.max(jnp.stack(sizes))
    biased = jax.lax.bitcast_convert_type(largest, jnp.int32) >> 23
    return jnp.clip(biased - 127, -126, 126)


def _split_into_rows(leaf: jax.Array) -> jax.Array:
    """Return the values in rows of about √n, with zeros at the end if they have to be padded."""
    root = max(1, math.isqrt(leaf.size))
    length = root
    # A divisor needs no padding.
    for divisor in range(root, root // 4, -1):
        if leaf.size % divisor == 0:
            length = divisor
            break
    padded = jnp.pad(leaf, (0, -leaf.size % length))
    return padded.reshape(-1, length)


def _sum_squares(rows: jax.Array, shrink: jax.Array) -> jax.Array:
    """Sum the squares of all values, scaled by a power of two: each row, and then the sums."""
    # A product, not a division: compilers divide by multiplying with a reciprocal, which may
    # underflow.
    scaled = rows * shrink
    sums = jnp.sum(jnp.square(scaled), axis=1)
    return jnp.sum(sums)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """Return 2^exponent exactly, for −126 ≤ exponent ≤ 126."""
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
