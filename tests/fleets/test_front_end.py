"""A front end, asked directly: what it passes, what it refuses, and that it reads no more than it
must.
"""

import asyncio
import base64
import json
import os
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from enrolling import known
from taciturn.fleets.wire.front_end import FrontEnd, Refusals, sign_in_statement
from taciturn.fleets.wire.memory_store import MemoryStore
from taciturn.fleets.wire.store import File

ALICE, BOB, DAVE, STRANGER = (Ed25519PrivateKey.generate() for _ in range(4))
NUMBERS = {ALICE.public_key().public_bytes_raw(): 1, BOB.public_key().public_bytes_raw(): 2}


class Wire:
    def __init__(self, most_bytes=10_000):
        self.store, self.read = MemoryStore(), 0
        self.app = FrontEnd(self.store, known(NUMBERS), Refusals())
        self.app.most_bytes = most_bytes

    def ask(self, method, path, body=(b"",), hangs_up=False, **headers):
        """Status, headers and body of the response; None where there was none."""
        parts, sent = list(body), []
        path, _, query = path.partition("?")
        pairs = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": pairs,
        }

        async def receive():
            if not parts:
                if not hangs_up:
                    await asyncio.sleep(60)
                return {"type": "http.disconnect"}
            self.read += 1
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message):
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        body = b"".join(message["body"] for message in sent[1:])
        return (sent[0]["status"], dict(sent[0]["headers"]), body) if sent else None

    def sign_in(self, key=ALICE, **other):
        status, _, body = self.ask("POST", "/v1/session", [statement(key, **other)])
        return body.decode() if status == 200 else (status, body.decode())


def statement(device, at=None, by=None, nonce=None, **changed):
    public, nonce, at = (
        device.public_key().public_bytes_raw(),
        nonce or os.urandom(16),
        int(at or time.time()),
    )
    signature = (by or device).sign(sign_in_statement(public, at, nonce))
    encoded = {"key": public, "nonce": nonce, "signature": signature}
    content = {
        "time": at,
        **{name: base64.b64encode(value).decode() for name, value in encoded.items()},
        **changed,
    }
    return json.dumps(content).encode()


@pytest.fixture
def wire():
    return Wire()


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def test_who_is_enrolled_is_told_to_nobody_who_has_not_the_key(wire):
    """Requests are no secret, and with one anybody could ask. Twin: with the key each gets its own
    answer.
    """
    answers = {key: wire.sign_in(key, by=STRANGER) for key in (ALICE, DAVE)}
    assert len(set(answers.values())) == 1
    assert "not enrolled" in wire.sign_in(DAVE)[1]
    assert wire.sign_in(ALICE)[0] != 403


def test_a_device_signs_in_is_asked_and_answers(wire):
    token = wire.sign_in()
    assert wire.ask("GET", "/v1/question", **bearer(token))[0] == 204
    wire.store.post("q", "reverse", {1: b"abc"}, 30)
    status, headers, body = wire.ask("GET", "/v1/question?wait=5", **bearer(token))
    assert (status, body, headers[b"question"], headers[b"kind"]) == (200, b"abc", b"q", b"reverse")
    assert 0 < float(headers[b"seconds"]) <= 30
    assert wire.ask("PUT", "/v1/answer/q", [b"c", b"ba"], **bearer(token))[0] == 204
    assert wire.store.collect("q", 0) == [(1, b"cba")]
    assert wire.ask("PUT", "/v1/answer/q", [b"again"], **bearer(token))[0] == 410
    assert wire.ask("DELETE", "/v1/session", **bearer(token))[0] == 204
    assert wire.ask("GET", "/v1/question", **bearer(token))[0] == 401


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda: statement(STRANGER), "a device that is not enrolled"),
        (lambda: statement(ALICE, by=STRANGER), "a device that does not have the key it names"),
        (lambda: statement(ALICE, by=BOB), "a device that does not have the key it names"),
        (lambda: statement(ALICE, at=time.time() - 3600), "a device whose clock is wrong"),
        (lambda: statement(ALICE, at=time.time() + 3600), "a device whose clock is wrong"),
        (lambda: statement(ALICE, key="§"), "a device without a key"),
        (lambda: statement(ALICE, time=-1), "a device without a key"),
        (lambda: b"{}", "a device without a key"),
        (lambda: b"\xff", "a device without a key"),
        (lambda: b"[]", "a device without a key"),
        (lambda: b"[" * 4000, "a device without a key"),
        (
            lambda: statement(ALICE).replace(b'"time": ', b'"time": 1e999, "then": '),
            "a device without a key",
        ),
    ],
)
def test_strangers_are_refused_and_told_why(wire, body, reason, caplog):
    status, _, said = wire.ask("POST", "/v1/session", [body()])
    assert (status, said.decode()) == (403, f"Refused: {reason}.")
    assert f"refused: {reason}" in caplog.text
    assert wire.store.devices_present() == []


