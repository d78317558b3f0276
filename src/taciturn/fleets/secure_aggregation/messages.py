"""What devices and server say to each other in a secure sum, and how it is written in bytes.

Integers are big-endian and of fixed size, lists say how many rows they have, rows stand in ascending order of devices. Whatever is
not exactly what `to_bytes` would have written is a ValueError with a sentence, before anything is allocated for it.
"""

import hashlib
import itertools
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self, TypeVar

from taciturn.fleets.secure_aggregation.bit_packing import MOST_BITS
from taciturn.fleets.secure_aggregation.identities import CERTIFICATE_BYTES, SIGNATURE_BYTES, Certificate
from taciturn.fleets.secure_aggregation.masks import KEY_BYTES
from taciturn.fleets.secure_aggregation.shamir import SHARE_BYTES

VERSION = 3
HASH_BYTES = 32
SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16  # nonce, a share of the seed and one of the mask key, AES-GCM's tag
MOST_DEVICES = 1 << 16  # in a round
MOST_LENGTH = 1 << 26  # coordinates in a report


class Terms(NamedTuple):
    """What everybody in a round has to agree on. Every signature and key of the round depends on all of it. Server
    and devices each make theirs before the first round, from recipe and words; a round adds the first three."""

    round: bytes  # a name that no attempt at any round ever has again
    message: bytes  # hash of what devices are given to train on: run, round, model, clip norm (fields.message_hash)
    dismissed: bytes  # hash of the list of devices that are not in it any more (identities.Dismissed)
    fingerprint: bytes  # of recipe, words and enrolment authority
    modulus_bits: int  # reports are added modulo 2 to this
    length: int  # coordinates in a report
    dropouts: float  # the share of devices that may drop out after they advertised
    corrupt: float  # the share of devices that may work together with the server
    least: int  # devices in a cohort, and reports in the sums of all cells: with fewer there is none
    most: int  # devices in a cohort: with more, a sum might be larger than the modulus

    def to_bytes(self) -> bytes:
        sizes = struct.pack(">BIddII", self.modulus_bits, self.length, self.dropouts, self.corrupt, self.least, self.most)
        return _head(Terms) + _block(self.round) + _block(self.message) + _block(self.dismissed) + _block(self.fingerprint) + sizes

    def check(self) -> None:
        if not (1 <= self.modulus_bits <= MOST_BITS and 1 <= self.length <= MOST_LENGTH):
            raise ValueError(f"no report has {self.length:,} coordinates of {self.modulus_bits} bits")
        if not 2 <= self.least <= self.most <= MOST_DEVICES:
            raise ValueError(f"a cohort has 2 to {MOST_DEVICES:,} devices, not {self.least:,} to {self.most:,}")
        if not (0 <= self.dropouts < 1 and 0 <= self.corrupt < 1):  # nor are they not-a-number
            raise ValueError(f"shares of devices lie between 0 and 1, not {self.dropouts} and {self.corrupt}")
        if not (1 <= len(self.round) <= 255 and 1 <= len(self.fingerprint) <= 255):
            raise ValueError("a round has a name and a fingerprint of up to 255 bytes")
        if not len(self.message) == len(self.dismissed) == HASH_BYTES:
            raise ValueError(f"the terms of a round name its message, and the list of dismissed devices, by hashes of {HASH_BYTES} bytes")

    def digest(self) -> bytes:
        return hashlib.sha256(b"taciturn secure sum: terms\0" + self.to_bytes()).digest()


class Advert(NamedTuple):
    """1. Device → server → its cell: fresh public keys for one round, signed with the key of the certificate."""

    certificate: Certificate
    mask_key: bytes
    share_key: bytes
    commitment: bytes  # to the seed of the device's own mask, so that the server sees whether it was put together right
    signature: bytes

    @property
    def device(self) -> int:
        return self.certificate.device

    def to_bytes(self) -> bytes:
        keys = self.mask_key + self.share_key + self.commitment
        return _head(Advert) + self.certificate.to_bytes() + keys + self.signature

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = _Reader(content, Advert)
        certificate = Certificate.from_bytes(reader.take(CERTIFICATE_BYTES))
        sizes = KEY_BYTES, KEY_BYTES, HASH_BYTES, SIGNATURE_BYTES
        return reader.whole(cls(certificate, *map(reader.take, sizes)))

    def signed(self, terms: Terms) -> bytes:
        """What the signature is of: all but itself, and the terms."""
        return b"taciturn secure sum: advert\0" + terms.digest() + self._replace(signature=b"").to_bytes()

    def digest(self) -> bytes:
        return hashlib.sha256(b"taciturn secure sum: advert\0" + self.to_bytes()).digest()


class Roster(NamedTuple):
    """2. Server → device: the adverts of the others in its cell, and the digests of all adverts, of which it follows who they are."""

    adverts: tuple[Advert, ...]  # ascending by device
    digests: dict[int, bytes]  # one for each device: with several, the corrupt would be more than they are

    def to_bytes(self) -> bytes:
        return b"".join(self.parts())

    def parts(self) -> tuple[bytes, bytes]:
        """What is for one device, and what follows it for all of them alike."""
        adverts = [_block(advert.to_bytes()) for advert in self.adverts]
        return _head(Roster) + _number(len(adverts), 4) + b"".join(adverts), _table(self.digests)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = _Reader(content, Roster)
        adverts = tuple(Advert.from_bytes(reader.block(512)) for _ in range(reader.count(1)))
        _ascending([advert.device for advert in adverts])
        return reader.whole(cls(adverts, reader.table(HASH_BYTES)))

    def cohort(self, terms: Terms) -> bytes:
        """A name for these devices with these keys in this round. Cells follow from it, and have names that do."""
        return hashlib.sha256(b"taciturn secure sum: cohort\0" + terms.digest() + _table(self.digests)).digest()


