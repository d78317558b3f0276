"""How long a device trains on 20 kB of text, user's and rehearsed together, on one CPU core (Popov
et al. 2018, §2.5: 140 s on a phone).

    python experiments/popov2018/device_time.py

Batches of 10 rows of 20 words, one epoch, as the paper says; words are drawn at random, which takes
as long as any others.
"""

import os
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.algorithms.local_training import LocalTraining, fedavg_update
from taciturn.core import LanguageModel, Message, Public
from taciturn.data.layout import Layout, Unrolls
from taciturn.models.cells import cifg
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.sgd import sgd_step

BYTES = 20_000
# Of blogs.parquet, with the space.
BYTES_A_WORD = 5.3
ROWS = 10
LENGTH = 20
REPEATS = 3
MODELS = {
    "2×650 LSTM, 30,000 words": (deep_lstm(30_000, dropout_rate=0.5), 30_000),
    "CIFG, 10,000 words": (cifg(10_000), 10_000),
}


class Seconds(NamedTuple):
    # Once.
    to_compile: float
    # The best of some.
    to_train: float


def measure(model: LanguageModel, words: int) -> Seconds:
    """Return how long a device takes with a model of this number of words."""
    generator = np.random.default_rng(0)
    text = generator.integers(4, words, int(BYTES / BYTES_A_WORD))
    layout = Layout.for_pieces(Unrolls(LENGTH), ROWS, len(text) / LENGTH)
    user = layout.user_data(text)
    params = model.init(jax.random.key(0))
    # It trains as if there were no bound.
    message = Message(params, Public(clip_norm=jnp.float32(jnp.inf)))
    key = jax.random.key(1)
    local = LocalTraining(learning_rate=1.0, keyed=True)
    jitted = jax.jit(fedavg_update(sgd_step(model), local))
    began = time.perf_counter()
    update = jitted.lower(message, user, key).compile()
    compiling = time.perf_counter() - began
    times = [_seconds_of(lambda: update(message, user, key)) for _ in range(REPEATS)]
    return Seconds(to_compile=compiling, to_train=min(times))


def _seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - began


def main() -> None:
    # Before JAX computes anything, and counts the cores.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    words = int(BYTES / BYTES_A_WORD)
    print(f"{BYTES / 1000:.0f} kB, {words:,} words, one core of {os.cpu_count()}")
    for name, (model, vocabulary) in MODELS.items():
        seconds = measure(model, vocabulary)
        print(f"{name}: {seconds.to_train:.1f} s, and {seconds.to_compile:.1f} s to compile once")


if __name__ == "__main__":
    main()
