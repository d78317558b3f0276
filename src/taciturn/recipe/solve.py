"""Work out what a recipe leaves open, before anything is spent.

That is the coefficients of correlated noise, the noise multiplier of a budget, and a digest of the
general text. Each is written into the run's own recipe, so that a run is resumed as it began.
"""

from collections.abc import Sequence

import jax
from dp_accounting import DpEvent

from taciturn.core import Mechanism
from taciturn.privacy.accounting.accountant import noise_for_budget
from taciturn.privacy.accounting.events import compose, repeat
from taciturn.privacy.bounding.clipping import MOST_REPORTS
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.registry import NOISES, Search
from taciturn.privacy.noise.sensitivity import segments
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.trees import size

# A noise multiplier narrower than any in use: wider noise is nearer to the ideal, so the distance
# of this one is an upper bound.
NARROW = 0.1


def with_noise(
    recipe: Recipe,
    vocabulary: int,
    lineage: Sequence[DpEvent] = (),
    lineage_distance: float = 0.0,
    known: float | None = None,
) -> Recipe:
    """Return the recipe with its noise worked out, where it names none.

    That is the strategy, and the multiplier from the budget.

    Args:
        recipe: may leave both open.
        vocabulary: the number of the model's words.
        lineage: what the model's start has already cost.
        lineage_distance: how far the noise of that was from the ideal.
        known: the multiplier, where it was worked out before. It is checked, and worked out anew if
            the budget does not allow it.
    """
    recipe = with_strategy(recipe)
    if not recipe.is_private or recipe.privacy.noise_multiplier is not None:
        return recipe

    def cost(noise_multiplier: float) -> DpEvent:
        event = _mechanism(recipe, noise_multiplier).event(build.participation(recipe))
        return compose(lineage, repeat(event, recipe.run.rounds))

    accountant = recipe.privacy.accountant
    budget = build.budget(recipe)
    distance = lineage_distance + _distance_of_noise(recipe, vocabulary)
    if known is not None and budget.allows(cost(known), accountant, distance=distance):
        noise_multiplier = known
    else:
        noise_multiplier = noise_for_budget(cost, budget, accountant, distance=distance)
    rounded_up = round(noise_multiplier + 5e-7, 6)
    return recipe.with_settings("privacy", noise_multiplier=rounded_up)


def _distance_of_noise(recipe: Recipe, vocabulary: int) -> float:
    """Return a bound on how far the noise of the run is from the ideal, whatever it will be."""
    narrow = _mechanism(recipe, NARROW, most_reports=recipe.largest_total)
    model = build.language_model(recipe.model, vocabulary)
    params = jax.eval_shape(model.init, jax.random.key(0))
    return narrow.distance(size(params), recipe.most_releases)


def _mechanism(
    recipe: Recipe, noise_multiplier: float, most_reports: int = MOST_REPORTS
) -> Mechanism:
    """Build a mechanism that costs as much as the recipe's; its estimator makes no difference."""
    return mechanism(
        build.bound(recipe),
        fixed_denominator(1.0),
        build.noise(recipe, noise_multiplier),
        most_reports,
    )


def with_strategy(recipe: Recipe) -> Recipe:
    """Return the recipe with the coefficients of its noise worked out, where it names none."""
    optimize = NOISES[recipe.noise].optimize
    if optimize is None or recipe.privacy.strategy is not None:
        return recipe
    lengths = segments(recipe.run.rounds, recipe.restart_rounds)
    strategy: dict[str, list[float]] = {}
    for length in lengths:
        search = _search(recipe, length)
        coefficients = optimize(search)
        for name, values in coefficients.items():
            strategy.setdefault(name, []).extend(values)
    return recipe.with_settings("privacy", strategy=strategy)


def _search(recipe: Recipe, rows: int) -> Search:
    """Build the search for the coefficients of a segment."""
    return Search(
        rows=rows,
        min_separation=recipe.participation.min_separation or 0,
        max_participations=recipe.max_participations,
        bands=recipe.privacy.bands,
        buffers=recipe.privacy.buffers,
    )


def with_general_text(recipe: Recipe) -> Recipe:
    """Return the recipe with a digest of its general text, or refuse another text than before."""
    corpus = build.general_text(recipe)
    if corpus is None:
        return recipe
    if recipe.data.general_digest not in (None, corpus.digest):
        raise ValueError(
            f"[data] general: {recipe.data.general} is another text than this run began with"
        )
    return recipe.with_settings("data", general_digest=corpus.digest)
