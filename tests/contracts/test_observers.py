"""Those who observe a run are added to its fleet one beside the other, and a total has room for all
of them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import tiny_recipe
from taciturn.audit.observers import run_observers, with_observers
from taciturn.core import Report
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers
from taciturn.privacy.participation import WrongNumberOfUsers
from taciturn.recipe import build


class Alike:
    """Each user's report is 1; notes with which key it was asked."""

    everyone_reports = True

    def __init__(self):
        self.keys = []

    def sum_reports(self, program, message, cohort, key):
        self.keys.append(np.asarray(jax.random.key_data(key)).tolist())
        return Report({}, jnp.int32(len(cohort)))


class Crowd:
    """So many, in every round."""

    def __init__(self, count, key_slot):
        self.most_at_once, self.key_slot, self.theirs = count, key_slot, Alike()

    def beside(self, fleet, most_reports):
        self.room = most_reports
        everyone = np.arange(self.most_at_once)
        return WithSyntheticUsers(
            fleet,
            synthetic=self.theirs,
            choose=lambda coins: everyone,
            most_reports=most_reports,
            key_slot=self.key_slot,
        )


@pytest.mark.parametrize(("people", "fits"), [(20, True), (21, False)])
def test_people_and_all_observers_together_are_never_more_than_a_total_holds(people, fits):
    crowds, most = [Crowd(30, 1), Crowd(7, 2)], 57
    fleet = with_observers(Alike(), crowds, most)
    assert [one.room for one in crowds] == [50, 57]  # room for those who come later is kept free
    if fits:
        assert (
            int(fleet.sum_reports(None, None, np.arange(people), jax.random.key(0)).weight) == most
        )
        assert crowds[0].theirs.keys != crowds[1].theirs.keys
    else:
        with pytest.raises(WrongNumberOfUsers, match="reports that a total holds"):
            fleet.sum_reports(None, None, np.arange(people), jax.random.key(0))


def test_a_run_without_any_has_its_own_fleet_and_nothing_else(population):
    recipe = tiny_recipe(population)
    algorithm = build.algorithm(recipe, len(population.vocabulary))
    assert run_observers(recipe, population.vocabulary, algorithm, {}, bytes(32)) == []
    fleet = Alike()
    assert with_observers(fleet, [], 10) is fleet
