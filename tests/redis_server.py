"""Debian's redis-server on this machine for a test, on a socket of its own in a folder; it writes
nothing unless it is told to.
"""

import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None,
    reason="there is no redis-server here: apt-get install redis-server",
)
QUIET = ("--save", "", "--appendonly", "no")


class RedisServer:
    """May be killed and started again."""

    def __init__(self, folder, *options):
        self.folder, self.url = Path(folder), f"unix://{folder}/redis.sock"
        self._command = [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            f"{folder}/redis.sock",
            "--dir",
            str(folder),
            *(options or QUIET),
        ]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self._answers():
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.02)

    def _answers(self):
        try:
            with redis.Redis.from_url(self.url) as client:
                return client.ping()
        except redis.exceptions.ConnectionError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def everything(self):
        """Every key, with its value and the milliseconds that it has to live; -1 is for ever."""
        with redis.Redis.from_url(self.url) as client:
            read = {
                b"string": client.get,
                b"hash": client.hgetall,
                b"list": lambda key: client.lrange(key, 0, -1),
            }
            read[b"zset"] = lambda key: client.zrange(key, 0, -1, withscores=True)
            return {
                key: (read[client.type(key)](key), client.pttl(key)) for key in client.scan_iter()
            }


@contextmanager
def redis_server(folder, *options):
    """By default on no disk. A socket's path is short: not every folder of a test's will do."""
    server = RedisServer(folder, *options)
    try:
        yield server
    finally:
        server.kill()
