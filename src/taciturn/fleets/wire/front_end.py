"""A front end: it knows devices by their keys, passes them their questions, and takes their
answers. It keeps no state itself.

docs/protocol.md describes its requests. A token authorises transport and nothing else: the messages
of a round are signed by devices, and checked by their receivers.
"""

import asyncio
import base64
import json
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from taciturn.fleets.devices.transport import FAILED, LARGE, LOG, MOST_BYTES
from taciturn.fleets.secure_aggregation.identities import is_signed_by
from taciturn.fleets.wire.metrics import COUNTS
from taciturn.fleets.wire.store import CLOCKS_APART, Store, StoreGone

Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]
Headers = dict[bytes, bytes]
# number of the device with this public key, or what is wrong with it
NumberOf = Callable[[bytes], int | str]

# bytes of a request that is not an answer
SMALL = 4096
# for an answer to arrive
BODY_SECONDS = 120.0
# for anything else
HEAD_SECONDS = 10.0
# bytes of answers that are read at a time; others wait
MOST_IN_FLIGHT = 2 * 2**30
# of a response
PIECE = 64 * 1024
CLOSE = [(b"connection", b"close")]
# for a question
LONGEST_WAIT = 60.0
# between two identical lines in the log
QUIET_SECONDS = 10
# a device's own reasons; only these are believed
REASONS = {
    FAILED.encode(): FAILED,
    LARGE.encode(): LARGE,
}


class NoEntry(Exception):
    """Status and reason of a refusal."""


class Refusals:
    """Log one line for each reason at a time: a stranger may send a thousand requests a second, and
    must not fill a log.
    """

    def __init__(self) -> None:
        # when last, by reason
        self._written: dict[str, float] = {}
        self._kept_back: Counter[str] = Counter()

    def note(self, reason: str) -> None:
        COUNTS.add("taciturn_refused_total")
        now = time.monotonic()
        if now - self._written.get(reason, -QUIET_SECONDS) < QUIET_SECONDS:
            self._kept_back[reason] += 1
            return
        more = self._kept_back.pop(reason, 0)
        self._written[reason] = now
        LOG.warning("refused: %s%s", reason, f" ({more} more before)" if more else "")


def sign_in_statement(key: bytes, seconds: int, nonce: bytes) -> bytes:
    """Return what a device signs to sign in. Nothing else that it ever signs looks like this."""
    return b"taciturn fleet: session\0" + key + struct.pack(">Q", seconds) + nonce


