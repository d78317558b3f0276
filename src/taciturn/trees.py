"""Arithmetic on parameter trees, and a norm that can be trusted as an upper bound.

>>> import numpy as np
>>> float(norm_upper_bound({"a": np.array([3.0]), "b": np.array([4.0])})) >= 5.0
True
"""

import math
from collections.abc import Mapping
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp

from taciturn.core import PyTree

# float32
UNIT_ROUNDOFF = 2.0**-24

# of two trees
add, subtract = partial(jax.tree.map, jnp.add), partial(jax.tree.map, jnp.subtract)


def scale(tree: PyTree, factor: float | jax.Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf * factor, tree)


def zeros_like(tree: PyTree) -> PyTree:
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
        reduce(lambda inside, part: inside.setdefault(part, {}), path, tree)[last] = leaf
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
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
    exponent = jnp.clip((jax.lax.bitcast_convert_type(largest, jnp.int32) >> 23) - 127, -126, 126)
    terms = len(leaves)
    squares = []
    for leaf in leaves:
        root = max(1, math.isqrt(leaf.size))
        # a divisor needs no padding
        row = next((row for row in range(root, root // 4, -1) if leaf.size % row == 0), root)
        rows = jnp.pad(leaf, (0, -leaf.size % row)).reshape(-1, row)
        # A product, not a division: compilers divide by multiplying with a reciprocal, which may
        # underflow.
        squares.append(jnp.sum(jnp.sum(jnp.square(rows * _power_of_two(-exponent)), axis=1)))
        terms = max(terms, len(leaves) + row + rows.shape[0])
    slack = 1.0 + (terms + 8) * UNIT_ROUNDOFF
    return _power_of_two(exponent) * (jnp.sqrt(jnp.sum(jnp.stack(squares))) * slack)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """Return 2^exponent exactly, for −126 ≤ exponent ≤ 126."""
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
