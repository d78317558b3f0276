"""The contract of a store: what is asked reaches whom it was asked of, once; and what was withdrawn is gone."""

import asyncio
import threading
import time

import pytest

from taciturn.fleets.wire import store as store_module
from taciturn.fleets.wire.store import MemoryStore


@pytest.fixture
def store():
    return MemoryStore()


def in_a_loop(work):
    return asyncio.run(work)


def post(store, contents, name="q", seconds=30.0, shared=""):
    store.post(name, "kind", contents, shared, seconds)


def test_a_question_reaches_whom_it_was_asked_of_until_it_is_answered(store):
    post(store, {1: b"one", 2: b"two"})
    first, again, other = (in_a_loop(store.asked(number, 0)) for number in (1, 1, 3))
    assert (first.name, first.kind, first.content) == ("q", "kind", b"one")
    assert again.content == b"one"  # a connection may break while it is sent
    assert other is None
    assert in_a_loop(store.answer(1, "q", b"yes"))
    assert in_a_loop(store.asked(1, 0)) is None
    assert store.collect("q", 0) == [(1, b"yes")]
    assert store.collect("q", 0) == []  # told once


def test_an_answer_counts_once_and_from_whom_it_was_asked_of(store):
    post(store, {1: b""})
    assert not in_a_loop(store.answer(2, "q", b"of another"))
    assert not in_a_loop(store.answer(1, "another question", b""))
    assert in_a_loop(store.answer(1, "q", b"first"))
    assert not in_a_loop(store.answer(1, "q", b"second"))
    assert store.collect("q", 0) == [(1, b"first")]


def test_what_was_withdrawn_or_is_too_late_is_gone(store):
    post(store, {1: b"", 2: b""})
    assert in_a_loop(store.answer(1, "q", b"secret"))
    store.withdraw("q")
    assert store.collect("q", 0) == []
    assert in_a_loop(store.asked(2, 0)) is None
    assert not in_a_loop(store.answer(2, "q", b"late"))
    assert "secret" not in str(vars(store))
    post(store, {1: b""}, "short", seconds=0.01)
    time.sleep(0.02)
    assert in_a_loop(store.asked(1, 0)) is None
    assert not in_a_loop(store.answer(1, "short", b"late"))


def test_a_device_that_waits_is_woken_and_nobody_else(store):
    async def wait():
        one, other = asyncio.create_task(store.asked(1, 20)), asyncio.create_task(store.asked(2, 0.3))
        await asyncio.sleep(0.05)
        threading.Thread(target=post, args=(store, {1: b"now"})).start()
        began = time.monotonic()
        assert (await one).content == b"now"
        assert time.monotonic() - began < 5
        assert await other is None

    in_a_loop(wait())


def test_the_server_waits_for_the_first_answer(store):
    post(store, {1: b""})
    threading.Timer(0.05, lambda: in_a_loop(store.answer(1, "q", b"yes"))).start()
    began = time.monotonic()
    assert store.collect("q", 20) == [(1, b"yes")]
    assert time.monotonic() - began < 5
    assert store.collect("q", 0.01) == []


def test_tokens_are_of_one_device_and_a_new_one_ends_the_old(store):
    in_a_loop(store.sign_in("old", 7))
    in_a_loop(store.sign_in("new", 7))
    assert in_a_loop(store.who("old")) is None
    assert in_a_loop(store.who("new")) == 7
    assert in_a_loop(store.who("")) is None
    in_a_loop(store.sign_out("new"))
    assert in_a_loop(store.who("new")) is None
    assert store.present() == []


def test_present_is_who_gave_a_sign_of_life_or_waits(store, monkeypatch):
    monkeypatch.setattr(store_module, "ALIVE_SECONDS", 0.2)
    in_a_loop(store.sign_in("a", 1))
    in_a_loop(store.sign_in("b", 2))
    assert store.present() == [1, 2]

    async def wait():
        waiting = asyncio.create_task(store.asked(1, 20))
        await asyncio.sleep(0.4)
        assert store.present() == [1]  # it waits, and the other said nothing
        await store.who("b")
        assert store.present() == [1, 2]
        waiting.cancel()

    in_a_loop(wait())


def test_a_device_whose_connection_broke_is_gone_soon(store, monkeypatch):
    monkeypatch.setattr(store_module, "BACK_SECONDS", 0.05)
    in_a_loop(store.sign_in("a", 1))

    async def hang_up():
        waiting = asyncio.create_task(store.asked(1, 20))
        await asyncio.sleep(0.02)
        waiting.cancel()

    in_a_loop(hang_up())
    assert store.present() == [1]
    time.sleep(0.1)
    assert store.present() == []


def test_a_file_is_there_by_its_name_until_another_takes_its_place(store):
    store.share("a", b"model")
    assert in_a_loop(store.shared("a")) == b"model"
    assert in_a_loop(store.shared("b")) is None
    store.share("b", b"next")
    assert in_a_loop(store.shared("a")) is None


def test_an_old_connection_that_dies_does_not_take_a_device_that_waits_on_a_new_one(store, monkeypatch):
    monkeypatch.setattr(store_module, "BACK_SECONDS", 0.02)
    in_a_loop(store.sign_in("a", 1))

    async def change_network():
        old, new = asyncio.create_task(store.asked(1, 20)), asyncio.create_task(store.asked(1, 20))
        await asyncio.sleep(0.02)
        old.cancel()
        await asyncio.sleep(0.1)
        assert store.present() == [1]
        new.cancel()
        await asyncio.sleep(0.1)
        assert store.present() == []

    in_a_loop(change_network())


def test_ten_thousand_sign_ins_take_no_time(store):
    began = time.monotonic()
    in_a_loop(_sign_in_all(store))
    assert time.monotonic() - began < 2
    assert len(store.present()) == 10_000


async def _sign_in_all(store):
    for number in range(10_000):
        await store.sign_in(str(number), number)
