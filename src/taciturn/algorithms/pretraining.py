"""A warm start: ordinary training on public text.

McMahan et al. 2018, Appendix B, call it "likely the best approach for practical applications". It
takes a `PublicCorpus` and nothing else, so no user's text can enter here. An epoch depends only on
its number and on where the one before it ended, so an interrupted training resumes between two of
them as if nothing had happened.
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
from taciturn.data.token_shards import Texts
from taciturn.names import Precision

# Adam's rate: models with unit-norm words tolerate the first, at which others diverge.
FAST = 1.2e-2
SLOW = 3e-3
# Batches, in rows; at the last an H200 reads 3.8M tokens a second.
SMALLEST = 32
LARGEST = 1024
# About how many steps an epoch has, and how many tokens a training reads.
STEPS = 2500
ENOUGH = 60_000_000
# Steps in one go: the device never waits for Python, and a progress bar still moves.
BLOCK = 20
# A GPU adds gradients in any order unless told otherwise; this costs a seventh of its speed (46M
# parameters on an H200).
REPEATABLE = {"xla_gpu_deterministic_ops": True}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a model is trained on public text, and for how long."""

    # Here and in the next two, 0 means what suits text and model (`fit_schedule`); the rate's too.
    epochs: int = 0
    batch_size: int = 0
    # Tokens predicted in a row.
    unroll: int = 20
    # Adam's, at its highest.
    learning_rate: float = 0.0
    precision: Precision = "float32"
    # The share of the documents that is measured on and never trained on.
    held_out: float = 0.02
    # Training stops after this many epochs in a row without a better one.
    patience: int = 2
    seed: int = 0


def fit_schedule(schedule: Schedule, tokens: int, unit_norm: bool) -> Schedule:
    """Fill in batch size, rate and epochs for this many tokens, where none are given.

    Larger batches for more text, so that a GPU is busy and there are still some thousand steps; at
    least 60M tokens read in all, in at most ten epochs.

    >>> schedule = fit_schedule(Schedule(), 55_000_000, unit_norm=False)
    >>> schedule.epochs, schedule.batch_size, schedule.learning_rate
    (3, 1024, 0.0071)
    """
    batch_size = schedule.batch_size or _fit_batch_size(tokens, schedule.unroll)
    rate = FAST if unit_norm else min(FAST, SLOW * (batch_size / SMALLEST) ** 0.25)
    epochs_for_enough = ENOUGH / max(tokens, 1)
    suitable_epochs = min(max(epochs_for_enough, 3), 10)
    return replace(
        schedule,
        epochs=schedule.epochs or int(suitable_epochs),
        batch_size=batch_size,
        learning_rate=schedule.learning_rate or round(rate, 4),
    )


def _fit_batch_size(tokens: int, unroll: int) -> int:
    """Return the power of two that gives an epoch about `STEPS` steps, within bounds."""
    suitable_size = max(tokens / unroll / STEPS, 1.0)
    power_of_two = 2 ** round(log2(suitable_size))
    return min(max(power_of_two, SMALLEST), LARGEST)


