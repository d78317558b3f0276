"""A device's end of the wire: it passes the server's questions to a handler, and sends the answers.

It asks for questions, and never listens. It uses Python's own HTTP client, which follows no
redirects and uses no proxies. While a handler works, another thread tells the server that the
device is alive.
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
from typing import NamedTuple

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

# A device waits this long for a question, on an otherwise silent connection.
WAIT_SECONDS = 55
# A device at work gives a sign of life this often.
ALIVE_SECONDS = 30.0
# Any other request may take this long.
REQUEST_SECONDS = 30.0
# A request with a file or an answer, which may be large, may take this long.
TRANSFER_SECONDS = 4 * REQUEST_SECONDS
# Signing out may take this long.
LEAVE_SECONDS = 3.0
# Where the server does not wait for a question, polls are at least this far apart.
LEAST_SECONDS = 0.5
# An answer is sent this number of times at most.
ANSWER_TRIES = 5
WORD = re.compile(r"[A-Za-z0-9_-]{1,128}")
# Before a retry a device waits this long, so that a moment without a network loses nothing.
AGAIN_SECONDS = 1.0
GONE_ERRORS = (OSError, http.client.HTTPException)


class RefusedByServer(Exception):
    """The server refuses this device, and says why, or sends garbage.

    Or it does not know our token: it was restarted, or a day passed.
    """


# After these errors a device signs in again.
LOST = (OSError, http.client.HTTPException, RefusedByServer)


def run_device(
    server: str,
    folder: Path,
    handler: Handler,
    root_certificate: Path | None,
    insecure: bool = False,
    stop: threading.Event | None = None,
) -> None:
    """Answer the questions of the server at `host:port` until `stop` is set or SIGTERM comes.

    Whatever happens to the server meanwhile, the device tries again. `stop` waits for the end of
    the question at work; SIGTERM does not.

    Args:
        server: The server's address, `host:port`.
        folder: The device's folder; it holds its key (`tls.device_request`).
        handler: Answers questions.
        root_certificate: The certificate of the fleet's authority; None if insecure.
        insecure: Without TLS, to a server on this machine.
        stop: Ends the device when it is set.
    """
    device = DeviceEnd(
        server=server,
        key=load_key(folder / DEVICE_KEY),
        handler=handler,
        context=make_device_context(server, root_certificate, insecure),
    )
    stop = stop or threading.Event()
    hanging_up = threading.Thread(
        target=_hang_up_after,
        args=(stop, device),
        daemon=True,
    )
    hanging_up.start()
    with exit_on_sigterm():
        device.run(stop)


def _hang_up_after(stop: threading.Event, device: "DeviceEnd") -> None:
    stop.wait()
    device.hang_up()


class _Answer(NamedTuple):
    # Empty if there is no answer.
    content: bytes
    # Why there is no answer.
    failed: str | None = None
    # When to come back, of a device that leaves now.
    leave: ComeBackLater | None = None


class DeviceEnd:
    """A device's connection to its server, made again whenever it breaks."""

    # The first and the longest wait for an absent server.
    retry_seconds = 1.0, 30.0

    def __init__(
        self,
        *,
        server: str,
        key: Ed25519PrivateKey,
        handler: Handler,
        context: ssl.SSLContext | None,
    ) -> None:
        """Without a context the connection has no TLS."""
        self._server = server
        self._key = key
        self._handler = handler
        self._context = context
        self._connection = self._connect()
        self._token: str | None = None
        # The last question and its answer, which may be asked for again.
        self._last_name = ""
        self._last_answer = _Answer(b"")
        self._file_name = ""
        self._file = b""
        self._has_hung_up = False
        self._is_polling = False
        # The last reason in the log why there is no server.
        self._last_reason = ""

    def run(self, stop: threading.Event) -> None:
        """Answer questions until `stop` is set."""
        first_wait, longest_wait = self.retry_seconds
        wait = first_wait
        try:
            while not stop.is_set():
                try:
                    self.sign_in()
                    while not stop.is_set():
                        self.answer_next_question()
                        wait = first_wait
                        self._last_reason = ""
                except ComeBackLater as later:
                    LOG.info("not needed for now: %s", later)
                    self.sign_out()
                    stop.wait(later.seconds)
                except LOST as error:
                    if stop.is_set():
                        return
                    self.note_loss(error)
                    # At random, or all devices would come back at the same moment.
                    stop.wait(wait * random.uniform(0.5, 1))
                    wait = min(2 * wait, longest_wait)
        finally:
            self.sign_out()
            self._connection.close()

    def note_loss(self, error: Exception) -> None:
        """Log why the server is lost, once for each reason in a row."""
        reason = _reason_of(error)
        if reason != self._last_reason:
            LOG.warning("%s; trying again", reason)
        self._last_reason = reason

    def note_answer(self, name: str, kind: str, failed: str | None, is_late: bool) -> None:
        """Log what became of an answer that was sent; a load test counts them."""
        if is_late:
            LOG.info("the answer to “%s” came too late", kind)

    def hang_up(self) -> None:
        """End a wait for a question, in another thread than the one that waits."""
        self._has_hung_up = True
        sock = self._connection.sock
        if self._is_polling and sock:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def sign_in(self) -> None:
        self._connection.close()
        self._token = None
        _, token = self._request("POST", "/v1/session", {200}, body=make_sign_in_body(self._key))
        self._token = _check_word(token.decode("latin-1"))
        LOG.info("connected to the server")

    def sign_out(self) -> None:
        if self._token:
            # Where it fails, the server notices by itself.
            with suppress(*LOST):
                self._request("DELETE", "/v1/session", {204}, seconds=LEAVE_SECONDS, tries=1)
        self._token = None

    def answer_next_question(self) -> None:
        """Wait for a question, and answer it if one comes."""
        began = time.monotonic()
        response, content = self._poll()
        if response.status == 204:
            # The server may be one that does not wait.
            if time.monotonic() - began < LEAST_SECONDS:
                time.sleep(LEAST_SECONDS)
            return
        name = response.headers.get("question", "")
        kind = response.headers.get("kind", "")
        file_name = response.headers.get("shared", "")
        with self._signs_of_life():
            if _check_word(name) != self._last_name:
                shared = self._fetch_file(file_name) if file_name else b""
                if shared is None:
                    time.sleep(LEAST_SECONDS)
                    return
                self._last_answer = _make_answer(self._handler, kind, content + shared)
                self._last_name = name
            try:
                self._send_answer(name, kind, self._last_answer)
            finally:
                # The device leaves, whether its answer has arrived or not.
                if self._last_answer.leave:
                    raise self._last_answer.leave

    def _poll(self) -> tuple[http.client.HTTPResponse, bytes]:
        self._is_polling = True
        try:
            return self._request(
                "GET",
                f"/v1/question?wait={WAIT_SECONDS}",
                {200, 204},
                seconds=WAIT_SECONDS + REQUEST_SECONDS,
            )
        finally:
            self._is_polling = False

    def _send_answer(self, name: str, kind: str, answer: _Answer) -> None:
        response, _ = self._request(
            "PUT",
            f"/v1/answer/{name}",
            {204, 410},
            tries=ANSWER_TRIES,
            body=answer.content,
            failed=answer.failed,
            seconds=TRANSFER_SECONDS,
        )
        self.note_answer(name, kind, answer.failed, is_late=response.status == 410)

    def _fetch_file(self, name: str) -> bytes | None:
        """Fetch the file with this hash; None if it is gone or another.

        Then the question is no longer this device's.
        """
        if self._file_name != _check_word(name):
            _, content = self._request(
                "GET",
                f"/v1/files/{name}",
                {200, 404},
                seconds=TRANSFER_SECONDS,
            )
            if hashlib.sha256(content).hexdigest() != name:
                LOG.info("a question was withdrawn: its file is gone")
                return None
            self._file_name = name
            self._file = content
        return self._file

    def _request(
        self,
        method: str,
        path: str,
        expected: set[int],
        *,
        body: bytes | None = None,
        failed: str | None = None,
        seconds: float = REQUEST_SECONDS,
        tries: int = 2,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request, and once more where the connection was closed.

        More `tries` are for where a moment without a network should lose nothing.
        """
        for attempt in range(1, tries + 1):
            if self._has_hung_up and self._is_polling:
                raise ConnectionAbortedError("this device no longer waits for a question")
            try:
                return self._request_once(
                    self._connection,
                    method,
                    path,
                    expected,
                    body=body,
                    failed=failed,
                    seconds=seconds,
                )
            except GONE_ERRORS:
                self._connection.close()
                if attempt == tries:
                    raise
                time.sleep(0.0 if attempt == 1 else AGAIN_SECONDS)
        raise AssertionError

    def _request_once(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        expected: set[int],
        *,
        body: bytes | None = None,
        failed: str | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        headers = {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if failed:
            headers["failed"] = failed
        connection.timeout = seconds
        if connection.sock:
            connection.sock.settimeout(seconds)
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        content = _read_all(response)
        if response.status == 401:
            raise RefusedByServer("the server does not know this device's token any more")
        if response.status not in expected:
            reason = ascii(content[:200].decode("latin-1"))[1:-1]
            raise RefusedByServer(f"the server refused this device ({response.status}): {reason}")
        return response, content

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._server)
        return http.client.HTTPSConnection(self._server, context=self._context)

    @contextmanager
    def _signs_of_life(self) -> Iterator[None]:
        """Tell the server that this device is alive, until the end of the block."""
        ended = threading.Event()
        threading.Thread(target=self._beat, args=(ended,), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _beat(self, ended: threading.Event) -> None:
        connection = self._connect()
        while not ended.wait(ALIVE_SECONDS):
            try:
                self._request_once(connection, "POST", "/v1/alive", {204})
            except LOST:
                # The next one opens it again.
                connection.close()
        connection.close()


def make_sign_in_body(key: Ed25519PrivateKey) -> bytes:
    """Return a signed request, good for one sign-in within the next five minutes."""
    public = key.public_key().public_bytes_raw()
    nonce = os.urandom(16)
    seconds = int(datetime.now(UTC).timestamp())
    statement = sign_in_statement(public, seconds, nonce)
    signature = key.sign(statement)
    fields = {
        "time": seconds,
        "key": base64.b64encode(public).decode(),
        "nonce": base64.b64encode(nonce).decode(),
        "signature": base64.b64encode(signature).decode(),
    }
    return json.dumps(fields).encode()


def _make_answer(handler: Handler, kind: str, content: bytes) -> _Answer:
    """Let the handler answer. An exception may quote the user: none of its words leave."""
    try:
        answer = answer_of(handler, kind, content)
    except ComeBackLater as later:
        return _Answer(b"", leave=later)
    if answer is None:
        return _Answer(b"", failed=FAILED)
    if len(answer) > MOST_BYTES:
        LOG.warning(
            "no answer to “%s”: it would have %d bytes, and %d are allowed",
            kind,
            len(answer),
            MOST_BYTES,
        )
        return _Answer(b"", failed=LARGE)
    return _Answer(answer)


def _read_all(response: http.client.HTTPResponse) -> bytes:
    if response.length is None:
        raise RefusedByServer(f"the server's answer has no length ({response.status})")
    content = response.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise RefusedByServer("the server sends more than a question may have")
    # read() does not report it: a broken connection would give half a question.
    if response.length:
        raise http.client.IncompleteRead(content)
    return content


def _check_word(text: str) -> str:
    """Return a word that is sent back in a request; refuse anything but one word."""
    if not WORD.fullmatch(text):
        raise RefusedByServer("the server's answer is garbage")
    return text


def make_device_context(
    server: str, root_certificate: Path | None, insecure: bool = False
) -> ssl.SSLContext | None:
    """Trust the fleet's authority and no other, not even those that the system trusts."""
    if insecure:
        host = server.rpartition(":")[0].strip("[]")
        if host not in LOOPBACK:
            raise LinkError(
                f"without TLS a device talks to this machine only, not to {server}: leave out"
                " `insecure`"
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
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block in order, at any moment. Only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler_before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler_before)


def _exit(*_: object) -> None:
    raise SystemExit(0)


def _reason_of(error: Exception) -> str:
    if isinstance(error, RefusedByServer):
        return str(error)
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"the server's certificate is not of the authority this device trusts ({error})"
    return f"no connection to the server ({type(error).__name__}: {error})"
