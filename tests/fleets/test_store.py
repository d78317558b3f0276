"""The contract of a store: what is asked reaches whom it was asked of, once; and what was withdrawn
is gone.
"""

import asyncio
import tempfile
import threading
import time
from contextlib import suppress

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from harness import until
from redis_server import QUIET, needs_redis, redis_server
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.wire import redis_store
from taciturn.fleets.wire import server as link_module
from taciturn.fleets.wire import store as store_module
from taciturn.fleets.wire.memory_store import MemoryStore
from taciturn.fleets.wire.redis_store import RedisStore
from taciturn.fleets.wire.server import WireLink
from taciturn.fleets.wire.store import NO_FILE, File, StoreGone

LOOP = asyncio.new_event_loop()  # of the front end: a connection to Redis belongs to one
threading.Thread(target=LOOP.run_forever, daemon=True).start()


@pytest.fixture(scope="module")
def redis():
    with tempfile.TemporaryDirectory() as folder, redis_server(folder) as server:
        yield server


@pytest.fixture(params=["memory", pytest.param("redis", marks=needs_redis)])
def store(request):
    if request.param == "memory":
        yield MemoryStore()
        return
    made = RedisStore(
        request.getfixturevalue("redis").url, request.node.name
    )  # a fleet of its own for each test
    yield made
    in_a_loop(made.close())


def in_a_loop(work):
    return asyncio.run_coroutine_threadsafe(work, LOOP).result(60)


def held(store, request):
    """All that a store knows."""
    return str(
        vars(store)
        if isinstance(store, MemoryStore)
        else request.getfixturevalue("redis").everything()
    )


def post(store, contents, name="q", seconds=30.0, file=NO_FILE):
    store.post(name, "kind", contents, seconds, file)


def test_a_question_reaches_whom_it_was_asked_of_until_it_is_answered(store):
    post(store, {1: b"one", 2: b"two"})
    first, again, other = (in_a_loop(store.wait_for_question(number, 0)) for number in (1, 1, 3))
    assert (first.name, first.kind, first.content) == ("q", "kind", b"one")
    assert again.content == b"one"  # a connection may break while it is sent
    assert other is None
    assert in_a_loop(store.take_answer(1, "q", b"yes"))
    assert in_a_loop(store.wait_for_question(1, 0)) is None
    assert store.collect("q", 0) == [(1, b"yes")]
    assert store.collect("q", 0) == []  # told once


def test_an_answer_counts_once_and_from_whom_it_was_asked_of(store):
    post(store, {1: b""})
    assert not in_a_loop(store.take_answer(2, "q", b"of another"))
    assert not in_a_loop(store.take_answer(1, "another question", b""))
    assert in_a_loop(store.take_answer(1, "q", b"first"))
    assert not in_a_loop(store.take_answer(1, "q", b"second"))
    assert store.collect("q", 0) == [(1, b"first")]


def test_what_was_withdrawn_or_is_too_late_is_gone(store, request):
    post(store, {1: b"", 2: b""})
    assert in_a_loop(store.take_answer(1, "q", b"secret"))
    assert "secret" in held(store, request)  # the twin
    store.withdraw("q")
    assert store.collect("q", 0) == []
    assert in_a_loop(store.wait_for_question(2, 0)) is None
    assert not in_a_loop(store.take_answer(2, "q", b"late"))
    assert "secret" not in held(store, request)
    post(store, {1: b""}, "short", seconds=0.01)
    time.sleep(0.02)
    assert in_a_loop(store.wait_for_question(1, 0)) is None
    assert not in_a_loop(store.take_answer(1, "short", b"late"))


def test_a_device_that_waits_is_woken_and_nobody_else(store):
    async def wait():
        one, other = (
            asyncio.create_task(store.wait_for_question(1, 20)),
            asyncio.create_task(store.wait_for_question(2, 0.3)),
        )
        await asyncio.sleep(0.05)
        threading.Thread(target=post, args=(store, {1: b"now"})).start()
        began = time.monotonic()
        assert (await one).content == b"now"
        assert time.monotonic() - began < 5
        assert await other is None

    in_a_loop(wait())


