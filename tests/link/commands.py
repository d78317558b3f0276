"""A fleet as its people run it: each command of `taciturn` in a process of its own, which a test
may kill at any moment.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from wire import until

from taciturn.data.population import write_population
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary
from taciturn.fleets.wire.tls import device_request, requested_key

TACITURN = [sys.executable, "-c", "from taciturn.cli import main; main()"]
WORDS = tuple(f"word{number}" for number in range(20))
LONGEST = 300  # seconds for what takes a minute, on a machine with other things to do
RECIPE = """
algorithm = "dp-ftrl"

[data]
population = "{population}"
tokens_per_user = 60

[model]
width = 4
units = 4

[local]
batch_size = 3
unroll = 5

[server]
optimizer = "sgd"

[participation]
kind = "min-separation"
users = 40
cohort = 2
min_separation = 1

[privacy]
noise = "tree"
noise_multiplier = 4.0
clip_norm = 0.1

[fleet]
over_selection = 1.5
timer_hours = 1e-9
lifetime_participations = 100
deadline = 10.0
patience = 150.0

[run]
rounds = {rounds}
evaluate_every = 1
save_every = {save_every}
"""


class Command:
    """One that goes on until it ends or is killed. Started again, it writes on in the same log."""

    def __init__(
        self, folder: Path, log: str, *arguments: object, program: Sequence[str] = TACITURN
    ) -> None:
        self._program = program
        self._environment = {
            **os.environ,
            # Not that of other tests: who is killed while writing to it leaves half a file there.
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "COLUMNS": "250",  # a line of the log stays one
        }
        self._log, self._arguments = folder / f"{log}.log", [*map(str, arguments)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: object) -> None:
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [*self._program, *self._arguments, *map(str, more)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def run(self) -> str:
        """To its end, which has to be a good one."""
        self.start()
        assert self.wait() == 0, self.log()
        return self.log()

    def wait(self) -> int:
        assert self.process is not None
        until(lambda: not self.runs, f"the end of {self._arguments[:2]}", LONGEST)
        return self.process.returncode

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


class CommandFleet:
    """`taciturn fleet new` and `enrol`, and what `fleet serve` and `fleet device` are to be started
    with.
    """

    def __init__(self, folder: Path, devices: int, rounds: int, save_every: int) -> None:
        self.folder, self.fleet = folder, folder / "fleet"
        self.address = f"127.0.0.1:{_free_port()}"
        self._started: list[Command] = []
        fixed = SPECIAL + PUNCTUATION
        counting = {
            str(user): [len(fixed) + (user + step) % len(WORDS) for step in range(30)]
            for user in range(12)
        }
        about = {"source": "made up", "on_devices": True}
        population = write_population(
            folder / "words", {}, counting, Vocabulary(words=fixed + WORDS), about
        )
        (folder / "recipe.toml").write_text(
            RECIPE.format(population=population.folder, rounds=rounds, save_every=save_every)
        )
        self.command("new", "fleet", "new", self.fleet, folder / "recipe.toml").run()
        self.folders = [folder / f"device-{number}" for number in range(devices)]
        asking = [*self.folders, folder / "sceptic"]
        self.command("enrol", "fleet", "enrol", self.fleet, *map(device_request, asking)).run()
        for one in asking:
            shutil.copytree(self.fleet / "for-devices", one / "fleet")
        self.devices = [self.device(one, number) for number, one in enumerate(self.folders)]

    def command(self, log: str, *arguments: object) -> Command:
        return self._known(Command(self.folder, log, *arguments))

    def server(self, run: Path) -> Command:
        port = self.address.rpartition(":")[2]
        return self._known(
            Command(
                self.folder, run.name, "fleet", "serve", self.fleet, "--run", run, "--port", port
            )
        )

    def front_end(self, address: str, store: str) -> Command:
        port = address.rpartition(":")[2]
        return self.command(
            f"front end {port}", "fleet", "front-end", self.fleet, "--store", store, "--port", port
        )

    def other_address(self) -> str:
        return f"127.0.0.1:{_free_port()}"

    def device(self, folder: Path, first: int = 0) -> Command:
        """Its user counts from a word of their own on."""
        messages = folder.with_suffix(".txt")
        messages.write_text(
            "\n".join(" ".join(WORDS[(first + step) % len(WORDS) :][:6]) for step in range(9))
        )
        return self.command(
            folder.name, "fleet", "device", folder, "--server", self.address, "--data", messages
        )

    def start_devices(self) -> None:
        for device in self.devices:
            if not device.runs:
                device.start()

    @property
    def diaries(self) -> list[list[dict]]:
        """What each device has written down of its uploads."""
        paths = [folder / "participation.json" for folder in self.folders]
        return [json.loads(path.read_text())["uploads"] if path.exists() else [] for path in paths]

    def public_keys(self) -> list[bytes]:
        """By which devices are known on the wire."""
        return [requested_key((folder / "request.txt").read_text()) for folder in self.folders]

    def end(self) -> None:
        for command in self._started:
            command.kill()

    def _known(self, command):
        self._started.append(command)
        return command


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
