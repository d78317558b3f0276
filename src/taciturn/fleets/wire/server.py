"""The server's end of the wire.

    with wire_server(folder, "0.0.0.0", 8443, EnrolledFile(fleet).number_of) as server:
        messages = {number: message for number in server.link.devices()}
        answers = server.link.ask("train", messages, seconds=600)

Its front end is a thread of this process. Where one is not enough, front ends are processes of
their own on any hosts (`front_end`), and share a store with the server, which then listens nowhere
(`shared_server`).
"""

import asyncio
import hashlib
import resource
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from taciturn.files import lock_file
from taciturn.fleets.devices.transport import (
    GONE,
    LOG,
    LOOPBACK,
    MOST_BYTES,
    ByDevice,
    LinkError,
    select_answers,
)
from taciturn.fleets.wire.front_end import FrontEnd, NumberOf, Refusals
from taciturn.fleets.wire.listener import Listener, load_server_context
from taciturn.fleets.wire.memory_store import MemoryStore
from taciturn.fleets.wire.metrics import COUNTS
from taciturn.fleets.wire.store import NO_FILE, File, Outcome, Store, StoreGone
from taciturn.fleets.wire.tls import SERVER_CERTIFICATE, SERVER_KEY, make_private_folder
from taciturn.progress import Progress, ignore_progress

# An earlier server that was killed may hold the port for this long.
FREE_SECONDS = 5
# The server looks for devices that are gone this often.
LOOK_SECONDS = 5.0


class WireLink:
    """A `Link` (devices/transport.py) over a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._one_at_a_time = threading.Lock()

    def devices(self) -> list[int]:
        try:
            return self._store.devices_present()
        except StoreGone as gone:
            LOG.warning("no device is there: %s", gone)
            return []

    def ask(
        self,
        kind: str,
        contents: ByDevice,
        seconds: float,
        progress: Progress = ignore_progress,
        shared: bytes = b"",
    ) -> dict[int, bytes]:
        if not contents or seconds <= 0:
            return {}
        if _longest([shared, *contents.values()]) > MOST_BYTES:
            raise LinkError(f"a question has at most {MOST_BYTES:,} bytes")
        asking = _Asking(
            store=self._store,
            kind=kind,
            contents=contents,
            deadline=time.monotonic() + seconds,
            progress=progress,
        )
        with self._one_at_a_time:
            try:
                asking.ask_those_present(shared)
                asking.wait_for_all()
            except StoreGone as gone:
                LOG.warning("“%s” ends here: %s", kind, gone)
            finally:
                asking.withdraw()
        answers = select_answers(kind, contents, asking.outcomes)
        COUNTS.add("taciturn_questions_total", len(contents))
        COUNTS.add("taciturn_answers_total", len(answers))
        return answers


class _Asking:
    """A question while its answers arrive."""

    def __init__(
        self,
        *,
        store: Store,
        kind: str,
        contents: ByDevice,
        deadline: float,
        progress: Progress,
    ) -> None:
        self._store = store
        # It is forgotten with the call that asked: later, nothing can answer the question.
        self._name = secrets.token_hex(16)
        self._kind = kind
        self._contents = contents
        self._deadline = deadline
        self._progress = progress
        # Answers, or why there is none; the first counts.
        self.outcomes: dict[int, Outcome] = {}

    def ask_those_present(self, shared: bytes) -> None:
        present = set(self._store.devices_present())
        contents = {}
        for number, content in self._contents.items():
            if number in present:
                contents[number] = content
            else:
                self.outcomes[number] = GONE
        self._store.post(
            name=self._name,
            kind=self._kind,
            contents=contents,
            seconds=self._deadline - time.monotonic(),
            file=_make_file(shared),
        )

    def wait_for_all(self) -> None:
        """Wait until each device has answered or is gone, or the time is over."""
        looked_at = time.monotonic()
        answers_shown = 0
        while len(self.outcomes) < len(self._contents):
            seconds_left = self._deadline - time.monotonic()
            if seconds_left <= 0:
                return
            self._collect(min(LOOK_SECONDS, seconds_left))
            if time.monotonic() - looked_at > LOOK_SECONDS:
                looked_at = time.monotonic()
                self._give_up_those_gone()
            answers = sum(isinstance(outcome, bytes) for outcome in self.outcomes.values())
            if answers > answers_shown:
                answers_shown = answers
                self._progress(answers, len(self._contents))

    def withdraw(self) -> None:
        # Without a store there is no question to withdraw.
        with suppress(StoreGone):
            self._store.withdraw(self._name)

    def _give_up_those_gone(self) -> None:
        gone = self._contents.keys() - set(self._store.devices_present())
        # Devices that are gone may have answered before they left.
        self._collect(0)
        self.outcomes |= dict.fromkeys(gone - self.outcomes.keys(), GONE)

    def _collect(self, seconds: float) -> None:
        """Keep answers at once: the store has them no more, and may be gone at the next call."""
        for number, outcome in self._store.collect(self._name, seconds):
            self.outcomes.setdefault(number, outcome)


def _make_file(content: bytes) -> File:
    """Name a file by its hash, if it has any content."""
    if not content:
        return NO_FILE
    return File(hashlib.sha256(content).hexdigest(), content)


def _longest(contents: Collection[bytes]) -> int:
    return max(len(content) for content in contents)


class OpenFrontEnd:
    """A front end that serves devices, in a thread with an event loop."""

    def __init__(
        self, *, address: str, listener: Listener, listening_socket: socket.socket, store: Store
    ) -> None:
        self.address = address
        self.listener = listener
        self._socket = listening_socket
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(listener.serve())
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it ends, which it does not by itself."""
        self._thread.join()

    def close(self) -> None:
        # It may have ended already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(5)

    def _serve(self) -> None:
        try:
            with suppress(asyncio.CancelledError), self._socket:
                self._loop.run_until_complete(self._serving)
        finally:
            self._loop.run_until_complete(self.listener.close())
            self._loop.run_until_complete(self._store.close())
            self._loop.close()


