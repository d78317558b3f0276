"""What devices and the server send each other in a secure sum, as bytes.

Integers are big-endian and of fixed size, lists begin with their length, rows are in ascending
order of devices. Anything that is not exactly what `to_bytes` would have written is a ValueError,
before anything is allocated for it.
"""

import dataclasses
import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import SEEK_END, BytesIO
from typing import Any, ClassVar, NamedTuple, Self

from taciturn.fleets.secure_aggregation.bit_packing import MOST_BITS
from taciturn.fleets.secure_aggregation.identities import (
    CERTIFICATE_BYTES,
    SIGNATURE_BYTES,
    Certificate,
)
from taciturn.fleets.secure_aggregation.masks import KEY_BYTES
from taciturn.fleets.secure_aggregation.shamir import SHARE_BYTES

VERSION = 3
HASH_BYTES = 32
# A nonce, a share of the seed and one of the mask key, AES-GCM's tag.
SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16
# In a round.
MOST_DEVICES = 1 << 16
# Coordinates in a report.
MOST_LENGTH = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What all in a round must agree on.

    Every signature and key of the round depends on all of it. Server and devices each derive theirs
    before the first round, from recipe and words; `for_round` adds what only a round has.
    """

    # A name that no attempt at any round ever has again.
    round: bytes = b""
    # Hash of what devices are given to train on: run, round, model, clip norm
    # (fields.message_hash).
    message: bytes = b""
    # Hash of the list of devices that are not in the fleet any more (identities.DismissedDevices).
    dismissed: bytes = b""
    # Hash of recipe, words and enrolment authority.
    fingerprint: bytes
    # Reports are added modulo 2 to this.
    modulus_bits: int
    # The number of coordinates in a report.
    length: int
    # The share of devices that may drop out after they advertised.
    dropouts: float
    # The share of devices that may collude with the server.
    corrupt: float
    # Devices in a cohort, and reports in the sums of all cells: fewer fail.
    least: int
    # Devices in a cohort: with more, a sum might be larger than the modulus.
    most: int

    def for_round(self, name: bytes, *, message_hash: bytes, dismissed_hash: bytes) -> Self:
        """Return the terms of one attempt at a round, which has a name of its own."""
        return dataclasses.replace(
            self,
            round=name,
            message=message_hash,
            dismissed=dismissed_hash,
        )

    def to_bytes(self) -> bytes:
        """Write the terms, for their hash: they are never sent."""
        sizes = struct.pack(
            ">BIddII",
            self.modulus_bits,
            self.length,
            self.dropouts,
            self.corrupt,
            self.least,
            self.most,
        )
        return (
            _head(Terms)
            + _block(self.round)
            + _block(self.message)
            + _block(self.dismissed)
            + _block(self.fingerprint)
            + sizes
        )

    def check(self) -> None:
        """Refuse terms under which no round is possible."""
        self._check_report()
        self._check_devices()
        is_named = 1 <= len(self.round) <= 255
        has_fingerprint = 1 <= len(self.fingerprint) <= 255
        if not (is_named and has_fingerprint):
            raise ValueError("a round has a name and a fingerprint of up to 255 bytes")
        if not len(self.message) == len(self.dismissed) == HASH_BYTES:
            raise ValueError(
                "the terms of a round name its message, and the list of dismissed devices, by"
                f" hashes of {HASH_BYTES} bytes"
            )

    def _check_report(self) -> None:
        has_bits = 1 <= self.modulus_bits <= MOST_BITS
        has_coordinates = 1 <= self.length <= MOST_LENGTH
        if not (has_bits and has_coordinates):
            raise ValueError(
                f"no report has {self.length:,} coordinates of {self.modulus_bits} bits"
            )

    def _check_devices(self) -> None:
        if not 2 <= self.least <= self.most <= MOST_DEVICES:
            raise ValueError(
                f"a cohort has 2 to {MOST_DEVICES:,} devices, not {self.least:,} to {self.most:,}"
            )
        # NaN is not a share either.
        if not (0 <= self.dropouts < 1 and 0 <= self.corrupt < 1):
            raise ValueError(
                f"shares of devices lie between 0 and 1, not {self.dropouts} and {self.corrupt}"
            )

    def digest(self) -> bytes:
        """Return the hash on which every signature and key of the round depends."""
        return hashlib.sha256(b"taciturn secure sum: terms\0" + self.to_bytes()).digest()


class _Part(NamedTuple):
    """How a field of a message is written, and read again."""

    write: Callable[[Any], bytes]
    read: Callable[[BytesIO], Any]


def _number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "big")


def _block(content: bytes) -> bytes:
    """Write content behind its length."""
    return _number(len(content), 2) + content


def _head(kind: type) -> bytes:
    return bytes([VERSION, KINDS[kind]])


def _write_rows(rows: Mapping[int, bytes]) -> bytes:
    """Write rows by device, in ascending order."""
    written = [_number(device) + rows[device] for device in sorted(rows)]
    return _number(len(rows), 4) + b"".join(written)


def _write_devices(devices: Iterable[int]) -> bytes:
    return _write_rows(dict.fromkeys(devices, b""))


def _write_adverts(adverts: "Sequence[Advert]") -> bytes:
    written = [_block(advert.to_bytes()) for advert in adverts]
    return _number(len(adverts), 4) + b"".join(written)


def _read(content: BytesIO, size: int) -> bytes:
    """Read exactly this number of bytes."""
    read = content.read(size)
    if len(read) < size:
        raise ValueError("a message ends too early")
    return read


def _read_number(content: BytesIO, size: int = 8) -> int:
    return int.from_bytes(_read(content, size), "big")


def _read_count(content: BytesIO, row_bytes: int) -> int:
    """Return how many rows follow, each of at least `row_bytes` bytes."""
    rows = _read_number(content, 4)
    here = content.tell()
    end = content.seek(0, SEEK_END)
    content.seek(here)
    if rows > MOST_DEVICES or rows * row_bytes > end - here:
        raise ValueError(f"a message cannot have {rows:,} rows")
    return rows


def _read_rows(content: BytesIO, size: int) -> dict[int, bytes]:
    """Read rows by device, each of `size` bytes."""
    rows = {}
    for _ in range(_read_count(content, 8 + size)):
        device = _read_number(content)
        rows[device] = _read(content, size)
    return rows


def _read_devices(content: BytesIO) -> frozenset[int]:
    return frozenset(_read_rows(content, 0))


def _read_certificate(content: BytesIO) -> Certificate:
    return Certificate.from_bytes(_read(content, CERTIFICATE_BYTES))


def _read_adverts(content: BytesIO) -> "tuple[Advert, ...]":
    adverts = []
    for _ in range(_read_count(content, 1)):
        size = _read_number(content, 2)
        adverts.append(Advert.from_bytes(_read(content, size)))
    devices = [advert.device for advert in adverts]
    if devices != sorted(set(devices)):
        raise ValueError("a list of adverts is not in order, or names one twice")
    return tuple(adverts)


def _fixed_size(size: int) -> _Part:
    return _Part(
        write=bytes,
        read=partial(_read, size=size),
    )


def _table(size: int) -> _Part:
    """Rows by device, each of `size` bytes."""
    return _Part(
        write=_write_rows,
        read=partial(_read_rows, size=size),
    )


_CELL = _fixed_size(HASH_BYTES)
_CERTIFICATE = _Part(write=Certificate.to_bytes, read=_read_certificate)
_ADVERTS = _Part(write=_write_adverts, read=_read_adverts)
_DEVICES = _Part(write=_write_devices, read=_read_devices)
# Whatever is left.
_REST = _Part(write=bytes, read=BytesIO.read)


class _Message:
    """Version, kind, and the fields one after another, each by `layout`."""

    layout: ClassVar[tuple[_Part, ...]]

    def to_bytes(self) -> bytes:
        """Write the message as it travels."""
        values = vars(self).values()
        written = [part.write(value) for part, value in zip(self.layout, values, strict=True)]
        return _head(type(self)) + b"".join(written)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a message; anything but what `to_bytes` writes is a ValueError."""
        if len(content) > 2 + HASH_BYTES + 4 * MOST_LENGTH:
            raise ValueError(f"a {cls.__name__} of {len(content):,} bytes is too long")
        # Without a copy.
        rest = BytesIO(content)
        if rest.read(2) == _head(cls):
            message = cls(**cls._read_fields(rest))
            if message.to_bytes() == content:
                return message
        raise ValueError(
            f"this is not a {cls.__name__}: of another version, with more bytes, or its rows"
            " not in order or there twice"
        )

    @classmethod
    def _read_fields(cls, content: BytesIO) -> dict[str, Any]:
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        parts = zip(fields, cls.layout, strict=True)
        return {field.name: part.read(content) for field, part in parts}

    def _replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def __repr__(self) -> str:
        # Most hold what no log should.
        return f"<{type(self).__name__}>"


