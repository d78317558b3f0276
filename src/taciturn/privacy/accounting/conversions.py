"""Convert δ to ε: exactly for a Gaussian mechanism, and for noise that is only close to it.

**Guarantee:** what is returned is an upper bound, and never falls as δ shrinks.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

# ε is looked for between these two.
LEAST_STEP = 1e-9
MOST_EPSILON = 700.0
# Steps of ε are a part in this number: step n is e^(n / 100,000).
STEPS_OF_LOG = 1e5


def with_distance(bound: Callable[[float], float], delta: float, distance: float) -> float:
    """Return ε at δ for noise at this distance from normal noise.

    Args:
        bound: ε of the normal noise at any δ.
        delta: the δ at which ε is wanted.
        distance: the total variation distance between the two noises.
    """
    is_distance = 0 <= distance < math.inf
    if not is_distance:
        raise ValueError(
            f"a distance between distributions is not negative; {distance} cannot be one"
        )
    if distance == 0:
        return bound(delta) if delta > 0 else math.inf

    def remaining_delta(epsilon: float) -> float:
        return (delta - (1 + math.exp(epsilon)) * distance) * (1 - 1e-12)

    return smallest_epsilon(bound, remaining_delta)


def smallest_epsilon(
    bound: Callable[[float], float], remaining_delta: Callable[[float], float]
) -> float:
    """Return the smallest ε, in steps of a part in 100,000, with bound(remaining_delta(ε)) ≤ ε.

    What remains of δ falls as ε grows, so the bound rises, and no ε between one that is too small
    and the bound at it is enough. The steps are the same for every δ, so that a smaller one never
    gives a smaller ε.
    """
    step = 0.0
    while step < MOST_EPSILON and remaining_delta(step) > 0:
        needed = bound(remaining_delta(step))
        if needed <= step:
            return step
        if needed > MOST_EPSILON:
            return math.inf
        step = _next_step(step, needed)
    return math.inf


def _next_step(step: float, needed: float) -> float:
    """Return the first step above `step` that is at least `needed`."""
    index = math.ceil(math.log(max(needed, LEAST_STEP)) * STEPS_OF_LOG)
    next_step = max(math.exp(index / STEPS_OF_LOG), math.nextafter(step, math.inf))
    # Only rounding can make it too small.
    if next_step < needed:
        return math.exp((index + 1) / STEPS_OF_LOG)
    return next_step


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact ε of a Gaussian mechanism of sensitivity over noise μ.

    It is that of μ-GDP (Balle and Wang 2018, Theorem 8). It never falls as δ shrinks: the same ε
    are tried for every δ, and one that is enough for a δ is enough for every larger one.

    >>> round(gaussian_epsilon(math.sqrt(2 * 0.89), 1e-10), 2)
    9.01
    """

    log_delta = math.log(delta)
    if _gaussian_log_delta(mu, 0.0) <= log_delta:
        return 0.0
    low = 0.0
    high = 1.0
    # At a μ so large that floats overflow this ends with NaN at ε = ∞, which is the answer then.
    while _gaussian_log_delta(mu, high) > log_delta:
        low = high
        high = 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if _gaussian_log_delta(mu, middle) <= log_delta:
            high = middle
        else:
            low = middle
    return high


def _gaussian_log_delta(mu: float, epsilon: float) -> float:
    """Return log δ of a Gaussian mechanism at ε, from above.

    It is the difference of two nearly equal numbers, and is increased by its largest rounding
    error.
    """
    above = log_ndtr(mu / 2 - epsilon / mu)
    below = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    rounding = 1e-15 * (4 + epsilon - below - above)
    log_ratio = min(below - above, 0.0) - rounding
    return above + np.log1p(-np.exp(log_ratio)) + rounding
