"""From a recipe to objects: the only place where a name in a file becomes a constructor."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from jax.typing import DTypeLike

from taciturn.algorithms.dp_fedavg import dp_fedavg, dp_fedsgd, fedavg, server_optimizer
from taciturn.algorithms.dp_ftrl import dp_ftrl
from taciturn.algorithms.fine_tuning import rehearsing, unforgetting_update
from taciturn.algorithms.local_training import LocalTraining, Project, UserUpdate, fedavg_update
from taciturn.algorithms.transfer_learning import Text, transfer_learning
from taciturn.algorithms.uploads import Upload, compressed, upload_bytes
from taciturn.config import Recipe
from taciturn.core import PADDING, Algorithm, LanguageModel, Params, Participation
from taciturn.data.availability import Clock, Devices, Habits
from taciturn.data.layout import Cut, Layout, Sentences, Unrolls
from taciturn.data.population import NamedLedger, Population
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import Vocabulary
from taciturn.evaluation.accuracy import WINDOW
from taciturn.fleets.available import AvailableFleet
from taciturn.fleets.many_hosts import ManyHosts
from taciturn.fleets.queued import QueuedFleet
from taciturn.fleets.simulated import SimulatedFleet
from taciturn.models.cifg import cifg
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.gru import gru
from taciturn.models.losses import cross_entropy
from taciturn.models.lstm import lstm
from taciturn.models.sampling import beginnings
from taciturn.models.sgd import sgd_step
from taciturn.models.transformer import transformer
from taciturn.privacy.accounting import Budget, composed, noise_for_budget, repeated
from taciturn.privacy.adaptive_clip import AdaptiveClip
from taciturn.privacy.clipping import MOST_REPORTS, Bound, flat_clip, per_layer_clip, unbounded
from taciturn.privacy.correlated_noise import Bands, Buffers, banded, blt, tree
from taciturn.privacy.estimators import clipped_denominator, fixed_denominator
from taciturn.privacy.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.privacy.mechanism import mechanism
from taciturn.privacy.noise import Noise, gaussian
from taciturn.privacy.participation import CyclicPoisson, FixedSize, MinSeparation, PoissonSampling, spare_rounds
from taciturn.privacy.secagg_encoding import Encoding, encoding, modular
from taciturn.privacy.sensitivity import most_participations, segments
from taciturn.privacy.strategies import optimal_bands, optimal_blt
from taciturn.sections import AUDITED_AT_ONCE, DEFAULT_CLIP_NORM, Model
from taciturn.tree import size

LARGEST_VOCABULARY = 30_000  # of the papers' models


def language_model(model: Model, vocabulary: int, product: DTypeLike = jnp.float32) -> LanguageModel:
    """`product` is the type in which its matrix products are taken."""
    match model.kind:
        case "lstm":
            return lstm(vocabulary, model.width, model.units or 256, dropout_rate=model.dropout, product=product)
        case "cifg":
            return cifg(
                vocabulary,
                model.width,
                model.units or 670,
                tied=model.tied,
                dropout_rate=model.dropout,
                product=product,
            )
        case "gru":
            return gru(vocabulary, model.width, model.units or 256, dropout_rate=model.dropout, product=product)
        case "transformer":
            return transformer(vocabulary, model.width, model.layers, model.heads, dropout_rate=model.dropout)
        case "deep-lstm":
            return deep_lstm(
                vocabulary,
                model.width,
                model.units or 650,
                model.layers,
                model.tied,
                model.dropout,
                model.variational,
                product,
            )


def participation(recipe: Recipe) -> Participation:
    section = recipe.participation
    if section.kind == "poisson":
        return PoissonSampling(section.probability)
    if section.kind in ("min-separation", "cyclic-poisson"):
        return turns(recipe)
    return FixedSize(int(section.cohort), section.users)


def turns(recipe: Recipe) -> MinSeparation | CyclicPoisson:
    section, rounds = recipe.participation, recipe.run.rounds
    if section.kind == "cyclic-poisson":
        cycle = recipe.privacy.bands
        return CyclicPoisson(section.cohort * cycle / section.users, cycle, rounds)
    more = recipe.fleet.over_selection if recipe.fleet.kind in ("available", "devices") else 1.0
    return MinSeparation(int(section.cohort), section.min_separation or 0, recipe.max_participations, rounds, more)


def noise(recipe: Recipe, multiplier: float) -> Noise:
    lengths = segments(rows(recipe), recipe.restart_rounds)
    coefficients = {name: _shared_out(values, len(lengths)) for name, values in (recipe.privacy.strategy or {}).items()}
    match recipe.noise:
        case "independent":
            return gaussian(multiplier)
        case "tree" | "honaker" as kind:
            return tree(multiplier, *lengths, honaker=kind == "honaker")
        case "banded":
            return banded(multiplier, *map(Bands, lengths, coefficients["bands"]))
        case _:
            return blt(multiplier, *map(Buffers, lengths, coefficients["decay"], coefficients["scale"]))


def _shared_out(values: list[float], parts: int) -> list[tuple[float, ...]]:
    size = len(values) // parts
    return [tuple(values[start : start + size]) for start in range(0, len(values), size)]


def with_strategy(recipe: Recipe) -> Recipe:
    """The recipe with the coefficients of its noise worked out, where it names none."""
    kind, rounds = recipe.noise, recipe.run.rounds
    if kind not in ("banded", "blt") or recipe.privacy.strategy is not None:
        return recipe
    found: dict[str, list[float]] = {}
    for length in segments(rounds, recipe.restart_rounds):
        for name, values in _best(recipe, length).items():
            found.setdefault(name, []).extend(values)
    return recipe.with_settings("privacy", strategy=found)


def _best(recipe: Recipe, length: int) -> dict[str, list[float]]:
    """Coefficients for one segment of the noise."""
    privacy = recipe.privacy
    if recipe.noise == "banded":
        bands = optimal_bands(length, min(privacy.bands, length))["bands"]
        return {"bands": bands + [0.0] * (privacy.bands - len(bands))}
    separation = recipe.participation.min_separation or 0
    participations = min(recipe.max_participations, most_participations(length, separation))
    return optimal_blt(length, separation, participations, privacy.buffers)


def budget(recipe: Recipe) -> Budget:
    return Budget(recipe.delta, recipe.privacy.epsilon, recipe.privacy.rho)


def with_noise(
    recipe: Recipe, lineage: Sequence[DpEvent] = (), lineage_distance: float = 0.0, vocabulary: int = LARGEST_VOCABULARY
) -> Recipe:
    """The recipe with its noise worked out: the strategy, and the multiplier from the budget, where it names none. What a model of so many
    words started from has cost already, and how far that was from the ideal, is counted in."""
    recipe = with_strategy(recipe)
    if not recipe.is_private or recipe.privacy.noise_multiplier is not None:
        return recipe
    taking_part = participation(recipe)

    def cost(noise_multiplier: float) -> DpEvent:
        private = mechanism(_bound(recipe), fixed_denominator(1.0), noise(recipe, noise_multiplier))
        return composed(lineage, repeated(private.event(taking_part), recipe.run.rounds))

    # Wider noise is nearer to the ideal, so that of little is an upper bound.
    little = mechanism(_bound(recipe), fixed_denominator(1.0), noise(recipe, 0.1), most_reports(recipe))
    shapes = jax.eval_shape(language_model(recipe.model, vocabulary).init, jax.random.key(0))
    distance = lineage_distance + little.distance(size(shapes), rows(recipe))
    noise_multiplier = noise_for_budget(cost, budget(recipe), recipe.privacy.accountant, distance)
    return recipe.with_settings("privacy", noise_multiplier=round(noise_multiplier + 5e-7, 6))


def rows(recipe: Recipe) -> int:
    """How many releases a run may make, those to spare included."""
    return recipe.run.rounds + spare_rounds(recipe.run.rounds)


def algorithm(recipe: Recipe, vocabulary: int) -> Algorithm:
    product = jnp.bfloat16 if recipe.local.precision == "mixed" else jnp.float32
    model = language_model(recipe.model, vocabulary, product)
    keyed = recipe.model.dropout > 0 or recipe.local.keep == "rehearsal"
    settings = recipe.local
    local = LocalTraining(
        settings.learning_rate, settings.epochs, settings.update_penalty, keyed, settings.gradient_norm
    )
    server = server_optimizer(recipe.server.optimizer, recipe.server.learning_rate, recipe.server.momentum)
    taking_part = participation(recipe)
    if recipe.algorithm == "fedavg":
        return fedavg(_user_update(recipe, model, local), _bound(recipe), taking_part, server)
    if recipe.algorithm == "transfer-learning":
        update, text, transfer = _user_update(recipe, model, local), _predicted_text(recipe, model), recipe.transfer
        return transfer_learning(
            model, update, text, taking_part, transfer.learning_rate, transfer.epochs, transfer.batch_size
        )
    if recipe.privacy.noise_multiplier is None:
        raise ValueError("the noise multiplier is worked out by with_noise before the algorithm is built")
    if recipe.privacy.least_weight is None:
        estimator = fixed_denominator(recipe.participation.expected_weight)
    else:
        estimator = clipped_denominator(recipe.participation.probability * recipe.privacy.least_weight)
    n_max = most_reports(recipe)
    bound = _encoded(recipe, model)
    drawn = noise(recipe, recipe.privacy.noise_multiplier)
    if recipe.algorithm == "dp-ftrl":
        clip = _adaptive(recipe) if recipe.privacy.clipping == "adaptive" else bound
        update, goal = _user_update(recipe, model, local), recipe.participation.cohort
        return dp_ftrl(update, clip, goal, drawn, turns(recipe), server, n_max)
    parts = (bound, estimator, drawn, taking_part, server, n_max)
    if recipe.algorithm == "dp-fedsgd":
        return dp_fedsgd(partial(cross_entropy, model), local, upload(recipe), *parts)
    project = bound.project if recipe.privacy.greedy else None
    return dp_fedavg(_user_update(recipe, model, local, project), *parts)


def most_reports(recipe: Recipe) -> int:
    """n_max, that may be in a total."""
    taking_part = participation(recipe)
    cohort = recipe.participation.cohort
    most = math.ceil(cohort + 10 * math.sqrt(cohort) + 100)  # never passed by chance
    asked = taking_part.asked if isinstance(taking_part, MinSeparation) else 0
    beside = recipe.canaries.synthetic_users + min(recipe.audit.users, AUDITED_AT_ONCE)
    n_max = min(MOST_REPORTS, max(most, asked)) + beside
    if n_max > MOST_REPORTS:
        raise ValueError(
            f"{beside} synthetic users beside a cohort of {cohort:g} are more than the {MOST_REPORTS} "
            "reports that a total holds: lower canaries.users or canaries.each, or audit with fewer"
        )
    return n_max


def _user_update(
    recipe: Recipe, model: LanguageModel, local: LocalTraining, project: Project | None = None
) -> UserUpdate:
    """What a device computes; `model` takes its products as the recipe says."""
    step = sgd_step(model, jnp.bfloat16 if recipe.local.precision == "mixed" else jnp.float32)
    match recipe.local.keep:
        case "nothing":
            update = fedavg_update(step, local, project)
        case "rehearsal":
            corpus = general_text(recipe)
            assert corpus is not None  # the recipe is refused otherwise
            rows = general_rows(corpus, layout(recipe, corpus.vocabulary).cut)
            update = fedavg_update(rehearsing(step, rows, recipe.local.user_share), local, project)
        case "soft-labels":
            update = unforgetting_update(model, local, recipe.local.user_share, project)
    return compressed(update, upload(recipe))


def upload(recipe: Recipe) -> Upload:
    return Upload(recipe.upload.share, recipe.upload.bits)


def upload_size(recipe: Recipe, params: Params) -> int:
    """Bytes of what one device sends in a round."""
    if recipe.privacy.encoding == "modular":
        return report_encoding(recipe, params).upload_bytes
    if recipe.algorithm != "transfer-learning":
        return upload_bytes(params, upload(recipe))
    words, settings = len(params["word_bias"]), recipe.transfer
    return upload_bytes(jax.ShapeDtypeStruct((settings.rows, settings.length, words), jnp.float32), Upload())


def general_text(recipe: Recipe) -> PublicCorpus | None:
    """What devices rehearse, or their predictions are about, if there is such a text."""
    return PublicCorpus.load(Path(recipe.data.general)) if recipe.data.general else None


def general_test(recipe: Recipe) -> PublicCorpus | None:
    return PublicCorpus.load(Path(recipe.data.general_test)) if recipe.data.general_test else None


def with_general_text(recipe: Recipe) -> Recipe:
    """The recipe with a name for its general text, so that a run which goes on does so with the same."""
    corpus = general_text(recipe)
    if corpus is None:
        return recipe
    if recipe.data.general_digest not in (None, corpus.digest):
        raise ValueError(f"[data] general: {recipe.data.general} is another text than this run began with")
    return recipe.with_settings("data", general_digest=corpus.digest)


def _predicted_text(recipe: Recipe, model: LanguageModel) -> Text:
    settings, key = recipe.transfer, jax.random.key(0)  # what predictions are about is no secret
    corpus = general_text(recipe) if settings.text == "general" else None
    if corpus is None:
        return lambda params: beginnings(model, params, settings.rows, settings.length, key)
    rows = general_rows(corpus, Unrolls(settings.length))
    if len(rows) < settings.rows:
        raise ValueError(f"[transfer] rows = {settings.rows}: the general text has only {len(rows)} of that length")
    taken = rows[jax.random.choice(key, len(rows), (settings.rows,), replace=False)]
    return lambda params: taken


def general_rows(corpus: PublicCorpus, cut: Cut) -> jax.Array:
    """All of a public corpus, to draw from."""
    rows = np.concatenate([cut.pieces(document) for document in corpus.documents])
    return jnp.asarray(rows[np.any(rows[:, 1:] != PADDING, axis=1)])


def simulated(recipe: Recipe, population: Population) -> SimulatedFleet | ManyHosts:
    """Users trained here, or on all hosts that were joined."""
    section, hosts = recipe.participation, jax.process_count()
    spread = 2 * math.sqrt(section.cohort) if section.kind in ("poisson", "cyclic-poisson") else 0.0
    cut, share = layout(recipe, population.vocabulary), (section.cohort + spread) / hosts
    here = SimulatedFleet(population, cut, section.weight_cap, share)
    return ManyHosts(here, population.id) if hosts > 1 else here


def fleet(
    recipe: Recipe, population: Population, devices: Path, coins: int = 0
) -> SimulatedFleet | ManyHosts | AvailableFleet | QueuedFleet:
    """`devices` is a folder for the state of devices which have one, `coins` a secret number that says who of them comes when."""
    everyone = simulated(recipe, population)
    section, taking_part = recipe.fleet, participation(recipe)
    if section.kind == "always":
        return everyone
    assert isinstance(taking_part, MinSeparation)  # the recipe is refused otherwise
    if section.kind == "queue":
        return QueuedFleet(everyone, taking_part.size, recipe.in_flight, devices / "queue", coins)
    habits = Habits(tuple(section.time_zones), drop_out=section.drop_out)
    clock = Clock(Devices(len(population), habits, coins), section.timer_hours)
    most = section.most_reports or taking_part.asked
    return AvailableFleet(everyone, clock, taking_part.size, taking_part.asked, most, devices / "devices.npz")


def layout(recipe: Recipe, vocabulary: Vocabulary) -> Layout:
    data, batch_size = recipe.data, recipe.local.batch_size
    if data.layout == "sentences":
        sentences = Sentences(data.sentence_length, vocabulary.sentence_ends)
        return Layout.for_pieces(sentences, batch_size, data.sentences_per_user)
    unrolls = Unrolls(recipe.local.unroll)
    return Layout.for_pieces(unrolls, batch_size, data.tokens_per_user / unrolls.length)


def evaluation_cut(recipe: Recipe, vocabulary: Vocabulary) -> Cut:
    """Text as the model was trained to read it: sentence by sentence, or in long windows."""
    return layout(recipe, vocabulary).cut if recipe.data.layout == "sentences" else WINDOW


def population(recipe: Recipe) -> Population:
    return Population(Path(recipe.data.population))


def _bound(recipe: Recipe) -> Bound:
    privacy = recipe.privacy
    if privacy.layer_clip_norms:
        return per_layer_clip(layers=privacy.layer_clip_norms)
    if privacy.clip_norm is None and not recipe.is_private:
        return unbounded()
    clip_norm = DEFAULT_CLIP_NORM if privacy.clip_norm is None else privacy.clip_norm
    return flat_clip(clip_norm) if privacy.clipping == "flat" else per_layer_clip(clip_norm)


def _encoded(recipe: Recipe, model: LanguageModel) -> Bound:
    """The same clip, with reports in the form that the recipe says."""
    if recipe.privacy.encoding == "whole":
        return _bound(recipe)
    params = jax.eval_shape(model.init, jax.random.key(0))
    return modular(_bound(recipe), params, report_encoding(recipe, params))


def report_encoding(recipe: Recipe, params: Params) -> Encoding:
    return encoding(size(params), most_reports(recipe), recipe.privacy.encoding_bits)


def _adaptive(recipe: Recipe) -> AdaptiveClip:
    privacy, start = recipe.privacy, recipe.privacy.clip_norm
    stddev = privacy.clipped_count_stddev or recipe.participation.cohort / 20
    norm = float(start) if isinstance(start, float | int) else DEFAULT_CLIP_NORM
    return AdaptiveClip(norm, stddev, privacy.target_quantile, privacy.clip_learning_rate)


def open_ledger(population: Population) -> Ledger:
    """The ledger of these users. One that was lost is not made anew: nobody knows any more what was spent."""
    path, named = ledger_path(population), population.ledger
    if named is None:
        ledger = Ledger(path)
        population.pin_ledger(NamedLedger(ledger.id))
        return ledger
    if not path.parent.is_dir():
        raise LedgerError(
            f"{population.folder} shares the ledger in {path.parent}, which cannot be reached. Bring it back; or, if it was moved, say "
            f"where to: taciturn ledger adopt {population.folder} --same-people-as FOLDER"
        )
    return Ledger(path, named.id)


def ledger_path(population: Population) -> Path:
    """Where it is, in this folder or in that of the same people."""
    named = population.ledger
    return (population.folder / named.folder if named else population.folder).resolve() / FILE_NAME
