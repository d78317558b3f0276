"""Gaussian noise over the rows (rounds) of a run: step D) of McMahan et al. 2018. White noise is
drawn only in privacy/noise/sampler.py.

Noise is integers, on a grid that holds the reports' own, and is added before anything is a float
(privacy/noise/mechanism.py).

**Guarantee:** `gaussian` gives every coordinate of every row its own draw.

**Assumes:** what `next` is given draws white noise, every row anew.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax

from taciturn.core import PyTree, Strategy
from taciturn.privacy.noise.int64 import Int64
from taciturn.privacy.noise.sensitivity import independent

INDEPENDENT = independent(10**6)

# a stream of this row's → white noise, one number for each coordinate
Draw = Callable[[jax.Array | int], Int64]


class Noise(NamedTuple):
    # z: stddev over sensitivity; 0 means no privacy
    multiplier: float
    # by number of coordinates; secret
    init: Callable[[int], PyTree]
    next: Callable[[PyTree, Draw], tuple[Int64, PyTree]]
    # how it is correlated over rounds
    strategy: Strategy
    # the most draws of white noise for this number of rows
    draws: Callable[[int], int] = lambda rows: rows
    # how much wider than white noise the widest released or kept number is
    gain: float = 1.0
    rounding: float = (
        # by how many steps what is fed back may be off, which counts as sensitivity
        0.0
    )


def gaussian(multiplier: float) -> Noise:
    """Draw fresh noise every round, independent of all other rounds."""
    check_multiplier(multiplier)
    return Noise(
        float(multiplier), lambda size: (), lambda state, draw: (draw(0), state), INDEPENDENT
    )


def check_multiplier(multiplier: float) -> None:
    if not 1e-3 <= multiplier < math.inf:
        raise ValueError(
            f"a noise multiplier is a positive number of at least 0.001; {multiplier} is not"
        )


def no_noise() -> Noise:
    """Add nothing: for runs without privacy only."""

    def nothing(state: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
        raise ValueError("a run without privacy has no noise to draw")

    return Noise(0.0, lambda size: (), nothing, INDEPENDENT, lambda rows: 0)
