"""`Link` (devices/transport.py) over a store: the server's end of the wire."""

import hashlib
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from taciturn.fleets.devices.transport import GONE, LOG, MOST_BYTES, LinkError, answered
from taciturn.fleets.wire.metrics import COUNTS
from taciturn.fleets.wire.store import Store, StoreGone
from taciturn.progress import Progress, unwatched

LOOK_SECONDS = 5.0  # between two checks for devices that are gone


class WireLink:
    def __init__(self, store: Store) -> None:
        self._store, self._asking = store, threading.Lock()

    def devices(self) -> list[int]:
        try:
            return self._store.present()
        except StoreGone as gone:
            LOG.warning("no device is there: %s", gone)
            return []

    def ask(
        self, kind: str, contents: Mapping[int, bytes], seconds: float, progress: Progress = unwatched, shared: bytes = b""
    ) -> dict[int, bytes]:
        if not contents or seconds <= 0:
            return {}
        if max(len(shared), *map(len, contents.values())) > MOST_BYTES:
            raise LinkError(f"a question has at most {MOST_BYTES:,} bytes")
        deadline, name = time.monotonic() + seconds, secrets.token_hex(16)
        outcomes: dict[int, bytes | str] = {}  # answers, or why there is none; the first counts
        with self._asking:
            try:
                file = hashlib.sha256(shared).hexdigest() if shared else ""
                if shared:
                    self._store.share(file, shared)
                here = set(self._store.present())
                outcomes |= dict.fromkeys(contents.keys() - here, GONE)
                present = {number: content for number, content in contents.items() if number in here}
                self._store.post(name, kind, present, file, deadline - time.monotonic())
                self._wait_for_all(name, contents, deadline, outcomes, progress)
            except StoreGone as gone:
                LOG.warning("“%s” ends here: %s", kind, gone)
            finally:
                with suppress(StoreGone):  # its name is forgotten with this call: nothing can answer it any more
                    self._store.withdraw(name)
        answers = answered(kind, contents, outcomes)
        COUNTS.add("taciturn_questions_total", len(contents))
        COUNTS.add("taciturn_answers_total", len(answers))
        return answers

    def _wait_for_all(
        self, name: str, contents: Mapping[int, bytes], deadline: float, outcomes: dict[int, bytes | str], progress: Progress
    ) -> None:
        looked, shown = time.monotonic(), 0
        while len(outcomes) < len(contents) and (left := deadline - time.monotonic()) > 0:
            self._collect(name, min(LOOK_SECONDS, left), outcomes)
            if time.monotonic() - looked > LOOK_SECONDS:
                looked, gone = time.monotonic(), contents.keys() - set(self._store.present())
                self._collect(name, 0, outcomes)  # also from devices that answered and left
                outcomes |= dict.fromkeys(gone - outcomes.keys(), GONE)
            if (answers := sum(isinstance(one, bytes) for one in outcomes.values())) > shown:
                shown = answers
                progress(shown, len(contents))

    def _collect(self, name: str, seconds: float, outcomes: dict[int, bytes | str]) -> None:
        """Keep answers at once: the store no longer has them, and may be gone at the next call."""
        for number, outcome in self._store.collect(name, seconds):
            outcomes.setdefault(number, outcome)
