"""A store in Redis, which a server and front ends on several hosts share (`pip install
'taciturn[fleet-redis]'`).

Each operation is one call of a script (redis_store.lua), so that no two front ends can take a
device's answer twice. Times are by Redis's own clock. Everything has a time to live, and a Redis
that writes to disk is refused: no one may learn from it who took part. Front ends hear through a
channel which devices are asked, but not what; what is missed, because a connection broke, is found
when a device asks again.
"""

import asyncio
import json
import secrets
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import RedisError

from taciturn.fleets.devices.transport import LOG, LOOPBACK, LinkError
from taciturn.fleets.wire import store
from taciturn.fleets.wire.store import NO_FILE, Asked, File, StoreGone

# for Redis to answer; longer than `collect` waits
SOCKET_SECONDS = 30.0
# of one front end; further requests wait
CONNECTIONS = 32
# answers fetched, or commands sent, at once
BATCH = 100
# bytes of an answer
LARGE = 64 * 1024
# before a broken channel is listened to again
AGAIN_SECONDS = 1.0
DAY = int(1000 * store.TOKEN_SECONDS)
# which device, and whether it answered; the answer, or why there is none, follows
OUTCOME = struct.Struct(">q?")

# all operations
SCRIPT = Path(__file__).with_name("redis_store.lua").read_text()


