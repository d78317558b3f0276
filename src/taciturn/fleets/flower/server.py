"""The server's end of the wire: SuperLink as a child process with our gate before it, kept alive, and a `Link` to the devices.

    with flower_server(folder, "0.0.0.0", 8443) as server:
        server.enrol(public_key)
        answers = server.link.ask("train", {number: message for number in server.link.devices()}, seconds=600)

SuperLink may die at any time. What was asked of devices is lost with it, and with the next question another one is started, which knows
the same devices by the same numbers. The sockets are this process's own, so that devices find the same address."""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from taciturn.fleets.flower.authority import SERVER_CERTIFICATE, SERVER_KEY, load_public_key, private_folder
from taciturn.fleets.flower.questions import Arrival, Run, over_socket
from taciturn.fleets.link import GONE, LATE, LOG, LOOPBACK, MOST_BYTES, LinkError, Progress, log_missing

Result = TypeVar("Result")

START_SECONDS = 120  # SuperLink imports a lot, and shares the machine
POLL_SECONDS = 0.1  # between two looks for answers, on a socket within this machine
FREE_SECONDS = 5  # an earlier server that was killed may hold the port for a moment


@contextmanager
def flower_server(
    folder: Path, host: str, port: int, insecure: bool = False, most_bytes: int = MOST_BYTES
) -> Iterator["FlowerServer"]:
    """Everything that devices need to connect to `host:port` (0: a free one), from the certificate in the folder to an open door.

    Without TLS (`insecure`) on this machine alone; devices need an enrolled key even then."""
    if insecure and host not in LOOPBACK:
        raise LinkError(f"without TLS a server may listen on this machine alone, and {host} is more than that")
    if not insecure and not ((folder / SERVER_KEY).exists() and (folder / SERVER_CERTIFICATE).exists()):
        raise LinkError(f"{folder} holds no certificate for the server: make one first")
    server = FlowerServer(private_folder(folder), host, port, insecure, most_bytes)
    try:
        yield server
    finally:
        server.close()


class FlowerServer:
    """The `link` to the devices, and the list of those who may use it."""

    def __init__(self, folder: Path, host: str, port: int, insecure: bool, most_bytes: int) -> None:
        self._superlink = _SuperLink(folder, _listen(host, port), insecure, most_bytes)
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
            self._superlink.control().RegisterNode(request)
        except httpx.HTTPStatusError as error:
            known = FlowerError.from_json(error.response.text)
            if known is None or known.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                raise LinkError(f"SuperLink did not enrol the device: {error.response.text}") from None

    def enrolled(self) -> dict[int, bytes]:
        """Every device that may connect, connected or not: its number, and its public key as it was given."""
        nodes = self._superlink.control().ListNodes(ListNodesRequest()).nodes_info
        return {node.node_id: _line(node.public_key) for node in nodes if not node.unregistered_at}

    def dismiss(self, number: int) -> None:
        """Never again: the key cannot be enrolled anew."""
        self._superlink.control().UnregisterNode(UnregisterNodeRequest(node_id=number))

    def close(self) -> None:
        self.link.close()
        self._superlink.close()


