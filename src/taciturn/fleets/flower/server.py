"""The server's end of the wire: SuperLink as a child process with our gate before it, kept alive, and a `Link` to the devices.

    with flower_server(folder, "0.0.0.0", 8443) as server:
        server.enrol(public_key)
        answers = server.link.ask("train", {number: message for number in server.link.devices()}, seconds=600)

SuperLink may die at any time. What was asked of devices is lost with it, and with the next question another one is started, which knows
the same devices by the same numbers. The sockets are this process's own, so that devices find the same address.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from taciturn.files import locked
from taciturn.fleets.devices.transport import LOG, LOOPBACK, MOST_BYTES, LinkError
from taciturn.fleets.flower.authority import SERVER_CERTIFICATE, SERVER_KEY, load_public_key, private_folder
from taciturn.fleets.flower.child import SuperLink
from taciturn.fleets.flower.link import RESTART_SECONDS, FlowerLink
from taciturn.fleets.flower.questions import in_words

Answer = TypeVar("Answer")

FREE_SECONDS = 5  # an earlier server that was killed may hold the port for a moment


@contextmanager
def flower_server(folder: Path, host: str, port: int, insecure: bool = False, most_bytes: int = MOST_BYTES) -> Iterator["FlowerServer"]:
    """Everything that devices need to connect to `host:port` (0: a free one), from the certificate in the folder to an open door.

    Without TLS (`insecure`) on this machine alone; devices need an enrolled key even then."""
    if insecure and host not in LOOPBACK:
        raise LinkError(f"without TLS a server may listen on this machine alone, and {host} is more than that")
    if not insecure and not ((folder / SERVER_KEY).exists() and (folder / SERVER_CERTIFICATE).exists()):
        raise LinkError(f"{folder} holds no certificate for the server: make one first")
    busy = LinkError(f"another server is at work in {folder}: stop it first")  # two would take each other's devices
    with locked(private_folder(folder) / "lock", busy):
        server = FlowerServer(folder, host, port, insecure, most_bytes)
        try:
            yield server
        finally:
            server.close()


class FlowerServer:
    """The `link` to the devices, and the list of those who may use it."""

    def __init__(self, folder: Path, host: str, port: int, insecure: bool, most_bytes: int) -> None:
        self._superlink = SuperLink(folder, _listen(host, port), insecure, most_bytes)
        self.address = f"{host}:{self._superlink.port}"
        self.link = FlowerLink(self._superlink, most_bytes)
        try:
            self._superlink.control()
        except BaseException:
            self.close()
            raise

    def enrol(self, public_key: bytes) -> None:
        """Let the device with this key (a line as in `device.pub`) take part. Again is no harm."""
        request = RegisterNodeRequest(public_key=public_key_to_bytes(load_public_key(public_key)))
        try:
            self._ask(lambda control: control.RegisterNode(request))
        except httpx.HTTPStatusError as error:
            known = FlowerError.from_json(error.response.text)
            if known is None or known.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                raise LinkError(f"SuperLink did not enrol the device: {error.response.text}") from None
            if public_key.split()[:2] not in [line.split()[:2] for line in self.enrolled().values()]:
                raise LinkError("this device was dismissed; with a new key it may be enrolled again") from None

    def enrolled(self) -> dict[int, bytes]:
        """Every device that may connect, connected or not: its number, and its public key as it was given."""
        nodes = self._ask(lambda control: control.ListNodes(ListNodesRequest())).nodes_info
        return {node.node_id: _line(node.public_key) for node in nodes if not node.unregistered_at}

    def connected_devices(self, keys: Sequence[bytes]) -> dict[int, int]:
        """Of the devices with these keys, those that are connected now: the number on the wire, and the key's place in the list."""
        places, enrolled = {key: place for place, key in enumerate(keys)}, self.enrolled()
        return {node: places[enrolled[node]] for node in self.link.devices() if enrolled.get(node) in places}

    def dismiss(self, number: int) -> None:
        """For good: it may come back with another key only."""
        self._ask(lambda control: control.UnregisterNode(UnregisterNodeRequest(node_id=number)))

    def _ask(self, question: Callable[[ControlHttpClient], Answer]) -> Answer:
        """Twice at most: the first time may show that SuperLink has ended meanwhile."""
        try:
            return question(self._superlink.control())
        except httpx.TransportError as error:
            LOG.warning("the link to SuperLink broke: %s", in_words(error))
            time.sleep(RESTART_SECONDS)
        try:
            return question(self._superlink.control())
        except httpx.TransportError as error:
            raise LinkError(f"SuperLink does not answer: {in_words(error)}") from None

    def close(self) -> None:
        self.link.close()
        self._superlink.close()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:  # the system would take the rest of the division
        raise LinkError(f"port {port} is out of range (0–65535)")
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=1024)
        except OSError as error:
            if time.monotonic() > deadline or isinstance(error, socket.gaierror):
                raise LinkError(f"the server cannot listen on {host}:{port}: {error}") from None
            time.sleep(0.2)


def _line(public_key: bytes) -> bytes:
    key = serialization.load_pem_public_key(public_key)
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
