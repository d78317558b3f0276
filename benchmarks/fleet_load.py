"""Test a deployment under load: a fleet with a tiny model and meaningless words, and many devices
in one process, each a thread.

    python benchmarks/fleet_load.py 200 --out load --rounds 3

Everything about it is real except the people: keys, certificates, secure sums, participation
records, its own ledger. What goes wrong is counted. Without --server, everything runs on this
machine, `taciturn fleet serve OUT/server` too. With it, this program runs only devices, which wait
for a server: copy OUT/server to where it is to be served. It ends after --rounds, or after
--seconds.
"""

import argparse
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.cli.command_classes import name_flags
from taciturn.cli.output import console, print_table
from taciturn.cli.progress_display import bar
from taciturn.data.population import write_population
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary
from taciturn.errors import TaciturnError
from taciturn.files import new_folder, not_a, to_json
from taciturn.fleets import assemble, enrolment
from taciturn.fleets.devices.transport import Handler, LinkError
from taciturn.fleets.fleet_folders import (
    FOR_DEVICES,
    fleet_authority,
    fleet_recipe,
    new_fleet,
)
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.fleets.wire.device import DeviceEnd, RefusedByServer, make_device_context
from taciturn.fleets.wire.tls import AUTHORITY_CERTIFICATE, DEVICE_KEY, device_request, load_key
from taciturn.recipe.text import parse_recipe

FIXED = SPECIAL + PUNCTUATION
VOCABULARY = Vocabulary(words=FIXED + tuple(f"word{number}" for number in range(200)))
# So that a round succeeds although every tenth device is lost.
OVER_SELECTION = 1.2
SETTINGS = {
    "algorithm": "dp-ftrl",
    "model": {"width": 16, "units": 16},
    "local": {"batch_size": 4, "unroll": 8},
    "privacy": {"encoding": "modular", "noise": "tree", "noise_multiplier": 4.0, "clip_norm": 0.1},
}
# At a time: a server holds few connections that have not identified themselves.
HANDSHAKES = threading.Semaphore(100)
WORKERS = threading.Semaphore(2)
# Of a thread, of which there are thousands.
STACK_BYTES = 512 * 1024
# For all of them to leave.
END_SECONDS = 10.0
# For the server to save what it has trained.
SERVER_SECONDS = 20
# From the first to the last answer that ends the last round.
LAST_SECONDS = 5.0
LOOK_SECONDS = 1.0
TACITURN = (sys.executable, "-c", "from taciturn.cli import main; main()")


@dataclass
class Load:
    """What devices have seen."""

    # By the kind of question.
    answered: Counter[str] = field(default_factory=Counter)
    # Names of the last question of each round.
    rounds: set[str] = field(default_factory=set)
    # Of requests, except those that wait.
    seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    connected: set["LoadDevice"] = field(default_factory=set)
    most_connected: int = 0
    most_a_second: float = 0.0
    # When it was looked at last, and the answers there were.
    looked_at: float = field(default_factory=time.monotonic)
    answers_then: int = 0
    # Whether its server may end.
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, counter: Counter[str], what: str) -> None:
        with self.lock:
            counter[what] += 1

    def look(self) -> None:
        """Update the maxima; call it every second or so."""
        now = time.monotonic()
        answers = self.answered.total()
        a_second = (answers - self.answers_then) / (now - self.looked_at)
        self.most_connected = max(self.most_connected, len(self.connected))
        self.most_a_second = max(self.most_a_second, a_second)
        self.looked_at = now
        self.answers_then = answers

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share)) if self.seconds else 0.0


class LoadDevice(DeviceEnd):
    retry_seconds = 1.0, 1.0

    def __init__(
        self,
        *,
        server: str,
        key: Ed25519PrivateKey,
        handler: Handler,
        context: ssl.SSLContext | None,
        load: Load,
    ) -> None:
        def in_turn(kind: str, content: bytes) -> bytes:
            with WORKERS:
                return handler(kind, content)

        super().__init__(server=server, key=key, handler=in_turn, context=context)
        self._load = load
        self._has_signed_in = False

    def sign_in(self) -> None:
        with HANDSHAKES:
            super().sign_in()
        self._has_signed_in = True
        self._load.connected.add(self)

    def sign_out(self) -> None:
        self._load.connected.discard(self)
        super().sign_out()

    def note_loss(self, error: Exception) -> None:
        self._load.connected.discard(self)
        # Before, the server may not be there yet, and afterwards no longer.
        if self._has_signed_in and not self._load.over:
            is_refusal = isinstance(error, RefusedByServer)
            why = str(error) if is_refusal else type(error).__name__
            self._load.count(self._load.failures, why)

    def note_answer(self, name: str, kind: str, failed: str | None, is_late: bool) -> None:
        if is_late:
            self._load.count(self._load.failures, "an answer that came too late")
            return
        if failed:
            self._load.count(self._load.failures, f"a device that could not answer “{kind}”")
            return
        self._load.count(self._load.answered, kind)
        if kind == Stage.UNMASK.question:
            self._load.rounds.add(name)

    def _request(self, method: str, path: str, *about: Any, **more: Any) -> Any:
        began = time.monotonic()
        answer = super()._request(method, path, *about, **more)
        if not path.startswith("/v1/question"):
            self._load.seconds.append(time.monotonic() - began)
        return answer


