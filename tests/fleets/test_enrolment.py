"""Who is enrolled: the list that a run, its δ and its log rest on, and what devices are given."""

from dataclasses import replace

import jax
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleet_of_devices import FleetOfDevices, fleet_recipe

from enrolling import AUTHORITY, enrolled
from harness import Cut, cut_at, quietly
from taciturn.fleets import assemble, fleet_folders
from taciturn.recipe import build
from taciturn.recipe.text import RecipeError
from taciturn.runs.loop import resume_run, train_run


def renumbered(fleet, order):
    """The same devices, on a list in another order."""
    fleet.texts = [fleet.texts[number] for number in order]
    fleet.keys = [fleet.keys[number] for number in order]
    fleet.enrolled = enrolled(fleet.keys)
    for number in fleet.link.devices():
        fleet.link.remove(number)
    for number in range(len(order)):
        fleet.folder.joinpath(f"device-{number}", "participation.json").unlink(missing_ok=True)
        fleet.start(number)


def test_a_run_does_not_go_on_with_devices_under_other_numbers(tmp_path, vocabulary, log_of):
    """The log knows devices by their places on the list: a list in another order, or with a line
    taken out, makes it say nothing.
    """
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        count=18,
        run={"rounds": 2, "evaluate_every": 2, "save_every": 1},
        participation={"min_separation": 1},
    )
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", cut_at(1), fleet.connected)
    asked, _ = log_of
    first = {fleet.keys[number] for number in asked[0]}
    resting = [number for number in range(18) if number not in asked[0]]
    order = list(range(18))
    for one, other in zip(asked[0].tolist(), resting, strict=True):
        order[one], order[other] = other, one
    renumbered(fleet, order)
    refused = False
    try:
        resume_run(tmp_path / "run", quietly, fleet.connected)
    except Exception:
        refused = True
    assert refused or not first & {fleet.keys[number] for number in asked[1]}


def test_a_run_continues_with_devices_that_came_later(tmp_path, vocabulary, log_of):
    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=12, run={"rounds": 2, "evaluate_every": 2, "save_every": 1}
    )
    fleet.enrolled = enrolled(fleet.keys[:11])
    fleet.link.remove(11)
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", cut_at(1), fleet.connected)
    fleet.enrolled = enrolled(fleet.keys)
    fleet.start(11)
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 2


def test_delta_is_checked_against_the_devices_that_are_enrolled(tmp_path, vocabulary):
    """As it is against the users of a population."""
    fleet = FleetOfDevices(
        tmp_path, vocabulary, run={"rounds": 1, "evaluate_every": 1}, privacy={"delta": 0.01}
    )
    many = enrolled([*fleet.keys, *(Ed25519PrivateKey.generate() for _ in range(100))])
    assert fleet.recipe.delta * len(many.certificates) > 1
    with pytest.raises(RecipeError, match="δ"):
        train_run(
            fleet.recipe,
            tmp_path / "run",
            cut_at(0),
            replace(fleet.connected, enrolled=lambda: many),
        )


@pytest.mark.parametrize("settings", [{}, {"most_reports": 9}, {"most_reports": 100_000}], ids=str)
def test_devices_refuse_cohorts_that_the_modulus_does_not_hold(population, vocabulary, settings):
    recipe = fleet_recipe(population, fleet=settings)
    params = jax.eval_shape(
        build.language_model(recipe.model, len(vocabulary)).init, jax.random.key(0)
    )
    encoded = build.report_encoding(recipe, params)
    agreed = assemble.derive_terms(recipe, vocabulary, AUTHORITY)
    assert 2 * encoded.largest * agreed.most < encoded.modulus


def test_the_seed_of_a_simulation_is_given_to_no_device(tmp_path, population):
    """Of which all noise is made: whoever has it can take the noise off the model. Other hosts are
    not told it either.
    """
    recipe = fleet_recipe(population)
    assert recipe.run.seed is not None
    fleet_folders.new_fleet(tmp_path / "fleet", recipe)
    assert fleet_folders.fleet_recipe(tmp_path / "fleet" / "for-devices").run.seed is None
