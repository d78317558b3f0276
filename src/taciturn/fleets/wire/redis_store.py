"""A store in Redis, for a server and front ends on several hosts (`taciturn[fleet-redis]`).

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.exceptions import RedisError

from taciturn.fleets.devices.transport import LOG, LOOPBACK, LinkError
from taciturn.fleets.wire import store
from taciturn.fleets.wire.store import NO_FILE, File, Outcome, Question, StoreGone

# Redis has this long to answer; longer than `collect` waits.
SOCKET_SECONDS = 30.0
# The most connections of a front end; further requests wait.
CONNECTIONS = 32
# The most answers that are fetched, or commands that are sent, at once.
BATCH = 100
# An answer of more bytes is sent by itself.
LARGE = 64 * 1024
# A broken channel is listened to again after this pause.
AGAIN_SECONDS = 1.0
DAY = int(1000 * store.TOKEN_SECONDS)
# Which device, and whether it answered; the answer, or why there is none, follows.
OUTCOME = struct.Struct(">q?")

# The script has all operations; the first of its arguments names one.
SCRIPT = Path(__file__).with_name("redis_store.lua").read_text()


class _Command(NamedTuple):
    """An operation that waits to be sent, and the place for its answer."""

    operation: str
    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]


class RedisStore:
    """A store for a server, or for a front end; store.py says what each method does.

    `fleet` tells fleets on one Redis apart.
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
                "`store` is not the address of a Redis: write redis://host:port, rediss://host:port"
                " or unix:///path"
            ) from error
        settings = self._redis.connection_pool.connection_kwargs
        host = settings.get("host", "localhost")
        port = settings.get("port", 6379)
        # Made from its parts, as a URL may have a password.
        self.address = settings.get("path") or f"{host}:{port}"
        self._loop_redis: Any = redis.asyncio.Redis(connection_pool=pool)
        self._prefix = f"taciturn:{fleet}:"
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None
        # Set while the channel is listened to.
        self._is_heard = asyncio.Event()
        self._to_send: list[_Command] = []
        self._sending: asyncio.Task[None] | None = None
        self._file = NO_FILE
        self._fetching = asyncio.Lock()
        if url.startswith("redis://") and host not in LOOPBACK:
            raise LinkError(
                f"without TLS a Redis may be on this machine only, and {self.address} may be"
                " another: write rediss://…"
            )
        self._check_reachable()
        self._check_writes_nothing()

    def _check_reachable(self) -> None:
        try:
            self._redis.ping()
        except RedisError as error:
            raise StoreGone(
                f"no Redis answers at {self.address} ({error}): start one, or name another with"
                " `store`"
            ) from None

    def _check_writes_nothing(self) -> None:
        try:
            settings = self._redis.config_get("save", "appendonly")
        except RedisError:
            LOG.warning(
                "the Redis at %s does not say whether it writes to disk: make sure that it"
                " does not",
                self.address,
            )
            return
        if settings["save"] or settings["appendonly"] != "no":
            raise LinkError(
                f"the Redis at {self.address} writes what it holds to disk, where who took part"
                " must never be: start it with --save '' --appendonly no, or take another"
            )

    @contextmanager
    def _name_failures(self) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            raise StoreGone(
                f"the Redis at {self.address} cannot be reached ({type(error).__name__}: {error});"
                " is it running?"
            ) from None

    def _call(self, operation: str, *arguments: Any) -> Any:
        """Call an operation in the server's thread."""
        with self._name_failures():
            script = self._redis.register_script(SCRIPT)
            return script([self._prefix], [DAY, operation, *arguments])

    async def _call_together(self, operation: str, *arguments: Any) -> Any:
        """Call an operation, together with all others pending, in order.

        Sent by itself, each would cost three times as much.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._to_send.append(_Command(operation, arguments, answer))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        with self._name_failures():
            return await answer

    async def _call_by_itself(self, operation: str, *arguments: Any) -> Any:
        with self._name_failures():
            script = self._loop_redis.register_script(SCRIPT)
            return await script([self._prefix], [DAY, operation, *arguments])

    async def _send_all(self) -> None:
        while self._to_send:
            batch = self._to_send[:BATCH]
            self._to_send = self._to_send[BATCH:]
            try:
                answers = await self._send(batch)
            # Whatever it is, no caller may wait for ever.
            except Exception as error:
                answers = [error] * len(batch)
            for command, answer in zip(batch, answers, strict=True):
                # Otherwise the caller has gone.
                if not command.answer.done():
                    _settle(command.answer, answer)
        self._sending = None

    async def _send(self, batch: Sequence[_Command]) -> list[Any]:
        script = self._loop_redis.register_script(SCRIPT)
        # In a transaction, a failure to load the script would keep its connection.
        async with self._loop_redis.pipeline(transaction=False) as pipeline:
            for command in batch:
                arguments = [DAY, command.operation, *command.arguments]
                await script([self._prefix], arguments, pipeline)
            return await pipeline.execute(raise_on_error=False)

    def devices_present(self) -> list[int]:
        numbers = self._call("present")
        return sorted(int(number) for number in numbers)

    def post(
        self,
        name: str,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        file: File = NO_FILE,
    ) -> None:
        question: dict[Any, Any] = {
            "name": name,
            "kind": kind,
            "shared": file.name,
            **contents,
        }
        life = _milliseconds(seconds)
        devices_asked = json.dumps(list(contents))
        with self._name_failures():
            pipeline = self._redis.pipeline()
            self._replace_hash(pipeline, "question", question, life)
            if file.name:
                file_by_name = {file.name: file.content}
                self._replace_hash(pipeline, "file", file_by_name, DAY)
            pipeline.publish(f"{self._prefix}asked", devices_asked)
            pipeline.execute()

    def _replace_hash(self, pipeline: Any, name: str, content: dict[Any, Any], life: int) -> None:
        key = self._prefix + name
        pipeline.delete(key)
        pipeline.hset(key, mapping=content)
        pipeline.pexpire(key, life)

    def collect(self, name: str, seconds: float) -> list[tuple[int, Outcome]]:
        key = f"{self._prefix}outcomes:{name}"
        packed = []
        with self._name_failures():
            if seconds > 0:
                packed += self._wait_for_outcome(key, seconds)
            packed += self._redis.lpop(key, BATCH) or ()
        return [_unpack_outcome(content) for content in packed]

    def _wait_for_outcome(self, key: str, seconds: float) -> list[bytes]:
        """Return the first outcome that comes in time, or none."""
        popped = self._redis.blpop([key], seconds)
        if not popped:
            return []
        _, content = popped
        return [content]

    def withdraw(self, name: str) -> None:
        self._call("withdraw", name)

    async def sign_in(self, token: str, number: int, nonce: bytes) -> bool:
        is_new = await self._call_together(
            "sign_in",
            number,
            token,
            _milliseconds(store.ALIVE_SECONDS),
            nonce.hex(),
            _milliseconds(store.NONCE_SECONDS),
        )
        return bool(is_new)

    async def sign_out(self, token: str) -> None:
        await self._call_together("sign_out", token)

    async def recognise(self, token: str) -> int | None:
        alive = _milliseconds(store.ALIVE_SECONDS)
        number = await self._call_together("who", token, alive)
        return None if number is None else int(number)

    async def wait_for_question(self, number: int, seconds: float) -> Question | None:
        if seconds <= 0:
            return _read_question(await self._call_together("asked", number, "", 0))
        await self._listen(seconds)
        news = asyncio.Event()
        connection = secrets.token_hex(8)
        # Before looking for the question, or one in between would be missed.
        self._waiting.setdefault(number, set()).add(news)
        try:
            wait = _milliseconds(seconds + store.ALIVE_SECONDS)
            fields = await self._call_together("asked", number, connection, wait)
            if fields:
                return _read_question(fields)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await news.wait()
        except asyncio.CancelledError:
            with suppress(StoreGone):
                await self._stop_waiting(number, connection, store.BACK_SECONDS)
            raise
        finally:
            self._waiting[number].discard(news)
            if not self._waiting[number]:
                del self._waiting[number]
        fields = await self._stop_waiting(number, connection, store.ALIVE_SECONDS)
        return _read_question(fields)

    async def _stop_waiting(self, number: int, connection: str, stays_seconds: float) -> Any:
        """End a wait, and return what the device is asked."""
        stays = _milliseconds(stays_seconds)
        return await self._call_together("waited", number, connection, stays)

    async def take_answer(self, number: int, name: str, outcome: Outcome) -> bool:
        is_answer = isinstance(outcome, bytes)
        head = OUTCOME.pack(number, is_answer)
        content = head + (outcome if is_answer else outcome.encode())
        # A large answer goes by itself, so that others need not wait for it.
        call = self._call_by_itself if len(content) > LARGE else self._call_together
        return bool(await call("answer", number, name, content))

    async def read_file(self, name: str) -> bytes | None:
        """Fetch a file once for all devices that want it.

        Whether it is still the current one is checked each time.
        """
        key = f"{self._prefix}file"
        with self._name_failures():
            if not await self._loop_redis.hexists(key, name):
                return None
            async with self._fetching:
                if self._file.name == name:
                    return self._file.content
                content = await self._loop_redis.hget(key, name)
                # It is gone where another took its place meanwhile.
                if content is not None:
                    self._file = File(name, content)
                return content

    async def close(self) -> None:
        if self._listening:
            self._listening.cancel()
            with suppress(asyncio.CancelledError):
                await self._listening
        # What devices send when they leave still arrives.
        if self._sending:
            await self._sending
        await self._loop_redis.aclose()
        await self._loop_redis.connection_pool.disconnect()

    async def _listen(self, seconds: float) -> None:
        """Return once the channel is listened to, or after these seconds."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._hear_for_ever())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_heard.wait()

    async def _hear_for_ever(self) -> None:
        while True:
            with suppress(RedisError, OSError):
                await self._hear()
            self._is_heard.clear()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _hear(self) -> None:
        async with self._loop_redis.pubsub() as channel:
            await channel.subscribe(f"{self._prefix}asked")
            async for message in channel.listen():
                if message["type"] == "message":
                    self._wake(json.loads(message["data"]))
                else:
                    # The channel is heard from now on; what was published before was missed.
                    self._is_heard.set()
                    self._wake(list(self._waiting))

    def _wake(self, numbers: list[int]) -> None:
        for number in numbers:
            for news in self._waiting.get(number, ()):
                news.set()


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds)


def _read_question(fields: list[Any] | None) -> Question | None:
    if not fields:
        return None
    name, kind, file_name, content, milliseconds = fields
    return Question(
        name=name.decode(),
        kind=kind.decode(),
        content=content,
        file_name=file_name.decode(),
        seconds=milliseconds / 1000,
    )


def _unpack_outcome(packed: bytes) -> tuple[int, Outcome]:
    number, is_answer = OUTCOME.unpack_from(packed)
    content = packed[OUTCOME.size :]
    return number, content if is_answer else content.decode()
