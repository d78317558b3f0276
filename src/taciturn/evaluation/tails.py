"""How much does one user move a model? Empirical privacy by the tails of likelihood ratios (Popov et al. 2018, §3 and Appendix A).

Two models of user sets that differ by one user; texts of ten words sampled from the first. The ratio c(s) = P(s | θ) / P(s | θ′) has
a tail like Pareto's, P(c > x) = C · x^−α, from which follows the ε at a δ. **An estimate, not a guarantee**: it holds for the pairs of
sets that were tried, and for texts sampled at random, and says nothing of anyone who looks for more. The guarantee is the ledger's.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np

from taciturn.core import Key, WordModel
from taciturn.models.sampling import samples
from taciturn.models.stepping import Recurrent, Windowed

LENGTH = 10  # words of a text
SIGNIFICANCE = 0.05
CRITICAL = 1.08  # of the Lilliefors test at 5 %, as the paper prints it; `critical_value` computes it again


class Tail(NamedTuple):
    """Pareto's law for the largest ratios, P(c > x) = C · x^−α for x ≥ x_0, and how well it fits."""

    shape: float  # α, Hill's estimator
    scale: float  # C
    start: float  # x_0
    statistic: float  # of the Lilliefors test
    used: int  # k, of the largest ratios

    @property
    def fits(self) -> bool:
        """Whether the test does not reject the law at 5 %."""
        return self.statistic <= critical_value(self.used)

    def epsilon(self, delta: float) -> float:
        """The ε with P(c > e^ε) = δ (formula 7); outside of the tail, where ε < log x_0, the start of it is an upper bound."""
        if self.shape == math.inf:
            return math.log(self.start)
        return max(math.log(self.scale / delta) / self.shape, math.log(self.start))


def log_ratios(model: Recurrent | Windowed, other: Recurrent | Windowed, count: int, key: Key) -> np.ndarray:
    """log c(s) of texts that the first model made up, each from its beginning."""
    found: list[float] = []
    while len(found) < count:
        key, now = jax.random.split(key)
        texts = list(samples(model, 1, now))[: count - len(found)]
        found += [_log_probability(model, text[:LENGTH]) - _log_probability(other, text[:LENGTH]) for text in texts]
    return np.array(found)


def _log_probability(model: WordModel, text: np.ndarray) -> float:
    state, total = model.start(), 0.0
    for word in text.tolist():
        total += float(model.scores(state)[word])
        state = model.read(state, word)
    return total


def tail(log_ratios: np.ndarray) -> Tail:
    """Hill's estimator over the k = 2⌊√n⌋ largest of n ratios (formulas 9, 10 and 12)."""
    count = len(log_ratios)
    used = 2 * math.isqrt(count)
    if not 2 <= used < count:
        raise ValueError(f"{count} ratios are too few to look at their tail")
    largest = np.sort(log_ratios)[::-1][:used]
    excess = largest - largest[-1]  # r_i
    mean = float(excess.mean())
    if mean == 0.0:
        return Tail(math.inf, math.nan, math.exp(largest[-1]), 0.0, used)
    shape = 1.0 / mean
    scale = used / count * math.exp(shape * largest[-1])
    return Tail(shape, scale, math.exp(largest[-1]), lilliefors(excess), used)


def lilliefors(values: np.ndarray) -> float:
    """√k times the largest distance between the empirical distribution and the exponential one of the same mean."""
    ordered = np.sort(values) / values.mean()
    count = len(ordered)
    expected = -np.expm1(-ordered)
    above = np.arange(1, count + 1) / count - expected
    below = expected - np.arange(count) / count
    return math.sqrt(count) * float(max(above.max(), below.max()))


@lru_cache
def critical_value(count: int, significance: float = SIGNIFICANCE, tries: int = 4000) -> float:
    """Of the Lilliefors test for so many values, by simulation."""
    generator = np.random.default_rng(1969)
    return float(np.quantile([lilliefors(generator.exponential(size=count)) for _ in range(tries)], 1 - significance))


def largest_epsilon(tails: Iterable[Tail], delta: float) -> float:
    """Over all pairs, as the paper reports it."""
    return max(one.epsilon(delta) for one in tails)
