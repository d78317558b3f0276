"""Build both ends of a fleet of real devices from one recipe.

They are the server's fleet, and what a device answers with.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn import trees
from taciturn.core import FleetWithStats, LanguageModel, Mechanism, Message, Params, Public
from taciturn.data.population import Population
from taciturn.data.vocabulary import Vocabulary
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.device import Device, OwnerWishes
from taciturn.fleets.devices.fleet import ConnectedDevices, DeviceFleet
from taciturn.fleets.devices.own_participation import OwnParticipation, ParticipationLimits
from taciturn.fleets.secure_aggregation.identities import Authority
from taciturn.fleets.secure_aggregation.messages import Terms
from taciturn.fleets.simulation.availability import Clock, Devices, Habits
from taciturn.fleets.simulation.check_in import CheckInFleet
from taciturn.fleets.simulation.in_process import SimulatedFleet, with_room
from taciturn.fleets.simulation.queued import QueuedFleet
from taciturn.fleets.simulation.ray_engine import RayFleet, is_joined
from taciturn.privacy.curator import device_program
from taciturn.privacy.ledger.account import Account
from taciturn.privacy.participation import MinSeparation
from taciturn.privacy.schemes import SCHEMES
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError

# A run is told from others of its name by the hash of the ledger's row that opened it, shortened to
# this number of digits.
RUN_DIGITS = 16


# What a fleet agrees on.


def derive_terms(recipe: Recipe, vocabulary: Vocabulary, authority: Authority) -> Terms:
    """Return the terms that follow from a recipe, its words and the enrolment authority.

    A round adds its own.
    """
    model = build.language_model(recipe.model, len(vocabulary))
    encoding = build.report_encoding(recipe, _params_shape(model))
    participation = _min_separation(recipe)
    return Terms(
        fingerprint=_fingerprint(_for_devices(recipe).fingerprint, vocabulary.words, authority),
        modulus_bits=encoding.bits,
        length=encoding.padded,
        dropouts=recipe.fleet.max_dropout,
        corrupt=recipe.fleet.max_colluding,
        least=participation.size,
        most=min(recipe.fleet.most_reports or participation.users_asked, participation.users_asked),
    )


def describe_for_other_languages(
    recipe: Recipe, vocabulary: Vocabulary, authority: Authority
) -> dict[str, Any]:
    """Work out what devices without Python need from the recipe (docs/protocol.md)."""
    terms = derive_terms(recipe, vocabulary, authority)
    mechanism = build.algorithm(recipe, len(vocabulary)).mechanism
    model = build.language_model(recipe.model, len(vocabulary))
    messages = _compile_messages(mechanism, model)
    params = messages.shapes.params
    encoding = build.report_encoding(recipe, params)
    return {
        "recipe": _for_devices(recipe).fingerprint,
        "bits": terms.modulus_bits,
        "length": terms.length,
        "dropouts": terms.dropouts,
        "corrupt": terms.corrupt,
        "least": terms.least,
        "most": terms.most,
        "hours": recipe.fleet.timer_hours,
        "min_separation": _min_separation(recipe).min_separation,
        "max_participations": _lifetime(recipe),
        "leaves": [[str(leaf.dtype), leaf.shape] for leaf in jax.tree.leaves(params)],
        "clip_norm": _clip_norm_bytes(messages.public_part(0)).hex(),
        "encoding": encoding._asdict(),
    }


def _clip_norm_bytes(public_part: Public) -> bytes:
    norms = jax.tree.leaves(jax.device_get(public_part.clip_norm))
    return b"".join(norm.astype("<f4").tobytes() for norm in norms)


def _for_devices(recipe: Recipe) -> Recipe:
    """Return the recipe without its seed, which devices do not get."""
    return recipe.with_settings("run", seed=None)


def _fingerprint(recipe: str, words: Sequence[str], authority: Authority) -> bytes:
    content = b"taciturn fleet\0"
    content += _pack_counted([recipe.encode()])
    content += _pack_counted([word.encode() for word in words])
    content += _pack_counted([b"".join(authority)])
    return hashlib.sha256(content).digest()


def _pack_counted(parts: Sequence[bytes]) -> bytes:
    return len(parts).to_bytes(8, "big") + fields.pack_fields(*parts)


# The server.


def device_fleet(
    recipe: Recipe,
    vocabulary: Vocabulary,
    folder: Path,
    connected: ConnectedDevices | None,
    account: Account,
) -> DeviceFleet:
    """Build the server's fleet.

    Args:
        recipe: Has `[fleet] kind = "devices"`.
        vocabulary: The words of its population.
        folder: The private one of the run.
        connected: The devices; None where there is no server.
        account: What is charged.
    """
    if connected is None:
        raise RecipeError(
            '[fleet] kind = "devices" is trained with `taciturn fleet serve`, to which devices'
            " connect"
        )
    participation = _min_separation(recipe)
    certificates, dismissed = connected.enrolled()
    check_enough(recipe, len(certificates) - len(dismissed.devices))

    # Functions, because the account is opened only after the fleet is built.
    def run_name() -> str:
        # A folder's name may be reused.
        opening_hash = account.rows[0]["hash"]
        return f"{account.terms.name} {opening_hash[:RUN_DIGITS]}"

    def next_row() -> int:
        return len(account.charges)

    return DeviceFleet(
        connected=connected,
        terms=derive_terms(recipe, vocabulary, connected.authority),
        asked=participation.users_asked,
        deadline=recipe.fleet.deadline,
        patience=recipe.fleet.patience,
        folder=folder / "rounds",
        run_name=run_name,
        next_row=next_row,
        rest_rounds=participation.min_separation,
    )


class _Need(NamedTuple):
    """How many devices are needed, and why."""

    devices: int
    reason: str


def count_needed(recipe: Recipe) -> int:
    """Return how many devices must be enrolled for the recipe's cohort and separation."""
    return max(need.devices for need in _list_needs(recipe))


