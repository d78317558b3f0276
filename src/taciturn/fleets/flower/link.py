"""`fleets.link.Link` over Flower: one question at a time, and whatever a dead SuperLink took with it is asked no more."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import httpx
from flwr.supercore.control.control_http_client import ControlHttpClient

from taciturn.fleets.devices.transport import GONE, LATE, LOG, LinkError, Question
from taciturn.fleets.flower.child import SuperLink
from taciturn.fleets.flower.questions import Arrival, Run, in_words
from taciturn.progress import Progress

POLL_SECONDS = 0.1  # between two looks for answers, on a socket within this machine
RESTART_SECONDS = 0.5  # for the system to notice that a process is dead

Result = TypeVar("Result")


class FlowerLink:
    def __init__(self, superlink: SuperLink, most_bytes: int) -> None:
        self._superlink, self._most_bytes = superlink, most_bytes
        self._run: Run | None = None
        self._control: ControlHttpClient | None = None  # of the process that the run is in
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
        if not contents or seconds <= 0:
            return {}
        with self._asking:
            question = self._on_a_run(lambda run: _Question(kind, contents, run, seconds, self._most_bytes))
            try:
                self._discard_late(question.run)
                question.wait_for_all(deadline, enough, progress)
                self._late |= dict.fromkeys(question.withdraw(), deadline)
            except httpx.HTTPError as error:
                LOG.warning("the link to the devices broke while they were at work: %s", in_words(error))
                self.close()
        return question.result(GONE)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _discard_late(self, run: Run) -> None:
        """What has been answered since it was given up takes room in SuperLink's memory, and is looked at by nobody."""
        if self._late:
            for message_id, reply in run.replies(set(self._late)):
                if isinstance(reply, Arrival):
                    run.forget(reply.tree.object_id)
                self._late.pop(message_id, None)
            now = time.monotonic()
            self._late = {message_id: until for message_id, until in self._late.items() if until > now}

    def _on_a_run(self, use: Callable[[Run], Result]) -> Result:
        """Twice at most: the first time may show that SuperLink, or the run, has ended meanwhile."""
        for attempt in (1, 2):
            try:
                control = self._superlink.control()
                if control is not self._control or self._run is None:
                    self.close()
                    self._control, self._late = control, {}
                    self._run = Run(self._superlink.inside, control)
                return use(self._run)
            except httpx.HTTPError as error:
                LOG.warning("the link to the devices broke: %s", in_words(error))
                self.close()
                if attempt == 2:
                    raise LinkError(f"SuperLink does not answer: {in_words(error)}") from None
                time.sleep(RESTART_SECONDS)
        raise AssertionError


class _Question(Question):
    def __init__(self, kind: str, contents: Mapping[int, bytes], run: Run, seconds: float, most_bytes: int) -> None:
        super().__init__(kind, contents)
        self.run, self._sent, self._most_bytes = run, run.send(kind, contents, seconds), most_bytes
        self.open = dict(self._sent)  # by the id of the message
        for number in contents.keys() - self._sent.values():
            self.settle(number, GONE)
        self._arrivals: dict[str, Arrival] = {}

    def wait(self, until: float) -> None:
        if not self._look():
            time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))

    def _look(self) -> bool:
        """Whether an answer was among what has come."""
        before = len(self.answers)
        waiting = self.open.keys() - self._arrivals.keys()
        for message_id, reply in self.run.replies(waiting) if waiting else ():
            if isinstance(reply, Arrival):
                self._arrivals[message_id] = reply
            else:
                self.settle(self.open.pop(message_id), reply)
        for message_id, arrival in list(self._arrivals.items()):
            content = self.run.fetch(arrival, self._most_bytes)
            if content is not None:
                del self._arrivals[message_id]
                self.settle(self.open.pop(message_id), content)
        return len(self.answers) > before

    def withdraw(self) -> list[str]:
        """Free what the question takes; a device that has not fetched it yet never will. Those that may still be answered, in vain."""
        for number in self.open.values():
            self.settle(number, LATE)
        for message_id in self._sent:
            self.run.forget(message_id)
        for arrival in self._arrivals.values():
            self.run.forget(arrival.tree.object_id)
        return [message_id for message_id in self.open if message_id not in self._arrivals]
