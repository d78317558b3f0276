"""From a recipe to objects: the only place where a name in a file becomes a constructor.

What a recipe leaves open is worked out before, in recipe/solve.py.
"""

from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from taciturn.algorithms.dp_fedavg import dp_fedavg, dp_ftrl, fedavg
from taciturn.algorithms.fine_tuning import (
    Text,
    transfer_learning,
    unforgetting_update,
    with_rehearsal,
)
from taciturn.algorithms.local_training import (
    LocalTraining,
    Project,
    UserUpdate,
    fedavg_update,
    fedsgd_update,
)
from taciturn.algorithms.server_optimizers import server_optimizer
from taciturn.algorithms.uploads import compress_updates, upload_bytes
from taciturn.core import PADDING, Algorithm, Key, LanguageModel, Params, Participation
from taciturn.data.layout import Cut, Layout, Sentences, Unrolls
from taciturn.data.population import Population
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import Vocabulary
from taciturn.evaluation.accuracy import WINDOW
from taciturn.models.losses import cross_entropy
from taciturn.models.registry import ModelKind, model_kind
from taciturn.models.sampling import beginnings
from taciturn.models.sgd import sgd_step
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip
from taciturn.privacy.bounding.clipping import Bound, flat_clip, no_clip, per_layer_clip
from taciturn.privacy.bounding.estimators import Estimator, clipped_denominator, fixed_denominator
from taciturn.privacy.bounding.secagg_encoding import Encoding, encoding, modular
from taciturn.privacy.noise.registry import NOISES, split_by_segment
from taciturn.privacy.noise.sensitivity import segments
from taciturn.privacy.noise.white import Noise, no_noise
from taciturn.privacy.schemes import SCHEMES, SchemeSettings
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import DEFAULT_CLIP_NORM, ModelSection, TransferSection
from taciturn.trees import size

# The model.


def language_model(
    model: ModelSection, vocabulary: int, product: DTypeLike = jnp.float32
) -> LanguageModel:
    """Build the model; `product` is the type of its matrix products."""
    # Where it started from does not belong to the architecture.
    section = model.model_dump_json(exclude={"warm_start"})
    return _shared_model(model_kind(model.kind), section, vocabulary, product)


@lru_cache(maxsize=8)
def _shared_model(
    kind: ModelKind, section: str, vocabulary: int, product: DTypeLike
) -> LanguageModel:
    """Build one object for one architecture, so that a process compiles programs for it once."""
    model = ModelSection.model_validate_json(section)
    settings = model.model_dump()
    settings["dropout_rate"] = model.dropout
    settings["product"] = product
    return kind.build(vocabulary, settings)


def _product_type(recipe: Recipe) -> DTypeLike:
    """Return the type of a device's matrix products."""
    return jnp.bfloat16 if recipe.local.precision == "mixed" else jnp.float32


# The algorithm.


def algorithm(recipe: Recipe, vocabulary: int) -> Algorithm:
    """Build what a recipe runs.

    Recipes that differ only in people, seed, saving or measuring share it, compiled once.
    """
    # General text may change on disk, so an algorithm that holds it is never shared.
    if recipe.uses_general_text:
        return _algorithm(recipe, vocabulary)
    anyones = recipe.with_settings("data", population="")
    shared = anyones.with_settings("run", seed=None, evaluate_every=1, save_every=1)
    return _shared_algorithm(model_kind(recipe.model.kind), shared.model_dump_json(), vocabulary)


@lru_cache(maxsize=8)
def _shared_algorithm(kind: ModelKind, recipe: str, vocabulary: int) -> Algorithm:
    """Build one algorithm for one recipe; `kind` tells a model apart that has another's name."""
    return _algorithm(Recipe.model_validate_json(recipe), vocabulary)