def test_a_sign_in_works_once(wire):
    """The twin is the first: whoever saw it on its way could send it again."""
    seen = statement(ALICE)
    assert wire.ask("POST", "/v1/session", [seen])[0] == 200
    assert (
        wire.ask("POST", "/v1/session", [seen])[2] == b"Refused: a sign-in that was already used."
    )
    assert isinstance(wire.sign_in(nonce=b"short"), tuple)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/question"), ("POST", "/v1/alive"), ("PUT", "/v1/answer/q")]
)
def test_without_a_token_there_is_nothing_and_nothing_is_read(wire, method, path):
    for headers in ({}, bearer(""), bearer("guess"), {"authorization": "Basic guess"}):
        assert wire.ask(method, path, [b"x" * 5000], **headers)[0] == 401
    assert wire.read == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("POST", "/v1/question"),
        ("GET", "/v1/session"),
        ("GET", "/v1/answer/q"),
        ("PUT", "/v1/answer/q/r"),
        ("GET", "/docs"),
        ("GET", "/V1/question"),
        ("GET", "/v1/files/../session"),
        ("POST", "/v1/session/"),
    ],
)
def test_what_devices_do_not_need_is_refused(wire, method, path, caplog):
    assert wire.ask(method, path)[0] == 403
    assert "refused: a request for something that no device needs" in caplog.text


def test_no_device_answers_for_another(wire):
    wire.sign_in(ALICE)
    mallory = wire.sign_in(BOB)
    wire.store.post("q", "k", {1: b"for alice"}, 30)
    assert wire.ask("GET", "/v1/question", **bearer(mallory))[0] == 204
    assert wire.ask("PUT", "/v1/answer/q", [b"what alice never said"], **bearer(mallory))[0] == 410
    assert wire.store.collect("q", 0) == []


def test_an_answer_to_nothing_is_not_read(wire):
    token = wire.sign_in()
    wire.read = 0
    assert wire.ask("PUT", "/v1/answer/nothing", [b"x" * 9_000], **bearer(token))[0] == 410
    assert wire.read == 0


def test_answers_wait_until_there_is_room_for_them(wire, monkeypatch):
    monkeypatch.setattr("taciturn.fleets.wire.front_end.MOST_IN_FLIGHT", 15_000)
    token, other = wire.sign_in(ALICE), wire.sign_in(BOB)
    wire.store.post("q", "k", {1: b"", 2: b""}, 30)
    reading, most = 0, 0

    async def put(token):
        nonlocal reading, most
        parts = [b"x" * 4_000, b"x" * 4_000]
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-length", b"8000")]
        scope = {
            "type": "http",
            "method": "PUT",
            "path": "/v1/answer/q",
            "query_string": b"",
            "headers": headers,
        }

        async def receive():
            nonlocal reading, most
            reading += len(parts) == 2
            most = max(most, reading)
            await asyncio.sleep(0.02)
            part = parts.pop(0)
            reading -= not parts
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message):
            pass

        await wire.app(scope, receive, send)

    async def both():
        await asyncio.gather(put(token), put(other))

    asyncio.run(both())
    assert most == 1
    assert sorted(number for number, _ in wire.store.collect("q", 0)) == [1, 2]


