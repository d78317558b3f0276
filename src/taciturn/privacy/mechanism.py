"""A mechanism: bound, estimator and noise, welded together.

**Guarantee:** `release` is the Gaussian mechanism with standard deviation noise multiplier × the estimator's sensitivity × the clip
norm in force, and `event` states the cost of exactly that. The standard deviation is computed in this file and nowhere else.

**Assumes:** each total is a sum of reports made by `bound`, over a cohort drawn by the participation that `event` is given.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn import tree
from taciturn.core import Estimate, Mechanism, Params, Participation, PyTree, Report
from taciturn.privacy import clipping
from taciturn.privacy.clipping import Bound
from taciturn.privacy.estimators import Estimator
from taciturn.privacy.noise import Noise

LEAST_STDDEV = 1e-30


class State(NamedTuple):
    round: jax.Array  # releases so far; the clip schedule reads it
    noise: PyTree  # secret


def mechanism(bound: Bound, estimator: Estimator, noise: Noise, most_reports: int = clipping.MOST_REPORTS) -> Mechanism:
    """`most_reports` limits a cohort: totals are exact, but turning one into floats rounds by its size, and noise covers that."""
    if not 0 < most_reports <= clipping.MOST_REPORTS:
        raise ValueError(f"a total adds up at most {clipping.MOST_REPORTS} reports exactly, not {most_reports}")
    is_private, correlated = noise.multiplier > 0, noise.strategy.name != "independent"
    # Eight roundings of a number no larger than most_reports × S, each by 2⁻²⁴ of it.
    sensitivity = estimator.sensitivity * (1 + most_reports * 2.0**-21)
    if is_private:
        # The schedule only falls, so its end has the least noise.
        least = noise.multiplier * sensitivity * float(bound.sensitivity(jnp.int32(2**31 - 1)))
        if not math.isfinite(least):
            raise ValueError(
                "noise needs a bounded sensitivity: use a clip norm and a fixed or clipped denominator with it"
            )
        if correlated and least != noise.multiplier * sensitivity * float(bound.sensitivity(jnp.int32(0))):
            raise ValueError(
                "under correlated noise the clip norm cannot change from round to round: use one for the whole run"
            )
        if least < LEAST_STDDEV:
            raise ValueError(
                f"noise of standard deviation {least:g} would be lost in float32: is the expected weight right?"
            )

    def stddev(round: jax.Array) -> jax.Array:
        return noise.multiplier * sensitivity * bound.sensitivity(round) if is_private else jnp.float32(0)

    def init(params: Params) -> State:
        bound.check(params)
        return State(jnp.int32(0), noise.init(params))

    def release(state: State, total: Report, keys: jax.Array) -> tuple[Estimate, State]:
        average = estimator.apply(clipping.decode(bound, bound.public(state.round), total))
        drawn, noise_state = noise.next(state.noise, average, stddev(state.round), keys)
        return tree.add(average, drawn), State(state.round + 1, noise_state)

    def skip(state: State, params: Params, keys: jax.Array) -> State:
        _, noise_state = noise.next(state.noise, params, stddev(state.round), keys)
        return State(state.round + 1, noise_state)

    def event(participation: Participation) -> DpEvent:
        return participation.event(noise.multiplier, noise.strategy) if is_private else NonPrivateDpEvent()

    return Mechanism(
        init=init,
        public=lambda state: bound.public(state.round),
        bound=lambda public, update, weight, key: clipping.encode(bound, public, update, weight, key),
        release=release,
        skip=skip,
        event=event,
        noise_keys=noise.keys,
        most_reports=most_reports,
        correlated=correlated,
    )
