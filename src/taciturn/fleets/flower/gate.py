"""The only door from outside: what a device needs passes, everything else is refused, and the log says why.

Flower serves devices, its command line and its server programs on one port, and the latter two need no credential: whoever reaches the
port may enrol devices or hand in programs. It also reads whatever it is sent before it asks by whom, and believes a device that answers in
another's name. So nothing gets to it from outside that has not passed here.
"""

import asyncio
import ssl
import time
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from google.protobuf.message import DecodeError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taciturn.fleets.devices.transport import LOG
from taciturn.fleets.flower.authority import SERVER_CERTIFICATE, SERVER_KEY
from taciturn.fleets.flower.envelope import CHUNK, INLINE, SMALL_REQUEST, most_objects
from taciturn.fleets.flower.news import News

PULL_MESSAGES = "/v1/fleet/pull-messages"
PUSH_MESSAGES = "/v1/fleet/push-messages"
MOST_BODY = {  # of all that is under /v1/fleet, what our devices use; they neither enrol themselves nor ask for programs to run
    "/v1/fleet/activate-node": SMALL_REQUEST,
    "/v1/fleet/deactivate-node": SMALL_REQUEST,
    "/v1/fleet/send-node-heartbeat": SMALL_REQUEST,
    PULL_MESSAGES: SMALL_REQUEST,
    "/v1/fleet/pull-object": SMALL_REQUEST,
    PUSH_MESSAGES: SMALL_REQUEST,
    "/v1/fleet/push-object": CHUNK + INLINE,
}
BODY_SECONDS = 120  # for one request to arrive: a chunk of 4 MB at 300 kbit/s
QUIET_SECONDS = 10  # the same line is not written more often


class Refusals:
    """One line for each reason at a time: anybody may knock a thousand times a second, and no log should fill up with it."""

    def __init__(self) -> None:
        self._written: dict[str, float] = {}
        self._kept_back: dict[str, int] = {}

    def note(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._written.get(reason, -QUIET_SECONDS) < QUIET_SECONDS:
            self._kept_back[reason] = self._kept_back.get(reason, 0) + 1
            return
        more = self._kept_back.pop(reason, 0)
        self._written[reason] = now
        LOG.warning("refused: %s%s", reason, f" ({more} more before)" if more else "")


class Gate:
    """Passes to `app` what enrolled devices send. `number_of` knows them by their public keys (PEM)."""

    def __init__(self, app: ASGIApp, number_of: Callable[[bytes], int | None], news: News, most_bytes: int) -> None:
        self._app, self._number_of, self._news = app, number_of, news
        self._most_objects = most_objects(most_bytes)
        self._refusals = Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return None
        limit = MOST_BODY.get(scope["path"]) if scope["method"] == "POST" else None
        if limit is None:
            return await self._refuse(send, 403, "a request for something else than a device needs")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        number = await asyncio.to_thread(self._who, headers)
        if isinstance(number, str):
            return await self._refuse(send, 403, number)
        if int(headers.get("content-length", "0")) > limit:  # a number: the HTTP parser has seen to it
            return await self._refuse(send, 413, "more bytes than an answer may have")
        body = await _body(receive, limit)
        if body is None:
            return await self._refuse(send, 413, "more bytes than an answer may have, or too slow to arrive")
        reason = self._wrong(scope["path"], body, number)
        if reason:
            return await self._refuse(send, 403, reason)
        if scope["path"] == PULL_MESSAGES and not await self._news.wait(number, receive):
            return None
        return await self._app(scope, _again(body, receive), send)

    def _who(self, headers: dict[str, str]) -> int | str:
        """The number of the device that sent these headers, or why it has none: Flower checks the same, after it has read everything."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            signed_at = headers[TIMESTAMP_HEADER]
            age = (datetime.now(UTC) - datetime.fromisoformat(signed_at)).total_seconds()
        except (KeyError, ValueError, TypeError):
            return "a device without a key"
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            return "a device whose clock is wrong"
        number = self._number_of(key)
        if number is None:
            return "a device that is not enrolled"
        if not verify_signature(bytes_to_public_key(key), signed_at.encode(), signature):
            return "a device that has not the key it names"
        return number

    def _wrong(self, path: str, body: bytes, number: int) -> str | None:
        """What Flower does not notice: an answer in the name of another device, or one that is too long."""
        try:
            if path == PULL_MESSAGES and PullMessagesRequest.FromString(body).node.node_id != number:
                return "a request in the name of another device"
            if path != PUSH_MESSAGES:
                return None
            request = PushMessagesRequest.FromString(body)
        except DecodeError:
            return "garbage instead of a request"
        if any(message.metadata.src_node_id != number for message in request.messages_list):
            return "an answer in the name of another device"
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            return "garbage instead of an answer"
        if _size(request.message_object_trees[0]) > self._most_objects:
            return "more bytes than an answer may have"
        return None

    async def _refuse(self, send: Send, status: int, reason: str) -> None:
        self._refusals.note(reason)
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": f"Refused: {reason}.".encode()})


def tls(folder: Path) -> ssl.SSLContext:
    """TLS 1.3 alone: all who connect here are ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / SERVER_CERTIFICATE, folder / SERVER_KEY)
    refusals = Refusals()

    class Handshake(ssl.SSLObject):
        """Says when one fails; asyncio keeps it to itself."""

        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                refusals.note(_broken_handshake(error))
                raise

    context.sslobject_class = Handshake
    return context


def _broken_handshake(error: ssl.SSLError) -> str:
    reason = error.reason or "no reason given"
    if reason == "HTTP_REQUEST":
        return "a connection without TLS"
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason or "CERTIFICATE_UNKNOWN" in reason:
        return "a device that does not trust this server's certificate"
    return f"a connection that is no TLS 1.3 ({reason})"


async def _body(receive: Receive, limit: int) -> bytes | None:
    """All of it, or None as soon as it is too much."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    return None
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        return None


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, for whoever reads it next."""
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def once() -> Message:
        nonlocal message
        if message is None:
            return await receive()
        given, message = message, None
        return given

    return once


def _size(tree: ObjectTree) -> int:
    """Of a small request, so that there is no depth to fear."""
    return 1 + sum(_size(child) for child in tree.children)
