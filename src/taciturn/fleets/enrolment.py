"""The enrolment authority: it decides which keys are devices of a fleet, and which no longer are.

It need not be where the server is.

AUTHORITY/                  its own folder, whose keys no one else has
  enrolment.key             signs certificates and lists
  enrolment.log             all that it ever signed, and when: rows of JSON, each with the hash of
                            the one before it; append-only
  authority.key  .crt       the authority of TLS (wire/tls.py), which signs the server's certificate

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
from typing import BinaryIO, NamedTuple

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

ENROLMENT_KEY = "enrolment.key"
LOG_NAME = "enrolment.log"
ENROLLED = "enrolled.txt"
DAY = 24 * 3600
# A certificate is valid for this long.
CERTIFICATE_DAYS = 365
# It is renewed when it ends within this time.
RENEWAL_DAYS = 90

# What the authority puts its signature to.
Statement = Certificate | DismissedDevices


def authority_folder_beside(fleet: Path) -> Path:
    """Return where the folder of a fleet's authority is made. It may be moved from there."""
    return fleet.with_name(f"{fleet.name}-authority")


def new_authority(folder: Path, fleet: Path) -> SigningAuthority:
    """Make the authority of a new fleet, without devices."""
    signing_authority = SigningAuthority(
        fleet=secrets.token_bytes(FLEET_BYTES), key=Ed25519PrivateKey.generate()
    )
    save_key(folder / ENROLMENT_KEY, signing_authority.key)
    with lock_file(folder / LOG_NAME) as file:
        log = _AuthorityLog(signing_authority.key, file, lines=[])
        log.add("new", [signing_authority.dismiss(0, ())])
    log.publish(fleet)
    return signing_authority


def enrol(
    folder: Path, fleet: Path, requests: Collection[str], days: int = CERTIFICATE_DAYS
) -> list[int]:
    """Enrol the devices that ask, and return their numbers.

    A device that is already enrolled keeps its own.

    Args:
        folder: The authority's.
        fleet: The server's folder, which gets the new certificates.
        requests: What devices have written (`tls.device_request`).
        days: How long the certificates are valid.

    Raises:
        LinkError: A request is malformed, or of a dismissed device. Then no device is enrolled.
    """
    keys = [requested_key(request) for request in requests]
    with _open_log(folder, fleet) as log:
        numbers = log.enrolled_devices.numbers_by_key()
        asking = {numbers[key] for key in keys if key in numbers}
        _refuse_dismissed(asking & log.enrolled_devices.dismissed.devices)
        new_devices = {}
        for key in keys:
            if key not in numbers:
                number = len(numbers)
                numbers[key] = number
                new_devices[number] = key
        log.certify(new_devices, days)
    return [numbers[key] for key in keys]


def _refuse_dismissed(devices: Collection[int]) -> None:
    if devices:
        raise LinkError(
            f"device {min(devices)} was dismissed, and its key with it; no device was enrolled."
            " To bring it back, make a new key in a new folder: taciturn fleet device FOLDER --new"
        )


def dismiss(folder: Path, fleet: Path, devices: Collection[int]) -> int:
    """Dismiss devices, and return the number of the list that says so."""
    with _open_log(folder, fleet) as log:
        certificates, current_list = log.enrolled_devices
        _refuse_unknown(devices, certificates)
        if not current_list.devices.issuperset(devices):
            new_list = log.signing_authority.dismiss(
                number=current_list.number + 1,
                devices=current_list.devices.union(devices),
            )
            log.add("dismissed", [new_list])
        return log.enrolled_devices.dismissed.number


def _refuse_unknown(devices: Collection[int], certificates: Sequence[Certificate]) -> None:
    unknown = set(devices) - {certificate.device for certificate in certificates}
    if unknown:
        raise LinkError(
            f"this fleet has {len(certificates)} devices, and no device {min(unknown)}: name"
            " another. Nothing was changed"
        )


def renew(folder: Path, fleet: Path, days: int = CERTIFICATE_DAYS) -> int:
    """Renew certificates that expire soon or are not valid now; return how many.

    Devices keep their keys. Dismissed devices get no new certificate.
    """
    keys_due = {}
    with _open_log(folder, fleet) as log:
        certificates, dismissed = log.enrolled_devices
        today = now()
        soon = today + min(RENEWAL_DAYS, days / 2) * DAY
        for certificate in certificates:
            # One that has not begun was signed while a clock was wrong.
            is_due = certificate.ends < soon or certificate.begins > today
            if is_due and certificate.device not in dismissed.devices:
                keys_due[certificate.device] = certificate.key
        log.certify(keys_due, days)
    return len(keys_due)


