"""What neither end of the wire begins with: no TLS beyond this machine, no certificate, no key."""

import time
from pathlib import Path

import httpx
import pytest

from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.flower import device
from taciturn.fleets.flower import server as server_end
from taciturn.fleets.flower.authority import device_key, make_authority
from taciturn.fleets.flower.device import run_device
from taciturn.fleets.flower.server import flower_server


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "fleet.example"])
def test_without_tls_a_server_listens_on_this_machine_alone(tmp_path, host):
    with pytest.raises(LinkError, match="this machine alone"), flower_server(tmp_path, host, 0, insecure=True):
        pass


def test_without_a_certificate_there_is_no_server(tmp_path):
    with pytest.raises(LinkError, match="no certificate"), flower_server(tmp_path, "127.0.0.1", 0):
        pass


def test_a_server_on_an_address_of_somebody_else(tmp_path):
    with pytest.raises(LinkError, match="out of range"), flower_server(tmp_path, "localhost", 2**17, insecure=True):
        pass


def test_of_two_servers_in_one_folder_the_second_is_told(tmp_path, monkeypatch):
    class NoFlower:
        def __init__(self, *args):
            pass

        def close(self):
            pass

    monkeypatch.setattr(server_end, "FlowerServer", NoFlower)
    with (
        pytest.raises(LinkError, match="another server is at work"),
        flower_server(tmp_path, "localhost", 0, insecure=True),
        flower_server(tmp_path, "localhost", 0, insecure=True),
    ):
        pass
    with flower_server(tmp_path, "localhost", 0, insecure=True):
        pass  # the first has ended


@pytest.mark.parametrize("server", ["fleet.example:8443", "127.0.0.1.example:8443", "10.0.0.1:80", "nonsense"])
def test_without_tls_a_device_talks_to_this_machine_alone(tmp_path, server):
    device_key(tmp_path)
    with pytest.raises(LinkError, match="this machine alone"):
        run_device(server, tmp_path, lambda kind, content: b"", None, insecure=True)


@pytest.mark.parametrize(
    ("certificate", "reason"), [(None, "needs the certificate"), (Path("/nowhere"), "cannot be read")]
)
def test_a_device_trusts_nobody_by_default(tmp_path, certificate, reason):
    device_key(tmp_path)
    with pytest.raises(LinkError, match=reason):
        run_device("localhost:1", tmp_path, lambda kind, content: b"", certificate)


def test_a_device_needs_a_key(tmp_path):
    with pytest.raises(LinkError, match=r"device.key is missing"):
        run_device("localhost:1", tmp_path, lambda kind, content: b"", make_authority(tmp_path / "authority"))


def test_a_moment_without_a_network_loses_no_answer(monkeypatch):
    monkeypatch.setattr(device, "RETRY_SECONDS", (0.01, 0.01))
    outcomes = [httpx.ConnectError("unplugged"), httpx.ReadTimeout("still"), b"taken"]

    def send():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert device._persistently(send, time.monotonic() + 30) == b"taken"
    outcomes[:] = [httpx.ConnectError("unplugged")]
    with pytest.raises(httpx.ConnectError):
        device._persistently(send, time.monotonic() - 1)
