"""A warm start: ordinary training on public text (McMahan et al. 2018, Appendix B, "likely the best
approach for practical applications").

It takes a `PublicCorpus` and nothing else, so no user's text can enter here. An epoch depends only
on its number and on where the one before it ended, so an interrupted training resumes between two
of them as if nothing had happened.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log2
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from taciturn import trees
from taciturn.algorithms.local_training import Loss
from taciturn.core import PADDING, Key, Params
from taciturn.data.layout import Unrolls
from taciturn.data.public import PublicCorpus
from taciturn.data.texts import Texts
from taciturn.names import Precision

FAST, SLOW = (
    1.2e-2,
    3e-3,
)  # Adam's rate: models with unit-norm words tolerate the first, at which others diverge
SMALLEST, LARGEST = 32, 1024  # batches; at the last an H200 reads 3.8M tokens a second
STEPS, ENOUGH = 2500, 60_000_000  # steps of an epoch and tokens of a training, about
BLOCK = 20  # steps in one go: the device never waits for Python, and a progress bar still moves
# A GPU adds gradients in any order unless told otherwise; this costs a seventh of its speed (46M
# parameters on an H200).
REPEATABLE = {"xla_gpu_deterministic_ops": True}


@dataclass(frozen=True)
class Schedule:
    """How a model is trained on public text, and for how long."""

    epochs: int = 0  # 0, as in the next two, means what suits text and model (`fitted`)
    batch_size: int = 0
    unroll: int = 20  # tokens predicted in a row
    learning_rate: float = 0.0  # Adam's, at its highest
    precision: Precision = "float32"
    held_out: float = 0.02  # share of the documents that is measured on and never trained on
    patience: int = 2  # stop after this many epochs in a row without a better one
    seed: int = 0


def fit_schedule(schedule: Schedule, tokens: int, unit_norm: bool) -> Schedule:
    """Fill in batch size, rate and epochs for this many tokens, where none are given: larger
    batches for more text, so that a GPU is busy and there are still some thousand steps; at least
    60M tokens read in all, in at most ten epochs.

    >>> schedule = fit_schedule(Schedule(), 55_000_000, unit_norm=False)
    >>> schedule.epochs, schedule.batch_size, schedule.learning_rate
    (3, 1024, 0.0071)
    """
    suits = max(tokens / schedule.unroll / STEPS, 1.0)
    batch = schedule.batch_size or min(max(2 ** round(log2(suits)), SMALLEST), LARGEST)
    rate = FAST if unit_norm else min(FAST, SLOW * (batch / SMALLEST) ** 0.25)
    epochs = schedule.epochs or int(min(max(ENOUGH / max(tokens, 1), 3), 10))
    return replace(
        schedule,
        epochs=epochs,
        batch_size=batch,
        learning_rate=schedule.learning_rate or round(rate, 4),
    )


class Training(NamedTuple):
    params: Params
    optimizer: optax.OptState


class Block(NamedTuple):
    training: Training  # after some steps
    steps: int  # done in this epoch
    tokens: int  # learned from in this block
    loss: float  # its mean


class Pretraining(NamedTuple):
    steps: int  # of an epoch
    init: Callable[[Params], Training]
    epoch: Callable[[Training, int], Iterator[Block]]  # the n-th, from 0


def split(corpus: PublicCorpus, share: float, seed: int) -> tuple[PublicCorpus, PublicCorpus]:
    """Split off documents to measure with: at least one. Where there is only one, its end is held
    out.
    """
    documents, words = corpus.documents, len(corpus.vocabulary)
    if len(documents) == 1:
        end = len(documents[0]) - max(1, ceil(share * len(documents[0])))
        parts = [documents[0][:end]], [documents[0][end:]]
    else:
        count = max(1, round(share * len(documents)))
        held_out = set(
            np.random.default_rng(seed).choice(len(documents), count, replace=False).tolist()
        )
        trained_on = [
            documents[position] for position in range(len(documents)) if position not in held_out
        ]
        parts = trained_on, [documents[position] for position in sorted(held_out)]
    train, measure = (replace(corpus, documents=Texts.of(part, words)) for part in parts)
    return train, measure


def pretraining(loss: Loss, text: PublicCorpus, schedule: Schedule) -> Pretraining:
    """Train with Adam, at a rate that rises for a twentieth of the time and then falls like a
    cosine. The schedule is a fitted one.
    """
    size, peak_rate = schedule.batch_size, schedule.learning_rate
    pieces = np.concatenate(
        [Unrolls(schedule.unroll).pieces(document) for document in text.documents]
    )
    steps = len(pieces) // size
    if steps == 0:
        raise ValueError(
            f"the text is too short: {len(pieces)} pieces of {schedule.unroll} tokens do not fill a"
            f" batch of {size}"
        )
    rows, lengths = jnp.asarray(pieces), np.count_nonzero(pieces[:, 1:] != PADDING, axis=1)
    whole = max(2, schedule.epochs * steps)  # a single step leaves a cosine no room
    rate = optax.warmup_cosine_decay_schedule(
        0.0, peak_rate, whole // 20 + 1, whole, peak_rate / 20
    )
    optimizer = optax.adam(rate)

    @partial(jax.jit, compiler_options=REPEATABLE)
    def block(
        training: Training, rows: jax.Array, order: jax.Array, key: Key, first: int, last: int
    ) -> tuple[Training, jax.Array]:
        """Take steps `first` to `last` of an epoch. One program for all of them runs faster than
        one for each, on a CPU too.
        """

        def step(
            number: jax.Array, carry: tuple[Training, jax.Array]
        ) -> tuple[Training, jax.Array]:
            (params, state), total = carry
            value, gradient = jax.value_and_grad(loss)(
                params, rows[order[number]], jax.random.fold_in(key, number)
            )
            updates, state = optimizer.update(gradient, state, params)
            return Training(trees.add(params, updates), state), total + value

        training, total = jax.lax.fori_loop(first, last, step, (training, jnp.float32(0)))
        return training, total / (last - first)

    def epoch(training: Training, number: int) -> Iterator[Block]:
        shuffled = np.random.default_rng((schedule.seed, number)).permutation(len(pieces))
        order = shuffled[: steps * size].reshape(steps, -1).astype(np.int32)
        on_device, key = (
            jnp.asarray(order),
            jax.random.fold_in(jax.random.key(schedule.seed), number),
        )
        before = None
        for first in range(0, steps, BLOCK):
            last = min(first + BLOCK, steps)
            training, mean = block(training, rows, on_device, key, first, last)
            if before:
                yield Block(*before[:3], float(before[3]))  # while the device computes the next
            before = training, last, int(lengths[order[first:last]].sum()), mean
        assert before  # there is at least one step
        yield Block(*before[:3], float(before[3]))

    return Pretraining(steps, lambda params: Training(params, optimizer.init(params)), epoch)
