"""A recipe worked out for people, an ε and this machine; recipe/choose.py has the rules.

Of the people who will be protected nothing is read, but how many they are, roughly, unless that is said. How long they write, and so how
fast a round is, is seen on held-out users, who have no guarantee.
"""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import trees
from taciturn.core import Params
from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.texts import Texts
from taciturn.errors import TaciturnError
from taciturn.evaluation.accuracy import evaluate
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.recipe import build
from taciturn.recipe.choose import Choice, Plan, Task, TooLittleTime, best_plan, choices, content_of, exactly
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import parse_recipe
from taciturn.release.model_file import load_model
from taciturn.runs.speed import best_time, round_seconds

CPU_SAMPLE, ACCELERATOR_SAMPLE = 48, 1000  # held-out users of a round that is timed
MORE_MEASUREMENTS = 4  # on all held-out users between the first and the last, where they take a tenth of the time at most
UNFORESEEN = 0.1  # share of the time that is left free


class StartError(TaciturnError):
    """The start does not go with the people."""


class Chosen(NamedTuple):
    """A recipe with its reasons."""

    task: Task
    plan: Plan
    choices: list[Choice]
    recipe: Recipe


def publicly(users: int) -> int:
    """A number of users that may be said: rounded down to two digits, so that it tells of nobody.

    >>> publicly(9_364), publicly(37)
    (9300, 37)
    """
    digits = 10 ** max(0, len(str(users)) - 2)
    return users // digits * digits


def chosen_recipe(folder: Path, epsilon: float, start: str, minutes: float, users: int | None = None) -> Chosen:
    """For the people in `folder`, and the model of public text that `start` names. Compiles, and times a few rounds."""
    began = time.perf_counter()
    population, held_out = Population(folder), HeldOutUsers(folder)
    held_out.check_enough()
    params, card = load_model(Path(start))
    if card.run is not None or card.personal:
        raise StartError(f"{start} learned from people, and a recipe is worked out for starts of public text alone; write one of your own")
    if card.vocabulary != population.vocabulary.words:
        raise StartError(
            f"{start} knows other words than {folder}. Build the people with its words (taciturn data build --vocabulary …; without it "
            "they are those of the start that comes with taciturn), or name public text with the words of the people: --public FOLDER"
        )
    users = users or publicly(len(population))
    on_cpu = jax.default_backend() == "cpu"
    task = Task(users, epsilon, float(f"{users**-1.1:.2g}"), trees.size(params), 60 * minutes, 1.0)
    draft = parse_recipe(content_of(choices(task, Plan(25, 10, 1.0, 1.0, 0.0), str(folder), start, card.architecture, on_cpu)))
    sample = _sample(held_out, population.manifest["about"].get("least_tokens", 0), CPU_SAMPLE if on_cpu else ACCELERATOR_SAMPLE)
    compiling, speed, measuring = _timed(draft, sample, params, len(population.vocabulary))
    measuring *= held_out.texts.tokens / sample.texts.tokens
    more = int(min(MORE_MEASUREMENTS, 6 * minutes / measuring))
    aside = time.perf_counter() - began + compiling + (2 + more) * measuring
    seconds = (1 - UNFORESEEN) * 60 * minutes - aside
    if seconds < 0:
        raise TooLittleTime(f"compiling and measuring alone take {aside / 60:.1f} minutes on this machine: allow more --minutes")
    task = Task(users, epsilon, task.delta, task.parameters, seconds, speed)
    plan = exactly(task, best_plan(task))
    made = choices(task, plan, str(folder), start, card.architecture, on_cpu, more)
    return Chosen(task, plan, made, parse_recipe(content_of(made)))


class Sample(NamedTuple):
    texts: Texts


def _sample(held_out: HeldOutUsers, least_tokens: int, most: int) -> Sample:
    """Held-out users as long as those who will be trained on."""
    texts = held_out.texts
    long = [position for position in range(len(texts)) if len(texts[position]) >= max(1, least_tokens)]
    some = np.random.default_rng(0).permutation(long or range(len(texts)))[:most]
    return Sample(Texts.of([texts[position] for position in some], 2**31))


def _timed(draft: Recipe, sample: Sample, params: Params, words: int) -> tuple[float, float, float]:
    """Seconds to compile; users a second; seconds to measure a model on the sample."""
    users = len(sample.texts)
    everyone = draft.with_settings("participation", users=users, cohort=users)
    timed = everyone.with_settings("privacy", epsilon=None, noise_multiplier=1.0, delta=0.5 / users)
    fleet = SimulatedFleet(sample, build.layout(timed, build.population(draft).vocabulary), cohort=users)
    began = time.perf_counter()
    seconds = round_seconds(timed, fleet, jax.tree.map(jax.numpy.asarray, params), words, 2)
    compiling = time.perf_counter() - began - 3 * seconds
    model = build.language_model(timed.model, words)
    return max(compiling, 0.0), users / seconds, best_time(lambda: evaluate(model, params, sample.texts), 1)
