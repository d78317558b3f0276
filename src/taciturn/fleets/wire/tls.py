"""Who is who on the wire: the fleet's own certificate authority, which devices trust alone, a
certificate for the server, and a key on every device, by which the server knows it (enrolment.py).
Private keys never leave the folder they were made in, which is closed to others.
"""

import base64
import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from taciturn.files import write_atomically
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation.identities import CLOCKS_APART, is_signed_by

AUTHORITY_KEY, AUTHORITY_CERTIFICATE = "authority.key", "authority.crt"
SERVER_KEY, SERVER_CERTIFICATE = "server.key", "server.crt"
DEVICE_KEY, DEVICE_REQUEST = "device.key", "request.txt"
REQUEST = "taciturn-device:"
# browsers accept no server certificate that lasts longer
AUTHORITY_DAYS, SERVER_DAYS = 5 * 365, 397


def make_authority(folder: Path) -> Path:
    """Make an authority; its certificate goes to every device. An old one is never replaced: every
    device would need the new one.
    """
    if (folder / AUTHORITY_KEY).exists() or (folder / AUTHORITY_CERTIFICATE).exists():
        raise LinkError(
            f"{folder} already holds an authority that devices trust: choose another folder"
        )
    key, name = ec.generate_private_key(ec.SECP384R1()), _name("Taciturn fleet authority")
    certificate = _certificate(
        name,
        name,
        key,
        AUTHORITY_DAYS,
        True,
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
    )
    _write_pair(
        folder / AUTHORITY_KEY, key, folder / AUTHORITY_CERTIFICATE, certificate.sign(key, SHA384())
    )
    return folder / AUTHORITY_CERTIFICATE


def certify_server(authority: Path, folder: Path, names: Sequence[str]) -> None:
    """Make a key and a certificate for a server that devices know by these names or addresses;
    needed once a year.
    """
    if not names:
        raise LinkError("a server's certificate needs a name or an address that devices know it by")
    issuer_key = serialization.load_pem_private_key(_read(authority / AUTHORITY_KEY), password=None)
    issuer = x509.load_pem_x509_certificate(_read(authority / AUTHORITY_CERTIFICATE))
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    known_by = x509.SubjectAlternativeName([_alternative(name) for name in names])
    use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    certificate = _certificate(
        _name("Taciturn fleet server"),
        issuer.subject,
        key,
        SERVER_DAYS,
        False,
        known_by,
        use,
        signed_by,
    )
    _write_pair(
        folder / SERVER_KEY,
        key,
        folder / SERVER_CERTIFICATE,
        certificate.sign(issuer_key, SHA256()),
    )


def device_request(folder: Path) -> str:
    """Write a line that asks to enrol the device of this folder: its public key, signed with it.
    The key is made once.
    """
    if not (folder / DEVICE_KEY).exists():
        save_key(folder / DEVICE_KEY, Ed25519PrivateKey.generate())
    key = load_key(folder / DEVICE_KEY)
    public = key.public_key().public_bytes_raw()
    line = REQUEST + base64.b64encode(public + key.sign(REQUEST.encode() + public)).decode()
    _write(folder / DEVICE_REQUEST, line.encode() + b"\n")
    return line


def requested_key(line: str) -> bytes:
    try:
        content = base64.b64decode(line.strip().removeprefix(REQUEST), validate=True)
    except ValueError:
        content = b""
    if not is_signed_by(content[:32], REQUEST.encode() + content[:32], content[32:]):
        wrong = (
            f"a request of {len(line.strip())} characters is not one that a device made, or was"
            " changed on its way"
        )
        raise LinkError(
            f"{wrong}: give the line that `taciturn fleet device FOLDER --new` prints, or its file"
            " request.txt"
        )
    return content[:32]


def save_key(path: Path, key: Ed25519PrivateKey) -> None:
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    _write(path, key.private_bytes(*form))


def load_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_ssh_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise LinkError(
            f"{path} is not a private key in OpenSSH's format ({error}): restore it from a copy"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise LinkError(f"{path} is a key of another kind: an Ed25519 key is needed")
    return key


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may open."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    return folder


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    is_authority: bool,
    *more: x509.ExtensionType,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    not_at_all = [
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    ]
    uses = dict.fromkeys(not_at_all, False) | dict.fromkeys(
        ("key_cert_sign", "crl_sign"), is_authority
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # or a device whose clock is behind would refuse it
        .not_valid_before(now - timedelta(seconds=CLOCKS_APART))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(is_authority, path_length=0 if is_authority else None),
            critical=True,
        )
        .add_extension(x509.KeyUsage(digital_signature=not is_authority, **uses), critical=True)
    )
    return reduce(lambda made, one: made.add_extension(one, critical=False), more, builder)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_pair(
    key_path: Path, key: ec.EllipticCurvePrivateKey, path: Path, certificate: x509.Certificate
) -> None:
    pem = serialization.Encoding.PEM
    _write(
        key_path,
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    _write(path, certificate.public_bytes(pem))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise LinkError(
            f"{path} is missing: restore it from a copy, or make a fleet with `taciturn fleet new`"
        ) from None


def _write(path: Path, content: bytes) -> None:
    private_folder(path.parent)
    write_atomically(path, content, mode=0o600)
