"""Servers of devices in these tests do not wait."""

import pytest

from taciturn.fleets.devices import fleet
from taciturn.fleets.wire.tls import certify_server, make_authority


class Clock:
    """Time passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    """By which a server of devices is patient: nobody who comes later would come for its
    waiting.
    """
    clock = Clock()
    monkeypatch.setattr(fleet, "time", clock)
    return clock


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("authority")
    make_authority(folder)
    certify_server(folder, folder / "server", ["localhost", "127.0.0.1"])
    return folder
