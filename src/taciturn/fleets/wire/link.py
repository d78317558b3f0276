"""`Link` (devices/transport.py) over a store: the server's end of the wire."""

import hashlib
import secrets
import threading
import time
from collections.abc import Mapping

from taciturn.fleets.devices.transport import GONE, LATE, MOST_BYTES, LinkError, Question
from taciturn.fleets.wire.store import Store
from taciturn.progress import Progress

LOOK_SECONDS = 5.0  # between two looks for devices that are gone


class WireLink:
    def __init__(self, store: Store) -> None:
        self._store, self._asking = store, threading.Lock()

    def devices(self) -> list[int]:
        return self._store.present()

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
            if shared:
                self._store.share(file, shared)
            question = _Question(kind, contents, self._store, deadline, file)
            try:
                question.wait_for_all(deadline, enough, progress)
            finally:
                self._store.withdraw(question.name)
        return question.result(LATE)

    def close(self) -> None:
        """Nothing is open between two questions."""


class _Question(Question):
    def __init__(self, kind: str, contents: Mapping[int, bytes], store: Store, deadline: float, file: str) -> None:
        super().__init__(kind, contents)
        self.name, self._store, self._looked = secrets.token_hex(16), store, time.monotonic()
        here = set(store.present())
        for number in self.contents.keys() - here:
            self.settle(number, GONE)
        present = {number: content for number, content in self.contents.items() if number in here}
        store.post(self.name, kind, present, file, deadline - time.monotonic())

    def wait(self, until: float) -> None:
        for number, outcome in self._store.collect(self.name, min(LOOK_SECONDS, until - time.monotonic())):
            self.settle(number, outcome)
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked, here = time.monotonic(), set(self._store.present())
            for number, outcome in self._store.collect(self.name, 0):  # of those too who answered and left
                self.settle(number, outcome)
            for number in self.contents.keys() - here:
                self.settle(number, GONE)
