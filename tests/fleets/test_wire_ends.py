"""The real wire on this machine, TLS and keys and all, with devices in threads: what it carries,
and what neither end begins with.
"""

import http.client
import json
import logging
import socket
import ssl
import threading
import time
from asyncio.sslproto import SSLProtocol
from base64 import b64encode
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from answers import handler
from enrolling import device_key, load_device_key, wire_server
from harness import until
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.wire import device as device_end
from taciturn.fleets.wire import listener, store
from taciturn.fleets.wire import server as server_end
from taciturn.fleets.wire.device import run_device
from taciturn.fleets.wire.front_end import FrontEnd, sign_in_statement
from taciturn.fleets.wire.memory_store import MemoryStore
from taciturn.fleets.wire.tls import make_authority

ALL = 30  # seconds that are enough for everybody


class Fleet:
    def __init__(self, authority, folder):
        self.certificate, self.server_folder, self.folder = (
            authority / "authority.crt",
            authority / "server",
            folder,
        )
        self.stops = {}

    @contextmanager
    def server(self, devices=0, **options):
        with wire_server(self.server_folder, "127.0.0.1", 0, **options) as server:
            for number in range(devices):
                server.enrol(device_key(self.folder / f"device-{number}"))
                self.start(server, f"device-{number}")
            until(lambda: len(server.link.devices()) == devices)
            yield server
            for stop, thread in self.stops.values():
                stop.set()
                thread.join(10)

    def start(self, server, name, certificate=None, insecure=False):
        device_key(self.folder / name)
        stop = threading.Event()
        arguments = (
            server.address,
            self.folder / name,
            handler,
            None if insecure else certificate or self.certificate,
            insecure,
            stop,
        )
        thread = threading.Thread(target=run_device, args=arguments, daemon=True)
        thread.start()
        self.stops[name] = stop, thread


@pytest.fixture
def fleet(authority, tmp_path, caplog):
    caplog.set_level(logging.INFO, "taciturn.fleet")
    return Fleet(authority, tmp_path)


def to_all(server, content):
    return dict.fromkeys(server.link.devices(), content)


def test_devices_answer_and_what_is_shared_comes_with_every_content(fleet):
    with fleet.server(devices=3) as server:
        assert server.link.devices() == [0, 1, 2]
        contents, shown = {number: bytes([number]) * 100_000 for number in range(3)}, []
        answers = server.link.ask(
            "reverse", contents, ALL, progress=lambda *seen: shown.append(seen), shared=b"model"
        )
        assert list(answers.items()) == [
            (number, b"ledom" + contents[number]) for number in range(3)
        ]
        assert shown[-1] == (3, 3)


def test_a_device_that_fails_is_missing_and_its_words_do_not_reach_the_server(fleet, caplog):
    with fleet.server(devices=2) as server:
        assert server.link.ask("fail", to_all(server, b""), ALL) == {}
        assert "“fail”: no answer from 2 of 2 devices (2 failed)" in caplog.text
        assert len(server.link.ask("reverse", to_all(server, b"on"), ALL)) == 2


def test_late_answers_are_never_seen_and_a_withdrawn_question_is_not_worked_at(fleet, caplog):
    with fleet.server(devices=2) as server:
        assert server.link.ask("sleep", {0: b"1", 1: b"0"}, 0.3) == {1: b"awake"}
        assert server.link.ask("sleep", {0: b"1", 1: b"0"}, 0.3) == {
            1: b"awake"
        }  # 0 is still at the first
        assert "1 too late" in caplog.text
        began = time.monotonic()
        assert server.link.ask("reverse", {0: b"abc"}, ALL) == {0: b"cba"}
        assert time.monotonic() - began < 1.5  # one sleep, and not two
    assert "the answer to “sleep” came too late" in caplog.text


