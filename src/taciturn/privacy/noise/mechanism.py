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

Read from the top: the grid, the mechanism with a declared clip norm, the one whose clip norm
adapts, the one without noise, and how layers become one row of numbers.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn import trees
from taciturn.core import (
    Estimate,
    Mechanism,
    NoiseKey,
    Params,
    Participation,
    Public,
    PyTree,
    Release,
    Report,
    Update,
)
from taciturn.privacy.accounting.events import CorrelatedDpEvent
from taciturn.privacy.bounding import clipping
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip, centred_bit
from taciturn.privacy.bounding.clipping import Bound, flat_clip
from taciturn.privacy.bounding.estimators import Estimator, fixed_denominator
from taciturn.privacy.noise import int64, sampler
from taciturn.privacy.noise.int64 import Int64
from taciturn.privacy.noise.sampler import Spread
from taciturn.privacy.noise.white import Noise

# Noised sums stay below it: 64 bits hold twice as much.
ROOM = 2.0**62
# No noise needs to be wider, in steps of its own grid.
WIDEST = 2.0**50
# In standard deviations: noise falls beyond them once in 2¹⁸⁰ draws.
TAIL = 16
# By this share noise is wider where what is fed back is rounded.
MARGIN = 2.0**-20


# The grid of the noise.


class Grid(NamedTuple):
    """The grid on which a noise is drawn."""

    # It is 2^bits times as fine as the steps of what is noised.
    bits: int
    spread: Spread


def choose_grid(noise: Noise, *, deviation: float, reach: float, largest: float, size: int) -> Grid:
    """Choose the finest grid that 64 bits have room for; all lengths are in steps of the sums.

    Args:
        noise: what is drawn; it may be wider than white noise, and rounded.
        deviation: the standard deviation of its white noise.
        reach: the most by which one user moves the sums, in ℓ2 norm.
        largest: no sum is larger.
        size: how many sums there are.

    Raises:
        ValueError: there is no room for such noise, or its feedback would be rounded too coarsely.
    """
    widening = 1 + MARGIN if noise.rounding else 1.0
    wanted = deviation * widening
    room = ROOM / (largest + TAIL * noise.gain * wanted)
    finest = min(room, WIDEST / wanted)
    bits = math.floor(math.log2(finest))
    if bits < 0:
        raise ValueError(
            f"noise of {deviation:.3g} steps on sums of up to {largest:.3g} does not fit into 64"
            " bits"
        )
    _refuse_coarse_feedback(noise, reach=reach, size=size, bits=bits)
    return Grid(bits, sampler.spread(wanted * 2.0**bits))


def _refuse_coarse_feedback(noise: Noise, *, reach: float, size: int, bits: int) -> None:
    """Refuse a grid on which rounding is not covered by the margin of the deviation."""
    rows = noise.strategy.rows
    # The most by which what is fed back can differ between neighbours, over all rows, beyond what
    # the strategy accounts for.
    feedback_error = 2 * noise.rounding * math.sqrt(size * rows)
    if feedback_error > MARGIN * reach * 2.0**bits:
        raise ValueError(
            f"{noise.strategy.name} noise for {size} parameters over {rows} rounds rounds too"
            " coarsely: take fewer bands or buffers, or another kind of noise"
        )


def _distance_of_draw(size: int, grid: Grid) -> float:
    """Return how far white noise on this many numbers is from rounded normals, at most, in total
    variation.
    """
    return size * (grid.spread.distance + 2.0**-180)


def _distance_of_rows(noise: Noise, of_one_draw: float, rows: int) -> float:
    """Return how far all noise of these rows is from the noise that their cost is computed for, in
    total variation, rounded up.
    """
    return of_one_draw * noise.draws(rows) * (1 + 1e-9)


# A mechanism whose clip norms are declared before the run.


class State(NamedTuple):
    """What a mechanism has between rounds."""

    # Releases so far; the clip schedule reads it.
    round: jax.Array
    # Secret.
    noise: PyTree


def mechanism(
    bound: Bound, estimator: Estimator, noise: Noise, most_reports: int = clipping.MOST_REPORTS
) -> Mechanism:
    """Build a mechanism whose clip norms are declared before the run.

    Args:
        bound: makes an update a report, whose effect on a sum it bounds.
        estimator: what is noised, as a function of the sums.
        noise: what is added; without any, nothing is private and everything is charged so.
        most_reports: of a cohort, so that no sum overflows.

    Raises:
        ValueError: the parts do not go together.
    """
    _refuse_unsuitable(bound, estimator, noise, most_reports)
    if noise.multiplier > 0:
        parts = _NoisedMechanism(
            bound=bound,
            estimator=estimator,
            noise=noise,
            most_reports=most_reports,
        )
    else:
        parts = _MechanismWithoutNoise(
            bound=bound,
            estimator=estimator,
            noise=noise,
        )
    return Mechanism(
        init=parts.init,
        public=parts.public,
        bound=partial(clipping.encode, bound),
        release=parts.release,
        follow=parts.follow,
        event=parts.event,
        distance=parts.distance,
        most_reports=most_reports,
        correlated=_is_correlated(noise),
        modulus=bound.modulus,
    )


