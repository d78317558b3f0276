"""What belongs to a round besides training, and what the machine could do at most: `python
benchmarks/ceilings.py [mixed]`.

Prints the milliseconds of BLT noise for the 2.4M model, and of ε of 5,000 Poisson rounds; tokens a
second of evaluation; bytes a second of copies and operations a second of matrix products, and the
share of those that the paper round needs at a number of users a second.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.bench.round_speed import TOKENS, WORDS, paper_recipe, random_users, round_speed
from taciturn.core import Params
from taciturn.data.population import HeldOutUsers, Population
from taciturn.evaluation.accuracy import evaluate
from taciturn.models.cells import cifg
from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.noise.chacha20 import key_words
from taciturn.privacy.noise.correlated import Buffers, blt
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.participation import PoissonSampling
from taciturn.runs.timing import best_time


def main() -> None:
    precision = "mixed" if "mixed" in sys.argv else "float32"
    products, params = product_rate(precision), cifg(WORDS).init(jax.random.key(0))
    with tempfile.TemporaryDirectory() as folder:
        users = random_users(Path(folder) / "users", 20)
        speed, trained = round_speed(users, paper_recipe(users, 20, "lstm", precision), 3)
        print(
            f"BLT noise {1e3 * blt_release(params):.2f} ms, ε of 5,000 rounds"
            f" {1e3 * accounting():.0f} ms"
        )
        print(f"evaluation {evaluation(users, params):,.0f} tokens/s")
    print(f"copies {copy_rate() / 1e9:,.0f} GB/s, products {products / 1e9:,.0f} GFLOP/s")
    rate, share = speed["users_per_s"], speed["users_per_s"] * operations(trained) / products
    print(f"the paper round, {rate:,.1f} users/s, takes {share:.0%} of the products")


def operations(params: Params) -> float:
    """Count the operations of one user's training: two for each matrix entry and token forwards,
    four backwards; look-ups are free.
    """
    looked_up = params["embedding"].size if "word_embedding" in params else 0
    return 6 * (trees.size(params) - looked_up) * TOKENS


def blt_release(params: Params) -> float:
    noise = blt(1.0, Buffers(2000, (0.97, 0.9, 0.4), (0.16, 0.16, 0.2)))
    private = mechanism(flat_clip(1.0), fixed_denominator(1000.0), noise, most_reports=2000)
    state, key = private.init(params), key_words(bytes(32))
    nobody = trees.zeros_like(
        jax.eval_shape(private.bound, jnp.float32(1), params, jnp.float32(0), jax.random.key(0))
    )
    step = jax.jit(private.release)
    return best_time(lambda: step(state, nobody, key), 5)


def accounting() -> float:
    began = time.perf_counter()
    epsilon(repeat(PoissonSampling(5000 / 763_430).event(1.0), 5000), 1e-9)
    return time.perf_counter() - began


def evaluation(population: Population, params: Params) -> float:
    model, texts = cifg(WORDS), HeldOutUsers(population.folder).texts
    return texts.tokens / best_time(lambda: evaluate(model, params, texts), 1)


def copy_rate() -> float:
    """Measure bytes a second, read and written."""
    size = 2**24 if jax.default_backend() == "cpu" else 2**29
    values, step = jnp.ones(size, jnp.float32), jax.jit(lambda values: values * 1.0001)
    return 8 * size / best_time(lambda: step(values), 5)


def product_rate(precision: str) -> float:
    size = 2048 if jax.default_backend() == "cpu" else 8192
    left = jax.random.uniform(
        jax.random.key(0), (size, size), jnp.bfloat16 if precision == "mixed" else jnp.float32
    )
    return 2.0 * size**3 / best_time(partial(jax.jit(lambda left: left @ left), left), 3)


if __name__ == "__main__":
    main()