def test_a_device_that_is_sent_away_leaves_and_comes_back_with_its_number(fleet):
    with fleet.server(devices=2) as server:
        assert server.link.ask("away", {0: b"1"}, ALL) == {0: b""}
        until(lambda: server.link.devices() == [1])
        until(lambda: server.link.devices() == [0, 1])
        assert server.link.ask("reverse", {0: b"abc"}, ALL) == {0: b"cba"}


def test_a_device_at_work_gives_signs_of_life(fleet, monkeypatch):
    monkeypatch.setattr(device_end, "ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(store, "ALIVE_SECONDS", 0.4)
    with fleet.server(devices=1) as server:
        assert server.link.ask("sleep", {0: b"1.5"}, ALL) == {0: b"awake"}


def test_one_that_gives_none_is_taken_for_gone(fleet, monkeypatch, caplog):
    """The twin."""
    monkeypatch.setattr(device_end, "ALIVE_SECONDS", 60)
    monkeypatch.setattr(store, "ALIVE_SECONDS", 0.4)
    monkeypatch.setattr("taciturn.fleets.wire.server.LOOK_SECONDS", 0.1)
    with fleet.server(devices=1) as server:
        assert server.link.ask("sleep", {0: b"1.5"}, ALL) == {}
        assert "1 not connected" in caplog.text


def test_an_answer_that_is_too_large_does_not_arrive(fleet, caplog, monkeypatch):
    monkeypatch.setattr(FrontEnd, "most_bytes", 100_000)
    with fleet.server(devices=2) as server:
        answers = server.link.ask("zeros", {0: b"100000", 1: b"900000"}, 3)
        assert answers == {0: bytes(100_000)}
        assert "refused: more bytes than an answer may have" in caplog.text
        until(lambda: len(server.link.ask("reverse", to_all(server, b"on"), 5)) == 2)


def test_a_server_that_is_started_again_finds_its_devices(fleet, monkeypatch):
    monkeypatch.setattr(device_end.DeviceEnd, "retry_seconds", (0.05, 0.1))
    keys, port = [device_key(fleet.folder / f"device-{number}") for number in range(2)], 0
    for attempt in range(3):
        with wire_server(fleet.server_folder, "127.0.0.1", port) as server:
            port = int(server.address.rpartition(":")[2])
            for key in keys:
                server.enrol(key)
            if attempt == 0:
                fleet.start(server, "device-0")
                fleet.start(server, "device-1")
            until(lambda server=server: server.link.devices() == [0, 1])
            assert len(server.link.ask("reverse", to_all(server, b"on"), ALL)) == 2
    for stop, thread in fleet.stops.values():
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


def test_nothing_of_what_devices_send_is_on_the_servers_disk(fleet):
    with fleet.server(devices=1) as server:
        secret = b"a secret of seventeen words " * 1000
        assert list(server.link.ask("reverse", to_all(server, secret), ALL).values()) == [
            secret[::-1]
        ]
        files = [file for file in fleet.server_folder.rglob("*") if file.is_file()]
        assert {file.name for file in files} == {"server.key", "server.crt", "lock"}
        assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_who_is_not_enrolled_or_trusts_another_authority_stays_outside(fleet, caplog, monkeypatch):
    monkeypatch.setattr(device_end.DeviceEnd, "retry_seconds", (0.05, 0.1))
    other = make_authority(fleet.folder / "other")
    with fleet.server() as server:
        fleet.start(server, "stranger")
        until(lambda: "refused: a device that is not enrolled" in caplog.text)
        until(
            lambda: (
                "refused this device (403): Refused: a device that is not enrolled" in caplog.text
            )
        )
        server.enrol(device_key(fleet.folder / "stranger"))
        until(lambda: server.link.devices() == [0])  # it goes on trying
        server.enrol(device_key(fleet.folder / "wary"))
        fleet.start(server, "wary", certificate=other)
        until(lambda: "not of the authority this device trusts" in caplog.text)
        until(
            lambda: "refused: a device that does not trust this server's certificate" in caplog.text
        )
        fleet.start(server, "plain", insecure=True)
        until(lambda: "refused: a connection without TLS" in caplog.text)
        assert server.link.devices() == [0]


def test_old_tls(fleet, caplog):
    with fleet.server() as server:
        context = ssl.create_default_context(cafile=str(fleet.certificate))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            connected(server) as plain,
            pytest.raises(ssl.SSLError, match=r"EOF|PROTOCOL|protocol"),
        ):
            context.wrap_socket(plain, server_hostname="localhost")
        until(lambda: "without TLS 1.3" in caplog.text)


