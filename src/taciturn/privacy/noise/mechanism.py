"""A mechanism: bound, estimator and noise, welded together.

**Guarantee:** `release` adds integer noise to an exact total before anything is a float. It is, but
for `distance`, a rounding of the Gaussian mechanism with standard deviation noise multiplier × the
estimator's sensitivity × the largest norm of a report (the clip norm that it was made under, or a
little more where it was rounded at random), and `event` states the cost of exactly that. The
standard deviation is computed in this file and nowhere else; the proofs are in docs/proofs.md.

The grid of the noise is finer than the reports' by a power of two that does not depend on the clip
norm: in its steps the noise of every round is the same, whatever schedules, adaptive clip norms and
restarts do.

**Assumes:** each total is a sum of reports made by `bound`, over a cohort drawn by the
participation that `event` is given.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn import trees
from taciturn.core import Estimate, Mechanism, Params, Participation, PyTree, Release, Report
from taciturn.privacy.accounting.events import CorrelatedDpEvent
from taciturn.privacy.bounding import clipping
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip, Norms, centred_bit
from taciturn.privacy.bounding.clipping import Bound, flat_clip
from taciturn.privacy.bounding.estimators import Estimator, fixed_denominator
from taciturn.privacy.noise import int64, sampler
from taciturn.privacy.noise.int64 import Int64
from taciturn.privacy.noise.sampler import Spread
from taciturn.privacy.noise.white import Noise

# what is added up stays below it, with a bit to spare
ROOM = 2.0**62
# that noise need be, in its own steps
WIDEST = 2.0**50
# standard deviations, beyond which nothing falls (once in 2¹⁸⁰)
TAIL = 16
# by which noise is wider where what is fed back is rounded
MARGIN = 2.0**-20


class State(NamedTuple):
    # releases so far; the clip schedule reads it
    round: jax.Array
    # secret
    noise: PyTree


class Grid(NamedTuple):
    """The grid on which a noise is drawn."""

    # how much finer than the steps of what is noised
    bits: int
    spread: Spread


def _grid(noise: Noise, deviation: float, reach: float, largest: float, size: int) -> Grid:
    """Choose the grid for noise of this deviation on `size` numbers below `largest`, which one user
    moves by at most `reach`; in steps.
    """
    wanted = deviation * (1 + MARGIN if noise.rounding else 1.0)
    room = ROOM / (largest + TAIL * noise.gain * wanted)
    bits = math.floor(math.log2(min(room, WIDEST / wanted)))
    if bits < 0:
        raise ValueError(
            f"noise of {deviation:.3g} steps on sums of up to {largest:.3g} does not fit into 64"
            " bits"
        )
    # The most by which what is fed back can differ between neighbours, over all rows, beyond what
    # the strategy accounts for.
    off = 2 * noise.rounding * math.sqrt(size * noise.strategy.rows)
    if off > MARGIN * reach * 2.0**bits:
        coarse = (
            f"noise for {size} parameters over {noise.strategy.rows} rounds rounds too coarsely"
        )
        raise ValueError(
            f"{noise.strategy.name} {coarse}: take fewer bands or buffers, or another kind of noise"
        )
    return Grid(bits, sampler.spread(wanted * 2.0**bits))


def mechanism(
    bound: Bound, estimator: Estimator, noise: Noise, most_reports: int = clipping.MOST_REPORTS
) -> Mechanism:
    """Build a mechanism; `most_reports` limits a cohort, so that no sum overflows."""
    is_private, correlated = noise.multiplier > 0, noise.strategy.name != "independent"
    if bound.modulus is not None and estimator.reads_weight:
        raise ValueError(
            "reports to a secure sum do not say their weight: use a fixed denominator with it"
        )
    if not 0 < most_reports <= bound.most_reports:
        raise ValueError(
            f"sums of these reports hold {bound.most_reports} of them, not {most_reports}"
        )
    if is_private and not math.isfinite(bound.reach * estimator.sensitivity(1)):
        raise ValueError(
            "noise needs a bounded sensitivity: use a clip norm and a fixed or clipped denominator"
            " with it"
        )
    if correlated and len(set(bound.clip_norms)) > 1:
        raise ValueError(
            "under correlated noise the clip norm cannot change from round to round: use one for"
            " the whole run"
        )

    def grid(size: int) -> Grid:
        reach = bound.reach * estimator.sensitivity(size)
        largest = bound.reach * estimator.largest(most_reports)
        return _grid(noise, noise.multiplier * reach, reach, largest, size)

    def draw(key: jax.Array, size: int) -> Callable[[jax.Array | int], Int64]:
        return lambda stream: sampler.white(grid(size).spread, key, stream, size)

    def init(params: Params) -> State:
        bound.check(params)
        size = trees.size(params)
        if is_private:
            # raises where it does not fit
            grid(size)
        return State(jnp.int32(0), noise.init(size))

    def release(state: State, total: Report, key: jax.Array) -> tuple[Release, State]:
        public = bound.public(state.round)
        if not is_private:
            average = estimator.apply(clipping.decode(bound, public, total))
            return Release(average), State(state.round + 1, state.noise)
        sums, shaped = _flat(bound.unpack(public, total.update))
        size = sums.low.size
        drawn, noise_state = noise.next(state.noise, draw(key, size))
        noised = int64.add(int64.shift(estimator.steps(sums, total.weight), grid(size).bits), drawn)
        unit = bound.step(public) * (estimator.unit * 2.0 ** -grid(size).bits)
        return Release(shaped(int64.to_float(noised, unit))), State(state.round + 1, noise_state)

    def follow(state: State, release: Release, key: jax.Array) -> State:
        if not is_private:
            return State(state.round + 1, state.noise)
        _, noise_state = noise.next(state.noise, draw(key, trees.size(release.estimate)))
        return State(state.round + 1, noise_state)

    def event(participation: Participation) -> DpEvent:
        return (
            participation.event(noise.multiplier, noise.strategy)
            if is_private
            else NonPrivateDpEvent()
        )

    def distance(size: int, rows: int) -> float:
        return _distance(noise, [(size, grid(size))], rows) if is_private else 0.0

    on_device = (lambda state: bound.public(state.round)), partial(clipping.encode, bound)
    return Mechanism(
        init, *on_device, release, follow, event, distance, most_reports, correlated, bound.modulus
    )


class AdaptiveState(NamedTuple):
    round: jax.Array
    # public
    norms: Norms
    # secret
    noise: PyTree


def adaptive_mechanism(
    clip: AdaptiveClip, report_goal: float, noise: Noise, most_reports: int
) -> Mechanism:
    """Build one whose clip norm follows a quantile: the count of bits and the updates are one
    vector, noised by one strategy. Each row is noised for the clip norm of its own reports: in
    steps, which are a share of that clip norm, all rows are one mechanism with reports of the same
    norm. So the count is on a grid as fine as that of the updates.
    """
    if noise.multiplier <= 0 or noise.strategy.name == "independent":
        raise ValueError(
            "adaptive clipping changes the clip norm where correlated noise restarts, and needs"
            " such noise"
        )
    if not 0 < most_reports <= clipping.MOST_REPORTS:
        raise ValueError(
            f"sums of these reports hold {clipping.MOST_REPORTS} of them, not {most_reports}"
        )
    multiplier, whole = clip.update_multiplier(noise.multiplier), flat_clip(clip.start)
    unit = fixed_denominator(report_goal).unit
    restarts = jnp.array(noise.strategy.restarts, jnp.int32)
    # Of halves, which is what a bit is counted in.
    counting = _grid(noise, 2 * clip.count_stddev, 1.0, float(most_reports), 1)

    def updating(size: int) -> Grid:
        return _grid(noise, multiplier * whole.reach, whole.reach, whole.reach * most_reports, size)

    def draw(key: jax.Array, size: int) -> Callable[[jax.Array | int], Int64]:
        def drawn(stream: jax.Array | int) -> Int64:
            updates = sampler.white(updating(size).spread, key, 2 * stream, size)
            count = sampler.white(counting.spread, key, 2 * stream + 1, 1)
            return jax.tree.map(lambda *words: jnp.concatenate(words), updates, count)

        return drawn

    def init(params: Params) -> AdaptiveState:
        size = trees.size(params)
        # raises where it does not fit
        updating(size)
        return AdaptiveState(jnp.int32(0), clip.init(), noise.init(size + 1))

    def bound(norms: Norms, update: PyTree, weight: jax.Array, key: jax.Array) -> Report:
        report = clipping.encode(whole, norms.clip_norm, update, weight, key)
        return report._replace(
            update=(report.update, centred_bit(norms, update, report.weight > 0))
        )

    def following(state: AdaptiveState, share: jax.Array, noise_state: PyTree) -> AdaptiveState:
        """Set C_θ ← Cᵗ⁺¹ if t ∈ R."""
        norms = clip.followed(state.norms, share)
        is_restart = jnp.any(state.round + 1 == restarts)
        in_force = jnp.where(is_restart, norms.estimate, norms.clip_norm)
        return AdaptiveState(state.round + 1, norms._replace(clip_norm=in_force), noise_state)

    def release(
        state: AdaptiveState, total: Report, key: jax.Array
    ) -> tuple[Release, AdaptiveState]:
        updates, halves = total.update
        sums, shaped = _flat(whole.unpack(state.norms.clip_norm, updates))
        size = sums.low.size
        drawn, noise_state = noise.next(state.noise, draw(key, size))
        for_updates, for_count = (
            jax.tree.map(lambda words, cut=cut: words[cut], drawn) for cut in (slice(size), size)
        )
        noised = int64.add(int64.shift(sums, updating(size).bits), for_updates)
        step = whole.step(state.norms.clip_norm) * (unit * 2.0 ** -updating(size).bits)
        counted = int64.to_float(
            int64.add(int64.shift(int64.from_int32(halves), counting.bits), for_count),
            2.0**-counting.bits,
        )
        share = 0.5 + counted / 2 / report_goal
        estimate = shaped(int64.to_float(noised, step))
        return Release(estimate, share), following(state, share, noise_state)

    def follow(state: AdaptiveState, release: Release, key: jax.Array) -> AdaptiveState:
        assert release.share is not None
        _, noise_state = noise.next(state.noise, draw(key, trees.size(release.estimate)))
        return following(state, release.share, noise_state)

    def event(participation: Participation) -> DpEvent:
        cost = participation.event(noise.multiplier, noise.strategy)
        assert isinstance(cost, CorrelatedDpEvent)
        counted = (
            "each round also releases how many updates were within the clip norm, at no further"
            " cost (z_Δ > z)"
        )
        return dataclasses.replace(cost, claim=f"{cost.claim}; {counted}")

    def distance(size: int, rows: int) -> float:
        return _distance(noise, [(size, updating(size)), (1, counting)], rows)

    return Mechanism(
        init,
        lambda state: state.norms,
        bound,
        release,
        follow,
        event,
        distance,
        most_reports,
        correlated=True,
    )


def _flat(sums: PyTree) -> tuple[Int64, Callable[[jax.Array], Estimate]]:
    """Flatten all layers into one row of numbers; return also the function that turns a row into
    layers again.
    """
    layers, structure = jax.tree.flatten(sums, is_leaf=int64.is_int64)
    shapes = [layer.low.shape for layer in layers]
    flat = jax.tree.map(
        lambda *words: jnp.concatenate([jnp.ravel(word) for word in words]), *layers
    )

    def shaped(row: jax.Array) -> Estimate:
        parts, start = [], 0
        for shape in shapes:
            parts.append(row[start : start + math.prod(shape)].reshape(shape))
            start += math.prod(shape)
        return jax.tree.unflatten(structure, parts)

    return flat, shaped


def _distance(noise: Noise, parts: list[tuple[int, Grid]], rows: int) -> float:
    """Return the total variation distance of all noise of `rows` rows from the noise their cost is
    computed for; rounded up.
    """
    each = sum(size * (grid.spread.distance + 2.0**-180) for size, grid in parts)
    return each * noise.draws(rows) * (1 + 1e-9)