class FlowerLink:
    """`fleets.link.Link` over Flower."""

    def __init__(self, superlink: "_SuperLink", most_bytes: int) -> None:
        self._superlink, self._most_bytes = superlink, most_bytes
        self._run: Run | None = None
        self._control: ControlHttpClient | None = None
        self._late: dict[str, float] = {}  # messages nobody waits for any more, and until when they could be answered
        self._asking = threading.Lock()

    def devices(self) -> list[int]:
        with self._asking:
            return self._on_a_run(lambda run: run.devices())

    def ask(
        self,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        enough: int | None = None,
        progress: Progress = lambda done, all: None,
    ) -> dict[int, bytes]:
        deadline = time.monotonic() + seconds
        with self._asking:
            if not contents or seconds <= 0:
                return {}
            sent = self._on_a_run(lambda run: run.send(kind, contents, seconds))
            answers, missing = self._collect(sent, deadline, enough or len(contents), len(contents), progress)
        missing = dict.fromkeys(contents.keys() - sent.values(), GONE) | missing
        log_missing(kind, len(contents), missing)
        return {number: answers[number] for number in contents if number in answers}

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def _collect(
        self, sent: dict[str, int], deadline: float, enough: int, asked: int, progress: Progress
    ) -> tuple[dict[int, bytes], dict[int, str]]:
        run, answers, missing = self._run, {}, {}
        open, arrivals = dict(sent), dict[str, Arrival]()
        assert run is not None
        try:
            self._discard_late(run)
            while open and len(answers) < enough and time.monotonic() < deadline:
                before = len(answers)
                for message_id, reply in run.replies(open.keys() - arrivals.keys()):
                    if isinstance(reply, Arrival):
                        arrivals[message_id] = reply
                    elif message_id in open:
                        missing[open.pop(message_id)] = reply
                for message_id, arrival in list(arrivals.items()):
                    content = run.fetch(arrival, self._most_bytes)
                    if content is not None:
                        number = open.pop(message_id)
                        del arrivals[message_id]
                        (answers if isinstance(content, bytes) else missing)[number] = content
                if len(answers) > before:
                    progress(len(answers), asked)
                elif open:
                    time.sleep(POLL_SECONDS)
            self._leave_behind(run, open, arrivals, deadline)
        except (httpx.HTTPError, RuntimeError) as error:
            LOG.warning("the link to the devices broke while they were at work: %s", _words(error))
            self._run = None
            return answers, missing | dict.fromkeys(open.values(), GONE)
        return answers, missing | dict.fromkeys(open.values(), LATE)

    def _leave_behind(self, run: Run, open: dict[str, int], arrivals: dict[str, Arrival], deadline: float) -> None:
        """Free what the unanswered take, and remember them: some will be answered yet, in vain."""
        for message_id in open:
            run.forget(arrivals[message_id].tree.object_id if message_id in arrivals else message_id)
            self._late[message_id] = deadline

    def _discard_late(self, run: Run) -> None:
        if self._late:
            for message_id, reply in run.replies(set(self._late)):
                if isinstance(reply, Arrival):
                    run.forget(reply.tree.object_id)
                self._late.pop(message_id, None)
            now = time.monotonic()
            self._late = {message_id: until for message_id, until in self._late.items() if until > now}

    def _on_a_run(self, ask: Callable[[Run], Result]) -> Result:
        """Twice at most: the first time may show that SuperLink, or the run, has ended meanwhile."""
        for attempt in (1, 2):
            control = self._superlink.control()
            if control is not self._control or self._run is None:
                self.close()
                self._control, self._late = control, {}
                self._run = Run(self._superlink.inside, control)
            try:
                return ask(self._run)
            except (httpx.HTTPError, RuntimeError) as error:
                LOG.warning("the link to the devices broke: %s", _words(error))
                self._run = None
                if attempt == 2:
                    raise LinkError(f"SuperLink does not answer: {_words(error)}") from None
        raise AssertionError


class _SuperLink:
    """The child process, started again whenever it is needed and not there."""

    def __init__(self, folder: Path, outside: socket.socket, insecure: bool, most_bytes: int) -> None:
        self._folder, self._outside = folder, outside
        self._most_bytes, self._insecure = most_bytes, insecure
        self.port = outside.getsockname()[1]
        # Not in the server's folder: the path of a socket may have a hundred characters.
        self._run_folder = Path(tempfile.mkdtemp(prefix="taciturn-"))
        self.inside = self._run_folder / "superlink"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: ControlHttpClient | None = None
        self._starting = threading.Lock()

    def control(self) -> ControlHttpClient:
        """To a process that is alive: the same client as before exactly where it is the same process."""
        with self._starting:
            if self._process is not None and self._process.poll() is not None:
                LOG.warning("SuperLink has ended (%s); another one is started", self._process.returncode)
                self._process = None
            if self._process is None or self._control is None:
                self._start()
            assert self._control is not None
            return self._control

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # which is what it waits for
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            self._process.wait()
        self._outside.close()
        shutil.rmtree(self._run_folder, ignore_errors=True)

    def _start(self) -> None:
        outside, transport = self._outside.fileno(), "plain" if self._insecure else "tls"
        arguments = map(str, (self._folder, outside, self.inside, self._most_bytes, transport))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "taciturn.fleets.flower.superlink", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[outside],
            env={**os.environ, "FLWR_HOME": str(self._folder / "flower"), "JAX_PLATFORMS": "cpu"},
            start_new_session=True,  # Ctrl-C is for the server, which then ends it in order
        )
        threading.Thread(target=_log_lines, args=(self._process,), daemon=True).start()
        self._control = over_socket(ControlHttpClient, self.inside)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._control.ListNodes(ListNodesRequest())
                return
            except httpx.HTTPError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise LinkError(f"SuperLink did not start: {_words(error)}") from None
                time.sleep(0.05)


def _listen(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=1024)
        except OSError as error:
            if time.monotonic() > deadline or isinstance(error, socket.gaierror):
                raise LinkError(f"the server cannot listen on {host}:{port}: {error}") from None
            time.sleep(0.2)


def _log_lines(process: subprocess.Popen[bytes]) -> None:
    """The gate's lines as they are; Flower's may name devices, and so are for DEBUG."""
    assert process.stdout is not None
    for line in process.stdout:
        level, _, rest = line.decode(errors="replace").rstrip().partition(" ")
        logger, _, message = rest.partition(" ")
        if logger == LOG.name:
            LOG.log(logging.getLevelNamesMapping().get(level, logging.WARNING), "%s", message)
        else:
            LOG.debug("SuperLink: %s %s", level, rest)


def _line(public_key: bytes) -> bytes:
    key = serialization.load_pem_public_key(public_key)
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def _words(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.response.status_code} {error.response.text[:200]}"
    return f"{type(error).__name__}: {error}"
