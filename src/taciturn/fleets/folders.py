"""The folders of a fleet of devices, on both sides.

FLEET/                      the server's
  recipe.toml               with its noise worked out: the same on every device
  population/               words, held-out users and the ledger; no user's text, which is on devices. Where a fleet is only tried out there
                            is none: its people are a population's, whose ledger is charged
  enrolled.txt              the devices' public keys, a line each; a device's number is its line
  authority/  wire/         the certificate authority; the server's certificate
  for-devices/              what every device is given: authority.crt, recipe.toml, words, enrolled.txt

DEVICE/                     a device's own: nothing of it is ever sent
  device.key  device.pub    who it is
  fleet/                    a copy of for-devices/
  tokens.npy                its user's text
  participation.json        when it took part
"""

import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np

from taciturn.data.population import HeldOutUsers, Population, hashed_id, writing_population
from taciturn.data.vocabulary import Vocabulary
from taciturn.files import new_folder, write_atomically
from taciturn.fleets import assemble
from taciturn.fleets.devices import participation_record
from taciturn.fleets.devices.device import Device
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation.identities import EnrolledKeys
from taciturn.fleets.wire.authority import (
    AUTHORITY_CERTIFICATE,
    certify_server,
    device_key,
    load_device_key,
    load_public_key,
    make_authority,
)
from taciturn.populations import open_ledger
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.solve import with_noise
from taciturn.recipe.text import load_recipe, save_recipe

RECIPE, ENROLLED, TOKENS = "recipe.toml", "enrolled.txt", "tokens.npy"
LOCAL_NAMES = ("localhost", "127.0.0.1")
NAME_DIGITS = 16


def new_fleet(folder: Path, recipe: Recipe, names: tuple[str, ...] = ()) -> None:
    """A server's folder. The recipe's population lends its words and held-out users; the people are others, with a ledger of their own.
    `names` are those that devices know the server by."""
    source = build.population(recipe)
    with new_folder(folder, "a fleet's authority and ledger are never replaced; choose another folder") as made:
        _server_folder(made, recipe.with_settings("data", population=str(folder / "population")), source, names)
        with writing_population(made / "population", source.vocabulary) as writer:
            for number, text in enumerate(HeldOutUsers(source.folder).texts):
                writer.add("held_out", hashed_id(writer.salt, str(number)), np.asarray(text))
            writer.finish({"source": f"held-out users of {source.folder.name}", "on_devices": True}, {})


def try_out(folder: Path, recipe: Recipe, count: int, run: str) -> list[Path]:
    """A server's folder, and enrolled devices with the first users of the recipe's population. What is released about them is charged to
    its ledger, under the name `run`."""
    population = build.population(recipe)
    if len(population) < count:
        raise LinkError(f"{population.folder} has fewer than {count} users")
    with new_folder(folder, "choose another --out") as made:
        if run in open_ledger(population).runs():
            raise LinkError(f"the ledger of {population.folder} has a run {run!r} already: choose another --out")
        assemble.check_enough(recipe, count)
        people = str(population.folder.resolve())  # the same ones, wherever it is started
        _server_folder(made / "server", recipe.with_settings("data", population=people), population, ())
        devices = [made / f"device-{number}" for number in range(count)]
        for number, device in enumerate(devices):
            save_text(device, population.texts[number])
        enrol(made / "server", devices)
    return [folder / device.name for device in devices]


def _server_folder(folder: Path, recipe: Recipe, words_of: Population, names: tuple[str, ...]) -> None:
    recipe = with_noise(recipe, vocabulary=len(words_of.vocabulary))
    certificate = make_authority(folder / "authority")
    certify_server(folder / "authority", folder / "wire", [*LOCAL_NAMES, *names])
    save_recipe(recipe, folder / RECIPE)
    (folder / ENROLLED).touch()
    given = folder / "for-devices"
    given.mkdir()
    shutil.copy(certificate, given / AUTHORITY_CERTIFICATE)
    theirs = recipe.with_settings("run", seed=None)  # of which all noise is made: it is the server's alone
    save_recipe(theirs.with_settings("data", population="on devices"), given / RECIPE)
    words_of.vocabulary.save(given / "vocabulary.txt")
    write_atomically(given / "vocabulary.json", json.dumps(words_of.vocabulary.about).encode())


