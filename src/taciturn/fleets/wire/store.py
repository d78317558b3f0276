"""The contract of a store, through which front ends and the server talk.

A store holds which devices are present, what each of them is asked, and their answers. None of it
is on disk. All of it may be lost at any moment: devices sign in again, and the current round fails.
There are two stores: in this process (memory_store.py), and in a Redis that front ends on several
hosts share (redis_store.py).

**Guarantee:** an answer is kept if its question is open and was asked of that device, once. When a
question is withdrawn, its answers are gone, and what comes later is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from taciturn.fleets.devices.transport import LinkError

# For this long a sign of life counts, from a device that does not wait for a question.
ALIVE_SECONDS = 45.0
# A device whose connection broke may take this long to return.
BACK_SECONDS = 3.0
TOKEN_SECONDS = 24 * 3600.0
# The clocks of a device and of a front end may differ by this much.
CLOCKS_APART = 300.0
# A recorded sign-in could be replayed for two `CLOCKS_APART`, and then wait for a slow store.
NONCE_SECONDS = 3 * CLOCKS_APART

# An answer, or the reason why there is none.
Outcome = bytes | str


class File(NamedTuple):
    """What follows the contents of a question, the same for all devices asked."""

    name: str
    content: bytes


NO_FILE = File(name="", content=b"")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question as one device gets it."""

    # Name and kind are the same for all devices asked.
    name: str
    kind: str
    content: bytes
    # The file that goes with the question; empty if there is none.
    file_name: str
    # The time that is left to answer it.
    seconds: float


class StoreGone(LinkError):
    """The store cannot be reached.

    A front end sends devices away for a moment; the server sees no device.
    """


class Store(Protocol):
    """Where the server asks questions, and front ends fetch them and bring the answers.

    The server calls `devices_present`, `post`, `collect` and `withdraw`; front ends call the other
    methods, in an event loop. One question is open at a time. All methods may raise `StoreGone`
    where a store is elsewhere.
    """

    # How people find the store; without the password that it may have.
    address: str

    def devices_present(self) -> list[int]:
        """Return the devices with a recent sign of life, sorted."""
        ...

    def post(
        self,
        name: str,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        file: File = NO_FILE,
    ) -> None:
        """Ask a question, in place of the one before.

        The file is given out by its name, until another takes its place.
        """
        ...

    def collect(self, name: str, seconds: float) -> list[tuple[int, Outcome]]:
        """Wait for an answer, and return those since the last call, with their devices."""
        ...

    def withdraw(self, name: str) -> None:
        """Withdraw a question: no device can see or answer it any more."""
        ...

    async def sign_in(self, token: str, number: int, nonce: bytes) -> bool:
        """Let a device in, unless its nonce was used before.

        A nonce is remembered for `NONCE_SECONDS`, at all front ends.
        """
        ...

    async def sign_out(self, token: str) -> None:
        """Forget the token, and count its device as absent."""
        ...

    async def recognise(self, token: str) -> int | None:
        """Return the device that signed in with this token; asking is its sign of life."""
        ...

    async def wait_for_question(self, number: int, seconds: float) -> Question | None:
        """Wait for a question that the device is asked and has not answered."""
        ...

    async def take_answer(self, number: int, name: str, outcome: Outcome) -> bool:
        """Take an answer, and return whether it was in time, and the first."""
        ...

    async def read_file(self, name: str) -> bytes | None:
        """Return the content of the current file, if this is its name."""
        ...

    async def close(self) -> None:
        """Close the store's connections, with the front end that used them."""
        ...