@dataclass(frozen=True, repr=False, kw_only=True)
class Advert(_Message):
    """1. Device → server → its cell: fresh public keys for one round.

    They are signed with the key of the certificate.
    """

    layout = (
        _CERTIFICATE,
        _fixed_size(KEY_BYTES),
        _fixed_size(KEY_BYTES),
        _fixed_size(HASH_BYTES),
        _fixed_size(SIGNATURE_BYTES),
    )
    certificate: Certificate
    mask_key: bytes
    share_key: bytes
    # To the seed of the device's own mask, so that the server can check its reconstruction.
    commitment: bytes
    signature: bytes

    @property
    def device(self) -> int:
        """Return the number of the device."""
        return self.certificate.device

    def signed_content(self, terms: Terms) -> bytes:
        """Return what the signature is of: all but itself, and the terms."""
        unsigned = self._replace(signature=b"")
        return b"taciturn secure sum: advert\0" + terms.digest() + unsigned.to_bytes()

    def digest(self) -> bytes:
        """Return the hash that stands for it in the list of all adverts."""
        return hashlib.sha256(b"taciturn secure sum: advert\0" + self.to_bytes()).digest()


class RosterParts(NamedTuple):
    """A roster in two parts, one after the other."""

    # For one device.
    own: bytes
    # What follows for all of them.
    shared: bytes


