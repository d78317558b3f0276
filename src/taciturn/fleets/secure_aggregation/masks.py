"""Masks (Bonawitz et al. 2017, §4): numbers that look random to everyone without a secret.

They are agreed upon in pairs, and added modulo 2^b. Secrets are X25519 keys and seeds of 32 bytes;
HKDF-SHA256 derives keys from them, each for one purpose; a mask is the stream of AES-256 in counter
mode under such a key, which is used for nothing else.

**Guarantee:** a mask is indistinguishable from uniform numbers modulo 2^b, for every b up to 32:
the lowest bits of a uniform word are uniform.

**Assumes:** AES-256, SHA-256 and X25519 are what they are believed to be; secrets come from the
operating system and are used in one round.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
# Words at a time: sum and stream stay in the processor's cache, which halves the time for a mask.
CHUNK = 1 << 15
# Masks that are added together, each of which holds a cipher of about a kilobyte.
AT_ONCE = 512


class Secret(bytes):
    """Bytes that no log, error message or debugger prints."""

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__


def new_secret() -> Secret:
    """Draw a secret, for one round."""
    return Secret(os.urandom(KEY_BYTES))


def public_key(secret: Secret) -> bytes:
    """Return the public key that belongs to a secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def derive_key(secret: bytes, purpose: bytes) -> Secret:
    """Derive a key for one purpose."""
    return Secret(
        HKDF(
            SHA256(),
            KEY_BYTES,
            salt=None,
            info=purpose,
        ).derive(secret)
    )


def agree_on_key(secret: Secret, other_public_key: bytes, purpose: bytes) -> Secret:
    """Agree on a key that only the two know.

    Raises:
        ValueError: the other's public key would make it known to all.
    """
    try:
        other = X25519PublicKey.from_public_bytes(other_public_key)
        common_secret = X25519PrivateKey.from_private_bytes(secret).exchange(other)
    except ValueError:
        raise ValueError("this public key makes no secret") from None
    return derive_key(common_secret, purpose)


def words(bits: int) -> np.dtype:
    """Return the type that sums modulo 2^b are kept in.

    Adding wraps around at 2^16 or 2^32, which 2^b divides.
    """
    return np.dtype(np.uint16 if bits <= 16 else np.uint32)


class _Stream(NamedTuple):
    """A mask as it is made, and whether it is added or subtracted."""

    cipher: CipherContext
    apply: np.ufunc


def add_masks(total: np.ndarray, plus: Iterable[Secret], minus: Iterable[Secret]) -> None:
    """Add and subtract masks, in place. `total` is of a type that `words` returned."""
    added = ((key, np.add) for key in plus)
    subtracted = ((key, np.subtract) for key in minus)
    signed_keys = itertools.chain(added, subtracted)
    while batch := list(itertools.islice(signed_keys, AT_ONCE)):
        streams = [_Stream(_start_cipher(key), apply) for key, apply in batch]
        _apply_streams(total, streams)


def _start_cipher(key: Secret) -> CipherContext:
    """Start the stream of a key; it is used once, so it begins at 0."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _apply_streams(total: np.ndarray, streams: Sequence[_Stream]) -> None:
    zeros = bytes(CHUNK * total.itemsize)
    # cryptography before 43 needs room for another block.
    words = np.empty(CHUNK + 16, total.dtype)
    for start in range(0, total.size, CHUNK):
        part = total[start : start + CHUNK]
        for cipher, apply in streams:
            cipher.update_into(zeros, words.data.cast("B"))
            apply(part, words[: part.size], out=part)
