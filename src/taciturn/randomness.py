"""Derive every random choice of a run, from one secret root and (purpose, round, attempt).

A run's root is 32 bytes from the operating system. A *simulation* takes a seed instead, so that it
can be repeated, and its ledger says so: anyone who knows the seed can subtract the noise.

Derivation is HMAC-SHA256, so that no number of derived keys reveals anything about the root or the
other keys, and two different (purpose, round, attempt) never share a key.

>>> root = root_from_seed(7)
>>> derive(root, "noise", 3, 0) == derive(root, "noise", 3, 0)
True
>>> derive(root, "noise", 3, 0) == derive(root, "noise", 3, 1)
False
"""

import hashlib
import hmac
import os

import jax
import jax.numpy as jnp
import numpy as np

ROOT_BYTES = 32


def root_from_entropy() -> bytes:
    """Return a root that cannot be guessed or repeated."""
    return os.urandom(ROOT_BYTES)


def root_from_seed(seed: int) -> bytes:
    """Return a root that anyone can repeat: for simulations only."""
    return hashlib.sha256(f"taciturn simulation seed {seed}".encode()).digest()


def derive(root: bytes, purpose: str, round: int, attempt: int = 0) -> bytes:
    """Derive 32 bytes for one purpose in one attempt at one round.

    Raises:
        ValueError: the root does not have 32 bytes.
    """
    if len(root) != ROOT_BYTES:
        raise ValueError(f"a run's root has {ROOT_BYTES} bytes, this one has {len(root)}")
    return hmac.digest(root, f"{purpose}\0{round}\0{attempt}".encode(), "sha256")


def jax_key(secret: bytes) -> jax.Array:
    """Return a JAX key of 64 bits."""
    digest = hmac.digest(secret, b"jax 0", "sha256")
    words = np.frombuffer(digest[:8], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
