"""Build both ends of a fleet of real devices from one recipe: the server's fleet, and what a device
answers with.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn import trees
from taciturn.core import FleetWithStats, LanguageModel, Mechanism, Message, PyTree
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
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError

# of the ledger's row that opened a run
RUN_DIGITS = 16


def derive_terms(recipe: Recipe, vocabulary: Vocabulary, authority: Authority) -> Terms:
    """Return the terms that follow from a recipe, its words and the enrolment authority; a round
    adds its own.
    """
    params = jax.eval_shape(
        build.language_model(recipe.model, len(vocabulary)).init, jax.random.key(0)
    )
    encoded, participation, section = (
        build.report_encoding(recipe, params),
        _min_separation(recipe),
        recipe.fleet,
    )
    most = min(section.most_reports or participation.asked, participation.asked)
    # which devices do not get
    told = recipe.with_settings("run", seed=None)
    name = _fingerprint(told.fingerprint, vocabulary.words, authority)
    return Terms(
        fingerprint=name,
        modulus_bits=encoded.bits,
        length=encoded.padded,
        dropouts=section.max_dropout,
        corrupt=section.max_colluding,
        least=participation.size,
        most=most,
    )


def in_any_language(recipe: Recipe, vocabulary: Vocabulary, authority: Authority) -> dict[str, Any]:
    """Work out what devices without Python need from the recipe (docs/protocol.md)."""
    terms, mechanism = (
        derive_terms(recipe, vocabulary, authority),
        build.algorithm(recipe, len(vocabulary)).mechanism,
    )
    like, public_part = _messages(mechanism, build.language_model(recipe.model, len(vocabulary)))
    clip_norm = jax.tree.leaves(jax.device_get(public_part(0).clip_norm))
    return {
        "recipe": recipe.with_settings("run", seed=None).fingerprint,
        "bits": terms.modulus_bits,
        "length": terms.length,
        "dropouts": terms.dropouts,
        "corrupt": terms.corrupt,
        "least": terms.least,
        "most": terms.most,
        "hours": recipe.fleet.timer_hours,
        "min_separation": _min_separation(recipe).min_separation,
        "max_participations": _lifetime(recipe),
        "leaves": [[str(leaf.dtype), leaf.shape] for leaf in jax.tree.leaves(like.params)],
        "clip_norm": b"".join(leaf.astype("<f4").tobytes() for leaf in clip_norm).hex(),
        "encoding": build.report_encoding(recipe, like.params)._asdict(),
    }


def _fingerprint(recipe: str, words: Sequence[str], authority: Authority) -> bytes:
    groups = [recipe.encode()], [word.encode() for word in words], [b"".join(authority)]
    counted = b"".join(
        len(parts).to_bytes(8, "big") + fields.pack_fields(*parts) for parts in groups
    )
    return hashlib.sha256(b"taciturn fleet\0" + counted).digest()


def device_fleet(
    recipe: Recipe,
    vocabulary: Vocabulary,
    folder: Path,
    connected: ConnectedDevices | None,
    account: Account,
) -> DeviceFleet:
    """Build the server's fleet; `folder` is the run's private one, `account` what it charges."""
    if connected is None:
        raise RecipeError(
            '[fleet] kind = "devices" is trained with `taciturn fleet serve`, to which devices'
            " connect"
        )
    participation = _min_separation(recipe)
    certificates, dismissed = connected.enrolled()
    check_enough(recipe, len(certificates) - len(dismissed.devices))

    def run_name() -> str:
        # a folder's name may be reused
        return f"{account.terms.name} {account.rows[0]['hash'][:RUN_DIGITS]}"

    def next_row() -> int:
        return len(account.charges)

    return DeviceFleet(
        connected=connected,
        terms=derive_terms(recipe, vocabulary, connected.authority),
        asked=participation.asked,
        deadline=recipe.fleet.deadline,
        patience=recipe.fleet.patience,
        folder=folder / "rounds",
        run_name=run_name,
        next_row=next_row,
        rest_rounds=participation.min_separation,
    )


def check_enough(recipe: Recipe, devices: int) -> None:
    """Refuse if too few devices are enrolled for the recipe's cohort and separation."""
    participation = _min_separation(recipe)
    asked, apart = participation.asked, participation.min_separation
    often = min(participation.max_participations, _lifetime(recipe))
    for needed, why in (
        (asked * min(apart + 1, participation.rounds), f"and a device rests for {apart} rounds"),
        (
            -(-asked * participation.rounds // often),
            f"and a device takes part {often} times in {participation.rounds} rounds",
        ),
    ):
        if devices < needed:
            few = (
                f"{devices} devices are too few, {needed} are needed: a round asks {asked}"
                " (participation.cohort × fleet.over_selection)"
            )
            raise RecipeError(
                f"{few}, {why}. Have more devices, or lower participation.cohort or min_separation"
            )


def build_device(
    recipe: Recipe,
    words: Vocabulary,
    text: np.ndarray,
    key: Ed25519PrivateKey,
    authority: Authority,
    home: Path,
    wishes: OwnerWishes = OwnerWishes(),
) -> Device:
    """Build one person's device with this `text`; `home` keeps its participation record. `recipe`
    is the server's, noise included.
    """
    algorithm = build.algorithm(recipe, len(words))
    message, public_part = _messages(
        algorithm.mechanism, build.language_model(recipe.model, len(words))
    )
    user = build.layout(recipe, words).user_data(text, recipe.participation.weight_cap)
    limits = ParticipationLimits(
        hours=recipe.fleet.timer_hours,
        min_separation=_min_separation(recipe).min_separation,
        max_participations=_lifetime(recipe),
    )
    return Device(
        key=key,
        authority=authority,
        terms=derive_terms(recipe, words, authority),
        program=device_program(algorithm),
        message=message,
        public_part=public_part,
        user=user,
        record=OwnParticipation(home, limits),
        wishes=wishes,
    )


# so that devices of one fleet in one process compile once
@lru_cache(maxsize=8)
def _messages(
    mechanism: Mechanism, model: LanguageModel
) -> tuple[Message, Callable[[int], PyTree]]:
    """Return the shapes of what a round sends, and its public part by the row of the noise."""
    params = jax.eval_shape(model.init, jax.random.key(0))

    # so that only the public part of the mechanism's first state is computed
    @jax.jit
    def public_part(row: int) -> PyTree:
        return mechanism.public(mechanism.init(trees.zeros_like(params))._replace(round=row))

    return Message(params, jax.eval_shape(public_part, 0)), public_part


def _lifetime(recipe: Recipe) -> int:
    return recipe.fleet.lifetime_participations or recipe.max_participations


def _min_separation(recipe: Recipe) -> MinSeparation:
    found = build.participation(recipe)
    # the recipe is refused otherwise
    assert isinstance(found, MinSeparation)
    return found


def simulated_fleet(recipe: Recipe, population: Population) -> SimulatedFleet | RayFleet:
    """Train users here, or on the cluster that was joined."""
    if is_joined():
        return RayFleet(recipe, population)
    section = recipe.participation
    cohort = (
        with_room(section.cohort)
        if section.kind in ("poisson", "cyclic-poisson")
        else section.cohort
    )
    return SimulatedFleet(
        population, build.layout(recipe, population.vocabulary), section.weight_cap, cohort
    )


def fleet(recipe: Recipe, population: Population, devices: Path, coins: int = 0) -> FleetWithStats:
    """Make a simulated fleet; `devices` is a folder for the devices' state, `coins` a secret seed
    that decides which device comes when.
    """
    everyone = simulated_fleet(recipe, population)
    section = recipe.fleet
    if section.kind == "simulated":
        return everyone
    participation = _min_separation(recipe)
    if section.kind == "queue":
        return QueuedFleet(everyone, participation.size, recipe.in_flight, devices / "queue", coins)
    habits = Habits(time_zones=tuple(section.time_zones), drop_out=section.dropout_rate)
    clock = Clock(Devices(len(population), habits, coins), section.timer_hours)
    most = section.most_reports or participation.asked
    return CheckInFleet(
        fleet=everyone,
        clock=clock,
        report_goal=participation.size,
        asked=participation.asked,
        most_reports=most,
        path=devices / "devices.npz",
    )