def read_enrolled(fleet: Path) -> EnrolledDevices:
    """Read which devices are enrolled, as the authority gave it to the server."""
    path = fleet / ENROLLED
    try:
        enrolled = _parse_enrolled(path.read_bytes())
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
    numbers = [certificate.device for certificate in enrolled.certificates]
    if numbers != list(range(len(numbers))):
        raise LinkError(
            f"{path} lacks devices, or has them in another order: copy it again from the enrolment"
            " authority"
        )
    return enrolled


def _parse_enrolled(content: bytes) -> EnrolledDevices:
    dismissed, *certificates = [base64.b64decode(line, validate=True) for line in content.split()]
    return EnrolledDevices(
        certificates=[Certificate.from_bytes(certificate) for certificate in certificates],
        dismissed=DismissedDevices.from_bytes(dismissed),
    )


class _Listed(NamedTuple):
    """What one version of the file says."""

    enrolled: EnrolledDevices
    numbers_by_key: dict[bytes, int]


def _list_devices(enrolled: EnrolledDevices) -> _Listed:
    return _Listed(enrolled, enrolled.numbers_by_key())


class EnrolledFile:
    """The devices of a fleet by its newest file.

    The file may be replaced while a server or a front end runs.
    """

    def __init__(self, fleet: Path) -> None:
        self._path = fleet / ENROLLED
        # By what one file is told from another. Taken before the file is read: one that takes its
        # place meanwhile will be read too.
        self._identity = self._look()
        # Replaced as a whole: two threads read it.
        self._listed = _list_devices(read_enrolled(fleet))

    def read(self) -> EnrolledDevices:
        """Return the devices, from the file again if it was replaced."""
        return self._newest().enrolled

    def number_of(self, key: bytes) -> int | str:
        """Return the number of the device with this key, or say what is wrong with it."""
        (certificates, dismissed), numbers_by_key = self._newest()
        number = numbers_by_key.get(key)
        if number is None:
            return "a device that is not enrolled"
        if number in dismissed.devices:
            return "a device that was dismissed"
        if not certificates[number].has_time_left:
            return "a device whose certificate has expired"
        return number

    def _newest(self) -> _Listed:
        identity = self._look()
        if identity != self._identity:
            try:
                self._listed = _list_devices(self._read_newer())
            except LinkError as error:
                # Someone may be copying it just now.
                LOG.warning("keeping the list of devices that was read before: %s", error)
            self._identity = identity
        return self._listed

    def _look(self) -> tuple[int, int, int] | None:
        if not self._path.exists():
            return None
        status = self._path.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _read_newer(self) -> EnrolledDevices:
        enrolled = read_enrolled(self._path.parent)
        if not _is_continued_by(self._listed.enrolled, enrolled):
            raise LinkError(f"{self._path} is older than the one before it, or of another fleet")
        return enrolled


@contextmanager
def _open_log(folder: Path, fleet: Path) -> Iterator["_AuthorityLog"]:
    """Lock and open the log; after the block the fleet's server gets what was signed in it."""
    path = folder / LOG_NAME
    if not path.exists():
        raise LinkError(
            f"{folder} is not the folder of an enrolment authority, or lost its {LOG_NAME}: name"
            " the folder with `authority`"
        )
    with lock_file(path) as file:
        lines = _read_whole_lines(file)
        try:
            log = _AuthorityLog(load_key(folder / ENROLMENT_KEY), file, lines)
            in_log = log.enrolled_devices
        except (ValueError, KeyError, TypeError) as error:
            raise LinkError(
                f"{path} is damaged ({error}): restore it from a copy; nothing was signed"
            ) from None
        published = read_enrolled(fleet) if (fleet / ENROLLED).exists() else in_log
        if published.dismissed.fleet != in_log.dismissed.fleet:
            raise LinkError(
                f"{folder} is the authority of another fleet than {fleet}: name the right one with"
                " `authority`"
            )
        # Otherwise two devices could get one number, or two lists of one number differ.
        if not _is_continued_by(published, in_log):
            raise LinkError(
                f"{path} lacks what was signed before ({fleet / ENROLLED}): restore its newest copy"
            )
        yield log
        log.publish(fleet)


def _read_whole_lines(file: BinaryIO) -> list[bytes]:
    """Read the lines of a log, and remove from the file an incomplete one at its end.

    The process that died while writing it had shown its signature to no one.
    """
    file.seek(0)
    content = file.read()
    *lines, incomplete = content.split(b"\n")
    if incomplete:
        file.truncate(len(content) - len(incomplete))
    return lines


