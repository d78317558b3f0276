"""How fast this machine trains: two papers' rounds, measured through the same code that trains.

The paper round (McMahan et al. 2018): LSTM of 1.35M parameters, users of 1,600 tokens, 20 local
steps of 8 × 10 tokens, clip once, sum, noise, charge. Users are random words, so that nothing
depends on anyone's text. Every figure is the best of a few rounds after one that compiles.
benchmarks/ceilings.py measures what the machine could do at most, and noise, accounting and
evaluation apart; benchmarks/in_turns.py runs other frameworks beside the paper round.
"""

import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from taciturn.core import Message, Params, Report, UserData
from taciturn.data.population import Population, write_population
from taciturn.data.vocabulary import SPECIAL, Vocabulary
from taciturn.fleets import assemble
from taciturn.names import Precision
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.runs.timing import best_time, round_seconds

WORDS = 10_000
TOKENS = 1600
HELD_OUT = 8

PaperModel = Literal["lstm", "cifg"]


class RoundSpeed(NamedTuple):
    """What a whole round takes, from selection to release."""

    users_per_s: float
    tokens_per_s: float
    round_s: float
    # What clipping, integers, noise, record and charge cost, as a share of the round.
    privacy_share: float
    peak_gib: float


def usual_settings() -> tuple[int, Precision]:
    """Return the users a round and the precision that suit this machine's devices."""
    return (20, "float32") if jax.devices()[0].platform == "cpu" else (1000, "mixed")


def measure(
    users: int, rounds: int, precision: Precision, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Measure both papers' rounds; `progress` gets the name of each part as it begins."""
    with tempfile.TemporaryDirectory() as folder:
        progress(f"{users} users of {TOKENS} random words")
        population = random_users(Path(folder) / "users", users)
        progress("paper round: LSTM 1.35M")
        lstm = paper_recipe(
            population,
            users=users,
            model="lstm",
            precision=precision,
        )
        paper_round, _ = round_speed(population, lstm, rounds)
        progress("Gboard's round: CIFG 2.4M")
        cifg = paper_recipe(
            population,
            users=users,
            model="cifg",
            precision=precision,
        )
        gboard_round, _ = round_speed(population, cifg, rounds)
    return {
        "users_per_s": paper_round.users_per_s,
        "paper_round": paper_round._asdict(),
        "gboard_round": gboard_round._asdict(),
        "users": users,
        "precision": precision,
        "device": jax.devices()[0].device_kind,
    }


def random_users(folder: Path, users: int) -> Population:
    """Write a population of random words, of this many users and a few held-out ones."""
    words = [f"w{index}" for index in range(WORDS - len(SPECIAL))]
    generator = np.random.default_rng(0)
    # One after the other, so that the same users have the same text.
    train = {f"user {index}": _draw_text(generator) for index in range(users)}
    held_out = {f"held out {index}": _draw_text(generator) for index in range(HELD_OUT)}
    return write_population(
        folder,
        train=train,
        held_out=held_out,
        vocabulary=Vocabulary(words=(*SPECIAL, *words)),
        about={"simulated": "random words"},
    )


def _draw_text(generator: np.random.Generator) -> list[int]:
    return generator.integers(len(SPECIAL), WORDS, TOKENS).tolist()


def paper_recipe(
    population: Population, users: int, model: PaperModel, precision: Precision
) -> Recipe:
    """Return a recipe in whose rounds every user of the population takes part."""
    content: dict[str, Any] = {
        "data": {
            "population": str(population.folder),
            "tokens_per_user": TOKENS,
        },
        "model": {"kind": model},
        "local": {
            "learning_rate": 0.1,
            "batch_size": 8,
            "unroll": 10,
            "precision": precision,
        },
        "server": {"optimizer": "sgd"},
        "participation": {
            "kind": "fixed",
            "users": users,
            "cohort": users,
        },
        "privacy": {
            "clip_norm": 15.0,
            "noise_multiplier": 1.0,
            "delta": min(1e-6, 0.1 / users),
        },
        "run": {
            "rounds": 1000,
            "seed": 0,
        },
    }
    return Recipe(**content)


def round_speed(population: Population, recipe: Recipe, times: int) -> tuple[RoundSpeed, Params]:
    """Time a whole round, and the same work without any privacy.

    Returns:
        The best of these times, and the parameters that were trained on.
    """
    users = len(population)
    key = jax.random.key(0)
    algorithm = build.algorithm(recipe, WORDS)
    params = build.language_model(recipe.model, WORDS).init(key)
    fleet = assemble.fleet(recipe, population, population.folder)
    whole = round_seconds(
        recipe,
        fleet,
        params,
        words=WORDS,
        times=times,
    )
    first_state = algorithm.mechanism.init(params)
    message = Message(params, algorithm.mechanism.public(first_state))

    def report_unbounded(message: Message, user: UserData, key: jax.Array) -> Report:
        return Report(algorithm.user_update(message, user, key), user.weight)

    everyone = np.arange(users)
    without_privacy = best_time(
        lambda: fleet.sum_reports(report_unbounded, message, everyone, key), times
    )
    speed = RoundSpeed(
        users_per_s=users / whole,
        tokens_per_s=users * TOKENS / whole,
        round_s=whole,
        privacy_share=1 - without_privacy / whole,
        peak_gib=_peak_gib(),
    )
    return speed, params


def _peak_gib() -> float:
    """Return the most memory used so far: of the device where it counts, else of the process."""
    statistics = jax.devices()[0].memory_stats() or {}
    kib_of_process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return statistics.get("peak_bytes_in_use", 1024 * kib_of_process) / 2**30
