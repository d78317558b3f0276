"""Accuracy, loss and perplexity on text outside the training, with intervals over users.

As in McMahan et al. 2018, Appendix B: a target outside the vocabulary is always a mistake, and a
special token is not an answer.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import BEGIN, PADDING, UNKNOWN, LanguageModel, Params, WordModel
from taciturn.data.layout import Cut, Unrolls
from taciturn.data.token_shards import Texts
from taciturn.evaluation.intervals import BUCKETS, Figures, Sums, share
from taciturn.models import losses
from taciturn.progress import Progress, ignore_progress

# tokens read in a row
WINDOW = Unrolls(200)
# scored at a time; more do not stay in a CPU's cache
CPU_TOKENS, ACCELERATOR_TOKENS = 800, 12_800
NO_ANSWERS = np.array([PADDING, UNKNOWN, BEGIN])


def _perplexity(scores: "Scores", kept: np.ndarray) -> float:
    """Return the perplexity: infinite for a model that diverged."""
    loss = METRICS["loss"](scores, kept)
    return math.exp(loss) if loss < 700 else math.inf


METRICS: Figures = {
    "accuracy_top1": share("top1", "tokens"),
    "accuracy_top3": share("top3", "tokens"),
    "accuracy_top5": share("top5", "tokens"),
    "accuracy_in_vocabulary": share("top1", "known"),
    "loss": share("loss", "tokens"),
    "perplexity": _perplexity,
}


@dataclass(frozen=True)
class Scores(Sums):
    """Scores of a model on every text that it read."""

    # tokens that are in the vocabulary
    known: np.ndarray
    top1: np.ndarray
    top3: np.ndarray
    top5: np.ndarray
    loss: np.ndarray

    metrics: ClassVar[Figures] = METRICS

    def of(self, users: np.ndarray) -> "Scores":
        """From columns of one user each: of these users together, the n-th of them in bucket n mod
        100.
        """
        buckets = np.arange(len(users)) % BUCKETS
        return Scores(
            *(np.bincount(buckets, getattr(self, one.name)[users]) for one in fields(self))
        )

    @property
    def together(self) -> "Scores":
        """Of all of them."""
        return self.of(np.arange(len(self.tokens)))


def evaluate(
    model: LanguageModel,
    params: Params,
    texts: Texts,
    cut: Cut = WINDOW,
    progress: Progress = ignore_progress,
) -> Scores:
    """Score a model on users' texts; the n-th user goes to bucket n mod 100."""
    return evaluate_each(model, params, texts, cut, progress).together


def evaluate_each(
    model: LanguageModel,
    params: Params,
    texts: Texts,
    cut: Cut = WINDOW,
    progress: Progress = ignore_progress,
) -> Scores:
    """Score with a column for each user, from which groups are made. Its own intervals would take
    time quadratic in the users.
    """
    if not texts.tokens:
        raise ValueError("there is no held-out text to measure with")
    sums = np.zeros((len(fields(Scores)), len(texts)))
    for rows, users in batched_pieces(texts, cut):
        scored = np.asarray(jax.device_get(_scored(model, params, rows)), np.float64)[
            :, : len(users)
        ]
        for column, values in zip(sums, scored, strict=True):
            np.add.at(column, users, values)
        progress(int(users[-1]) + 1, len(texts))
    return Scores(*sums)


def evaluate_steps(
    model: WordModel, texts: Texts, cut: Cut = WINDOW, progress: Progress = ignore_progress
) -> Scores:
    """Score a model that reads word by word, as n-grams do, on the same rows of text and by the
    same rules. One column per user.
    """
    sums = np.zeros((len(fields(Scores)), len(texts)))
    for user, tokens in enumerate(texts):
        for row in cut.pieces(tokens):
            state = model.start() if row[0] == BEGIN else model.read(model.start(), int(row[0]))
            for target in map(int, row[1:][row[1:] != PADDING]):
                scores, known = model.scores(state), target > UNKNOWN
                rank = rank_among_answers(scores, target)
                sums[:, user] += (
                    1,
                    known,
                    *(known and rank < places for places in (1, 3, 5)),
                    -float(scores[target]),
                )
                state = model.read(state, target)
        progress(user + 1, len(texts))
    return Scores(*sums)


def rank_among_answers(scores: np.ndarray, target: int) -> int:
    """Return how many words a model prefers to the target; among equals it prefers the first."""
    preferred = scores > scores[target]
    preferred[:target] |= scores[:target] == scores[target]
    preferred[NO_ANSWERS] = False
    return int(np.count_nonzero(preferred))


def batched_pieces(texts: Texts, cut: Cut) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pieces of all texts in batches of one size, and whose they are; the last batch is
    filled up with padding.
    """
    on_cpu = jax.default_backend() == "cpu"
    size = max(1, (CPU_TOKENS if on_cpu else ACCELERATOR_TOKENS) // cut.length)
    rows, users = np.zeros((0, cut.length + 1), np.int32), np.zeros(0, np.int64)
    for user, tokens in enumerate(texts):
        pieces = cut.pieces(tokens)
        rows = np.concatenate([rows, pieces])
        users = np.concatenate([users, np.full(len(pieces), user)])
        while len(rows) >= size:
            yield rows[:size], users[:size]
            rows, users = rows[size:], users[size:]
    if len(rows):
        yield np.pad(rows, ((0, size - len(rows)), (0, 0)), constant_values=PADDING), users


@partial(jax.jit, static_argnums=0)
def _scored(model: LanguageModel, params: Params, rows: jax.Array) -> jax.Array:
    targets = rows[:, 1:]
    scores = losses.logits(model, params, rows[:, :-1])
    target_scores = jnp.take_along_axis(scores, targets[..., None], axis=-1)
    loss = jax.nn.logsumexp(scores, axis=-1) - target_scores[..., 0]
    # How many words the model prefers, without special tokens, which are not answers. Among equals
    # the first is preferred, so that a model that scores all words alike is not always right; a
    # broken one (NaN) never is.
    words = jnp.arange(scores.shape[-1])
    preferred = (scores > target_scores) | (
        (scores == target_scores) & (words < targets[..., None])
    )
    rank = jnp.sum(preferred.at[..., NO_ANSWERS].set(False), axis=-1)
    rank = jnp.where(jnp.isfinite(loss), rank, scores.shape[-1])
    present, known = targets != PADDING, targets > UNKNOWN
    hits = [(rank < places) & known for places in (1, 3, 5)]
    columns = (present, known, *hits, jnp.where(present, loss, 0.0))
    return jnp.stack([jnp.sum(column, axis=1, dtype=jnp.float32) for column in columns])