def test_without_tls_on_this_machine_keys_are_needed_all_the_same(fleet, caplog):
    with fleet.server(insecure=True) as server:
        fleet.start(server, "plain", insecure=True)
        until(lambda: "refused: a device that is not enrolled" in caplog.text)
        server.enrol(device_key(fleet.folder / "plain"))
        until(lambda: server.link.devices() == [0])
        assert server.link.ask("reverse", {0: b"abc"}, ALL) == {0: b"cba"}


def connected(server):
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def is_closed(connection, seconds=10):
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_connections_that_say_nothing_are_few_and_short(fleet, monkeypatch, caplog):
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(listener, "MOST_STRANGERS_OF_ONE_ADDRESS", 5)
    with fleet.server(devices=1) as server:
        silent = [connected(server) for _ in range(20)]
        until(lambda: "refused: a connection, as too many are silent" in caplog.text)
        assert server.link.ask("reverse", {0: b"abc"}, ALL) == {0: b"cba"}  # who is known stays
        assert all(is_closed(one) for one in silent)
        until(lambda: "refused: a connection that ended before it was secure" in caplog.text)
        fresh = connected(server)  # there is room again
        assert not is_closed(fresh, 0.1)


@pytest.mark.parametrize(
    "sent", [b"GET /v1/que", b"POST /v1/session HTTP/1.1\r\nHost: x\r\nA: b\r\n"]
)
def test_half_a_request_is_not_waited_for(fleet, monkeypatch, caplog, sent):
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.3)
    with fleet.server(insecure=True) as server, connected(server) as half:
        half.sendall(sent)
        assert is_closed(half)
        assert "refused: a connection that sends no complete request" in caplog.text


def session(server, fleet):
    """A connection without TLS that has signed in, and its token."""
    key = load_device_key(fleet.folder / "device")
    public, nonce, now = key.public_key().public_bytes_raw(), bytes(16), int(time.time())
    fields = {
        "key": public,
        "nonce": nonce,
        "signature": key.sign(sign_in_statement(public, now, nonce)),
    }
    body = json.dumps(
        {"time": now, **{name: b64encode(value).decode() for name, value in fields.items()}}
    ).encode()
    connection = connected(server)
    connection.sendall(
        b"POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return connection, answer.read()


def test_the_second_request_of_a_connection_has_no_more_time_than_the_first(fleet, monkeypatch):
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.3)
    with fleet.server(insecure=True) as server:
        server.enrol(device_key(fleet.folder / "device"))
        slow, _ = session(server, fleet)
        time.sleep(0.5)  # between two requests a device may be silent
        slow.sendall(b"GET /v1/question HTTP/1.1\r\n")
        assert not is_closed(slow, 0.1)
        assert is_closed(slow)


def test_who_asks_for_a_file_and_does_not_read_it_holds_little_and_not_for_long(fleet, monkeypatch):
    monkeypatch.setattr(listener, "STUCK_SECONDS", 0.5)
    with fleet.server(insecure=True) as server:
        server.enrol(device_key(fleet.folder / "device"))
        lazy, token = session(server, fleet)
        server.link._store.post("q", "k", {}, 30, store.File("model", bytes(50_000_000)))
        lazy.sendall(
            b"GET /v1/files/model HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
            + token
            + b"\r\n\r\n"
        )
        time.sleep(0.2)
        (connection,) = server.front_end.listener._state.connections
        assert (
            connection.transport.get_write_buffer_size() < 1_000_000
        )  # the twin would hold all of it
        until(lambda: not server.front_end.listener._state.connections, 5)


