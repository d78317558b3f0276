"""`Link` (devices/transport.py) over a store: the server's end of the wire."""

import hashlib
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from taciturn.fleets.devices.transport import GONE, LOG, MOST_BYTES, LinkError, answered
from taciturn.fleets.wire.metrics import COUNTS
from taciturn.fleets.wire.store import Store, StoreGone
from taciturn.progress import Progress, unwatched

LOOK_SECONDS = 5.0  # between two looks for devices that are gone


class WireLink:
    def __init__(self, store: Store) -> None:
        self._store, self._asking = store, threading.Lock()

    def devices(self) -> list[int]:
        try:
            return self._store.present()
        except StoreGone as gone:
            LOG.warning("nobody is there: %s", gone)
            return []

    def ask(
        self, kind: str, contents: Mapping[int, bytes], seconds: float, progress: Progress = unwatched, shared: bytes = b""
    ) -> dict[int, bytes]:
        if not contents or seconds <= 0:
            return {}
        if max(len(shared), *map(len, contents.values())) > MOST_BYTES:
            raise LinkError(f"a question has at most {MOST_BYTES:,} bytes")
        deadline = time.monotonic() + seconds
        with self._asking:
            file = hashlib.sha256(shared).hexdigest() if shared else ""
            question = _Question(kind, contents, self._store)
            try:
                if shared:
                    self._store.share(file, shared)
                question.post(deadline, file)
                question.wait_for_all(deadline, progress)
            except StoreGone as gone:
                LOG.warning("“%s” ends here: %s", kind, gone)
            finally:
                with suppress(StoreGone):  # its name is forgotten with this call: what comes to it comes to nobody
                    self._store.withdraw(question.name)
        answers = answered(kind, contents, question.outcomes)
        COUNTS.add("taciturn_questions_total", len(contents))
        COUNTS.add("taciturn_answers_total", len(answers))
        return answers


class _Question:
    """What was asked, and what has come of it so far: answers, or why there is none. What came first counts."""

    def __init__(self, kind: str, contents: Mapping[int, bytes], store: Store) -> None:
        self.name, self.outcomes = secrets.token_hex(16), dict[int, bytes | str]()
        self._kind, self._contents, self._store, self._looked = kind, contents, store, time.monotonic()

    def post(self, deadline: float, file: str) -> None:
        here = set(self._store.present())
        self._give_up_all_but(here)
        present = {number: content for number, content in self._contents.items() if number in here}
        self._store.post(self.name, self._kind, present, file, deadline - time.monotonic())

    def wait_for_all(self, deadline: float, progress: Progress) -> None:
        shown = 0
        while len(self.outcomes) < len(self._contents) and (left := deadline - time.monotonic()) > 0:
            self._collect(min(LOOK_SECONDS, left))
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self._looked, here = time.monotonic(), set(self._store.present())
                self._collect(0)  # of those too who answered and left
                self._give_up_all_but(here)
            if (came := sum(isinstance(one, bytes) for one in self.outcomes.values())) > shown:
                shown = came
                progress(shown, len(self._contents))

    def _collect(self, seconds: float) -> None:
        for number, outcome in self._store.collect(self.name, seconds):
            self.outcomes.setdefault(number, outcome)

    def _give_up_all_but(self, here: Collection[int]) -> None:
        for number in self._contents.keys() - here:
            self.outcomes.setdefault(number, GONE)
