"""Which GPU kernels a round of training spends its time in: `python benchmarks/kernels.py
lstm,1000,8,10 cifg,768,4,80`.

Each argument is a kind of model, users a round, rows of a local batch and words of a row. Users are
random words. Prints users a second, of whole rounds and of training and summing alone, the ms that
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

import jax
import numpy as np

from taciturn import randomness
from taciturn.bench import round_speed
from taciturn.core import FleetWithStats, Message, Params
from taciturn.fleets import assemble
from taciturn.privacy.curator import device_program
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.runs.timing import best_time, round_seconds, throwaway_curator
from taciturn.training import rounds

SHOWN = 20  # kernels, the longest first
ROUNDS = 4


def main() -> None:
    for kind, *sizes in (argument.split(",") for argument in sys.argv[1:]):
        users, rows, words = map(int, sizes)
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), kind, users, rows, words)


def measure(folder: Path, kind: str, users: int, rows: int, words: int) -> None:
    population = round_speed.random_users(folder / "users", users)
    recipe = round_speed.paper_recipe(population, users, kind, "mixed")
    recipe = recipe.model_copy(
        update={"local": recipe.local.model_copy(update={"batch_size": rows, "unroll": words})}
    )
    algorithm, key = build.algorithm(recipe, round_speed.WORDS), randomness.jax_key(bytes(32))
    params = build.language_model(recipe.model, round_speed.WORDS).init(key)
    fleet = assemble.fleet(recipe, population, population.folder)
    message = Message(params, algorithm.mechanism.public(algorithm.mechanism.init(params)))

    def train() -> object:
        return jax.block_until_ready(
            fleet.sum_reports(device_program(algorithm), message, np.arange(users), key)
        )

    alone, whole = (
        best_time(train, ROUNDS),
        round_seconds(recipe, fleet, params, round_speed.WORDS, ROUNDS),
    )
    steps = users * round_speed.TOKENS // (rows * words)
    print(
        f"{kind}, {users} users, rows of {words} × {rows}: {users / whole:.0f} users/s, training"
        f" and summing alone {users / alone:.0f}"
    )
    print(
        ", ".join(
            f"{name} {1e3 * seconds:.2f}" for name, seconds in parts(recipe, fleet, params).items()
        ),
        "ms",
    )
    by_kernel = traced(train)
    print(
        f"{by_kernel.total() / steps:8.2f} µs of a user and step in kernels,"
        f" {1e6 * alone / steps:.2f} with the host"
    )
    for name, microseconds in by_kernel.most_common(SHOWN):
        print(f"{microseconds / steps:8.3f} {name[:100]}")


def parts(recipe: Recipe, fleet: FleetWithStats, params: Params) -> dict[str, float]:
    """Return the seconds that each part of a round takes at best, each waited for, so that together
    they are a little slower.
    """
    with throwaway_curator(recipe, fleet, round_speed.WORDS) as curator:
        taken: dict[str, list[float]] = {}
        for part, owner, method in (
            ("select", curator, "_draw_cohort"),
            ("sum", fleet, "sum_reports"),
            ("noise", curator, "_release"),
            ("check alone", curator.account, "check_alone"),
            ("record", curator._records, "write"),
            ("charge", curator.account, "charge"),
        ):
            setattr(owner, method, timed(getattr(owner, method), taken.setdefault(part, [])))
        training = rounds(build.algorithm(recipe, round_speed.WORDS), curator, params)
        whole = timed(lambda: next(training).server, taken.setdefault("all", []))
        for _ in range(1 + ROUNDS):
            whole()
        del fleet.sum_reports
    best = {part: min(seconds[1:]) for part, seconds in taken.items()}  # the first compiles
    return best | {
        "others": best["all"] - sum(seconds for part, seconds in best.items() if part != "all")
    }


def timed(work: Callable, seconds: list[float]) -> Callable:
    def waited_for(*given: object) -> object:
        began = time.perf_counter()
        result = jax.block_until_ready(work(*given))
        seconds.append(time.perf_counter() - began)
        return result

    return waited_for


def traced(work: Callable[[], object]) -> Counter[str]:
    """Return the µs that each kernel took on the device's streams."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            work()
        events = [
            event
            for path in glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True)
            for event in _events(path)
        ]
    processes = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("name") == "process_name"
    }
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event.get("name") == "thread_name"
    }
    spent: Counter[str] = Counter()
    for event in events:
        on_device = event.get("ph") == "X" and "GPU" in processes.get(event["pid"], "")
        if on_device and "Stream" in threads.get((event["pid"], event["tid"]), ""):
            spent[event["name"]] += event["dur"]
    return spent


def _events(path: str) -> list[dict]:
    return json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]


if __name__ == "__main__":
    main()
