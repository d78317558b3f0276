"""From a recipe to objects: the only place where a name in a file becomes a constructor. What a
recipe leaves open, the noise of a budget and the coefficients of correlated noise, is worked out
here before anything is spent.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import DpEvent
from jax.typing import DTypeLike

from taciturn.algorithms.dp_fedavg import dp_fedavg, dp_ftrl, fedavg
from taciturn.algorithms.fine_tuning import Text, rehearsing, transfer_learning, unforgetting_update
from taciturn.algorithms.local_training import (
    LocalTraining,
    Project,
    UserUpdate,
    fedavg_update,
    fedsgd_update,
)
from taciturn.algorithms.uploads import compress_updates, upload_bytes
from taciturn.core import PADDING, Algorithm, LanguageModel, Params, Participation
from taciturn.data.layout import Cut, Layout, Sentences, Unrolls
from taciturn.data.population import Population
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import Vocabulary
from taciturn.evaluation.accuracy import WINDOW
from taciturn.models.losses import cross_entropy
from taciturn.models.registry import ModelKind, model_kind
from taciturn.models.sampling import beginnings
from taciturn.models.sgd import sgd_step
from taciturn.names import ServerOptimizer
from taciturn.privacy.accounting.accountant import Budget, compose, noise_for_budget, repeat
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip
from taciturn.privacy.bounding.clipping import (
    MOST_REPORTS,
    Bound,
    flat_clip,
    no_clip,
    per_layer_clip,
)
from taciturn.privacy.bounding.estimators import clipped_denominator, fixed_denominator
from taciturn.privacy.bounding.secagg_encoding import Encoding, encoding, modular
from taciturn.privacy.noise.correlated import Bands, Buffers, banded_toeplitz, blt, tree
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.sensitivity import most_participations, segments
from taciturn.privacy.noise.strategies import optimal_bands, optimal_blt
from taciturn.privacy.noise.white import Noise, gaussian, no_noise
from taciturn.privacy.participation import (
    CyclicPoisson,
    FixedSize,
    MinSeparation,
    PoissonSampling,
    spare_rounds,
)
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import AUDITED_AT_ONCE, DEFAULT_CLIP_NORM, ModelSection
from taciturn.trees import size


def language_model(
    model: ModelSection, vocabulary: int, product: DTypeLike = jnp.float32
) -> LanguageModel:
    """Build the model; `product` is the type of its matrix products."""
    return _shared_model(
        model_kind(model.kind), model.model_dump_json(exclude={"warm_start"}), vocabulary, product
    )


@lru_cache(maxsize=8)
def _shared_model(
    kind: ModelKind, section: str, vocabulary: int, product: DTypeLike
) -> LanguageModel:
    """Build one object for one architecture, so that programs for it are compiled once per
    process.
    """
    model = ModelSection.model_validate_json(section)
    return kind.build(
        vocabulary, model.model_dump() | {"dropout_rate": model.dropout, "product": product}
    )


def server_optimizer(
    name: ServerOptimizer, learning_rate: float, momentum: float
) -> optax.GradientTransformation:
    """Return the server's step along the estimate, taken as a descent direction."""
    match name:
        case "sgd":
            return optax.sgd(learning_rate)
        case "momentum" | "nesterov":
            return optax.sgd(learning_rate, momentum=momentum, nesterov=name == "nesterov")
        case "adam":
            # As in Reddi et al. 2021: estimates are small and noisy, so ε is far larger than for
            # gradients.
            return optax.adam(learning_rate, b1=momentum, b2=0.99, eps=1e-3)


def participation(recipe: Recipe) -> Participation:
    section = recipe.participation
    match section.kind:
        case "poisson":
            return PoissonSampling(section.probability)
        case "fixed":
            return FixedSize(int(section.cohort), section.users)
        case "cyclic-poisson":
            cycle = recipe.privacy.bands
            return CyclicPoisson(section.cohort * cycle / section.users, cycle, recipe.run.rounds)
        case "min-separation":
            separation, often = section.min_separation or 0, recipe.max_participations
            return MinSeparation(
                int(section.cohort), separation, often, recipe.run.rounds, recipe.over_selection
            )


