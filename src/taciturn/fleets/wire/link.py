"""`Link` (devices/transport.py) over a store: the server's end of the wire."""

import hashlib
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from taciturn.fleets.devices.transport import GONE, LATE, LOG, MOST_BYTES, LinkError, Question
from taciturn.fleets.wire.metrics import COUNTS
from taciturn.fleets.wire.store import Store, StoreGone
from taciturn.progress import Progress

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
        self,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        enough: int | None = None,
        progress: Progress = lambda done, all: None,
        shared: bytes = b"",
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
                question.wait_for_all(deadline, enough, progress)
            except StoreGone as gone:
                LOG.warning("“%s” ends here: %s", kind, gone)
            finally:
                with suppress(StoreGone):  # its name is forgotten with this call: what comes to it comes to nobody
                    self._store.withdraw(question.name)
        COUNTS.add("taciturn_questions_total", len(contents))
        COUNTS.add("taciturn_answers_total", len(question.answers))
        return question.result(LATE)

    def close(self) -> None:
        """Nothing is open between two questions."""


class _Question(Question):
    def __init__(self, kind: str, contents: Mapping[int, bytes], store: Store) -> None:
        super().__init__(kind, contents)
        self.name, self._store, self._looked = secrets.token_hex(16), store, time.monotonic()

    def post(self, deadline: float, file: str) -> None:
        here = set(self._store.present())
        for number in self.contents.keys() - here:
            self.settle(number, GONE)
        present = {number: content for number, content in self.contents.items() if number in here}
        self._store.post(self.name, self.kind, present, file, deadline - time.monotonic())

    def wait(self, until: float) -> None:
        for number, outcome in self._store.collect(self.name, min(LOOK_SECONDS, until - time.monotonic())):
            self.settle(number, outcome)
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked, here = time.monotonic(), set(self._store.present())
            for number, outcome in self._store.collect(self.name, 0):  # of those too who answered and left
                self.settle(number, outcome)
            for number in self.contents.keys() - here:
                self.settle(number, GONE)
