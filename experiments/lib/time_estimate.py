"""How long a run takes on one H200: what `train.py --list` prints, and by which it decides whether
a run still ends in time.
"""

from functools import cache
from typing import NamedTuple

import jax

from lib.run_lists import ListedRun
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.trees import size

jax.config.update("jax_platforms", "cpu")  # only shapes are computed here: the GPU is the runs'

# Seconds, as measured in earlier runs, with which the estimates agree within a factor of three.
START = 15.0  # a process starts, copies its people and compiles, or finds what another one compiled
ROUND = 0.03  # what a round takes however few take part
EVALUATION = 0.5  # 900,000 tokens of held-out people, by a model of 10,000 words
CANARIES = 20.0  # 27 of them among 2,000,000 references
KEYSTROKES = 10.0  # of 700 sentences, on a CPU
PARAMETER = 6e-11  # of one person's update: it is clipped, made integers and added
TOKEN = 1.3e-7  # of one person's text, by a model of 10,000 words
TOKENS = {"local/steam-show": 400}  # of nearly everybody there, at most
# of the time that runs would take one after another: side by side they fill each other's gaps
SHARED = 0.6
WORDS = {
    "local/blogs-1600-20k": 20_000,
    "local/blogs-1600-30k": 30_000,
    "local/blogs-characters": 200,
}
WORDS |= dict.fromkeys(("local/popov/people", "local/popov/ten", "local/popov/one"), 30_000)


class Estimate(NamedTuple):
    gpu: float  # seconds for which it keeps a GPU busy
    alone: float  # seconds from start to end with nothing beside it

    def beside(self, others: int) -> float:
        """Return its seconds from start to end where so many others of its kind share the GPU."""
        return self.alone + others * SHARED * self.gpu


def estimate(run: ListedRun) -> Estimate:
    recipe = run.loaded()
    words = WORDS.get(recipe.data.population, 10_000)
    tokens = min(
        recipe.data.tokens_per_user, TOKENS.get(recipe.data.population, recipe.data.tokens_per_user)
    )
    people = recipe.run.rounds * (
        recipe.participation.cohort + recipe.canaries.rate * recipe.canaries.synthetic_users
    )
    parameters = _parameters(recipe.model, words)
    token = TOKEN * max(words / 10_000, parameters / 1.5e6)
    parameter = PARAMETER * (2 if recipe.privacy.encoding == "modular" else 1)
    person = parameter * parameters + token * tokens * recipe.local.epochs
    evaluations = (
        EVALUATION * max(1, words / 10_000) * (1 + recipe.run.rounds / recipe.run.evaluate_every)
    )
    measuring = evaluations + CANARIES * ("canaries" in run.measures)
    gpu = people * person + measuring
    return Estimate(
        gpu, START + KEYSTROKES * ("typed" in run.measures) + ROUND * recipe.run.rounds + gpu
    )


def together(estimates: list[Estimate], at_once: int) -> float:
    """Return the seconds that runs take, so many at a time: until the GPU has done all of it, or
    the last process its waiting.
    """
    return max(
        SHARED * sum(one.gpu for one in estimates), sum(one.alone for one in estimates) / at_once
    )


@cache
def _parameters(model: ModelSection, words: int) -> int:
    return size(jax.eval_shape(build.language_model(model, words).init, jax.random.key(0)))
