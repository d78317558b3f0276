"""Several front ends at one Redis are one wire: what devices send through any of them is summed as
it is with one front end in memory.
"""

import base64
import http.client
import json
import os
import ssl
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices

from answers import handler
from enrolling import device_key, known, load_device_key, wire_server
from harness import quietly, until
from redis_server import needs_redis, redis_server
from taciturn.fleets.devices.fleet import DeviceFleet
from taciturn.fleets.wire.device import run_device
from taciturn.fleets.wire.front_end import sign_in_statement
from taciturn.fleets.wire.redis_store import RedisStore
from taciturn.fleets.wire.server import front_end, shared_server
from taciturn.recipe import build
from taciturn.runs.loop import train_run


@contextmanager
def in_memory(authority, lines):
    with wire_server(authority / "server", "127.0.0.1", 0) as server:
        for line in lines:
            server.enrol(line)
        yield server, [server.front_end]


@contextmanager
def at_redis(authority, lines, count=2):
    """A server, and front ends that know nothing of each other but the Redis."""
    numbers = {line: number for number, line in enumerate(lines)}
    with ExitStack() as open_ones:
        redis = open_ones.enter_context(
            redis_server(open_ones.enter_context(tempfile.TemporaryDirectory()))
        )
        server = open_ones.enter_context(
            shared_server(authority / "server", RedisStore(redis.url, "fleet"))
        )
        ends = [
            front_end(
                authority / "server", "127.0.0.1", 0, RedisStore(redis.url, "fleet"), known(numbers)
            )
            for _ in range(count)
        ]
        yield server, [open_ones.enter_context(end) for end in ends]


@contextmanager
def devices(authority, folder, ends, handlers):
    """In threads, one at this front end and the next at another."""
    stop, threads = threading.Event(), []
    for number, answers in enumerate(handlers):
        address = ends[number % len(ends)].address
        arguments = (
            address,
            folder / f"wire-{number}",
            answers,
            authority / "authority.crt",
            False,
            stop,
        )
        threads.append(threading.Thread(target=run_device, args=arguments, daemon=True))
        threads[-1].start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


def keys(folder, count):
    return [device_key(folder / f"wire-{number}") for number in range(count)]


@needs_redis
def test_devices_at_two_front_ends_are_asked_as_if_there_were_one(authority, tmp_path):
    lines, model = keys(tmp_path, 4), os.urandom(2_000_000)
    with (
        at_redis(authority, lines) as (server, ends),
        devices(authority, tmp_path, ends, [handler] * 4),
    ):
        until(lambda: server.link.devices() == [0, 1, 2, 3])
        contents = {number: bytes([number]) * 1000 for number in range(4)}
        for _ in range(3):
            answers = server.link.ask("reverse", contents, 30, shared=model)
            assert answers == {
                number: (content + model)[::-1] for number, content in contents.items()
            }
        assert server.link.ask("fail", contents, 30) == {}
    assert server.link.devices() == []


@needs_redis
def test_a_recorded_sign_in_and_a_front_end_that_ends(authority, tmp_path):
    """A sign-in that was seen at one front end is refused at the other; its token is good at
    both.
    """
    lines = keys(tmp_path, 1)
    with at_redis(authority, lines) as (_, ends):
        seen = _sign_in(load_device_key(tmp_path / "wire-0"))
        status, token = _request(authority, ends[0], "POST", "/v1/session", seen)
        assert status == 200
        assert _request(authority, ends[1], "POST", "/v1/session", seen) == (
            403,
            b"Refused: a sign-in that was already used.",
        )
        ends[0].close()
        assert _request(authority, ends[1], "POST", "/v1/alive", token=token)[0] == 204
        assert _request(authority, ends[1], "POST", "/v1/alive", token=b"guess")[0] == 401


def _sign_in(key):
    public, nonce, now = key.public_key().public_bytes_raw(), os.urandom(16), int(time.time())
    fields = {
        "key": public,
        "nonce": nonce,
        "signature": key.sign(sign_in_statement(public, now, nonce)),
    }
    return json.dumps(
        {"time": now, **{name: base64.b64encode(value).decode() for name, value in fields.items()}}
    ).encode()


def _request(authority, end, method, path, body=None, token=b""):
    context = ssl.create_default_context(cafile=str(authority / "authority.crt"))
    connection = http.client.HTTPSConnection(end.address, context=context, timeout=10)
    connection.request(
        method, path, body, {"Authorization": f"Bearer {token.decode()}"} if token else {}
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


@pytest.mark.slow
@pytest.mark.parametrize("wire", [in_memory, pytest.param(at_redis, marks=needs_redis)])
def test_a_training_over_the_wire_sums_to_the_bit_what_devices_report(
    authority, tmp_path, vocabulary, monkeypatch, wire
):
    """On both stores; that a report less would be noticed is the twin at its end."""
    fleet = FleetOfDevices(tmp_path, vocabulary, run={"rounds": 3, "evaluate_every": 1})
    totals, whole = {}, DeviceFleet.sum_reports

    def noted(self, program, message, cohort, key):
        total = whole(self, program, message, cohort, key)
        totals[int(message.public.round)] = np.asarray(total.update).astype(np.uint32)
        return total

    monkeypatch.setattr(DeviceFleet, "sum_reports", noted)
    count = len(fleet.keys)
    handlers = [fleet.link._devices[number].handler for number in range(count)]
    with (
        wire(authority, keys(tmp_path, count)) as (server, ends),
        devices(authority, tmp_path, ends, handlers),
    ):
        until(lambda: len(server.link.devices()) == count)
        connected = replace(fleet.connected, link=server.link)
        finished = train_run(fleet.recipe, tmp_path / "run", quietly, connected)
    assert finished.guarantee.releases == 3 == len(totals)
    modulus = build.algorithm(fleet.recipe, len(fleet.vocabulary)).mechanism.modulus
    for round, total in totals.items():
        reports = [report.astype(np.uint64) for report in fleet.reports[round]]
        assert len(reports) == 9
        np.testing.assert_array_equal(total, sum(reports) % modulus)
        assert not np.array_equal(total, sum(reports[1:]) % modulus)
