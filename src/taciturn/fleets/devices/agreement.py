"""What a server and its devices agree on before the first round: the recipe, who is enrolled, and how sums are made."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from taciturn.fleets.secure_aggregation.messages import Terms


class Agreement(NamedTuple):
    """The same on both sides, each of which makes its own from its recipe and its list of devices: all of `Terms` but what is
    one round's own: its name, and the hash of its message."""

    fingerprint: bytes  # of recipe, words and list
    modulus_bits: int
    length: int  # of a report
    dropouts: float
    corrupt: float
    least: int  # m, the report goal
    most: int  # n_max

    def terms(self, round: bytes, message: bytes) -> Terms:
        return Terms(round, message, *self)


def fingerprint(recipe: str, words: Sequence[str], enrolled: Sequence[bytes]) -> bytes:
    """`enrolled` are the public keys of all devices, in the order of their numbers."""
    digest = hashlib.sha256(b"taciturn fleet\0")
    for parts in ([recipe.encode()], [word.encode() for word in words], enrolled):
        digest.update(len(parts).to_bytes(8, "big"))
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
