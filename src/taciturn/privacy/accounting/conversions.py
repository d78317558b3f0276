"""Convert δ to ε: exactly for a Gaussian mechanism, and for noise that is only close to the one a
proof is about.

**Guarantee:** what is returned is an upper bound, and never falls as δ shrinks.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

# between which ε is looked for
LEAST_STEP, MOST_EPSILON = 1e-9, 700.0


def with_distance(bound: Callable[[float], float], delta: float, distance: float) -> float:
    """Return ε at δ for noise at this distance from normal noise, for which `bound` gives ε at any
    δ.
    """
    if not 0 <= distance < math.inf:
        raise ValueError(
            f"a distance between distributions is not negative; {distance} is no such distance"
        )
    if distance == 0:
        return bound(delta) if delta > 0 else math.inf
    return smallest_epsilon(
        bound, lambda epsilon: (delta - (1 + math.exp(epsilon)) * distance) * (1 - 1e-12)
    )


def smallest_epsilon(bound: Callable[[float], float], left: Callable[[float], float]) -> float:
    """Return the smallest ε, on a scale of steps of a part in 100,000, with bound(left(ε)) ≤ ε,
    where `left` is what remains of a δ. What remains falls as ε grows, so the bound rises, and no ε
    between one that is too small and the bound at it is enough. The steps are the same for every δ,
    so that a smaller one never gives a smaller ε.
    """
    step = 0.0
    while step < MOST_EPSILON and left(step) > 0:
        needed = bound(left(step))
        if needed <= step:
            return step
        if needed > MOST_EPSILON:
            return math.inf
        index = math.ceil(math.log(max(needed, LEAST_STEP)) * 1e5)
        step = max(math.exp(index / 1e5), math.nextafter(step, math.inf))
        # only by rounding
        if step < needed:
            step = math.exp((index + 1) / 1e5)
    return math.inf


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact ε of a Gaussian mechanism of sensitivity over noise μ: that of μ-GDP (Balle
    and Wang 2018, Theorem 8).

    It never falls as δ shrinks: the same ε are tried for every δ, and one that is enough for a δ is
    enough for every larger one.

    >>> round(gaussian_epsilon(math.sqrt(2 * 0.89), 1e-10), 2)
    9.01
    """

    def lost(epsilon: float) -> float:
        """Return log δ at ε, from above: the difference of two nearly equal numbers is increased by
        its largest rounding error.
        """
        above, below = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        rounding = 1e-15 * (4 + epsilon - below - above)
        return above + np.log1p(-np.exp(min(below - above, 0.0) - rounding)) + rounding

    if lost(0.0) <= math.log(delta):
        return 0.0
    low, high = 0.0, 1.0
    while lost(high) > math.log(delta):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if lost(middle) <= math.log(delta) else (middle, high)
    return high