@contextmanager
def run_devices(devices: Sequence[LoadDevice]) -> Iterator[None]:
    """Run the devices until the end of the block."""
    stop = threading.Event()
    stack_bytes = threading.stack_size(STACK_BYTES)
    threads = [threading.Thread(target=device.run, args=(stop,), daemon=True) for device in devices]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        threading.stack_size(stack_bytes)
        stop.set()
        for device in devices:
            device.hang_up()
        deadline = time.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def new_load(folder: Path, count: int, rounds: int, seconds: float, names: tuple[str, ...]) -> None:
    """Make FOLDER/server, to be served, and keys for `count` devices, which know the server by
    `names`.
    """
    held_out = {str(number): _text(number).tolist() for number in range(12)}
    hint = "to use its devices again, leave N as it was; or choose another --out"
    with new_folder(folder, hint) as unfinished:
        words = write_population(
            unfinished / "words",
            train={},
            held_out=held_out,
            vocabulary=VOCABULARY,
            about={"source": "simulated", "on_devices": True},
        )
        sections = _load_sections(words.folder, count, rounds, seconds)
        server = unfinished / "server"
        new_fleet(server, parse_recipe(SETTINGS | sections), names)
        requests = [device_request(_device(unfinished, number)) for number in range(count)]
        enrolment.enrol(enrolment.authority_folder_beside(server), server, requests)


