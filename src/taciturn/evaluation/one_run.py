"""A lower bound on ε from one training (Steinke et al. 2023, "Privacy auditing with one (1) training run").

Of many made-up users each was put in by a fair coin. An attacker gives every one of them a score, high if they think that it was in; the
better scores tell in from out, the larger ε must be. The bound holds with 95 % confidence for whatever attacker, so it may be far below
the truth, and never means that a mechanism is sound: only that it is broken, where it lies above what was claimed.

The bounds are jax-privacy's `CanaryScoreAuditor`. Its estimate from a Gaussian trade-off is not used: of a hundred scores that say
nothing it has ε = 12.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor, Explicit
from scipy.optimize import root_scalar
from scipy.stats import norm

SIGNIFICANCE = 0.05
FALSE_POSITIVES = 0.01
HALVINGS = 8


class Audit(NamedTuple):
    """What scores of made-up users say of ε at a δ, and of who was in."""

    included: int
    left_out: int
    epsilon: float  # with 95 % confidence, whatever the mechanism
    epsilon_fdp: float  # the same confidence, of a mechanism that is said to be Gaussian (Mahloujifar et al. 2024)
    epsilon_gaussian: (
        float  # an estimate, as in Andrew et al. 2023: of the Gaussian mechanism that would part the scores so far
    )
    area: float  # under the ROC curve; 0.5 is guessing
    true_positives: float  # at 1 % false positives


def audited(scores: np.ndarray, included: np.ndarray, delta: float) -> Audit:
    """`included` says by whom the coin fell on in; high scores are guesses of in."""
    if not np.all(np.isfinite(scores)):
        raise ValueError("a score is no number: the model that was audited has diverged")
    inside, outside = scores[included], scores[~included]
    if not len(inside) or not len(outside):
        raise ValueError("all coins fell on one side: audit with more users")
    auditor, (false, true) = CanaryScoreAuditor(inside, outside), curve(scores, included)
    return Audit(
        len(inside),
        len(outside),
        epsilon=_bound(auditor.epsilon_one_run, scores, delta),
        epsilon_fdp=_bound(auditor.epsilon_one_run_fdp, scores, delta),
        epsilon_gaussian=_gaussian_epsilon(inside, outside, delta),
        area=float(np.trapezoid(true, false)),
        true_positives=float(true[false <= FALSE_POSITIVES].max()),
    )


def _bound(method: Callable[..., float], scores: np.ndarray, delta: float) -> float:
    """The largest over numbers of guesses that are fixed before anybody looks: half of all users, a quarter, … . Each gets its part of the
    significance. (The library's own way shares it among thresholds that it picked by looking, and is above 0 in 7 % of audits, not 5 %, of
    a thousand scores that say nothing.)"""
    falling = np.sort(scores)[::-1]
    guesses = sorted({max(len(scores) // 2**halvings, 1) for halvings in range(1, HALVINGS + 1)})
    bounds = [
        method(SIGNIFICANCE / len(guesses), delta, threshold_strategy=Explicit(float(falling[guess - 1])))
        for guess in guesses
    ]
    return float(max(bounds))


def _gaussian_epsilon(inside: np.ndarray, outside: np.ndarray, delta: float) -> float:
    """ε at δ of the mechanism N(0, 1) against N(μ, 1), with μ the distance of the scores in standard deviations (Dong et al. 2022)."""
    spread = np.sqrt((inside.var() + outside.var()) / 2)
    if inside.mean() <= outside.mean():
        return 0.0
    if spread == 0:
        return np.inf
    mu = (inside.mean() - outside.mean()) / spread

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta)

    return root_scalar(excess, bracket=(0.0, mu**2 / 2 + 40 * mu)).root if excess(0.0) > 0 else 0.0


def curve(scores: np.ndarray, included: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates, from guessing nobody in to guessing everybody."""
    order = np.argsort(-scores, kind="stable")
    hits, ends = included[order], np.flatnonzero(np.append(np.diff(np.sort(-scores)) != 0, True))
    true = np.cumsum(hits)[ends] / max(hits.sum(), 1)
    false = np.cumsum(~hits)[ends] / max((~hits).sum(), 1)
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])