def test_a_waiting_connection_holds_a_small_buffer_and_others_keep_theirs(
    fleet,
):
    with fleet.server(devices=1) as server:
        (connection,) = server.front_end.listener._state.connections
        assert len(connection.transport._ssl_protocol._ssl_buffer) == 32 * 1024
        assert SSLProtocol.max_size == 256 * 1024


def test_endless_headers_are_refused_midway(fleet):
    with fleet.server(insecure=True) as server, connected(server) as talker:
        sent = 0
        with pytest.raises(ConnectionError, match=r"reset|Broken pipe"):  # noqa: PT012
            talker.sendall(b"GET /v1/question HTTP/1.1\r\n")
            for number in range(200_000):
                sent += talker.send(b"header-%d: x\r\n" % number)
        assert sent < 2_000_000


def test_there_are_no_more_connections_than_are_allowed(fleet, monkeypatch, caplog):
    monkeypatch.setattr(listener, "MOST_OF_ONE_ADDRESS", 3)
    with fleet.server(devices=2) as server:
        extra = [connected(server) for _ in range(3)]
        until(lambda: "refused: a connection beyond the most that this server holds" in caplog.text)
        assert is_closed(extra[-1])
        assert len(server.link.ask("reverse", to_all(server, b"abc"), ALL)) == 2


