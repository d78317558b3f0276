"""Accuracy, loss and perplexity on text outside the training, with intervals over users.

As in McMahan et al. 2018, Appendix B: a target outside the vocabulary is always a mistake, and a
special token is not an answer.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import BEGIN, PADDING, UNKNOWN, LanguageModel, Params, WordModel
from taciturn.data.layout import Cut, Unrolls
from taciturn.data.token_shards import Texts
from taciturn.evaluation.intervals import BUCKETS, Figures, Sums, share
from taciturn.models import losses
from taciturn.progress import Progress, ignore_progress

# Tokens read in a row.
WINDOW = Unrolls(200)
# Scored at a time; more do not stay in a CPU's cache.
CPU_TOKENS = 800
ACCELERATOR_TOKENS = 12_800
NO_ANSWERS = np.array([PADDING, UNKNOWN, BEGIN])
# Among how many answers a target is, to count in `top1`, `top3` and `top5`.
PLACES = (1, 3, 5)


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


@dataclass(frozen=True, kw_only=True)
class Scores(Sums):
    """Scores of a model on every text that it read."""

    # Tokens that are in the vocabulary.
    known: np.ndarray
    top1: np.ndarray
    top3: np.ndarray
    top5: np.ndarray
    loss: np.ndarray

    metrics: ClassVar[Figures] = METRICS

    def pool(self, users: np.ndarray) -> "Scores":
        """Pool these users' columns into 100 buckets; user n goes to bucket n mod 100."""
        buckets = np.arange(len(users)) % BUCKETS
        sums = {}
        for field in fields(self):
            columns = getattr(self, field.name)
            sums[field.name] = np.bincount(buckets, columns[users])
        return Scores(**sums)

    @classmethod
    def join(cls, parts: Sequence["Scores"]) -> "Scores":
        """Return the columns of several scores side by side."""
        columns = {}
        for field in fields(cls):
            columns[field.name] = np.concatenate([getattr(part, field.name) for part in parts])
        return cls(**columns)

    @property
    def together(self) -> "Scores":
        """Pool all users."""
        return self.pool(np.arange(len(self.tokens)))


def evaluate(
    model: LanguageModel,
    params: Params,
    texts: Texts,
    cut: Cut = WINDOW,
    progress: Progress = ignore_progress,
) -> Scores:
    """Score a model on users' texts; the n-th user goes to bucket n mod 100."""
    return evaluate_each(model, params, texts, cut=cut, progress=progress).together


def evaluate_each(
    model: LanguageModel,
    params: Params,
    texts: Texts,
    cut: Cut = WINDOW,
    progress: Progress = ignore_progress,
) -> Scores:
    """Score a model with a column for each user, from which groups are made.

    Intervals of these scores themselves would take time quadratic in the users.

    Args:
        model: what is scored.
        params: its parameters.
        texts: one of each user.
        cut: how a text is cut into rows.
        progress: called with the users that are done, and how many there are.
    """
    if not texts.tokens:
        raise ValueError("there is no held-out text to measure with")
    sums = _no_sums(texts)
    for batch in batched_pieces(texts, cut):
        row_sums = jax.device_get(_score_rows(model, params, batch.rows))
        _add_to_users(
            sums,
            users=batch.users,
            row_sums=np.asarray(row_sums, np.float64),
        )
        last_user = int(batch.users[-1])
        progress(last_user + 1, len(texts))
    return _name_sums(sums)


def _add_to_users(sums: np.ndarray, *, users: np.ndarray, row_sums: np.ndarray) -> None:
    """Add the sums of each row to those of its user; rows after the users' are padding."""
    used = row_sums[:, : len(users)]
    for column, values in zip(sums, used, strict=True):
        np.add.at(column, users, values)


def evaluate_steps(
    model: WordModel, texts: Texts, cut: Cut = WINDOW, progress: Progress = ignore_progress
) -> Scores:
    """Score a model that reads word by word, as n-grams do, with a column for each user.

    It reads the same rows of text, and is scored by the same rules.
    """
    sums = _no_sums(texts)
    for user, tokens in enumerate(texts):
        for row in cut.pieces(tokens):
            for word_sums in _score_words(model, row):
                sums[:, user] += word_sums
        progress(user + 1, len(texts))
    return _name_sums(sums)


def _score_words(model: WordModel, row: np.ndarray) -> Iterator[tuple[float, ...]]:
    """Yield what each word of a row adds to the sums."""
    first, *words = row.tolist()
    state = model.start()
    if first != BEGIN:
        state = model.read(state, first)
    for word in words:
        if word != PADDING:
            yield _score_word(model.scores(state), word)
            state = model.read(state, word)


def _score_word(scores: np.ndarray, target: int) -> tuple[float, ...]:
    """Return what a word adds to the sums, in the order of the fields of `Scores`."""
    is_known = target > UNKNOWN
    rank = rank_among_answers(scores, target)
    hits = [is_known and rank < places for places in PLACES]
    return (1, is_known, *hits, -float(scores[target]))


