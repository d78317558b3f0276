"""Many devices in one process are real ones to a server: they sign in, train, and their sums come
out.
"""

import time

import fleet_load
import pytest
from fleet_load import Load, LoadDevice, new_load, open_load, run_devices

from enrolling import device_key, load_device_key, wire_server
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.wire import device, listener, store
from taciturn.fleets.wire import server as server_module
from taciturn.fleets.wire.device import make_device_context
from taciturn.fleets.wire.memory_store import MemoryStore
from taciturn.fleets.wire.tls import certify_server, make_authority


def failing(kind, content):
    if kind == "fail":
        raise ValueError("what the user typed")
    if kind == "sleep":
        time.sleep(1.5)
        return b"awake"
    return content[::-1]


@pytest.fixture
def asked(tmp_path):
    """Ask three devices of a load, and get the answers and what the load came to."""
    certificate = make_authority(tmp_path / "authority")
    certify_server(tmp_path / "authority", tmp_path / "server", ["127.0.0.1"])

    def ask(*questions, shared=b"", seconds=20):
        with wire_server(tmp_path / "server", "127.0.0.1", 0) as server:
            for number in range(3):
                server.enrol(device_key(tmp_path / f"device-{number}"))
            keys = [load_device_key(tmp_path / f"device-{number}") for number in range(3)]
            load, trusted = Load(), make_device_context("", certificate)
            devices = [
                LoadDevice(
                    server=server.address, key=key, handler=failing, context=trusted, load=load
                )
                for key in keys
            ]
            with run_devices(devices):
                until(lambda: len(load.connected) == 3)
                contents = dict.fromkeys(server.link.devices(), b"abc")
                answers = [
                    server.link.ask(kind, contents, seconds, shared=shared) for kind in questions
                ]
                time.sleep(0.2)  # until devices know that they were heard
                load.look()
            return answers, load

    return ask


def until(so):
    deadline = time.monotonic() + 20
    while not so() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert so()


def test_devices_of_a_load_answer_and_are_counted(asked):
    answers, load = asked("first", "unmask", "fail", shared=b"model")
    assert answers == [dict.fromkeys(range(3), b"ledomcba")] * 2 + [{}]
    assert dict(load.answered) == {"first": 3, "unmask": 3}
    assert len(load.rounds) == 1
    assert load.most_connected == 3
    assert dict(load.failures) == {"a device that could not answer “fail”": 3}
    assert 0 < load.quantile(0.5) <= load.quantile(0.99) < 20


@pytest.mark.slow
def test_a_device_of_a_load_that_works_for_long_is_not_taken_for_gone(asked, monkeypatch):
    """Though the server has closed its connection meanwhile. The twin gives no signs of life."""
    monkeypatch.setattr(store, "ALIVE_SECONDS", 0.6)
    monkeypatch.setattr(server_module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(listener, "IDLE_SECONDS", 1)
    monkeypatch.setattr(device, "ALIVE_SECONDS", 0.2)
    answers, load = asked("sleep")
    assert answers == [dict.fromkeys(range(3), b"awake")]
    assert not load.failures
    monkeypatch.setattr(device, "ALIVE_SECONDS", 60)
    assert asked("sleep")[0] == [{}]


def test_a_load_uses_no_file_that_is_another_than_its_name_says(asked, monkeypatch):
    async def another(self, name):
        return b"another model"

    monkeypatch.setattr(MemoryStore, "read_file", another)
    answers, load = asked("first", shared=b"model", seconds=1)
    assert answers == [{}]
    assert not load.answered


def test_a_load_of_another_size_is_refused(tmp_path):
    new_load(tmp_path / "load", 6, 1, 30.0, ())
    with pytest.raises(LinkError, match="is of 6 devices"):
        open_load(tmp_path / "load", 5, ["127.0.0.1:1"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["2"], "count must be at least 3, not 2"),
        (["5", "--server", "localhost"], "--server must be host:port, for example"),
        (["5", "--rounds", "0"], "--rounds must be at least 1, not 0"),
        (["5", "--seconds", "nan"], "--seconds must be at least 1, not nan"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        fleet_load.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_folder_that_is_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    assert fleet_load.main(["5", "--out", str(tmp_path / "mine")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.slow
def test_the_program_trains_over_a_server_of_its_own(tmp_path, capsys):
    out = tmp_path / "load"
    assert fleet_load.main(["12", "--out", str(out), "--rounds", "2", "--seconds", "200"]) == 0
    assert "rounds done" in capsys.readouterr().out
    ledger = (out / "server" / "population" / "ledger.jsonl").read_text()
    assert ledger.count('"charge"') == 2
    nobody_there = ["12", "--out", str(out), "--server", "127.0.0.1:1", "--seconds", "2"]
    assert fleet_load.main(nobody_there) == 1  # it ends all the same
    assert "Only 0 of 3 rounds were done within 2 seconds" in capsys.readouterr().out
