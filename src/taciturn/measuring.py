"""What finished runs are worth: a run's model on held-out users, alone or beside another's."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import build
from taciturn.core import Params
from taciturn.data.population import HeldOutUsers, Population, check_strangers
from taciturn.evaluation.accuracy import Scores, evaluate
from taciturn.evaluation.headwords import head_words
from taciturn.evaluation.tails import Tail, log_ratios, tail
from taciturn.loading import folder_known_to, load_word_model
from taciturn.privacy.ledger import Guarantee
from taciturn.release.checkpoint import ModelCard, load_model
from taciturn.release.export import check_not_personal, verified_guarantee
from taciturn.run_folder import RunError, recipe_of
from taciturn.sections import Model


class Measured(NamedTuple):
    """A run's model on held-out users, with what the ledger says of it."""

    scores: Scores
    guarantee: Guarantee
    head_words: np.ndarray | None
    rebuilt: bool  # whether the population's text was replaced since the run


def evaluate_run(folder: Path, on: Path | None = None, with_head_words: bool = False) -> Measured:
    """Measure on the held-out users of the run's population, or of another one (`on`)."""
    params, card = _model_to_measure(folder)
    recipe = recipe_of(folder)
    own = build.population(recipe)
    ledger = build.open_ledger(own)
    guarantee = verified_guarantee(params, card, ledger)
    rebuilt = ledger.run_rows(guarantee.run)[0]["population"] != own.id
    population = Population(on) if on else own
    if population.vocabulary.words != card.vocabulary:
        raise RunError(
            f"{population.folder} was built with other words than {folder}; build it with --vocabulary {folder}"
        )
    if not population.folder.samefile(own.folder):
        check_strangers(population.folder, folder_known_to(load_word_model(folder)))
    people = HeldOutUsers(population.folder)
    people.check_enough()
    held_out = people.texts
    model = build.language_model(recipe.model, len(card.vocabulary))
    cut = build.evaluation_cut(recipe, population.vocabulary)
    heads = head_words(model, params, held_out, population.vocabulary, cut) if with_head_words else None
    return Measured(evaluate(model, params, held_out, cut), guarantee, heads, rebuilt and on is None)


def _model_to_measure(folder: Path) -> tuple[Params, ModelCard]:
    """A run's; figures of a personal model are its owner's, and are shown when it is made."""
    params, card = load_model(folder)
    check_not_personal(card, folder)
    return params, card


def compare_runs(first: Path, second: Path, on: Path | None = None) -> tuple[Measured, Measured]:
    """Both on the same held-out users: of the population `on`, or else of the first run's."""
    if _model_to_measure(first)[1].vocabulary != _model_to_measure(second)[1].vocabulary:
        raise RunError(f"{first} and {second} know different words, so their figures cannot be compared")
    on = on or Path(recipe_of(first).data.population)
    one, other = evaluate_run(first, on), evaluate_run(second, on)
    if not np.array_equal(one.scores.tokens, other.scores.tokens):
        raise RunError(
            f"{first} and {second} read text in other pieces (their [data] layout differs), so not on the same words: they cannot be "
            "compared"
        )
    return one, other


def compare_tails(model: Path, others: Sequence[Path], samples: int, seed: int) -> list[tuple[np.ndarray, Tail]]:
    """For each of the others: log c(s) of texts made up by the model, and their tail."""
    params, card = _model_to_measure(model)
    network = build.language_model(Model(**card.architecture), len(card.vocabulary))
    found = []
    for number, path in enumerate(others):
        other, its_card = _model_to_measure(path)
        if its_card.vocabulary != card.vocabulary or jax.tree.map(np.shape, other) != jax.tree.map(np.shape, params):
            raise RunError(f"{path} is another kind of model than {model}, or knows other words: no ratio can be taken")
        ratios = log_ratios(network, params, other, samples, jax.random.key(seed + number))
        found.append((ratios, tail(ratios)))
    return found
