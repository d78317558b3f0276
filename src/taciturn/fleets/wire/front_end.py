"""A front end: it knows devices by their keys, and passes questions and answers.

It keeps no state itself. docs/protocol.md describes its requests. A token authorises transport and
nothing else: the messages of a round are signed by devices, and checked by their receivers.
"""

import asyncio
import base64
import json
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from taciturn.fleets.devices.transport import FAILED, LARGE, LOG, MOST_BYTES
from taciturn.fleets.secure_aggregation.identities import is_signed_by
from taciturn.fleets.wire.metrics import COUNTS
from taciturn.fleets.wire.store import CLOCKS_APART, Outcome, Question, Store, StoreGone

Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]
Headers = dict[bytes, bytes]
# The number of the device with this public key, or what is wrong with it.
NumberOf = Callable[[bytes], int | str]

# The most bytes of a request that is not an answer.
SMALL = 4096
# An answer has this long to arrive.
BODY_SECONDS = 120.0
# Anything else has this long.
HEAD_SECONDS = 10.0
# The most bytes of answers that are read at a time; others wait.
MOST_IN_FLIGHT = 2 * 2**30
# A response is sent in pieces of this number of bytes.
PIECE = 64 * 1024
CLOSE = [(b"connection", b"close")]
# Files never change: their name is their hash.
CACHE = (b"cache-control", b"public, max-age=86400, immutable")
# A device may wait this long for a question.
LONGEST_WAIT = 60.0
# Two identical lines in the log are this far apart.
QUIET_SECONDS = 10
# Of a device's own reasons only these are believed.
REASONS = {
    FAILED.encode(): FAILED,
    LARGE.encode(): LARGE,
}


class NoEntry(Exception):
    """Status and reason of a refusal."""


class Refusals:
    """A log of refusals, with one line for each reason at a time.

    A stranger may send a thousand requests a second, and must not fill a log.
    """

    def __init__(self) -> None:
        # When each reason was last written.
        self._written: dict[str, float] = {}
        self._kept_back: Counter[str] = Counter()

    def note(self, reason: str) -> None:
        COUNTS.add("taciturn_refused_total")
        now = time.monotonic()
        written_at = self._written.get(reason, -QUIET_SECONDS)
        if now - written_at < QUIET_SECONDS:
            self._kept_back[reason] += 1
            return
        self._written[reason] = now
        kept_back = self._kept_back.pop(reason, 0)
        more = f" ({kept_back} more before)" if kept_back else ""
        LOG.warning("refused: %s%s", reason, more)


def sign_in_statement(key: bytes, seconds: int, nonce: bytes) -> bytes:
    """Return what a device signs to sign in. Nothing else that it ever signs looks like this."""
    return b"taciturn fleet: session\0" + key + struct.pack(">Q", seconds) + nonce


