"""What a recipe leaves open, worked out before anything is spent: the noise of a budget, the coefficients of correlated noise."""

from collections.abc import Sequence

import jax
from dp_accounting import DpEvent

from taciturn.privacy.accounting import composed, noise_for_budget, repeated
from taciturn.privacy.estimators import fixed_denominator
from taciturn.privacy.mechanism import mechanism
from taciturn.privacy.sensitivity import most_participations, segments
from taciturn.privacy.strategies import optimal_bands, optimal_blt
from taciturn.recipe.build import bound_of, budget, language_model, most_reports, noise, participation, rows
from taciturn.recipe.recipe import Recipe
from taciturn.trees import size

LARGEST_VOCABULARY = 30_000  # of the papers' models


def with_strategy(recipe: Recipe) -> Recipe:
    """The recipe with the coefficients of its noise worked out, where it names none."""
    kind, rounds = recipe.noise, recipe.run.rounds
    if kind not in ("banded", "blt") or recipe.privacy.strategy is not None:
        return recipe
    found: dict[str, list[float]] = {}
    for length in segments(rounds, recipe.restart_rounds):
        for name, values in _optimal_coefficients(recipe, length).items():
            found.setdefault(name, []).extend(values)
    return recipe.with_settings("privacy", strategy=found)


def _optimal_coefficients(recipe: Recipe, length: int) -> dict[str, list[float]]:
    """Coefficients for one segment of the noise."""
    privacy = recipe.privacy
    if recipe.noise == "banded":
        bands = optimal_bands(length, min(privacy.bands, length))["bands"]
        return {"bands": bands + [0.0] * (privacy.bands - len(bands))}
    separation = recipe.participation.min_separation or 0
    participations = min(recipe.max_participations, most_participations(length, separation))
    return optimal_blt(length, separation, participations, privacy.buffers)


def with_noise(
    recipe: Recipe, lineage: Sequence[DpEvent] = (), lineage_distance: float = 0.0, vocabulary: int = LARGEST_VOCABULARY
) -> Recipe:
    """The recipe with its noise worked out: the strategy, and the multiplier from the budget, where it names none. What a model of so many
    words started from has cost already, and how far that was from the ideal, is counted in."""
    recipe = with_strategy(recipe)
    if not recipe.is_private or recipe.privacy.noise_multiplier is not None:
        return recipe

    def cost(noise_multiplier: float) -> DpEvent:
        private = mechanism(bound_of(recipe), fixed_denominator(1.0), noise(recipe, noise_multiplier))
        return composed(lineage, repeated(private.event(participation(recipe)), recipe.run.rounds))

    # Wider noise is nearer to the ideal, so that of little is an upper bound.
    little = mechanism(bound_of(recipe), fixed_denominator(1.0), noise(recipe, 0.1), most_reports(recipe))
    shapes = jax.eval_shape(language_model(recipe.model, vocabulary).init, jax.random.key(0))
    distance = lineage_distance + little.distance(size(shapes), rows(recipe))
    noise_multiplier = noise_for_budget(cost, budget(recipe), recipe.privacy.accountant, distance)
    return recipe.with_settings("privacy", noise_multiplier=round(noise_multiplier + 5e-7, 6))
