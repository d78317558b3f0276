"""Your own model, trained, saved, resumed, exported and audited like ours.

python examples/own_model.py POPULATION FOLDER    # a population is made by `taciturn data build`,
or tt.build_population
"""

import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import taciturn as tt


def two_words(vocabulary: int, width: int) -> tt.LanguageModel:
    """Return a model that sees the last two words, each through its own matrix."""

    def init(key):
        embedding_key, last_key, before_key = jax.random.split(key, 3)
        init_matrix = jax.nn.initializers.lecun_normal()
        return {
            "embedding": 0.1 * jax.random.normal(embedding_key, (vocabulary, width)),
            "last": init_matrix(last_key, (width, width)),
            "before": init_matrix(before_key, (width, width)),
            "word_bias": jnp.zeros(vocabulary),
        }

    def contexts(params, tokens, key):
        last = params["embedding"][tokens]
        # The same, one word later.
        padded = jnp.pad(last, ((0, 0), (1, 0), (0, 0)))
        before = padded[:, :-1]
        return jnp.tanh(last @ params["last"] + before @ params["before"])

    def words(params):
        return params["embedding"], params["word_bias"]

    return tt.LanguageModel(init=init, contexts=contexts, words=words)


tt.register_model("two-words", tt.ModelKind(two_words, settings=("width",)))


def make_recipe(population: Path, users: int, rounds: int) -> tt.Recipe:
    sections: dict[str, Any] = {
        "data": {"population": str(population)},
        "model": {"kind": "two-words", "width": 24},
        "participation": {"users": users, "cohort": users / 5},
        "privacy": {"noise_multiplier": 1.0},
        # Synthetic ones, by whom the run is audited.
        "audit": {"users": 64},
        "run": {"rounds": rounds},
    }
    return tt.Recipe(**sections)


def main(population: Path, folder: Path, users: int = 1000, rounds: int = 50) -> tt.FinishedRun:
    recipe = make_recipe(population, users, rounds)
    # If it is interrupted at any moment: tt.resume(folder / "run").
    run = tt.train(recipe, folder / "run")
    accuracy = run.evaluate().accuracy_top1
    # Rounded up: a promise may be stated too weak, not too strong.
    epsilon = math.ceil(100 * run.guarantee.epsilon) / 100
    print(f"{accuracy:.2%} right at ε = {epsilon}, δ = {run.guarantee.delta:.3g}")
    membership = run.audit().membership
    assert membership is not None
    # By its users, or by the noise of its first rounds.
    print("the audit refutes the claim:", membership.is_refuted)
    # With to="arpa" they are n-grams.
    files = run.export(folder / "model").files
    print("files with its guarantee:", *(path.name for path in files))
    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
