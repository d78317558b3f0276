"""Who a device is to its peers: a key that was made on it, and what is signed about it.

The fleet's enrolment authority signs. A certificate says that a key is that of a device of a fleet,
for a time; a list, whose number rises, which devices were dismissed. A device gets both from the
server, which can make neither, and those of its cell with their adverts: there is no list of
everybody.

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

# Of Ed25519.
SIGNATURE_BYTES = 64
_CERTIFICATE = struct.Struct(">16sQ32sQQQ")
_LIST = struct.Struct(">16sQI")
CERTIFICATE_BYTES = _CERTIFICATE.size + SIGNATURE_BYTES
FLEET_BYTES = 16
# Seconds: no device is asked whose certificate ends sooner, or one of its cell might refuse it.
CLOCKS_APART = 3600


def now() -> float:
    """Return the time, in seconds since 1970."""
    return datetime.now(UTC).timestamp()


def is_signed_by(key: bytes, content: bytes, signature: bytes) -> bool:
    """Tell whether the owner of a key has signed this content."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


class Certificate(NamedTuple):
    """What the authority says about a device: its key, and for how long."""

    fleet: bytes
    # Its number, which no other device of the fleet ever has.
    device: int
    key: bytes
    # Seconds since 1970.
    begins: int
    ends: int
    # The number of the list of dismissed devices when this was signed: no older one is accepted
    # with it.
    after: int
    signature: bytes = b""

    @property
    def has_time_left(self) -> bool:
        """Tell whether it is still valid by the clock of every device."""
        return self.ends > now() + CLOCKS_APART

    def signed_content(self) -> bytes:
        """Return what the signature is of."""
        return b"taciturn fleet: certificate\0" + self._pack_fields()

    def to_bytes(self) -> bytes:
        """Write the fields, and the signature behind them."""
        return self._pack_fields() + self.signature

    def _pack_fields(self) -> bytes:
        return _CERTIFICATE.pack(
            self.fleet, self.device, self.key, self.begins, self.ends, self.after
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a certificate, whatever it says."""
        if len(content) != CERTIFICATE_BYTES:
            raise ValueError(
                f"a certificate has {CERTIFICATE_BYTES} bytes, and this has {len(content)}"
            )
        fleet, device, key, begins, ends, after = _CERTIFICATE.unpack_from(content)
        return cls(
            fleet=fleet,
            device=device,
            key=key,
            begins=begins,
            ends=ends,
            after=after,
            signature=content[_CERTIFICATE.size :],
        )


class DismissedDevices(NamedTuple):
    """The list of all devices that were ever dismissed."""

    fleet: bytes
    # Of the list: the first has 0.
    number: int
    devices: frozenset[int]
    signature: bytes = b""

    def signed_content(self) -> bytes:
        """Return what the signature is of."""
        return b"taciturn fleet: dismissed\0" + self._pack_fields()

    def to_bytes(self) -> bytes:
        """Write the fields, and the signature behind them."""
        return self._pack_fields() + self.signature

    def _pack_fields(self) -> bytes:
        head = _LIST.pack(self.fleet, self.number, len(self.devices))
        return head + struct.pack(f">{len(self.devices)}Q", *sorted(self.devices))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a list; anything but what `to_bytes` writes is refused."""
        head = content[: _LIST.size].ljust(_LIST.size, b"\0")
        fleet, number, count = _LIST.unpack(head)
        end = _LIST.size + 8 * count
        if len(content) == end + SIGNATURE_BYTES:
            devices = struct.unpack(f">{count}Q", content[_LIST.size : end])
            dismissed = cls(
                fleet=fleet,
                number=number,
                devices=frozenset(devices),
                signature=content[end:],
            )
            if dismissed.to_bytes() == content:
                return dismissed
        raise ValueError("this is not a list of dismissed devices, or not in order")

    def digest(self) -> bytes:
        """Return its hash, for a round's terms."""
        return hashlib.sha256(b"taciturn fleet: list\0" + self.to_bytes()).digest()


class EnrolledDevices(NamedTuple):
    """All of a fleet, for its server."""

    # The newest of each device, in the order of their numbers.
    certificates: Sequence[Certificate]
    dismissed: DismissedDevices

    def numbers_by_key(self) -> dict[bytes, int]:
        """Return each device's number by its key."""
        return {certificate.key: certificate.device for certificate in self.certificates}


class Authority(NamedTuple):
    """Whom a device believes about other devices of its fleet.

    It gets this with recipe and words.
    """

    fleet: bytes
    key: bytes

    def why_not_list(self, dismissed: DismissedDevices) -> str | None:
        """Say why a round may not go by this list, if it may not."""
        is_signed = is_signed_by(
            self.key,
            content=dismissed.signed_content(),
            signature=dismissed.signature,
        )
        if dismissed.fleet != self.fleet or not is_signed:
            return "the list of dismissed devices is not signed by the authority of this fleet"
        return None

    def why_not_device(self, certificate: Certificate, dismissed: DismissedDevices) -> str | None:
        """Say why the device may not be in a round that goes by this list, if it may not."""
        who = f"device {certificate.device}"
        at = now()
        if certificate.fleet != self.fleet:
            return f"the certificate of {who} is of another fleet"
        if not certificate.begins <= at < certificate.ends:
            what = "expired" if at >= certificate.ends else "not begun"
            return f"the certificate of {who} has {what}"
        if certificate.after > dismissed.number:
            return f"the list of dismissed devices is older than the certificate of {who}"
        if certificate.device in dismissed.devices:
            return f"{who} was dismissed"
        is_signed = is_signed_by(
            self.key,
            content=certificate.signed_content(),
            signature=certificate.signature,
        )
        if not is_signed:
            return f"the certificate of {who} is not signed by the authority of this fleet"
        return None


class SigningAuthority(NamedTuple):
    """The authority itself."""

    fleet: bytes
    key: Ed25519PrivateKey

    @property
    def authority(self) -> Authority:
        """Return what devices are given of it."""
        return Authority(self.fleet, self.key.public_key().public_bytes_raw())

    def certify(self, device: int, key: bytes, begins: int, ends: int, after: int) -> Certificate:
        """Sign that a key is a device's, from one time to another.

        Args:
            device: its number.
            key: its public key.
            begins: in seconds since 1970.
            ends: in seconds since 1970.
            after: the number of the newest list of dismissed devices.
        """
        unsigned = Certificate(
            fleet=self.fleet,
            device=device,
            key=key,
            begins=begins,
            ends=ends,
            after=after,
        )
        return unsigned._replace(signature=self.key.sign(unsigned.signed_content()))

    def dismiss(self, number: int, devices: Collection[int]) -> DismissedDevices:
        """Sign the list of this number, of all devices that were ever dismissed."""
        unsigned = DismissedDevices(
            fleet=self.fleet,
            number=number,
            devices=frozenset(devices),
        )
        return unsigned._replace(signature=self.key.sign(unsigned.signed_content()))