def _load_sections(words: Path, count: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the sections of the recipe that depend on the load."""
    return {
        "data": {"population": str(words), "tokens_per_user": 64},
        "participation": {
            "kind": "min-separation",
            "users": count,
            "cohort": int(count / OVER_SELECTION),
            "min_separation": 0,
        },
        "fleet": {
            "kind": "devices",
            "over_selection": OVER_SELECTION,
            "timer_hours": 1e-9,
            "lifetime_participations": 10**6,
            "deadline": seconds,
            "patience": seconds,
        },
        "run": {
            "rounds": rounds,
            "evaluate_every": rounds,
            "save_every": rounds,
        },
    }


def open_load(folder: Path, count: int, servers: list[str]) -> tuple[list[LoadDevice], Load]:
    """Return the devices, dealt to the servers in turn, and the record of what they see."""
    for_devices = folder / "server" / FOR_DEVICES
    recipe = fleet_recipe(for_devices)
    authority = fleet_authority(for_devices)
    enrolled = len(enrolment.read_enrolled(folder / "server").certificates)
    if enrolled != count:
        raise LinkError(
            f"{folder} is of {enrolled} devices: a round of it asks all of them. Choose another"
            " --out"
        )
    load = Load()
    context = make_device_context("", for_devices / AUTHORITY_CERTIFICATE)
    devices = []
    for number in range(count):
        key = load_key(_device(folder, number) / DEVICE_KEY)
        handler = assemble.build_device(
            recipe=recipe,
            words=VOCABULARY,
            text=_text(number),
            key=key,
            authority=authority,
            home=_device(folder, number),
        )
        device = LoadDevice(
            server=servers[number % len(servers)],
            key=key,
            handler=handler,
            context=context,
            load=load,
        )
        devices.append(device)
    return devices, load


def _device(folder: Path, number: int) -> Path:
    return folder / f"device-{number}"


def _text(number: int) -> np.ndarray:
    """Return the text of a user who counts, starting from a word of their own."""
    words = len(VOCABULARY) - len(FIXED)
    counted = (number + np.arange(60)) % words
    return (len(FIXED) + counted).astype(np.int32)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int, help="devices, all in one process; at least 3")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("load"),
        help="folder for the fleet of these devices; made if it is not there",
    )
    parser.add_argument(
        "--server",
        action="append",
        help="host:port that serves OUT/server; several share the devices (default: one here)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="of the training (default: 3)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="end after this long at the latest (default: 600)",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print nothing but errors, and what --json prints"
    )
    parser.add_argument(
        "--json", action="store_true", help="print what was found as JSON, and nothing else"
    )
    options = parser.parse_args(arguments)
    for name, least in (("count", 3), ("--rounds", 1), ("--seconds", 1)):
        value = getattr(options, name.removeprefix("--"))
        if not value >= least:
            parser.error(f"{name} must be at least {least}, not {value}")
    for server in options.server or ():
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal():
            parser.error(f"--server must be host:port, for example 127.0.0.1:8470, not {server}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    was_quiet = console.quiet
    console.quiet = options.quiet or options.json
    try:
        load = put_under_load(
            out=options.out,
            count=options.count,
            servers=options.server,
            rounds=options.rounds,
            seconds=options.seconds,
        )
    except TaciturnError as error:
        print(f"fleet_load: {name_flags(str(error), command=None)}", file=sys.stderr)
        return 2
    finally:
        console.quiet = was_quiet
    if options.json:
        print(to_json(_load_to_json(load), ensure_ascii=False))
    return int(len(load.rounds) < options.rounds)


def _load_to_json(load: Load) -> dict[str, Any]:
    return {
        "connected": load.most_connected,
        "answered": load.answered.total(),
        "rounds": len(load.rounds),
        "most_a_second": load.most_a_second,
        "failures": dict(load.failures),
    }


def put_under_load(
    *, out: Path, count: int, servers: list[str] | None, rounds: int, seconds: float
) -> Load:
    """Train on many devices, and print and return what they saw.

    Args:
        out: the folder of their fleet; made if it is not there.
        count: of devices.
        servers: host:port of each; None where one is to be started here.
        rounds: of the training.
        seconds: in which it ends at the latest.
    """
    if not out.exists():
        hosts = [server.rpartition(":")[0] for server in servers or ()]
        new_load(out, count=count, rounds=rounds, seconds=seconds, names=tuple(hosts))
    elif not (out / "server").is_dir():
        raise LinkError(f"{not_a('a fleet made by this program', out)}: choose another --out")
    with _server(out, servers) as (addresses, is_over):
        devices, load = open_load(out, count, addresses)
        server = out / "server"
        console.print(f"{count} devices for {', '.join(addresses)}, which must serve {server}")
        deadline = time.monotonic() + seconds

        def may_continue() -> bool:
            return not is_over() and time.monotonic() < deadline

        with run_devices(devices):
            _watch(load, rounds, may_continue)
            load.over = True
            time.sleep(LAST_SECONDS)
    print_load(load)
    if len(load.rounds) < rounds:
        where = "the server's own terminal" if servers else f"{out / 'server.log'}"
        console.print(
            f"Only {len(load.rounds)} of {rounds} rounds were done within {seconds:g} seconds:"
            f" {where} says why",
            style="red",
        )
    return load


def _watch(load: Load, rounds: int, may_continue: Callable[[], bool]) -> None:
    """Show the load, until the rounds are done or may not continue."""
    with bar("load", "rounds") as show:
        while len(load.rounds) < rounds and may_continue():
            time.sleep(LOOK_SECONDS)
            load.look()
            connected = len(load.connected)
            answered = load.answered.total()
            note = f"{connected:,} devices connected, {answered:,} questions answered"
            show(len(load.rounds), rounds, note)


@contextmanager
def _server(out: Path, servers: list[str] | None) -> Iterator[tuple[list[str], Callable[[], bool]]]:
    """Yield the servers that were named, or one that is started here, and whether it has ended."""
    if servers:
        yield servers, lambda: False
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = out / "server" / f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    command = [
        *TACITURN,
        "fleet",
        "serve",
        str(out / "server"),
        "--port",
        str(port),
        "--run",
        str(run),
    ]
    with open(out / "server.log", "w") as lines:
        process = subprocess.Popen(command, stdout=lines, stderr=lines)
    try:
        yield [f"127.0.0.1:{port}"], lambda: process.poll() is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(SERVER_SECONDS)
    finally:
        process.kill()
        process.wait()


def print_load(load: Load) -> None:
    rows = {
        "most devices connected at once": f"{load.most_connected:,}",
        "questions answered": f"{load.answered.total():,}",
        "questions a second, in the best second": f"{load.most_a_second:,.0f}",
        "rounds done": f"{len(load.rounds)}",
    }
    for share in (0.5, 0.95, 0.99):
        milliseconds = 1000 * load.quantile(share)
        rows[f"{share:.0%} of requests took at most"] = f"{milliseconds:,.0f} ms"
    for reason, times in load.failures.most_common():
        rows[reason] = f"{times:,}"
    rows["failures"] = f"{load.failures.total():,}"
    print_table(("", ""), rows.items())


if __name__ == "__main__":
    sys.exit(main())
