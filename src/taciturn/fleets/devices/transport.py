"""The wire between a server and its devices, as rounds see it.

Questions go down, answers come up, and nothing else.

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

# On the device: kind of question and its content → answer.
Handler = Callable[[str, bytes], bytes]
# What each device is sent.
ByDevice = Mapping[int, bytes]

# Of one answer: six times a report of 2.4 million parameters.
MOST_BYTES = 64 * 2**20
# Where a connection may do without encryption.
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
# Why an answer is missing.
LATE = "too late"
GONE = "not connected"
FAILED = "failed"
LARGE = "too large"
# Seconds for which a device stays away at most, whatever the server says.
MOST_AWAY = 24 * 3600.0


class LinkError(TaciturnError):
    """There is no connection, for a reason that a person can act on."""


class ComeBackLater(Exception):
    """Raised by a handler: the device leaves, and returns after this number of seconds.

    Its answer is empty.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = min(seconds, MOST_AWAY) if seconds > 0 else 0.0
        super().__init__(f"back in {self.seconds:.0f} seconds")


class Link(Protocol):
    """Between a server and its devices; examples/fleet_in_process.py has a small one."""

    def devices(self) -> list[int]:
        """Return the numbers of those connected now, sorted.

        A device keeps its number for as long as it keeps its key.
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
        """Ask devices a question, and return their answers.

        A device that failed, is gone or late is not in the answers; late ones are discarded for
        good. One call at a time.

        Args:
            kind: of the question.
            contents: what each device is sent.
            seconds: how long to wait, unless all have answered before.
            progress: told how many have answered.
            shared: follows each content, and travels as one file for all.
        """
        ...


def answer_of(handler: Handler, kind: str, content: bytes) -> bytes | None:
    """Answer on the device, or return None if that failed.

    Errors stay in its own log, as their words may be the user's; `ComeBackLater` passes through.
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


def select_answers(
    kind: str, contents: Mapping[int, bytes], outcomes: Mapping[int, bytes | str]
) -> dict[int, bytes]:
    """Return the answers to a question, in its order.

    Logs one line for all that are missing; which devices they are only at DEBUG.

    Args:
        kind: of the question.
        contents: what each device was sent.
        outcomes: an answer, or why there is none; a device that has no outcome was too late.
    """
    answers = {}
    missing = {}
    for number in contents:
        outcome = outcomes.get(number, LATE)
        if isinstance(outcome, bytes):
            answers[number] = outcome
        else:
            missing[number] = outcome
    if missing:
        counts = sorted(Counter(missing.values()).items())
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts)
        LOG.warning(
            "“%s”: no answer from %d of %d devices (%s)", kind, len(missing), len(contents), reasons
        )
        LOG.debug("“%s”: without an answer: %s", kind, missing)
    return answers