class FrontEnd:
    """An ASGI application."""

    # of an answer
    most_bytes = MOST_BYTES

    def __init__(self, store: Store, number_of: NumberOf, refusals: Refusals) -> None:
        self._store, self._number_of, self._refusals = store, number_of, refusals
        # bytes of answers that are being read
        self._in_flight = 0
        self._room = asyncio.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._serve(scope, dict(scope["headers"]), receive, send)
        except NoEntry as refused:
            status, reason = refused.args
            self._refusals.note(reason)
            await _respond(send, status, f"Refused: {reason}.".encode(), CLOSE)
        except StoreGone as gone:
            self._refusals.note(f"everybody, for now: {gone}")
            await _respond(
                send, 503, b"The server cannot be reached from here for a moment.", CLOSE
            )
        # a stranger costs at most one line and one connection
        except Exception as error:
            self._refusals.note(f"a request that was not understood ({type(error).__name__})")
            LOG.debug("a request that was not understood", exc_info=True)
            await _respond(send, 500, b"", CLOSE)

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        method, path, known = (
            scope["method"],
            scope["path"],
            scope.get("state", {}).get("known", lambda: None),
        )
        if method != "PUT" and (
            b"transfer-encoding" in headers
            or (method != "POST" and headers.get(b"content-length", b"0") != b"0")
        ):
            raise NoEntry(403, "garbage instead of a request")
        match method, path.split("/")[1:]:
            case "POST", ["v1", "session"]:
                token = await self._sign_in(await _body(headers, receive, SMALL, HEAD_SECONDS))
                known()
                await _respond(send, 200, token.encode())
            case "DELETE", ["v1", "session"]:
                await self._store.sign_out(_token(headers))
                await _respond(send, 204)
            case "GET", ["v1", "question"]:
                number = await self._who(headers)
                known()
                await self._question(number, _wait(scope["query_string"]), receive, send)
            case "POST", ["v1", "alive"]:
                await self._who(headers)
                await _respond(send, 204)
            case "PUT", ["v1", "answer", name]:
                number = await self._who(headers)
                known()
                await self._answer(number, name, headers, receive, send)
            case "GET", ["v1", "files", name]:
                content = await self._store.shared(name)
                stays = [] if await self._store.who(_token(headers)) is not None else CLOSE
                if content is None:
                    await _respond(send, 404, b"", stays)
                else:
                    await _respond(
                        send,
                        200,
                        content,
                        [(b"cache-control", b"public, max-age=86400, immutable"), *stays],
                    )
            case _:
                raise NoEntry(403, "a request for something that no device needs")

    async def _sign_in(self, body: bytes) -> str:
        try:
            given = json.loads(body)
            key, nonce, signature = (
                base64.b64decode(given[name], validate=True)
                for name in ("key", "nonce", "signature")
            )
            seconds = int(given["time"])
            statement = sign_in_statement(key, seconds, nonce)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error):
            raise NoEntry(403, "a device without a key") from None
        now = datetime.now(UTC).timestamp()
        if abs(now - seconds) > CLOCKS_APART:
            raise NoEntry(403, "a device whose clock is wrong")
        if not is_signed_by(
            key,
            statement,
            signature,
            # checked first: only the key's owner learns who is enrolled or dismissed
        ):
            raise NoEntry(403, "a device that does not have the key it names")
        number = self._number_of(key)
        if isinstance(number, str):
            raise NoEntry(403, number)
        token = secrets.token_urlsafe(32)
        if len(nonce) != 16 or not await self._store.sign_in(token, number, key + nonce):
            raise NoEntry(403, "a sign-in that was already used")
        return token

    async def _who(self, headers: Headers) -> int:
        number = await self._store.who(_token(headers))
        if number is None:
            raise NoEntry(401, "a token that is unknown, or no longer valid")
        return number

    async def _question(self, number: int, wait: float, receive: Receive, send: Send) -> None:
        waiting = asyncio.ensure_future(self._store.asked(number, wait))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not waiting.done():
                waiting.cancel()
        if waiting.cancelled() or not waiting.done():
            return
        if (asked := waiting.result()) is None:
            await _respond(send, 204)
            return
        about = {
            "question": asked.name,
            "kind": asked.kind,
            "shared": asked.shared,
            "seconds": f"{asked.seconds:.3f}",
        }
        await _respond(
            send,
            200,
            asked.content,
            [(name.encode(), value.encode()) for name, value in about.items()],
        )

    async def _answer(
        self, number: int, name: str, headers: Headers, receive: Receive, send: Send
    ) -> None:
        asked = await self._store.asked(number, 0)
        # before any of it is read
        if asked is None or asked.name != name:
            await _respond(send, 410, b"", CLOSE)
            return
        size = int(headers.get(b"content-length", self.most_bytes))
        if size > self.most_bytes:
            raise NoEntry(413, "more bytes than an answer may have")
        async with self._room:
            await self._room.wait_for(
                lambda: self._in_flight == 0 or self._in_flight + size <= MOST_IN_FLIGHT
            )
            self._in_flight += size
        try:
            body = await _body(headers, receive, self.most_bytes, BODY_SECONDS)
        finally:
            async with self._room:
                self._in_flight -= size
                self._room.notify_all()
        said = headers.get(b"failed")
        outcome: bytes | str = body if said is None else REASONS.get(said, FAILED)
        taken = await self._store.answer(number, name, outcome)
        COUNTS.add("taciturn_received_bytes_total", len(body))
        await _respond(send, 204 if taken else 410)


def _token(headers: Headers) -> str:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token if scheme == "Bearer" else ""


def _wait(query: bytes) -> float:
    try:
        return min(max(0.0, float(query.removeprefix(b"wait="))), LONGEST_WAIT) if query else 0.0
    except ValueError:
        raise NoEntry(403, "garbage instead of a request") from None


async def _body(headers: Headers, receive: Receive, limit: int, seconds: float) -> bytes:
    """Read a body, and refuse it as soon as it is too large."""
    if (
        int(headers.get(b"content-length", b"0")) > limit
        # a number: the HTTP parser has checked it
    ):
        raise NoEntry(413, "more bytes than an answer may have")
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise NoEntry(400, "a request that is incomplete")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    raise NoEntry(413, "more bytes than an answer may have")
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise NoEntry(408, "a request that arrives too slowly") from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _respond(
    send: Send, status: int, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    COUNTS.add("taciturn_sent_bytes_total", len(body))
    length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*(headers or ()), *length]}
    )
    # so that no more is held than the peer has read
    for start in range(0, len(body), PIECE):
        await send(
            {"type": "http.response.body", "body": body[start : start + PIECE], "more_body": True}
        )
    await send({"type": "http.response.body", "body": b""})
