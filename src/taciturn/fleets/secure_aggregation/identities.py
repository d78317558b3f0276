"""Who a device is for its peers: a long-term Ed25519 key that it was enrolled with."""

from collections.abc import Mapping
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class Identity(Protocol):
    """Signs for one device, and knows the signatures of all that are enrolled.

    A complete one, for devices that trust each other (whoever can check a signature can make one):

        class SharedKey:
            def __init__(self, device, key):
                self.device, self.key = device, key
            def sign(self, content):
                return hmac.digest(self.key, b"%d " % self.device + content, "sha512")
            def verify(self, device, content, signature):
                return hmac.compare_digest(SharedKey(device, self.key).sign(content), signature)
    """

    def sign(self, content: bytes) -> bytes: ...  # 64 bytes

    def verify(self, device: int, content: bytes, signature: bytes) -> bool:
        """False for whoever is not enrolled."""
        ...


class EnrolledKeys:
    """The list of enrolled devices' public keys, which everybody gets before the first round, and one's own private key.

    A server has none: it verifies, and signs nothing."""

    def __init__(self, enrolled: Mapping[int, Ed25519PublicKey], own: Ed25519PrivateKey | None = None) -> None:
        self._enrolled, self._own = enrolled, own

    def sign(self, content: bytes) -> bytes:
        if self._own is None:
            raise ValueError("without a private key nothing is signed")
        return self._own.sign(content)

    def verify(self, device: int, content: bytes, signature: bytes) -> bool:
        key = self._enrolled.get(device)
        if key is None:
            return False
        try:
            key.verify(signature, content)
        except InvalidSignature:
            return False
        return True