def noise(recipe: Recipe, multiplier: float) -> Noise:
    if multiplier == 0:
        return no_noise()
    lengths = segments(rows(recipe), recipe.restart_rounds)
    coefficients = {
        name: np.reshape(values, (len(lengths), -1)).tolist()
        for name, values in (recipe.privacy.strategy or {}).items()
    }
    match recipe.noise:
        case "independent":
            return gaussian(multiplier)
        case "tree" | "honaker" as kind:
            return tree(multiplier, *lengths, honaker=kind == "honaker")
        case "banded":
            return banded_toeplitz(multiplier, *map(Bands, lengths, coefficients["bands"]))
        case "blt":
            return blt(
                multiplier, *map(Buffers, lengths, coefficients["decay"], coefficients["scale"])
            )


def budget(recipe: Recipe) -> Budget:
    return Budget(recipe.delta, recipe.privacy.epsilon, recipe.privacy.rho)


def rows(recipe: Recipe) -> int:
    """Return how many releases a run may make, spare ones included."""
    return recipe.run.rounds + spare_rounds(recipe.run.rounds)


def algorithm(recipe: Recipe, vocabulary: int) -> Algorithm:
    """Build what a recipe runs; recipes that differ only in people, seed, saving or measuring share
    it, compiled once.
    """
    # a text that may change on disk
    if recipe.uses_general_text:
        return _algorithm(recipe, vocabulary)
    shared = recipe.with_settings("data", population="").with_settings(
        "run", seed=None, evaluate_every=1, save_every=1
    )
    return _shared_algorithm(model_kind(recipe.model.kind), shared.model_dump_json(), vocabulary)


@lru_cache(maxsize=8)
def _shared_algorithm(kind: ModelKind, recipe: str, vocabulary: int) -> Algorithm:
    return _algorithm(Recipe.model_validate_json(recipe), vocabulary)


def _algorithm(recipe: Recipe, vocabulary: int) -> Algorithm:
    product = jnp.bfloat16 if recipe.local.precision == "mixed" else jnp.float32
    model = language_model(recipe.model, vocabulary, product)
    given, keyed = recipe.local, recipe.model.dropout > 0 or recipe.local.forgetting == "rehearsal"
    local = LocalTraining(
        given.learning_rate, given.epochs, given.update_penalty, keyed, given.max_gradient_norm
    )
    server = server_optimizer(
        recipe.server.optimizer, recipe.server.learning_rate, recipe.server.momentum
    )
    bound, chosen = bound_of(recipe), participation(recipe)
    # the same clip, with reports in residues
    if recipe.privacy.encoding == "modular":
        params = jax.eval_shape(model.init, jax.random.key(0))
        bound = modular(bound, params, report_encoding(recipe, params))
    update = _user_update(recipe, model, local, bound.project if recipe.privacy.greedy else None)
    if recipe.algorithm == "fedavg":
        return fedavg(update, bound, chosen, server)
    if recipe.algorithm == "transfer-learning":
        text, taught = _predicted_text(recipe, model), recipe.transfer
        return transfer_learning(
            model, update, text, chosen, taught.learning_rate, taught.epochs, taught.batch_size
        )
    if recipe.privacy.noise_multiplier is None:
        raise ValueError(
            "the noise multiplier is worked out by with_noise before the algorithm is built"
        )
    if recipe.privacy.least_weight is None:
        estimator = fixed_denominator(recipe.participation.expected_weight)
    else:
        estimator = clipped_denominator(
            recipe.participation.probability * recipe.privacy.least_weight
        )
    n_max, drawn = most_reports(recipe), noise(recipe, recipe.privacy.noise_multiplier)
    if recipe.algorithm == "dp-ftrl":
        clip = _adaptive(recipe) if recipe.privacy.clipping == "adaptive" else bound
        return dp_ftrl(update, clip, recipe.participation.cohort, drawn, chosen, server, n_max)
    return dp_fedavg(update, bound, estimator, drawn, chosen, server, n_max)


