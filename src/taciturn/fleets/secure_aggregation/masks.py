"""Masks (Bonawitz et al. 2017, §4): numbers that look random to everyone without a secret, agreed
upon in pairs, and added modulo 2^b.

Secrets are X25519 keys and seeds of 32 bytes; HKDF-SHA256 derives keys from them, each for one
purpose; a mask is the stream of AES-256 in counter mode under such a key, which is used for nothing
else.

**Guarantee:** a mask is indistinguishable from uniform numbers modulo 2^b, for every b up to 32:
the lowest bits of a uniform word are uniform.

**Assumes:** AES-256, SHA-256 and X25519 are what they are believed to be; secrets come from the
operating system and are used in one round.
"""

import itertools
import os
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
# words at a time: sum and stream stay in the processor's cache, which halves the time for a mask
CHUNK = 1 << 15
# masks, each of which holds a cipher of about a kilobyte
AT_ONCE = 512


class Secret(bytes):
    """Bytes that no log, error message or debugger prints."""

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__


def new_secret() -> Secret:
    return Secret(os.urandom(KEY_BYTES))


def public_key(secret: Secret) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def derive_key(secret: bytes, purpose: bytes) -> Secret:
    return Secret(HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret))


def agree_on_key(secret: Secret, other_public_key: bytes, purpose: bytes) -> Secret:
    """Agree on a key that only the two know; ValueError if the other's public key would make it
    known to all.
    """
    try:
        other = X25519PublicKey.from_public_bytes(other_public_key)
        return derive_key(X25519PrivateKey.from_private_bytes(secret).exchange(other), purpose)
    except ValueError:
        raise ValueError("this public key makes no secret") from None


def words(bits: int) -> np.dtype:
    """Return the type that sums modulo 2^b are kept in: adding wraps around at 2^16 or 2^32, which
    2^b divides.
    """
    return np.dtype(np.uint16 if bits <= 16 else np.uint32)


def add_masks(total: np.ndarray, plus: Iterable[Secret], minus: Iterable[Secret]) -> None:
    """Add and subtract masks, in place. `total` is of a type that `words` returned."""
    signed = itertools.chain(((key, np.add) for key in plus), ((key, np.subtract) for key in minus))
    while batch := list(itertools.islice(signed, AT_ONCE)):
        streams = [
            (Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), apply)
            for key, apply in batch
        ]
        zeros = bytes(CHUNK * total.itemsize)
        # cryptography before 43 needs room for another block
        stream = np.empty(CHUNK + 16, total.dtype)
        for start in range(0, total.size, CHUNK):
            part = total[start : start + CHUNK]
            for cipher, apply in streams:
                cipher.update_into(zeros, stream.data.cast("B"))
                apply(part, stream[: part.size], out=part)
