"""What belongs to a round besides training, and what the machine could do at most: `python
benchmarks/ceilings.py [mixed]`.

Prints the milliseconds of BLT noise for the 2.4M model, and of ε of 5,000 Poisson rounds; tokens a
second of evaluation; bytes a second of copies and operations a second of matrix products, and the
share of these operations that the paper round needs at a number of users a second.
"""

import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.bench.round_speed import TOKENS, WORDS, paper_recipe, random_users, round_speed
from taciturn.core import Params
from taciturn.data.population import HeldOutUsers, Population
from taciturn.evaluation.accuracy import evaluate
from taciturn.models.cells import cifg
from taciturn.names import Precision
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
    precision: Precision = "mixed" if "mixed" in sys.argv else "float32"
    products = product_rate(precision)
    params = cifg(WORDS).init(jax.random.key(0))
    with tempfile.TemporaryDirectory() as folder:
        users = random_users(Path(folder) / "users", 20)
        recipe = paper_recipe(users, 20, "lstm", precision)
        speed, trained = round_speed(users, recipe, 3)
        noise = 1e3 * blt_release_seconds(params)
        accounting = 1e3 * accounting_seconds()
        print(f"BLT noise {noise:.2f} ms, ε of 5,000 rounds {accounting:.0f} ms")
        evaluated = evaluation_rate(users, params)
        print(f"evaluation {evaluated:,.0f} tokens/s")
    copies = copy_rate()
    print(f"copies {copies / 1e9:,.0f} GB/s, products {products / 1e9:,.0f} GFLOP/s")
    rate = speed.users_per_s
    share = rate * operations(trained) / products
    print(f"the paper round, {rate:,.1f} users/s, takes {share:.0%} of the products")


def operations(params: Params) -> float:
    """Count the operations of one user's training: two for each matrix entry and token forwards,
    four backwards; look-ups are free.
    """
    looked_up = params["embedding"].size if "word_embedding" in params else 0
    return 6 * (trees.size(params) - looked_up) * TOKENS


def blt_release_seconds(params: Params) -> float:
    buffers = Buffers(rows=2000, decay=(0.97, 0.9, 0.4), scale=(0.16, 0.16, 0.2))
    private = mechanism(
        flat_clip(1.0),
        fixed_denominator(1000.0),
        blt(1.0, buffers),
        most_reports=2000,
    )
    state = private.init(params)
    key = key_words(bytes(32))
    clip_norm = jnp.float32(1)
    weight = jnp.float32(0)
    report = jax.eval_shape(private.bound, clip_norm, params, weight, jax.random.key(0))
    nothing = trees.zeros_like(report)
    release = jax.jit(private.release)
    return best_time(lambda: release(state, nothing, key), 5)


def accounting_seconds() -> float:
    round = PoissonSampling(5000 / 763_430).event(1.0)
    began = time.perf_counter()
    epsilon(repeat(round, 5000), 1e-9)
    return time.perf_counter() - began


def evaluation_rate(population: Population, params: Params) -> float:
    """Measure tokens a second."""
    model = cifg(WORDS)
    texts = HeldOutUsers(population.folder).texts
    return texts.tokens / best_time(lambda: evaluate(model, params, texts), 1)


def copy_rate() -> float:
    """Measure bytes a second, read and written."""
    size = 2**24 if jax.default_backend() == "cpu" else 2**29
    values = jnp.ones(size, jnp.float32)
    copy = jax.jit(lambda values: values * 1.0001)
    return 8 * size / best_time(lambda: copy(values), 5)


def product_rate(precision: Precision) -> float:
    """Measure operations a second of matrix products."""
    size = 2048 if jax.default_backend() == "cpu" else 8192
    dtype = jnp.bfloat16 if precision == "mixed" else jnp.float32
    matrix = jax.random.uniform(jax.random.key(0), (size, size), dtype)
    square = jax.jit(lambda matrix: matrix @ matrix)
    return 2.0 * size**3 / best_time(lambda: square(matrix), 3)


if __name__ == "__main__":
    main()
