"""A recipe worked out for people, an ε and this machine; recipe/autoplan.py has the rules.

Nothing about the people who will be protected is read but roughly how many they are, unless the
caller states it. How much they write, and so how fast a round is, is measured on held-out users,
who have no guarantee.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import trees
from taciturn.core import Params
from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.texts import Texts
from taciturn.evaluation.accuracy import evaluate
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.models.registry import KINDS
from taciturn.progress import ignore_progress
from taciturn.recipe import build
from taciturn.recipe.autoplan import (
    Plan,
    PlannedSetting,
    Task,
    choose_plan,
    planned_settings,
    recipe_content,
    with_exact_noise,
)
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError, parse_recipe
from taciturn.release.model_file import ModelCard, load_model
from taciturn.runs.timing import best_time, round_seconds

# held-out users in a timed round
CPU_SAMPLE, ACCELERATOR_SAMPLE = 48, 1000
# on all held-out users between the first and the last, if they take at most a tenth of the time
MORE_MEASUREMENTS = 4
# share of the time kept in reserve
UNFORESEEN = 0.1


class AutoPlan(NamedTuple):
    task: Task
    plan: Plan
    settings: list[PlannedSetting]
    recipe: Recipe


def publicly(users: int) -> int:
    """Round down to a number that may be published: coarser for fewer users, by at most a percent
    for many, or cohorts would be larger than planned.

    >>> publicly(37), publicly(9_364), publicly(1_098_765)
    (30, 9300, 1090000)
    """
    kept = 1 if users < 100 else 2 if users < 10_000 else 3
    digits = 10 ** max(0, len(str(users)) - kept)
    return users // digits * digits


def write_recipe_for(
    folder: Path,
    epsilon: float,
    start: str,
    minutes: float,
    users: int | None = None,
    doing: Callable[[str], None] = ignore_progress,
) -> AutoPlan:
    """Choose for the people in `folder`, and the model of public text that `start` names. Call
    `doing` with each step that begins.
    """
    began = time.perf_counter()
    population, held_out = Population(folder), HeldOutUsers(folder)
    params, card = load_model(Path(start))
    _check_start(start, card, folder, population.vocabulary.words)
    held_out.check_enough()
    if not len(population):
        raise RecipeError(
            f"the people of {folder} have their text on devices: write a recipe, and train with"
            " taciturn fleet serve"
        )
    users = users or publicly(len(population))
    on_cpu = jax.default_backend() == "cpu"
    task = Task(
        users=users,
        epsilon=epsilon,
        delta=float(f"{users**-1.1:.2g}"),
        parameters=trees.size(params),
        seconds=60 * minutes,
        users_per_second=1.0,
    )
    placeholder = Plan(rounds=25, cohort=10, server_rate=1.0, noise_multiplier=1.0, gain=0.0)
    drafted = planned_settings(
        task,
        placeholder,
        population=str(folder),
        start=start,
        architecture=card.architecture,
        on_cpu=on_cpu,
        measurements=0,
    )
    draft = parse_recipe(recipe_content(drafted))
    sample = _sample(
        held_out,
        population.manifest["about"].get("least_tokens", 0),
        CPU_SAMPLE if on_cpu else ACCELERATOR_SAMPLE,
    )
    compiling, speed, a_round, measuring = _timed(
        draft, sample, params, len(population.vocabulary), doing
    )
    measuring *= held_out.texts.tokens / sample.texts.tokens
    more = int(min(MORE_MEASUREMENTS, 6 * minutes / measuring))
    aside = time.perf_counter() - began + compiling + (2 + more) * measuring
    seconds = (1 - UNFORESEEN) * 60 * minutes - aside
    if seconds < 0:
        raise RecipeError(
            f"compiling and measuring alone take {aside / 60:.1f} minutes on this machine: allow"
            " more --minutes"
        )
    doing("working out the noise")
    task = replace(task, seconds=seconds, users_per_second=speed, round_seconds=a_round)
    try:
        plan = with_exact_noise(task, choose_plan(task))
    # an ε that needs no noise, or that no noise reaches
    except ValueError as error:
        raise RecipeError(str(error)) from None
    settings = planned_settings(
        task,
        plan,
        population=str(folder),
        start=start,
        architecture=card.architecture,
        on_cpu=on_cpu,
        measurements=more,
    )
    return AutoPlan(task, plan, settings, parse_recipe(recipe_content(settings)))


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
        built = (
            "taciturn data build --vocabulary …; without it they are those of the start that comes"
            " with taciturn"
        )
        named = "or name public text with the words of the people: --public FOLDER"
        raise RecipeError(
            f"{start} knows other words than {folder}. Build the people with its words ({built}),"
            f" {named}"
        )


class Sample(NamedTuple):
    texts: Texts


def _sample(held_out: HeldOutUsers, least_tokens: int, most: int) -> Sample:
    """Draw held-out users who wrote as much as those who will be trained on."""
    texts = held_out.texts
    written = [position for position in range(len(texts)) if len(texts[position])]
    long = [position for position in written if len(texts[position]) >= least_tokens]
    some = np.random.default_rng(0).permutation(long or written)[:most]
    return Sample(Texts.of([texts[position] for position in some], 2**31))


def _timed(
    draft: Recipe, sample: Sample, params: Params, words: int, doing: Callable[[str], None]
) -> tuple[float, float, float, float]:
    """Return seconds to compile; users a second; seconds of a round besides training; seconds to
    measure a model on the sample.
    """
    users = len(sample.texts)
    timed = draft.with_settings("privacy", epsilon=None, noise_multiplier=1.0, delta=1e-9)
    timed = timed.with_settings("participation", users=users, cohort=users)
    layout, params = (
        build.layout(timed, build.population(draft).vocabulary),
        jax.tree.map(jax.numpy.asarray, params),
    )

    def seconds(people: Sample) -> float:
        return round_seconds(timed, SimulatedFleet(people, layout, cohort=users), params, words, 2)

    doing("compiling a round, to time it")
    began = time.perf_counter()
    all = seconds(sample)
    compiling = max(time.perf_counter() - began - 3 * all, 0.0)
    doing("timing a smaller round")
    few = Sample(Texts.of([sample.texts[user] for user in range(max(1, users // 4))], 2**31))
    each = max(all - seconds(few), 0.1 * all) / (users - len(few.texts))
    doing("compiling and timing a measurement")
    model = build.language_model(timed.model, words)
    return (
        compiling,
        1 / each,
        max(all - users * each, 0.0),
        best_time(lambda: evaluate(model, params, sample.texts), 1),
    )
