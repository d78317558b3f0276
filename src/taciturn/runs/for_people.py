"""Work out a recipe for people, an ε and this machine; recipe/autoplan.py has the rules.

Nothing about the people who will be protected is read but roughly how many they are, unless the
caller states it. How much they write, and so how fast a round is, is measured on held-out users,
who have no guarantee.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import trees
from taciturn.core import Params
from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.evaluation.accuracy import evaluate
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.models.registry import KINDS
from taciturn.privacy.participation import default_delta, round_for_publication
from taciturn.progress import ignore_progress
from taciturn.recipe import build
from taciturn.recipe.autoplan import (
    Plan,
    PlannedSetting,
    Task,
    choose_plan,
    planned_settings,
    recipe_content,
)
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError, parse_recipe
from taciturn.release.model_file import ModelCard, load_model
from taciturn.runs.timing import best_time, round_seconds

# Held-out users in a timed round.
CPU_SAMPLE = 48
ACCELERATOR_SAMPLE = 1000
# Of all held-out users, between the first and the last; fewer, where these would take more than a
# tenth of the time.
MORE_MEASUREMENTS = 4
# Share of the time kept in reserve.
UNFORESEEN = 0.1
# For the settings that a machine is timed with, which do not depend on the plan.
PLACEHOLDER = Plan(rounds=25, cohort=10, server_rate=1.0, noise_multiplier=1.0, gain=0.0)
# Called with each step that begins.
Announce = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class AutoPlan:
    """A recipe for people, and how it was worked out."""

    task: Task
    plan: Plan
    settings: list[PlannedSetting]
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How fast this machine trains and measures."""

    # To compile a round.
    compile_s: float
    users_per_s: float
    # Of a round, besides training: noise, record, charge.
    overhead_s: float
    # To measure a model: on the sample that was timed, or on all held-out users.
    evaluate_s: float


class Sample(NamedTuple):
    """Held-out users who stand for those who will be trained on."""

    texts: Texts


def plan_recipe(
    folder: Path,
    epsilon: float,
    start: str,
    minutes: float,
    users: int | None = None,
    announce: Announce = ignore_progress,
) -> AutoPlan:
    """Work out a recipe for the people in a folder.

    Args:
        folder: the population.
        epsilon: of the guarantee.
        start: the model of public text to start from.
        minutes: that the whole command may take.
        users: how many people there are, as publicly stated; otherwise counted, and rounded down.
        announce: called with each step that begins.
    """
    began = time.perf_counter()
    population = Population(folder)
    held_out = HeldOutUsers(folder)
    params, card = load_model(Path(start))
    _check_start(start, card, folder, population.vocabulary.words)
    held_out.check_enough()
    if not len(population):
        raise RecipeError(
            f"the people of {folder} have their text on devices: write a recipe, and train with"
            " taciturn fleet serve"
        )
    users = users or round_for_publication(len(population))
    task = Task(
        users=users,
        epsilon=epsilon,
        delta=default_delta(users),
        parameters=trees.size(params),
        seconds=60 * minutes,
        # Until it is measured.
        users_per_second=1.0,
    )
    plan_settings = partial(
        planned_settings,
        population=str(folder),
        start=start,
        architecture=card.architecture,
        on_cpu=_is_on_cpu(),
    )
    draft = parse_recipe(recipe_content(plan_settings(task, PLACEHOLDER, measurements=0)))
    timing = _time_machine(draft, population, held_out, params, announce)
    measurements = int(min(MORE_MEASUREMENTS, 6 * minutes / timing.evaluate_s))
    measuring_s = (2 + measurements) * timing.evaluate_s
    aside = time.perf_counter() - began + timing.compile_s + measuring_s
    task = replace(
        task,
        seconds=_seconds_left(minutes, aside),
        users_per_second=timing.users_per_s,
        round_seconds=timing.overhead_s,
    )
    announce("working out the noise")
    plan = _choose_plan(task)
    settings = plan_settings(task, plan, measurements=measurements)
    recipe = parse_recipe(recipe_content(settings))
    return AutoPlan(task=task, plan=plan, settings=settings, recipe=recipe)


