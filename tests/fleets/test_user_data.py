"""A user's text is the same to the device program wherever that runs: on the user's own device, or
in a simulated fleet.
"""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from fleet_of_devices import fleet_recipe

from enrolling import AUTHORITY, SIGNING_AUTHORITY
from taciturn.data.token_shards import Texts
from taciturn.fleets import assemble
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.recipe import build

pytestmark = pytest.mark.optimised

CAP = 37.3  # which no float32 is
LENGTHS = (0, 1, 2, 3, 7, 19, 20, 21, 36, 37, 38, 39, 40, 41, 74, 120, 1000, 5000)


def texts(lengths):
    generator = np.random.default_rng(0)
    return [generator.integers(4, 40, length, np.int32) for length in lengths]


def on_devices(recipe, vocabulary, lengths, folder):
    return [
        assemble.build_device(
            recipe, vocabulary, tokens, SIGNING_AUTHORITY.key, AUTHORITY, folder / f"{number}"
        )._user
        for number, tokens in enumerate(texts(lengths))
    ]


def in_a_simulation(recipe, vocabulary, lengths):
    written = SimpleNamespace(texts=Texts.of(map(list, texts(lengths)), len(vocabulary)))
    fleet = SimulatedFleet(
        written, build.layout(recipe, vocabulary), weight_cap=recipe.participation.weight_cap
    )
    loaded = fleet._load(fleet._texts, np.arange(len(lengths)), jax.local_devices()[0])
    return [
        jax.tree.map(lambda leaf, number=number: leaf[number], loaded.users)
        for number in range(len(lengths))
    ]


def same(one, other) -> bool:
    pairs = [(np.asarray(left), np.asarray(right)) for left, right in zip(one, other, strict=True)]
    return all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() and a.shape == b.shape for a, b in pairs
    )


def capped(population, cap):
    return fleet_recipe(
        population, participation={"weight_cap": cap, "total_weight": 40.0} if cap else {}
    )


@pytest.mark.parametrize("cap", [None, 40.0, CAP])
def test_a_device_and_a_simulated_fleet_make_the_same_of_a_text_to_the_bit(
    population, vocabulary, tmp_path, cap
):
    recipe = capped(population, cap)
    ours, theirs = (
        on_devices(recipe, vocabulary, LENGTHS, tmp_path),
        in_a_simulation(recipe, vocabulary, LENGTHS),
    )
    assert all(map(same, ours, theirs))
    weights = [float(user.weight) for user in ours]
    assert weights == [
        np.float32(min(np.float32(n) / np.float32(cap), 1)) if cap else n > 0 for n in LENGTHS
    ]
    assert weights[0] == 0 == int(ours[0].steps)
    assert max(weights) == 1


def test_a_device_that_forgot_the_cap_would_be_noticed(population, vocabulary, tmp_path):
    """The twin: those below the cap weigh more there, and nobody else differs."""
    ours = on_devices(capped(population, None), vocabulary, LENGTHS, tmp_path)
    theirs = in_a_simulation(capped(population, CAP), vocabulary, LENGTHS)
    assert [same(*pair) for pair in zip(ours, theirs, strict=True)] == [
        n == 0 or n >= CAP for n in LENGTHS
    ]