def most_reports(recipe: Recipe) -> int:
    """Return n_max: the most reports in a total."""
    chosen, cohort = participation(recipe), recipe.participation.cohort
    # never exceeded by chance
    most = math.ceil(cohort + 10 * math.sqrt(cohort) + 100)
    asked = chosen.asked if isinstance(chosen, MinSeparation) else 0
    beside = recipe.canaries.synthetic_users + min(recipe.audit.users, AUDITED_AT_ONCE)
    n_max = min(MOST_REPORTS, max(most, asked)) + beside
    if n_max > MOST_REPORTS:
        many = (
            f"{beside} synthetic users beside a cohort of {cohort:g} are more than the"
            f" {MOST_REPORTS} reports that a total holds"
        )
        raise ValueError(f"{many}: lower canaries.users or canaries.per_cell, or audit with fewer")
    return n_max


def _user_update(
    recipe: Recipe, model: LanguageModel, local: LocalTraining, project: Project | None
) -> UserUpdate:
    """Build what a device computes; `model` has the recipe's type of products."""
    step = sgd_step(
        model,
        jnp.bfloat16 if recipe.local.precision == "mixed" else jnp.float32,
        recipe.local.loss_power,
    )
    match recipe.local.forgetting:
        # the others are refused with it
        case "none" if recipe.algorithm == "dp-fedsgd":
            update = fedsgd_update(
                partial(cross_entropy, model, power=recipe.local.loss_power), local
            )
        case "none":
            update = fedavg_update(step, local, project)
        case "rehearsal":
            corpus = general_text(recipe)
            # the recipe is refused otherwise
            assert corpus is not None
            rows = general_rows(corpus, layout(recipe, corpus.vocabulary).cut)
            update = fedavg_update(rehearsing(step, rows, recipe.local.user_share), local, project)
        case "distillation":
            update = unforgetting_update(model, local, recipe.local.user_share, project)
    return compress_updates(update, recipe.upload.share, recipe.upload.bits)


def upload_size(recipe: Recipe, params: Params) -> int:
    """Return the bytes that one device sends in a round."""
    if recipe.privacy.encoding == "modular":
        return report_encoding(recipe, params).upload_bytes
    if recipe.algorithm != "transfer-learning":
        return upload_bytes(params, recipe.upload.share, recipe.upload.bits)
    words, settings = len(params["word_bias"]), recipe.transfer
    return upload_bytes(jax.ShapeDtypeStruct((settings.rows, settings.length, words), jnp.float32))


def general_text(recipe: Recipe, to_test: bool = False) -> PublicCorpus | None:
    """Load what devices rehearse or predict, or what is measured beside users, if there is such a
    text.
    """
    folder = recipe.data.general_test if to_test else recipe.data.general
    return PublicCorpus.load(Path(folder)) if folder else None


def with_general_text(recipe: Recipe) -> Recipe:
    """Return the recipe with a digest of its general text, so that a run is resumed with the
    same.
    """
    corpus = general_text(recipe)
    if corpus is None:
        return recipe
    if recipe.data.general_digest not in (None, corpus.digest):
        raise ValueError(
            f"[data] general: {recipe.data.general} is another text than this run began with"
        )
    return recipe.with_settings("data", general_digest=corpus.digest)


def _predicted_text(recipe: Recipe, model: LanguageModel) -> Text:
    # what predictions are about is not secret
    settings, key = recipe.transfer, jax.random.key(0)
    corpus = general_text(recipe) if settings.text == "general" else None
    if corpus is None:
        return lambda params: beginnings(model, params, settings.rows, settings.length, key)
    rows = general_rows(corpus, Unrolls(settings.length))
    if len(rows) < settings.rows:
        raise ValueError(
            f"[transfer] rows = {settings.rows}: the general text has only {len(rows)} of that"
            " length"
        )
    taken = rows[jax.random.choice(key, len(rows), (settings.rows,), replace=False)]
    return lambda params: taken


def general_rows(corpus: PublicCorpus, cut: Cut) -> jax.Array:
    """Return all rows of a public corpus, to draw from."""
    rows = np.concatenate([cut.pieces(document) for document in corpus.documents])
    return jnp.asarray(rows[np.any(rows[:, 1:] != PADDING, axis=1)])


