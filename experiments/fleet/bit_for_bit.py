"""Is the sum of a real fleet the sum of its reports? Devices are processes of their own, over TLS,
as `taciturn fleet up` starts them, but note down what they are about to mask; here those notes are
added up in the plain, and compared with what came out of each secure sum.

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
from pathlib import Path

import jax
import numpy as np

from taciturn.cli import fleet
from taciturn.fleets import assemble, fleet_folders
from taciturn.fleets.devices import fleet as device_fleets
from taciturn.fleets.wire.device import run_device
from taciturn.fleets.wire.server import wire_server
from taciturn.fleets.wire.tls import AUTHORITY_CERTIFICATE
from taciturn.recipe import build
from taciturn.recipe.text import load_recipe, save_recipe
from taciturn.release.model_file import load_model
from taciturn.runs.loop import train_run


def noting_device(folder: Path, server: str) -> None:
    """A device that also writes down its reports, which no real one does."""
    device = fleet_folders.open_device(folder)
    program = device._program

    def noted(message, user, key):
        report = program(message, user, key)
        np.save(
            folder / f"report-{int(message.public.round)}.npy",
            np.asarray(report.update).astype(np.uint32),
        )
        return report

    device._program = noted
    run_device(server, folder, device, folder / "fleet" / AUTHORITY_CERTIFICATE)


class Noting(device_fleets.DeviceFleet):
    """Keeps every total, and how long it took."""

    totals: dict[int, np.ndarray] = {}
    seconds: list[float] = []

    def _secure_sum(self, round, model, cohort, key):
        began = time.monotonic()
        total = super()._secure_sum(round, model, cohort, key)
        self.seconds.append(time.monotonic() - began)
        self.totals[round] = total
        return total


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
    args = parser.parse_args()
    if args.server:
        noting_device(args.recipe, args.server)
        return
    recipe = load_recipe(args.recipe, args.set)
    fleet_folders.new_fleet(args.out / "server", recipe)
    people, devices = (
        build.population(recipe),
        [args.out / f"device-{number}" for number in range(args.devices)],
    )
    for number, folder in enumerate(devices):
        fleet_folders.save_text(folder, people.texts[number])
    fleet_folders.enrol(args.out / "server", devices)
    shutil.copytree(args.out / "server" / "population", args.out / "again" / "population")
    assemble.DeviceFleet = Noting
    began = time.monotonic()
    with fleet._logging(), wire_server(args.out / "server" / "wire", "127.0.0.1", 0) as server:
        command = [sys.executable, __file__, "--out", str(args.out), "--server", server.address]
        running = [
            subprocess.Popen([*command, str(folder)], stderr=subprocess.DEVNULL)
            for folder in devices
        ]
        try:
            fleet._serve(server, args.out / "server", args.out / "run", resume=False)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
    own, theirs = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    modulus = build.algorithm(
        load_recipe(args.out / "server" / "recipe.toml"), 10_000
    ).mechanism.modulus
    plain = plain_sums(args.out, devices, Noting.totals, modulus)
    same = {
        round: bool(np.array_equal(plain[round], total)) for round, total in Noting.totals.items()
    }
    again = done_again(args.out, plain)
    one, other = (jax.tree.leaves(load_model(folder)[0]) for folder in (args.out / "run", again))
    result = {
        "rounds": len(same),
        "sums equal to the bit": all(same.values()),
        "models equal to the bit": all(
            np.array_equal(*pair) for pair in zip(one, other, strict=True)
        ),
        "seconds of a round": [round(seconds, 1) for seconds in Noting.seconds],
        "seconds in all": round(time.monotonic() - began, 1),
        "CPU seconds, server": round(own.ru_utime + own.ru_stime, 1),
        "CPU seconds, devices and link": round(theirs.ru_utime + theirs.ru_stime, 1),
    }
    print(json.dumps(result, indent=1))


def plain_sums(
    out: Path, devices: list[Path], totals: dict[int, np.ndarray], modulus: int
) -> dict[int, np.ndarray]:
    """Of the reports that devices noted; a device that came too late has noted one, too, which is
    in no total.
    """
    sums = {}
    for round in totals:
        notes = [folder / f"report-{round}.npy" for folder in devices]
        reports = [np.load(note).astype(np.uint64) for note in notes if note.exists()]
        sums[round] = (sum(reports) % modulus).astype(np.uint32)
    return sums


def done_again(out: Path, plain: dict[int, np.ndarray]) -> Path:
    class Plain(device_fleets.DeviceFleet):
        def _secure_sum(self, round, model, cohort, key):
            return plain[round]

        def users(self, eligible):
            return eligible(np.arange(self.count))

    recipe = load_recipe(out / "server" / "recipe.toml").with_settings(
        "data", population=str(out / "again" / "population")
    )
    save_recipe(recipe, out / "again" / "recipe.toml")
    enrolled = fleet_folders.enrolled_keys(out / "server")
    Plain.count = len(enrolled)
    assemble.DeviceFleet = Plain
    connected = device_fleets.ConnectedDevices(
        link=None, enrolled=lambda: enrolled, authority=fleet_folders.identity(enrolled)
    )
    train_run(recipe, out / "again" / "run", lambda done, rounds, row: None, connected)
    return out / "again" / "run"


if __name__ == "__main__":
    main()
