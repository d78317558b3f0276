"""The enrolment authority: it decides which keys are devices of a fleet, and which no longer are.
It need not be where the server is.

AUTHORITY/                  its own folder, whose keys no one else has
  enrolment.key             signs certificates and lists enrolment.log             all that it ever
  signed, and when: rows of JSON, each with the hash of the one before it; append-only authority.key
  .crt       the authority of TLS (wire/authority.py), which signs the server's certificate

FLEET/enrolled.txt          what it gives to the server: the newest list of dismissed devices, then
all certificates by their numbers

A signature is in the log, and synced, before it is shown. So no number is ever assigned twice, nor
two numbers to a key.
"""

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.files import lock_file, write_atomically
from taciturn.fleets.devices.transport import LOG, LinkError
from taciturn.fleets.secure_aggregation.identities import (
    CLOCKS_APART,
    FLEET_BYTES,
    Certificate,
    DismissedDevices,
    EnrolledDevices,
    SigningAuthority,
    is_signed_by,
    now,
)
from taciturn.fleets.wire.tls import load_key, requested_key, save_key

ENROLMENT_KEY, LOG_NAME, ENROLLED = "enrolment.key", "enrolment.log", "enrolled.txt"
DAY = 24 * 3600
# days of validity; days before the end in which it is renewed
CERTIFICATE_DAYS, RENEWAL_DAYS = (
    365,
    90,
)


def beside(fleet: Path) -> Path:
    """Return where an authority's folder is made. It may be moved from there."""
    return fleet.with_name(f"{fleet.name}-authority")


def new_authority(folder: Path, fleet: Path) -> SigningAuthority:
    """Make the authority of a new fleet, without devices."""
    issuer = SigningAuthority(secrets.token_bytes(FLEET_BYTES), Ed25519PrivateKey.generate())
    save_key(folder / ENROLMENT_KEY, issuer.key)
    with lock_file(folder / LOG_NAME) as file:
        log = _Log(issuer.key, file, [])
        log.add("new", [issuer.dismiss(0, ())])
    log.publish(fleet)
    return issuer


def enrol(
    folder: Path, fleet: Path, requests: Collection[str], days: int = CERTIFICATE_DAYS
) -> list[int]:
    """Enrol the devices that ask, and return their numbers. A device that is already enrolled keeps
    its own.
    """
    keys = [requested_key(request) for request in requests]
    with _open(folder, fleet) as log:
        enrolled = log.enrolled
        numbers = enrolled.numbers_by_key()
        if gone := sorted(
            numbers[key] for key in keys if numbers.get(key) in enrolled.dismissed.devices
        ):
            anew = (
                "To bring it back, make a new key in a new folder: taciturn fleet device FOLDER"
                " --new"
            )
            raise LinkError(
                f"device {gone[0]} was dismissed, and its key with it; no device was enrolled."
                f" {anew}"
            )
        new = [key for key in dict.fromkeys(keys) if key not in numbers]
        log.certify({len(numbers) + place: key for place, key in enumerate(new)}, days)
        numbers = log.enrolled.numbers_by_key()
    return [numbers[key] for key in keys]


def dismiss(folder: Path, fleet: Path, devices: Collection[int]) -> int:
    """Dismiss devices, and return the number of the list that says so."""
    with _open(folder, fleet) as log:
        certificates, before = log.enrolled
        if unknown := sorted(set(devices) - {one.device for one in certificates}):
            raise LinkError(
                f"this fleet has {len(certificates)} devices, and no device {unknown[0]}: name"
                " another. Nothing was changed"
            )
        if not before.devices.issuperset(devices):
            log.add(
                "dismissed", [log.issuer.dismiss(before.number + 1, before.devices.union(devices))]
            )
        return log.enrolled.dismissed.number


def renew(folder: Path, fleet: Path, days: int = CERTIFICATE_DAYS) -> int:
    """Renew for the same keys certificates that end soon, have ended or not begun (a clock was
    wrong), not dismissed ones; count them.
    """
    with _open(folder, fleet) as log:
        (certificates, dismissed), today = log.enrolled, now()
        soon = today + min(RENEWAL_DAYS, days / 2) * DAY
        due = [one for one in certificates if one.ends < soon or one.begins > today]
        old = {one.device: one.key for one in due if one.device not in dismissed.devices}
        log.certify(old, days)
    return len(old)


def read_enrolled(fleet: Path) -> EnrolledDevices:
    path = fleet / ENROLLED
    try:
        first, *others = (
            base64.b64decode(line, validate=True) for line in path.read_bytes().split()
        )
        enrolled = EnrolledDevices(
            [Certificate.from_bytes(one) for one in others], DismissedDevices.from_bytes(first)
        )
    except FileNotFoundError:
        raise LinkError(
            f"{path} is missing: copy it from the enrolment authority, or make a fleet with"
            " `taciturn fleet new`"
        ) from None
    except (ValueError, OSError) as error:
        raise LinkError(
            f"{path} cannot be read or is damaged ({error}): copy it again from the enrolment"
            " authority"
        ) from None
    if [one.device for one in enrolled.certificates] != list(range(len(enrolled.certificates))):
        raise LinkError(
            f"{path} lacks devices, or has them in another order: copy it again from the enrolment"
            " authority"
        )
    return enrolled