def enrol(folder: Path, devices: list[Path]) -> None:
    """Make keys for devices that have none, list them, and give all of them what they need to know."""
    list_devices(folder, devices)
    for device in devices:
        shutil.copytree(folder / "for-devices", device / "fleet", dirs_exist_ok=True)


def list_devices(folder: Path, devices: list[Path]) -> None:
    """After those that are listed already; with keys for those that have none."""
    enrolled = dict.fromkeys([*enrolled_keys(folder), *map(device_key, devices)])
    write_atomically(folder / ENROLLED, b"".join(key + b"\n" for key in enrolled))
    shutil.copy(folder / ENROLLED, folder / "for-devices" / ENROLLED)


def enrolled_keys(folder: Path) -> list[bytes]:
    if not (folder / ENROLLED).exists():
        raise LinkError(f"{folder} is no fleet, or knows of no device yet: `taciturn fleet new`, then `taciturn fleet enrol`")
    return (folder / ENROLLED).read_bytes().splitlines()


def device_numbers(enrolled: list[bytes]) -> dict[bytes, int]:
    """By the keys as devices send them."""
    return {load_public_key(line).public_bytes_raw(): number for number, line in enumerate(enrolled)}


def fleet_name(folder: Path) -> str:
    """By which a Redis tells fleets apart: the same on every host that has the fleet's certificate of its authority."""
    certificate = folder / "for-devices" / AUTHORITY_CERTIFICATE
    if not certificate.exists():
        raise LinkError(f"{certificate} is missing: a front end needs a copy of the fleet's folders wire/ and for-devices/")
    return hashlib.sha256(certificate.read_bytes()).hexdigest()[:NAME_DIGITS]


def identity(enrolled: list[bytes], device: Path | None = None) -> EnrolledKeys:
    """Who knows all that are enrolled, and may be one of them."""
    keys = {number: load_public_key(line) for number, line in enumerate(enrolled)}
    return EnrolledKeys(keys, load_device_key(device) if device else None)


def fleet_recipe(folder: Path) -> Recipe:
    if not (folder / RECIPE).exists():
        raise LinkError(f"{folder} is no fleet: there is no recipe in it; `taciturn fleet new` makes one")
    recipe, population = load_recipe(folder / RECIPE), folder / "population"
    return recipe.with_settings("data", population=str(population)) if population.exists() else recipe


def save_text(device: Path, tokens: np.ndarray) -> None:
    device.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = io.BytesIO()
    np.save(content, np.asarray(tokens, np.int32), allow_pickle=False)
    write_atomically(device / TOKENS, content.getvalue(), 0o600)


def vocabulary_of(device: Path) -> Vocabulary:
    given = device / "fleet"
    if not (given / "vocabulary.json").exists():
        raise LinkError(f"{device} belongs to no fleet yet: `taciturn fleet enrol FLEET {device}`, on the server's side")
    return Vocabulary.load(given / "vocabulary.txt", json.loads((given / "vocabulary.json").read_text()))


def open_device(device: Path) -> Device:
    vocabulary, enrolled = vocabulary_of(device), enrolled_keys(device / "fleet")
    if not (device / TOKENS).exists():
        raise LinkError(f"{device} has no text: name a file of messages with --data")
    own = device_key(device)
    if own not in enrolled:
        raise LinkError(f"{device} is not among the devices that its fleet knows: enrol it again")
    return assemble.build_device(
        fleet_recipe(device / "fleet"),
        vocabulary,
        np.load(device / TOKENS, allow_pickle=False),
        enrolled.index(own),
        identity(enrolled, device),
        enrolled,
        device,
    )


def opt_out(device: Path) -> None:
    """Take part in nothing any more, and delete the text."""
    (device / TOKENS).unlink(missing_ok=True)
    participation_record.opt_out(device)
