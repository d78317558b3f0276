"""How fast this machine trains: the "paper round" and what belongs to it, measured through the same code that trains.

The paper round (McMahan et al. 2018): LSTM of 1.35M parameters, users of 1,600 tokens, 20 local steps of 8 × 10 tokens, clip once, sum,
noise, charge. Users are random words, so that nothing depends on anyone's text. Every figure is the best of a few rounds after one that
compiles; ceilings are measured in the same run.
"""

import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import trees
from taciturn.core import Message, Params, Report, UserData
from taciturn.data.population import HeldOutUsers, Population, write_population
from taciturn.data.vocabulary import SPECIAL, Vocabulary
from taciturn.evaluation.accuracy import evaluate
from taciturn.fleets import assemble
from taciturn.models.cells import cifg
from taciturn.privacy.accounting import epsilon, repeated
from taciturn.privacy.chacha20 import key_words
from taciturn.privacy.clipping import flat_clip
from taciturn.privacy.correlated_noise import Buffers, blt
from taciturn.privacy.estimators import fixed_denominator
from taciturn.privacy.mechanism import mechanism
from taciturn.privacy.participation import PoissonSampling
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.runs.speed import best_time, round_seconds

WORDS, TOKENS = 10_000, 1600
HELD_OUT = 8
Turns = dict[str, list[float]]  # users/s of the paper round in each turn, by name


@dataclass(frozen=True)
class RoundSpeed:
    """One kind of round."""

    users_per_s: float
    tokens_per_s: float
    round_s: float
    privacy_share: float  # of the round: what clipping, integers, noise, record and charge cost
    peak_gib: float
    matrix_share: float  # of the measured rate of matrix products


@dataclass(frozen=True)
class Speeds:
    users_per_s: float  # of the paper round
    paper_round: RoundSpeed
    gboard_round: RoundSpeed
    users: int
    precision: str
    device: str
    blt_release_ms: float  # of the 2.4M model
    accounting_ms: float  # ε of 5,000 Poisson rounds
    evaluation_tokens_per_s: float
    copy_gb_per_s: float
    matrix_gflop_per_s: float
    in_turns: Turns = field(default_factory=dict)  # with others, users/s of each turn


def measure(
    users: int, rounds: int, precision: str, progress: Callable[[str], None], compare: Callable[[Callable[[], float]], Turns] | None = None
) -> Speeds:
    """Measure everything. `compare` gets a function that measures our paper round in users/s, to take turns with others'."""
    progress("ceilings: copies and matrix products")
    copies, products = _copy_rate(), _product_rate(precision)
    with tempfile.TemporaryDirectory() as folder:
        progress(f"{users} users of {TOKENS} random words")
        population = random_users(Path(folder) / "users", users)
        progress("paper round: LSTM 1.35M")
        recipe = paper_recipe(population, users, "lstm", precision)
        paper, params = _round(population, recipe, rounds, products)
        fleet = assemble.fleet(recipe, population, population.folder)

        def ours() -> float:
            return users / round_seconds(recipe, fleet, params, WORDS, rounds)

        turns = compare(ours) if compare else {}
        progress("Gboard's round: CIFG 2.4M")
        gboard, params = _round(population, paper_recipe(population, users, "cifg", precision), rounds, products)
        progress("noise, accounting, evaluation")
        return Speeds(
            users_per_s=paper.users_per_s,
            paper_round=paper,
            gboard_round=gboard,
            users=users,
            precision=precision,
            device=jax.devices()[0].device_kind,
            blt_release_ms=1e3 * _blt_release(params),
            accounting_ms=1e3 * _accounting(),
            evaluation_tokens_per_s=_evaluation(population, params),
            copy_gb_per_s=copies / 1e9,
            matrix_gflop_per_s=products / 1e9,
            in_turns=turns,
        )


def random_users(folder: Path, users: int) -> Population:
    vocabulary = Vocabulary(SPECIAL + tuple(f"w{index}" for index in range(WORDS - len(SPECIAL))))
    generator = np.random.default_rng(0)
    train = {f"user {k}": generator.integers(len(SPECIAL), WORDS, TOKENS).tolist() for k in range(users)}
    held_out = {f"held out {k}": generator.integers(len(SPECIAL), WORDS, TOKENS).tolist() for k in range(HELD_OUT)}
    return write_population(folder, train, held_out, vocabulary, {"simulated": "random words"})


