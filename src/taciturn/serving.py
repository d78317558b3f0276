"""Both ends of a fleet of real devices, made from one recipe: the server's fleet, and what a device answers with."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from taciturn import build, tree
from taciturn.config import Recipe
from taciturn.core import Message, UserData
from taciturn.data.vocabulary import Vocabulary
from taciturn.fleets.device import Device
from taciturn.fleets.devices import Connected, DeviceFleet
from taciturn.fleets.diary import Diary, Rest
from taciturn.fleets.identities import Identity
from taciturn.fleets.terms import Agreement, fingerprint
from taciturn.privacy.account import Account
from taciturn.privacy.curator import device_program
from taciturn.privacy.participation import MinSeparation
from taciturn.recipe_text import RecipeError

RUN_DIGITS = 16  # of the ledger's row that opened a run


def agreement(recipe: Recipe, vocabulary: Vocabulary, enrolled: Sequence[bytes]) -> Agreement:
    """What both sides of a secure sum make of a recipe, its words and the list of devices."""
    params = jax.eval_shape(build.language_model(recipe.model, len(vocabulary)).init, jax.random.key(0))
    encoded, taking_part, section = build.report_encoding(recipe, params), _taking_part(recipe), recipe.fleet
    most = min(section.most_reports or taking_part.asked, taking_part.asked)
    told = recipe.with_settings("run", seed=None)  # which devices are not
    name = fingerprint(told.fingerprint, vocabulary.words, enrolled)
    return Agreement(name, encoded.bits, encoded.padded, section.tolerated, section.corrupt, taking_part.size, most)


def device_fleet(
    recipe: Recipe, vocabulary: Vocabulary, folder: Path, connected: Connected | None, account: Account
) -> DeviceFleet:
    """`folder` is the private one of the run, `account` what it charges."""
    if connected is None:
        raise RecipeError('[fleet] kind = "devices" is trained with `taciturn serve`, to which devices connect')
    taking_part = _taking_part(recipe)
    check_enough(recipe, len(connected.enrolled))
    agreed = agreement(recipe, vocabulary, connected.enrolled)

    def run() -> str:
        return f"{account.terms.name} {account.rows[0]['hash'][:RUN_DIGITS]}"  # a folder's name may come again

    def row() -> int:
        return len(account.charges)

    rounds, apart = folder / "rounds", taking_part.min_separation
    return DeviceFleet(connected, agreed, taking_part.asked, recipe.fleet, rounds, run, row, apart)


def check_enough(recipe: Recipe, devices: int) -> None:
    """Or a server would wait in vain, for as long as it is patient."""
    taking_part = _taking_part(recipe)
    asked, apart = taking_part.asked, taking_part.min_separation
    often = min(taking_part.max_participations, _lifetime(recipe))
    for needed, why in (
        (asked * min(apart + 1, taking_part.rounds), f"and a device rests for {apart} rounds"),
        (
            -(-asked * taking_part.rounds // often),
            f"and a device takes part {often} times in {taking_part.rounds} rounds",
        ),
    ):
        if devices < needed:
            raise RecipeError(
                f"{devices} devices are too few, {needed} are needed: a round asks {asked} (participation.cohort × fleet.over_selection), "
                f"{why}. Have more devices, or lower participation.cohort or min_separation"
            )


def device(
    recipe: Recipe,
    vocabulary: Vocabulary,
    tokens: np.ndarray,
    number: int,
    identity: Identity,
    enrolled: Sequence[bytes],
    folder: Path,
) -> Device:
    """The device of one person, whose text is `tokens`; `folder` keeps when it took part. `recipe` is the server's, noise and all."""
    algorithm = build.algorithm(recipe, len(vocabulary))
    params = jax.eval_shape(build.language_model(recipe.model, len(vocabulary)).init, jax.random.key(0))
    public = jax.eval_shape(lambda params: algorithm.mechanism.public(algorithm.mechanism.init(params)), params)
    layout = build.layout(recipe, vocabulary)
    batches = layout.batches(tokens)
    weight = (
        min(len(tokens) / recipe.participation.weight_cap, 1.0) if recipe.participation.weight_cap else len(tokens) > 0
    )
    user = UserData(batches, np.float32(weight), np.int32(np.sum(np.any(batches, axis=(1, 2)))))  # pyright: ignore
    mechanism = algorithm.mechanism
    # Compiled, so that of the mechanism's first state no more is made than its public part.
    public_part = jax.jit(lambda row: mechanism.public(mechanism.init(tree.zeros_like(params))._replace(round=row)))
    rest = Rest(recipe.fleet.timer_hours, _taking_part(recipe).min_separation, _lifetime(recipe))
    return Device(
        number,
        identity,
        agreement(recipe, vocabulary, enrolled),
        device_program(algorithm),
        Message(params, public),
        public_part,
        user,
        Diary(folder, rest),
    )


def _lifetime(recipe: Recipe) -> int:
    return recipe.fleet.lifetime_participations or recipe.max_participations


def _taking_part(recipe: Recipe) -> MinSeparation:
    found = build.participation(recipe)
    assert isinstance(found, MinSeparation)  # the recipe is refused otherwise
    return found
