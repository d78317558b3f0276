"""Secret sharing (Shamir 1979): a secret of 32 bytes is split into shares.

Any `threshold` of them give it back, and fewer reveal nothing.

**Guarantee:** for any threshold − 1 shares each of the 2^256 secrets is as likely as before: there
is one polynomial through them for each.

**Assumes:** coefficients come from the operating system; no one sees `threshold` shares who should
not. A changed share changes the secret: anyone who reconstructs it must recognise the secret (here:
by a public key or a commitment).
"""

import functools
import secrets
from collections.abc import Mapping

SECRET_BYTES = 32
# The smallest prime that is larger than every secret, so that a share may need a byte more than a
# secret.
SHARE_BYTES = 33
PRIME = 2**256 + 297


def share(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Return one share for each of the holders 1, 2, ….

    They are the values there of a random polynomial whose value at 0 is the secret.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= holders:
        raise ValueError(f"a threshold of {threshold} is impossible with {holders} shares")
    # Of the highest power first.
    coefficients = []
    for _ in range(threshold - 1):
        coefficients.append(secrets.randbelow(PRIME))
    coefficients.append(int.from_bytes(secret, "big"))
    shares = []
    for holder in range(1, holders + 1):
        value = _evaluate(coefficients, holder)
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def reconstruct(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from exactly as many shares as needed, by holder.

    It is the value at 0 of the polynomial through them (Lagrange). Shares that do not belong
    together give other bytes, or a ValueError.
    """
    if not shares or 0 in shares:
        raise ValueError("holders are numbered from 1, and there is at least one")
    secret = _interpolate(shares, 0)
    if secret >> 8 * SECRET_BYTES:
        raise ValueError("these shares do not belong together")
    return secret.to_bytes(SECRET_BYTES, "big")


def fits(shares: Mapping[int, bytes], holder: int, value: bytes) -> bool:
    """Tell whether a share is of the secret that the others give."""
    return _interpolate(shares, holder) == number(value)


def number(share: bytes) -> int:
    """Read a share as an element of the field; anything else is a ValueError."""
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise ValueError("this is not a share of a secret")
    return value


def _interpolate(shares: Mapping[int, bytes], place: int) -> int:
    """Return the value at a place of the polynomial through the shares."""
    weights = _weights(tuple(shares), place)
    terms = (number(share) * weight for share, weight in zip(shares.values(), weights, strict=True))
    return sum(terms) % PRIME


@functools.lru_cache(maxsize=512)
def _weights(holders: tuple[int, ...], place: int) -> list[int]:
    """Return Lagrange's weights.

    They depend only on who holds shares: computed once for all secrets of the same holders.
    """
    weights = []
    for holder in holders:
        above = 1
        below = 1
        for other in holders:
            if other != holder:
                above = above * (other - place) % PRIME
                below = below * (other - holder) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def _evaluate(coefficients: list[int], place: int) -> int:
    """Return the value of a polynomial at a place (Horner)."""
    value = 0
    for coefficient in coefficients:
        value = (value * place + coefficient) % PRIME
    return value
