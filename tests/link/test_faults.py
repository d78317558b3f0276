"""Everything is killed once, without warning, and the rest goes on."""

import subprocess
import sys
import threading
import time

import pytest
from wire import HERE, until

from enrolling import wire_server
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.wire.tls import certify_server

GONE_AFTER = 60  # seconds: for which a sign of life counts, and some
ALL = 30


def to_all(server, content):
    return dict.fromkeys(server.link.devices(), content)


def in_a_while(seconds, action):
    threading.Timer(seconds, action).start()


def test_a_device_is_killed_at_work(fleet, caplog):
    with fleet.server(devices=3) as (server, devices):
        numbers = server.link.devices()
        in_a_while(1, devices[0].process.kill)
        began = time.monotonic()
        answers = server.link.ask("sleep", to_all(server, b"2"), 8)
        assert 7 < time.monotonic() - began < 10
        assert len(answers) == 2
        assert "“sleep”: no answer from 1 of 3 devices (1 too late)" in caplog.text
        (gone,) = set(numbers) - set(answers)
        until(lambda: gone not in server.link.devices(), "that the server notices", GONE_AFTER)
        assert len(server.link.ask("reverse", to_all(server, b"on"), ALL)) == 2
        devices[0].process.wait()
        devices[0].start()
        until(lambda: server.link.devices() == numbers, "that it comes back under its number")
        assert len(server.link.ask("reverse", to_all(server, b"on"), ALL)) == 3


def test_a_device_is_killed_and_is_back_before_anybody_noticed(fleet):
    with fleet.server(devices=2) as (server, devices):
        numbers = server.link.devices()
        server.link.ask("reverse", to_all(server, b"first"), ALL)
        devices[0].process.kill()
        devices[0].process.wait()
        devices[0].start()
        until(
            lambda: devices[0].log().count("connected to the server") == 2,
            "that it connects again",
            10,
        )
        assert server.link.devices() == numbers
        assert len(server.link.ask("reverse", dict.fromkeys(numbers, b"second"), ALL)) == 2


def test_the_server_process_is_killed_again_and_again(fleet):
    with wire_server(fleet.folder / "server", "127.0.0.1", 0) as server:
        port = int(server.address.rpartition(":")[2])
    devices = [fleet.device(f"device {number}", f"127.0.0.1:{port}") for number in range(2)]
    seen = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, HERE / "server_process.py", fleet.folder / "server", str(port)]
            + [device.public_key.hex() for device in devices],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            timer = threading.Timer(90, process.kill)
            timer.start()
            for line in process.stdout:
                if len(line.split()) == 1 + len(devices):
                    seen.append(line)
                    break
            process.kill()
            timer.cancel()
    assert len(seen) == 3
    assert len(set(seen)) == 1  # the same numbers every time


def test_a_server_that_cannot_listen_says_so(fleet):
    with fleet.server() as (server, _):
        port = int(server.address.rpartition(":")[2])
        certify_server(fleet.folder / "authority", fleet.folder / "another", ["127.0.0.1"])
        with (
            pytest.raises(LinkError, match="cannot listen"),
            wire_server(fleet.folder / "another", "127.0.0.1", port),
        ):
            pass
        with (
            pytest.raises(LinkError, match="another server is using"),
            wire_server(fleet.folder / "server", "127.0.0.1", 0),
        ):
            pass
