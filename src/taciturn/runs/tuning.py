"""Try settings on public text that is dealt to simulated users: a sweep that costs no privacy.

OUT/made-up-users-… is the population of these users; each trial is a run of its own beside it.
Names depend on everything that shapes them, so an interrupted sweep can be continued, and another
one starts afresh.
"""

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taciturn.data.population import LEAST_HELD_OUT, Population, write_population
from taciturn.data.public import PublicCorpus
from taciturn.files import from_json
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError, load_recipe
from taciturn.release.model_file import load_model, params_digest
from taciturn.runs.loop import resume_run, train_run

# share of the text, as of people
HELD_OUT = 1 / 16
# of a simulated user
LEAST_TOKENS = 50


class Trial(NamedTuple):
    settings: tuple[str, ...]
    top1: float
    top3: float
    epsilon: float


def combinations(tries: list[str]) -> list[tuple[str, ...]]:
    """Combine every setting with every other.

    >>> combinations(["server.learning_rate=0.5,1", "run.rounds=50"])
    [('server.learning_rate=0.5', 'run.rounds=50'), ('server.learning_rate=1', 'run.rounds=50')]
    """
    each = []
    for one in tries:
        name, equals, values = one.partition("=")
        if not equals or not all(values.split(",")):
            raise RecipeError(f"--try takes section.key=value,value,…; {one!r} is not that")
        if name.strip() == "data.population":
            raise RecipeError(
                "--try data.population: public text takes the population's place here; leave it out"
            )
        each.append([f"{name.strip()}={value.strip()}" for value in values.split(",")])
    return list(itertools.product(*each))


def tune_recipe(
    recipe: Path,
    corpus: PublicCorpus,
    out: Path,
    tries: list[str],
    progress: Callable[[int, int, int, int], None],
) -> list[Trial]:
    """Train every combination on simulated users, best first. `progress` gets trials done, all
    trials, rounds done, all rounds.
    """
    wanted, text = combinations(tries), corpus.digest
    # all are checked before the first is trained
    recipes = [load_recipe(recipe, list(settings)) for settings in wanted]
    trials = []
    for number, (settings, one) in enumerate(zip(wanted, recipes, strict=True)):
        size = _size(corpus, one)
        people = out / f"made-up-users-{_name(text, *size)}"
        if not (people / "manifest.json").exists():
            deal(corpus, people, *size)
        public = one.with_settings("data", population=str(people)).with_settings(
            "run", evaluate_every=one.run.rounds
        )
        start = (
            params_digest(load_model(Path(one.model.warm_start))[0])
            if one.model.warm_start
            else None
        )
        folder = out / f"trial-{_name(text, *size, public.fingerprint, start)}"

        def show(done: int, rounds: int, _: object, number: int = number) -> None:
            progress(number, len(wanted), done, rounds)

        if not folder.exists():
            train_run(public, folder, show)
        elif not (folder / "guarantee.json").exists():
            resume_run(folder, show)
        last = from_json((folder / "metrics.jsonl").read_text().splitlines()[-1])
        trials.append(
            Trial(settings, last["accuracy_top1"], last["accuracy_top3"], last["epsilon"])
        )
    return sorted(trials, key=lambda trial: -trial.top1)


def _name(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _size(corpus: PublicCorpus, recipe: Recipe) -> tuple[int, int]:
    """Return the recipe's number of users, and the tokens of each: as many as a user may have, or
    an equal share of the text.
    """
    users, tokens = recipe.participation.users, corpus.documents.tokens
    share = min(recipe.data.tokens_per_user, int(tokens / (users + _held_out(users))))
    if share < LEAST_TOKENS:
        few = f"of {users:,} users each would get {share}, and {LEAST_TOKENS} are the least"
        more = "Take more public text, or lower participation.users, and the cohort with it"
        raise RecipeError(f"{corpus.source} has {tokens:,} tokens: {few}. {more}")
    return users, share


def _held_out(users: int) -> int:
    return max(int(users * HELD_OUT), LEAST_HELD_OUT)


def deal(corpus: PublicCorpus, folder: Path, users: int, share: int) -> Population:
    """Give each user the next `share` tokens; those after them are held out."""
    words = np.concatenate(list(corpus.documents))[: (users + _held_out(users)) * share]
    pieces = [words[start : start + share].tolist() for start in range(0, len(words), share)]
    about = {
        "source": corpus.source,
        "simulated": f"pieces of public text of {share} tokens play the users",
    }
    dealt = {f"user {number}": piece for number, piece in enumerate(pieces[:users])}
    held_back = {f"held out {number}": piece for number, piece in enumerate(pieces[users:])}
    return write_population(folder, dealt, held_back, corpus.vocabulary, about)