def _algorithm(recipe: Recipe, vocabulary: int) -> Algorithm:
    model = language_model(recipe.model, vocabulary, _product_type(recipe))
    server = server_optimizer(
        recipe.server.optimizer,
        recipe.server.learning_rate,
        recipe.server.momentum,
    )
    clip = bound(recipe)
    scheme = participation(recipe)
    if recipe.privacy.encoding == "modular":
        params = jax.eval_shape(model.init, jax.random.key(0))
        # The same clip, with reports in residues.
        clip = modular(clip, params, report_encoding(recipe, params))
    update = _user_update(recipe, model, project=clip.project if recipe.privacy.greedy else None)
    if recipe.algorithm == "fedavg":
        return fedavg(update, bound=clip, participation=scheme, server=server)
    if recipe.algorithm == "transfer-learning":
        return transfer_learning(
            model,
            update,
            text=_predicted_text(recipe, model),
            participation=scheme,
            rate=recipe.transfer.learning_rate,
            epochs=recipe.transfer.epochs,
            batch_size=recipe.transfer.batch_size,
        )
    if recipe.privacy.noise_multiplier is None:
        raise ValueError(
            "the noise multiplier is worked out by with_noise before the algorithm is built"
        )
    estimator = _estimator(recipe)
    largest_total = recipe.largest_total
    drawn = noise(recipe, recipe.privacy.noise_multiplier)
    if recipe.algorithm == "dp-ftrl":
        is_adaptive = recipe.privacy.clipping == "adaptive"
        return dp_ftrl(
            update,
            bound=_adaptive_clip(recipe) if is_adaptive else clip,
            report_goal=recipe.participation.cohort,
            noise=drawn,
            participation=scheme,
            server=server,
            most_reports=largest_total,
        )
    return dp_fedavg(
        update,
        bound=clip,
        estimator=estimator,
        noise=drawn,
        participation=scheme,
        server=server,
        most_reports=largest_total,
    )


# What a guarantee rests on: who takes part, the bound, the estimate, the noise and the budget.


def participation(recipe: Recipe) -> Participation:
    """Build the claim about who takes part, with the selection that keeps it."""
    section = recipe.participation
    scheme = SCHEMES[section.kind]
    cycle = recipe.privacy.bands if scheme.takes_turns else 1
    settings = SchemeSettings(
        cohort=section.cohort,
        users=section.users,
        rounds=recipe.run.rounds,
        cycle=cycle,
        probability=section.cohort * cycle / section.users,
        min_separation=section.min_separation or 0,
        max_participations=recipe.max_participations,
        over_selection=recipe.over_selection,
    )
    return scheme.build(settings)


def bound(recipe: Recipe) -> Bound:
    """Build the clip of a user's update; none where a run without privacy names no clip norm."""
    privacy = recipe.privacy
    if privacy.layer_clip_norms:
        return per_layer_clip(layers=privacy.layer_clip_norms)
    if privacy.clip_norm is None and not recipe.is_private:
        return no_clip()
    clip_norm = DEFAULT_CLIP_NORM if privacy.clip_norm is None else privacy.clip_norm
    return flat_clip(clip_norm) if privacy.clipping == "flat" else per_layer_clip(clip_norm)


def _adaptive_clip(recipe: Recipe) -> AdaptiveClip:
    """Build the clip whose norm follows a quantile, starting from the recipe's."""
    privacy = recipe.privacy
    start = privacy.clip_norm
    return AdaptiveClip(
        start=float(start) if isinstance(start, float | int) else DEFAULT_CLIP_NORM,
        count_stddev=privacy.clipped_count_stddev or recipe.participation.cohort / 20,
        target_quantile=privacy.target_quantile,
        learning_rate=privacy.clip_learning_rate,
    )


def report_encoding(recipe: Recipe, params: Params) -> Encoding:
    """Build the residues in which reports go to a secure sum."""
    return encoding(size(params), recipe.largest_total, recipe.privacy.encoding_bits)


def _estimator(recipe: Recipe) -> Estimator:
    """Build what divides a total: the weight that is expected, or the actual one with a floor."""
    least_weight = recipe.privacy.least_weight
    if least_weight is None:
        return fixed_denominator(recipe.participation.expected_weight)
    return clipped_denominator(recipe.participation.probability * least_weight)


def noise(recipe: Recipe, multiplier: float) -> Noise:
    """Build the noise of the run; a multiplier of 0 stands for no noise."""
    if multiplier == 0:
        return no_noise()
    lengths = segments(recipe.most_releases, recipe.restart_rounds)
    parts = split_by_segment(lengths, recipe.privacy.strategy)
    return NOISES[recipe.noise].draw(multiplier, parts)


def budget(recipe: Recipe) -> Budget:
    """Build the limit that no release may exceed."""
    return Budget(delta=recipe.delta, epsilon=recipe.privacy.epsilon, rho=recipe.privacy.rho)


# What a device computes and sends.