def test_the_server_waits_for_the_first_answer(store):
    post(store, {1: b""})
    threading.Timer(0.05, lambda: in_a_loop(store.take_answer(1, "q", b"yes"))).start()
    began = time.monotonic()
    assert store.collect("q", 20) == [(1, b"yes")]
    assert time.monotonic() - began < 5
    assert store.collect("q", 0.01) == []


def test_tokens_are_of_one_device_and_a_new_one_ends_the_old(store):
    in_a_loop(store.sign_in("old", 7, b"old"))
    in_a_loop(store.sign_in("new", 7, b"new"))
    assert in_a_loop(store.recognise("old")) is None
    assert in_a_loop(store.recognise("new")) == 7
    assert in_a_loop(store.recognise("")) is None
    in_a_loop(store.sign_out("new"))
    assert in_a_loop(store.recognise("new")) is None
    assert store.devices_present() == []


def test_present_is_who_gave_a_sign_of_life_or_waits(store, monkeypatch):
    monkeypatch.setattr(store_module, "ALIVE_SECONDS", 0.2)
    in_a_loop(store.sign_in("a", 1, b"a"))
    in_a_loop(store.sign_in("b", 2, b"b"))
    assert store.devices_present() == [1, 2]

    async def wait():
        waiting = asyncio.create_task(store.wait_for_question(1, 20))
        await asyncio.sleep(0.4)
        assert store.devices_present() == [1]  # it waits, and the other said nothing
        await store.recognise("b")
        assert store.devices_present() == [1, 2]
        waiting.cancel()

    in_a_loop(wait())


def test_a_device_whose_connection_broke_is_gone_soon(store, monkeypatch):
    monkeypatch.setattr(store_module, "BACK_SECONDS", 0.05)
    in_a_loop(store.sign_in("a", 1, b"a"))

    async def hang_up():
        waiting = asyncio.create_task(store.wait_for_question(1, 20))
        await asyncio.sleep(0.02)
        waiting.cancel()

    in_a_loop(hang_up())
    assert store.devices_present() == [1]
    time.sleep(0.3)
    assert store.devices_present() == []


def test_a_file_is_there_by_its_name_until_another_takes_its_place(store):
    post(store, {}, file=File("a", b"model"))
    assert in_a_loop(store.read_file("a")) == b"model"
    assert in_a_loop(store.read_file("b")) is None
    post(store, {})
    assert in_a_loop(store.read_file("a")) == b"model"
    post(store, {}, file=File("b", b"next"))
    assert in_a_loop(store.read_file("a")) is None
    assert in_a_loop(store.read_file("b")) == b"next"
    post(store, {}, file=File("a", b"model"))
    assert in_a_loop(store.read_file("a")) == b"model"


def test_an_old_connection_that_dies_does_not_take_a_device_that_waits_on_a_new_one(
    store, monkeypatch
):
    monkeypatch.setattr(store_module, "BACK_SECONDS", 0.02)
    in_a_loop(store.sign_in("a", 1, b"a"))

    async def change_network():
        old = asyncio.create_task(store.wait_for_question(1, 20))
        await asyncio.sleep(0.1)
        new = asyncio.create_task(store.wait_for_question(1, 20))
        await asyncio.sleep(0.1)
        old.cancel()
        await asyncio.sleep(0.1)
        assert store.devices_present() == [1]
        new.cancel()
        await asyncio.sleep(0.1)
        assert store.devices_present() == []

    in_a_loop(change_network())


def test_why_there_is_no_answer_is_no_answer(store):
    post(store, {1: b"", 2: b""})
    assert in_a_loop(store.take_answer(1, "q", "failed"))
    assert in_a_loop(store.take_answer(2, "q", b"failed"))
    assert store.collect("q", 0) == [(1, "failed"), (2, b"failed")]


