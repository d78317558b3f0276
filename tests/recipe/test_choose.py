"""A recipe that is worked out: it fits the time, keeps the budget, and says why."""

import tomllib
from dataclasses import replace

import jax
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from taciturn.privacy.accounting.accountant import Budget, epsilon, noise_for_budget
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.participation import default_delta
from taciturn.recipe import autoplan, build
from taciturn.recipe.autoplan import (
    CLIP_NORM,
    ENOUGH,
    LOUDEST,
    MOMENTUM,
    Plan,
    Task,
    _approximate_noise,
    _gaussian_mu,
    choose_plan,
    commented_toml,
    expected_gain,
    planned_settings,
    recipe_content,
)
from taciturn.recipe.text import RecipeError, parse_recipe

CIFG = {"kind": "cifg", "width": 96}


def task(users=9_000, promised=4.0, seconds=600.0, users_per_second=1_000.0) -> Task:
    return Task(
        users=users,
        epsilon=promised,
        delta=default_delta(users),
        parameters=2_400_000,
        seconds=seconds,
        users_per_second=users_per_second,
    )


@pytest.fixture
def estimated(monkeypatch):
    """Estimates stand for the exact noise, which takes seconds."""
    monkeypatch.setattr(autoplan, "with_exact_noise", lambda task, plan: plan)


def noise_of(asked: Task, plan: Plan) -> float:
    """How far it takes the model."""
    a_round = CLIP_NORM / (1 - MOMENTUM) * plan.noise_multiplier / plan.cohort
    return plan.server_rate * a_round * (plan.rounds * asked.parameters) ** 0.5


@pytest.mark.parametrize(
    ("users", "promised"), [(200, 8.0), (9_000, 1.0), (9_000, 8.0), (300_000, 0.5)]
)
@pytest.mark.parametrize("seconds", [1.0, 30.0, 3_000.0])
@pytest.mark.usefixtures("estimated")
def test_a_plan_fits_the_time_and_its_noise_is_bearable(users, promised, seconds):
    asked = task(users, promised, seconds)
    plan = choose_plan(asked)
    assert plan.rounds * plan.cohort <= seconds * asked.users_per_second
    assert noise_of(asked, plan) < 1.05 * LOUDEST


def test_the_noise_of_a_plan_keeps_the_budget_and_its_rate_is_for_that_noise():
    asked = task(seconds=60.0)
    plan = choose_plan(asked)
    sampled = PoissonSampledDpEvent(
        plan.cohort / asked.users, GaussianDpEvent(plan.noise_multiplier)
    )
    spent = epsilon(repeat(sampled, plan.rounds), asked.delta)
    assert 0.99 * asked.epsilon < spent <= asked.epsilon
    assert noise_of(asked, plan) < 1.001 * LOUDEST


@pytest.mark.parametrize("seed", range(20))
def test_the_shortest_plan_near_the_best_is_found_without_working_all_of_them_out(
    seed, monkeypatch
):
    """However far each estimate falls short of the noise that is needed."""
    random = np.random.default_rng(seed)
    asked = task(seconds=300.0)
    estimates = autoplan._list_plans(asked)
    exact = {}
    for plan in estimates:
        noise_multiplier = plan.noise_multiplier * random.uniform(1.0, 1.5)
        sizes = plan.rounds, plan.cohort
        exact[sizes] = autoplan._plan_with_noise(asked, *sizes, noise_multiplier)
    worked_out = []

    def look_up(task, plan):
        sizes = plan.rounds, plan.cohort
        worked_out.append(sizes)
        return exact[sizes]

    monkeypatch.setattr(autoplan, "with_exact_noise", look_up)
    found = choose_plan(asked)
    best = max(plan.gain for plan in exact.values())
    near = [plan for plan in exact.values() if plan.gain > best - ENOUGH]
    assert found == min(near, key=lambda plan: asked.duration(plan.rounds, plan.cohort))
    assert len(set(worked_out)) < len(estimates)


@pytest.mark.usefixtures("estimated")
def test_more_people_a_larger_epsilon_and_more_time_are_worth_more():
    for few, many in (
        (task(1_000), task(9_000)),
        (task(promised=1.0), task(promised=4.0)),
        (task(seconds=10.0), task(seconds=600.0)),
    ):
        assert choose_plan(few).gain < choose_plan(many).gain - ENOUGH


@pytest.mark.usefixtures("estimated")
def test_time_that_gains_nothing_is_not_spent():
    plan, hurried = (
        choose_plan(task(promised=1.0, seconds=1e6)),
        choose_plan(task(promised=1.0, seconds=600.0)),
    )
    assert plan.rounds * plan.cohort < 600_000
    assert plan.gain < hurried.gain + ENOUGH