def test_what_nobody_thought_of_is_one_line_and_one_connection(wire, monkeypatch, caplog):
    async def broken(number):
        raise ZeroDivisionError

    monkeypatch.setattr(wire.store, "recognise", broken)
    for _ in range(3):
        status, headers, _ = wire.ask("GET", "/v1/question", **bearer("x"))
        assert (status, headers[b"connection"]) == (500, b"close")
    assert caplog.text.count("a request that was not understood (ZeroDivisionError)") == 1


@pytest.mark.parametrize("headers", [{"transfer_encoding": "chunked"}, {"content_length": "5"}])
def test_a_request_that_needs_no_body_has_none(wire, headers):
    assert wire.ask("GET", "/v1/question", [b"x"] * 50, **headers)[0] == 403
    assert wire.read == 0


@pytest.mark.parametrize("parts", [[b"x" * 6_000, b"x" * 6_000], [b"x" * 10_001]])
def test_a_large_answer_is_refused_midway(wire, parts, caplog):
    token = wire.sign_in()
    wire.store.post("q", "k", {1: b""}, 30)
    assert wire.ask("PUT", "/v1/answer/q", parts, **bearer(token))[0] == 413
    assert wire.ask("PUT", "/v1/answer/q", [b""], content_length="10001", **bearer(token))[0] == 413
    assert wire.store.collect("q", 0) == []
    assert "refused: more bytes than an answer may have" in caplog.text


def test_a_sign_in_that_is_too_long_is_not_read(wire):
    wire.ask("POST", "/v1/session", [b"x" * 3000] * 100)
    assert wire.read == 2


def test_a_failure_comes_without_words_of_the_devices(wire):
    token = wire.sign_in()
    for name, said, kept in (
        ("a", "failed", "failed"),
        ("b", "too large", "too large"),
        ("c", "what the user typed", "failed"),
    ):
        wire.store.post(name, "k", {1: b""}, 30)
        assert (
            wire.ask("PUT", f"/v1/answer/{name}", [b"ignored"], failed=said, **bearer(token))[0]
            == 204
        )
        assert wire.store.collect(name, 0) == [(1, kept)]


def test_a_device_that_hangs_up_takes_no_question_with_it(wire):
    token = wire.sign_in()
    assert wire.ask("GET", "/v1/question?wait=20", hangs_up=True, **bearer(token)) is None
    wire.store.post("q", "k", {1: b"abc"}, 30)
    assert wire.ask("GET", "/v1/question?wait=20", **bearer(token))[2] == b"abc"


def test_waiting_has_a_limit_and_is_a_number(wire, monkeypatch):
    monkeypatch.setattr("taciturn.fleets.wire.front_end.LONGEST_WAIT", 0.05)
    token = wire.sign_in()
    assert wire.ask("GET", "/v1/question?wait=1e9", **bearer(token))[0] == 204
    assert wire.ask("GET", "/v1/question?wait=-1", **bearer(token))[0] == 204
    assert wire.ask("GET", "/v1/question?wait=long", **bearer(token))[0] == 403


def test_a_file_is_for_anybody_and_may_be_kept(wire):
    wire.store.post("q", "k", {}, 30, File("abc", b"a model"))
    status, headers, body = wire.ask("GET", "/v1/files/abc")
    assert (status, body) == (200, b"a model")
    assert b"immutable" in headers[b"cache-control"]
    assert (
        headers[b"connection"] == b"close"
    )  # a stranger holds no connection; the twin is a device
    assert b"connection" not in wire.ask("GET", "/v1/files/abc", **bearer(wire.sign_in()))[1]
    assert wire.ask("GET", "/v1/files/other")[0] == 404


def test_a_body_that_drips_is_given_up(wire, monkeypatch):
    monkeypatch.setattr("taciturn.fleets.wire.front_end.HEAD_SECONDS", 0.05)
    status, _, said = wire.ask("POST", "/v1/session", [])
    assert (status, said) == (408, b"Refused: a request that arrives too slowly.")


def test_a_thousand_knocks_are_not_a_thousand_lines(wire, caplog):
    for _ in range(50):
        wire.ask("GET", "/nothing")
    assert caplog.text.count("refused:") == 1
