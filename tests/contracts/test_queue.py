"""A fleet with a queue: each report is about the model that its device got, of K different users,
and summed like any other.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import quietly, tiny_recipe
from taciturn import trees
from taciturn.core import FailedRound, Message, Public, Report, UserData
from taciturn.fleets.simulation.availability import TooFewDevices
from taciturn.fleets.simulation.queued import QueuedFleet
from taciturn.recipe.text import RecipeError
from taciturn.runs.loop import train_run

USERS, SIZE = 30, 4


class Loop:
    """Users whose report is their number times the model they got, so that a sum says who had
    which.
    """

    everyone_reports = True

    def users(self, eligible):
        return eligible(np.arange(USERS))

    def sum_reports(self, program, message, cohort, key):
        nobody = UserData(jnp.zeros(0), jnp.float32(0), jnp.int32(0))
        zero = trees.zeros_like(jax.eval_shape(program, message, nobody, key))
        reports = [
            program(message, nobody._replace(weight=jnp.float32(10.0**user)), key)
            for user in cohort % 7
        ]
        return functools.reduce(trees.add, reports, zero)


def program(message, user, key):
    return Report({"w": message.params["w"] * user.weight}, user.weight)


def message(model: int) -> Message:
    return Message({"w": jnp.float32(model + 1)}, Public(jnp.float32(1.0)))


def key(number: int):
    return jax.random.key(number)


def everyone(users):
    return users


@pytest.fixture
def fleet(tmp_path):
    return QueuedFleet(Loop(), size=SIZE, in_flight=9, folder=tmp_path / "queue")


def rounds(fleet, count, eligible=everyone, first=0):
    """(cohort, total) of each, and what the fleet says about who had which model."""
    for number in range(first, first + count):
        cohort = fleet.users(eligible)
        yield cohort, fleet.sum_reports(program, message(number), cohort, key(number))


def test_a_report_is_about_the_model_that_its_device_got(fleet):
    seen: dict[int, int] = {}
    for number in range(12):
        before = dict(fleet._training)
        cohort = fleet.users(everyone)
        got = {user: before.get(user, number) for user in cohort.tolist()}
        total = fleet.sum_reports(program, message(number), cohort, key(number))
        assert len(set(cohort.tolist())) == SIZE
        assert float(total.update["w"]) == pytest.approx(
            sum(10.0 ** (u % 7) * (m + 1) for u, m in got.items())
        )
        seen |= {number: max(number - m for m in got.values())}
    assert max(seen.values()) > 1  # or nothing was stale, and nothing was tested
    assert fleet.staleness.max() == max(seen.values())
    assert len(fleet.staleness) == fleet.stats()["uploads"] == 12 * SIZE


def test_a_round_that_is_summed_again_has_the_same_total_in_another_process_too(fleet, tmp_path):
    list(rounds(fleet, 6))
    cohort = fleet.users(everyone)
    again = QueuedFleet(Loop(), size=SIZE, in_flight=9, folder=tmp_path / "queue")
    total = fleet.sum_reports(program, message(6), cohort, key(6))
    np.testing.assert_array_equal(
        again.users(everyone), cohort
    )  # what waits in the queue is not lost
    assert (
        fleet.staleness[-SIZE:].max() > 0
    )  # or none of it was about an older model, and nothing was tested
    for _ in range(2):
        assert float(again.sum_reports(program, message(6), cohort, key(6)).update["w"]) == float(
            total.update["w"]
        )
        again = QueuedFleet(Loop(), size=SIZE, in_flight=9, folder=tmp_path / "queue")


def test_a_device_in_flight_is_not_asked_again_and_who_rests_gets_no_model(fleet):
    resting = set(range(10))

    def rested(users):
        return np.array([user for user in users if user not in resting])

    for cohort, _ in rounds(fleet, 20, rested):
        assert not resting & set(cohort.tolist())
        assert not set(fleet._training) & set(cohort.tolist())


def test_models_are_kept_as_long_as_a_device_trains_on_them_and_no_longer(fleet, tmp_path):
    list(rounds(fleet, 20))
    kept = {int(path.stem.removeprefix("model-")) for path in (tmp_path / "queue").glob("model-*")}
    model, trained_on = list(fleet._rounds.values())[-1]
    assert kept == {*fleet._training.values(), model, *trained_on.values()} - {20}
    assert len(kept) < 12


def test_a_round_about_a_model_that_is_gone_fails_and_the_next_goes_on(fleet, tmp_path):
    list(rounds(fleet, 6))
    for path in (tmp_path / "queue").glob("model-*"):
        path.unlink()
    failed = 0
    for number in range(6, 16):
        cohort = fleet.users(everyone)
        try:
            fleet.sum_reports(program, message(number), cohort, key(number))
        except FailedRound:
            failed += 1
    assert 0 < failed < 10


def test_a_queue_in_which_no_device_may_take_part_any_more_is_reported(fleet):
    with pytest.raises(TooFewDevices, match="3 devices have reported and 4 are needed"):
        fleet.users(lambda users: users[:3])


FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "privacy": {"noise": "tree"},
    "fleet": {"kind": "queue"},
}


def test_under_privacy_a_report_is_charged_in_the_round_in_which_it_is_summed(population, tmp_path):
    recipe = tiny_recipe(population, **FTRL)
    finished = train_run(recipe, tmp_path / "queue", quietly)
    always = train_run(
        tiny_recipe(population, **FTRL | {"fleet": {"kind": "simulated"}}),
        tmp_path / "always",
        quietly,
    )
    assert finished.guarantee.releases == recipe.run.rounds
    assert finished.guarantee.rho == pytest.approx(
        always.guarantee.rho
    )  # the same claim, whoever had which model
    said = " ".join((tmp_path / "queue" / "guarantee.txt").read_text().split())
    assert "rounds old" in said
    assert not (
        tmp_path / "queue" / "private"
    ).exists()  # who trained on what goes with the other secrets


@pytest.mark.parametrize(
    ("sections", "match"),
    [
        ({"fleet": {"kind": "queue"}}, "no sampling can be claimed"),
        (
            {**FTRL, "privacy": {"noise": "tree", "clipping": "adaptive"}},
            "one clip norm for the whole run",
        ),
        ({**FTRL, "fleet": {"kind": "queue", "in_flight": 7}}, "never complete a round of 8"),
    ],
)
def test_a_queue_is_refused_where_the_claim_would_not_hold(population, sections, match):
    with pytest.raises(RecipeError, match=match):
        tiny_recipe(population, **sections)
