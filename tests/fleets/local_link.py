"""A link without a network: devices in this process, each in a thread of its own."""

import queue
import threading
import time
from collections.abc import Callable, Mapping

from taciturn.fleets.devices.transport import (
    FAILED,
    GONE,
    LARGE,
    MOST_BYTES,
    ComeBackLater,
    Handler,
    answer_of,
    select_answers,
)
from taciturn.progress import Progress, ignore_progress

Fault = Callable[
    [int, str, bytes], bytes | None
]  # device, kind, answer → the answer that arrives, if any


class LocalLink:
    """Every answer passes through `faults`, in the device's thread, which may change it, sleep
    until it is too late, or lose it (None). What is lost is known here at once, so that a test of
    it need not wait.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        faults: tuple[Fault, ...] = (),
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._faults, self._most_bytes = faults, most_bytes
        self._devices: dict[int, _Device] = {}
        for number, handler in handlers.items():
            self.add(number, handler)

    def add(self, number: int, handler: Handler) -> None:
        """A new device; or the same after a restart, and then whatever it was working on is
        lost.
        """
        self._devices[number] = _Device(handler)

    def remove(self, number: int) -> None:
        """Killed: it answers nothing any more, not even what it was asked before."""
        self._devices.pop(number, None)

    def devices(self) -> list[int]:
        return sorted(
            number for number, device in self._devices.items() if device.back_at <= time.monotonic()
        )

    def ask(
        self,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        progress: Progress = ignore_progress,
        shared: bytes = b"",
    ) -> dict[int, bytes]:
        deadline, connected, came = (
            time.monotonic() + seconds,
            set(self.devices()),
            queue.SimpleQueue(),
        )
        outcomes: dict[int, bytes | str] = {
            number: GONE for number in contents if number not in connected
        }
        for number in contents:
            if number not in outcomes:
                threading.Thread(
                    target=self._work,
                    args=(came, number, kind, contents[number] + shared),
                    daemon=True,
                ).start()
        while len(outcomes) < len(contents):
            try:
                number, outcome = came.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            outcomes[number] = outcome
            if isinstance(outcome, bytes):
                progress(sum(isinstance(one, bytes) for one in outcomes.values()), len(contents))
        return select_answers(kind, contents, outcomes)  # what comes later comes to nobody

    def _work(self, came: queue.SimpleQueue, number: int, kind: str, content: bytes) -> None:
        came.put((number, self._answer(number, kind, content)))

    def _answer(self, number: int, kind: str, content: bytes) -> bytes | str:
        device = self._devices.get(number)
        if device is None:
            return GONE
        with device.busy:  # one question at a time, as a real one
            try:
                answer = answer_of(device.handler, kind, content)
            except ComeBackLater as later:
                answer, device.back_at = b"", time.monotonic() + later.seconds
            for fault in self._faults:
                answer = None if answer is None else fault(number, kind, answer)
        if self._devices.get(number) is not device:
            return GONE
        if answer is None:
            return FAILED
        return LARGE if len(answer) > self._most_bytes else answer


class _Device:
    def __init__(self, handler: Handler) -> None:
        self.handler, self.busy, self.back_at = handler, threading.Lock(), 0.0
