"""How long a device trains on 20 kB of text, user's and rehearsed together, on one CPU core (Popov
et al. 2018, §2.5: 140 s on a phone).

    python experiments/popov2018/device_time.py

Batches of 10 rows of 20 words, one epoch, as the paper says; words are drawn at random, which takes
as long as any others.
"""

import os
import time

import jax
import numpy as np

from taciturn.algorithms.local_training import LocalTraining, fedavg_update
from taciturn.core import LanguageModel, Message
from taciturn.data.layout import Layout, Unrolls
from taciturn.models.cells import cifg
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.sgd import sgd_step

BYTES, BYTES_A_WORD = 20_000, 5.3  # blogs.parquet's, with the space
ROWS, LENGTH, REPEATS = 10, 20, 3
MODELS = {
    "2×650 LSTM, 30,000 words": (deep_lstm(30_000, dropout_rate=0.5), 30_000),
    "CIFG, 10,000 words": (cifg(10_000), 10_000),
}


def seconds(model: LanguageModel, words: int) -> tuple[float, float]:
    """(to compile, once; to train, the best of some)."""
    text = np.random.default_rng(0).integers(4, words, int(BYTES / BYTES_A_WORD))
    user = Layout.for_pieces(Unrolls(LENGTH), ROWS, len(text) / LENGTH).user_data(text)
    message = Message(model.init(jax.random.key(0)), None)
    update = jax.jit(fedavg_update(sgd_step(model), LocalTraining(learning_rate=1.0, keyed=True)))
    began = time.perf_counter()
    compiled = update.lower(message, user, jax.random.key(1)).compile()
    compiling = time.perf_counter() - began
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(compiled(message, user, jax.random.key(1)))
        times.append(time.perf_counter() - began)
    return compiling, min(times)


if __name__ == "__main__":
    os.sched_setaffinity(
        0, {min(os.sched_getaffinity(0))}
    )  # before JAX computes anything, and counts the cores
    print(
        f"{BYTES / 1000:.0f} kB, {int(BYTES / BYTES_A_WORD):,} words, one core of {os.cpu_count()}"
    )
    for name, (model, words) in MODELS.items():
        compiling, training = seconds(model, words)
        print(f"{name}: {training:.1f} s, and {compiling:.1f} s to compile once")
