"""Is the sum of a real fleet the sum of its reports? Devices are processes of their own, over TLS,
as `taciturn fleet up` starts them, but note down what they are about to mask; here those notes are
added up in the plain, and compared with the result of each secure sum.

    python experiments/fleet/bit_for_bit.py experiments/fleet/twenty.toml --devices 20 --out
        local/twenty

Then the run is done again with the plain sums of the same reports, in this process, and the two
models are compared.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import jax
import numpy as np

from taciturn.core import UserIds
from taciturn.fleets import assemble, fleet_folders
from taciturn.fleets.devices.fleet import ConnectedDevices, DeviceFleet
from taciturn.fleets.enrolment import EnrolledFile
from taciturn.fleets.wire.device import run_device
from taciturn.fleets.wire.server import wire_server
from taciturn.fleets.wire.tls import AUTHORITY_CERTIFICATE
from taciturn.progress import Progress, ignore_progress
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe, save_recipe
from taciturn.release.model_file import load_model
from taciturn.runs.loop import train_run

# Seconds in which a device's process ends.
END_SECONDS = 20
# The sum of the reports for each row of noise, as residues.
Sums = dict[int, np.ndarray]


# Devices that note down their reports.


def run_noting_device(folder: Path, server: str) -> None:
    """Run a device that also writes down its reports, which no real one does."""
    device = fleet_folders.open_device(folder)
    program = device._program

    def train_and_note(message, user, key):
        report = program(message, user, key)
        residues = np.asarray(report.update).astype(np.uint32)
        np.save(_note_of(folder, message.public.row), residues)
        return report

    device._program = train_and_note  # pyright: ignore[reportAttributeAccessIssue]
    certificate = folder / fleet_folders.OWN_COPY / AUTHORITY_CERTIFICATE
    run_device(server, folder, device, certificate)


def _note_of(device: Path, row: int) -> Path:
    return device / f"report-{row}.npy"


@contextmanager
def noting_devices(folders: list[Path], out: Path, address: str) -> Iterator[None]:
    """Run each device as a process, which ends with the block."""
    command = [sys.executable, __file__, "--out", str(out), "--server", address]
    running = []
    try:
        for folder in folders:
            with open(folder / "log.txt", "w") as lines:
                process = subprocess.Popen([*command, str(folder)], stdout=lines, stderr=lines)
            running.append(process)
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(END_SECONDS)


def add_up_notes(devices: list[Path], rows: list[int], modulus: int) -> Sums:
    """Return the sums of the reports that devices noted.

    A device that came too late has noted one, too, which is in no total.
    """
    sums = {}
    for row in rows:
        notes = [_note_of(device, row) for device in devices]
        reports = [np.load(note) for note in notes if note.exists()]
        total = np.sum(reports, axis=0, dtype=np.uint64)
        sums[row] = (total % modulus).astype(np.uint32)
    return sums


# The two fleets.


class RecordingFleet(DeviceFleet):
    """Keeps every total, and how long it took."""

    totals: ClassVar[Sums] = {}
    seconds: ClassVar[list[float]] = []

    def _secure_sum(self, *, row: int, model: bytes, cohort: UserIds, key: bytes) -> np.ndarray:
        began = time.monotonic()
        total = super()._secure_sum(row=row, model=model, cohort=cohort, key=key)
        self.seconds.append(time.monotonic() - began)
        self.totals[row] = np.asarray(total).astype(np.uint32)
        return total


class PlainFleet(DeviceFleet):
    """Has sums, and no devices."""

    sums: ClassVar[Sums] = {}

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        enrolled = self.connected.enrolled()
        return eligible(np.arange(len(enrolled.certificates)))

    def _secure_sum(self, *, row: int, model: bytes, cohort: UserIds, key: bytes) -> np.ndarray:
        return self.sums[row]


class NoLink:
    """A link without devices."""

    def devices(self) -> list[int]:
        return []

    def ask(
        self,
        kind: str,
        contents: Mapping[int, bytes],
        seconds: float,
        progress: Progress = ignore_progress,
        shared: bytes = b"",
    ) -> dict[int, bytes]:
        return {}


# The two runs.


def make_fleet(recipe: Recipe, out: Path, count: int) -> list[Path]:
    """Make a fleet with the first users of the recipe's population; return the devices' folders."""
    server = out / "server"
    fleet_folders.new_fleet(server, recipe)
    people = build.population(recipe)
    devices = [out / f"device-{number}" for number in range(count)]
    for number, folder in enumerate(devices):
        fleet_folders.save_text(folder, people.texts[number])
    fleet_folders.enrol(server, devices)
    # As it is before anything is charged to it.
    shutil.copytree(server / "population", out / "again" / "population")
    return devices


def train_on_devices(out: Path, devices: list[Path]) -> Path:
    """Train over the wire, and return the run."""
    server_folder = out / "server"
    enrolled = EnrolledFile(server_folder)
    run = out / "run"
    opening = wire_server(server_folder / "wire", "127.0.0.1", 0, enrolled.number_of)
    with (
        patch.object(assemble, "DeviceFleet", RecordingFleet),
        opening as server,
        noting_devices(devices, out, server.address),
    ):
        connected = ConnectedDevices(
            link=server.link,
            enrolled=enrolled.read,
            authority=_authority(out),
        )
        train_run(fleet_folders.fleet_recipe(server_folder), run, _print_round, connected)
    return run


def train_again(out: Path, sums: Sums) -> Path:
    """Train in this process with sums that are known, and return the run."""
    folder = out / "again"
    recipe = load_recipe(out / "server" / fleet_folders.RECIPE)
    recipe = recipe.with_settings("data", population=str(folder / "population"))
    save_recipe(recipe, folder / fleet_folders.RECIPE)
    connected = ConnectedDevices(
        link=NoLink(),
        enrolled=EnrolledFile(out / "server").read,
        authority=_authority(out),
    )
    PlainFleet.sums = sums
    with patch.object(assemble, "DeviceFleet", PlainFleet):
        train_run(recipe, folder / "run", ignore_progress, connected)
    return folder / "run"


def _authority(out: Path) -> Any:
    return fleet_folders.fleet_authority(out / "server" / fleet_folders.FOR_DEVICES)


def _print_round(done: int, rounds: int, row: dict[str, Any]) -> None:
    print(f"round {done} of {rounds}", file=sys.stderr, flush=True)


# What is compared.


def is_same_model(run: Path, other: Path) -> bool:
    params, _ = load_model(run)
    other_params, _ = load_model(other)
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(other_params), strict=True)
    return all(np.array_equal(leaf, other_leaf) for leaf, other_leaf in pairs)


def modulus_of(recipe: Recipe) -> int:
    vocabulary = build.population(recipe).vocabulary
    modulus = build.algorithm(recipe, len(vocabulary)).mechanism.modulus
    assert modulus is not None
    return modulus


def cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return round(used.ru_utime + used.ru_stime, 1)


def compare(recipe: Recipe, out: Path, count: int) -> dict[str, Any]:
    """Train on devices and in the plain; return what is the same, and what it took."""
    devices = make_fleet(recipe, out, count)
    began = time.monotonic()
    run = train_on_devices(out, devices)
    totals = RecordingFleet.totals
    sums = add_up_notes(devices, list(totals), modulus_of(recipe))
    is_same = [np.array_equal(sums[row], total) for row, total in totals.items()]
    again = train_again(out, sums)
    return {
        "rounds": len(totals),
        "sums equal to the bit": all(is_same),
        "models equal to the bit": is_same_model(run, again),
        "seconds of a round": [round(seconds, 1) for seconds in RecordingFleet.seconds],
        "seconds in all": round(time.monotonic() - began, 1),
        "CPU seconds, server": cpu_seconds(resource.RUSAGE_SELF),
        "CPU seconds, devices and link": cpu_seconds(resource.RUSAGE_CHILDREN),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument(
        "--server", help="be a device of this server instead; `recipe` is then its folder"
    )
    options = parser.parse_args()
    if options.server:
        run_noting_device(options.recipe, options.server)
        return
    result = compare(load_recipe(options.recipe, options.set), options.out, options.devices)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
