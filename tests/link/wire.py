"""A fleet on this machine for a test: its authority, its server's certificate, and devices in
processes of their own.
"""

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from enrolling import device_key, wire_server
from taciturn.fleets.wire.tls import certify_server, make_authority

HERE = Path(__file__).parent
PATIENCE = 60  # seconds for what takes one or two, on a machine with other things to do


def until(condition, what, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.05)


class Device:
    def __init__(self, fleet, name, address, certificate=None, insecure=False):
        self.folder = fleet.folder / name
        self.public_key = device_key(self.folder)
        self._log = self.folder / "log"
        self._arguments = [address, str(self.folder), str(certificate or fleet.certificate)]
        self._arguments += ["--insecure"] if insecure else []
        self.start()

    def start(self):
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "device_process.py"), *self._arguments],
                stdout=log,
                stderr=log,
            )

    def log(self):
        return self._log.read_text()

    def end(self):
        self.process.kill()
        self.process.wait(10)


class Fleet:
    def __init__(self, folder):
        self.folder = folder
        self.certificate = make_authority(folder / "authority")
        certify_server(folder / "authority", folder / "server", ["localhost", "127.0.0.1"])
        self._devices = []

    @contextmanager
    def server(self, devices=0, **options):
        """A server in this process with so many enrolled and connected devices."""
        with wire_server(self.folder / "server", "127.0.0.1", 0, **options) as server:
            members = [self.device(f"device {number}", server.address) for number in range(devices)]
            for member in members:
                server.enrol(member.public_key)
            until(lambda: len(server.link.devices()) >= devices, "that all devices connect")
            yield server, members

    def device(self, name, address, **options):
        self._devices.append(Device(self, name, address, **options))
        return self._devices[-1]

    def end(self):
        for device in self._devices:
            device.end()
