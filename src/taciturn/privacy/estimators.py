"""The average update as a function of bounded sensitivity: step C) and Lemma 1 of McMahan et al. 2018.

**Guarantee:** adding or removing one user, whose report is w·Δ with ‖Δ‖ ≤ S and 0 ≤ w ≤ 1, moves the estimate by at most
`sensitivity` × S, whatever the other users report, and also if there are none.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from taciturn import tree
from taciturn.core import Estimate, Report


class Estimator(NamedTuple):
    apply: Callable[[Report], Estimate]
    sensitivity: float  # per unit of clip norm
    reads_weight: bool = True  # whether it looks at Σ w_k, which not every sum has


def fixed_denominator(expected_weight: float) -> Estimator:
    """f̃_f = Σ w_k Δ_k / qW. The denominator is a constant of the recipe, never the weight that happened to come."""
    _check(expected_weight)
    return Estimator(lambda total: tree.scale(total.update, 1.0 / expected_weight), 1.0 / expected_weight, False)


def clipped_denominator(least_weight: float) -> Estimator:
    """f̃_c = Σ w_k Δ_k / max(qW_min, Σ w_k)."""
    _check(least_weight)

    def apply(total: Report) -> Estimate:
        return tree.scale(total.update, 1.0 / jnp.maximum(least_weight, total.weight))

    return Estimator(apply, 2.0 / least_weight)


def mean() -> Estimator:
    """Σ w_k Δ_k / Σ w_k: one user among few can move it anywhere, so for runs without privacy only."""

    def apply(total: Report) -> Estimate:
        return tree.scale(total.update, jnp.where(total.weight > 0, 1.0 / jnp.maximum(total.weight, 1e-30), 0.0))

    return Estimator(apply, math.inf)


def _check(weight: float) -> None:
    if not 0 < weight < math.inf:
        raise ValueError(f"the expected weight of a cohort, qW, must be a positive number; {weight} is not")
