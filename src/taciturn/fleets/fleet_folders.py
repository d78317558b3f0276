"""The folders of a fleet of devices, on both sides.

FLEET/                      the server's
  recipe.toml               with its noise worked out: the same on every device
  population/               words, held-out users and the ledger; no user's text, which is on
                            devices. A fleet that is only tried out has none: its people are a
                            population's, whose ledger is charged
  enrolled.txt              who is enrolled, as the authority says: certificates, and the list of
                            dismissed devices (enrolment.py)
  wire/                     the server's certificate
  for-devices/              what every device gets: authority.crt, enrolment.pub, words,
                            recipe.toml, and what follows from that for devices that have no
                            Python: agreement.json

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

RECIPE = "recipe.toml"
FOR_DEVICES = "for-devices"
# In the folder for devices, and in each device's copy of it.
AGREEMENT = "agreement.json"
ENROLMENT = "enrolment.pub"
WORDS = "vocabulary.txt"
ABOUT_WORDS = "vocabulary.json"
# In a device's folder.
OWN_COPY = "fleet"
TOKENS = "tokens.npy"

LOCAL_NAMES = ("localhost", "127.0.0.1")
AUTHORITY_BYTES = FLEET_BYTES + 32
WhyNot = Callable[[], str | None]


# The server's.


def new_fleet(folder: Path, recipe: Recipe, names: tuple[str, ...] = ()) -> None:
    """Make a server's folder, with the words and held-out users of the recipe's population.

    Args:
        folder: A new one. The authority's is made beside it.
        recipe: Is saved with its noise worked out.
        names: By which devices know the server.
    """
    source = build.population(recipe)
    hint = "a fleet's authority and ledger are never replaced; choose another folder"
    with (
        new_folder(enrolment.authority_folder_beside(folder), hint, mode=0o700) as authority,
        new_folder(folder, hint) as server,
    ):
        _write_server_folder(
            server,
            authority=authority,
            recipe=recipe.with_settings("data", population=str(folder / "population")),
            vocabulary=source.vocabulary,
            names=names,
        )
        _write_held_out_users(server / "population", source)


def try_out(folder: Path, recipe: Recipe, count: int, run: str) -> list[Path]:
    """Make a server's folder, and devices with the first users of the recipe's population.

    The population's ledger is charged, as `run`.

    Returns:
        The folders of the devices.
    """
    population = build.population(recipe)
    if len(population) < count:
        raise LinkError(
            f"{population.folder} has fewer than {count} users: start fewer devices, or name"
            " another population"
        )
    with new_folder(folder, "choose another `folder`") as unfinished:
        if run in open_ledger(population).runs():
            raise LinkError(
                f"the ledger of {population.folder} already has a run {run!r}: choose another"
                " `folder`"
            )
        assemble.check_enough(recipe, count)
        # The same people, wherever the server is started.
        people = str(population.folder.resolve())
        server = unfinished / "server"
        _write_server_folder(
            server,
            authority=enrolment.authority_folder_beside(server),
            recipe=recipe.with_settings("data", population=people),
            vocabulary=population.vocabulary,
            names=(),
        )
        devices = [unfinished / f"device-{number}" for number in range(count)]
        for number, device in enumerate(devices):
            save_text(device, population.texts[number])
        enrol(server, devices)
    return [folder / device.name for device in devices]


def _write_server_folder(
    folder: Path,
    *,
    authority: Path,
    recipe: Recipe,
    vocabulary: Vocabulary,
    names: tuple[str, ...],
) -> None:
    recipe = solve.with_noise(recipe, len(vocabulary))
    certificate = make_authority(authority)
    all_names = [*LOCAL_NAMES, *names]
    certify_server(authority, folder / "wire", all_names)
    signing_authority = enrolment.new_authority(authority, folder)
    save_recipe(recipe, folder / RECIPE)
    for_devices = folder / FOR_DEVICES
    for_devices.mkdir()
    shutil.copy(certificate, for_devices / AUTHORITY_CERTIFICATE)
    _write_for_devices(for_devices, recipe, vocabulary, signing_authority.authority)


def _write_for_devices(
    folder: Path, recipe: Recipe, vocabulary: Vocabulary, authority: Authority
) -> None:
    _write_authority(folder, authority)
    # All noise is made from the seed, which only the server has.
    seedless = recipe.with_settings("run", seed=None)
    recipe_of_devices = seedless.with_settings("data", population="on devices")
    save_recipe(recipe_of_devices, folder / RECIPE)
    agreement = assemble.describe_for_other_languages(recipe_of_devices, vocabulary, authority)
    agreement_text = json.dumps(agreement, indent=1)
    write_atomically(folder / AGREEMENT, agreement_text.encode())
    _write_words(folder, vocabulary)


def _write_authority(folder: Path, authority: Authority) -> None:
    content = b"".join(authority).hex()
    write_atomically(folder / ENROLMENT, f"{content}\n".encode())


def _write_words(folder: Path, vocabulary: Vocabulary) -> None:
    vocabulary.save(folder / WORDS)
    about = json.dumps(vocabulary.about)
    write_atomically(folder / ABOUT_WORDS, about.encode())


def _write_held_out_users(folder: Path, source: Population) -> None:
    """Write a population that has the held-out users of another, and no text of its own."""
    with writing_population(folder, source.vocabulary) as writer:
        for number, text in enumerate(HeldOutUsers(source.folder).texts):
            name = hashed_id(writer.salt, str(number))
            writer.add("held_out", name, np.asarray(text))
        origin = {"source": f"held-out users of {source.folder.name}", "on_devices": True}
        writer.finish(about=origin, counts={})


def enrol(folder: Path, devices: list[Path]) -> None:
    """Enrol devices where they, the server and the authority are all on this machine."""
    requests = [device_request(device) for device in devices]
    enrolment.enrol(enrolment.authority_folder_beside(folder), folder, requests)
    for device in devices:
        shutil.copytree(folder / FOR_DEVICES, device / OWN_COPY, dirs_exist_ok=True)


# Both sides'.


def fleet_authority(folder: Path) -> Authority:
    """Read which authority a fleet's devices trust.

    Args:
        folder: The fleet's for-devices/, or a device's copy.
    """
    try:
        content = bytes.fromhex((folder / ENROLMENT).read_text())
        if len(content) != AUTHORITY_BYTES:
            raise ValueError(
                f"fleet and key of an authority have {AUTHORITY_BYTES} bytes, and this has"
                f" {len(content)}"
            )
    except (OSError, ValueError) as error:
        raise LinkError(
            f"the authority of the fleet's devices cannot be read: {error}. Copy the fleet's"
            " for-devices/ again"
        ) from None
    return Authority(fleet=content[:FLEET_BYTES], key=content[FLEET_BYTES:])


def fleet_recipe(folder: Path) -> Recipe:
    """Read the recipe of a fleet, from the server's folder or a device's copy."""
    if not (folder / RECIPE).exists():
        raise LinkError(f"{not_a('a fleet', folder)}: make one with `taciturn fleet new`")
    recipe = load_recipe(folder / RECIPE)
    population = folder / "population"
    if not population.exists():
        return recipe
    return recipe.with_settings("data", population=str(population))


# A device's.


def save_text(device: Path, tokens: Sequence[int] | np.ndarray) -> None:
    """Keep a person's text in their device's folder."""
    device.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = io.BytesIO()
    np.save(content, np.asarray(tokens, np.int32), allow_pickle=False)
    write_atomically(device / TOKENS, content.getvalue(), 0o600)


def vocabulary_of(device: Path) -> Vocabulary:
    """Read the words of the fleet that a device belongs to."""
    own_copy = device / OWN_COPY
    if not (own_copy / ABOUT_WORDS).exists():
        raise LinkError(
            f"{device} does not belong to a fleet yet: copy the fleet's folder for-devices/ to"
            f" {own_copy}"
        )
    about = json.loads((own_copy / ABOUT_WORDS).read_text())
    return Vocabulary.load(own_copy / WORDS, about)


def open_device(
    device: Path,
    why_not_now: WhyNot = lambda: None,
    least_tokens: int = 1,
    delete_used: bool = False,
) -> Device:
    """Open a device.

    Args:
        device: Its folder.
        why_not_now: Says why it does not take part at the moment, if its owner so chose.
        least_tokens: With less text it does not take part.
        delete_used: Whether text is deleted once it was used.
    """
    vocabulary = vocabulary_of(device)
    if not (device / DEVICE_KEY).exists():
        raise LinkError(
            f"{device} has no key: `taciturn fleet device {device} --new` makes one, and a request"
            " for the fleet's authority"
        )
    text = _OwnText(device, least_tokens=least_tokens, delete_used=delete_used)

    def why_not() -> str | None:
        return text.why_not() or why_not_now()

    own_copy = device / OWN_COPY
    return assemble.build_device(
        recipe=fleet_recipe(own_copy),
        words=vocabulary,
        text=text.tokens,
        key=load_key(device / DEVICE_KEY),
        authority=fleet_authority(own_copy),
        home=device,
        wishes=OwnerWishes(why_not_now=why_not, on_report=text.use, text_name=text.name),
    )


class _OwnText:
    """The text of a device, as it was when the device was opened."""

    def __init__(self, device: Path, *, least_tokens: int, delete_used: bool) -> None:
        self._path = device / TOKENS
        self._least_tokens = least_tokens
        self._delete_used = delete_used
        if delete_used and _is_used(self._path, device):
            # A crash left it.
            self._path.unlink()
        if not self._path.exists():
            raise LinkError(f"{device} has no text: name a file of messages with `data`")
        self.name = _name_text(self._path)
        self.tokens = np.load(self._path, allow_pickle=False)

    def use(self) -> None:
        """Delete the text, if its owner wants that; newer text stays."""
        if self._delete_used and _name_text(self._path) == self.name:
            self._path.unlink()

    def why_not(self) -> str | None:
        """Say why the device does not report about this text, if it does not."""
        if not self._path.exists():
            return "its text was used, and is deleted"
        if _name_text(self._path) != self.name:
            return "its text has changed since it was started: start it again"
        if len(self.tokens) < self._least_tokens:
            return (
                f"its text has {len(self.tokens)} tokens, and its owner asks for"
                f" {self._least_tokens}"
            )
        return None


def _is_used(text: Path, device: Path) -> bool:
    return text.exists() and _name_text(text) == own_participation.read_used_text(device)


def _name_text(text: Path) -> str:
    """Name a text: one that is saved later has another name, whatever clocks say."""
    if not text.exists():
        return ""
    status = text.stat()
    return f"{status.st_ino} {status.st_mtime_ns}"


def opt_out(device: Path) -> None:
    """Take part in nothing any more, and delete the text.

    What a crash left of saving it is deleted too.
    """
    for text in (device / TOKENS, *device.glob(f".{TOKENS}.*")):
        text.unlink(missing_ok=True)
    own_participation.opt_out(device)
