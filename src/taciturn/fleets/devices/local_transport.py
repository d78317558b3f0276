"""A link without a network: devices in this process, each in a thread of its own."""

import threading
import time
from collections.abc import Callable, Mapping

from taciturn.fleets.devices.transport import FAILED, GONE, LARGE, LATE, MOST_BYTES, ComeBackLater, Handler, Progress, Question, answer_of

Fault = Callable[[int, str, bytes], bytes | None]  # device, kind, answer → the answer that arrives, if any


class LocalLink:
    """For tests, and for trying a fleet out.

    Every answer passes through `faults`, in the device's thread, which may change it, sleep until it is too late, or lose it (None).
    What is lost is known here at once, so that a test of it need not wait.
    """

    def __init__(self, handlers: Mapping[int, Handler], faults: tuple[Fault, ...] = (), most_bytes: int = MOST_BYTES) -> None:
        self._faults, self._most_bytes = faults, most_bytes
        self._devices: dict[int, _LocalDevice] = {}
        for number, handler in handlers.items():
            self.add(number, handler)

    def add(self, number: int, handler: Handler) -> None:
        """A new device; or the same after a restart, and then whatever it was working on is lost."""
        self._devices[number] = _LocalDevice(handler)

    def remove(self, number: int) -> None:
        """Killed: it answers nothing any more, not even what it was asked before."""
        self._devices.pop(number, None)

    def devices(self) -> list[int]:
        return sorted(number for number, device in self._devices.items() if device.back_at <= time.monotonic())

    def ask(
        self,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        enough: int | None = None,
        progress: Progress = lambda done, all: None,
        shared: bytes = b"",
    ) -> dict[int, bytes]:
        deadline = time.monotonic() + seconds
        whole = {number: content + shared for number, content in contents.items()}
        question, connected = _Question(kind, whole), set(self.devices())
        for number in contents:
            if number in connected:
                threading.Thread(target=self._answer, args=(question, number), daemon=True).start()
            else:
                question.settle(number, GONE)
        question.wait_for_all(deadline, enough, progress)
        return question.close()

    def _answer(self, question: "_Question", number: int) -> None:
        device = self._devices.get(number)
        if device is None:
            return question.settle(number, GONE)
        with device.busy:  # one question at a time, as a real one
            try:
                answer = answer_of(device.handler, question.kind, question.contents[number])
            except ComeBackLater as later:
                answer, device.back_at = b"", time.monotonic() + later.seconds
            for fault in self._faults:
                answer = None if answer is None else fault(number, question.kind, answer)
        if self._devices.get(number) is not device:
            return question.settle(number, GONE)
        if answer is None:
            return question.settle(number, FAILED)
        return question.settle(number, LARGE if len(answer) > self._most_bytes else answer)

    def close(self) -> None:
        self._devices.clear()


class _LocalDevice:
    def __init__(self, handler: Handler) -> None:
        self.handler, self.busy, self.back_at = handler, threading.Lock(), 0.0


class _Question(Question):
    def __init__(self, kind: str, contents: Mapping[int, bytes]) -> None:
        super().__init__(kind, contents)
        self._changed, self._seen = threading.Condition(), 0

    def settle(self, number: int, outcome: bytes | str) -> None:
        with self._changed:
            super().settle(number, outcome)
            self._changed.notify_all()

    def wait(self, until: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.settled > self._seen, until - time.monotonic())
            self._seen = self.settled

    def close(self) -> dict[int, bytes]:
        """After this nothing more is taken."""
        with self._changed:
            self.missing = dict.fromkeys(self.contents, LATE) | self.missing
        return self.result(LATE)
