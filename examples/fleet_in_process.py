"""A fleet of devices in one process: reports are masked, and the server learns only their sum. No
network, no certificates.

    python examples/fleet_in_process.py POPULATION FOLDER

Over a network, with TLS and devices that come and go: `taciturn fleet up` (docs/fleet.md).
"""

import sys
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import taciturn as tt
from taciturn.data.population import Population
from taciturn.fleets.assemble import build_device
from taciturn.fleets.devices.device import Device
from taciturn.fleets.devices.fleet import ConnectedDevices
from taciturn.fleets.devices.transport import ByDevice, answer_of
from taciturn.fleets.secure_aggregation.identities import EnrolledDevices, SigningAuthority
from taciturn.recipe.solve import with_noise

DEVICES = 12
COHORT = 6
ROUNDS = 2
DAY_SECONDS = 86_400


class LinkInProcess:
    """Stands in place of a network (fleets/devices/transport.py)."""

    def __init__(self, devices: dict[int, Device]) -> None:
        self._devices = devices

    def devices(self) -> list[int]:
        return sorted(self._devices)

    def ask(
        self, kind: str, contents: ByDevice, seconds: float, progress=None, shared: bytes = b""
    ) -> dict[int, bytes]:
        """Ask one device after another; one that fails is missing."""
        answers = {}
        for number, content in contents.items():
            answer = answer_of(self._devices[number], kind, content + shared)
            if answer is not None:
                answers[number] = answer
        return answers


def make_recipe(population: Path, vocabulary: int) -> tt.Recipe:
    sections: dict[str, Any] = {
        "algorithm": "dp-ftrl",
        "data": {"population": str(population), "tokens_per_user": 100},
        "model": {"kind": "cifg", "width": 8, "units": 12},
        "participation": {
            "kind": "min-separation",
            "users": DEVICES,
            "cohort": COHORT,
            "min_separation": 0,
        },
        "privacy": {"encoding": "modular", "noise": "tree", "noise_multiplier": 1.0, "delta": 1e-3},
        "fleet": {
            "kind": "devices",
            "timer_hours": 1e-9,
            "lifetime_participations": 99,
            "over_selection": 1.5,
        },
        "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS},
    }
    return with_noise(tt.Recipe(**sections), vocabulary=vocabulary)


def enrol(authority: SigningAuthority, keys: list[Ed25519PrivateKey]) -> EnrolledDevices:
    """Let the authority sign which keys are devices'."""
    now = int(time.time())
    certificates = []
    for device, private_key in enumerate(keys):
        key = private_key.public_key().public_bytes_raw()
        certificates.append(
            authority.certify(device=device, key=key, begins=now, ends=now + DAY_SECONDS, after=0)
        )
    return EnrolledDevices(certificates, authority.dismiss(0, ()))


def main(population: Path, folder: Path) -> tt.FinishedRun:
    people = Population(population)
    recipe = make_recipe(population, len(people.vocabulary))
    signing_authority = SigningAuthority(bytes(16), Ed25519PrivateKey.generate())
    keys = [Ed25519PrivateKey.generate() for _ in range(DEVICES)]
    enrolled = enrol(signing_authority, keys)
    # Each device has its user's text, its key, and a record of when it took part.
    devices = {}
    for number, key in enumerate(keys):
        home = folder / f"device-{number}"
        home.mkdir(parents=True)
        devices[number] = build_device(
            recipe=recipe,
            words=people.vocabulary,
            text=people.texts[number],
            key=key,
            authority=signing_authority.authority,
            home=home,
        )
    connected = ConnectedDevices(
        link=LinkInProcess(devices),
        enrolled=lambda: enrolled,
        authority=signing_authority.authority,
    )
    run = tt.train(recipe, folder / "run", connected=connected)
    guarantee = run.guarantee
    print(f"{guarantee.releases} secure sums: ε = {guarantee.epsilon} at δ = {guarantee.delta}")
    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
