"""The folders of a fleet of devices, on both sides.

FLEET/                      the server's
  recipe.toml               with its noise worked out: the same on every device population/
  words, held-out users and the ledger; no user's text, which is on devices. A fleet that is only
  tried out has
                            none: its people are a population's, whose ledger is charged
  enrolled.txt              who is enrolled, as the authority says: certificates, and the list of
  dismissed devices (enrolment.py) wire/                     the server's certificate for-devices/
  what every device gets: authority.crt, enrolment.pub, words, recipe.toml, and what follows from
  that for
                            devices that have no Python: agreement.json

FLEET-authority/            the authority's, which belongs elsewhere (enrolment.py)

DEVICE/                     a device's own: nothing in it is ever sent except request.txt
  device.key  request.txt   who it is, and what it asks the authority to sign
  fleet/                    a copy of for-devices/
  tokens.npy                its user's text
  participation.json        when it took part
"""

import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from taciturn.data.population import HeldOutUsers, Population, hashed_id, writing_population
from taciturn.data.vocabulary import Vocabulary
from taciturn.files import new_folder, not_a, write_atomically
from taciturn.fleets import assemble, enrolment
from taciturn.fleets.devices import own_participation
from taciturn.fleets.devices.device import Device, OwnerWishes
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation.identities import FLEET_BYTES, Authority
from taciturn.fleets.wire.tls import (
    AUTHORITY_CERTIFICATE,
    DEVICE_KEY,
    certify_server,
    device_request,
    load_key,
    make_authority,
)
from taciturn.people import open_ledger
from taciturn.recipe import build, solve
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe, save_recipe

RECIPE, AGREEMENT, ENROLMENT, TOKENS = (
    "recipe.toml",
    "agreement.json",
    "enrolment.pub",
    "tokens.npy",
)
LOCAL_NAMES = ("localhost", "127.0.0.1")
WhyNot = Callable[[], str | None]


def new_fleet(folder: Path, recipe: Recipe, names: tuple[str, ...] = ()) -> None:
    """Make a server's folder, with the words and held-out users of the recipe's population; devices
    know the server by `names`.
    """
    source = build.population(recipe)
    hint = "a fleet's authority and ledger are never replaced; choose another folder"
    with (
        new_folder(enrolment.authority_folder_beside(folder), hint, mode=0o700) as authority,
        new_folder(folder, hint) as made,
    ):
        _server_folder(
            made,
            authority,
            recipe.with_settings("data", population=str(folder / "population")),
            source,
            names,
        )
        with writing_population(made / "population", source.vocabulary) as writer:
            for number, text in enumerate(HeldOutUsers(source.folder).texts):
                writer.add("held_out", hashed_id(writer.salt, str(number)), np.asarray(text))
            writer.finish(
                {"source": f"held-out users of {source.folder.name}", "on_devices": True}, {}
            )


def try_out(folder: Path, recipe: Recipe, count: int, run: str) -> list[Path]:
    """Make a server's folder and devices with the first users of the recipe's population; its
    ledger is charged, as `run`.
    """
    population = build.population(recipe)
    if len(population) < count:
        raise LinkError(
            f"{population.folder} has fewer than {count} users: start fewer devices, or name"
            " another population"
        )
    with new_folder(folder, "choose another --out") as made:
        if run in open_ledger(population).runs():
            raise LinkError(
                f"the ledger of {population.folder} already has a run {run!r}: choose another --out"
            )
        assemble.check_enough(recipe, count)
        # the same ones, wherever it is started
        people = str(population.folder.resolve())
        server = made / "server"
        _server_folder(
            server,
            enrolment.authority_folder_beside(server),
            recipe.with_settings("data", population=people),
            population,
            (),
        )
        devices = [made / f"device-{number}" for number in range(count)]
        for number, device in enumerate(devices):
            save_text(device, population.texts[number])
        enrol(server, devices)
    return [folder / device.name for device in devices]


def _server_folder(
    folder: Path, authority: Path, recipe: Recipe, words_of: Population, names: tuple[str, ...]
) -> None:
    recipe = solve.with_noise(recipe, len(words_of.vocabulary))
    certificate = make_authority(authority)
    certify_server(authority, folder / "wire", [*LOCAL_NAMES, *names])
    signing_authority = enrolment.new_authority(authority, folder)
    save_recipe(recipe, folder / RECIPE)
    given = folder / "for-devices"
    given.mkdir()
    shutil.copy(certificate, given / AUTHORITY_CERTIFICATE)
    write_atomically(
        given / ENROLMENT, b"".join(signing_authority.authority).hex().encode() + b"\n"
    )
    # all noise is made from the seed, which only the server has
    theirs = recipe.with_settings("run", seed=None).with_settings("data", population="on devices")
    save_recipe(theirs, given / RECIPE)
    worked_out = assemble.in_any_language(theirs, words_of.vocabulary, signing_authority.authority)
    write_atomically(given / AGREEMENT, json.dumps(worked_out, indent=1).encode())
    words_of.vocabulary.save(given / "vocabulary.txt")
    write_atomically(given / "vocabulary.json", json.dumps(words_of.vocabulary.about).encode())


