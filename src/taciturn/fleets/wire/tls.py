"""Who is who on the wire: certificates for TLS, and a key on every device.

The fleet's own certificate authority, the only one that devices trust, signs a certificate for the
server. The server knows a device by its key (enrolment.py). Private keys never leave the folder
they were made in, which is closed to others.
"""

import base64
import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
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

AUTHORITY_KEY = "authority.key"
AUTHORITY_CERTIFICATE = "authority.crt"
SERVER_KEY = "server.key"
SERVER_CERTIFICATE = "server.crt"
DEVICE_KEY = "device.key"
DEVICE_REQUEST = "request.txt"
# A request begins with this word.
REQUEST = "taciturn-device:"
AUTHORITY_DAYS = 5 * 365
# Browsers accept no server certificate that lasts longer.
SERVER_DAYS = 397


def make_authority(folder: Path) -> Path:
    """Make an authority, and return the path of its certificate, which goes to every device.

    An old one is never replaced: every device would need the new one.
    """
    key_path = folder / AUTHORITY_KEY
    certificate_path = folder / AUTHORITY_CERTIFICATE
    if key_path.exists() or certificate_path.exists():
        raise LinkError(
            f"{folder} already holds an authority that devices trust: choose another folder"
        )
    key = ec.generate_private_key(ec.SECP384R1())
    name = _make_name("Taciturn fleet authority")
    builder = _build_certificate(
        subject=name,
        issuer=name,
        key=key,
        days=AUTHORITY_DAYS,
        is_authority=True,
        extensions=[x509.SubjectKeyIdentifier.from_public_key(key.public_key())],
    )
    certificate = builder.sign(key, SHA384())
    _write_key(key_path, key)
    _write_certificate(certificate_path, certificate)
    return certificate_path


def certify_server(authority: Path, folder: Path, names: Sequence[str]) -> None:
    """Make a key and a certificate for a server; needed once a year.

    Args:
        authority: The folder of the authority that signs.
        folder: The server's folder, where both are written.
        names: The names or addresses by which devices know the server.
    """
    if not names:
        raise LinkError("a server's certificate needs a name or an address that devices know it by")
    issuer_key = serialization.load_pem_private_key(_read(authority / AUTHORITY_KEY), password=None)
    issuer = x509.load_pem_x509_certificate(_read(authority / AUTHORITY_CERTIFICATE))
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _build_certificate(
        subject=_make_name("Taciturn fleet server"),
        issuer=issuer.subject,
        key=key,
        days=SERVER_DAYS,
        is_authority=False,
        extensions=[
            x509.SubjectAlternativeName([_parse_server_name(name) for name in names]),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
        ],
    )
    certificate = builder.sign(issuer_key, SHA256())
    _write_key(folder / SERVER_KEY, key)
    _write_certificate(folder / SERVER_CERTIFICATE, certificate)


def device_request(folder: Path) -> str:
    """Write a line that asks to enrol the device of this folder, and return it.

    The line is the device's public key, signed with it. The key is made once.
    """
    key_path = folder / DEVICE_KEY
    if not key_path.exists():
        save_key(key_path, Ed25519PrivateKey.generate())
    key = load_key(key_path)
    public = key.public_key().public_bytes_raw()
    signature = key.sign(REQUEST.encode() + public)
    encoded = base64.b64encode(public + signature).decode()
    line = REQUEST + encoded
    _write(folder / DEVICE_REQUEST, line.encode() + b"\n")
    return line


def requested_key(line: str) -> bytes:
    """Return the public key of the device that made this request."""
    line = line.strip()
    try:
        content = base64.b64decode(line.removeprefix(REQUEST), validate=True)
    except ValueError:
        content = b""
    key = content[:32]
    signature = content[32:]
    if not is_signed_by(key, REQUEST.encode() + key, signature):
        raise LinkError(
            f"a request of {len(line)} characters is not one that a device made, or was changed on"
            " its way: give the line that `taciturn fleet device FOLDER --new` prints, or its file"
            " request.txt"
        )
    return key


def save_key(path: Path, key: Ed25519PrivateKey) -> None:
    content = key.private_bytes(
        encoding=serialization.Encoding.PEM,
        format=serialization.PrivateFormat.OpenSSH,
        encryption_algorithm=serialization.NoEncryption(),
    )
    _write(path, content)


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


def make_private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may open."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    return folder


def _build_certificate(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    is_authority: bool,
    extensions: Sequence[x509.ExtensionType],
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    # Or a device whose clock is behind would refuse it.
    begins = now - timedelta(seconds=CLOCKS_APART)
    # An authority signs certificates, a server handshakes, and neither does anything else.
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(is_authority, path_length=0 if is_authority else None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder


def _make_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _parse_server_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(
        encoding=serialization.Encoding.PEM,
        format=serialization.PrivateFormat.PKCS8,
        encryption_algorithm=serialization.NoEncryption(),
    )
    _write(path, content)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    _write(path, certificate.public_bytes(serialization.Encoding.PEM))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise LinkError(
            f"{path} is missing: restore it from a copy, or make a fleet with `taciturn fleet new`"
        ) from None


def _write(path: Path, content: bytes) -> None:
    make_private_folder(path.parent)
    write_atomically(path, content, mode=0o600)
