"""Synthetic users are beside a fleet: real users are drawn, summed and charged as if they were not
there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import WORDS, started, tiny_recipe
from taciturn import trees
from taciturn.core import Message, Public, Report
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers, choose_by_coins
from taciturn.privacy.bounding.clipping import MOST_REPORTS, pack
from taciturn.privacy.bounding.secagg_encoding import encoding
from taciturn.privacy.participation import WrongNumberOfUsers
from taciturn.recipe import build
from taciturn.recipe.sections import AUDITED_AT_ONCE

MESSAGE = Message({"w": jnp.float32(0)}, None)


class Counting:
    """Each user's report is one power of ten, so that a sum says who was in it."""

    everyone_reports = True

    def __init__(self, users: int) -> None:
        self.count, self.asked = users, []

    def users(self, eligible):
        return eligible(np.arange(self.count))

    def sum_reports(self, program, message, cohort, key):
        self.asked.append((cohort.tolist(), np.asarray(jax.random.key_data(key)).tolist()))
        zero = Report({"w": jnp.zeros(self.count)}, jnp.int32(0))
        return trees.add(
            zero, Report({"w": zero.update["w"].at[cohort].add(1.0)}, jnp.int32(len(cohort)))
        )


class Padded(Counting):
    """As many places as the real users have, so that the two can be added."""

    def __init__(self, users: int, places: int) -> None:
        super().__init__(users)
        self.places = places

    def sum_reports(self, program, message, cohort, key):
        self.asked.append((cohort.tolist(), np.asarray(jax.random.key_data(key)).tolist()))
        return Report({"w": jnp.zeros(self.places).at[cohort].add(100.0)}, jnp.int32(len(cohort)))


def fleet(rate: float, most: int = 50) -> tuple[WithSyntheticUsers, Counting, Padded]:
    real, synthetic = Counting(30), Padded(20, 30)
    mixed = WithSyntheticUsers(
        real, synthetic=synthetic, choose=choose_by_coins(20, rate), most_reports=most
    )
    return mixed, real, synthetic


def test_real_users_are_asked_as_if_there_were_no_others():
    both, real, _ = fleet(0.5)
    np.testing.assert_array_equal(both.users(lambda users: users[users > 3]), np.arange(4, 30))
    cohort, key = np.array([1, 5, 7]), jax.random.key(3)
    total = both.sum_reports(None, MESSAGE, cohort, key)
    assert real.asked == [([1, 5, 7], np.asarray(jax.random.key_data(key)).tolist())]
    assert [place for place in range(30) if float(total.update["w"][place]) % 100 == 1] == [1, 5, 7]


def test_synthetic_users_come_by_coins_of_their_own_and_the_same_when_summed_again():
    both, real, synthetic = fleet(0.3)
    keys = [jax.random.key(number) for number in range(200)]
    for key in keys:
        both.sum_reports(None, MESSAGE, np.array([1]), key)
    came = np.array([len(cohort) for cohort, _ in synthetic.asked])
    assert abs(came.mean() - 0.3 * 20) < 4 * np.sqrt(20 * 0.3 * 0.7 / 200)
    assert len({tuple(cohort) for cohort, _ in synthetic.asked}) > 150
    assert not {tuple(key) for _, key in synthetic.asked} & {tuple(key) for _, key in real.asked}
    first = synthetic.asked[0]
    both.sum_reports(None, MESSAGE, np.array([1]), keys[0])
    assert synthetic.asked[-1] == first


def test_with_nobody_beside_it_a_sum_is_what_it_was():
    both, _, _ = fleet(0.0)
    total = both.sum_reports(None, MESSAGE, np.array([2]), jax.random.key(0))
    alone = Counting(30).sum_reports(None, MESSAGE, np.array([2]), jax.random.key(0))
    np.testing.assert_array_equal(total.update["w"], alone.update["w"])
    assert int(total.weight) == int(alone.weight) == 1