def enrol(folder: Path, devices: list[Path]) -> None:
    """Enrol devices where they, the server and the authority are all on this machine."""
    enrolment.enrol(
        enrolment.authority_folder_beside(folder), folder, list(map(device_request, devices))
    )
    for device in devices:
        shutil.copytree(folder / "for-devices", device / "fleet", dirs_exist_ok=True)


def fleet_authority(given: Path) -> Authority:
    """Read which authority a fleet's devices trust; `given` is its folder for-devices/, or a
    device's copy.
    """
    try:
        content = bytes.fromhex((given / ENROLMENT).read_text())
        if len(content) != FLEET_BYTES + 32:
            raise ValueError(
                f"fleet and key of an authority have {FLEET_BYTES + 32} bytes, and this has"
                f" {len(content)}"
            )
        return Authority(content[:FLEET_BYTES], content[FLEET_BYTES:])
    except (OSError, ValueError) as error:
        raise LinkError(
            f"the authority of the fleet's devices cannot be read: {error}. Copy the fleet's"
            " for-devices/ again"
        ) from None


def fleet_recipe(folder: Path) -> Recipe:
    if not (folder / RECIPE).exists():
        raise LinkError(f"{not_a('a fleet', folder)}: make one with `taciturn fleet new`")
    recipe, population = load_recipe(folder / RECIPE), folder / "population"
    return (
        recipe.with_settings("data", population=str(population)) if population.exists() else recipe
    )


def save_text(device: Path, tokens: Sequence[int] | np.ndarray) -> None:
    device.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = io.BytesIO()
    np.save(content, np.asarray(tokens, np.int32), allow_pickle=False)
    write_atomically(device / TOKENS, content.getvalue(), 0o600)


def vocabulary_of(device: Path) -> Vocabulary:
    given = device / "fleet"
    if not (given / "vocabulary.json").exists():
        raise LinkError(
            f"{device} does not belong to a fleet yet: copy the fleet's folder for-devices/ to"
            f" {given}"
        )
    return Vocabulary.load(
        given / "vocabulary.txt", json.loads((given / "vocabulary.json").read_text())
    )


def open_device(
    device: Path,
    why_not_now: WhyNot = lambda: None,
    least_tokens: int = 1,
    delete_used: bool = False,
) -> Device:
    """Open a device; its owner may let it take part only at times, or with enough text, and have
    text deleted once it was used.
    """
    vocabulary, path = vocabulary_of(device), device / TOKENS
    if not (device / DEVICE_KEY).exists():
        raise LinkError(
            f"{device} has no key: `taciturn fleet device {device} --new` makes one, and a request"
            " for the fleet's authority"
        )
    if delete_used and path.exists() and _which(path) == own_participation.used_text(device):
        # left by a crash
        path.unlink()
    if not path.exists():
        raise LinkError(f"{device} has no text: name a file of messages with --data")
    text, tokens = _which(path), np.load(path, allow_pickle=False)

    def delete() -> None:
        if delete_used and _which(path) == text:
            path.unlink()

    def why_not() -> str | None:
        if not path.exists():
            return "its text was used, and is deleted"
        if _which(path) != text:
            return "its text has changed since it was started: start it again"
        return (
            why_not_now()
            if len(tokens) >= least_tokens
            else f"its text has {len(tokens)} tokens, and its owner asks for {least_tokens}"
        )

    wishes = OwnerWishes(why_not_now=why_not, on_report=delete, text_name=text)
    recipe, own = (
        fleet_recipe(device / "fleet"),
        (load_key(device / DEVICE_KEY), fleet_authority(device / "fleet")),
    )
    return assemble.build_device(recipe, vocabulary, tokens, *own, device, wishes)


def _which(text: Path) -> str:
    """Name a text: one that is saved later has another name, whatever clocks say."""
    found = text.stat() if text.exists() else None
    return f"{found.st_ino} {found.st_mtime_ns}" if found else ""


def opt_out(device: Path) -> None:
    """Take part in nothing any more, and delete the text, including what a crash left of saving
    it.
    """
    for text in (device / TOKENS, *device.glob(f".{TOKENS}.*")):
        text.unlink(missing_ok=True)
    own_participation.opt_out(device)