def test_a_device_does_not_go_where_it_is_sent(fleet, monkeypatch, caplog):
    """A redirect, to plain HTTP or anywhere, is no answer (A12)."""
    monkeypatch.setattr(device_end.DeviceEnd, "retry_seconds", (0.05, 0.1))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    went = threading.Event()

    async def elsewhere(self, scope, receive, send):
        if scope["path"] == "/elsewhere":
            went.set()
        headers = [(b"location", b"/elsewhere"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr("taciturn.fleets.wire.front_end.FrontEnd.__call__", elsewhere)
    with fleet.server() as server:
        server.enrol(device_key(fleet.folder / "device"))
        fleet.start(server, "device")
        until(lambda: "refused this device (307)" in caplog.text)
        assert not went.is_set()


def test_a_file_that_is_another_than_its_name_says_is_not_used(fleet, caplog, monkeypatch):
    """Whoever keeps files for the server cannot put another in their place."""
    with fleet.server(devices=1) as server:

        async def another(self, name):
            return b"another model"

        monkeypatch.setattr(MemoryStore, "read_file", another)
        assert server.link.ask("reverse", {0: b"abc"}, 1.0, shared=b"model") == {}
        assert "its file is gone" in caplog.text


class LyingServer:
    """Says what it is told to, whatever it is asked, and counts."""

    def __init__(self, *responses):
        self.listener, self.asked, self._responses = (
            socket.create_server(("127.0.0.1", 0)),
            [],
            list(responses),
        )
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                while request := connection.recv(100_000):
                    self.asked.append(request.split(b" HTTP")[0].decode())
                    response = (
                        self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
                    )
                    connection.sendall(response)
                    if b"Connection: close" in response:
                        break


def response(status, body=b"", *headers, length=None):
    lines = [
        f"HTTP/1.1 {status} x",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def against(tmp_path, *responses):
    lying, stop, handled = LyingServer(*responses), threading.Event(), []
    device_key(tmp_path)

    def remember(kind, content):
        handled.append(content)
        return content

    thread = threading.Thread(
        target=run_device, args=(lying.address, tmp_path, remember, None, True, stop), daemon=True
    )
    thread.start()
    try:
        yield lying, handled, thread
    finally:
        stop.set()
        thread.join(10)
        lying.listener.close()


def test_half_a_question_is_not_taken_for_one(tmp_path):
    """A connection that broke in the middle of it; the twin is whole."""
    asked = ("question: q", "kind: k")
    cut_off = response(200, b"half", *asked, "Connection: close", length=1000)
    with against(
        tmp_path, response(200, b"token"), cut_off, response(200, b"whole", *asked), response(204)
    ) as (lying, handled, _):
        until(lambda: "PUT /v1/answer/q" in lying.asked)
        assert handled == [b"whole"]


@pytest.mark.parametrize(
    "said",
    [
        response(401),
        response(404),
        response(204),
        response(200, b"x", "question: q", "kind: k", "shared: abc"),
    ],
)
def test_a_device_does_not_spin_whatever_a_server_says(tmp_path, said):
    with against(tmp_path, response(200, b"token"), said) as (lying, _, thread):
        time.sleep(1.2)
        assert len(lying.asked) < 15
        assert thread.is_alive()


@pytest.mark.parametrize("token", [b"\xff", b"a\r\nX: y", "€".encode(), b"", b"x" * 1000])
def test_no_token_ends_a_device(tmp_path, token, caplog):
    with against(tmp_path, response(200, token)) as (_, _, thread):
        until(lambda: "the server's answer is garbage" in caplog.text)
        assert thread.is_alive()


def test_a_device_that_is_stopped_at_work_still_sends_its_answer(fleet):
    with fleet.server(devices=1) as server:
        threading.Timer(0.3, fleet.stops["device-0"][0].set).start()
        assert server.link.ask("sleep", {0: b"1"}, ALL) == {0: b"awake"}
        fleet.stops["device-0"][1].join(5)
        assert server.link.devices() == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "fleet.example"])
def test_without_tls_a_server_listens_on_this_machine_alone(tmp_path, host):
    with (
        pytest.raises(LinkError, match="this machine only"),
        wire_server(tmp_path, host, 0, insecure=True),
    ):
        pass


def test_without_a_certificate_there_is_no_server(tmp_path):
    with pytest.raises(LinkError, match="no certificate"), wire_server(tmp_path, "127.0.0.1", 0):
        pass


def test_a_port_in_use_or_out_of_range_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(server_end, "FREE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(LinkError, match=rf"cannot listen on 127\.0\.0\.1:{port}"),
            wire_server(tmp_path, "127.0.0.1", port, insecure=True),
        ):
            pass
    with (
        pytest.raises(LinkError, match="out of range"),
        wire_server(tmp_path, "localhost", 2**17, insecure=True),
    ):
        pass


def test_of_two_servers_in_one_folder_the_second_is_refused(tmp_path):
    with (
        wire_server(tmp_path, "localhost", 0, insecure=True),
        pytest.raises(LinkError, match="another server is using"),
        wire_server(tmp_path, "localhost", 0, insecure=True),
    ):
        pass
    with wire_server(tmp_path, "localhost", 0, insecure=True):
        pass  # the first has ended


@pytest.mark.parametrize(
    "server", ["fleet.example:8443", "127.0.0.1.example:8443", "10.0.0.1:80", "nonsense"]
)
def test_without_tls_a_device_talks_to_this_machine_alone(tmp_path, server):
    device_key(tmp_path)
    with pytest.raises(LinkError, match="this machine only"):
        run_device(server, tmp_path, lambda kind, content: b"", None, insecure=True)


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [(None, "needs the certificate"), (Path("/nowhere"), "cannot be read")],
)
def test_a_device_trusts_nobody_by_default(tmp_path, certificate, reason):
    device_key(tmp_path)
    with pytest.raises(LinkError, match=reason):
        run_device("localhost:1", tmp_path, lambda kind, content: b"", certificate)


def test_a_device_needs_a_key(tmp_path):
    with pytest.raises(LinkError, match=r"device.key is missing"):
        run_device(
            "localhost:1",
            tmp_path,
            lambda kind, content: b"",
            make_authority(tmp_path / "authority"),
        )