def layout(recipe: Recipe, vocabulary: Vocabulary) -> Layout:
    data, batch_size = recipe.data, recipe.local.batch_size
    if data.layout == "sentences":
        sentences = Sentences(data.sentence_length, vocabulary.sentence_ends)
        return Layout.for_pieces(sentences, batch_size, data.sentences_per_user)
    unrolls = Unrolls(recipe.local.unroll)
    return Layout.for_pieces(unrolls, batch_size, data.tokens_per_user / unrolls.length)


def evaluation_cut(recipe: Recipe, vocabulary: Vocabulary) -> Cut:
    """Cut text as the model was trained to read it: sentence by sentence, or in long windows."""
    return layout(recipe, vocabulary).cut if recipe.data.layout == "sentences" else WINDOW


def population(recipe: Recipe) -> Population:
    return Population(Path(recipe.data.population))


def bound_of(recipe: Recipe) -> Bound:
    privacy = recipe.privacy
    if privacy.layer_clip_norms:
        return per_layer_clip(layers=privacy.layer_clip_norms)
    if privacy.clip_norm is None and not recipe.is_private:
        return no_clip()
    clip_norm = DEFAULT_CLIP_NORM if privacy.clip_norm is None else privacy.clip_norm
    return flat_clip(clip_norm) if privacy.clipping == "flat" else per_layer_clip(clip_norm)


def report_encoding(recipe: Recipe, params: Params) -> Encoding:
    return encoding(size(params), most_reports(recipe), recipe.privacy.encoding_bits)


def _adaptive(recipe: Recipe) -> AdaptiveClip:
    privacy, start = recipe.privacy, recipe.privacy.clip_norm
    stddev = privacy.clipped_count_stddev or recipe.participation.cohort / 20
    norm = float(start) if isinstance(start, float | int) else DEFAULT_CLIP_NORM
    return AdaptiveClip(norm, stddev, privacy.target_quantile, privacy.clip_learning_rate)


def with_strategy(recipe: Recipe) -> Recipe:
    """Return the recipe with the coefficients of its noise worked out, where it names none."""
    kind, rounds = recipe.noise, recipe.run.rounds
    if kind not in ("banded", "blt") or recipe.privacy.strategy is not None:
        return recipe
    found: dict[str, list[float]] = {}
    for length in segments(rounds, recipe.restart_rounds):
        for name, values in _optimal_coefficients(recipe, length).items():
            found.setdefault(name, []).extend(values)
    return recipe.with_settings("privacy", strategy=found)


def _optimal_coefficients(recipe: Recipe, length: int) -> dict[str, list[float]]:
    """Work out the coefficients for one segment of the noise."""
    privacy = recipe.privacy
    if recipe.noise == "banded":
        bands = optimal_bands(length, min(privacy.bands, length))["bands"]
        return {"bands": bands + [0.0] * (privacy.bands - len(bands))}
    separation = recipe.participation.min_separation or 0
    participations = min(recipe.max_participations, most_participations(length, separation))
    return optimal_blt(length, separation, participations, privacy.buffers)


def with_noise(
    recipe: Recipe, vocabulary: int, lineage: Sequence[DpEvent] = (), lineage_distance: float = 0.0
) -> Recipe:
    """Return the recipe with its noise worked out: the strategy, and the multiplier from the
    budget, where it names none. What its start has already cost, and how far that was from the
    ideal, is included.
    """
    recipe = with_strategy(recipe)
    if not recipe.is_private or recipe.privacy.noise_multiplier is not None:
        return recipe

    def cost(noise_multiplier: float) -> DpEvent:
        private = mechanism(
            bound_of(recipe), fixed_denominator(1.0), noise(recipe, noise_multiplier)
        )
        return compose(lineage, repeat(private.event(participation(recipe)), recipe.run.rounds))

    # Wider noise is nearer to the ideal, so the distance of narrow noise is an upper bound.
    little = mechanism(
        bound_of(recipe), fixed_denominator(1.0), noise(recipe, 0.1), most_reports(recipe)
    )
    shapes = jax.eval_shape(language_model(recipe.model, vocabulary).init, jax.random.key(0))
    distance = lineage_distance + little.distance(size(shapes), rows(recipe))
    noise_multiplier = noise_for_budget(cost, budget(recipe), recipe.privacy.accountant, distance)
    return recipe.with_settings("privacy", noise_multiplier=round(noise_multiplier + 5e-7, 6))