class EnrolledFile:
    """The devices of a fleet by its newest file, which may be replaced while a server or a front
    end runs.
    """

    def __init__(self, fleet: Path) -> None:
        self._path, self._seen, self._known = fleet / ENROLLED, None, None
        self._newest()

    def __call__(self) -> EnrolledDevices:
        return self._newest()[0]

    def number_of(self, key: bytes) -> int | str:
        """Return the number of the device with this key, or say what is wrong with it."""
        (certificates, dismissed), numbers = self._newest()
        number = numbers.get(key)
        if number is None:
            return "a device that is not enrolled"
        if number in dismissed.devices:
            return "a device that was dismissed"
        return number if certificates[number].lasts else "a device whose certificate has expired"

    def _newest(self) -> tuple[EnrolledDevices, dict[bytes, int]]:
        found = self._path.stat() if self._path.exists() else None
        seen = found and (found.st_mtime_ns, found.st_ino, found.st_size)
        if self._known is None or seen != self._seen:
            try:
                enrolled = read_enrolled(self._path.parent)
                if self._known and not _follows(enrolled, self._known[0]):
                    raise LinkError(
                        f"{self._path} is older than the one before it, or of another fleet"
                    )
                self._known = enrolled, enrolled.numbers_by_key()
            except LinkError as error:
                if self._known is None:
                    raise
                # someone may be copying it just now
                LOG.warning("keeping the list of devices that was read before: %s", error)
            self._seen = seen
        return self._known


@contextmanager
def _open(folder: Path, fleet: Path) -> Iterator["_Log"]:
    """Lock and open the log; after the block the fleet's server gets what was signed in it."""
    if not (folder / LOG_NAME).exists():
        raise LinkError(
            f"{folder} is not the folder of an enrolment authority, or lost its {LOG_NAME}: name"
            " the folder with --authority"
        )
    with lock_file(folder / LOG_NAME) as file:
        file.seek(0)
        content = file.read()
        *lines, torn = content.split(b"\n")
        if torn:
            # the process that died while writing it had shown its signature to no one
            file.truncate(len(content) - len(torn))
        try:
            log = _Log(load_key(folder / ENROLMENT_KEY), file, lines)
            known = log.enrolled
        except (ValueError, KeyError, TypeError) as error:
            raise LinkError(
                f"{folder / LOG_NAME} is damaged ({error}): restore it from a copy; nothing was"
                " signed"
            ) from None
        given = read_enrolled(fleet) if (fleet / ENROLLED).exists() else known
        if given.dismissed.fleet != known.dismissed.fleet:
            raise LinkError(
                f"{folder} is the authority of another fleet than {fleet}: name the right one with"
                " --authority"
            )
        if not _follows(
            known,
            given,
            # two devices could get one number, or two lists of one number differ
        ):
            raise LinkError(
                f"{folder / LOG_NAME} lacks what was signed before ({fleet / ENROLLED}): restore"
                " its newest copy"
            )
        yield log
        log.publish(fleet)


def _follows(newer: EnrolledDevices, older: EnrolledDevices) -> bool:
    """Whether `newer` is `older` or continues it: numbers keep their keys, lists their content, and
    no dismissed device is back.
    """
    rises = (
        newer.dismissed.number > older.dismissed.number
        and newer.dismissed.devices >= older.dismissed.devices
    )
    kept = list(newer.numbers_by_key())[: len(older.certificates)] == list(older.numbers_by_key())
    return (
        kept
        and newer.dismissed.fleet == older.dismissed.fleet
        and (rises or newer.dismissed == older.dismissed)
    )


class _Log:
    def __init__(self, key: Ed25519PrivateKey, file: BinaryIO, lines: Sequence[bytes]) -> None:
        self._key, self._file, self._last = key, file, ""
        self._certificates: dict[int, Certificate] = {}
        self._dismissed: DismissedDevices | None = None
        own, signed = key.public_key().public_bytes_raw(), []
        for line in lines:
            signed = self._take(line)
        if not all(
            is_signed_by(own, one.signed(), one.signature)
            for one in signed
            # no later row has the hash of the last one
        ):
            raise ValueError("the last row is not what was signed")

    @property
    def enrolled(self) -> EnrolledDevices:
        if self._dismissed is None:
            raise ValueError("it is empty")
        return EnrolledDevices(
            [self._certificates[number] for number in range(len(self._certificates))],
            self._dismissed,
        )

    @property
    def issuer(self) -> SigningAuthority:
        return SigningAuthority(self.enrolled.dismissed.fleet, self._key)

    def certify(self, keys: Mapping[int, bytes], days: int) -> None:
        if keys:
            today, after = int(now()), self.enrolled.dismissed.number
            # or a device whose clock is behind would find it not yet valid
            dates = (
                today - CLOCKS_APART,
                today + days * DAY,
            )
            self.add(
                "certified",
                [self.issuer.certify(number, key, *dates, after) for number, key in keys.items()],
            )

    def add(self, kind: str, signed: Sequence[Certificate | DismissedDevices]) -> None:
        row = {
            "kind": kind,
            "at": int(now()),
            "signed": [_text(one) for one in signed],
            "previous": self._last,
        }
        line = json.dumps(row).encode()
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._take(line)

    def publish(self, fleet: Path) -> None:
        fleet.mkdir(parents=True, exist_ok=True)
        certificates, dismissed = self.enrolled
        write_atomically(
            fleet / ENROLLED,
            "".join(_text(one) + "\n" for one in (dismissed, *certificates)).encode(),
        )

    def _take(self, line: bytes) -> Sequence[Certificate | DismissedDevices]:
        row = json.loads(line)
        if row["previous"] != self._last:
            raise ValueError("a row does not follow the one before it")
        self._last = hashlib.sha256(line).hexdigest()
        signed = [base64.b64decode(one) for one in row["signed"]]
        if row["kind"] == "certified":
            certificates = [Certificate.from_bytes(one) for one in signed]
            self._certificates |= {one.device: one for one in certificates}
            return certificates
        self._dismissed = DismissedDevices.from_bytes(signed[0])
        return [self._dismissed]


def _text(signed: Certificate | DismissedDevices) -> str:
    return base64.b64encode(signed.to_bytes()).decode()
