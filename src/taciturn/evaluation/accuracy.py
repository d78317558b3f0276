"""AccuracyTop1, Top3, loss and perplexity on text outside the training, with intervals over users.

As in McMahan et al. 2018, Appendix B: a target outside the vocabulary is always a mistake, and the model may not answer with a special
sign. Intervals are 95 % jackknife intervals over buckets of users (Ramaswamy et al. 2020, Table 2), so that words of one user do not
pass for independent.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import PADDING, LanguageModel, Params
from taciturn.data.population import Texts
from taciturn.data.vocabulary import BEGIN, UNKNOWN
from taciturn.models import losses

WINDOW = 200  # tokens read in a row
ROWS = 4  # windows at a time; more do not stay in a CPU's cache
BUCKETS = 100
NO_ANSWERS = np.array([PADDING, UNKNOWN, BEGIN])


@dataclass(frozen=True)
class Interval:
    value: float
    margin: float  # half the width of the 95 % interval

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} ± {self.margin:{spec}}"


@dataclass(frozen=True)
class Scores:
    """Sums over buckets of users, [buckets]: everything else follows from them."""

    tokens: np.ndarray
    top1: np.ndarray
    top3: np.ndarray
    loss: np.ndarray

    @property
    def accuracy_top1(self) -> Interval:
        return _jackknife(lambda kept: self.top1[kept].sum() / self.tokens[kept].sum(), len(self.tokens))

    @property
    def accuracy_top3(self) -> Interval:
        return _jackknife(lambda kept: self.top3[kept].sum() / self.tokens[kept].sum(), len(self.tokens))

    @property
    def mean_loss(self) -> Interval:
        return _jackknife(lambda kept: self.loss[kept].sum() / self.tokens[kept].sum(), len(self.tokens))

    @property
    def perplexity(self) -> Interval:
        return _jackknife(lambda kept: _exp(self.loss[kept].sum() / self.tokens[kept].sum()), len(self.tokens))

    def gain_over(self, other: "Scores") -> Interval:
        """Difference in AccuracyTop1 on the same users, paired: much narrower than two intervals apart."""
        if len(self.tokens) != len(other.tokens) or np.any(self.tokens != other.tokens):
            raise ValueError("two models can only be compared on the same text")
        difference = self.top1 - other.top1
        return _jackknife(lambda kept: difference[kept].sum() / self.tokens[kept].sum(), len(self.tokens))


def evaluate(model: LanguageModel, params: Params, texts: Texts) -> Scores:
    """Score a model on users' texts; the n-th user goes to bucket n mod 100."""
    if not len(texts.tokens):
        raise ValueError("there is no held-out text to measure with")
    windows, buckets = _windows(texts)
    score = _scorer(model)
    parts = [jax.device_get(score(params, windows[start : start + ROWS])) for start in range(0, len(windows), ROWS)]
    by_window = np.concatenate(parts, axis=1)[:, : len(buckets)].astype(np.float64)
    sums = [np.bincount(buckets, weights=column, minlength=min(BUCKETS, len(texts))) for column in by_window]
    return Scores(*sums)


def _windows(texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """Rows of WINDOW + 1 ids that overlap by one, and the bucket each belongs to; rows come in whole multiples of ROWS."""
    rows, buckets = [], []
    for user, tokens in enumerate(texts):
        text = np.concatenate([[BEGIN], tokens])
        for start in range(0, len(tokens), WINDOW):
            piece = text[start : start + WINDOW + 1]
            rows.append(np.pad(piece, (0, WINDOW + 1 - len(piece)), constant_values=PADDING))
            buckets.append(user % BUCKETS)
    padding = [np.zeros(WINDOW + 1)] * (-len(rows) % ROWS)
    return np.stack([*rows, *padding]).astype(np.int32), np.array(buckets)


@lru_cache(maxsize=8)
def _scorer(model: LanguageModel):
    @jax.jit
    def score(params: Params, windows: jax.Array) -> jax.Array:
        targets = windows[:, 1:]
        scores = losses.logits(model, params, windows[:, :-1])
        target_scores = jnp.take_along_axis(scores, targets[..., None], axis=-1)
        loss = jax.nn.logsumexp(scores, axis=-1) - target_scores[..., 0]
        # How many words the model prefers, without the special signs, which are no answers.
        rank = jnp.sum(scores > target_scores, axis=-1) - jnp.sum(scores[..., NO_ANSWERS] > target_scores, axis=-1)
        present, known = targets != PADDING, targets > UNKNOWN
        columns = (present, (rank < 1) & known, (rank < 3) & known, jnp.where(present, loss, 0.0))
        return jnp.stack([jnp.sum(column, axis=1, dtype=jnp.float32) for column in columns])

    return score


def _exp(loss: float) -> float:
    """A model that diverged has no perplexity worth a number."""
    return math.exp(loss) if loss < 700 else math.inf


def _jackknife(statistic, buckets: int) -> Interval:
    everyone = np.ones(buckets, bool)
    value = float(statistic(everyone))
    if buckets < 2 or not math.isfinite(value):
        return Interval(value, math.nan)
    without = []
    for bucket in range(buckets):
        everyone[bucket] = False
        without.append(float(statistic(everyone)))
        everyone[bucket] = True
    spread = math.sqrt((buckets - 1) / buckets * sum((one - np.mean(without)) ** 2 for one in without))
    return Interval(value, 1.96 * spread)