def _user_update(recipe: Recipe, model: LanguageModel, project: Project | None) -> UserUpdate:
    """Build what a device computes; `model` has the recipe's type of products."""
    training = _local_training(recipe)
    local = recipe.local
    step = sgd_step(model, _product_type(recipe), local.loss_power)
    match local.forgetting:
        case "none" if recipe.algorithm == "dp-fedsgd":
            loss = partial(cross_entropy, model, power=local.loss_power)
            update = fedsgd_update(loss, training)
        case "none":
            update = fedavg_update(step, training, project)
        case "rehearsal":
            rehearsed = with_rehearsal(step, _rehearsed_rows(recipe), local.user_share)
            update = fedavg_update(rehearsed, training, project)
        case "distillation":
            update = unforgetting_update(model, training, local.user_share, project)
    return compress_updates(update, recipe.upload.share, recipe.upload.bits)


def _rehearsed_rows(recipe: Recipe) -> jax.Array:
    corpus = general_text(recipe)
    # A recipe that rehearses without a text is refused.
    assert corpus is not None
    return general_rows(corpus, layout(recipe, corpus.vocabulary).cut)


def _local_training(recipe: Recipe) -> LocalTraining:
    section = recipe.local
    return LocalTraining(
        learning_rate=section.learning_rate,
        epochs=section.epochs,
        update_penalty=section.update_penalty,
        keyed=recipe.model.dropout > 0 or section.forgetting == "rehearsal",
        gradient_norm=section.max_gradient_norm,
    )


def upload_size(recipe: Recipe, params: Params) -> int:
    """Return the bytes that one device sends in a round."""
    if recipe.privacy.encoding == "modular":
        return report_encoding(recipe, params).upload_bytes
    if recipe.algorithm == "transfer-learning":
        words = len(params["word_bias"])
        shape = (recipe.transfer.rows, recipe.transfer.length, words)
        return upload_bytes(jax.ShapeDtypeStruct(shape, jnp.float32))
    return upload_bytes(params, recipe.upload.share, recipe.upload.bits)


# Text, of people and of the public.


def population(recipe: Recipe) -> Population:
    """Open the people whose text the run learns from."""
    return Population(Path(recipe.data.population))


def layout(recipe: Recipe, vocabulary: Vocabulary) -> Layout:
    """Build how a user's text is cut into batches."""
    data = recipe.data
    batch_size = recipe.local.batch_size
    if data.layout == "sentences":
        sentences = Sentences(data.sentence_length, vocabulary.sentence_ends)
        return Layout.for_pieces(sentences, batch_size, data.sentences_per_user)
    unrolls = Unrolls(recipe.local.unroll)
    return Layout.for_pieces(unrolls, batch_size, data.tokens_per_user / unrolls.length)


def evaluation_cut(recipe: Recipe, vocabulary: Vocabulary) -> Cut:
    """Cut text as the model was trained to read it: sentence by sentence, or in long windows."""
    return layout(recipe, vocabulary).cut if recipe.data.layout == "sentences" else WINDOW


def general_text(recipe: Recipe, to_test: bool = False) -> PublicCorpus | None:
    """Load what devices rehearse or predict, if there is such a text.

    With `to_test`, load what is measured beside users instead.
    """
    folder = recipe.data.general_test if to_test else recipe.data.general
    return PublicCorpus.load(Path(folder)) if folder else None


def general_rows(corpus: PublicCorpus, cut: Cut) -> jax.Array:
    """Return all rows of a public corpus, to draw from."""
    rows = np.concatenate([cut.pieces(document) for document in corpus.documents])
    has_words = np.any(rows[:, 1:] != PADDING, axis=1)
    return jnp.asarray(rows[has_words])


def _predicted_text(recipe: Recipe, model: LanguageModel) -> Text:
    """Build the text that devices predict: drawn once from public text, or generated each round."""
    settings = recipe.transfer
    # What predictions are about is not secret.
    key = jax.random.key(0)
    corpus = general_text(recipe) if settings.text == "general" else None
    if corpus is not None:
        rows = _draw_rows(corpus, settings, key)
        return lambda params: rows

    def generate(params: Params) -> jax.Array:
        return beginnings(model, params, settings.rows, settings.length, key)

    return generate


def _draw_rows(corpus: PublicCorpus, settings: TransferSection, key: Key) -> jax.Array:
    rows = general_rows(corpus, Unrolls(settings.length))
    if len(rows) < settings.rows:
        raise ValueError(
            f"[transfer] rows = {settings.rows}: the general text has only {len(rows)} of that"
            " length"
        )
    places = jax.random.choice(key, len(rows), (settings.rows,), replace=False)
    return rows[places]
