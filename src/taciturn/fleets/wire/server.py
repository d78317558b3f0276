"""The server's end of the wire.

    with wire_server(folder, "0.0.0.0", 8443, EnrolledFile(fleet).number_of) as server:
        answers = server.link.ask("train", {number: message for number in server.link.devices()}, seconds=600)

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from taciturn.files import lock_file
from taciturn.fleets.devices.transport import (
    GONE,
    LOG,
    LOOPBACK,
    MOST_BYTES,
    ByDevice,
    LinkError,
    answered,
)
from taciturn.fleets.wire.front_end import FrontEnd, NumberOf, Refusals
from taciturn.fleets.wire.listener import Door, tls
from taciturn.fleets.wire.metrics import COUNTS
from taciturn.fleets.wire.store import NO_FILE, MemoryStore, Store, StoreGone
from taciturn.fleets.wire.tls import SERVER_CERTIFICATE, SERVER_KEY, private_folder
from taciturn.progress import Progress, ignore_progress

# an earlier server that was killed may hold the port for a moment
FREE_SECONDS = 5
# between two looks for devices that are gone
LOOK_SECONDS = 5.0


class WireLink:
    """A `Link` (devices/transport.py) over a store."""

    def __init__(self, store: Store) -> None:
        self._store, self._asking = store, threading.Lock()

    def devices(self) -> list[int]:
        try:
            return self._store.present()
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
        if max(len(shared), *map(len, contents.values())) > MOST_BYTES:
            raise LinkError(f"a question has at most {MOST_BYTES:,} bytes")
        deadline, name = time.monotonic() + seconds, secrets.token_hex(16)
        # answers, or why there is none; the first counts
        outcomes: dict[int, bytes | str] = {}
        with self._asking:
            try:
                file = (hashlib.sha256(shared).hexdigest(), shared) if shared else NO_FILE
                here = set(self._store.present())
                outcomes |= dict.fromkeys(contents.keys() - here, GONE)
                present = {
                    number: content for number, content in contents.items() if number in here
                }
                self._store.post(name, kind, present, deadline - time.monotonic(), file)
                self._wait_for_all(name, contents, deadline, outcomes, progress)
            except StoreGone as gone:
                LOG.warning("“%s” ends here: %s", kind, gone)
            finally:
                with suppress(
                    StoreGone
                    # its name is forgotten with this call: nothing can answer it any more
                ):
                    self._store.withdraw(name)
        answers = answered(kind, contents, outcomes)
        COUNTS.add("taciturn_questions_total", len(contents))
        COUNTS.add("taciturn_answers_total", len(answers))
        return answers

    def _wait_for_all(
        self,
        name: str,
        contents: ByDevice,
        deadline: float,
        outcomes: dict[int, bytes | str],
        progress: Progress,
    ) -> None:
        looked, shown = time.monotonic(), 0
        while len(outcomes) < len(contents) and (left := deadline - time.monotonic()) > 0:
            self._collect(name, min(LOOK_SECONDS, left), outcomes)
            if time.monotonic() - looked > LOOK_SECONDS:
                looked, gone = time.monotonic(), contents.keys() - set(self._store.present())
                # of those too who answered and left
                self._collect(name, 0, outcomes)
                outcomes |= dict.fromkeys(gone - outcomes.keys(), GONE)
            if (answers := sum(isinstance(one, bytes) for one in outcomes.values())) > shown:
                shown = answers
                progress(shown, len(contents))

    def _collect(self, name: str, seconds: float, outcomes: dict[int, bytes | str]) -> None:
        """Keep answers at once: the store has them no more, and may be gone at the next call."""
        for number, outcome in self._store.collect(name, seconds):
            outcomes.setdefault(number, outcome)


class OpenFrontEnd(NamedTuple):
    address: str
    door: Door
    # until it ends, which it does not by itself
    wait: Callable[[], None]
    close: Callable[[], None]


@dataclass
class WireServer:
    link: WireLink
    address: str
    # or it does not listen
    front_end: OpenFrontEnd | None = None


@contextmanager
def wire_server(
    folder: Path, host: str, port: int, number_of: NumberOf, insecure: bool = False
) -> Iterator[WireServer]:
    """Let devices connect to `host:port` (0: a free one), in this process. Without TLS
    (`insecure`), on this machine only; devices need an enrolled key even then.
    """
    store = MemoryStore()
    with (
        shared_server(folder, store) as server,
        front_end(folder, host, port, store, number_of, insecure) as opened,
    ):
        server.address, server.front_end = opened.address, opened
        yield server


@contextmanager
def shared_server(folder: Path, store: Store) -> Iterator[WireServer]:
    """Open a server whose devices come through front ends at the same store."""
    # two would take each other's devices
    busy = LinkError(f"another server is using {folder}: stop it first")
    with lock_file(private_folder(folder) / "lock", busy):
        link = WireLink(store)
        COUNTS.show("taciturn_devices_connected", lambda: len(link.devices()))
        yield WireServer(link, f"the Redis at {store.address}")


@contextmanager
def front_end(
    folder: Path, host: str, port: int, store: Store, number_of: NumberOf, insecure: bool = False
) -> Iterator[OpenFrontEnd]:
    """Let devices connect to `host:port` until the end of the block; a thread with an event loop
    serves them.
    """
    if insecure and host not in LOOPBACK:
        raise LinkError(
            f"without TLS a server may listen on this machine only, not on {host}: leave out"
            " --insecure, or --host"
        )
    if not insecure and not (
        (folder / SERVER_KEY).exists() and (folder / SERVER_CERTIFICATE).exists()
    ):
        raise LinkError(
            f"{folder} has no certificate for the server: make a fleet with `taciturn fleet new`"
        )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # by default a process may have a thousand connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context, listener, refusals = None if insecure else tls(folder), _listen(host, port), Refusals()
    door = Door(FrontEnd(store, number_of, refusals), listener, context, refusals)
    COUNTS.show("taciturn_connections", door.open.total)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(door.serve())

    def serve() -> None:
        try:
            with suppress(asyncio.CancelledError), listener:
                loop.run_until_complete(serving)
        finally:
            loop.run_until_complete(door.close())
            loop.run_until_complete(store.close())
            loop.close()

    def close() -> None:
        # it has ended already
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(serving.cancel)
        thread.join(5)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield OpenFrontEnd(f"{host}:{listener.getsockname()[1]}", door, thread.join, close)
    finally:
        close()


def _listen(host: str, port: int) -> socket.socket:
    # the system would wrap it around
    if not 0 <= port < 2**16:
        raise LinkError(f"port {port} is out of range: choose one from 0 to 65535")
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=4096)
        except OSError as error:
            if time.monotonic() > deadline or isinstance(error, socket.gaierror):
                why = (error.strerror or str(error)).split(" (")[0].lower()
                raise LinkError(
                    f"the server cannot listen on {host}:{port} ({why}): choose another --host or"
                    " --port"
                ) from None
            time.sleep(0.2)
