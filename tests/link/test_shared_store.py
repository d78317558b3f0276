"""A training through the commands with a Redis and two front ends, each of which is killed on the
way.
"""

import tempfile

import pytest
from commands import LONGEST, CommandFleet
from records import check_charges, check_diaries, check_traces, written
from wire import until

from redis_server import needs_redis, redis_server
from taciturn.privacy.ledger.ledger import Ledger

pytestmark = needs_redis
DEVICES, ROUNDS = (
    12,
    5,
)  # so many that those who rest, and those who uploaded in vain, are not missed


@pytest.fixture(scope="module")
def redis():
    with tempfile.TemporaryDirectory() as folder, redis_server(folder) as server:
        yield server


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, redis):
    fleet = CommandFleet(tmp_path_factory.mktemp("shared"), DEVICES, ROUNDS, save_every=2)
    try:
        yield fleet
    finally:
        fleet.end()


def test_a_training_survives_the_end_of_a_front_end_and_of_redis(fleet, redis):
    other = fleet.other_address()
    ends = [fleet.front_end(address, redis.url) for address in (fleet.address, other)]
    for end in ends:
        end.start()
        until(lambda end=end: "this front end listens on" in end.log(), "an open door")
    server = fleet.command(
        "shared",
        "fleet",
        "serve",
        fleet.fleet,
        "--run",
        fleet.fleet / "shared",
        "--store",
        redis.url,
    )
    server.start()
    until(lambda: "the server listens on the Redis" in server.log(), "a server")
    for number, device in enumerate(fleet.devices):
        device.start("--server", (fleet.address, other)[number % 2])
    ledger = fleet.fleet / "population" / "ledger.jsonl"

    def charges():
        return ledger.read_text().count('"charge"') if ledger.exists() else 0

    for after, kill in ((1, ends[0].kill), (2, redis.kill)):
        until(lambda after=after: charges() >= after, f"charge {after}", LONGEST)
        kill()
        (ends[0] if kill == ends[0].kill else redis).start()
    assert server.wait() == 0, server.log()
    check_charges(Ledger(ledger).run_rows("shared"), ROUNDS)
    check_diaries(fleet.diaries, ROUNDS, 2, separation=1, most=100)
    files = {str(path): path.read_bytes() for path in fleet.fleet.rglob("*") if path.is_file()}
    files |= {f"log {number}": one.log().encode() for number, one in enumerate([server, *ends])}
    check_traces(files, [written(key) for key in fleet.public_keys()])
    for end in ends:
        assert end.runs
        end.process.terminate()
        assert end.process.wait(10) == 0
    assert not list(redis.folder.glob("*.rdb"))
    assert not list(redis.folder.glob("*.aof"))