def _no_sums(texts: Texts) -> np.ndarray:
    """Return zeros in the order of the fields of `Scores`: [fields, users]."""
    return np.zeros((len(fields(Scores)), len(texts)))


def _name_sums(sums: np.ndarray) -> Scores:
    """Return scores from their sums in the order of the fields, [fields, users]."""
    names = [field.name for field in fields(Scores)]
    return Scores(**dict(zip(names, sums, strict=True)))


def rank_among_answers(scores: np.ndarray, target: int) -> int:
    """Return how many words a model prefers to the target; among equals it prefers the first."""
    is_preferred = scores > scores[target]
    is_preferred[:target] |= scores[:target] == scores[target]
    is_preferred[NO_ANSWERS] = False
    return int(np.count_nonzero(is_preferred))


class Batch(NamedTuple):
    """Pieces of texts, and whose they are."""

    # int32 [rows, length + 1].
    rows: np.ndarray
    # [rows]; fewer in a last batch, whose other rows are padding.
    users: np.ndarray

    def take(self, count: int) -> "Batch":
        return Batch(self.rows[:count], self.users[:count])

    def drop(self, count: int) -> "Batch":
        return Batch(self.rows[count:], self.users[count:])

    def add(self, pieces: np.ndarray, user: int) -> "Batch":
        owners = np.full(len(pieces), user)
        rows = np.concatenate([self.rows, pieces])
        users = np.concatenate([self.users, owners])
        return Batch(rows, users)

    def fill_up(self, size: int) -> "Batch":
        missing = size - len(self.rows)
        rows = np.pad(self.rows, ((0, missing), (0, 0)), constant_values=PADDING)
        return Batch(rows, self.users)


def batched_pieces(texts: Texts, cut: Cut) -> Iterator[Batch]:
    """Yield pieces of all texts in batches of one size.

    The last batch is filled up with padding.
    """
    size = _rows_at_a_time(cut)
    waiting = Batch(
        rows=np.zeros((0, cut.length + 1), np.int32),
        users=np.zeros(0, np.int64),
    )
    for user, tokens in enumerate(texts):
        waiting = waiting.add(cut.pieces(tokens), user)
        while len(waiting.rows) >= size:
            yield waiting.take(size)
            waiting = waiting.drop(size)
    if len(waiting.rows):
        yield waiting.fill_up(size)


def _rows_at_a_time(cut: Cut) -> int:
    is_on_cpu = jax.default_backend() == "cpu"
    most_tokens = CPU_TOKENS if is_on_cpu else ACCELERATOR_TOKENS
    return max(1, most_tokens // cut.length)


@partial(jax.jit, static_argnums=0)
def _score_rows(model: LanguageModel, params: Params, rows: jax.Array) -> jax.Array:
    """Return the sums over each row, in the order of the fields of `Scores`: [fields, rows]."""
    targets = rows[:, 1:]
    scores = losses.logits(model, params, rows[:, :-1])
    target_scores = jnp.take_along_axis(scores, targets[..., None], axis=-1)
    loss = jax.nn.logsumexp(scores, axis=-1) - target_scores[..., 0]
    rank = _rank_targets(scores=scores, targets=targets, target_scores=target_scores)
    # A broken model (NaN) is never right.
    rank = jnp.where(jnp.isfinite(loss), rank, scores.shape[-1])
    return _sum_columns(targets=targets, loss=loss, rank=rank)


def _sum_columns(*, targets: jax.Array, loss: jax.Array, rank: jax.Array) -> jax.Array:
    is_present = targets != PADDING
    is_known = targets > UNKNOWN
    columns = {
        "tokens": is_present,
        "known": is_known,
        "top1": (rank < 1) & is_known,
        "top3": (rank < 3) & is_known,
        "top5": (rank < 5) & is_known,
        "loss": jnp.where(is_present, loss, 0.0),
    }
    in_order = [columns[field.name] for field in fields(Scores)]
    return jnp.stack([_sum_rows(column) for column in in_order])


def _sum_rows(values: jax.Array) -> jax.Array:
    return jnp.sum(values, axis=1, dtype=jnp.float32)


def _rank_targets(*, scores: jax.Array, targets: jax.Array, target_scores: jax.Array) -> jax.Array:
    """Return how many words the model prefers to each target; special tokens are not answers.

    Among equals it prefers the first, so that a model that scores all words alike is not always
    right.
    """
    words = jnp.arange(scores.shape[-1])
    is_higher = scores > target_scores
    is_equal_and_before = (scores == target_scores) & (words < targets[..., None])
    is_preferred = is_higher | is_equal_and_before
    return jnp.sum(is_preferred.at[..., NO_ANSWERS].set(False), axis=-1)
