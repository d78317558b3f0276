"""A fleet to try a deployment with: a tiny model, words that mean nothing, and as many devices as one likes in one process.

Everything about it is real but the people: keys, certificates, secure sums, records of participation, a ledger of its own.
"""

from pathlib import Path

import numpy as np

from taciturn.data.population import write_population
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary
from taciturn.files import new_folder
from taciturn.fleets import assemble, enrolment
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.folders import fleet_authority, fleet_recipe, new_fleet
from taciturn.fleets.wire.authority import AUTHORITY_CERTIFICATE, DEVICE_KEY, device_request, load_key
from taciturn.fleets.wire.device import trusting
from taciturn.fleets.wire.many_devices import Load, LoadDevice
from taciturn.recipe.text import parse_recipe

FIXED = SPECIAL + PUNCTUATION
VOCABULARY = Vocabulary(FIXED + tuple(f"word{number}" for number in range(200)))
OVER_SELECTION = 1.2  # so that a round comes about where every tenth device is lost
SETTINGS = {
    "algorithm": "dp-ftrl",
    "model": {"width": 16, "units": 16},
    "local": {"batch_size": 4, "unroll": 8},
    "privacy": {"encoding": "modular", "noise": "tree", "noise_multiplier": 4.0, "clip_norm": 0.1},
}


def new_load(folder: Path, count: int, rounds: int, seconds: float, names: tuple[str, ...]) -> None:
    """FOLDER/server, to be served, and keys for so many devices. `names` are those that they know the server by."""
    cohort = int(count / OVER_SELECTION)
    held_out = {str(number): _text(number).tolist() for number in range(12)}
    with new_folder(folder, "to use its devices again, leave N as it was; or choose another --out") as made:
        words = write_population(made / "words", {}, held_out, VOCABULARY, {"source": "made up", "on_devices": True})
        fleet = {"kind": "devices", "over_selection": OVER_SELECTION, "timer_hours": 1e-9, "lifetime_participations": 10**6}
        sections = {
            "data": {"population": str(words.folder), "tokens_per_user": 64},
            "participation": {"kind": "min-separation", "users": count, "cohort": cohort, "min_separation": 0},
            "fleet": {**fleet, "deadline": seconds, "patience": seconds},
            "run": {"rounds": rounds, "evaluate_every": rounds, "save_every": rounds},
        }
        new_fleet(made / "server", parse_recipe(SETTINGS | sections), names)
        requests = [device_request(_device(made, number)) for number in range(count)]
        enrolment.enrol(enrolment.beside(made / "server"), made / "server", requests)


def open_load(folder: Path, count: int, servers: list[str]) -> tuple[list[LoadDevice], Load]:
    """The devices, dealt to the servers in turn, and what will come of them."""
    given = folder / "server" / "for-devices"
    recipe, authority, enrolled = fleet_recipe(given), fleet_authority(given), len(enrolment.read_enrolled(folder / "server").certificates)
    if enrolled != count:
        raise LinkError(f"{folder} is of {enrolled} devices: a round of it asks all of them. Choose another --out")
    load, context, devices = Load(), trusting("", given / AUTHORITY_CERTIFICATE), []
    for number in range(count):
        own = load_key(_device(folder, number) / DEVICE_KEY)
        handler = assemble.build_device(recipe, VOCABULARY, _text(number), own, authority, _device(folder, number))
        devices.append(LoadDevice(servers[number % len(servers)], own, handler, context, load, fields.UNMASK))
    return devices, load


def _device(folder: Path, number: int) -> Path:
    return folder / f"device-{number}"


def _text(number: int) -> np.ndarray:
    """Of a user who counts, from a word of their own on."""
    return (len(FIXED) + (number + np.arange(60)) % (len(VOCABULARY) - len(FIXED))).astype(np.int32)