def test_more_reports_than_a_total_holds_are_never_added():
    both, real, synthetic = fleet(1.0, most=22)
    both.sum_reports(None, MESSAGE, np.array([1, 2]), jax.random.key(0))
    with pytest.raises(
        WrongNumberOfUsers, match="a cohort and 20 synthetic users are more than the 22 reports"
    ):  # its size is a secret
        both.sum_reports(None, MESSAGE, np.array([1, 2, 3]), jax.random.key(0))
    assert (
        len(real.asked) == len(synthetic.asked) == 1
    )  # nothing was computed, and nothing can be released


def test_a_sum_of_more_would_run_over_and_one_user_move_it_by_far_more_than_the_clip_norm():
    """The twin: with as many reports as a total holds, whole numbers add up; with half as many
    again they come out negative.
    """
    largest = pack(Public(jnp.float32(1.0)), {"w": jnp.array([0.9999999])})[
        "w"
    ].low  # the low limb of a report near the clip norm
    for reports, runs_over in ((MOST_REPORTS, False), (MOST_REPORTS * 3 // 2, True)):
        total = jnp.sum(jnp.broadcast_to(largest, (reports,)))
        assert bool(total < 0) == runs_over


def test_a_recipe_with_too_many_of_them_is_refused(population):
    crowd = {"text": "somewhere", "users": [1000], "copies": [1], "per_cell": 66}
    with pytest.raises(ValueError, match="66000 synthetic users"):
        build.algorithm(tiny_recipe(population, canaries=crowd), 40)
    build.algorithm(tiny_recipe(population, canaries=crowd | {"per_cell": 60}), 40)


class Nobody:
    """A fleet that notes with which key it was asked."""

    everyone_reports = True

    def __init__(self):
        self.keys = []

    def users(self, eligible):
        return eligible(np.arange(10))

    def sum_reports(self, program, message, cohort, key):
        self.keys.append(np.asarray(jax.random.key_data(key)).tolist())
        return Report({}, jnp.int32(len(cohort)))


@pytest.mark.parametrize(("people", "fits"), [(20, True), (21, False)])
def test_people_canaries_and_audit_users_together_are_never_more_than_a_total_holds(people, fits):
    """As a run nests them: room for all audit users of a round is kept free of canaries."""
    canaries, audited = 30, AUDITED_AT_ONCE
    most = 20 + canaries + audited
    inner = WithSyntheticUsers(
        Nobody(),
        synthetic=Nobody(),
        choose=choose_by_coins(canaries, 1.0),
        most_reports=most - audited,
    )
    outer = WithSyntheticUsers(
        inner,
        synthetic=Nobody(),
        choose=lambda coins: np.arange(audited),
        most_reports=most,
    )
    if fits:
        assert (
            int(outer.sum_reports(None, None, np.arange(people), jax.random.key(0)).weight) == most
        )
    else:
        with pytest.raises(WrongNumberOfUsers, match="more than the 50 reports that a total holds"):
            outer.sum_reports(None, None, np.arange(people), jax.random.key(0))


def test_canaries_and_audit_users_of_one_round_have_keys_of_their_own():
    canaries, audited = Nobody(), Nobody()
    inner = WithSyntheticUsers(
        Nobody(), synthetic=canaries, choose=choose_by_coins(3, 1.0), most_reports=100
    )
    outer = WithSyntheticUsers(
        inner,
        synthetic=audited,
        choose=lambda coins: np.arange(3),
        most_reports=100,
        key_slot=2,
    )
    outer.sum_reports(None, None, np.arange(2), jax.random.key(0))
    assert canaries.keys != audited.keys


def test_room_for_canaries_and_audit_users_is_in_the_modulus(population):
    crowd = {"text": "somewhere", "users": [4], "copies": [1], "per_cell": 5}
    plain, both = (
        build.algorithm(
            tiny_recipe(population, privacy={"encoding": "modular"}, **more), WORDS
        ).mechanism
        for more in ({}, {"canaries": crowd, "audit": {"users": 32}})
    )
    assert both.most_reports == plain.most_reports + 20 + 32
    size = trees.size(started(tiny_recipe(population))[1])
    assert both.modulus == encoding(size, both.most_reports).modulus