def test_what_is_gained_grows_with_the_way_and_shrinks_with_the_noise():
    assert expected_gain(0.0, 0.0) == 0
    assert expected_gain(100.0, 50.0) < expected_gain(200.0, 50.0)
    assert expected_gain(100.0, 60.0) < expected_gain(100.0, 50.0)


@pytest.mark.parametrize(
    ("users", "cohort", "rounds", "promised"),
    [(9_000, 900, 100, 1.0), (9_000, 270, 50, 4.0), (40_000, 4_000, 50, 0.5)],
)
def test_plans_are_compared_by_noise_that_is_nearly_right(users, cohort, rounds, promised):
    asked = task(users, promised)

    def spent(noise_multiplier):
        return repeat(
            PoissonSampledDpEvent(cohort / users, GaussianDpEvent(noise_multiplier)), rounds
        )

    exact = noise_for_budget(spent, Budget(delta=asked.delta, epsilon=promised), "pld")
    assert (
        0.7 * exact < _approximate_noise(_gaussian_mu(asked), cohort / users, rounds) < 1.1 * exact
    )


def test_too_few_people_are_refused():
    with pytest.raises(RecipeError, match="30 people are too few"):
        choose_plan(task(users=30))


@pytest.mark.usefixtures("estimated")
def test_with_very_few_people_the_rate_is_so_low_that_nothing_is_expected_to_be_lost():
    plan = choose_plan(task(users=100, promised=0.1))
    assert plan.gain >= 0
    assert noise_of(task(users=100), plan) < 0.5 * LOUDEST


@pytest.mark.usefixtures("estimated")
def test_what_a_round_takes_besides_is_counted():
    asked = replace(task(seconds=60.0), round_seconds=0.5)
    plan = choose_plan(asked)
    assert asked.duration(plan.rounds, plan.cohort) <= 60
    assert plan.rounds <= 100


@pytest.mark.usefixtures("estimated")
def test_a_machine_that_is_too_slow_is_told_how_long_it_would_take():
    with pytest.raises(
        RecipeError,
        match=(
            r"25 rounds of 10, takes 41.7 minutes on this machine without compiling and measuring."
            r" Allow more"
        ),
    ):
        choose_plan(task(seconds=60.0, users_per_second=0.1))


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.usefixtures("estimated")
def test_the_file_with_reasons_is_the_recipe(on_cpu):
    asked = task()
    made = planned_settings(
        asked,
        choose_plan(asked),
        population="people",
        start="taciturn:english",
        architecture=CIFG,
        on_cpu=on_cpu,
        measurements=3,
    )
    written = commented_toml(made, "Worked out")
    assert tomllib.loads(written) == recipe_content(made)
    recipe = parse_recipe(recipe_content(made))
    assert (recipe.privacy.epsilon, recipe.participation.users, recipe.model.kind) == (
        4.0,
        9_000,
        "cifg",
    )
    assert recipe.privacy.noise_multiplier is None  # it is worked out by the run, exactly
    assert sum(norm**2 for norm in recipe.privacy.layer_clip_norms.values()) == pytest.approx(
        CLIP_NORM**2, rel=1e-3
    )
    assert all(
        " # " in line for line in written.splitlines() if "=" in line and not line.startswith("#")
    )
    assert -(-recipe.run.rounds // recipe.run.evaluate_every) == 4


@pytest.mark.usefixtures("estimated")
def test_the_clip_norms_of_a_chosen_recipe_are_for_the_layers_that_its_model_has():
    for tied in (False, True):
        made = planned_settings(
            task(),
            choose_plan(task()),
            population="people",
            start="start",
            architecture=CIFG | {"tied": tied},
            on_cpu=True,
            measurements=0,
        )
        recipe = parse_recipe(recipe_content(made))
        params = build.language_model(recipe.model, 30).init(jax.random.key(0))
        build.bound(recipe).check(params)
        assert (recipe.privacy.clip_norm == CLIP_NORM) == tied


@pytest.mark.parametrize(
    ("users_per_second", "more_in_time", "more_with_people"),
    [(16.0, 0.21, 0.0), (3_400.0, 0.0, 0.24)],
)
def test_what_limits_a_plan_is_what_working_out_all_noise_says(
    users_per_second, more_in_time, more_with_people
):
    """As `choose_plan` says for twice the time and twice the people, with exact noise."""
    asked = task(9_300, seconds=150.0, users_per_second=users_per_second)
    twice_the_people = replace(asked, users=18_600, delta=default_delta(18_600))
    plan = choose_plan(asked)
    limit = autoplan.find_limit(asked, plan, replace(asked, seconds=300.0), twice_the_people)
    assert limit.is_time == (more_in_time > ENOUGH)
    assert limit.more_in_time == pytest.approx(more_in_time, abs=0.03)
    assert limit.more_with_people == pytest.approx(more_with_people, abs=0.03)
