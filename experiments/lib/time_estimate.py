"""How long a run takes on one H200: what `train.py --list` prints, and by which it decides whether
a run still ends in time.
"""

from functools import cache
from typing import NamedTuple

import jax

from lib.run_lists import ListedRun
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import ModelSection
from taciturn.trees import size

# Only shapes are computed here: the GPU is the runs'.
jax.config.update("jax_platforms", "cpu")

# Seconds, as measured in earlier runs, with which the estimates agree within a factor of three.

# A process starts, copies its people and compiles, or finds what another one compiled.
START = 15.0
# What a round takes however few take part.
ROUND = 0.03
# 900,000 tokens of held-out people, by a model of 10,000 words.
EVALUATION = 0.5
# 27 of them among 2,000,000 references.
CANARIES = 20.0
# Of 700 sentences, on a CPU.
KEYSTROKES = 10.0
# Of one person's update: it is clipped, made integers and added.
PARAMETER = 6e-11
# Of one person's text, by a model of 10,000 words.
TOKEN = 1.3e-7
# The share of the time that runs would take one after another: side by side they fill each other's
# gaps.
SHARED = 0.6

# The tokens that nearly everybody has at most, where that is fewer than a recipe takes.
TOKENS = {"local/steam-show": 400}
# The words of a population's vocabulary, where they are not the usual ones.
USUAL_WORDS = 10_000
WORDS = {
    "local/blogs-1600-20k": 20_000,
    "local/blogs-1600-30k": 30_000,
    "local/blogs-characters": 200,
    "local/popov/people": 30_000,
    "local/popov/ten": 30_000,
    "local/popov/one": 30_000,
}


class Estimate(NamedTuple):
    # Seconds for which it keeps a GPU busy.
    gpu: float
    # Seconds from start to end with nothing beside it.
    alone: float

    def beside(self, others: int) -> float:
        """Return its seconds from start to end where others of its kind share the GPU."""
        return self.alone + others * SHARED * self.gpu


def estimate(run: ListedRun) -> Estimate:
    """Estimate how long a run of a list takes."""
    recipe = run.load_recipe()
    rounds = recipe.run.rounds
    synthetic = recipe.canaries.rate * recipe.canaries.synthetic_users
    people = rounds * (recipe.participation.cohort + synthetic)
    gpu = people * _seconds_of_a_person(recipe) + _seconds_of_measuring(run, recipe)
    alone = START + ROUND * rounds + gpu
    if "typed" in run.measures:
        alone += KEYSTROKES
    return Estimate(gpu=gpu, alone=alone)


def _words_of(recipe: Recipe) -> int:
    return WORDS.get(recipe.data.population, USUAL_WORDS)


def _seconds_of_a_person(recipe: Recipe) -> float:
    most = recipe.data.tokens_per_user
    tokens = min(most, TOKENS.get(recipe.data.population, most))
    words = _words_of(recipe)
    parameters = _count_parameters(recipe.model.model_dump_json(), words)
    token = TOKEN * max(words / USUAL_WORDS, parameters / 1.5e6)
    is_modular = recipe.privacy.encoding == "modular"
    parameter = 2 * PARAMETER if is_modular else PARAMETER
    update = parameter * parameters
    training = token * tokens * recipe.local.epochs
    return update + training


def _seconds_of_measuring(run: ListedRun, recipe: Recipe) -> float:
    times = 1 + recipe.run.rounds / recipe.run.evaluate_every
    seconds = EVALUATION * max(1, _words_of(recipe) / USUAL_WORDS) * times
    if "canaries" in run.measures:
        seconds += CANARIES
    return seconds


def estimate_together(estimates: list[Estimate], at_once: int) -> float:
    """Return the seconds that runs take, `at_once` at a time: until the GPU has done all of it, or
    the last process its waiting.
    """
    gpu = SHARED * sum(estimate.gpu for estimate in estimates)
    processes = sum(estimate.alone for estimate in estimates) / at_once
    return max(gpu, processes)


@cache
def _count_parameters(model: str, words: int) -> int:
    """Count the parameters of a model, whose section of a recipe is given as JSON."""
    section = ModelSection.model_validate_json(model)
    init = build.language_model(section, words).init
    return size(jax.eval_shape(init, jax.random.key(0)))
