"""The best guess from all rows: of the noise that a recipe says, and no other."""

import math

import numpy as np
import pytest

from harness import tiny_recipe
from taciturn.audit.matched_filter import best_filters
from taciturn.audit.results import rows_of_noise
from taciturn.recipe import build
from taciturn.recipe.solve import with_noise

FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
}
NOISES = {
    "independent": {"noise": "independent"},
    "tree": {"noise": "tree"},
    "tree, restarted": {"noise": "tree", "restart_rounds": [3, 9]},
    "honaker": {"noise": "honaker"},
    "honaker, restarted": {"noise": "honaker", "restart_rounds": [6]},
    "blt": {"noise": "blt", "buffers": 2},
    "banded": {"noise": "banded", "bands": 3},
    "banded, restarted": {"noise": "banded", "bands": 3, "restart_rounds": [4]},
}
NOBODY = np.zeros((12, 0))


def as_columns(rounds: int, patterns: list[list[int]]) -> np.ndarray:
    """[rounds, patterns]: 1 in the rounds of each pattern."""
    return np.stack([np.isin(np.arange(rounds), pattern) for pattern in patterns], axis=1).astype(
        float
    )


def recipe_of(population, noise):
    return with_noise(
        tiny_recipe(population, **FTRL, privacy=NOISES[noise], run={"rounds": 12}), 30_000
    )


@pytest.mark.parametrize("noise", NOISES)
def test_rows_are_those_of_the_strategy_whose_cost_is_charged(population, noise):
    recipe = recipe_of(population, noise)
    strategy = build.noise(recipe, 1.0).strategy
    rows = rows_of_noise(recipe)
    prefixes = np.cumsum(rows, axis=0)
    np.testing.assert_allclose(
        np.sum(prefixes**2, axis=1), strategy.prefix_variance(len(rows)), rtol=1e-5
    )
    turns = as_columns(12, [list(range(first, 12, 3)) for first in range(3)])
    _, mu = best_filters(rows[:12], turns, 2.0, NOBODY)
    whole = math.sqrt(strategy.sensitivity_squared(12, 2, 4)) / 2
    assert np.max(mu) <= whole * (1 + 1e-6)  # nobody gets more out of all rows than is claimed
    assert np.max(mu) > 0.7 * whole


def drawn(rows, turns, users, multiplier=2.0, seed=0):
    """Scores of so many users of the first pattern, half of whom are in, under noise with these
    rows.
    """
    generator = np.random.default_rng(seed)
    included = np.arange(users) % 2 == 0
    values = (
        multiplier * rows @ generator.normal(size=(rows.shape[1], users)) + turns[:, :1] * included
    )
    return values, included


@pytest.mark.parametrize("noise", NOISES)
def test_scores_lie_as_far_apart_as_is_said(population, noise):
    rows = rows_of_noise(recipe_of(population, noise))[:12]
    turns = as_columns(12, [[1, 4, 7, 10]])
    by, mu = best_filters(rows, turns, 2.0, NOBODY)
    values, included = drawn(rows, turns, 4000)
    scores = by[:, 0] @ values
    assert scores[~included].std() == pytest.approx(1.0, abs=0.05)
    assert scores[included].mean() == pytest.approx(mu[0], abs=0.1)
    assert mu[0] > max(
        best_filters(rows, as_columns(12, [[row]]), 2.0, NOBODY)[1][0] for row in (1, 4, 7, 10)
    )


def test_noise_that_is_correlated_otherwise_than_is_said_shows(population):
    """The twin: the scores of rows with independent noise, read as if it were a tree's."""
    rows = rows_of_noise(recipe_of(population, "tree"))[:12]
    turns = as_columns(12, [[1, 4, 7, 10]])
    by, _ = best_filters(rows, turns, 2.0, NOBODY)
    values, included = drawn(np.eye(12), turns, 4000)
    assert not 0.8 < (by[:, 0] @ values)[~included].std() < 1.25


def test_rows_that_were_lost_are_left_out(population):
    rows = rows_of_noise(recipe_of(population, "blt"))[:12]
    turns, kept = as_columns(12, [[1, 4, 7, 10]]), np.delete(np.arange(12), 5)
    values, included = drawn(rows, turns, 4000)
    by, mu = best_filters(rows[kept], turns[kept], 2.0, NOBODY[kept])
    scores = by[:, 0] @ values[kept]
    assert scores[~included].std() == pytest.approx(1.0, abs=0.05)
    assert scores[included].mean() == pytest.approx(mu[0], abs=0.1)
    wrong, _ = best_filters(
        rows[:11], turns[kept], 2.0, NOBODY[kept]
    )  # the twin: as if none had been lost
    assert (wrong[:, 0] @ values[kept])[~included].std() > 1.05


def test_people_who_pull_the_same_way_all_the_time_are_seen_past(population):
    """By directions that nobody sends; what is claimed of the score stays what it is."""
    rows = rows_of_noise(recipe_of(population, "blt"))[:12]
    turns, generator = as_columns(12, [[1, 4, 7, 10]]), np.random.default_rng(1)
    values, included = drawn(rows, turns, 4000)
    bystanders = drawn(rows, 0 * turns, 1000, seed=2)[0]
    values += 3 * generator.normal(size=4000)
    bystanders += 3 * generator.normal(size=1000)
    spreads, apart = [], []
    for beside in (NOBODY, bystanders):
        by, mu = best_filters(rows, turns, 2.0, beside)
        scores = by[:, 0] @ values
        spreads.append(scores[~included].std())
        apart.append((scores[included].mean() - scores[~included].mean()) / spreads[-1])
        assert scores[included].mean() - scores[~included].mean() == pytest.approx(mu[0], abs=0.5)
    assert spreads[1] < 1.3 < 2 < spreads[0]
    assert apart[1] > 1.5 * apart[0]
