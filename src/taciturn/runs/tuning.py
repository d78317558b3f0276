"""Settings tried on public text that is dealt to made-up users: a sweep that costs nobody anything.

OUT/people is the population of these users; each trial is a run of its own beside it, so that an interrupted sweep goes on.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taciturn.data.population import Population, write_population
from taciturn.data.public import PublicCorpus
from taciturn.errors import TaciturnError
from taciturn.files import from_json
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe
from taciturn.runs.loop import resume_run, train_run

HELD_OUT = 1 / 16  # share of the text, as of people
LEAST_TOKENS = 50  # of a made-up user


class TuningError(TaciturnError):
    """What is to be tried cannot be."""


class Trial(NamedTuple):
    settings: tuple[str, ...]
    top1: float
    top3: float
    epsilon: float


def combinations(tries: list[str]) -> list[tuple[str, ...]]:
    """Every setting with every other.

    >>> combinations(["server.learning_rate=0.5,1", "run.rounds=50"])
    [('server.learning_rate=0.5', 'run.rounds=50'), ('server.learning_rate=1', 'run.rounds=50')]
    """
    each = []
    for one in tries:
        name, equals, values = one.partition("=")
        if not equals or not all(values.split(",")):
            raise TuningError(f"--try takes section.key=value,value,…; {one!r} is not that")
        each.append([f"{name.strip()}={value.strip()}" for value in values.split(",")])
    return list(itertools.product(*each))


def tuned(recipe: Path, corpus: PublicCorpus, out: Path, tries: list[str], progress: Callable[[int, int, int, int], None]) -> list[Trial]:
    """Train every combination on made-up users, as many as the recipe has; the best come first. `progress` gets the trials done and all
    of them, and the rounds done and all of them."""
    wanted = combinations(tries)
    recipes = [load_recipe(recipe, list(settings)) for settings in wanted]  # all are checked before the first is trained
    if not (out / "people" / "manifest.json").exists():
        deal(corpus, out / "people", recipes[0])
    trials = []
    for number, (settings, one) in enumerate(zip(wanted, recipes, strict=True)):
        folder = out / ",".join(settings).replace("/", "_")
        public = one.with_settings("data", population=str(out / "people")).with_settings("run", evaluate_every=one.run.rounds)

        def show(done: int, rounds: int, _: object, number: int = number) -> None:
            progress(number, len(wanted), done, rounds)

        if not folder.exists():
            train_run(public, folder, show)
        elif not (folder / "guarantee.json").exists():
            resume_run(folder, show)
        last = from_json((folder / "metrics.jsonl").read_text().splitlines()[-1])
        trials.append(Trial(settings, last["accuracy_top1"], last["accuracy_top3"], last["epsilon"]))
    return sorted(trials, key=lambda trial: -trial.top1)


def deal(corpus: PublicCorpus, folder: Path, recipe: Recipe) -> Population:
    """As many users as the recipe has, each with the next documents, until they have as much as a user is cut to or the text is dealt."""
    users, most = recipe.participation.users, recipe.data.tokens_per_user
    share = min(most, int((1 - HELD_OUT) * corpus.documents.tokens / users))
    if share < LEAST_TOKENS:
        raise TuningError(
            f"{corpus.source} has {corpus.documents.tokens:,} tokens: of {users:,} users each would get {share}, and {LEAST_TOKENS} are "
            "the least. Take more public text, or --set participation.users lower (and the cohort with it)"
        )
    held_out = max(int(users * HELD_OUT), 50)
    words = np.concatenate(list(corpus.documents))[: (users + held_out) * share]
    pieces = [words[start : start + share].tolist() for start in range(0, len(words), share)]
    train, measured = pieces[:users], [piece for piece in pieces[users:] if len(piece) == share]
    about = {"source": corpus.source, "simulated": f"pieces of public text of {share} tokens play the users"}
    dealt = {f"user {number}": piece for number, piece in enumerate(train)}
    held_back = {f"held out {number}": piece for number, piece in enumerate(measured)}
    return write_population(folder, dealt, held_back, corpus.vocabulary, about)
