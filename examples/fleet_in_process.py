"""A fleet of devices in one process: reports are masked, and the server learns their sum alone. No
network, no certificates.

    python examples/fleet_in_process.py POPULATION FOLDER

Over a network, with TLS and devices that come and go: `taciturn fleet up` (docs/fleet.md).
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import taciturn as tt
from taciturn.data.population import Population
from taciturn.fleets.assemble import build_device
from taciturn.fleets.devices.fleet import ConnectedDevices
from taciturn.fleets.devices.transport import answer_of
from taciturn.fleets.secure_aggregation.identities import EnrolledDevices, SigningAuthority
from taciturn.recipe.solve import with_noise

DEVICES, COHORT, ROUNDS = 12, 6, 2


def main(population: Path, folder: Path) -> tt.FinishedRun:
    people, devices = Population(population), {}
    recipe = with_noise(
        tt.Recipe(
            algorithm="dp-ftrl",
            data={"population": str(population), "tokens_per_user": 100},
            model={"kind": "cifg", "width": 8, "units": 12},
            participation={
                "kind": "min-separation",
                "users": DEVICES,
                "cohort": COHORT,
                "min_separation": 0,
            },
            privacy={
                "encoding": "modular",
                "noise": "tree",
                "noise_multiplier": 1.0,
                "delta": 1e-3,
            },
            fleet={
                "kind": "devices",
                "timer_hours": 1e-9,
                "lifetime_participations": 99,
                "over_selection": 1.5,
            },
            run={"rounds": ROUNDS, "evaluate_every": ROUNDS},
        ),
        vocabulary=len(people.vocabulary),
    )
    keys = [Ed25519PrivateKey.generate() for _ in range(DEVICES)]
    # Who says which keys are devices.
    signing_authority = SigningAuthority(bytes(16), Ed25519PrivateKey.generate())
    now = int(time.time())
    certificates = [
        signing_authority.certify(number, key.public_key().public_bytes_raw(), now, now + 86400, 0)
        for number, key in enumerate(keys)
    ]
    enrolled = EnrolledDevices(certificates, signing_authority.dismiss(0, ()))

    def ask(
        kind, contents, seconds, progress=None, shared=b""
    ):  # one after another; whoever fails is missing
        answers = (
            (number, answer_of(devices[number], kind, content + shared))
            for number, content in contents.items()
        )
        return {number: answer for number, answer in answers if answer is not None}

    for number, key in enumerate(
        keys
    ):  # each device has its user's text, its key, and a record of when it took part
        (own := folder / f"device-{number}").mkdir(parents=True)
        devices[number] = build_device(
            recipe=recipe,
            words=people.vocabulary,
            text=people.texts[number],
            key=key,
            authority=signing_authority.authority,
            home=own,
        )
    link = SimpleNamespace(
        devices=lambda: sorted(devices), ask=ask
    )  # in place of a network (fleets/devices/transport.py)
    run = tt.train(
        recipe,
        folder / "run",
        connected=ConnectedDevices(
            link=link, enrolled=lambda: enrolled, authority=signing_authority.authority
        ),
    )
    print(
        f"{run.guarantee.releases} secure sums released; ε = {run.guarantee.epsilon:.2f} for each"
        " device"
    )
    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
