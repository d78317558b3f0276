"""The average update as a function of bounded sensitivity.

It is step C) and Lemma 1 of McMahan et al. 2018.

**Guarantee:** adding or removing one user, whose report is w·Δ with ‖Δ‖ ≤ S and 0 ≤ w ≤ 1, moves
what `steps` gives by at most `sensitivity` × S, whatever the other users report, and also if there
are none. Both are computed in integers, exactly: noise is added to those, and what is divided
afterwards is noised already.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.core import Estimate, Report
from taciturn.privacy.bounding.clipping import DIGIT, REACH, STEPS
from taciturn.privacy.noise import int64
from taciturn.privacy.noise.int64 import Int64


class Estimator(NamedTuple):
    """How the sum of reports becomes an average, and how far one user can move that."""

    # In floats, for runs without privacy.
    apply: Callable[[Report], Estimate]
    # From Σ w_k Δ_k and Σ w_k, in steps, to what is noised, in steps.
    steps: Callable[[Int64, jax.Array], Int64]
    # What that is multiplied by then.
    unit: float
    # By number of coordinates, for each unit of clip norm; before that multiplication.
    sensitivity: Callable[[int], float]
    # The size of a coordinate, in clip norms, by number of reports.
    largest: Callable[[int], float]
    # Whether it looks at Σ w_k, which not every sum has.
    reads_weight: bool = True


def fixed_denominator(expected_weight: float) -> Estimator:
    """Estimate f̃_f = Σ w_k Δ_k / qW.

    The denominator is a constant of the recipe, never the weight of those who reported.

    Raises:
        ValueError: if it is not a positive number.
    """
    _check_weight(expected_weight)
    unit = 1.0 / expected_weight

    def apply(total: Report) -> Estimate:
        return trees.scale(total.update, unit)

    return Estimator(
        apply=apply,
        steps=_keep_sums,
        unit=unit,
        sensitivity=lambda size: 1.0,
        largest=float,
        reads_weight=False,
    )


def _keep_sums(sums: Int64, _weight: jax.Array) -> Int64:
    return sums


def clipped_denominator(least_weight: float) -> Estimator:
    """Estimate f̃_c = Σ w_k Δ_k / max(qW_min, Σ w_k), rounded down to a step.

    The true Σ w_k is a secret, and a noised sum divided by it would lie on a lattice that reveals
    it. So the ratio is taken first, in integers, on a lattice that does not depend on it, and
    noised then; rounding moves each coordinate by up to a step more.

    Raises:
        ValueError: if the least weight is out of range.
    """
    _check_weight(least_weight)
    least = math.floor(least_weight * STEPS)
    if not 1 <= least < 2**31:
        raise ValueError(
            f"the least weight of a cohort, qW_min, lies between 2^-{DIGIT} and 2^16;"
            f" {least_weight} does not"
        )

    def apply(total: Report) -> Estimate:
        denominator = jnp.maximum(least_weight, total.weight)
        return trees.scale(total.update, 1.0 / denominator)

    def steps(sums: Int64, weight: jax.Array) -> Int64:
        # A sum has up to 2⁴⁶ steps and a weight fifteen bits after the point: nothing runs over.
        denominator = jnp.maximum(jnp.int32(least), weight)
        return int64.divide(int64.shift(sums, DIGIT), denominator)

    def sensitivity(size: int) -> float:
        return 2.0 * STEPS / least + math.sqrt(size) / REACH

    return Estimator(
        apply=apply,
        steps=steps,
        unit=1.0,
        sensitivity=sensitivity,
        largest=lambda reports: 1.0,
    )


def mean() -> Estimator:
    """Estimate Σ w_k Δ_k / Σ w_k.

    One user among few can move it anywhere, so it is for runs without privacy only.
    """

    def apply(total: Report) -> Estimate:
        reciprocal = 1.0 / jnp.maximum(total.weight, 1e-30)
        return trees.scale(total.update, jnp.where(total.weight > 0, reciprocal, 0.0))

    return Estimator(
        apply=apply,
        steps=_keep_sums,
        unit=1.0,
        sensitivity=lambda size: math.inf,
        largest=float,
    )


def _check_weight(weight: float) -> None:
    if not 0 < weight < math.inf:
        raise ValueError(
            f"the expected weight of a cohort, qW, must be a positive number; {weight} is not"
        )
