"""Try settings on public text that is dealt to simulated users: a sweep that costs no privacy.

OUT/made-up-users-… is the population of these users; each trial is a run of its own beside it.
Names depend on everything that shapes them, so an interrupted sweep can be continued, and another
one starts afresh.
"""

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taciturn.data.population import LEAST_HELD_OUT, Population, write_population
from taciturn.data.public import PublicCorpus
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError, load_recipe
from taciturn.release.model_file import load_model, params_digest
from taciturn.runs.loop import Progress, resume_run, train_run
from taciturn.runs.metrics import read_rows

# Held-out users as a share of the others, as in populations of people.
HELD_OUT = 1 / 16
# Of a simulated user.
LEAST_TOKENS = 50

# Called with trials done, all trials, rounds done and all rounds.
SweepProgress = Callable[[int, int, int, int], None]


class Trial(NamedTuple):
    """What a model is worth that was trained with some settings."""

    settings: tuple[str, ...]
    top1: float
    top3: float
    epsilon: float
    delta: float


class Size(NamedTuple):
    """How public text is dealt."""

    users: int
    # Tokens of each.
    share: int


def combine_settings(tries: list[str]) -> list[tuple[str, ...]]:
    """Combine every setting with every other.

    >>> combine_settings(["server.learning_rate=0.5,1", "run.rounds=50"])
    [('server.learning_rate=0.5', 'run.rounds=50'), ('server.learning_rate=1', 'run.rounds=50')]
    """
    alternatives = [_list_alternatives(words) for words in tries]
    return list(itertools.product(*alternatives))


def _list_alternatives(words: str) -> list[str]:
    _, equals, listed = words.partition("=")
    name = _name_of(words)
    values = listed.split(",")
    if not equals or not all(values):
        raise RecipeError(f"`tries` takes section.key=value,value,…; {words!r} is not that")
    _refuse_population(name, "`tries`")
    return [f"{name}={value.strip()}" for value in values]


def _refuse_population(name: str, argument: str) -> None:
    if name == "data.population":
        raise RecipeError(
            f"{argument} data.population: public text takes the population's place here; leave it"
            " out"
        )


def _check_settings(settings: list[str], tries: list[str]) -> None:
    """Refuse settings of which trials have others."""
    tried = {_name_of(words) for words in tries}
    for words in settings:
        name = _name_of(words)
        _refuse_population(name, "`settings`")
        if name in tried:
            raise RecipeError(
                f"{name} stands in `settings` and in `tries`: leave it out of one of them"
            )


def _name_of(words: str) -> str:
    return words.partition("=")[0].strip()


def tune_recipe(
    recipe: Path,
    corpus: PublicCorpus,
    out: Path,
    tries: list[str],
    settings: list[str],
    progress: SweepProgress,
) -> list[Trial]:
    """Train every combination on simulated users; return the trials, best first.

    Args:
        recipe: in TOML.
        corpus: of public text, which is dealt to the users.
        out: the folder of the users and the runs.
        tries: settings with the values to try, as section.key=value,value.
        settings: that win over the recipe in all trials, as section.key=value.
        progress: called with what is done.
    """
    combinations = combine_settings(tries)
    _check_settings(settings, tries)
    # All are checked before the first is trained.
    recipes = [load_recipe(recipe, [*settings, *tried]) for tried in combinations]
    sweep = _Sweep(
        corpus=corpus,
        text=corpus.digest,
        out=out,
    )
    trials = []
    for tried, public_recipe in zip(combinations, recipes, strict=True):
        show = partial(_show_trial, progress, len(trials), len(combinations))
        trials.append(sweep.try_settings(tried, public_recipe, show))
    trials.sort(key=lambda trial: -trial.top1)
    return trials


def _show_trial(
    progress: SweepProgress, number: int, trials: int, done: int, rounds: int, _: object
) -> None:
    progress(number, trials, done, rounds)


@dataclass(frozen=True, kw_only=True)
class _Sweep:
    """What all trials share."""

    corpus: PublicCorpus
    # Digest of the corpus.
    text: str
    out: Path

    def try_settings(self, settings: tuple[str, ...], recipe: Recipe, show: Progress) -> Trial:
        """Train the recipe with these settings, unless that was done before.

        Args:
            settings: as they were named; the recipe has them already.
            recipe: to train, on simulated users with public text.
            show: watches the training.
        """
        size = _size_for(self.corpus, recipe)
        people = self._deal_text(size)
        public = recipe.with_settings("data", population=str(people))
        public = public.with_settings("run", evaluate_every=recipe.run.rounds)
        name = _short_digest(self.text, *size, public.fingerprint, _start_digest(recipe))
        folder = self.out / f"trial-{name}"
        # The statement is the last file that a run writes.
        is_finished = (folder / "guarantee.json").exists()
        if not folder.exists():
            train_run(public, folder, show)
        elif not is_finished:
            resume_run(folder, show)
        last = read_rows(folder)[-1]
        return Trial(
            settings=settings,
            top1=last["accuracy_top1"],
            top3=last["accuracy_top3"],
            epsilon=last["epsilon"],
            delta=public.delta,
        )

    def _deal_text(self, size: Size) -> Path:
        """Make the population of simulated users, unless that was done before."""
        people = self.out / f"made-up-users-{_short_digest(self.text, *size)}"
        if not (people / "manifest.json").exists():
            deal_text(self.corpus, people, size)
        return people


def _start_digest(recipe: Recipe) -> str | None:
    """Identify the parameters that a recipe starts from, if it names any."""
    if not recipe.model.warm_start:
        return None
    params, _ = load_model(Path(recipe.model.warm_start))
    return params_digest(params)


def _short_digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _size_for(corpus: PublicCorpus, recipe: Recipe) -> Size:
    """Return how many users a recipe needs, and how many tokens each of them gets.

    These are as many as a user may have, or an equal share of the text.
    """
    users = recipe.participation.users
    tokens = corpus.documents.tokens
    people = users + _count_held_out(users)
    equal_share = int(tokens / people)
    share = min(recipe.data.tokens_per_user, equal_share)
    if share < LEAST_TOKENS:
        raise RecipeError(
            f"{corpus.source} has {tokens:,} tokens: of {users:,} users each would get {share}, and"
            f" {LEAST_TOKENS} are the least. Take more public text, or lower participation.users,"
            " and the cohort with it"
        )
    return Size(users, share)


def _count_held_out(users: int) -> int:
    return max(int(users * HELD_OUT), LEAST_HELD_OUT)


def deal_text(corpus: PublicCorpus, folder: Path, size: Size) -> Population:
    """Give each user the next tokens, as many as their share; those after them are held out."""
    share = size.share
    people = size.users + _count_held_out(size.users)
    words = np.concatenate(list(corpus.documents))[: people * share]
    pieces = [words[start : start + share].tolist() for start in range(0, len(words), share)]
    about = {
        "source": corpus.source,
        "simulated": f"pieces of public text of {share} tokens play the users",
    }
    train = _number_pieces("user", pieces[: size.users])
    held_out = _number_pieces("held out", pieces[size.users :])
    return write_population(
        folder=folder,
        train=train,
        held_out=held_out,
        vocabulary=corpus.vocabulary,
        about=about,
    )


def _number_pieces(name: str, pieces: list[list[int]]) -> dict[str, list[int]]:
    return {f"{name} {number}": piece for number, piece in enumerate(pieces)}