@dataclass(frozen=True, repr=False)
class Roster(_Message):
    """2. Server → device: the adverts of the others in its cell.

    The digests of all adverts determine them.
    """

    layout = (_ADVERTS, _table(HASH_BYTES))
    # Ascending by device.
    adverts: tuple[Advert, ...]
    # One for each device: with several, corrupt devices would count more than once.
    digests: dict[int, bytes]

    def parts(self) -> RosterParts:
        """Return what is for one device, and what follows for all of them."""
        return RosterParts(
            own=_head(Roster) + _write_adverts(self.adverts),
            shared=_write_rows(self.digests),
        )

    def cohort(self, terms: Terms) -> bytes:
        """Name these devices with these keys in this round.

        Cells, and their names, follow from it.
        """
        content = terms.digest() + _write_rows(self.digests)
        return hashlib.sha256(b"taciturn secure sum: cohort\0" + content).digest()


@dataclass(frozen=True, repr=False)
class SealedShares(_Message):
    """2. Device → server, by receiver; and 3. server → device, by sender.

    These are shares that only the two devices can read.
    """

    layout = (_CELL, _table(SEALED_BYTES))
    cell: bytes
    shares: dict[int, bytes]


@dataclass(frozen=True, repr=False)
class MaskedReport(_Message):
    """3. Device → server: a report behind its masks, b bits a coordinate."""

    layout = (_CELL, _REST)
    cell: bytes
    packed: bytes


@dataclass(frozen=True, repr=False)
class Survivors(_Message):
    """4. Server → device: all devices of the cell whose reports have arrived.

    The answer is a signature of it, and nothing else.
    """

    layout = (_CELL, _DEVICES)
    cell: bytes
    devices: frozenset[int]

    def signed_content(self) -> bytes:
        """Return what devices sign, once.

        The cell's name depends on message, terms and all adverts of the round.
        """
        return b"taciturn secure sum: survivors\0" + self.to_bytes()


@dataclass(frozen=True, repr=False)
class UnmaskRequest(_Message):
    """5. Server → device: survivors' signatures under the list that it has signed itself."""

    layout = (_CELL, _table(SIGNATURE_BYTES))
    cell: bytes
    signatures: dict[int, bytes]


@dataclass(frozen=True, repr=False)
class Unmasking(_Message):
    """5. Device → server: its shares of secrets.

    They are of the seeds of those who reported, and of the mask keys of those who have gone.
    """

    layout = (_CELL, _table(SHARE_BYTES), _table(SHARE_BYTES))
    cell: bytes
    seeds: dict[int, bytes]
    mask_keys: dict[int, bytes]


_ALL = (
    Terms,
    Advert,
    Roster,
    SealedShares,
    MaskedReport,
    Survivors,
    UnmaskRequest,
    Unmasking,
)
KINDS = {kind: number for number, kind in enumerate(_ALL, 1)}