def paper_recipe(population: Population, users: int, model: str, precision: str) -> Recipe:
    content = {
        "data": {"population": str(population.folder), "tokens_per_user": TOKENS},
        "model": {"kind": model},
        "local": {"learning_rate": 0.1, "batch_size": 8, "unroll": 10, "precision": precision},
        "server": {"optimizer": "sgd"},
        "participation": {"kind": "fixed", "users": users, "cohort": users},
        "privacy": {"clip_norm": 15.0, "noise_multiplier": 1.0, "delta": min(1e-6, 0.1 / users)},
        "run": {"rounds": 1000, "seed": 0},
    }
    return Recipe(**content)


def _round(population: Population, recipe: Recipe, times: int, products: float) -> tuple[RoundSpeed, Params]:
    """Time a whole round, from selection to release, and the same work without any privacy."""
    algorithm, users, key = build.algorithm(recipe, WORDS), len(population), jax.random.key(0)
    params = build.language_model(recipe.model, WORDS).init(key)
    fleet = assemble.fleet(recipe, population, population.folder)
    whole = round_seconds(recipe, fleet, params, WORDS, times)
    message = Message(params, algorithm.mechanism.public(algorithm.mechanism.init(params)))

    def unbounded(message: Message, user: UserData, key: jax.Array) -> Report:
        return Report(algorithm.user_update(message, user, key), user.weight)

    plain = best_time(lambda: fleet.sum_reports(unbounded, message, np.arange(users), key), times)
    speed, stats = users / whole, jax.devices()[0].memory_stats() or {}
    return RoundSpeed(
        users_per_s=speed,
        tokens_per_s=speed * TOKENS,
        round_s=whole,
        privacy_share=1 - plain / whole,
        peak_gib=stats.get("peak_bytes_in_use", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 2**30,
        matrix_share=speed * _operations(params) / products,
    ), params


def _operations(params: Params) -> float:
    """Count the operations of one user's training: two for each matrix entry and token forwards, four backwards; look-ups are free."""
    looked_up = params["embedding"].size if "word_embedding" in params else 0
    return 6 * (trees.size(params) - looked_up) * TOKENS


def _blt_release(params: Params) -> float:
    noise = blt(1.0, Buffers(2000, (0.97, 0.9, 0.4), (0.16, 0.16, 0.2)))
    private = mechanism(flat_clip(1.0), fixed_denominator(1000.0), noise, most_reports=2000)
    state, key = private.init(params), key_words(bytes(32))
    nobody = trees.zeros_like(jax.eval_shape(private.bound, jnp.float32(1), params, jnp.float32(0), jax.random.key(0)))
    step = jax.jit(private.release)
    return best_time(lambda: step(state, nobody, key), 5)


def _accounting() -> float:
    began = time.perf_counter()
    epsilon(repeated(PoissonSampling(5000 / 763_430).event(1.0), 5000), 1e-9)
    return time.perf_counter() - began


def _evaluation(population: Population, params: Params) -> float:
    model, texts = cifg(WORDS), HeldOutUsers(population.folder).texts
    return texts.tokens / best_time(lambda: evaluate(model, params, texts), 1)


def _copy_rate() -> float:
    """Measure bytes a second, read and written."""
    size = 2**24 if _on_cpu() else 2**29
    values, step = jnp.ones(size, jnp.float32), jax.jit(lambda values: values * 1.0001)
    return 8 * size / best_time(lambda: step(values), 5)


def _product_rate(precision: str) -> float:
    size = 2048 if _on_cpu() else 8192
    left = jax.random.uniform(jax.random.key(0), (size, size), jnp.bfloat16 if precision == "mixed" else jnp.float32)
    return 2.0 * size**3 / best_time(partial(jax.jit(lambda left: left @ left), left), 3)


def _on_cpu() -> bool:
    return jax.devices()[0].platform == "cpu"
