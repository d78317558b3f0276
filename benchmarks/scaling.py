"""How the cost of a round grows: with users, words, parameters. Prints one line for each; every
line is a process of its own, so that peak memory is its own too.

    python benchmarks/scaling.py                  # all lines; a few minutes on two cores
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = [
    {"users": 10},
    {"users": 20},
    {"users": 40},
    {"users": 80},
    {"words": 5_000},
    {"words": 20_000},
    {"words": 40_000},
    {"model": "cifg"},
    {"model": "gru"},
]


def measure(case: dict) -> dict:
    """Measure a round that differs in one thing from 20 users, 10,000 words and the LSTM."""
    import jax

    from taciturn import trees
    from taciturn.bench import round_speed

    # One stream of users on each core, as the commands have it.
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    users = case.get("users", 20)
    round_speed.WORDS = case.get("words", 10_000)
    with tempfile.TemporaryDirectory() as folder:
        population = round_speed.random_users(Path(folder) / "users", users)
        recipe = round_speed.paper_recipe(population, users, "lstm", "float32")
        recipe = recipe.with_settings("model", kind=case.get("model", "lstm"))
        speed, params = round_speed.round_speed(population, recipe, 2)
    return {
        **case,
        "parameters": trees.size(params),
        "users_per_s": round(speed.users_per_s, 3),
        "round_s": round(speed.round_s, 3),
        "privacy_share": round(speed.privacy_share, 3),
        "peak_gib": round(speed.peak_gib, 3),
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
    else:
        for case in CASES:
            subprocess.run([sys.executable, __file__, json.dumps(case)], check=True)