class Training(NamedTuple):
    """A model under way, with the state of its optimiser."""

    params: Params
    optimizer: optax.OptState


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some steps of an epoch."""

    # As it is after them.
    training: Training
    # Done in this epoch, counting those of earlier blocks.
    steps: int
    # Learned from in this block.
    tokens: int
    # Its mean over the block.
    loss: float


class _StartedBlock(NamedTuple):
    """A block that the device may still be computing."""

    training: Training
    steps: int
    tokens: int
    loss: jax.Array

    def wait(self) -> Block:
        """Return the block once its loss is there."""
        return Block(
            training=self.training, steps=self.steps, tokens=self.tokens, loss=float(self.loss)
        )


# Of a training, all rows, the order of an epoch, its key, and its steps from the first to the last:
# the training after them, and their mean loss.
_BlockProgram = Callable[
    [Training, jax.Array, jax.Array, Key, int, int], tuple[Training, jax.Array]
]


class Pretraining(NamedTuple):
    """A training on one text: how it begins, and its epochs."""

    # Of an epoch.
    steps: int
    init: Callable[[Params], Training]
    # The n-th, counted from 0.
    epoch: Callable[[Training, int], Iterator[Block]]


def split(corpus: PublicCorpus, share: float, seed: int) -> tuple[PublicCorpus, PublicCorpus]:
    """Split off documents to measure with: at least one, or the end of the only one."""
    if len(corpus.documents) == 1:
        train, measure = _split_document(corpus.documents[0], share)
    else:
        train, measure = _split_documents(corpus.documents, share, seed)
    words = len(corpus.vocabulary)
    return (
        replace(corpus, documents=Texts.of(train, words)),
        replace(corpus, documents=Texts.of(measure, words)),
    )


def _split_document(
    document: np.ndarray, share: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    end = len(document) - max(1, ceil(share * len(document)))
    return [document[:end]], [document[end:]]


def _split_documents(
    documents: Texts, share: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    count = max(1, round(share * len(documents)))
    draw = np.random.default_rng(seed).choice(len(documents), count, replace=False)
    held_out = set(draw.tolist())
    train = [documents[place] for place in range(len(documents)) if place not in held_out]
    measure = [documents[place] for place in sorted(held_out)]
    return train, measure


def pretraining(loss: Loss, text: PublicCorpus, schedule: Schedule) -> Pretraining:
    """Train with Adam, by a schedule that is fitted to the text."""
    batch_size = schedule.batch_size
    pieces = _cut_pieces(text, schedule)
    lengths = np.count_nonzero(pieces[:, 1:] != PADDING, axis=1)
    rows = jnp.asarray(pieces)
    steps = len(pieces) // batch_size
    optimizer = optax.adam(_learning_rate(schedule, steps))
    train_block = _block_program(loss, optimizer)

    def init(params: Params) -> Training:
        return Training(params, optimizer.init(params))

    def epoch(training: Training, number: int) -> Iterator[Block]:
        rng = np.random.default_rng((schedule.seed, number))
        shuffled = rng.permutation(len(pieces))[: steps * batch_size]
        order = shuffled.reshape(steps, -1).astype(np.int32)
        order_on_device = jnp.asarray(order)
        key = jax.random.fold_in(jax.random.key(schedule.seed), number)
        started: _StartedBlock | None = None
        for first in range(0, steps, BLOCK):
            last = min(first + BLOCK, steps)
            training, mean_loss = train_block(training, rows, order_on_device, key, first, last)
            # While the device computes the next.
            if started:
                yield started.wait()
            tokens = int(lengths[order[first:last]].sum())
            started = _StartedBlock(training=training, steps=last, tokens=tokens, loss=mean_loss)
        # There is at least one step.
        assert started
        yield started.wait()

    return Pretraining(steps, init, epoch)


def _cut_pieces(text: PublicCorpus, schedule: Schedule) -> np.ndarray:
    """Cut the text into rows; refuse one that does not fill a batch."""
    unrolls = Unrolls(schedule.unroll)
    pieces = np.concatenate([unrolls.pieces(document) for document in text.documents])
    if len(pieces) < schedule.batch_size:
        raise ValueError(
            f"the text is too short: {len(pieces)} pieces of {schedule.unroll} tokens do not fill a"
            f" batch of {schedule.batch_size}"
        )
    return pieces


def _learning_rate(schedule: Schedule, steps: int) -> optax.Schedule:
    """Return a rate that rises for a twentieth of the time and then falls like a cosine."""
    # A single step leaves a cosine no room.
    all_steps = max(2, schedule.epochs * steps)
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=schedule.learning_rate,
        warmup_steps=all_steps // 20 + 1,
        decay_steps=all_steps,
        end_value=schedule.learning_rate / 20,
    )


def _block_program(loss: Loss, optimizer: optax.GradientTransformation) -> _BlockProgram:
    """Compile some steps of an epoch into one program.

    One program for all of them runs faster than one for each, on a CPU too.
    """

    @partial(jax.jit, compiler_options=REPEATABLE)
    def train_block(
        training: Training, rows: jax.Array, order: jax.Array, key: Key, first: int, last: int
    ) -> tuple[Training, jax.Array]:
        def step(
            number: jax.Array, carry: tuple[Training, jax.Array]
        ) -> tuple[Training, jax.Array]:
            training, total = carry
            batch = rows[order[number]]
            step_key = jax.random.fold_in(key, number)
            value, gradient = jax.value_and_grad(loss)(training.params, batch, step_key)
            return _take_step(optimizer, training, gradient), total + value

        start = (training, jnp.float32(0))
        training, total = jax.lax.fori_loop(first, last, step, start)
        return training, total / (last - first)

    return train_block


def _take_step(
    optimizer: optax.GradientTransformation, training: Training, gradient: Params
) -> Training:
    params = training.params
    updates, state = optimizer.update(gradient, training.optimizer, params)
    return Training(params=trees.add(params, updates), optimizer=state)
