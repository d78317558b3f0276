"""A device's end of the wire: it asks the server for questions, passes them to a handler, and sends
the answers. It never listens.

It uses Python's own HTTP client, which follows no redirects and uses no proxies. While a handler
works, another thread tells the server that the device is alive.
"""

import base64
import hashlib
import http.client
import json
import os
import random
import re
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.fleets.devices.transport import (
    FAILED,
    LARGE,
    LOG,
    LOOPBACK,
    MOST_BYTES,
    ComeBackLater,
    Handler,
    LinkError,
    answer_of,
)
from taciturn.fleets.wire.front_end import sign_in_statement
from taciturn.fleets.wire.tls import DEVICE_KEY, load_key

# for a question, on an otherwise silent connection
WAIT_SECONDS = 55
# between two signs of life of a device at work
ALIVE_SECONDS = 30.0
# for anything else
REQUEST_SECONDS = 30.0
# for signing out
LEAVE_SECONDS = 3.0
# between two polls for a question, where the server does not wait for one
LEAST_SECONDS = 0.5
WORD = re.compile(r"[A-Za-z0-9_-]{1,128}")
# before a retry, so that a moment without a network loses nothing
AGAIN_SECONDS = 1.0
GONE_ERRORS = (OSError, http.client.HTTPException)


class RefusedByServer(Exception):
    """The server refuses this device, and says why, or sends garbage; or it does not know our
    token: it was restarted, or a day passed.
    """


# after which a device signs in again
LOST = (OSError, http.client.HTTPException, RefusedByServer)


def run_device(
    server: str,
    folder: Path,
    handler: Handler,
    root_certificate: Path | None,
    insecure: bool = False,
    stop: threading.Event | None = None,
) -> None:
    """Answer the questions of the server at `host:port` until `stop` is set or SIGTERM comes,
    whatever happens to the server meanwhile. The folder holds the device's key
    (`authority.device_request`). `stop` waits for the end of the question at work; SIGTERM does
    not.
    """
    device = DeviceEnd(
        server, load_key(folder / DEVICE_KEY), handler, trusting(server, root_certificate, insecure)
    )
    stop = stop or threading.Event()
    threading.Thread(target=lambda: stop.wait() and device.hang_up(), daemon=True).start()
    with ends_on_sigterm():
        device.run(stop)


