"""A model of one's own, trained, saved, resumed, exported and audited like ours.

python examples/own_model.py POPULATION FOLDER    # a population is made by `taciturn data build`,
or tt.build_population
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import taciturn as tt


def two_words(vocabulary: int, width: int) -> tt.LanguageModel:
    """Sees the last two words, each through a matrix of its own."""

    def init(key):
        words, last, before = jax.random.split(key, 3)
        matrix = jax.nn.initializers.lecun_normal()
        return {
            "embedding": 0.1 * jax.random.normal(words, (vocabulary, width)),
            "last": matrix(last, (width, width)),
            "before": matrix(before, (width, width)),
            "word_bias": jnp.zeros(vocabulary),
        }

    def contexts(params, tokens, key):
        seen = params["embedding"][tokens]
        earlier = jnp.pad(seen, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return jnp.tanh(seen @ params["last"] + earlier @ params["before"])

    return tt.LanguageModel(
        init, contexts, words=lambda params: (params["embedding"], params["word_bias"])
    )


tt.register_model("two-words", tt.ModelKind(two_words, settings=("width",)))


def main(population: Path, folder: Path, users: int = 1000, rounds: int = 50) -> tt.FinishedRun:
    recipe = tt.Recipe(
        data={"population": str(population)},
        model={"kind": "two-words", "width": 24},
        participation={"users": users, "cohort": users / 5},
        privacy={"noise_multiplier": 1.0},
        audit={"users": 64},  # made-up ones, by whom the run is audited
        run={"rounds": rounds},
    )
    run = tt.train(recipe, folder / "run")  # killed at any moment: tt.resume(folder / "run")
    print(f"{run.evaluate().accuracy_top1:.2%} right at ε = {run.guarantee.epsilon:.2f}")
    print("the audit refutes the claim:", run.audit().membership.audit.is_refuted)
    print(
        "files with its guarantee:", *(path.name for path in run.export(folder / "model").files)
    )  # to="arpa": n-grams
    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
