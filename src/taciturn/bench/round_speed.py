"""How fast this machine trains: two papers' rounds, measured through the same code that trains.

The paper round (McMahan et al. 2018): LSTM of 1.35M parameters, users of 1,600 tokens, 20 local
steps of 8 × 10 tokens, clip once, sum, noise, charge. Users are random words, so that nothing
depends on anyone's text. Every figure is the best of a few rounds after one that compiles.
benchmarks/ceilings.py measures what the machine could do at most, and noise, accounting and
evaluation apart.
"""

import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from taciturn.core import Message, Params, Report, UserData
from taciturn.data.population import Population, write_population
from taciturn.data.vocabulary import SPECIAL, Vocabulary
from taciturn.fleets import assemble
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.runs.timing import best_time, round_seconds

WORDS, TOKENS = 10_000, 1600
HELD_OUT = 8
# users/s of the paper round in each turn, by name
Turns = dict[str, list[float]]
# of a round: users, tokens and GiB; `privacy_share` is what clipping, integers, noise, record and
# charge cost
Round = dict[str, float]


def measure(
    users: int,
    rounds: int,
    precision: str,
    progress: Callable[[str], None],
    compare: Callable[[Callable[[], float]], Turns] | None = None,
) -> dict[str, Any]:
    """Measure both rounds. `compare` gets a function that measures our paper round in users/s, to
    take turns with others'.
    """
    with tempfile.TemporaryDirectory() as folder:
        progress(f"{users} users of {TOKENS} random words")
        population = random_users(Path(folder) / "users", users)
        progress("paper round: LSTM 1.35M")
        recipe = paper_recipe(population, users, "lstm", precision)
        paper, params = round_speed(population, recipe, rounds)
        fleet = assemble.fleet(recipe, population, population.folder)
        turns = (
            compare(lambda: users / round_seconds(recipe, fleet, params, WORDS, rounds))
            if compare
            else {}
        )
        progress("Gboard's round: CIFG 2.4M")
        gboard, _ = round_speed(
            population, paper_recipe(population, users, "cifg", precision), rounds
        )
        about = {
            "users": users,
            "precision": precision,
            "device": jax.devices()[0].device_kind,
            "in_turns": turns,
        }
        return {
            "users_per_s": paper["users_per_s"],
            "paper_round": paper,
            "gboard_round": gboard,
            **about,
        }


def random_users(folder: Path, users: int) -> Population:
    vocabulary = Vocabulary(SPECIAL + tuple(f"w{index}" for index in range(WORDS - len(SPECIAL))))
    generator = np.random.default_rng(0)
    train = {
        f"user {k}": generator.integers(len(SPECIAL), WORDS, TOKENS).tolist() for k in range(users)
    }
    held_out = {
        f"held out {k}": generator.integers(len(SPECIAL), WORDS, TOKENS).tolist()
        for k in range(HELD_OUT)
    }
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


def round_speed(population: Population, recipe: Recipe, times: int) -> tuple[Round, Params]:
    """Time a whole round, from selection to release, and the same work without any privacy."""
    algorithm, users, key = build.algorithm(recipe, WORDS), len(population), jax.random.key(0)
    params = build.language_model(recipe.model, WORDS).init(key)
    fleet = assemble.fleet(recipe, population, population.folder)
    whole = round_seconds(recipe, fleet, params, WORDS, times)
    message = Message(params, algorithm.mechanism.public(algorithm.mechanism.init(params)))

    def unbounded(message: Message, user: UserData, key: jax.Array) -> Report:
        return Report(algorithm.user_update(message, user, key), user.weight)

    plain = best_time(lambda: fleet.sum_reports(unbounded, message, np.arange(users), key), times)
    stats = jax.devices()[0].memory_stats() or {}
    peak = (
        stats.get("peak_bytes_in_use", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        / 2**30
    )
    rates = {"users_per_s": users / whole, "tokens_per_s": users * TOKENS / whole, "round_s": whole}
    return rates | {"privacy_share": 1 - plain / whole, "peak_gib": peak}, params
