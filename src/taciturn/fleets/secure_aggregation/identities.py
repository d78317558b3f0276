"""Who a device is to its peers: a key that was made on it, and what the fleet's enrolment authority
has signed about it.

A certificate says that a key is that of a device of a fleet, for a time; a list, whose number
rises, which devices were dismissed. A device gets both from the server, which can make neither, and
those of its cell with their adverts: there is no list of everybody.

**Guarantee:** what an `Authority` accepts was signed, bit for bit, by the authority, for this fleet
and this time, about a device that is not on a list at least as new as the certificate.

**Assumes:** the authority's key is not the server's; the authority gives each number one key and
each key one number, and dismisses those it has to; a device's clock is right to the hour.

Departs from X.509, which has many ways to write one statement, and extensions that programs read
differently. Here each statement is one row of bytes of fixed sizes, which any language reads in a
few lines, and of which nothing can be changed.
"""

import hashlib
import struct
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

# Ed25519
SIGNATURE_BYTES = 64
_CERTIFICATE, _LIST = struct.Struct(">16sQ32sQQQ"), struct.Struct(">16sQI")
CERTIFICATE_BYTES = _CERTIFICATE.size + SIGNATURE_BYTES
FLEET_BYTES = 16
# seconds: no device is asked whose certificate ends sooner, or one of its cell might refuse it
CLOCKS_APART = 3600


def now() -> float:
    return datetime.now(UTC).timestamp()


def is_signed_by(key: bytes, content: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


class Certificate(NamedTuple):
    fleet: bytes
    # its number, which no other device of the fleet ever has
    device: int
    key: bytes
    # seconds since 1970
    begins: int
    ends: int
    # the number of the list of dismissed devices when this was signed: no older one is accepted
    # with it
    after: int
    signature: bytes = b""

    @property
    def has_time_left(self) -> bool:
        return self.ends > now() + CLOCKS_APART

    def signed(self) -> bytes:
        return b"taciturn fleet: certificate\0" + _CERTIFICATE.pack(*self[:-1])

    def to_bytes(self) -> bytes:
        return _CERTIFICATE.pack(*self[:-1]) + self.signature

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        if len(content) != CERTIFICATE_BYTES:
            raise ValueError(
                f"a certificate has {CERTIFICATE_BYTES} bytes, and this has {len(content)}"
            )
        return cls(*_CERTIFICATE.unpack_from(content), signature=content[_CERTIFICATE.size :])


class DismissedDevices(NamedTuple):
    """The list of all devices that were ever dismissed."""

    fleet: bytes
    # of the list: the first has 0
    number: int
    devices: frozenset[int]
    signature: bytes = b""

    def signed(self) -> bytes:
        rows = struct.pack(f">{len(self.devices)}Q", *sorted(self.devices))
        return (
            b"taciturn fleet: dismissed\0"
            + _LIST.pack(self.fleet, self.number, len(self.devices))
            + rows
        )

    def to_bytes(self) -> bytes:
        return self.signed().partition(b"\0")[2] + self.signature

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        fleet, number, count = _LIST.unpack(content[: _LIST.size].ljust(_LIST.size, b"\0"))
        end = _LIST.size + 8 * count
        devices = (
            struct.unpack(f">{count}Q", content[_LIST.size : end])
            if len(content) == end + SIGNATURE_BYTES
            else ()
        )
        read = cls(fleet, number, frozenset(devices), content[end:])
        if len(content) != end + SIGNATURE_BYTES or read.to_bytes() != content:
            raise ValueError("this is not a list of dismissed devices, or not in order")
        return read

    def digest(self) -> bytes:
        """Return its hash, for a round's terms."""
        return hashlib.sha256(b"taciturn fleet: list\0" + self.to_bytes()).digest()


class EnrolledDevices(NamedTuple):
    """All of a fleet, for its server."""

    # the newest of each device, in the order of their numbers
    certificates: Sequence[Certificate]
    dismissed: DismissedDevices

    def numbers_by_key(self) -> dict[bytes, int]:
        return {one.key: one.device for one in self.certificates}


class Authority(NamedTuple):
    """Whom a device believes about other devices of its fleet: it gets this with recipe and
    words.
    """

    fleet: bytes
    key: bytes

    def why_not_list(self, dismissed: DismissedDevices) -> str | None:
        """Say why a round may not go by this list, if it may not."""
        is_of_this_fleet = dismissed.fleet == self.fleet
        if not is_of_this_fleet or not is_signed_by(
            self.key, dismissed.signed(), dismissed.signature
        ):
            return "the list of dismissed devices is not signed by the authority of this fleet"
        return None

    def why_not_device(self, certificate: Certificate, dismissed: DismissedDevices) -> str | None:
        """Say why the device may not be in a round that goes by this list, if it may not."""
        who = f"device {certificate.device}"
        at = now()
        if certificate.fleet != self.fleet:
            return f"the certificate of {who} is of another fleet"
        if not certificate.begins <= at < certificate.ends:
            return (
                f"the certificate of {who} has"
                f" {'expired' if at >= certificate.ends else 'not begun'}"
            )
        if certificate.after > dismissed.number:
            return f"the list of dismissed devices is older than the certificate of {who}"
        if certificate.device in dismissed.devices:
            return f"{who} was dismissed"
        if not is_signed_by(self.key, certificate.signed(), certificate.signature):
            return f"the certificate of {who} is not signed by the authority of this fleet"
        return None


class SigningAuthority(NamedTuple):
    """The authority itself."""

    fleet: bytes
    key: Ed25519PrivateKey

    @property
    def authority(self) -> Authority:
        return Authority(self.fleet, self.key.public_key().public_bytes_raw())

    def certify(self, device: int, key: bytes, begins: int, ends: int, after: int) -> Certificate:
        unsigned = Certificate(self.fleet, device, key, begins, ends, after)
        return unsigned._replace(signature=self.key.sign(unsigned.signed()))

    def dismiss(self, number: int, devices: Collection[int]) -> DismissedDevices:
        unsigned = DismissedDevices(self.fleet, number, frozenset(devices))
        return unsigned._replace(signature=self.key.sign(unsigned.signed()))