@dataclass
class WireServer:
    link: WireLink
    address: str
    # None for a server that does not listen itself.
    front_end: OpenFrontEnd | None = None


@contextmanager
def wire_server(
    folder: Path, host: str, port: int, number_of: NumberOf, insecure: bool = False
) -> Iterator[WireServer]:
    """Let devices connect to `host:port` (0: a free one), in this process.

    Without TLS (`insecure`), on this machine only; devices need an enrolled key even then.
    """
    store = MemoryStore()
    opening = front_end(
        folder=folder, host=host, port=port, store=store, number_of=number_of, insecure=insecure
    )
    with shared_server(folder, store) as server, opening as opened:
        server.address = opened.address
        server.front_end = opened
        yield server


@contextmanager
def shared_server(folder: Path, store: Store) -> Iterator[WireServer]:
    """Open a server whose devices come through front ends at the same store."""
    # Two servers would take each other's devices.
    busy = LinkError(f"another server is using {folder}: stop it first")
    with lock_file(make_private_folder(folder) / "lock", busy):
        link = WireLink(store)
        COUNTS.show("taciturn_devices_connected", lambda: len(link.devices()))
        yield WireServer(link, f"the Redis at {store.address}")


@contextmanager
def front_end(
    folder: Path, host: str, port: int, store: Store, number_of: NumberOf, insecure: bool = False
) -> Iterator[OpenFrontEnd]:
    """Let devices connect to `host:port` until the end of the block."""
    _check_secure(folder, host, insecure)
    _allow_many_connections()
    context = None if insecure else load_server_context(folder)
    listening_socket = _listen(host, port)
    refusals = Refusals()
    listener = Listener(
        app=FrontEnd(store, number_of, refusals),
        listening_socket=listening_socket,
        context=context,
        refusals=refusals,
    )
    COUNTS.show("taciturn_connections", listener.open.total)
    opened = OpenFrontEnd(
        address=f"{host}:{listening_socket.getsockname()[1]}",
        listener=listener,
        listening_socket=listening_socket,
        store=store,
    )
    try:
        yield opened
    finally:
        opened.close()


def _check_secure(folder: Path, host: str, insecure: bool) -> None:
    if insecure:
        if host not in LOOPBACK:
            raise LinkError(
                f"without TLS a server may listen on this machine only, not on {host}: leave out"
                " `insecure`, or `host`"
            )
        return
    if not (folder / SERVER_KEY).exists() or not (folder / SERVER_CERTIFICATE).exists():
        raise LinkError(
            f"{folder} has no certificate for the server: make a fleet with `taciturn fleet new`"
        )


def _allow_many_connections() -> None:
    """Raise the limit on open files, which is a thousand by default, as far as is allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listen(host: str, port: int) -> socket.socket:
    # The system would wrap it around.
    if not 0 <= port < 2**16:
        raise LinkError(f"port {port} is out of range: choose one from 0 to 65535")
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        try:
            return _open_socket(host, port)
        except OSError as error:
            is_unknown_name = isinstance(error, socket.gaierror)
            if is_unknown_name or time.monotonic() > deadline:
                raise LinkError(
                    f"the server cannot listen on {host}:{port} ({_reason_of(error)}): choose"
                    " another `host` or `port`"
                ) from None
            time.sleep(0.2)


def _reason_of(error: OSError) -> str:
    sentence = error.strerror or str(error)
    reason, *_ = sentence.split(" (")
    return reason.lower()


def _open_socket(host: str, port: int) -> socket.socket:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = addresses[0]
    return socket.create_server(address[:2], family=family, backlog=4096)
