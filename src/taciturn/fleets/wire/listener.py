"""The only door from outside: uvicorn's HTTP over our own sockets.

It has limits on all that a stranger can make us hold. uvicorn with h11 was chosen for its bounded
headers, which the faster httptools does not have (20 MB of headers took 480 MB). uvicorn has no
limit on connections that never finish a request, so accepting and waiting is done here.
"""

import asyncio
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from taciturn.fleets.wire.front_end import FrontEnd, Refusals
from taciturn.fleets.wire.tls import SERVER_CERTIFICATE, SERVER_KEY

# The most bytes of a request without its body.
HEAD_BYTES = 16 * 1024
# A request without its body has this long to arrive, and so has a TLS handshake.
HEAD_SECONDS = 10.0
# For this long a reader may take nothing of what it requested.
STUCK_SECONDS = 60.0
# Requests have this long to notice that the server ends.
END_SECONDS = 2.0
# A connection may be silent this long between two requests.
IDLE_SECONDS = 75
# Many devices may share an address: a company's, a village's.
MOST_CONNECTIONS = 20_000
MOST_OF_ONE_ADDRESS = 12_000
# Strangers are connections that have not sent a complete request yet.
MOST_STRANGERS = 2_000
MOST_STRANGERS_OF_ONE_ADDRESS = 500

# What OpenSSL reports where a device does not trust our certificate.
UNTRUSTED = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN")

QUIET = logging.getLogger("taciturn.fleet.http")
QUIET.setLevel(logging.ERROR)


class Listener:
    """Accept connections and hand each to uvicorn's protocol, in one event loop."""

    def __init__(
        self,
        *,
        app: FrontEnd,
        listening_socket: socket.socket,
        context: ssl.SSLContext | None,
        refusals: Refusals,
    ) -> None:
        """Without a context, connections have no TLS."""
        self._socket = listening_socket
        self._context = context
        self.refusals = refusals
        self._config = uvicorn.Config(
            app,  # pyright: ignore
            lifespan="off",
            ws="none",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=IDLE_SECONDS,
        )
        self._config.load()
        self._state = ServerState()
        self._handshakes: set[asyncio.Task[None]] = set()
        # Connections by address.
        self.open: Counter[str] = Counter()
        # Of them, those that have not sent a complete request yet.
        self.strangers: Counter[str] = Counter()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            # There are no file descriptors left, for a moment.
            except OSError as error:
                self.refusals.note(f"a connection, for lack of resources ({error.strerror})")
                await asyncio.sleep(0.1)
                continue
            host = str(address[0])
            reason = self._too_many(host)
            if reason:
                self.refusals.note(reason)
                connection.close()
                continue
            self._begin_handshake(connection, host)

    def _begin_handshake(self, connection: socket.socket, host: str) -> None:
        self.open[host] += 1
        self.strangers[host] += 1
        task = asyncio.create_task(self._welcome(connection, host))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def close(self) -> None:
        for task in self._handshakes:
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()  # pyright: ignore
        working = asyncio.all_tasks() - {asyncio.current_task()}
        if working:
            await asyncio.wait(working, timeout=END_SECONDS)

    def _too_many(self, host: str) -> str | None:
        """Say why there is no room for another connection from this address, if there is none."""
        if self.open[host] >= MOST_OF_ONE_ADDRESS or self.open.total() >= MOST_CONNECTIONS:
            return "a connection beyond the most that this server holds"
        if (
            self.strangers[host] >= MOST_STRANGERS_OF_ONE_ADDRESS
            or self.strangers.total() >= MOST_STRANGERS
        ):
            return "a connection, as too many are silent"
        return None

    async def _welcome(self, connection: socket.socket, host: str) -> None:
        protocol = _Connection(listener=self, host=host, config=self._config, state=self._state)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is None:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: protocol, connection)
            else:
                await _connect_with_tls(protocol, connection, self._context)
        # The handshake failed.
        except (OSError, TimeoutError) as error:
            self.refusals.note(_why_no_handshake(error))
            connection.close()
            _count_down(self.strangers, host)
            _count_down(self.open, host)


class _Connection(H11Protocol):
    """uvicorn's connection, which also ends where a request does not come, or comes in drips."""

    def __init__(
        self, *, listener: Listener, host: str, config: uvicorn.Config, state: ServerState
    ) -> None:
        super().__init__(config, state, {})
        # The front end calls it for a device with a token.
        self.app_state = {"mark_known": self._mark_known}
        # uvicorn's own logger would warn about each request of a stranger.
        self.logger = QUIET
        self._listener = listener
        self._host = host
        self._is_known = False
        # Runs while a request's head is awaited.
        self._head_timer: asyncio.TimerHandle | None = None
        # Runs while the peer reads nothing.
        self._stuck_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        is_between_requests = self.cycle is None or self.cycle.response_complete
        if self._head_timer is None and is_between_requests:
            # The next request has begun.
            self._start_head_timer()
        cycle_before = self.cycle
        super().data_received(data)
        has_head = self.cycle is not cycle_before
        if has_head and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_writing(self) -> None:
        # The peer does not read what it requested.
        self._stuck_timer = self.loop.call_later(STUCK_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._listener.refusals.note("garbage instead of a request")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            # The response is already out.
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._stuck_timer):
            if timer is not None:
                timer.cancel()
        self._mark_known()
        _count_down(self._listener.open, self._host)
        super().connection_lost(exc)

    def _mark_known(self) -> None:
        if not self._is_known:
            self._is_known = True
            _count_down(self._listener.strangers, self._host)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._end_slow_request)

    def _end_slow_request(self) -> None:
        self._head_timer = None
        self._listener.refusals.note("a connection that sends no complete request")
        self.transport.abort()


class _SmallTLS(SSLProtocol):
    """asyncio's TLS with a small buffer.

    asyncio gives each TLS connection a buffer of 256 KiB, which for ten thousand waiting devices
    would be 2.5 GB; a record has 16.
    """

    max_size = 32 * 1024


async def _connect_with_tls(
    protocol: _Connection, connection: socket.socket, context: ssl.SSLContext
) -> None:
    """Wait until the connection has shaken hands; then the protocol is connected.

    It does what `connect_accepted_socket` does when it is given a context: that would take
    asyncio's own `SSLProtocol`, whose buffer can only be changed for the whole process.
    """
    loop = asyncio.get_running_loop()
    handshake = loop.create_future()
    tls = _SmallTLS(
        loop=loop,
        app_protocol=protocol,
        sslcontext=context,
        waiter=handshake,
        server_side=True,
        ssl_handshake_timeout=HEAD_SECONDS,  # pyright: ignore[reportArgumentType]
    )
    transport, _ = await loop.connect_accepted_socket(lambda: tls, connection)
    try:
        await handshake
    except BaseException:
        transport.abort()
        raise


def load_server_context(folder: Path) -> ssl.SSLContext:
    """Allow TLS 1.3 only: all who connect here are ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / SERVER_CERTIFICATE, folder / SERVER_KEY)
    return context


def _why_no_handshake(error: Exception) -> str:
    if isinstance(error, TimeoutError) or not isinstance(error, ssl.SSLError):
        return "a connection that ended before it was secure"
    reason = error.reason or "no reason given"
    if reason == "HTTP_REQUEST":
        return "a connection without TLS"
    if any(word in reason for word in UNTRUSTED):
        return "a device that does not trust this server's certificate"
    return f"a connection without TLS 1.3 ({reason})"


def _count_down(counter: Counter[str], host: str) -> None:
    counter[host] -= 1
    if counter[host] <= 0:
        del counter[host]
