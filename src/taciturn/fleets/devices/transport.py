"""The wire between a server and its devices, as rounds see it: questions go down, answers come up,
and nothing else.

Three promises hold on every wire, and rounds rely on them. An answer belongs to the question that
was asked, and to the device it was asked of. An answer that was not there when `ask` returned is
never seen. And a device that is late, gone, broken or sends too much is missing from the answers,
never an error. Devices have the numbers of their certificates, and which of them answered is logged
only at DEBUG.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from taciturn.errors import TaciturnError
from taciturn.progress import Progress, ignore_progress

LOG = logging.getLogger("taciturn.fleet")

# on the device: kind of question and its content → answer
Handler = Callable[[str, bytes], bytes]
# what each is sent
ByDevice = Mapping[int, bytes]

# of one answer: six times a report of 2.4 million parameters
MOST_BYTES = 64 * 2**20
# where a connection may do without encryption
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
# why an answer is missing
LATE, GONE, FAILED, LARGE = (
    "too late",
    "not connected",
    "failed",
    "too large",
)
# seconds for which a device stays away at most, whatever it is told
MOST_AWAY = 24 * 3600.0


class LinkError(TaciturnError):
    """There is no connection, for a reason that a person can act on."""


class ComeBackLater(Exception):
    """Raised by a handler: its answer is empty, and the device leaves and returns after this many
    seconds.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = min(seconds, MOST_AWAY) if seconds > 0 else 0.0
        super().__init__(f"back in {self.seconds:.0f} seconds")


class Link(Protocol):
    """Between a server and its devices; examples/fleet_in_process.py has a small one."""

    def devices(self) -> list[int]:
        """Return the numbers of those connected now, sorted. A device keeps its number for as long
        as it keeps its key.
        """
        ...

    def ask(
        self,
        kind: str,
        contents: ByDevice,
        seconds: float,
        progress: Progress = ignore_progress,
        shared: bytes = b"",
    ) -> dict[int, bytes]:
        """Send each device its content, wait until all have answered or `seconds` have passed, and
        return the answers. `shared` follows each content, and travels as one file for all. A device
        that failed, is gone or late is not in the answers; late ones are discarded for good. One
        call at a time.
        """
        ...


def answer_of(handler: Handler, kind: str, content: bytes) -> bytes | None:
    """Answer on the device. Errors stay in its own log, as their words may be the user's;
    `ComeBackLater` passes through.
    """
    try:
        answer = handler(kind, content)
        if not isinstance(answer, bytes):
            raise TypeError(f"an answer is bytes, not {type(answer).__name__}")
        return answer
    except ComeBackLater:
        raise
    except Exception as error:
        LOG.warning("no answer to “%s”: %s: %s", kind, type(error).__name__, error)
        LOG.debug("where it happened", exc_info=True)
        return None


def answered(
    kind: str, contents: Mapping[int, bytes], outcomes: Mapping[int, bytes | str]
) -> dict[int, bytes]:
    """Return the answers to a question, in its order. Log one line for all that are missing; which
    devices they are only at DEBUG.
    """
    came = {number: outcomes.get(number, LATE) for number in contents}
    if missing := {number: why for number, why in came.items() if isinstance(why, str)}:
        reasons = ", ".join(
            f"{count} {reason}" for reason, count in sorted(Counter(missing.values()).items())
        )
        LOG.warning(
            "“%s”: no answer from %d of %d devices (%s)", kind, len(missing), len(contents), reasons
        )
        LOG.debug("“%s”: without an answer: %s", kind, missing)
    return {number: answer for number, answer in came.items() if isinstance(answer, bytes)}
