"""Measure how much one user moves a model: empirical privacy by the tails of likelihood ratios (Popov et al. 2018, §3 and Appendix A).

For texts of ten words sampled from a model θ, the ratio c(s) = P(s | θ) / P(s | θ′) to a model trained without one user has a tail like
Pareto's, P(c > x) = C · x^−α, which gives the ε at a δ. **An estimate, not a guarantee**: it holds for the pairs of user sets that
were tried, and for texts sampled at random.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import BEGIN, PADDING, Key, LanguageModel, Params
from taciturn.models import losses
from taciturn.models.sampling import beginnings
from taciturn.progress import Progress, unwatched

LENGTH = 10  # words of a text
AT_A_TIME = 500  # texts
SIGNIFICANCE = 0.05


class Tail(NamedTuple):
    """Pareto's law for the largest ratios, P(c > x) = C · x^−α for x ≥ x_0, and how well it fits."""

    shape: float  # α, Hill's estimator
    scale: float  # C
    start: float  # x_0
    statistic: float  # of the Lilliefors test
    used: int  # k, the number of largest ratios

    @property
    def fits(self) -> bool:
        """Return whether the test does not reject the law at 5 %; identical ratios follow none."""
        return math.isfinite(self.shape) and self.statistic <= critical_value(self.used)

    def epsilon(self, delta: float) -> float:
        """Return the ε with P(c > e^ε) = δ (formula 7); outside the tail, where ε < log x_0, its start is an upper bound."""
        if self.shape == math.inf:
            return math.log(self.start)
        return max(math.log(self.scale / delta) / self.shape, math.log(self.start))


def log_ratios(model: LanguageModel, params: Params, other: Params, count: int, key: Key, progress: Progress = unwatched) -> np.ndarray:
    """Return log c(s) of texts sampled from θ, each from its beginning; θ′ is `other`."""

    @jax.jit
    def some(params: Params, other: Params, key: Key) -> jax.Array:
        texts = beginnings(model, params, AT_A_TIME, LENGTH, key)
        return _log_probability(model, params, texts) - _log_probability(model, other, texts)

    found = []
    for block in range(0, count, AT_A_TIME):
        found.append(np.asarray(some(params, other, jax.random.fold_in(key, block))))
        progress(min(block + AT_A_TIME, count), count)
    return np.concatenate(found)[:count].astype(np.float64)


def _log_probability(model: LanguageModel, params: Params, texts: jax.Array) -> jax.Array:
    """Return the log probability of each row after its <bos>, where padding and further beginnings have probability zero."""
    silent = np.array([PADDING, BEGIN])
    scores = jax.nn.log_softmax(losses.logits(model, params, texts[:, :-1]).at[..., silent].set(-jnp.inf))
    return jnp.sum(jnp.take_along_axis(scores, texts[:, 1:, None], axis=-1)[..., 0], axis=1)


def tail(log_ratios: np.ndarray) -> Tail:
    """Fit Hill's estimator to the k = 2⌊√n⌋ largest of n ratios (formulas 9, 10 and 12)."""
    count = len(log_ratios)
    used = 2 * math.isqrt(count)
    if not 2 <= used < count:
        raise ValueError(f"{count} ratios are too few to fit their tail")
    largest = np.sort(log_ratios)[::-1][:used]
    excess = largest - largest[-1]  # r_i
    mean = float(excess.mean())
    if mean == 0.0:
        return Tail(math.inf, math.nan, math.exp(largest[-1]), 0.0, used)
    shape = 1.0 / mean
    scale = used / count * math.exp(shape * largest[-1])
    return Tail(shape, scale, math.exp(largest[-1]), lilliefors(excess), used)


def lilliefors(values: np.ndarray) -> float:
    """Return √k times the largest distance between the empirical distribution and the exponential one of the same mean."""
    count, expected = len(values), -np.expm1(-np.sort(values) / values.mean())
    steps = np.arange(count + 1) / count
    return math.sqrt(count) * float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))


@lru_cache
def critical_value(count: int) -> float:
    """Simulate the critical value of the Lilliefors test for `count` values."""
    generator = np.random.default_rng(1969)
    return float(np.quantile([lilliefors(generator.exponential(size=count)) for _ in range(4000)], 1 - SIGNIFICANCE))


def largest_epsilon(tails: Iterable[Tail], delta: float) -> float:
    """Return the largest over all pairs, as the paper reports it; NaN if one of them is."""
    return float(np.max([one.epsilon(delta) for one in tails]))
