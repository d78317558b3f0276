"""The server's end of the wire, from the certificate in its folder to an open door.

    with wire_server(folder, "0.0.0.0", 8443, EnrolledNow(fleet).number_of) as server:
        answers = server.link.ask("train", {number: message for number in server.link.devices()}, seconds=600)

Its front end is a thread of this process. Where one is not enough, front ends are processes of their own on any hosts (`front_end`), and
share a store with the server, which then listens nowhere (`shared_server`). None of them keeps anything: whoever is killed and started
again finds its devices by their keys, and they find it at the same address.
"""

import asyncio
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from taciturn.files import locked
from taciturn.fleets.devices.transport import LOOPBACK, LinkError
from taciturn.fleets.wire.authority import SERVER_CERTIFICATE, SERVER_KEY, private_folder
from taciturn.fleets.wire.door import Door, tls
from taciturn.fleets.wire.front_end import FrontEnd, NumberOf, Refusals
from taciturn.fleets.wire.link import WireLink
from taciturn.fleets.wire.metrics import COUNTS
from taciturn.fleets.wire.store import MemoryStore, Store

FREE_SECONDS = 5  # an earlier server that was killed may hold the port for a moment


@contextmanager
def wire_server(folder: Path, host: str, port: int, number_of: NumberOf, insecure: bool = False) -> Iterator["WireServer"]:
    """Everything that devices need to connect to `host:port` (0: a free one), in this process.

    Without TLS (`insecure`) on this machine alone; devices need an enrolled key even then."""
    store = MemoryStore()
    with _only_server(folder), front_end(folder, host, port, store, number_of, insecure) as opened:
        yield WireServer(store, opened)


@contextmanager
def shared_server(folder: Path, store: Store) -> Iterator["WireServer"]:
    """A server whose devices come through front ends at the same store."""
    with _only_server(folder):
        yield WireServer(store)


@contextmanager
def front_end(folder: Path, host: str, port: int, store: Store, number_of: NumberOf, insecure: bool = False) -> Iterator["RunningFrontEnd"]:
    """Devices may connect to `host:port` until the end of the block."""
    if insecure and host not in LOOPBACK:
        raise LinkError(f"without TLS a server may listen on this machine only, not on {host}: leave out --insecure, or --host")
    if not insecure and not ((folder / SERVER_KEY).exists() and (folder / SERVER_CERTIFICATE).exists()):
        raise LinkError(f"{folder} has no certificate for the server: make a fleet with `taciturn fleet new`")
    running = RunningFrontEnd(None if insecure else folder, host, port, store, number_of)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def _only_server(folder: Path) -> Iterator[None]:
    busy = LinkError(f"another server is at work in {folder}: stop it first")  # two would take each other's devices
    with locked(private_folder(folder) / "lock", busy):
        yield


class WireServer:
    """The `link` to the devices."""

    def __init__(self, store: Store, front_end: "RunningFrontEnd | None" = None) -> None:
        self.link, self.front_end = WireLink(store), front_end
        COUNTS.show("taciturn_devices_connected", lambda: len(self.link.devices()))

    @property
    def address(self) -> str:
        assert self.front_end is not None  # or it listens nowhere
        return self.front_end.address


class RunningFrontEnd:
    """In a thread of its own, with an event loop."""

    def __init__(self, certificate: Path | None, host: str, port: int, store: Store, number_of: NumberOf) -> None:
        context = tls(certificate) if certificate else None
        _allow_many_files()
        self._listener, self._store, refusals = _listen(host, port), store, Refusals()
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self.door = Door(FrontEnd(store, number_of, refusals), self._listener, context, refusals)
        COUNTS.show("taciturn_connections", self.door.connections)
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self.door.serve())
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            with suppress(asyncio.CancelledError), self._listener:
                self._loop.run_until_complete(self._serving)
        finally:
            self._loop.run_until_complete(self.door.close())
            self._loop.run_until_complete(self._store.close())
            self._loop.close()

    def wait(self) -> None:
        """Until it ends, which by itself it does not."""
        self._thread.join()

    def close(self) -> None:
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(5)


def _allow_many_files() -> None:
    """As many connections as the system lets this process have; by default it may be a thousand."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:  # the system would take the rest of the division
        raise LinkError(f"port {port} is out of range: choose one from 0 to 65535")
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=4096)
        except OSError as error:
            if time.monotonic() > deadline or isinstance(error, socket.gaierror):
                why = (error.strerror or str(error)).split(" (")[0].lower()
                raise LinkError(f"the server cannot listen on {host}:{port} ({why}): choose another --host or --port") from None
            time.sleep(0.2)
