"""A store in the memory of one process, for a server and its front end (store.py)."""

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from taciturn.fleets.wire import store
from taciturn.fleets.wire.store import NO_FILE, File, Outcome, Question


@dataclass(kw_only=True)
class _OpenQuestion:
    name: str
    kind: str
    # What each device is asked that has not answered yet.
    contents: dict[int, bytes]
    file_name: str
    until: float
    # The answers since the server last collected them.
    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)

    def is_over(self) -> bool:
        return self.until <= time.monotonic()


class _Token(NamedTuple):
    number: int
    # By the monotonic clock.
    valid_until: float


class _Nonces:
    """The nonces of sign-ins, forgotten a generation at a time.

    Each generation is collected for `NONCE_SECONDS`.
    """

    def __init__(self) -> None:
        self._current: set[bytes] = set()
        self._earlier: set[bytes] = set()
        self._collected_since = 0.0

    def add(self, nonce: bytes) -> bool:
        """Remember a nonce, and return whether it is new."""
        now = time.monotonic()
        if now - self._collected_since > store.NONCE_SECONDS:
            self._begin_generation(now)
        if nonce in self._current or nonce in self._earlier:
            return False
        self._current.add(nonce)
        return True

    def _begin_generation(self, now: float) -> None:
        self._earlier = self._current
        self._current = set()
        self._collected_since = now


class _Waiter:
    """A connection of a device that waits for a question, in the front end's event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()

    def wake(self) -> None:
        """Wake the connection, from any thread."""
        # The loop is closed where the front end has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._asked.set)

    async def wait(self, seconds: float) -> None:
        """Return when the device is asked something, or after these seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()


class MemoryStore:
    """A store for a server and its front end in one process; store.py says what each method does.

    The server's thread and the front end's share it, under one lock.
    """

    address = ""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answer_came = threading.Condition(self._lock)
        self._question: _OpenQuestion | None = None
        self._file = NO_FILE
        # Until when each device counts as present.
        self._present_until: dict[int, float] = {}
        self._tokens: dict[str, _Token] = {}
        self._token_of: dict[int, str] = {}
        self._waiting: dict[int, set[_Waiter]] = {}
        self._nonces = _Nonces()

    def devices_present(self) -> list[int]:
        with self._lock:
            now = time.monotonic()
            return sorted(number for number, until in self._present_until.items() if until > now)

    def post(
        self,
        name: str,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        file: File = NO_FILE,
    ) -> None:
        with self._lock:
            if file.name:
                self._file = file
            self._question = _OpenQuestion(
                name=name,
                kind=kind,
                contents=dict(contents),
                file_name=file.name,
                until=time.monotonic() + seconds,
            )
            for number in contents:
                for waiter in self._waiting.get(number, ()):
                    waiter.wake()

    def collect(self, name: str, seconds: float) -> list[tuple[int, Outcome]]:
        with self._answer_came:
            question = self._open_question(name)
            if question is None:
                return []
            self._answer_came.wait_for(lambda: question.outcomes, max(0.0, seconds))
            outcomes = question.outcomes
            question.outcomes = []
            return outcomes

    def withdraw(self, name: str) -> None:
        with self._lock:
            if self._open_question(name):
                self._question = None

    def _open_question(self, name: str) -> _OpenQuestion | None:
        if self._question and self._question.name == name:
            return self._question
        return None

    async def sign_in(self, token: str, number: int, nonce: bytes) -> bool:
        with self._lock:
            if not self._nonces.add(nonce):
                return False
            now = time.monotonic()
            old_token = self._token_of.get(number, "")
            self._tokens.pop(old_token, None)
            self._token_of[number] = token
            self._tokens[token] = _Token(number, valid_until=now + store.TOKEN_SECONDS)
            self._present_until[number] = now + store.ALIVE_SECONDS
            return True

    async def sign_out(self, token: str) -> None:
        with self._lock:
            forgotten = self._tokens.pop(token, None)
            if forgotten is not None:
                self._present_until.pop(forgotten.number, None)

    async def recognise(self, token: str) -> int | None:
        with self._lock:
            entry = self._tokens.get(token)
            if entry is None or entry.valid_until < time.monotonic():
                return None
            self._present_until[entry.number] = time.monotonic() + store.ALIVE_SECONDS
            return entry.number

    async def wait_for_question(self, number: int, seconds: float) -> Question | None:
        waiter = _Waiter()
        with self._lock:
            question = self._question_for(number)
            if question or seconds <= 0:
                return question
            self._begin_waiting(number, waiter, seconds)
        # Unless the wait ends in order, the connection broke.
        stays_seconds = store.BACK_SECONDS
        try:
            await waiter.wait(seconds)
            stays_seconds = store.ALIVE_SECONDS
        finally:
            with self._lock:
                self._stop_waiting(number, waiter, stays_seconds)
        with self._lock:
            return self._question_for(number)

    def _begin_waiting(self, number: int, waiter: _Waiter, seconds: float) -> None:
        waiters = self._waiting.setdefault(number, set())
        waiters.add(waiter)
        self._present_until[number] = time.monotonic() + seconds + store.ALIVE_SECONDS

    def _stop_waiting(self, number: int, waiter: _Waiter, stays_seconds: float) -> None:
        self._waiting[number].discard(waiter)
        # The device may wait on a newer connection.
        if self._waiting[number]:
            return
        del self._waiting[number]
        if number in self._present_until:
            self._present_until[number] = time.monotonic() + stays_seconds

    def _question_for(self, number: int) -> Question | None:
        question = self._question
        if question is None or number not in question.contents:
            return None
        seconds_left = question.until - time.monotonic()
        if seconds_left <= 0:
            return None
        return Question(
            name=question.name,
            kind=question.kind,
            content=question.contents[number],
            file_name=question.file_name,
            seconds=seconds_left,
        )

    async def take_answer(self, number: int, name: str, outcome: Outcome) -> bool:
        with self._answer_came:
            question = self._open_question(name)
            if question is None or number not in question.contents:
                return False
            if question.is_over():
                return False
            del question.contents[number]
            question.outcomes.append((number, outcome))
            self._answer_came.notify_all()
            return True

    async def read_file(self, name: str) -> bytes | None:
        with self._lock:
            return self._file.content if self._file.name == name else None

    async def close(self) -> None:
        """Do nothing: nothing in this store is open elsewhere."""