def test_a_nonce_is_remembered_until_no_replay_of_it_can_still_be_on_its_way():
    """A replay is judged by its time first, and may then wait for a store that is slow: for a
    connection, and for its answer.
    """
    assert (
        store_module.NONCE_SECONDS > 2 * store_module.CLOCKS_APART + 2 * redis_store.SOCKET_SECONDS
    )


def test_a_recorded_sign_in_works_at_no_front_end(store):
    assert in_a_loop(store.sign_in("token", 1, b"recorded"))
    assert not in_a_loop(store.sign_in("stolen", 1, b"recorded"))
    assert in_a_loop(store.recognise("stolen")) is None
    assert in_a_loop(store.recognise("token")) == 1
    assert in_a_loop(store.sign_in("new", 1, b"another"))


def test_ten_thousand_sign_ins_take_no_time(store):
    began = time.monotonic()
    in_a_loop(_sign_in_all(store))
    assert time.monotonic() - began < (2 if isinstance(store, MemoryStore) else 20)
    assert len(store.devices_present()) == 10_000


async def _sign_in_all(store):
    for number in range(10_000):
        await store.sign_in(str(number), number, str(number).encode())


@needs_redis
def test_all_that_redis_holds_ends_by_itself(redis):
    """Whatever becomes of the server and of front ends."""
    store = RedisStore(redis.url, "living")
    waiting = in_a_loop(_use_all(store))
    living = {
        key: ttl
        for key, (_, ttl) in redis.everything().items()
        if key.startswith(b"taciturn:living:")
    }
    kinds = {key.decode().split(":")[2] for key in living}
    assert kinds == {
        "here",
        "question",
        "outcomes",
        "token",
        "token-of",
        "sign-in",
        "file",
        "waits",
    }
    assert all(0 < ttl <= 24 * 3600 * 1000 for ttl in living.values())
    LOOP.call_soon_threadsafe(waiting.cancel)
    in_a_loop(asyncio.sleep(0.2))
    in_a_loop(store.close())


async def _use_all(store):
    await store.sign_in("token", 1, b"token")
    post(store, {}, file=File("model", b"content"))
    waiting = asyncio.create_task(store.wait_for_question(2, 20))
    await asyncio.sleep(0.1)
    post(store, {1: b"one", 3: b"three"})
    assert await store.take_answer(1, "q", b"yes")
    return waiting


@needs_redis
@pytest.mark.parametrize(
    "kept", [("--save", "60 1", "--appendonly", "no"), ("--save", "", "--appendonly", "yes")]
)
def test_a_redis_that_writes_to_disk_is_refused(kept):
    """The twin is every other test here."""
    told = r"where who took part must never be: start it with --save '' --appendonly no"
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server(folder, *kept) as server,
        pytest.raises(LinkError, match=told),
    ):
        RedisStore(server.url, "fleet")


@needs_redis
def test_a_redis_that_does_not_say_whether_it_writes_to_disk_is_pointed_out(caplog):
    silent = ("--save", "", "--appendonly", "no", "--rename-command", "CONFIG", "")
    with tempfile.TemporaryDirectory() as folder, redis_server(folder, *silent) as server:
        RedisStore(server.url, "fleet")
    assert "does not say whether it writes to disk: make sure that it does not" in caplog.text


@needs_redis
def test_fleets_on_one_redis_know_nothing_of_each_other(redis):
    one, other = RedisStore(redis.url, "one"), RedisStore(redis.url, "other")
    in_a_loop(one.sign_in("token", 1, b"token"))
    post(one, {1: b"secret"})
    assert in_a_loop(other.recognise("token")) is None
    assert in_a_loop(other.wait_for_question(1, 0)) is None
    assert other.devices_present() == []
    for store in (one, other):
        in_a_loop(store.close())


