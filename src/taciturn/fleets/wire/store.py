"""What front ends and the server share: who is there, what each device is asked, and its answers.
None of it is on disk.

All of it may be lost at any moment: devices sign in again, and the current round fails. There are
two stores: in this process, and in a Redis that front ends on several hosts share (redis_store.py).

**Guarantee:** an answer is kept if its question is open and was asked of that device, once. When a
question is withdrawn, its answers are gone, and what comes later is refused.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Union

from taciturn.fleets.devices.transport import LinkError

if TYPE_CHECKING:
    from taciturn.fleets.wire.redis_store import RedisStore


class Asked(NamedTuple):
    """A question as one device gets it."""

    # of the question, the same for all devices asked
    name: str
    kind: str
    content: bytes
    # the name of a file that goes with it, or empty
    shared: str
    # left to answer it
    seconds: float


# its name and content
File = tuple[str, bytes]
NO_FILE: File = ("", b"")


class StoreGone(LinkError):
    """The store cannot be reached. A front end sends devices away for a moment; the server sees no
    device.
    """


# that a sign of life counts, from a device that does not wait for a question
ALIVE_SECONDS = 45.0
# for a device to return after its connection broke
BACK_SECONDS = 3.0
TOKEN_SECONDS = 24 * 3600.0
# seconds between a device's clock and ours
CLOCKS_APART = 300.0
# a recorded sign-in could be replayed for two, and then wait for a slow store
NONCE_SECONDS = 3 * CLOCKS_APART


@dataclass
class _Question:
    name: str
    kind: str
    contents: dict[int, bytes]
    shared: str
    until: float
    outcomes: list[tuple[int, bytes | str]] = field(default_factory=list)


class MemoryStore:
    """A store for a server and its front end in one process. The first four methods are the
    server's; the others front ends', in an event loop. One question is open at a time. All of them
    may raise `StoreGone` where a store is elsewhere.
    """

    address = ""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._question: _Question | None = None
        # until when each device counts as present
        self._here: dict[int, float] = {}
        self._tokens: dict[str, tuple[int, float]] = {}
        self._token_of: dict[int, str] = {}
        self._waiting: dict[int, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}
        self._file = NO_FILE
        # of this and the last `NONCE_SECONDS`
        self._nonces: tuple[set[bytes], set[bytes]] = (
            set(),
            set(),
        )
        self._nonces_since = 0.0

    def present(self) -> list[int]:
        """Return the devices with a recent sign of life, sorted."""
        with self._lock:
            now = time.monotonic()
            return sorted(number for number, until in self._here.items() if until > now)

    def post(
        self,
        name: str,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        file: File = NO_FILE,
    ) -> None:
        """Ask a question, in place of the one before. The file is given out by its name, until
        another takes its place.
        """
        with self._lock:
            self._file = file if file[0] else self._file
            self._question = _Question(
                name, kind, dict(contents), file[0], time.monotonic() + seconds
            )
            for number in contents:
                for loop, event in self._waiting.get(number, ()):
                    # the front end has ended
                    with suppress(RuntimeError):
                        loop.call_soon_threadsafe(event.set)

    def collect(self, name: str, seconds: float) -> list[tuple[int, bytes | str]]:
        """Wait for an answer, and return those since the last call; a device that failed says
        why.
        """
        with self._came:
            question = self._open(name)
            if question is None:
                return []
            self._came.wait_for(lambda: question.outcomes, max(0.0, seconds))
            found, question.outcomes = question.outcomes, []
            return found

    def withdraw(self, name: str) -> None:
        """Withdraw a question: no device can see or answer it any more."""
        with self._lock:
            if self._open(name):
                self._question = None

    def _open(self, name: str) -> _Question | None:
        return self._question if self._question and self._question.name == name else None

    async def sign_in(self, token: str, number: int, nonce: bytes) -> bool:
        """Let a device in, unless this nonce was used in the last `NONCE_SECONDS`, at any front
        end.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._nonces_since > NONCE_SECONDS:
                self._nonces, self._nonces_since = (set(), self._nonces[0]), now
            if any(nonce in nonces for nonces in self._nonces):
                return False
            self._nonces[0].add(nonce)
            self._tokens.pop(self._token_of.get(number, ""), None)
            self._token_of[number] = token
            self._tokens[token] = (number, now + TOKEN_SECONDS)
            self._here[number] = now + ALIVE_SECONDS
            return True

    async def sign_out(self, token: str) -> None:
        with self._lock:
            number, _ = self._tokens.pop(token, (None, 0.0))
            if number is not None:
                self._here.pop(number, None)

    async def who(self, token: str) -> int | None:
        """Return the device that signed in with this token; asking is its sign of life."""
        with self._lock:
            number, until = self._tokens.get(token, (None, 0.0))
            if number is None or until < time.monotonic():
                return None
            self._here[number] = time.monotonic() + ALIVE_SECONDS
            return number

    async def asked(self, number: int, seconds: float) -> Asked | None:
        """Wait for a question that the device is asked and has not answered."""
        news = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            found = self._for(number)
            if found or seconds <= 0:
                return found
            self._waiting.setdefault(number, set()).add(news)
            self._here[number] = time.monotonic() + seconds + ALIVE_SECONDS
        stays = BACK_SECONDS
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await news[1].wait()
            stays = ALIVE_SECONDS
        finally:
            with self._lock:
                self._waiting[number].discard(news)
                # otherwise it waits on a newer connection
                if not self._waiting[number]:
                    del self._waiting[number]
                    if number in self._here:
                        self._here[number] = time.monotonic() + stays
        with self._lock:
            return self._for(number)

    def _for(self, number: int) -> Asked | None:
        question, now = self._question, time.monotonic()
        if question is None or number not in question.contents or question.until <= now:
            return None
        return Asked(
            question.name,
            question.kind,
            question.contents[number],
            question.shared,
            question.until - now,
        )

    async def answer(self, number: int, name: str, outcome: bytes | str) -> bool:
        """Take an answer, and return whether it was in time, and the first."""
        with self._came:
            question = self._open(name)
            if (
                question is None
                or number not in question.contents
                or question.until <= time.monotonic()
            ):
                return False
            del question.contents[number]
            question.outcomes.append((number, outcome))
            self._came.notify_all()
            return True

    async def shared(self, name: str) -> bytes | None:
        with self._lock:
            return self._file[1] if self._file[0] == name else None

    async def close(self) -> None:
        """Close with the front end. Nothing in this store is open elsewhere."""


Store = Union[MemoryStore, "RedisStore"]