def _is_on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _time_machine(
    draft: Recipe,
    population: Population,
    held_out: HeldOutUsers,
    params: Params,
    announce: Announce,
) -> Timing:
    """Time rounds of held-out users, and estimate how long it takes to measure all of them."""
    least_tokens = population.manifest["about"].get("least_tokens", 0)
    most = CPU_SAMPLE if _is_on_cpu() else ACCELERATOR_SAMPLE
    sample = draw_sample(held_out, least_tokens, most)
    timing = measure_speed(draft, sample, params, announce)
    evaluate_s = timing.evaluate_s * (held_out.texts.tokens / sample.texts.tokens)
    return replace(timing, evaluate_s=evaluate_s)


def _seconds_left(minutes: float, aside: float) -> float:
    """Return the time for the rounds, where `aside` seconds go to everything else."""
    seconds = (1 - UNFORESEEN) * 60 * minutes - aside
    if seconds < 0:
        raise RecipeError(
            f"compiling and measuring take {aside / 60:.1f} minutes by themselves on this machine:"
            " allow more `minutes`"
        )
    return seconds


def _choose_plan(task: Task) -> Plan:
    try:
        return choose_plan(task)
    # Some ε need no noise, and some are reached by none.
    except ValueError as error:
        raise RecipeError(str(error)) from None


def _check_start(start: str, card: ModelCard, folder: Path, words: tuple[str, ...]) -> None:
    if card.run is not None or card.personal:
        raise RecipeError(
            f"{start} learned from people, and a recipe is worked out only for starts of public"
            " text; write your own"
        )
    if card.architecture.get("kind") not in KINDS:
        raise RecipeError(
            f"{start} is not a neural model: private training starts from one; name another"
        )
    if card.vocabulary != words:
        raise RecipeError(
            f"{start} knows other words than {folder}. Build the people with its words (taciturn"
            " data build --vocabulary …; without it they are those of the start that comes with"
            " taciturn), or name public text with the words of the people: `start=FOLDER`"
        )


def draw_sample(held_out: HeldOutUsers, least_tokens: int, most: int) -> Sample:
    """Draw held-out users who wrote as much as those who will be trained on."""
    texts = held_out.texts
    writers = [user for user in range(len(texts)) if len(texts[user])]
    long_writers = [user for user in writers if len(texts[user]) >= least_tokens]
    shuffled = np.random.default_rng(0).permutation(long_writers or writers)
    drawn = [texts[user] for user in shuffled[:most]]
    return Sample(Texts.of(drawn, 2**31))


def measure_speed(draft: Recipe, sample: Sample, params: Params, announce: Announce) -> Timing:
    """Time a round of all users in a sample, one of fewer, and a measurement of a model."""
    users = len(sample.texts)
    vocabulary = build.population(draft).vocabulary
    params = jax.tree.map(jax.numpy.asarray, params)
    recipe = draft.with_settings("privacy", epsilon=None, noise_multiplier=1.0, delta=1e-9)
    recipe = recipe.with_settings("participation", users=users, cohort=users)
    time_round = partial(_time_round, recipe, vocabulary, params)
    announce("compiling a round, to time it")
    began = time.perf_counter()
    round_s = time_round(sample)
    compile_s = max(time.perf_counter() - began - 3 * round_s, 0.0)
    announce("timing a smaller round")
    fewer = max(1, users // 4)
    smaller_sample = _take_first(sample, fewer)
    saved_s = max(round_s - time_round(smaller_sample), 0.1 * round_s)
    user_s = saved_s / (users - fewer)
    announce("compiling and timing a measurement")
    model = build.language_model(recipe.model, len(vocabulary))
    return Timing(
        compile_s=compile_s,
        users_per_s=1 / user_s,
        overhead_s=max(round_s - users * user_s, 0.0),
        evaluate_s=best_time(lambda: evaluate(model, params, sample.texts), 1),
    )


def _take_first(sample: Sample, users: int) -> Sample:
    first = [sample.texts[user] for user in range(users)]
    return Sample(Texts.of(first, 2**31))


def _time_round(recipe: Recipe, vocabulary: Vocabulary, params: Params, sample: Sample) -> float:
    fleet = SimulatedFleet(
        sample,
        build.layout(recipe, vocabulary),
        cohort=recipe.participation.users,
    )
    return round_seconds(recipe, fleet, params, words=len(vocabulary), times=2)
