"""What neither end of the wire begins with: no TLS beyond this machine, no certificate, no key."""

import socket
import sqlite3
import threading
import time
from pathlib import Path

import httpx
import pytest

from taciturn.fleets.devices.transport import ComeBackLater, LinkError
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


def test_a_port_that_somebody_else_listens_on_or_that_there_is_not_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(server_end, "FREE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(LinkError, match=rf"cannot listen on 127\.0\.0\.1:{port}"),
            flower_server(tmp_path, "127.0.0.1", port, insecure=True),
        ):
            pass
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


@pytest.mark.parametrize(("certificate", "reason"), [(None, "needs the certificate"), (Path("/nowhere"), "cannot be read")])
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
    with pytest.raises(httpx.ConnectError, match="unplugged"):
        device._persistently(send, time.monotonic() - 1)


@pytest.fixture(scope="module")
def asked_over_flower(tmp_path_factory):
    """Two devices on the wire, of which one was asked three times, and then went to rest; the folder that stays at the server."""
    from taciturn.fleets.flower.authority import device_key
    from taciturn.fleets.flower.device import run_device
    from taciturn.fleets.flower.server import flower_server

    def handler(kind, content):
        if content == b"3":
            raise ComeBackLater(600)
        return b"yes"

    tmp_path = tmp_path_factory.mktemp("flower")
    stop, folder = threading.Event(), tmp_path / "wire"
    with flower_server(folder, "127.0.0.1", 0, insecure=True) as server:
        for number in range(2):
            device = tmp_path / f"device-{number}"
            server.enrol(device_key(device))
            arguments = server.address, device, handler, None, True, stop
            threading.Thread(target=run_device, args=arguments, daemon=True).start()
        until = time.monotonic() + 60
        while len(server.link.devices()) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        one = server.link.devices()[0]
        for question in range(3):
            assert server.link.ask("only-asked-of-one", {one: b"%d" % question}, 30) == {one: b"yes"}
        server.link.ask("only-asked-of-one", {one: b"3"}, 30)
        while one in server.link.devices() and time.monotonic() < until:
            time.sleep(0.1)
        stop.set()
    return folder


@pytest.mark.slow  # starts a SuperLink
def test_when_the_server_has_ended_nothing_on_its_disk_says_whom_it_asked(asked_over_flower):
    left = [path for path in asked_over_flower.rglob("*") if path.is_file()]
    assert not [path.name for path in left if b"only-asked-of-one" in path.read_bytes()]


@pytest.mark.slow
def test_when_the_server_has_ended_nothing_on_its_disk_says_who_went_to_rest(asked_over_flower):
    """Whoever rests after a round took part in it. Twin: numbers and keys are there, by which devices are known again."""
    with sqlite3.connect(asked_over_flower / "devices.sqlite") as connection:
        rows = connection.execute("SELECT * FROM node")
        columns = [column for column, *_ in rows.description]
        nodes = [dict(zip(columns, row, strict=True)) for row in rows]
    of_each = {"node_id", "public_key", "registered_at"}
    assert len({tuple(str(node[name]) for name in columns if name not in of_each) for node in nodes}) == 1
    assert len({node["node_id"] for node in nodes}) == len({node["public_key"] for node in nodes}) == 2