def _is_correlated(noise: Noise) -> bool:
    return noise.strategy.name != "independent"


def _refuse_unsuitable(bound: Bound, estimator: Estimator, noise: Noise, most_reports: int) -> None:
    """Refuse parts with which a sum would overflow, or noise would protect nobody."""
    is_private = noise.multiplier > 0
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
    if _is_correlated(noise) and len(set(bound.clip_norms)) > 1:
        raise ValueError(
            "under correlated noise the clip norm cannot change from round to round: use one for"
            " the whole run"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _NoisedMechanism:
    """The functions of a private `Mechanism`, over the parts that it welds together."""

    bound: Bound
    estimator: Estimator
    noise: Noise
    most_reports: int

    def init(self, params: Params) -> State:
        """Return the state before the first round.

        Raises:
            ValueError: the noise does not fit the model, or the bound does not.
        """
        self.bound.check(params)
        size = trees.size(params)
        # It raises where the noise does not fit.
        self._choose_grid(size)
        return State(jnp.int32(0), self.noise.init(size))

    def public(self, state: State) -> Public:
        """Return what devices must know to bound their updates."""
        return self.bound.public(state.round)

    def release(self, state: State, total: Report, key: NoiseKey) -> tuple[Release, State]:
        """Noise what the estimator makes of a total, as integers; then turn it into floats."""
        public = self.public(state)
        layers = self.bound.unpack(public, total.update)
        sums, layout = _flatten(layers)
        size = sums.low.size
        grid = self._choose_grid(size)
        noise, noise_state = self._draw_noise(state, key, size)
        exact = self.estimator.steps(sums, total.weight)
        on_grid = int64.shift(exact, grid.bits)
        noised = int64.add(on_grid, noise)
        # From here on, everything is a function of what is noised.
        unit = self.estimator.unit * 2.0**-grid.bits
        step = self.bound.step(public)
        row = int64.to_float(noised, step * unit)
        estimate = _unflatten(row, layout)
        after = State(
            round=state.round + 1,
            noise=noise_state,
        )
        return Release(estimate), after

    def follow(self, state: State, release: Release, key: NoiseKey) -> State:
        """Return the state after a release that is on record, as `release` does."""
        _, noise_state = self._draw_noise(state, key, trees.size(release.estimate))
        return State(state.round + 1, noise_state)

    def event(self, participation: Participation) -> DpEvent:
        """Return the cost of a round, or of all rounds, under this participation."""
        return participation.event(self.noise.multiplier, self.noise.strategy)

    def distance(self, size: int, rows: int) -> float:
        """Return the total variation between its noise and the ideal, at most."""
        of_one_draw = _distance_of_draw(size, self._choose_grid(size))
        return _distance_of_rows(self.noise, of_one_draw, rows)

    def _draw_noise(self, state: State, key: NoiseKey, size: int) -> tuple[Int64, PyTree]:
        """Return the noise of this round, and the state of the noise after it."""
        spread = self._choose_grid(size).spread

        def draw(stream: jax.Array | int) -> Int64:
            return sampler.white(spread, key, stream=stream, size=size)

        return self.noise.next(state.noise, draw)

    def _choose_grid(self, size: int) -> Grid:
        # σ, in steps, is the noise multiplier × what one user moves the estimate by.
        reach = self.bound.reach * self.estimator.sensitivity(size)
        return choose_grid(
            self.noise,
            deviation=self.noise.multiplier * reach,
            reach=reach,
            largest=self.bound.reach * self.estimator.largest(self.most_reports),
            size=size,
        )


# A mechanism whose clip norm adapts.


class AdaptiveState(NamedTuple):
    """What a mechanism with an adaptive clip norm has between rounds."""

    # Releases so far.
    round: jax.Array
    # Public.
    norms: Public
    # Secret.
    noise: PyTree


def adaptive_mechanism(
    clip: AdaptiveClip, report_goal: float, noise: Noise, most_reports: int
) -> Mechanism:
    """Build a mechanism whose clip norm follows a quantile of the users' updates.

    The count of bits and the updates are one vector, noised by one strategy. Each row is noised for
    the clip norm of its own reports: in steps, which are a share of that clip norm, all rows are
    one mechanism with reports of the same norm. So the count is on a grid as fine as that of the
    updates.

    Args:
        clip: how the clip norm follows.
        report_goal: the number of reports that sums are divided by.
        noise: correlated, as the clip norm changes where it restarts.
        most_reports: of a cohort, so that no sum overflows.

    Raises:
        ValueError: the parts do not go together.
    """
    if noise.multiplier <= 0 or not _is_correlated(noise):
        raise ValueError(
            "adaptive clipping changes the clip norm where correlated noise restarts, and needs"
            " such noise"
        )
    if not 0 < most_reports <= clipping.MOST_REPORTS:
        raise ValueError(
            f"sums of these reports hold {clipping.MOST_REPORTS} of them, not {most_reports}"
        )
    parts = _AdaptiveMechanism(
        clip=clip,
        multiplier=clip.update_multiplier(noise.multiplier),
        reports=flat_clip(clip.start),
        report_goal=report_goal,
        unit=fixed_denominator(report_goal).unit,
        noise=noise,
        restarts=jnp.array(noise.strategy.restarts, jnp.int32),
        counting=choose_grid(
            noise,
            # In halves, which is what a bit is counted in.
            deviation=2 * clip.count_stddev,
            reach=1.0,
            largest=float(most_reports),
            size=1,
        ),
        most_reports=most_reports,
    )
    return Mechanism(
        init=parts.init,
        public=parts.public,
        bound=parts.bound,
        release=parts.release,
        follow=parts.follow,
        event=parts.event,
        distance=parts.distance,
        most_reports=most_reports,
        correlated=True,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _AdaptiveMechanism:
    """The functions of a `Mechanism` whose clip norm adapts, and the constants they share."""

    clip: AdaptiveClip
    # z_Δ: with it, update and bit together cost what only an update does at z.
    multiplier: float
    # How updates become reports; their reach in steps is the same under every clip norm.
    reports: Bound
    report_goal: float
    # By which a sum is multiplied: 1 / report goal.
    unit: float
    noise: Noise
    # R, in rounds.
    restarts: jax.Array
    # The grid of the count of bits.
    counting: Grid
    most_reports: int

    def init(self, params: Params) -> AdaptiveState:
        """Return the state before the first round.

        Raises:
            ValueError: the noise does not fit the model.
        """
        size = trees.size(params)
        # It raises where the noise does not fit.
        self._choose_grid(size)
        return AdaptiveState(
            round=jnp.int32(0),
            norms=self.clip.init(),
            noise=self.noise.init(size + 1),
        )

    def public(self, state: AdaptiveState) -> Public:
        """Return what devices must know to bound their updates."""
        return state.norms

    def bound(self, norms: Public, update: Update, weight: jax.Array, key: jax.Array) -> Report:
        """Return the report of one user, with the bit that tells whether the update is short."""
        report = clipping.encode(
            self.reports,
            public=norms,
            update=update,
            weight=weight,
            key=key,
        )
        bit = centred_bit(norms, update, report.weight > 0)
        return report._replace(update=(report.update, bit))

    def release(
        self, state: AdaptiveState, total: Report, key: NoiseKey
    ) -> tuple[Release, AdaptiveState]:
        """Noise the sums of updates and of bits, as integers; then turn them into floats."""
        updates, halves = total.update
        layers = self.reports.unpack(state.norms, updates)
        sums, layout = _flatten(layers)
        size = sums.low.size
        grid = self._choose_grid(size)
        noise, noise_state = self._draw_noise(state, key, size)
        noised_sums = self._add_noise(sums, noise, grid)
        noised_count = self._add_noise_to_count(halves, noise)
        # From here on, everything is a function of what is noised.
        unit = self.unit * 2.0**-grid.bits
        step = self.reports.step(state.norms)
        row = int64.to_float(noised_sums, step * unit)
        estimate = _unflatten(row, layout)
        counted = int64.to_float(noised_count, 2.0**-self.counting.bits)
        share = 0.5 + counted / 2 / self.report_goal
        after = self._move_on(state, share, noise_state)
        return Release(estimate, share), after

    def follow(self, state: AdaptiveState, release: Release, key: NoiseKey) -> AdaptiveState:
        """Return the state after a release that is on record, as `release` does."""
        assert release.share is not None
        _, noise_state = self._draw_noise(state, key, trees.size(release.estimate))
        return self._move_on(state, release.share, noise_state)

    def event(self, participation: Participation) -> DpEvent:
        """Return the cost of all rounds: at z_Δ, update and bit together cost what z says."""
        cost = participation.event(self.noise.multiplier, self.noise.strategy)
        assert isinstance(cost, CorrelatedDpEvent)
        counted = (
            "each round also releases how many updates were within the clip norm, at no further"
            " cost (z_Δ > z)"
        )
        return dataclasses.replace(cost, claim=f"{cost.claim}; {counted}")

    def distance(self, size: int, rows: int) -> float:
        """Return the total variation between its noise and the ideal, at most."""
        of_updates = _distance_of_draw(size, self._choose_grid(size))
        of_count = _distance_of_draw(1, self.counting)
        return _distance_of_rows(self.noise, of_updates + of_count, rows)

    def _draw_noise(self, state: AdaptiveState, key: NoiseKey, size: int) -> tuple[Int64, PyTree]:
        """Return the noise of this round, and the state of the noise after it.

        The noise of the count is the last number, behind that of the updates.
        """
        spread = self._choose_grid(size).spread

        def draw(stream: jax.Array | int) -> Int64:
            # From streams of their own, so that they share nothing.
            for_updates = sampler.white(
                spread,
                key,
                stream=2 * stream,
                size=size,
            )
            for_count = sampler.white(
                self.counting.spread,
                key,
                stream=2 * stream + 1,
                size=1,
            )
            return int64.concatenate([for_updates, for_count])

        return self.noise.next(state.noise, draw)

    def _add_noise(self, sums: Int64, noise: Int64, grid: Grid) -> Int64:
        size = sums.low.size
        for_updates = Int64(high=noise.high[:size], low=noise.low[:size])
        return int64.add(int64.shift(sums, grid.bits), for_updates)

    def _add_noise_to_count(self, halves: jax.Array, noise: Int64) -> Int64:
        for_count = Int64(high=noise.high[-1], low=noise.low[-1])
        count = int64.shift(int64.from_int32(halves), self.counting.bits)
        return int64.add(count, for_count)

    def _choose_grid(self, size: int) -> Grid:
        reach = self.reports.reach
        return choose_grid(
            self.noise,
            deviation=self.multiplier * reach,
            reach=reach,
            largest=reach * self.most_reports,
            size=size,
        )

    def _move_on(
        self, state: AdaptiveState, share: jax.Array, noise_state: PyTree
    ) -> AdaptiveState:
        """Set C_θ ← Cᵗ⁺¹ if t ∈ R."""
        norms = self.clip.follow(state.norms, share)
        is_restart = jnp.any(state.round + 1 == self.restarts)
        assert norms.estimate is not None
        in_force = jnp.where(is_restart, norms.estimate, norms.clip_norm)
        return AdaptiveState(
            round=state.round + 1,
            norms=norms._replace(clip_norm=in_force),
            noise=noise_state,
        )


# A mechanism without noise.


@dataclass(frozen=True, kw_only=True, eq=False)
class _MechanismWithoutNoise:
    """The functions of a `Mechanism` that releases averages as they are, and is charged so."""

    bound: Bound
    estimator: Estimator
    noise: Noise

    def init(self, params: Params) -> State:
        self.bound.check(params)
        return State(jnp.int32(0), self.noise.init(trees.size(params)))

    def public(self, state: State) -> Public:
        return self.bound.public(state.round)

    def release(self, state: State, total: Report, key: NoiseKey) -> tuple[Release, State]:
        decoded = clipping.decode(self.bound, self.public(state), total)
        average = self.estimator.apply(decoded)
        return Release(average), State(state.round + 1, state.noise)

    def follow(self, state: State, release: Release, key: NoiseKey) -> State:
        return State(state.round + 1, state.noise)

    def event(self, participation: Participation) -> DpEvent:
        return NonPrivateDpEvent()

    def distance(self, size: int, rows: int) -> float:
        return 0.0


# Layers, and one row of all their numbers.


class _Layout(NamedTuple):
    """How the layers of an estimate lie in one row of numbers."""

    structure: Any
    shapes: list[tuple[int, ...]]


def _flatten(sums: PyTree) -> tuple[Int64, _Layout]:
    """Flatten all layers into one row of numbers."""
    layers, structure = jax.tree.flatten(sums, is_leaf=int64.is_int64)
    shapes = [layer.low.shape for layer in layers]
    high = jnp.concatenate([jnp.ravel(layer.high) for layer in layers])
    low = jnp.concatenate([jnp.ravel(layer.low) for layer in layers])
    return Int64(high=high, low=low), _Layout(structure, shapes)


def _unflatten(row: jax.Array, layout: _Layout) -> Estimate:
    """Turn a row of numbers into layers again."""
    layers = []
    start = 0
    for shape in layout.shapes:
        end = start + math.prod(shape)
        layers.append(row[start:end].reshape(shape))
        start = end
    return jax.tree.unflatten(layout.structure, layers)
