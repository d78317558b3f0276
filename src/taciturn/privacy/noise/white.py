"""Gaussian noise over the rows (rounds) of a run: step D) of McMahan et al. 2018.

White noise is drawn only in privacy/noise/sampler.py. It is integers, on a grid that holds the
reports' own, and is added before anything is a float (privacy/noise/mechanism.py).

**Guarantee:** `gaussian` gives every coordinate of every row its own draw.

**Assumes:** what `next` is given draws white noise, every row anew.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax

from taciturn.core import PyTree, Strategy
from taciturn.privacy.noise.int64 import Int64
from taciturn.privacy.noise.sensitivity import INDEPENDENT

# Of the number of a stream of this row: white noise, one number for each coordinate.
Draw = Callable[[jax.Array | int], Int64]


def _once_a_row(rows: int) -> int:
    return rows


class Noise(NamedTuple):
    """A noise over the rows of a run, as the mechanism adds it and its cost is computed for it."""

    # z: standard deviation over sensitivity; 0 means no privacy.
    multiplier: float
    # The state before the first row, for a number of coordinates. Secret.
    init: Callable[[int], PyTree]
    # The noise of a row, and the state after it.
    next: Callable[[PyTree, Draw], tuple[Int64, PyTree]]
    # How it is correlated over rounds.
    strategy: Strategy
    # At most how often white noise is drawn, for a number of rows.
    draws: Callable[[int], int] = _once_a_row
    # How much wider than white noise the widest released or kept number is.
    gain: float = 1.0
    # By how many steps what is fed back may be off, which counts as sensitivity.
    rounding: float = 0.0


def gaussian(multiplier: float) -> Noise:
    """Build fresh noise every round, independent of all other rounds.

    Raises:
        ValueError: the noise multiplier is too small, or not a number.
    """
    check_multiplier(multiplier)
    return Noise(
        multiplier=float(multiplier),
        init=_keep_nothing,
        next=_draw_once,
        strategy=INDEPENDENT,
    )


def no_noise() -> Noise:
    """Add nothing: for runs without privacy only."""
    return Noise(
        multiplier=0.0,
        init=_keep_nothing,
        next=_refuse_to_draw,
        strategy=INDEPENDENT,
        draws=_never,
    )


def check_multiplier(multiplier: float) -> None:
    """Refuse a noise multiplier that is too small, or not a number.

    Raises:
        ValueError: it is.
    """
    if not 1e-3 <= multiplier < math.inf:
        raise ValueError(
            f"a noise multiplier is a positive number of at least 0.001; {multiplier} is not"
        )


def _keep_nothing(size: int) -> PyTree:
    return ()


def _draw_once(state: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
    return draw(0), state


def _refuse_to_draw(state: PyTree, draw: Draw) -> tuple[Int64, PyTree]:
    raise ValueError("a run without privacy has no noise to draw")


def _never(rows: int) -> int:
    return 0
