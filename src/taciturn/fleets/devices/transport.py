"""The wire between a server and its devices, as rounds see it: questions go down, answers come up, and nothing else.

Three promises hold on every wire, and rounds rely on them. An answer belongs to the question that was asked, and to the device it was asked
of. What was not there when `ask` returned never comes to light again. And a device that is late, gone, broken or talks too much is missing
from the answers, never an error: fleets lose devices all the time.

Numbers are those of devices' certificates. Which person has one is known to nobody here, and which of them answered goes to no log but at
DEBUG.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from taciturn.errors import TaciturnError
from taciturn.progress import Progress

LOG = logging.getLogger("taciturn.fleet")

Handler = Callable[[str, bytes], bytes]  # on the device: kind of question and its content → answer

MOST_BYTES = 64 * 2**20  # of one answer: six times a report of 2.4 million parameters
LOOPBACK = {"localhost", "127.0.0.1", "::1"}  # where a connection may do without encryption
LATE, GONE, FAILED, LARGE = "too late", "not connected", "failed", "too large"  # why an answer is missing
MOST_AWAY = 24 * 3600.0  # seconds for which a device goes away at a time, whatever it is told


class LinkError(TaciturnError):
    """There is no wire, for a reason that a person can do something about."""


class ComeBackLater(Exception):
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
            def ask(self, kind, contents, seconds, enough=None, progress=lambda done, all: None, shared=b""):
                return {7: contents[7] + shared} if 7 in contents else {}
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
        shared: bytes = b"",
    ) -> dict[int, bytes]:
        """Send each device its content, wait until all (or `enough`) have answered or `seconds` are over; the answers that came.

        What is `shared` follows everybody's content, and travels as one file for all.

        A device that failed, is gone or late is not in it; late answers are discarded for good. Where several come at once there may be
        more than `enough`. One call at a time."""
        ...

    def close(self) -> None:
        """No more questions; whoever still works on one works in vain."""
        ...


def answer_of(handler: Handler, kind: str, content: bytes) -> bytes | None:
    """Answer on the device. Errors stay in its own log, as their words may be the user's; `ComeBackLater` passes through."""
    try:
        answer = handler(kind, content)
        if not isinstance(answer, bytes):
            raise TypeError(f"an answer is bytes, and not {type(answer).__name__}")
        return answer
    except ComeBackLater:
        raise
    except Exception as error:
        LOG.warning("no answer to “%s”: %s: %s", kind, type(error).__name__, error)
        LOG.debug("where it happened", exc_info=True)
        return None


class Question(ABC):
    """What was asked, and what has come of it so far. Links say how they `wait`."""

    def __init__(self, kind: str, contents: Mapping[int, bytes]) -> None:
        self.kind, self.contents = kind, dict(contents)
        self.answers: dict[int, bytes] = {}
        self.missing: dict[int, str] = {}  # and why

    @property
    def settled(self) -> int:
        return len(self.answers) + len(self.missing)

    def settle(self, number: int, outcome: bytes | str) -> None:
        if number not in self.answers and number not in self.missing:
            if isinstance(outcome, bytes):
                self.answers[number] = outcome
            else:
                self.missing[number] = outcome

    @abstractmethod
    def wait(self, until: float) -> None:
        """For a while, or for something to come; never longer than until then."""

    def wait_for_all(self, until: float, enough: int | None, progress: Progress) -> None:
        """Until all (or `enough`) have answered, or it is too late."""
        goal, shown = len(self.contents) if enough is None else enough, 0
        while True:
            if len(self.answers) > shown:
                shown = len(self.answers)
                progress(shown, len(self.contents))
            if shown >= goal or self.settled == len(self.contents) or time.monotonic() >= until:
                return
            self.wait(until)

    def result(self, why: str) -> dict[int, bytes]:
        """Return answers in the order of questions; log the missing ones in one line, by `why` (their devices at DEBUG only)."""
        missing = {one: self.missing.get(one, why) for one in self.contents if one not in self.answers}
        if missing:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(Counter(missing.values()).items()))
            LOG.warning("“%s”: no answer from %d of %d devices (%s)", self.kind, len(missing), len(self.contents), reasons)
            LOG.debug("“%s”: without an answer: %s", self.kind, missing)
        return {one: self.answers[one] for one in self.contents if one in self.answers}
