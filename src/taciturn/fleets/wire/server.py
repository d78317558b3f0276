"""The server's end of the wire, from the certificate in its folder to an open door.

    with wire_server(folder, "0.0.0.0", 8443) as server:
        server.enrol(public_key)
        answers = server.link.ask("train", {number: message for number in server.link.devices()}, seconds=600)

Its front end is a thread of this process. It keeps nothing: a server that is killed and started again finds its devices by their keys, and
they find it at the same address.
"""

import asyncio
import resource
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from taciturn.files import locked
from taciturn.fleets.devices.transport import LOOPBACK, MOST_BYTES, LinkError
from taciturn.fleets.wire.authority import SERVER_CERTIFICATE, SERVER_KEY, load_public_key, private_folder
from taciturn.fleets.wire.door import Door, tls
from taciturn.fleets.wire.front_end import FrontEnd, Refusals
from taciturn.fleets.wire.link import WireLink
from taciturn.fleets.wire.store import MemoryStore

FREE_SECONDS = 5  # an earlier server that was killed may hold the port for a moment


@contextmanager
def wire_server(folder: Path, host: str, port: int, insecure: bool = False, most_bytes: int = MOST_BYTES) -> Iterator["WireServer"]:
    """Everything that devices need to connect to `host:port` (0: a free one).

    Without TLS (`insecure`) on this machine alone; devices need an enrolled key even then."""
    if insecure and host not in LOOPBACK:
        raise LinkError(f"without TLS a server may listen on this machine alone, and {host} is more than that")
    if not insecure and not ((folder / SERVER_KEY).exists() and (folder / SERVER_CERTIFICATE).exists()):
        raise LinkError(f"{folder} holds no certificate for the server: make one first")
    busy = LinkError(f"another server is at work in {folder}: stop it first")  # two would take each other's devices
    with locked(private_folder(folder) / "lock", busy):
        server = WireServer(folder, host, port, insecure, most_bytes)
        try:
            yield server
        finally:
            server.close()


class WireServer:
    """The `link` to the devices, and the list of those who may use it: a device's number is its place on the list."""

    def __init__(self, folder: Path, host: str, port: int, insecure: bool, most_bytes: int) -> None:
        context = None if insecure else tls(folder)
        _allow_many_files()
        listener, store, refusals = _listen(host, port), MemoryStore(), Refusals()
        self.address = f"{host}:{listener.getsockname()[1]}"
        self.link = WireLink(store)
        self._enrolling = threading.Lock()
        self._numbers: dict[bytes, int] = {}  # by the key itself
        self._lines: dict[bytes, int] = {}  # and by its line
        app = FrontEnd(store, self._numbers.get, most_bytes, refusals)
        self._door = Door(app, listener, context, refusals)
        self._listener, self._loop = listener, asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._door.serve())
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            with suppress(asyncio.CancelledError), self._listener:
                self._loop.run_until_complete(self._serving)
        finally:
            self._loop.run_until_complete(self._door.close())
            self._loop.close()

    def enrol(self, public_key: bytes) -> int:
        """Let the device with this key (a line as in `device.pub`) take part; its number. Again is no harm."""
        key = load_public_key(public_key).public_bytes_raw()
        with self._enrolling:
            number = self._numbers.setdefault(key, len(self._numbers))
            self._lines[public_key] = number
        return number

    def connected_devices(self, keys: Sequence[bytes]) -> dict[int, int]:
        """Of the devices with these keys, those that are connected now: the number on the wire, and the key's place in the list."""
        places = {self._lines.get(key): place for place, key in enumerate(keys)}
        return {number: places[number] for number in self.link.devices() if number in places}

    def close(self) -> None:
        self.link.close()
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(5)


def _allow_many_files() -> None:
    """As many connections as the system lets this process have; by default it may be a thousand."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:  # the system would take the rest of the division
        raise LinkError(f"port {port} is out of range (0–65535)")
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=4096)
        except OSError as error:
            if time.monotonic() > deadline or isinstance(error, socket.gaierror):
                raise LinkError(f"the server cannot listen on {host}:{port}: {error}") from None
            time.sleep(0.2)
