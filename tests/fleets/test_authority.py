"""Certificates and keys as the standard library's TLS sees them, and files that nobody else may
read.
"""

import os
import socket
import ssl
import threading

import pytest
from cryptography import x509

from enrolling import load_device_key, public
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.wire.tls import certify_server, device_request, make_authority, requested_key


@pytest.fixture
def fleet(tmp_path):
    make_authority(tmp_path / "authority")
    certify_server(tmp_path / "authority", tmp_path / "server", ["localhost", "127.0.0.1", "::1"])
    return tmp_path


def handshake(folder, root, name):
    """A connection between two sockets of this process; what the client makes of it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(root)
    here, there = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(there, server_side=True).close()
        except (ssl.SSLError, OSError):
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=name) as connection:
            return connection.version()
    finally:
        here.close()
        thread.join(10)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_a_device_trusts_a_server_that_its_authority_certified(fleet, name):
    assert handshake(fleet / "server", fleet / "authority" / "authority.crt", name) == "TLSv1.3"


def test_a_device_trusts_neither_another_name_nor_another_authority(fleet):
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(fleet / "server", fleet / "authority" / "authority.crt", "elsewhere.example")
    other = make_authority(fleet / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|unable to get"):
        handshake(fleet / "server", other, "localhost")


def test_a_servers_certificate_cannot_certify_others_and_ends(fleet):
    certificate = x509.load_pem_x509_certificate((fleet / "server" / "server.crt").read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days <= 398


def test_an_authority_is_never_replaced(fleet):
    before = (fleet / "authority" / "authority.crt").read_bytes()
    with pytest.raises(LinkError, match="already"):
        make_authority(fleet / "authority")
    assert (fleet / "authority" / "authority.crt").read_bytes() == before


def test_a_server_can_be_certified_again(fleet):
    certify_server(fleet / "authority", fleet / "server", ["localhost"])
    assert (
        handshake(fleet / "server", fleet / "authority" / "authority.crt", "localhost") == "TLSv1.3"
    )


def test_without_an_authority_nothing_is_certified(tmp_path):
    with pytest.raises(LinkError, match=r"authority.key is missing"):
        certify_server(tmp_path, tmp_path, ["localhost"])
    with pytest.raises(LinkError, match="a name or an address"):
        certify_server(tmp_path, tmp_path, [])


def test_a_device_keeps_its_key_and_asks_with_a_line(fleet):
    line = device_request(fleet / "device")
    assert device_request(fleet / "device") == line
    assert (fleet / "device" / "request.txt").read_text() == line + "\n"
    assert requested_key(line + "\n") == public(load_device_key(fleet / "device"))
    assert device_request(fleet / "another") != line


@pytest.mark.parametrize(
    "spoilt", ["", "nonsense", "taciturn-device:", "cut", "changed", "another's"]
)
def test_what_is_not_a_request_is_refused_in_words(fleet, spoilt):
    """Nobody asks with a key that is not theirs: the line is signed with it."""
    line, other = device_request(fleet / "device"), device_request(fleet / "another")
    start = line.index(":") + 44
    changed = {
        "cut": line[:-4],
        "changed": line[:-1] + ("A" if line[-1] != "A" else "B"),
        "another's": line[:start] + other[start:],
    }
    with pytest.raises(LinkError, match="is not one that a device made"):
        requested_key(changed.get(spoilt, spoilt))


def test_a_broken_key_is_refused_in_words(fleet):
    device_request(fleet / "device")
    (fleet / "device" / "device.key").write_bytes(b"nonsense")
    with pytest.raises(LinkError, match="not a private key"):
        load_device_key(fleet / "device")


def test_nobody_else_may_read_any_of_it(fleet):
    device_request(fleet / "device")
    for folder, _, files in os.walk(fleet):
        if folder != str(fleet):
            assert os.stat(folder).st_mode & 0o777 == 0o700
        for file in files:
            assert os.stat(os.path.join(folder, file)).st_mode & 0o777 == 0o600