@needs_redis
def test_a_redis_that_is_killed_is_nobody_there_and_devices_come_back(caplog):
    with tempfile.TemporaryDirectory() as folder, redis_server(folder) as server:
        store = RedisStore(server.url, "fleet")
        link = WireLink(store)
        in_a_loop(store.sign_in("token", 1, b"token"))
        assert link.devices() == [1]
        threading.Timer(0.2, server.kill).start()
        assert link.ask("report", {1: b"secret"}, 30) == {}  # and it does not wait in vain
        assert link.devices() == []
        assert "cannot be reached" in caplog.text
        with pytest.raises(StoreGone, match="cannot be reached"):
            in_a_loop(store.recognise("token"))
        server.start()
        assert in_a_loop(store.recognise("token")) is None  # it has to sign in again
        in_a_loop(store.sign_in("new", 1, b"new"))
        assert link.devices() == [1]
        in_a_loop(store.close())


@needs_redis
def test_a_redis_that_was_busy_for_a_while_is_used_again(monkeypatch):
    """Whatever was asked meanwhile: more often than a front end has connections."""
    monkeypatch.setattr(redis_store, "CONNECTIONS", 2)
    monkeypatch.setattr(redis_store, "SOCKET_SECONDS", 0.5)
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server(folder, *QUIET, "--busy-reply-threshold", "1") as server,
    ):
        store, other = RedisStore(server.url, "fleet"), Redis.from_url(server.url)
        in_a_loop(store.sign_in("token", 1, b"token"))
        busy = threading.Thread(target=_keep_busy, args=(server.url,))
        busy.start()
        until(lambda: _is_busy(other))
        for _ in range(3):
            with pytest.raises(StoreGone, match="BUSY"):
                in_a_loop(store.recognise("token"))
        other.script_kill()
        busy.join(20)
        assert in_a_loop(store.recognise("token")) == 1
        in_a_loop(store.close())


def _keep_busy(url):
    with suppress(ResponseError):  # of the script that is killed
        Redis.from_url(url).eval("while true do end", 0)


def _is_busy(client):
    try:
        return not client.ping()
    except ResponseError as error:
        return "BUSY" in str(error)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://fleet.example:6379", "without TLS a Redis may be on this machine only"),
        (
            "redis://:secret@10.0.0.1",
            "without TLS a Redis may be on this machine only, and 10.0.0.1:6379 may",
        ),
        ("redis://:secret@127.0.0.1:1", r"no Redis answers at 127\.0\.0\.1:1 "),
        ("http://127.0.0.1", "is not the address of a Redis"),
    ],
)
def test_a_missing_redis_is_reported_without_its_password(url, reason):
    with pytest.raises(LinkError, match=reason) as said:
        RedisStore(url, "fleet")
    assert "secret" not in str(said.value)


class Failing(MemoryStore):
    """Hands out answers, which it then has no more; when it is asked who is there a second time, it
    is gone.
    """

    def __init__(self, answers, slow: bool) -> None:
        super().__init__()
        self.answers, self.slow, self.asked_who = answers, slow, 0

    def devices_present(self):
        self.asked_who += 1
        if self.asked_who > 1:
            raise StoreGone("the store is gone")
        return [1, 2]

    def collect(self, name, seconds):
        time.sleep(0.02 if self.slow else 0.0)
        answers, self.answers = self.answers, []
        return answers


@pytest.mark.parametrize("slow", [True, False])
def test_answers_that_came_before_the_store_was_gone_are_kept(monkeypatch, slow):
    monkeypatch.setattr(link_module, "LOOK_SECONDS", 0.01)
    asked = {1: b"", 2: b""}
    assert WireLink(Failing([(1, b"first")], slow)).ask("x", asked, 2.0) == {1: b"first"}
    assert WireLink(Failing([(1, b"first"), (1, b"again"), (2, "failed")], slow)).ask(
        "x", asked, 2.0
    ) == {1: b"first"}
    assert WireLink(Failing([], slow)).ask("x", asked, 2.0) == {}
    assert (
        WireLink(Failing([(3, b"of a device that was not asked")], slow)).ask("x", asked, 2.0) == {}
    )
