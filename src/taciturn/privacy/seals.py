"""A secret fingerprint of arrays, taken where they lie: the curator seals every total with one.

**Guarantee:** for whoever does not know the keys, two trees of arrays that differ in any bit have the same fingerprint with probability
2⁻¹²⁸: each word adds a pseudo-random function of its place and value (Bellare and Micciancio 1997, with a secret key), and two
such sums differ by a uniform number.

Hashing on the host takes longer than training a hundred users does on a GPU, most of it for copying.

**Assumes:** threefry is a pseudo-random function; the fingerprint itself is kept secret (the curator publishes a keyed hash of it).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from taciturn import keys
from taciturn.core import PyTree


def fingerprint(secret: bytes, tree: PyTree) -> bytes:
    """16 bytes for arrays of 4-byte numbers."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    if any(leaf.dtype.itemsize != 4 for leaf in leaves):
        raise TypeError(f"only 4-byte numbers are sealed, not {[str(leaf.dtype) for leaf in leaves]}")
    # Two keys for each leaf, so that a value in one is not the same value in another.
    pairs = jax.random.key_data(keys.jax_keys(secret, 2))
    return np.asarray(_sums(pairs, leaves)).tobytes()


@jax.jit
def _sums(pairs: jax.Array, leaves: list[jax.Array]) -> jax.Array:
    sums = jnp.zeros((2, 2), jnp.uint32)
    for position, leaf in enumerate(leaves):
        words = jax.lax.bitcast_convert_type(jnp.ravel(leaf), jnp.uint32)
        places = jnp.arange(words.size, dtype=jnp.uint32)
        for lane in range(2):
            own = jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(pairs[lane]), position))
            scrambled = threefry_2x32(own, jnp.concatenate([places, words])).reshape(2, -1)
            sums = sums.at[lane].add(jnp.sum(scrambled, axis=1, dtype=jnp.uint32))
    return sums
