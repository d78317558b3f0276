"""Many devices in one event loop, to see what a deployment carries: the wire of docs/protocol.md, and handlers in a few threads.

One device for one person is device.py, which survives more; here whatever goes wrong is counted, and the device comes back.
"""

import asyncio
import hashlib
import ssl
import time
from asyncio import sslproto
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.fleets.devices.transport import FAILED, ComeBackLater, Handler, answer_of
from taciturn.fleets.wire.device import sign_in_body

# asyncio gives each TLS connection a buffer of 256 KiB: see door.py
sslproto.SSLProtocol.max_size = 32 * 1024
WAIT_SECONDS, REQUEST_SECONDS, AGAIN_SECONDS, ALIVE_SECONDS = 50, 120.0, 1.0, 30.0
HANDSHAKES = 100  # at a time: a server holds few connections that have not said who they are
WORKERS = 2
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GONE_ERRORS = (OSError, EOFError, ValueError, TimeoutError, asyncio.IncompleteReadError)


@dataclass
class Load:
    """What came of it, as devices saw it."""

    connected: int = 0
    answered: Counter[str] = field(default_factory=Counter)  # by the kind of question
    rounds: set[str] = field(default_factory=set)  # names of last questions of a round
    seconds: list[float] = field(default_factory=list)  # that requests took, but for those that wait
    failures: Counter[str] = field(default_factory=Counter)
    most_connected: int = 0
    most_a_second: float = 0.0
    looked: tuple[float, int] = field(default_factory=lambda: (time.monotonic(), 0))  # when last, and how many answers there were

    def look(self) -> None:
        """To be called every second or so: what was most is kept."""
        (then, before), now, answered = self.looked, time.monotonic(), self.answered.total()
        self.most_connected = max(self.most_connected, self.connected)
        self.most_a_second = max(self.most_a_second, (answered - before) / (now - then))
        self.looked = (now, answered)

    def quantile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class LoadDevice:
    def __init__(self, server: str, key: Ed25519PrivateKey, handler: Handler, last_kind: str) -> None:
        """`last_kind` is the question with which a round ends."""
        self._host, _, self._port = server.rpartition(":")
        self._key, self._handler, self._last_kind = key, handler, last_kind
        self._token, self._known = "", False
        self._file = ("", b"")

    async def run(self, load: Load, context: ssl.SSLContext, workers: ThreadPoolExecutor, room: asyncio.Semaphore) -> None:
        """Until it is cancelled."""
        self._context = context
        while True:
            away = AGAIN_SECONDS
            try:
                async with room:
                    self._line = await self._connect()
                    await self._sign_in(load)
                load.connected += 1
                self._known = True
                try:
                    while True:
                        await self._serve(load, workers)
                finally:
                    load.connected -= 1
                    self._line[1].close()
            except ComeBackLater as later:
                away = later.seconds
            except GONE_ERRORS as error:
                if self._known:  # before, the server may not be there yet
                    load.failures[str(error) if type(error) is ValueError else type(error).__name__] += 1
            await asyncio.sleep(away)

    async def _sign_in(self, load: Load) -> None:
        _, content = await self._timed(load, "POST /v1/session", {200}, sign_in_body(self._key))
        self._token = content.decode()

    async def _serve(self, load: Load, workers: ThreadPoolExecutor) -> None:
        headers, content = await self._request(f"GET /v1/question?wait={WAIT_SECONDS}", {200, 204})
        if headers["status"] == "204":
            return
        name, kind, file = headers["question"], headers["kind"], headers["shared"]
        if file and self._file[0] != file:
            _, model = await self._timed(load, f"GET /v1/files/{file}", {200})
            if hashlib.sha256(model).hexdigest() != file:
                raise ValueError("a file is not what its name says")
            self._file = (file, model)
        whole = content + self._file[1] if file else content
        away, living = None, asyncio.create_task(self._give_signs_of_life())
        try:
            answer = await asyncio.get_running_loop().run_in_executor(workers, answer_of, self._handler, kind, whole)
        except ComeBackLater as later:
            answer, away = b"", later
        finally:
            living.cancel()
        failed = f"failed: {FAILED}\r\n" if answer is None else ""
        headers, _ = await self._timed(load, f"PUT /v1/answer/{name}", {204, 410}, answer or b"", failed)
        if headers["status"] == "410":
            load.failures["an answer that came too late"] += 1
        elif failed:
            load.failures[f"a device that could not answer “{kind}”"] += 1
        else:
            load.answered[kind] += 1
            if kind == self._last_kind:
                load.rounds.add(name)
        if away:
            with suppress(*GONE_ERRORS):
                await self._request("DELETE /v1/session", {204})
            raise away

    async def _timed(self, load: Load, line: str, expected: set[int], body: bytes = b"", more: str = "") -> tuple[dict[str, str], bytes]:
        began = time.monotonic()
        answer = await self._request(line, expected, body, more)
        load.seconds.append(time.monotonic() - began)
        return answer

    async def _give_signs_of_life(self) -> None:
        """While it works, on a connection of its own, or the server would take it for gone."""
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            with suppress(*GONE_ERRORS):
                line = await self._connect()
                try:
                    await self._once(line, "POST /v1/alive", {204})
                finally:
                    line[1].close()

    async def _request(self, line: str, expected: set[int], body: bytes = b"", more: str = "") -> tuple[dict[str, str], bytes]:
        """A connection that was closed meanwhile, while the device worked, is opened once more."""
        try:
            return await self._once(self._line, line, expected, body, more)
        except (ConnectionError, EOFError):
            self._line[1].close()
            self._line = await self._connect()
            return await self._once(self._line, line, expected, body, more)

    async def _connect(self) -> Line:
        return await asyncio.open_connection(self._host, int(self._port), ssl=self._context)

    async def _once(
        self, connection: Line, line: str, expected: set[int], body: bytes = b"", more: str = ""
    ) -> tuple[dict[str, str], bytes]:
        reader, writer = connection
        length = f"Content-Length: {len(body)}\r\n" if line.startswith("P") else ""
        token = f"Authorization: Bearer {self._token}\r\n" if self._token else ""
        writer.write(f"{line} HTTP/1.1\r\nHost: {self._host}\r\n{token}{more}{length}\r\n".encode() + body)
        async with asyncio.timeout(REQUEST_SECONDS):
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in head[1:] if one)}
            headers["status"] = head[0].split(" ")[1]
            content = await reader.readexactly(int(headers.get("content-length", "0")))
        if int(headers["status"]) not in expected:
            self._token = ""
            raise ValueError(f"the server's refusal ({headers['status']}): {content[:200].decode('latin-1')}")
        return headers, content


async def run_load(devices: Sequence[LoadDevice], load: Load, context: ssl.SSLContext) -> None:
    """Until it is cancelled."""
    room = asyncio.Semaphore(HANDSHAKES)
    with ThreadPoolExecutor(WORKERS) as workers:
        async with asyncio.TaskGroup() as running:
            for device in devices:
                running.create_task(device.run(load, context, workers, room))
