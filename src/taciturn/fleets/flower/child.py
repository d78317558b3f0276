"""SuperLink as a child of the server process, started again whenever it is needed and not there."""

import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.supercore.control.control_http_client import ControlHttpClient

from taciturn.fleets.devices.transport import LOG, LinkError
from taciturn.fleets.flower.questions import in_words, over_socket

DATABASE = "devices.sqlite"
WITHOUT_TIMES = """UPDATE node SET last_activated_at = NULL, last_deactivated_at = NULL, online_until = NULL,
    status = CASE WHEN status = 'online' THEN 'offline' ELSE status END"""
START_SECONDS = 120  # SuperLink imports a lot, and shares the machine


class SuperLink:
    """Its outer socket belongs to this process and stays; its inner one, `inside`, is new with every child."""

    def __init__(self, folder: Path, outside: socket.socket, insecure: bool, most_bytes: int) -> None:
        self._folder, self._outside = folder, outside
        self._most_bytes, self._insecure = most_bytes, insecure
        self.port = outside.getsockname()[1]
        # Not in the server's folder: the path of a socket may have a hundred characters.
        self._run_folder = Path(tempfile.mkdtemp(prefix="taciturn-"))
        self.inside = self._run_folder / "superlink"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: ControlHttpClient | None = None
        self._starting = threading.Lock()

    def control(self) -> ControlHttpClient:
        """To a process that is alive: the same client as before exactly where it is the same process."""
        with self._starting:
            if self._process is not None and self._process.poll() is not None:
                LOG.warning("SuperLink has ended (%s); another one is started", self._process.returncode)
                self._process = None
            if self._process is None or self._control is None:
                self._start()
            assert self._control is not None
            return self._control

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # which is what it waits for
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            self._process.wait()
        forget_messages(self._folder / DATABASE)
        self._outside.close()
        shutil.rmtree(self._run_folder, ignore_errors=True)

    def _start(self) -> None:
        forget_messages(self._folder / DATABASE)  # those of a server that was killed
        outside, transport = self._outside.fileno(), "plain" if self._insecure else "tls"
        arguments = map(str, (self._folder, outside, self.inside, self._most_bytes, transport))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "taciturn.fleets.flower.superlink", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[outside],
            env={**os.environ, "FLWR_HOME": str(self._folder / "flower")},
            start_new_session=True,  # Ctrl-C is for the server, which then ends it in order
        )
        threading.Thread(target=_log_lines, args=(self._process,), daemon=True).start()
        self._control = over_socket(ControlHttpClient, self.inside)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._control.ListNodes(ListNodesRequest())
                return
            except httpx.HTTPError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise LinkError(f"SuperLink did not start: {in_words(error)}") from None
                time.sleep(0.05)


def _log_lines(process: subprocess.Popen[bytes]) -> None:
    """The gate's lines as they are; Flower's may name devices, and so are for DEBUG."""
    assert process.stdout is not None
    for line in process.stdout:
        level, _, rest = line.decode(errors="replace").rstrip().partition(" ")
        logger, _, message = rest.partition(" ")
        if logger == LOG.name:
            LOG.log(logging.getLevelNamesMapping().get(level, logging.WARNING), "%s", message)
        else:
            LOG.debug("SuperLink: %s %s", level, rest)


def forget_messages(database: Path) -> None:
    """Leave the keys and numbers of devices, and nothing of whom was asked what, nor of when they came and went. Flower deletes a message's
    row, and SQLite keeps what was in it until the space is used again."""
    if not database.exists():
        return
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if "message" in table:
                connection.execute(f'DELETE FROM "{table}"')
        if "node" in tables:  # devices that rest leave: when one did says in which round it took part
            connection.execute(WITHOUT_TIMES)
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        LOG.warning("what devices were asked may still be in %s: %s", database.name, error)
    finally:
        connection.close()
