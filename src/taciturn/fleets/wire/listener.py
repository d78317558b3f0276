"""The only door from outside: uvicorn's HTTP over our own sockets, with limits on all that a
stranger can make us hold.

uvicorn with h11 was chosen for its bounded headers, which the faster httptools does not have (20 MB
of headers took 480 MB). uvicorn has no limit on connections that never finish a request, so
accepting and waiting is done here.
"""

import asyncio
import logging
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from taciturn.fleets.wire.front_end import FrontEnd, Refusals
from taciturn.fleets.wire.tls import SERVER_CERTIFICATE, SERVER_KEY

# asyncio gives each TLS connection a buffer of 256 KiB, which for ten thousand waiting devices
# would be 2.5 GB; a record has 16.
sslproto.SSLProtocol.max_size = 32 * 1024
# of a request without its body
HEAD_BYTES = 16 * 1024
# for it to arrive, and for a TLS handshake
HEAD_SECONDS = 10.0
# for which a reader may take nothing of what it requested
STUCK_SECONDS = 60.0
# for requests to notice that the server ends
END_SECONDS = 2.0
# between two requests on one connection
IDLE_SECONDS = 75
# many devices may share an address: a company's, a village's
MOST_CONNECTIONS, MOST_OF_ONE_ADDRESS = (
    20_000,
    12_000,
)
# connections that have not sent a complete request yet
MOST_STRANGERS, MOST_STRANGERS_OF_ONE_ADDRESS = (
    2_000,
    500,
)

QUIET = logging.getLogger("taciturn.fleet.http")
QUIET.setLevel(logging.ERROR)


class Door:
    """Accept connections and hand each to uvicorn's protocol, in one event loop."""

    def __init__(
        self,
        app: FrontEnd,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        refusals: Refusals,
    ) -> None:
        self._listener, self._context, self.refusals = listener, context, refusals
        quiet = {
            "proxy_headers": False,
            "access_log": False,
            "log_config": None,
            "server_header": False,
            "date_header": False,
        }
        limits = {"h11_max_incomplete_event_size": HEAD_BYTES, "timeout_keep_alive": IDLE_SECONDS}
        self._config = uvicorn.Config(app, lifespan="off", ws="none", **quiet, **limits)  # pyright: ignore
        self._config.load()
        self._state = ServerState()
        self._handshakes: set[asyncio.Task[None]] = set()
        # connections by address
        self.open: Counter[str] = Counter()
        # of them, those that have not sent a complete request yet
        self.strangers: Counter[str] = Counter()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            # no file descriptors left, for a moment
            except OSError as error:
                self.refusals.note(f"a connection, for lack of resources ({error.strerror})")
                await asyncio.sleep(0.1)
                continue
            host = str(address[0])
            if reason := self._too_many(host):
                self.refusals.note(reason)
                connection.close()
                continue
            self.open[host] += 1
            self.strangers[host] += 1
            task = loop.create_task(self._welcome(connection, host))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def close(self) -> None:
        for task in self._handshakes:
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()  # pyright: ignore
        if working := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            await asyncio.wait(working, timeout=END_SECONDS)

    def _too_many(self, host: str) -> str | None:
        if self.open[host] >= MOST_OF_ONE_ADDRESS or self.open.total() >= MOST_CONNECTIONS:
            return "a connection beyond the most that this server holds"
        if (
            self.strangers[host] >= MOST_STRANGERS_OF_ONE_ADDRESS
            or self.strangers.total() >= MOST_STRANGERS
        ):
            return "a connection, as too many are silent"
        return None

    async def _welcome(self, connection: socket.socket, host: str) -> None:
        loop, timeout = asyncio.get_running_loop(), HEAD_SECONDS if self._context else None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                lambda: _Connection(self, host, self._config, self._state),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=timeout,
            )
        # a handshake that failed
        except (OSError, TimeoutError) as error:
            self.refusals.note(_broken_handshake(error))
            connection.close()
            _less(self.strangers, host)
            _less(self.open, host)


class _Connection(H11Protocol):
    """uvicorn's connection, which also ends where a request does not come, or comes in drips."""

    def __init__(self, door: Door, host: str, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        # set by the front end, for a device with a token
        self.app_state = {"known": self._known}
        # it would warn about each request of a stranger
        self.logger = QUIET
        self._door, self._host, self._is_known = door, host, False
        # runs while a request's head is awaited
        self._head: asyncio.TimerHandle | None = None
        # runs while the peer reads nothing
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._head is None and (self.cycle is None or self.cycle.response_complete):
            # the next request has begun
            self._head = self.loop.call_later(HEAD_SECONDS, self._too_slow)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before and self._head is not None:
            self._head.cancel()
            self._head = None

    def pause_writing(self) -> None:
        # the peer does not read what it requested
        self._stuck = self.loop.call_later(STUCK_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._door.refusals.note("garbage instead of a request")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            # the response is already out
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._stuck):
            if timer is not None:
                timer.cancel()
        self._known()
        _less(self._door.open, self._host)
        super().connection_lost(exc)

    def _known(self) -> None:
        if not self._is_known:
            self._is_known = True
            _less(self._door.strangers, self._host)

    def _too_slow(self) -> None:
        self._head = None
        self._door.refusals.note("a connection that sends no complete request")
        self.transport.abort()


def tls(folder: Path) -> ssl.SSLContext:
    """Allow TLS 1.3 only: all who connect here are ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / SERVER_CERTIFICATE, folder / SERVER_KEY)
    return context


def _broken_handshake(error: Exception) -> str:
    if isinstance(error, TimeoutError) or not isinstance(error, ssl.SSLError):
        return "a connection that ended before it was secure"
    reason = error.reason or "no reason given"
    if reason == "HTTP_REQUEST":
        return "a connection without TLS"
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason or "CERTIFICATE_UNKNOWN" in reason:
        return "a device that does not trust this server's certificate"
    return f"a connection without TLS 1.3 ({reason})"


def _less(counter: Counter[str], host: str) -> None:
    counter[host] -= 1
    if counter[host] <= 0:
        del counter[host]
