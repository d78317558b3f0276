"""Many devices in one process, each a thread, to see what a deployment carries. They are those of device.py, but for what goes wrong:
here that is counted.
"""

import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.fleets.devices.transport import Handler
from taciturn.fleets.wire.device import DeviceEnd, RefusedByServer, SignedOut

HANDSHAKES = threading.Semaphore(100)  # at a time: a server holds few connections that have not said who they are
WORKERS = threading.Semaphore(2)
STACK_BYTES = 512 * 1024  # of a thread, of which there are thousands
END_SECONDS = 10.0  # for all of them to leave


@dataclass
class Load:
    """What came of it, as devices saw it."""

    answered: Counter[str] = field(default_factory=Counter)  # by the kind of question
    rounds: set[str] = field(default_factory=set)  # names of last questions of a round
    seconds: list[float] = field(default_factory=list)  # that requests took, but for those that wait
    failures: Counter[str] = field(default_factory=Counter)
    connected: set["LoadDevice"] = field(default_factory=set)
    most_connected: int = 0
    most_a_second: float = 0.0
    looked: tuple[float, int] = field(default_factory=lambda: (time.monotonic(), 0))  # when last, and how many answers there were
    over: bool = False  # whether its server may end
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, counter: Counter[str], what: str) -> None:
        with self.lock:
            counter[what] += 1

    def look(self) -> None:
        """To be called every second or so: what was most is kept."""
        (then, before), now, answered = self.looked, time.monotonic(), self.answered.total()
        self.most_connected = max(self.most_connected, len(self.connected))
        self.most_a_second = max(self.most_a_second, (answered - before) / (now - then))
        self.looked = (now, answered)

    def quantile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class LoadDevice(DeviceEnd):
    retry_seconds = 1.0, 1.0

    def __init__(
        self, server: str, key: Ed25519PrivateKey, handler: Handler, context: ssl.SSLContext | None, load: Load, last: str
    ) -> None:
        """`last` is the question with which a round ends."""

        def in_turn(kind: str, content: bytes) -> bytes:
            with WORKERS:
                return handler(kind, content)

        super().__init__(server, key, in_turn, context)
        self._load, self._last_kind, self._known = load, last, False

    def sign_in(self) -> None:
        with HANDSHAKES:
            super().sign_in()
        self._known = True
        self._load.connected.add(self)

    def sign_out(self) -> None:
        self._load.connected.discard(self)
        super().sign_out()

    def lost(self, error: Exception) -> None:
        self._load.connected.discard(self)
        if self._known and not self._load.over:  # before, the server may not be there yet, and then not any more
            named = isinstance(error, RefusedByServer | SignedOut)
            self._load.count(self._load.failures, str(error) if named else type(error).__name__)

    def answered(self, name: str, kind: str, failed: str | None, late: bool) -> None:
        if late or failed:
            why = "an answer that came too late" if late else f"a device that could not answer “{kind}”"
            self._load.count(self._load.failures, why)
            return
        self._load.count(self._load.answered, kind)
        if kind == self._last_kind:
            self._load.rounds.add(name)

    def _request(self, method: str, path: str, *about: Any, **more: Any) -> Any:
        began = time.monotonic()
        answer = super()._request(method, path, *about, **more)
        if not path.startswith("/v1/question"):
            self._load.seconds.append(time.monotonic() - began)
        return answer


@contextmanager
def running(devices: Sequence[LoadDevice]) -> Iterator[None]:
    """Until the end of the block."""
    stop, before = threading.Event(), threading.stack_size(STACK_BYTES)
    threads = [threading.Thread(target=device.run, args=(stop,), daemon=True) for device in devices]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        threading.stack_size(before)
        stop.set()
        for device in devices:
            device.hang_up()
        deadline = time.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