class _SignIn(NamedTuple):
    key: bytes
    nonce: bytes
    # By the device's clock, since 1970.
    seconds: int
    # What was signed.
    statement: bytes
    signature: bytes


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A request whose body is still to be read, and the way back to its sender."""

    method: str
    path: str
    query: bytes
    headers: Headers
    receive: Receive
    send: Send
    # Tells the listener that the sender is not a stranger.
    mark_known: Callable[[], None]

    @property
    def token(self) -> str:
        authorization = self.headers.get(b"authorization", b"").decode("latin-1")
        scheme, _, token = authorization.partition(" ")
        return token if scheme == "Bearer" else ""

    @property
    def wait_seconds(self) -> float:
        """How long the sender wants to wait for a question."""
        if not self.query:
            return 0.0
        try:
            seconds = float(self.query.removeprefix(b"wait="))
        except ValueError:
            raise NoEntry(403, "garbage instead of a request") from None
        return min(max(0.0, seconds), LONGEST_WAIT)

    def check_body(self) -> None:
        """Refuse a body where none belongs, or one of unknown length that is not an answer."""
        if self.method == "PUT":
            return
        if b"transfer-encoding" in self.headers:
            raise NoEntry(403, "garbage instead of a request")
        has_body = self.headers.get(b"content-length", b"0") != b"0"
        if has_body and self.method != "POST":
            raise NoEntry(403, "garbage instead of a request")

    def length(self, default: int) -> int:
        """Return the length of the body, or the default where it is not named."""
        # The HTTP parser has checked that it is a number.
        return int(self.headers.get(b"content-length", default))

    async def read_body(self, limit: int, seconds: float) -> bytes:
        """Read the body, and refuse it as soon as it is too large."""
        if self.length(default=0) > limit:
            raise NoEntry(413, "more bytes than an answer may have")
        try:
            async with asyncio.timeout(seconds):
                return await self._read_parts(limit)
        except TimeoutError:
            raise NoEntry(408, "a request that arrives too slowly") from None

    async def _read_parts(self, limit: int) -> bytes:
        parts = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise NoEntry(400, "a request that is incomplete")
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > limit:
                raise NoEntry(413, "more bytes than an answer may have")
            if not message.get("more_body", False):
                return b"".join(parts)

    async def wait_until_gone(self) -> None:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return

    async def respond(
        self,
        status: int,
        body: bytes = b"",
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        COUNTS.add("taciturn_sent_bytes_total", len(body))
        all_headers = list(headers or ())
        if status != 204:
            length = str(len(body)).encode()
            all_headers.append((b"content-length", length))
        await self.send({"type": "http.response.start", "status": status, "headers": all_headers})
        await self._send_body(body)

    async def _send_body(self, body: bytes) -> None:
        """Send a body in pieces, so that no more is held than the peer has read."""
        for start in range(0, len(body), PIECE):
            piece = body[start : start + PIECE]
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.send({"type": "http.response.body", "body": b""})


class FrontEnd:
    """An ASGI application."""

    # The most that an answer may have.
    most_bytes = MOST_BYTES

    def __init__(self, store: Store, number_of: NumberOf, refusals: Refusals) -> None:
        self._store = store
        self._number_of = number_of
        self._refusals = refusals
        # Bytes of answers that are being read.
        self._in_flight = 0
        self._room = asyncio.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = _Request(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"],
            headers=dict(scope["headers"]),
            receive=receive,
            send=send,
            mark_known=scope.get("state", {}).get("mark_known", lambda: None),
        )
        try:
            request.check_body()
            await self._serve(request)
        except NoEntry as refused:
            status, reason = refused.args
            self._refusals.note(reason)
            await request.respond(status, f"Refused: {reason}.".encode(), CLOSE)
        except StoreGone as gone:
            self._refusals.note(f"everybody, for now: {gone}")
            body = b"The server cannot be reached from here for a moment."
            await request.respond(503, body, CLOSE)
        # A stranger costs at most one line and one connection.
        except Exception as error:
            self._refusals.note(f"a request that was not understood ({type(error).__name__})")
            LOG.debug("a request that was not understood", exc_info=True)
            await request.respond(500, b"", CLOSE)

    async def _serve(self, request: _Request) -> None:
        match request.method, request.path.split("/")[1:]:
            case "POST", ["v1", "session"]:
                body = await request.read_body(SMALL, HEAD_SECONDS)
                token = await self._sign_in(body)
                request.mark_known()
                await request.respond(200, token.encode())
            case "DELETE", ["v1", "session"]:
                await self._store.sign_out(request.token)
                await request.respond(204)
            case "GET", ["v1", "question"]:
                number = await self._recognise(request)
                request.mark_known()
                await self._give_question(number, request)
            case "POST", ["v1", "alive"]:
                await self._recognise(request)
                await request.respond(204)
            case "PUT", ["v1", "answer", name]:
                number = await self._recognise(request)
                request.mark_known()
                await self._take_answer(number, name, request)
            case "GET", ["v1", "files", name]:
                await self._give_file(name, request)
            case _:
                raise NoEntry(403, "a request for something that no device needs")

    async def _sign_in(self, body: bytes) -> str:
        """Return a token for the device that signed this request."""
        try:
            request = _parse_sign_in(body)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error):
            raise NoEntry(403, "a device without a key") from None
        number = self._identify(request)
        token = secrets.token_urlsafe(32)
        nonce = request.key + request.nonce
        if len(request.nonce) != 16 or not await self._store.sign_in(token, number, nonce):
            raise NoEntry(403, "a sign-in that was already used")
        return token

    def _identify(self, request: _SignIn) -> int:
        """Return the number of the device, if it has just signed and is enrolled."""
        now = datetime.now(UTC).timestamp()
        if abs(now - request.seconds) > CLOCKS_APART:
            raise NoEntry(403, "a device whose clock is wrong")
        # Checked first: only the key's owner learns who is enrolled or dismissed.
        if not is_signed_by(request.key, request.statement, request.signature):
            raise NoEntry(403, "a device that does not have the key it names")
        number = self._number_of(request.key)
        if isinstance(number, str):
            raise NoEntry(403, number)
        return number

    async def _recognise(self, request: _Request) -> int:
        number = await self._store.recognise(request.token)
        if number is None:
            raise NoEntry(401, "a token that is unknown, or no longer valid")
        return number

    async def _give_question(self, number: int, request: _Request) -> None:
        question_wait = self._store.wait_for_question(number, request.wait_seconds)
        waiting = asyncio.ensure_future(question_wait)
        gone = asyncio.ensure_future(request.wait_until_gone())
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not waiting.done():
                waiting.cancel()
        if waiting.cancelled() or not waiting.done():
            return
        await self._respond_with(waiting.result(), request)

    async def _respond_with(self, question: Question | None, request: _Request) -> None:
        if question is None:
            await request.respond(204)
        else:
            await request.respond(200, question.content, _question_headers(question))

    async def _take_answer(self, number: int, name: str, request: _Request) -> None:
        # Before any of the answer is read.
        question = await self._store.wait_for_question(number, seconds=0)
        if question is None or question.name != name:
            await request.respond(410, headers=CLOSE)
            return
        body = await self._read_when_there_is_room(request)
        outcome = _outcome_of(request, body)
        is_taken = await self._store.take_answer(number, name, outcome)
        COUNTS.add("taciturn_received_bytes_total", len(body))
        await request.respond(204 if is_taken else 410)

    async def _read_when_there_is_room(self, request: _Request) -> bytes:
        size = request.length(default=self.most_bytes)
        if size > self.most_bytes:
            raise NoEntry(413, "more bytes than an answer may have")
        async with self._room:
            await self._room.wait_for(lambda: self._has_room_for(size))
            self._in_flight += size
        try:
            return await request.read_body(self.most_bytes, BODY_SECONDS)
        finally:
            async with self._room:
                self._in_flight -= size
                self._room.notify_all()

    def _has_room_for(self, size: int) -> bool:
        return self._in_flight == 0 or self._in_flight + size <= MOST_IN_FLIGHT

    async def _give_file(self, name: str, request: _Request) -> None:
        content = await self._store.read_file(name)
        number = await self._store.recognise(request.token)
        # A stranger does not keep its connection.
        connection_headers = CLOSE if number is None else []
        if content is None:
            await request.respond(404, b"", connection_headers)
        else:
            await request.respond(200, content, [CACHE, *connection_headers])


def _parse_sign_in(body: bytes) -> _SignIn:
    fields = json.loads(body)
    key = _decode(fields["key"])
    nonce = _decode(fields["nonce"])
    signature = _decode(fields["signature"])
    seconds = int(fields["time"])
    return _SignIn(
        key=key,
        nonce=nonce,
        seconds=seconds,
        statement=sign_in_statement(key, seconds, nonce),
        signature=signature,
    )


def _decode(field: str) -> bytes:
    return base64.b64decode(field, validate=True)


def _outcome_of(request: _Request, body: bytes) -> Outcome:
    """Return the answer that was sent, or the reason why there is none."""
    if b"failed" not in request.headers:
        return body
    return REASONS.get(request.headers[b"failed"], FAILED)


def _question_headers(question: Question) -> list[tuple[bytes, bytes]]:
    return [
        (b"question", question.name.encode()),
        (b"kind", question.kind.encode()),
        (b"shared", question.file_name.encode()),
        (b"seconds", f"{question.seconds:.3f}".encode()),
    ]