class RedisStore:
    """A store for a server, or for a front end; store.py says what each method does. `fleet` tells
    fleets on one Redis apart.
    """

    def __init__(self, url: str, fleet: str) -> None:
        try:
            self._redis: Any = redis.Redis.from_url(url, socket_timeout=SOCKET_SECONDS)
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=SOCKET_SECONDS,
                socket_timeout=SOCKET_SECONDS,
            )
        except ValueError as error:
            raise LinkError(
                "--store is not the address of a Redis: write redis://host:port, rediss://host:port"
                " or unix:///path"
            ) from error
        given = self._redis.connection_pool.connection_kwargs
        host = given.get("host", "localhost")
        # without the password that a URL may have
        self.address = given.get("path") or f"{host}:{given.get('port', 6379)}"
        self._loop_redis: Any = redis.asyncio.Redis(connection_pool=pool)
        self._fleet = f"taciturn:{fleet}:"
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._to_say: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]] = []
        self._talking: asyncio.Task[None] | None = None
        # set while the channel is listened to
        self._heard = asyncio.Event()
        self._file, self._fetching = NO_FILE, asyncio.Lock()
        if url.startswith("redis://") and host not in LOOPBACK:
            raise LinkError(
                f"without TLS a Redis may be on this machine only, and {self.address} may be"
                " another: write rediss://…"
            )
        try:
            self._redis.ping()
        except RedisError as error:
            raise StoreGone(
                f"no Redis answers at {self.address} ({error}): start one, or name another with"
                " --store"
            ) from None
        try:
            kept = self._redis.config_get("save", "appendonly")
        except RedisError:
            LOG.warning(
                "the Redis at %s does not say whether it writes to disk: make sure that it"
                " does not",
                self.address,
            )
            return
        if kept["save"] or kept["appendonly"] != "no":
            kept_there = (
                f"the Redis at {self.address} writes what it holds to disk, where who took part"
                " must never be"
            )
            raise LinkError(
                f"{kept_there}: start it with --save '' --appendonly no, or take another"
            )

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            raise StoreGone(
                f"the Redis at {self.address} cannot be reached ({type(error).__name__}: {error});"
                " is it running?"
            ) from None

    def _now(self, operation: str, *arguments: Any) -> Any:
        with self._reaching():
            return self._redis.register_script(SCRIPT)([self._fleet], [DAY, operation, *arguments])

    async def _soon(self, operation: str, *arguments: Any) -> Any:
        """Send an operation together with all others pending, in order: alone, each would cost
        three times as much.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._to_say.append((operation, arguments, answer))
        if self._talking is None:
            self._talking = asyncio.create_task(self._talk())
        with self._reaching():
            return await answer

    async def _talk(self) -> None:
        while self._to_say:
            said, self._to_say = self._to_say[:BATCH], self._to_say[BATCH:]
            try:
                script = self._loop_redis.register_script(SCRIPT)
                async with self._loop_redis.pipeline(
                    transaction=False
                    # or a failure to load the script keeps its connection
                ) as together:
                    for operation, arguments, _ in said:
                        await script([self._fleet], [DAY, operation, *arguments], together)
                    answers = await together.execute(raise_on_error=False)
            # whatever it is, no caller may wait for ever
            except Exception as error:
                answers = [error] * len(said)
            for (_, _, answer), came in zip(said, answers, strict=True):
                # otherwise the caller has gone
                if not answer.done():
                    (
                        answer.set_exception(came)
                        if isinstance(came, Exception)
                        else answer.set_result(came)
                    )
        self._talking = None

    async def _alone(self, operation: str, *arguments: Any) -> Any:
        with self._reaching():
            return await self._loop_redis.register_script(SCRIPT)(
                [self._fleet], [DAY, operation, *arguments]
            )

    def present(self) -> list[int]:
        return sorted(map(int, self._now("present")))

    def post(
        self,
        name: str,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        file: File = NO_FILE,
    ) -> None:
        fields: dict[Any, Any] = {"name": name, "kind": kind, "shared": file[0], **contents}
        hashes = [
            ("question", fields, _ms(seconds)),
            *([("file", dict([file]), DAY)] if file[0] else ()),
        ]
        with self._reaching():
            posting = self._redis.pipeline()
            for key, content, life in hashes:
                posting.delete(self._fleet + key).hset(self._fleet + key, mapping=content).pexpire(
                    self._fleet + key, life
                )
            posting.publish(f"{self._fleet}asked", json.dumps(list(contents))).execute()

    def collect(self, name: str, seconds: float) -> list[tuple[int, bytes | str]]:
        key = f"{self._fleet}outcomes:{name}"
        with self._reaching():
            first = self._redis.blpop([key], seconds) if seconds > 0 else None
            return [
                _outcome(one) for one in [*(first or ())[1:], *(self._redis.lpop(key, BATCH) or ())]
            ]

    def withdraw(self, name: str) -> None:
        self._now("withdraw", name)

    async def sign_in(self, token: str, number: int, nonce: bytes) -> bool:
        once = nonce.hex(), _ms(store.NONCE_SECONDS)
        return bool(await self._soon("sign_in", number, token, _ms(store.ALIVE_SECONDS), *once))

    async def sign_out(self, token: str) -> None:
        await self._soon("sign_out", token)

    async def who(self, token: str) -> int | None:
        number = await self._soon("who", token, _ms(store.ALIVE_SECONDS))
        return None if number is None else int(number)

    async def asked(self, number: int, seconds: float) -> Asked | None:
        if seconds <= 0:
            return _asked(await self._soon("asked", number, "", 0))
        await self._listen(seconds)
        news, connection = asyncio.Event(), secrets.token_hex(8)
        # before looking for the question, or one in between would be missed
        self._waiting.setdefault(number, set()).add(news)
        try:
            if found := _asked(
                await self._soon("asked", number, connection, _ms(seconds + store.ALIVE_SECONDS))
            ):
                return found
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await news.wait()
        except asyncio.CancelledError:
            with suppress(StoreGone):
                await self._soon("waited", number, connection, _ms(store.BACK_SECONDS))
            raise
        finally:
            self._waiting[number].discard(news)
            if not self._waiting[number]:
                del self._waiting[number]
        return _asked(await self._soon("waited", number, connection, _ms(store.ALIVE_SECONDS)))

    async def answer(self, number: int, name: str, outcome: bytes | str) -> bool:
        is_answer = isinstance(outcome, bytes)
        content = OUTCOME.pack(number, is_answer) + (outcome if is_answer else outcome.encode())
        # so that others need not wait for a large report
        say = self._alone if len(content) > LARGE else self._soon
        return bool(await say("answer", number, name, content))

    async def shared(self, name: str) -> bytes | None:
        """Fetch a file once for all devices that want it; whether it is still current is checked
        each time.
        """
        key = f"{self._fleet}file"
        with self._reaching():
            if not await self._loop_redis.hexists(key, name):
                return None
            async with self._fetching:
                if self._file[0] != name:
                    content = await self._loop_redis.hget(key, name)
                    # another took its place meanwhile
                    if content is None:
                        return None
                    self._file = (name, content)
                return self._file[1]

    async def close(self) -> None:
        if self._listening:
            self._listening.cancel()
            with suppress(asyncio.CancelledError):
                await self._listening
        # the last words of devices that leave
        if self._talking:
            await self._talking
        await self._loop_redis.aclose()
        await self._loop_redis.connection_pool.disconnect()

    async def _listen(self, seconds: float) -> None:
        if self._listening is None:
            self._listening = asyncio.create_task(self._hear())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._heard.wait()

    async def _hear(self) -> None:
        while True:
            with suppress(RedisError, OSError):
                async with self._loop_redis.pubsub() as channel:
                    await channel.subscribe(f"{self._fleet}asked")
                    async for message in channel.listen():
                        if message["type"] == "message":
                            self._wake(json.loads(message["data"]))
                        else:
                            # the channel is heard from now on
                            self._heard.set()
                            self._wake(list(self._waiting))
            self._heard.clear()
            await asyncio.sleep(AGAIN_SECONDS)

    def _wake(self, numbers: list[int]) -> None:
        for number in numbers:
            for news in self._waiting.get(number, ()):
                news.set()


def _ms(seconds: float) -> int:
    return int(1000 * seconds)


def _asked(found: list[Any] | None) -> Asked | None:
    if not found:
        return None
    name, kind, shared, content, left = found
    return Asked(name.decode(), kind.decode(), content, shared.decode(), left / 1000)


def _outcome(packed: bytes) -> tuple[int, bytes | str]:
    (number, is_answer), content = OUTCOME.unpack_from(packed), packed[OUTCOME.size :]
    return number, content if is_answer else content.decode()