def check_enough(recipe: Recipe, devices: int) -> None:
    """Refuse if too few devices are enrolled for the recipe's cohort and separation."""
    asked = _min_separation(recipe).users_asked
    for need in _list_needs(recipe):
        if devices < need.devices:
            are_too_few = (
                "1 device is too few" if devices == 1 else f"{devices} devices are too few"
            )
            raise RecipeError(
                f"{are_too_few}, {need.devices} are needed: a round asks {asked}"
                f" (participation.cohort × fleet.over_selection), {need.reason}. Have more devices,"
                " or lower participation.cohort or min_separation"
            )


def _list_needs(recipe: Recipe) -> list[_Need]:
    participation = _min_separation(recipe)
    asked = participation.users_asked
    rest = participation.min_separation
    rounds = participation.rounds
    turns = min(participation.max_participations, _lifetime(recipe))
    # Rounded up.
    needed_in_turns = -(-asked * rounds // turns)
    return [
        _Need(
            devices=asked * min(rest + 1, rounds),
            reason=f"and a device rests for {rest} rounds",
        ),
        _Need(
            devices=needed_in_turns,
            reason=f"and a device takes part {turns} times in {rounds} rounds",
        ),
    ]


# A device.


def build_device(
    recipe: Recipe,
    words: Vocabulary,
    text: np.ndarray,
    key: Ed25519PrivateKey,
    authority: Authority,
    home: Path,
    wishes: OwnerWishes = OwnerWishes(),
) -> Device:
    """Build one person's device.

    Args:
        recipe: The server's, noise included.
        words: Its word list.
        text: The person's, as ids of words.
        key: The device's own.
        authority: Whom the device believes about others.
        home: The folder that keeps its participation record.
        wishes: What its owner has chosen.
    """
    algorithm = build.algorithm(recipe, len(words))
    model = build.language_model(recipe.model, len(words))
    messages = _compile_messages(algorithm.mechanism, model)
    limits = ParticipationLimits(
        hours=recipe.fleet.timer_hours,
        min_separation=_min_separation(recipe).min_separation,
        max_participations=_lifetime(recipe),
    )
    layout = build.layout(recipe, words)
    return Device(
        key=key,
        authority=authority,
        terms=derive_terms(recipe, words, authority),
        program=device_program(algorithm),
        message=messages.shapes,
        public_part=messages.public_part,
        user=layout.user_data(text, recipe.participation.weight_cap),
        record=OwnParticipation(home, limits),
        wishes=wishes,
    )


class _Messages(NamedTuple):
    """What the messages of all rounds have in common."""

    # Without content.
    shapes: Message
    # Of a round's message, by the row of the noise.
    public_part: Callable[[int], Public]


# So that devices of one fleet in one process compile once.
@lru_cache(maxsize=8)
def _compile_messages(mechanism: Mechanism, model: LanguageModel) -> _Messages:
    params = _params_shape(model)

    # Compiled, so that only the public part of the mechanism's first state is computed.
    @jax.jit
    def public_part(row: int) -> Public:
        first_state = mechanism.init(trees.zeros_like(params))
        return mechanism.public(first_state._replace(round=row))

    public_shape = jax.eval_shape(public_part, 0)
    return _Messages(shapes=Message(params, public_shape), public_part=public_part)


def _params_shape(model: LanguageModel) -> Params:
    return jax.eval_shape(model.init, jax.random.key(0))


def _lifetime(recipe: Recipe) -> int:
    """Return how often a device takes part in its life, at most."""
    return recipe.fleet.lifetime_participations or recipe.max_participations


def _min_separation(recipe: Recipe) -> MinSeparation:
    participation = build.participation(recipe)
    # The recipe is refused otherwise.
    assert isinstance(participation, MinSeparation)
    return participation


# Simulations.


def fleet(recipe: Recipe, population: Population, devices: Path, coins: int = 0) -> FleetWithStats:
    """Build a simulated fleet.

    Args:
        recipe: Says what is simulated.
        population: The users.
        devices: A folder for the devices' state.
        coins: A secret seed that decides which device comes when.
    """
    everyone = simulated_fleet(recipe, population)
    match recipe.fleet.kind:
        case "simulated":
            return everyone
        case "queue":
            return QueuedFleet(
                everyone,
                size=_min_separation(recipe).size,
                in_flight=recipe.in_flight,
                folder=devices / "queue",
                coins=coins,
            )
        case _:
            return _check_in_fleet(recipe, everyone, len(population), devices, coins)


def simulated_fleet(recipe: Recipe, population: Population) -> SimulatedFleet | RayFleet:
    """Build a fleet that trains users here, or on the cluster that was joined."""
    if is_joined():
        return RayFleet(recipe, population)
    section = recipe.participation
    cohort = section.cohort
    if SCHEMES[section.kind].varies_in_size:
        cohort = with_room(cohort)
    return SimulatedFleet(
        population,
        build.layout(recipe, population.vocabulary),
        weight_cap=section.weight_cap,
        cohort=cohort,
    )


def _check_in_fleet(
    recipe: Recipe,
    everyone: SimulatedFleet | RayFleet,
    users: int,
    folder: Path,
    coins: int,
) -> CheckInFleet:
    participation = _min_separation(recipe)
    section = recipe.fleet
    habits = Habits(
        time_zones=tuple(section.time_zones),
        drop_out=section.dropout_rate,
    )
    devices = Devices(count=users, habits=habits, seed=coins)
    return CheckInFleet(
        fleet=everyone,
        clock=Clock(devices, section.timer_hours),
        report_goal=participation.size,
        asked=participation.users_asked,
        most_reports=section.most_reports or participation.users_asked,
        path=folder / "devices.npz",
    )