class DeviceEnd:
    # first and longest wait for an absent server
    retry_seconds = 1.0, 30.0

    def __init__(
        self, server: str, key: Ed25519PrivateKey, handler: Handler, context: ssl.SSLContext | None
    ) -> None:
        self._server, self._key, self._handler, self._context = server, key, handler, context
        self._connection = self._connect()
        self._token: str | None = None
        # question, answer, why there is none, when to come back: it may be asked for again
        self._last = (
            "",
            b"",
            None,
            None,
        )
        self._file = ("", b"")
        self._hung_up, self._polling, self._told = False, False, ""

    def run(self, stop: threading.Event) -> None:
        try:
            wait = self.retry_seconds[0]
            while not stop.is_set():
                try:
                    self.sign_in()
                    while not stop.is_set():
                        self.serve()
                        wait, self._told = self.retry_seconds[0], ""
                except ComeBackLater as later:
                    LOG.info("not needed for now: %s", later)
                    self.sign_out()
                    stop.wait(later.seconds)
                except LOST as error:
                    if stop.is_set():
                        return
                    self.lost(error)
                    # or all would come back at the same moment
                    stop.wait(wait * random.uniform(0.5, 1))
                    wait = min(2 * wait, self.retry_seconds[1])
        finally:
            self.sign_out()
            self._connection.close()

    def lost(self, error: Exception) -> None:
        if (reason := _reason(error)) != self._told:
            LOG.warning("%s; trying again", reason)
        self._told = reason

    def answered(self, name: str, kind: str, failed: str | None, late: bool) -> None:
        if late:
            LOG.info("the answer to “%s” came too late", kind)

    def hang_up(self) -> None:
        self._hung_up = True
        if self._polling and (sock := self._connection.sock):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def sign_in(self) -> None:
        self._connection.close()
        self._token = None
        token = self._request("POST", "/v1/session", {200}, body=sign_in_body(self._key))[1].decode(
            "latin-1"
        )
        self._token = _word(token)
        LOG.info("connected to the server")

    def sign_out(self) -> None:
        if self._token:
            # otherwise the server notices by itself
            with suppress(*LOST):
                self._request("DELETE", "/v1/session", {204}, seconds=LEAVE_SECONDS, tries=1)
        self._token = None

    def serve(self) -> None:
        """Wait for a question, and answer it if one comes."""
        began = time.monotonic()
        self._polling = True
        try:
            path, seconds = f"/v1/question?wait={WAIT_SECONDS}", WAIT_SECONDS + REQUEST_SECONDS
            response, content = self._request("GET", path, {200, 204}, seconds=seconds)
        finally:
            self._polling = False
        if response.status == 204:
            # a server that does not wait
            time.sleep(LEAST_SECONDS if time.monotonic() - began < LEAST_SECONDS else 0.0)
            return
        name, kind, file = (
            response.headers.get(header, "") for header in ("question", "kind", "shared")
        )
        with self._sign_of_life():
            if _word(name) != self._last[0]:
                shared = self._shared(file) if file else b""
                if shared is None:
                    time.sleep(LEAST_SECONDS)
                    return
                self._last = (name, *_outcome(self._handler, kind, content + shared))
            _, answer, failed, away = self._last
            try:
                about = {"body": answer, "failed": failed, "seconds": 4 * REQUEST_SECONDS}
                response, _ = self._request(
                    "PUT", f"/v1/answer/{name}", {204, 410}, tries=5, **about
                )
                self.answered(name, kind, failed, late=response.status == 410)
            finally:
                if away:
                    raise away

    def _shared(self, name: str) -> bytes | None:
        """Fetch the file with this hash; None if it is gone or another: then the question is no
        longer this device's.
        """
        if self._file[0] != _word(name):
            content = self._request(
                "GET", f"/v1/files/{name}", {200, 404}, seconds=4 * REQUEST_SECONDS
            )[1]
            if hashlib.sha256(content).hexdigest() != name:
                LOG.info("a question was withdrawn: its file is gone")
                return None
            self._file = (name, content)
        return self._file[1]

    def _request(
        self, method: str, path: str, expected: set[int], tries: int = 2, **about: Any
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Reopen a closed connection once, or more often where a moment without a network should
        lose nothing.
        """
        for attempt in range(1, tries + 1):
            if self._hung_up and self._polling:
                raise ConnectionAbortedError("this device no longer waits for a question")
            try:
                return self._once(self._connection, method, path, expected, **about)
            except GONE_ERRORS:
                self._connection.close()
                if attempt == tries:
                    raise
                time.sleep(0.0 if attempt == 1 else AGAIN_SECONDS)
        raise AssertionError

    def _once(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        expected: set[int],
        body: bytes | None = None,
        failed: str | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        given = {"Authorization": self._token and f"Bearer {self._token}", "failed": failed}
        headers = {name: value for name, value in given.items() if value}
        connection.timeout = seconds
        if connection.sock:
            connection.sock.settimeout(seconds)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        if response.length is None:
            raise RefusedByServer(f"the server's answer has no length ({response.status})")
        content = response.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise RefusedByServer("the server sends more than a question may have")
        if (
            response.length
            # read() does not report it: a broken connection would give half a question
        ):
            raise http.client.IncompleteRead(content)
        if response.status == 401:
            raise RefusedByServer("the server does not know this device's token any more")
        if response.status not in expected:
            raise RefusedByServer(
                f"the server refused this device ({response.status}):"
                f" {ascii(content[:200].decode('latin-1'))[1:-1]}"
            )
        return response, content

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._server)
        return http.client.HTTPSConnection(self._server, context=self._context)

    @contextmanager
    def _sign_of_life(self) -> Iterator[None]:
        """Tell the server that this device is alive, until the end of the block."""
        ended = threading.Event()

        def beat() -> None:
            connection = self._connect()
            while not ended.wait(ALIVE_SECONDS):
                try:
                    self._once(connection, "POST", "/v1/alive", {204})
                except LOST:
                    # which ends the wait for a question
                    connection.close()
            connection.close()

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def sign_in_body(key: Ed25519PrivateKey) -> bytes:
    """Return a signed request, good for one sign-in within the next five minutes."""
    public, nonce, now = (
        key.public_key().public_bytes_raw(),
        os.urandom(16),
        int(datetime.now(UTC).timestamp()),
    )
    encoded = {
        "key": public,
        "nonce": nonce,
        "signature": key.sign(sign_in_statement(public, now, nonce)),
    }
    return json.dumps(
        {"time": now, **{name: base64.b64encode(value).decode() for name, value in encoded.items()}}
    ).encode()


def _outcome(
    handler: Handler, kind: str, content: bytes
) -> tuple[bytes, str | None, ComeBackLater | None]:
    """Return the answer, why there is none, and when to come back. An exception may quote the user:
    none of its words leave.
    """
    try:
        answer = answer_of(handler, kind, content)
    except ComeBackLater as later:
        return b"", None, later
    if answer is not None and len(answer) > MOST_BYTES:
        LOG.warning(
            "no answer to “%s”: it would have %d bytes, and %d are allowed",
            kind,
            len(answer),
            MOST_BYTES,
        )
        return b"", LARGE, None
    return (b"", FAILED, None) if answer is None else (answer, None, None)


def _word(given: str) -> str:
    """Return a word that is sent back in a request; refuse anything but one word."""
    if not WORD.fullmatch(given):
        raise RefusedByServer("the server's answer is garbage")
    return given


def trusting(
    server: str, root_certificate: Path | None, insecure: bool = False
) -> ssl.SSLContext | None:
    """Trust the fleet's authority and no other, not even those that the system trusts."""
    if insecure:
        if server.rpartition(":")[0].strip("[]") not in LOOPBACK:
            raise LinkError(
                f"without TLS a device talks to this machine only, not to {server}: leave out"
                " --insecure"
            )
        return None
    if root_certificate is None:
        raise LinkError("a device needs the certificate of its server's authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=root_certificate.read_text())
    except (OSError, ValueError, ssl.SSLError) as error:
        raise LinkError(f"the authority's certificate cannot be read: {error}") from None
    return context


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block in order, at any moment. Only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(error: Exception) -> str:
    if isinstance(error, RefusedByServer):
        return str(error)
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"the server's certificate is not of the authority this device trusts ({error})"
    return f"no connection to the server ({type(error).__name__}: {error})"
