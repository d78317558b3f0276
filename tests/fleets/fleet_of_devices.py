"""A server and devices in this process, made from a population: the server gets its words and
held-out users, each device a user's text.
"""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from local_link import LocalLink

from enrolling import AUTHORITY, enrolled
from harness import made_up_users, tiny_recipe
from taciturn.data.population import write_population
from taciturn.fleets import assemble
from taciturn.fleets.devices.device import OwnerWishes
from taciturn.fleets.devices.fleet import ConnectedDevices
from taciturn.recipe.solve import with_noise

SETTINGS = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "users": 40, "cohort": 6, "min_separation": 0},
    "privacy": {"noise": "tree", "encoding": "modular", "noise_multiplier": 1.0},
    "fleet": {
        "kind": "devices",
        "timer_hours": 1e-9,
        "lifetime_participations": 1000,
        "over_selection": 1.5,
        "deadline": 60.0,
        "patience": 20.0,
    },
}


def fleet_recipe(population, **sections):
    merged = {
        name: values if not isinstance(values, dict) else values | sections.pop(name, {})
        for name, values in SETTINGS.items()
    }
    return tiny_recipe(population, **(merged | sections))


class FleetOfDevices:
    def __init__(
        self, folder, vocabulary, count=12, faults=(), most_bytes=2**20, **sections
    ) -> None:
        """`faults` change or lose answers (LocalLink)."""
        self.folder, self.vocabulary = folder, vocabulary
        people = write_population(
            folder / "people", made_up_users(count), {}, vocabulary, {"source": "made up"}
        )
        self.texts = [np.asarray(people.texts[number]) for number in range(count)]
        self.population = write_population(
            folder / "server",
            {},
            made_up_users(12, seed=1),
            vocabulary,
            {"source": "made up", "on_devices": True},
        )
        self.recipe = with_noise(fleet_recipe(self.population, **sections), 30_000)
        self.keys = [Ed25519PrivateKey.generate() for _ in range(count)]
        self.enrolled = enrolled(self.keys)
        self.reports: dict[int, list[np.ndarray]] = {}  # what each device masked, before it did
        self.programs = {}
        self.link = LocalLink({}, faults, most_bytes)
        for number in range(count):
            self.start(number)

    def start(self, number: int, recipe=None, key=None, wishes=OwnerWishes()) -> None:
        """A device that is new, or the same after a restart."""
        folder = self.folder / f"device-{number}"
        folder.mkdir(exist_ok=True)
        own = key or self.keys[number], AUTHORITY
        device = assemble.build_device(
            recipe or self.recipe, self.vocabulary, self.texts[number], *own, folder, wishes
        )
        program = self.programs.setdefault(
            (recipe or self.recipe).fingerprint, device._program
        )  # compiled once

        def noted(message, user, key):
            report = program(message, user, key)
            self.reports.setdefault(int(message.public.round), []).append(
                np.asarray(report.update).astype(np.uint32)
            )
            return report

        device._program = noted
        self.link.add(number, device)

    def signed(self, number: int) -> tuple[bytes, bytes]:
        """What the authority says about a device, and about whom it has dismissed: a question to
        advertise ends so.
        """
        return self.enrolled.certificates[number].to_bytes(), self.enrolled.dismissed.to_bytes()

    @property
    def connected(self) -> ConnectedDevices:
        return ConnectedDevices(link=self.link, enrolled=lambda: self.enrolled, authority=AUTHORITY)
