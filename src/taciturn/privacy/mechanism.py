"""A mechanism: bound, estimator and noise, welded together.

**Guarantee:** `release` is the Gaussian mechanism with standard deviation noise multiplier × the estimator's sensitivity × the largest
norm of a report (the clip norm that it was made under, or a little more where it was rounded at random), and `event` states the cost
of exactly that. The standard deviation is computed in this file and nowhere else.

**Assumes:** each total is a sum of reports made by `bound`, over a cohort drawn by the participation that `event` is given.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn import tree
from taciturn.core import Estimate, Mechanism, Params, Participation, PyTree, Report
from taciturn.privacy import clipping
from taciturn.privacy.accounting import CorrelatedDpEvent
from taciturn.privacy.adaptive_clip import LEAST_NORM, AdaptiveClip, Norms, centred_bit
from taciturn.privacy.clipping import Bound, flat_clip
from taciturn.privacy.estimators import Estimator, fixed_denominator
from taciturn.privacy.noise import Noise

LEAST_STDDEV = 1e-30


class State(NamedTuple):
    round: jax.Array  # releases so far; the clip schedule reads it
    noise: PyTree  # secret


def mechanism(bound: Bound, estimator: Estimator, noise: Noise, most_reports: int = clipping.MOST_REPORTS) -> Mechanism:
    """`most_reports` limits a cohort: totals are exact, but turning one into floats rounds by its size, and noise covers that."""
    is_private, correlated = noise.multiplier > 0, noise.strategy.name != "independent"
    sensitivity = _with_rounding(estimator.sensitivity, most_reports)
    if bound.modulus is not None and estimator.reads_weight:
        raise ValueError("reports to a secure sum do not say their weight: use a fixed denominator with it")
    if most_reports > bound.most_reports:
        raise ValueError(f"sums of these reports hold {bound.most_reports} of them, not {most_reports}")
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
        _check_stddev(least)

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
        modulus=bound.modulus,
    )


class AdaptiveState(NamedTuple):
    round: jax.Array
    norms: Norms  # public
    noise: PyTree  # secret; of standard deviation 1


def adaptive_mechanism(clip: AdaptiveClip, report_goal: float, noise: Noise, most_reports: int) -> Mechanism:
    """With a clip norm that follows a quantile: the count of bits and the updates are one vector, noised by one strategy.

    Noise is drawn and kept in units of the standard deviation, so that each row is noised for the clip norm of its own reports: divided
    by it, all rows are one mechanism with reports of norm 1. That also holds if rows that a crash lost had another clip norm than those
    of the same segment that come after.
    """
    if noise.multiplier <= 0 or noise.strategy.name == "independent":
        raise ValueError(
            "adaptive clipping changes the clip norm where correlated noise restarts, and needs such noise"
        )
    multiplier, whole = clip.update_multiplier(noise.multiplier), flat_clip(clip.start)
    average_of = fixed_denominator(report_goal)
    sensitivity = _with_rounding(average_of.sensitivity, most_reports)
    _check_stddev(multiplier * sensitivity * LEAST_NORM)
    restarts = jnp.array(noise.strategy.restarts, jnp.int32)

    def init(params: Params) -> AdaptiveState:
        return AdaptiveState(jnp.int32(0), clip.init(), noise.init((params, jnp.float32(0))))

    def bound(norms: Norms, update: PyTree, weight: jax.Array, key: jax.Array) -> Report:
        report = clipping.encode(whole, norms.clip_norm, update, weight, key)
        return report._replace(update=(report.update, centred_bit(norms, update, report.weight > 0)))

    def following(state: AdaptiveState, norms: Norms, noise_state: PyTree) -> AdaptiveState:
        """C_θ ← Cᵗ⁺¹ if t ∈ R."""
        is_restart = jnp.any(state.round + 1 == restarts)
        in_force = jnp.where(is_restart, norms.estimate, norms.clip_norm)
        return AdaptiveState(state.round + 1, norms._replace(clip_norm=in_force), noise_state)

    def release(state: AdaptiveState, total: Report, keys: jax.Array) -> tuple[Estimate, AdaptiveState]:
        norms, (updates, halves) = state.norms, total.update
        average = average_of.apply(clipping.decode(whole, norms.clip_norm, total._replace(update=updates)))
        (drawn, drawn_count), noise_state = noise.next(state.noise, (average, jnp.float32(0)), jnp.float32(1), keys)
        estimate = tree.add(average, tree.scale(drawn, multiplier * sensitivity * norms.clip_norm))
        share = 0.5 + (halves / 2 + clip.count_stddev * drawn_count) / report_goal
        return estimate, following(state, clip.followed(norms, share), noise_state)

    def skip(state: AdaptiveState, params: Params, keys: jax.Array) -> AdaptiveState:
        _, noise_state = noise.next(state.noise, (params, jnp.float32(0)), jnp.float32(1), keys)
        return following(state, state.norms, noise_state)

    def event(participation: Participation) -> DpEvent:
        cost = participation.event(noise.multiplier, noise.strategy)
        assert isinstance(cost, CorrelatedDpEvent)
        counted = "each round also releases how many updates were within the clip norm, at no further cost (z_Δ > z)"
        return dataclasses.replace(cost, claim=f"{cost.claim}; {counted}")

    return Mechanism(
        init=init,
        public=lambda state: state.norms,
        bound=bound,
        release=release,
        skip=skip,
        event=event,
        noise_keys=noise.keys,
        most_reports=most_reports,
        correlated=True,
    )


def _with_rounding(sensitivity: float, most_reports: int) -> float:
    """Eight roundings of a number no larger than most_reports × S, each by 2⁻²⁴ of it."""
    if not 0 < most_reports <= clipping.MOST_REPORTS:
        raise ValueError(f"a total adds up at most {clipping.MOST_REPORTS} reports exactly, not {most_reports}")
    return sensitivity * (1 + most_reports * 2.0**-21)


def _check_stddev(least: float) -> None:
    if least < LEAST_STDDEV:
        raise ValueError(
            f"noise of standard deviation {least:g} would be lost in float32: is the expected weight right?"
        )
