"""The wire between a server and its devices, as rounds see it: questions go down, answers come up, and nothing else.

Three promises hold on every wire, and rounds rely on them. An answer belongs to the question that was asked, and to the device it was asked
of. What was not there when `ask` returned never comes to light again. And a device that is late, gone, broken or talks too much is missing
from the answers, never an error: fleets lose devices all the time.

Numbers are those of connections. Which person sits at one is known to nobody here, and which of them answered goes to no log but at DEBUG.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from taciturn.errors import TaciturnError
from taciturn.progress import Progress

LOG = logging.getLogger("taciturn.fleet")

Handler = Callable[[str, bytes], bytes]  # on the device: kind of question and its content → answer
Fault = Callable[[int, str, bytes], bytes | None]  # device, kind, answer → the answer that arrives, if any

MOST_BYTES = 64 * 2**20  # of one answer: six times a report of 2.4 million parameters
LOOPBACK = {"localhost", "127.0.0.1", "::1"}  # where a connection may do without encryption
LATE, GONE, FAILED, LARGE = "too late", "not connected", "failed", "too large"  # why an answer is missing


MOST_AWAY = 24 * 3600.0  # seconds for which a device goes away at a time, whatever it is told


class LinkError(TaciturnError):
    """There is no wire, for a reason that a person can do something about."""


class Later(Exception):
    """Raised by a handler: its answer is empty, and the device goes away and comes back after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = min(seconds, MOST_AWAY) if seconds > 0 else 0.0
        super().__init__(f"back in {self.seconds:.0f} seconds")


class Link(Protocol):
    """Between a server and its devices: questions go down, answers come up, and nothing else.

    A complete one, with a single device that echoes:

        class Echo:
            def devices(self):
                return [7]
            def ask(self, kind, contents, seconds, enough=None, progress=lambda done, all: None):
                return {7: contents[7]} if 7 in contents else {}
            def close(self):
                pass
    """

    def devices(self) -> list[int]:
        """The numbers of those connected now, sorted. A device keeps its number for as long as it keeps its key."""
        ...

    def ask(
        self,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        enough: int | None = None,
        progress: Progress = lambda done, all: None,
    ) -> dict[int, bytes]:
        """Send each device its content, wait until all (or `enough`) have answered or `seconds` are over; the answers that came.

        A device that failed, is gone or late is not in it; late answers are discarded for good. Where several come at once there may be
        more than `enough`. One call at a time."""
        ...

    def close(self) -> None:
        """No more questions; whoever still works on one works in vain."""
        ...


def answer_of(handler: Handler, kind: str, content: bytes) -> bytes | None:
    """On the device. What went wrong stays in its own log: the words of an exception may be those of its user. `Later` passes through."""
    try:
        answer = handler(kind, content)
        if not isinstance(answer, bytes):
            raise TypeError(f"an answer is bytes, and not {type(answer).__name__}")
        return answer
    except Later:
        raise
    except Exception as error:
        LOG.warning("no answer to “%s”: %s: %s", kind, type(error).__name__, error)
        LOG.debug("where it happened", exc_info=True)
        return None


def log_missing(kind: str, asked: int, missing: Mapping[int, str]) -> None:
    """One line for all devices without an answer, by the reason. Which they were is for DEBUG alone."""
    if missing:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(Counter(missing.values()).items()))
        LOG.warning("“%s”: no answer from %d of %d devices (%s)", kind, len(missing), asked, reasons)
        LOG.debug("“%s”: without an answer: %s", kind, dict(missing))


class LocalLink:
    """Devices in this process, each in a thread of its own: for tests, and for trying a fleet out without a network.

    Every answer passes through `faults`, in the device's thread, which may change it, sleep until it is too late, or lose it (None).
    What is lost is known here at once, so that a test of it need not wait.
    """

    def __init__(
        self, handlers: Mapping[int, Handler], faults: tuple[Fault, ...] = (), most_bytes: int = MOST_BYTES
    ) -> None:
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
    ) -> dict[int, bytes]:
        deadline = time.monotonic() + seconds
        question, connected = _Question(kind, contents), set(self.devices())
        for number in contents:
            if number in connected:
                threading.Thread(target=self._answer, args=(question, number), daemon=True).start()
            else:
                question.settle(number, GONE)
        goal = len(contents) if enough is None else min(enough, len(contents))
        shown = 0
        with question.changed:
            while True:
                if len(question.answers) > shown:
                    shown = len(question.answers)
                    progress(shown, len(contents))
                left = deadline - time.monotonic()
                if shown >= goal or not question.open or left <= 0:
                    break
                question.changed.wait(left)
            answers, missing = question.close()
        log_missing(kind, len(contents), missing)
        return answers

    def _answer(self, question: "_Question", number: int) -> None:
        device = self._devices.get(number)
        if device is None:
            return question.settle(number, GONE)
        with device.busy:  # one question at a time, as a real one
            try:
                answer = answer_of(device.handler, question.kind, question.contents[number])
            except Later as later:
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


class _Question:
    """What came back so far. After `close` nothing more is taken."""

    def __init__(self, kind: str, contents: Mapping[int, bytes]) -> None:
        self.kind, self.contents = kind, dict(contents)
        self.answers: dict[int, bytes] = {}
        self.open = set(contents)
        self._missing: dict[int, str] = {}
        self.changed = threading.Condition()

    def settle(self, number: int, outcome: bytes | str) -> None:
        with self.changed:
            if number in self.open:
                self.open.discard(number)
                if isinstance(outcome, bytes):
                    self.answers[number] = outcome
                else:
                    self._missing[number] = outcome
                self.changed.notify_all()

    def close(self) -> tuple[dict[int, bytes], dict[int, str]]:
        """The answers in the order of the questions, and why the others are missing."""
        late, self.open = self.open, set()
        answers = {number: self.answers[number] for number in self.contents if number in self.answers}
        return answers, self._missing | dict.fromkeys(late, LATE)
