"""Who has a question waiting, so that a device need not ask again and again: its request is kept open until there is something to fetch.

Flower's devices ask every three seconds, and each look costs SuperLink eight milliseconds of its single core, whether there is anything or
not. Here the server says whom it has just asked, and the gate lets those requests through, and any other after `PATIENCE` at the latest.
"""

import asyncio
import struct
from collections import defaultdict
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

PATIENCE = 20.0  # seconds; a device's own is 30, and routers between them forget a silent connection after a minute
PATH = "/taciturn/news"  # on the inner socket alone


class News:
    def __init__(self) -> None:
        self._waiting: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def announce(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._waiting[number].set()

    async def wait(self, number: int, receive: Receive) -> bool:
        """Until there is something for the device, or for long enough. False: it has hung up, and must not be given anything."""
        news = asyncio.create_task(self._waiting[number].wait())
        hung_up = asyncio.create_task(_hung_up(receive))
        try:
            done, _ = await asyncio.wait({news, hung_up}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            hung_up.cancel()
        if hung_up in done:
            return False
        self._waiting[number].clear()  # before the look, so that what comes during it is news again
        return True


class Inside:
    """SuperLink for the server process, and one path more: numbers that have something to fetch."""

    def __init__(self, app: ASGIApp, news: News) -> None:
        self._app, self._news = app, news

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            return await self._app(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self._news.announce(unpack(body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        return await send({"type": "http.response.body"})


def pack(numbers: Iterable[int]) -> bytes:
    """As in the body of a request to `PATH`.

    >>> unpack(pack([3, 2**64 - 1]))
    [3, 18446744073709551615]
    """
    return b"".join(struct.pack(">Q", number) for number in numbers)


def unpack(body: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack(">Q", body)]


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
