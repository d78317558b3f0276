"""Which GPU kernels a round of training spends its time in: `python benchmarks/kernels.py
lstm,1000,8,10 cifg,768,4,80`.

Each argument is a kind of model, users a round, rows of a local batch and words of a row. Users are
random words. Prints users a second, of whole rounds and of only training and summing, the ms that
each part of a round takes, and µs of a user and local step for each kernel, out of JAX's own trace.
"""

import glob
import gzip
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import randomness
from taciturn.bench import round_speed
from taciturn.core import FleetWithStats, Key, Message, Params
from taciturn.data.population import Population
from taciturn.fleets import assemble
from taciturn.privacy.curator import device_program
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.runs.timing import best_time, round_seconds, throwaway_curator
from taciturn.training import rounds

# Kernels, the longest first.
SHOWN = 20
ROUNDS = 4


class Case(NamedTuple):
    kind: str
    # A round.
    users: int
    # Of a local batch.
    rows: int
    # Of a row.
    words: int

    @classmethod
    def parse(cls, argument: str) -> "Case":
        kind, users, rows, words = argument.split(",")
        return cls(kind=kind, users=int(users), rows=int(rows), words=int(words))


def main() -> None:
    for argument in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), Case.parse(argument))


def measure(folder: Path, case: Case) -> None:
    """Print what a round of a case takes, by part and by kernel."""
    users = case.users
    population = round_speed.random_users(folder / "users", users)
    recipe = make_recipe(population, case)
    params = build.language_model(recipe.model, round_speed.WORDS).init(_key())
    fleet = assemble.fleet(recipe, population, population.folder)
    train = training_of(recipe, fleet, params, users)
    training = best_time(train, ROUNDS)
    whole = round_seconds(recipe, fleet, params, round_speed.WORDS, ROUNDS)
    print(
        f"{case.kind}, {users} users, rows of {case.words} × {case.rows}: {users / whole:.0f}"
        f" users/s, only training and summing {users / training:.0f}"
    )
    by_part = seconds_by_part(recipe, fleet, params)
    print(", ".join(f"{part} {1e3 * seconds:.2f}" for part, seconds in by_part.items()), "ms")
    steps = users * round_speed.TOKENS // (case.rows * case.words)
    by_kernel = trace_kernels(train)
    print(
        f"{by_kernel.total() / steps:8.2f} µs of a user and step in kernels,"
        f" {1e6 * training / steps:.2f} with the host"
    )
    for name, microseconds in by_kernel.most_common(SHOWN):
        print(f"{microseconds / steps:8.3f} {name[:100]}")


def make_recipe(population: Population, case: Case) -> Recipe:
    recipe = round_speed.paper_recipe(population, case.users, "lstm", "mixed")
    recipe = recipe.with_settings("model", kind=case.kind)
    return recipe.with_settings("local", batch_size=case.rows, unroll=case.words)


def _key() -> Key:
    return randomness.jax_key(bytes(32))


def training_of(
    recipe: Recipe, fleet: FleetWithStats, params: Params, users: int
) -> Callable[[], object]:
    """Return a function that trains all users and sums their reports."""
    algorithm = build.algorithm(recipe, round_speed.WORDS)
    public = algorithm.mechanism.public(algorithm.mechanism.init(params))
    message = Message(params, public)
    program = device_program(algorithm)
    cohort = np.arange(users)

    def train() -> object:
        return jax.block_until_ready(fleet.sum_reports(program, message, cohort, _key()))

    return train


def seconds_by_part(recipe: Recipe, fleet: FleetWithStats, params: Params) -> dict[str, float]:
    """Return the seconds that each part of a round takes at best, each waited for, so that together
    they are a little slower.
    """
    with throwaway_curator(recipe, fleet, round_speed.WORDS) as curator:
        seconds: dict[str, list[float]] = {}
        for part, owner, method in (
            ("select", curator, "_draw_cohort"),
            ("sum", fleet, "sum_reports"),
            ("noise", curator, "_release"),
            ("check_alone", curator.account, "check_alone"),
            ("record", curator._records, "write"),
            ("charge", curator.account, "charge"),
        ):
            seconds[part] = []
            setattr(owner, method, time_calls(getattr(owner, method), seconds[part]))
        training = rounds(build.algorithm(recipe, round_speed.WORDS), curator, params)
        seconds["all"] = []
        train_round = time_calls(lambda: next(training).server, seconds["all"])
        for _ in range(1 + ROUNDS):
            train_round()
        del fleet.sum_reports
    # The first compiles.
    best = {part: min(times[1:]) for part, times in seconds.items()}
    parts = sum(time for part, time in best.items() if part != "all")
    return best | {"others": best["all"] - parts}


def time_calls(work: Callable, seconds: list[float]) -> Callable:
    """Return the same work, whose result is waited for and whose seconds are noted."""

    def work_and_wait(*arguments: object, **named: object) -> object:
        began = time.perf_counter()
        result = jax.block_until_ready(work(*arguments, **named))
        seconds.append(time.perf_counter() - began)
        return result

    return work_and_wait


def trace_kernels(work: Callable[[], object]) -> Counter[str]:
    """Return the µs that each kernel took on the device's streams."""
    events = []
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            work()
        for path in glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True):
            events += _read_events(path)
    processes = {}
    threads = {}
    for event in events:
        if event.get("name") == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        if event.get("name") == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    microseconds: Counter[str] = Counter()
    for event in events:
        if event.get("ph") != "X":
            continue
        process = processes.get(event["pid"], "")
        thread = threads.get((event["pid"], event["tid"]), "")
        if "GPU" in process and "Stream" in thread:
            microseconds[event["name"]] += event["dur"]
    return microseconds


def _read_events(path: str) -> list[dict]:
    return json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]


if __name__ == "__main__":
    main()