class SealedShares(NamedTuple):
    """2. Device → server, by receiver; and 3. server → device, by sender: shares that only the two devices can read."""

    cell: bytes
    shares: dict[int, bytes]

    def to_bytes(self) -> bytes:
        return _head(SealedShares) + self.cell + _table(self.shares)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = _Reader(content, SealedShares)
        return reader.whole(cls(reader.take(HASH_BYTES), reader.table(SEALED_BYTES)))

    def __repr__(self) -> str:
        return f"<sealed shares of {len(self.shares)} devices>"


class MaskedReport(NamedTuple):
    """3. Device → server: a report behind its masks, b bits a coordinate."""

    cell: bytes
    packed: bytes

    def to_bytes(self) -> bytes:
        return _head(MaskedReport) + self.cell + self.packed

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = _Reader(content, MaskedReport)
        cell = reader.take(HASH_BYTES)
        if reader.left > 4 * MOST_LENGTH:
            raise ValueError(f"a report of {reader.left:,} bytes is longer than any")
        return cls(cell, reader.take(reader.left))

    def __repr__(self) -> str:
        return f"<masked report, {len(self.packed):,} bytes>"


class Survivors(NamedTuple):
    """4. Server → device: all devices of the cell whose reports have come. The answer is a signature of it, and nothing else."""

    cell: bytes
    devices: frozenset[int]

    def to_bytes(self) -> bytes:
        return _head(Survivors) + self.cell + _table(dict.fromkeys(self.devices, b""))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = _Reader(content, Survivors)
        return reader.whole(cls(reader.take(HASH_BYTES), frozenset(reader.table(0))))

    def signed(self) -> bytes:
        """What devices sign, once: the cell has a name on which message, terms and all adverts of the round depend."""
        return b"taciturn secure sum: survivors\0" + self.to_bytes()


class UnmaskRequest(NamedTuple):
    """5. Server → device: signatures of survivors under the list of them that the device has signed itself."""

    cell: bytes
    signatures: dict[int, bytes]

    def to_bytes(self) -> bytes:
        return _head(UnmaskRequest) + self.cell + _table(self.signatures)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = _Reader(content, UnmaskRequest)
        return reader.whole(cls(reader.take(HASH_BYTES), reader.table(SIGNATURE_BYTES)))


class Unmasking(NamedTuple):
    """5. Device → server: its shares of the seeds of those who reported, and of the mask keys of those who have gone."""

    cell: bytes
    seeds: dict[int, bytes]
    mask_keys: dict[int, bytes]

    def to_bytes(self) -> bytes:
        return _head(Unmasking) + self.cell + _table(self.seeds) + _table(self.mask_keys)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = _Reader(content, Unmasking)
        return reader.whole(cls(reader.take(HASH_BYTES), reader.table(SHARE_BYTES), reader.table(SHARE_BYTES)))

    def __repr__(self) -> str:
        return f"<shares of {len(self.seeds)} seeds and {len(self.mask_keys)} mask keys>"


_ALL = Terms, Advert, Roster, SealedShares, MaskedReport, Survivors, UnmaskRequest, Unmasking
KINDS = {kind: number for number, kind in enumerate(_ALL, 1)}


def _head(kind: type) -> bytes:
    return bytes([VERSION, KINDS[kind]])


def _number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "big")


def _block(content: bytes) -> bytes:
    return _number(len(content), 2) + content


def _table(rows: Mapping[int, bytes]) -> bytes:
    return _number(len(rows), 4) + b"".join(_number(device) + rows[device] for device in sorted(rows))


def _ascending(names: Iterable) -> None:
    if any(not first < second for first, second in itertools.pairwise(names)):
        raise ValueError("a list of devices is not in order, or names one twice")


Message = TypeVar("Message")


class _Reader:
    def __init__(self, content: bytes, kind: type) -> None:
        self._content, self._at, self._name = content, 0, kind.__name__
        if self.take(2) != _head(kind):
            raise ValueError(f"this is no {self._name}, or one of another version")

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError(f"a {self._name} ends too early")
        self._at += size
        return bytes(self._content[self._at - size : self._at])

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, most: int) -> bytes:
        size = self.number(2)
        if size > most:
            raise ValueError(f"a part of a {self._name} is longer than {most} bytes")
        return self.take(size)

    def count(self, row: int) -> int:
        """How many rows follow, which take at least so many bytes each."""
        rows = self.number(4)
        if rows > MOST_DEVICES or rows * row > self.left:
            raise ValueError(f"a {self._name} cannot have {rows:,} rows")
        return rows

    def table(self, size: int) -> dict[int, bytes]:
        rows = [(self.number(8), self.take(size)) for _ in range(self.count(8 + size))]
        _ascending([device for device, _ in rows])
        return dict(rows)

    def whole(self, message: Message) -> Message:
        """The message, if nothing comes after it."""
        if self.left:
            raise ValueError(f"{self.left:,} bytes follow after a {self._name}")
        return message
