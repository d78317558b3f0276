"""Would an audit notice? Trains a recipe with a mechanism that is broken on purpose, and audits it.

    python experiments/ramaswamy2020/broken.py RECIPE.toml --share 0 --run runs/broken --audit 1000
        [--set section.key=value …]

The ledger is charged for all of the noise; only --share of it is added. 1 is the mechanism as it
is. `taciturn audit run RUN` then says what can be seen from outside; its exit status is 1 where the
claim is broken.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from taciturn.core import Algorithm
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe
from taciturn.runs.loop import train_run

# The smallest noise multiplier there is.
LEAST = 1e-3
BuildAlgorithm = Callable[[Recipe, int], Algorithm]


def break_mechanism(honest: BuildAlgorithm, share: float) -> BuildAlgorithm:
    """Return what builds an algorithm that charges all of its noise, and adds a share of it."""

    def build_broken(recipe: Recipe, vocabulary: int) -> Algorithm:
        whole = honest(recipe, vocabulary)
        multiplier = max(share * (recipe.privacy.noise_multiplier or 0.0), LEAST)
        quieter = honest(recipe.with_settings("privacy", noise_multiplier=multiplier), vocabulary)
        mechanism = quieter.mechanism._replace(event=whole.mechanism.event)
        return whole._replace(mechanism=mechanism)

    return build_broken


def print_round(done: int, rounds: int, row: dict[str, Any]) -> None:
    print(f"{done} of {rounds}", end="\r", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--share", type=float, default=0.0, help="of the noise that is added")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--audit", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    # One stream of users on each core, as `taciturn train` has it.
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    build.algorithm = break_mechanism(build.algorithm, options.share)
    recipe = load_recipe(options.recipe, [*options.set, f"audit.users={options.audit}"])
    finished = train_run(recipe, options.run, print_round)
    print(f"\nAccuracyTop1 {finished.scores['accuracy_top1']:.2%}; {finished.folder}")


if __name__ == "__main__":
    main()
