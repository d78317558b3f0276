"""The contract of a fleet: whatever runs the device programs, the total is that of a plain loop
over the users.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import SideBySide, mostly_slow, small_population, tiny_recipe
from taciturn import trees
from taciturn.core import Message, Public, Report, UserData
from taciturn.data.layout import Layout, Unrolls
from taciturn.fleets.simulation import in_process
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.privacy.bounding.clipping import decode, flat_clip
from taciturn.privacy.noise.chacha20 import Coins
from taciturn.privacy.participation import PoissonSampling
from taciturn.recipe import build

pytestmark = pytest.mark.optimised

KEY = jax.random.key(4)
LAYOUT = Layout.for_pieces(Unrolls(5), 3, 12)
# of the fleets here, which expect cohorts of so many; by default they would train 104 side by side
CHUNK = 8


@pytest.fixture(scope="module")
def population(tmp_path_factory, vocabulary):
    """One for all tests, so that each device program is traced once."""
    return small_population(tmp_path_factory.mktemp("fleets") / "population", vocabulary)


class PlainLoop:
    """The reference: one user after another, in Python."""

    everyone_reports = True

    def __init__(self, population, layout, weight_cap=None):
        self.texts, self.layout, self.weight_cap = population.texts, layout, weight_cap

    def users(self, eligible):
        return eligible(np.arange(len(self.texts)))

    def sum_reports(self, program, message, cohort, key):
        def one(user):
            weight = min(len(self.texts[user]) / self.weight_cap, 1.0) if self.weight_cap else 1.0
            batches = jnp.asarray(self.layout.user_data(self.texts[user]).batches)
            data = UserData(batches, jnp.float32(weight), jnp.int32(len(batches)))
            return compiled(program)(message, data, jax.random.fold_in(key, np.uint32(user)))

        user = UserData(
            jnp.asarray(self.layout.user_data(self.texts[0]).batches), jnp.float32(1), jnp.int32(1)
        )
        return functools.reduce(
            trees.add,
            map(one, cohort),
            trees.zeros_like(jax.eval_shape(program, message, user, key)),
        )


@functools.cache
def compiled(program):
    return jax.jit(program)


def program_and_message(population, **sections):
    return made_once(population, json.dumps(sections))


@functools.cache
def made_once(population, sections):
    sections = json.loads(sections)
    recipe = tiny_recipe(population, **sections)
    model = build.language_model(recipe.model, len(population.vocabulary))
    algorithm = build.algorithm(recipe, len(population.vocabulary))
    params = jax.jit(model.init)(jax.random.key(1))

    def program(message, user, key):
        return algorithm.mechanism.bound(
            message.public, algorithm.user_update(message, user, key), user.weight, key
        )

    return program, Message(params, algorithm.mechanism.public(algorithm.mechanism.init(params)))


def in_floats(total):
    """The total as numbers; packed sums are compared by what they stand for, to 1e-6."""
    return jax.tree.leaves(decoded(total))


decoded = jax.jit(functools.partial(decode, flat_clip(0.5), Public(np.float32(0.5))))


def assert_same_total(one, other):
    for left, right in zip(in_floats(one), in_floats(other), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


@pytest.mark.parametrize("fleet", [SimulatedFleet, SideBySide])
@pytest.mark.parametrize(
    ("cohort", "weight_cap"),
    [
        ([], None),
        pytest.param([3], 40.0, marks=pytest.mark.slow),
        (list(range(0, 50, 3)), 40.0),
        (list(range(50)), None),
    ],
)
def test_every_fleet_gives_the_total_of_a_plain_loop(population, fleet, cohort, weight_cap):
    program, message = program_and_message(population)
    cohort = np.array(cohort, int)
    ours = fleet(population, LAYOUT, weight_cap=weight_cap, cohort=CHUNK).sum_reports(
        program, message, cohort, KEY
    )
    reference = PlainLoop(population, LAYOUT, weight_cap).sum_reports(program, message, cohort, KEY)
    assert_same_total(ours, reference)


def test_the_contract_notices_a_fleet_that_forgets_a_user(population):
    """The twin that must fail."""
    program, message = program_and_message(population)
    fleet = SimulatedFleet(population, LAYOUT)
    whole = fleet.sum_reports(program, message, np.arange(50), KEY)
    without = fleet.sum_reports(program, message, np.arange(49), KEY)
    assert not np.allclose(in_floats(whole)[0], in_floats(without)[0], atol=1e-6)


def test_no_user_changes_what_another_one_reports(population):
    """Totals are additive: users trained in one chunk do not see each other."""
    program, message = program_and_message(population)
    fleet = SideBySide(population, LAYOUT, cohort=CHUNK)
    together = fleet.sum_reports(program, message, np.arange(6), KEY)
    apart = functools.reduce(
        trees.add, [fleet.sum_reports(program, message, np.array([user]), KEY) for user in range(6)]
    )
    assert_same_total(together, apart)


@pytest.mark.parametrize(
    "sections",
    mostly_slow(
        [
            {},
            {"privacy": {"greedy": True}},
            {"local": {"update_penalty": 0.1}},
            {"local": {"epochs": 2}, "model": {"dropout": 0.3}},
            {"local": {"learning_rate": 1e8}},
            {"local": {"learning_rate": 1e8}, "model": {"kind": "cifg"}},
        ],
        {},
        {"local": {"learning_rate": 1e8}},
    ),
)
def test_how_long_others_wrote_changes_nothing_about_a_report(population, sections):
    """Users side by side take as many steps as the longest of them; the padding of the others must
    not move them, not by one bit.
    """
    program, message = program_and_message(population, **sections)
    fleet = SideBySide(population, LAYOUT, cohort=CHUNK)
    lengths = [len(text) for text in population.texts]
    short, long = int(np.argmin(lengths)), int(np.argmax(lengths))
    both, alone, other = (
        jax.tree.leaves(fleet.sum_reports(program, message, np.array(cohort), KEY))
        for cohort in ([short, long], [short], [long])
    )
    assert lengths[short] < lengths[long] / 3
    for total, one, two in zip(both, alone, other, strict=True):
        np.testing.assert_array_equal(total, one + two)


@pytest.mark.parametrize(
    "sections",
    [
        {"algorithm": "dp-fedsgd"},
        {"model": {"dropout": 0.2}},
        {"privacy": {"greedy": True}},
        {"local": {"epochs": 2, "update_penalty": 0.1}},
    ],
)
@pytest.mark.slow  # plain training on both is above
def test_every_device_program_runs_alike_on_both_fleets(population, sections):
    program, message = program_and_message(population, **sections)
    one = SimulatedFleet(population, LAYOUT).sum_reports(program, message, np.arange(9), KEY)
    other = SideBySide(population, LAYOUT, cohort=CHUNK).sum_reports(
        program, message, np.arange(9), KEY
    )
    assert_same_total(one, other)


def test_totals_do_not_depend_on_who_comes_first(population):
    """Whole numbers add up to the same bits in any order, in any chunks, on any number of cores."""
    program, message = program_and_message(population)
    fleet = SimulatedFleet(population, LAYOUT)
    forwards = fleet.sum_reports(program, message, np.arange(50), KEY)
    backwards = fleet.sum_reports(program, message, np.arange(50)[::-1], KEY)
    for left, right in zip(jax.tree.leaves(forwards), jax.tree.leaves(backwards), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_batch_layout_keeps_every_token_as_a_target_once():
    for length in (0, 1, 4, 14, 15, 16, 44, 60, 99):
        tokens = np.arange(4, 4 + length)
        batches = LAYOUT.user_data(tokens).batches
        targets = batches[:, :, 1:]
        assert sorted(targets[targets != 0]) == list(tokens[:60])
        inputs = batches[:, :, :-1]
        after_begin = targets[inputs == 2]
        assert list(after_begin[after_begin != 0]) == list(tokens[:1])


SIX = {"x": jnp.zeros(6)}


@pytest.mark.parametrize("expected", [1, 3, 15, 16, 100])
def test_the_size_of_chunks_is_the_same_whoever_is_in_a_cohort(population, expected):
    def program(message, user, key):
        return Report({"x": user.batches.sum()}, user.weight.astype(jnp.int32))

    fleet = SideBySide(population, Layout.for_pieces(Unrolls(5), 3, 12), cohort=expected)
    sizes = set()
    for cohort in ([4], [], range(7), range(50)):
        fleet.sum_reports(program, Message(SIX, None), np.array(cohort, int), jax.random.key(0))
        sizes |= {len(chunk) for chunk in fleet._chunks(np.array(cohort, int))} | {fleet._size}
    assert len(sizes) == 1
    # The twin: one that is told another cohort takes another size.
    chunk = in_process._chunk_size(SIX, jax.devices()[0], expected)
    assert chunk != in_process._chunk_size(SIX, jax.devices()[0], 250)


def test_nobody_changes_who_the_users_are(population):
    """A cohort of all of them is the fleet's own array: whoever wrote to it would put one user into
    the next round twice.
    """
    fleet = SimulatedFleet(population, LAYOUT)
    cohort = PoissonSampling(1.0).select(fleet.users(lambda users: users), 0, Coins(bytes(32)))
    with pytest.raises(ValueError, match="read-only"):
        cohort[0] = 5
    assert fleet.users(lambda users: users).tolist() == list(range(len(population)))