def _is_continued_by(older: EnrolledDevices, newer: EnrolledDevices) -> bool:
    """Whether `newer` is `older` or continues it.

    Numbers keep their keys, lists their content, and no dismissed device is back.
    """
    if newer.dismissed.fleet != older.dismissed.fleet:
        return False
    older_keys = list(older.numbers_by_key())
    newer_keys = list(newer.numbers_by_key())
    if newer_keys[: len(older.certificates)] != older_keys:
        return False
    if newer.dismissed == older.dismissed:
        return True
    has_higher_number = newer.dismissed.number > older.dismissed.number
    return has_higher_number and newer.dismissed.devices >= older.dismissed.devices


class _AuthorityLog:
    """The log of an authority, open and locked: all that it signed, and the way to sign more."""

    def __init__(self, key: Ed25519PrivateKey, file: BinaryIO, lines: Sequence[bytes]) -> None:
        self._key = key
        self._file = file
        # The hash of the last row.
        self._last_hash = ""
        # The newest certificate of each device.
        self._certificates: dict[int, Certificate] = {}
        self._dismissed: DismissedDevices | None = None
        last_statements: Sequence[Statement] = []
        for line in lines:
            last_statements = self._take(line)
        self._check_signatures(last_statements)

    @property
    def enrolled_devices(self) -> EnrolledDevices:
        if self._dismissed is None:
            raise ValueError("it is empty")
        numbers = range(len(self._certificates))
        return EnrolledDevices(
            certificates=[self._certificates[number] for number in numbers],
            dismissed=self._dismissed,
        )

    @property
    def signing_authority(self) -> SigningAuthority:
        return SigningAuthority(fleet=self.enrolled_devices.dismissed.fleet, key=self._key)

    def certify(self, keys: Mapping[int, bytes], days: int) -> None:
        """Sign certificates for the keys of devices, by their numbers."""
        if not keys:
            return
        signing_authority = self.signing_authority
        list_number = self.enrolled_devices.dismissed.number
        today = int(now())
        certificates = []
        for number, key in keys.items():
            certificate = signing_authority.certify(
                device=number,
                key=key,
                # Or a device whose clock is behind would find it not yet valid.
                begins=today - CLOCKS_APART,
                ends=today + days * DAY,
                after=list_number,
            )
            certificates.append(certificate)
        self.add("certified", certificates)

    def add(self, kind: str, statements: Sequence[Statement]) -> None:
        """Write a row about what was just signed, and wait until it is on disk."""
        row = {
            "kind": kind,
            "at": int(now()),
            "signed": [_encode(statement) for statement in statements],
            "previous": self._last_hash,
        }
        line = json.dumps(row).encode()
        self._write(line)
        self._take(line)

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def publish(self, fleet: Path) -> None:
        """Write the server's file of enrolled devices."""
        fleet.mkdir(parents=True, exist_ok=True)
        certificates, dismissed = self.enrolled_devices
        lines = [_encode(statement) + "\n" for statement in (dismissed, *certificates)]
        write_atomically(fleet / ENROLLED, "".join(lines).encode())

    def _take(self, line: bytes) -> Sequence[Statement]:
        """Take a row of the log, and return what was signed in it."""
        row = json.loads(line)
        if row["previous"] != self._last_hash:
            raise ValueError("a row does not follow the one before it")
        self._last_hash = hashlib.sha256(line).hexdigest()
        contents = [base64.b64decode(content) for content in row["signed"]]
        if row["kind"] == "certified":
            return self._take_certificates(contents)
        self._dismissed = DismissedDevices.from_bytes(contents[0])
        return [self._dismissed]

    def _take_certificates(self, contents: Sequence[bytes]) -> Sequence[Certificate]:
        certificates = [Certificate.from_bytes(content) for content in contents]
        for certificate in certificates:
            self._certificates[certificate.device] = certificate
        return certificates

    def _check_signatures(self, statements: Sequence[Statement]) -> None:
        """Check the last row: there is no later one that has its hash."""
        own_key = self._key.public_key().public_bytes_raw()
        for statement in statements:
            if not is_signed_by(
                own_key, content=statement.signed_content(), signature=statement.signature
            ):
                raise ValueError("the last row is not what was signed")


def _encode(statement: Statement) -> str:
    return base64.b64encode(statement.to_bytes()).decode()
