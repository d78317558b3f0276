"""Bound what one user can do: step B) of McMahan et al. 2018 (FlatClip, PerLayerClip).

An update is clipped, then weighted, then made of integers.

**Guarantee:** for every update and weight, NaN, infinity and empty text included, the report stands
for an update of ℓ2 norm at most weight × clip norm with weight in [0, 1], and up to 65,535 reports
add up exactly. An update that is not finite, or of a norm above `LARGEST_UPDATE`, leaves as zero
(of one that was made smaller before, what is kept counts). Rounding is on the safe side
(trees.norm_upper_bound; towards zero).

Clip, then weight: ‖w Δ‖ ≤ S by itself, as the paper's Lemma 1 states it, is not enough for the
estimator with a clipped denominator (tests/privacy/test_estimators.py keeps the counterexample).

Integers: a float32 sum rounds, and how it rounds for everyone else depends on each user, who can
thereby move a sum of thousands by almost twice the clip norm (tests/privacy/test_clipping.py does).
Integers add exactly, in any order. (Residues, for secure sums, are in secagg_encoding.py.)

**Assumes:** the device runs this code.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.core import Key, Params, Public, PyTree, Report, Update
from taciturn.privacy.noise import int64
from taciturn.privacy.noise.int64 import Int64

# This many add up in 32 bits, of `STEPS` each.
MOST_REPORTS = 2**16 - 1
LEAST_CLIP_NORM = 1e-6
LARGEST_CLIP_NORM = 1e6


class ClipSchedule(NamedTuple):
    """A clip norm for every round, declared before the run; it may only fall.

    See McMahan et al. 2018, Figure 4. Noise follows the clip norm, so that the noise multiplier,
    and with it the cost of a round, stays the same.

    >>> schedule = clip_schedule([(0, 20.0), (100, 10.0)])
    >>> [float(schedule.at(round)) for round in (0, 99, 100, 5000)]
    [20.0, 20.0, 10.0, 10.0]
    """

    starts: tuple[int, ...]
    norms: tuple[float, ...]

    def at(self, round: int | jax.Array) -> jax.Array:
        """Return the clip norm of a round."""
        position = jnp.searchsorted(jnp.asarray(self.starts), round, side="right") - 1
        return jnp.asarray(self.norms, jnp.float32)[position]

    def public(self, round: int | jax.Array) -> Public:
        """Return what devices must know of a round."""
        return Public(self.at(round))


def clip_schedule(steps: float | list[tuple[int, float]]) -> ClipSchedule:
    """Build a schedule from a constant clip norm, or from [(first round, clip norm), …].

    Raises:
        ValueError: if it does not start at round 0, rises, or has a norm out of range.
    """
    if isinstance(steps, int | float):
        steps = [(0, float(steps))]
    starts = [start for start, _ in steps]
    norms = [float(norm) for _, norm in steps]
    if not _are_starts(starts):
        raise ValueError(
            f"a clip schedule starts at round 0 and its rounds rise; these are {starts}"
        )
    if not all(LEAST_CLIP_NORM <= norm <= LARGEST_CLIP_NORM for norm in norms):
        raise ValueError(f"a clip norm lies between 1e-6 and 1e6; these are {norms}")
    has_risen = any(norm < later for norm, later in itertools.pairwise(norms))
    if has_risen:
        raise ValueError(f"a clip schedule may only fall; these norms rise: {norms}")
    return ClipSchedule(tuple(starts), tuple(norms))


def _are_starts(rounds: Sequence[int]) -> bool:
    """Tell whether these are rounds at which the steps of a schedule start."""
    if not rounds or rounds[0] != 0:
        return False
    return all(earlier < later for earlier, later in itertools.pairwise(rounds))


class Bound(NamedTuple):
    """How an update becomes a bounded report, and by how much one report can move a sum."""

    # What devices must know of a round.
    public: Callable[[jax.Array], Public]
    # Onto the ball; the greedy variant also uses it during local training.
    project: Callable[[Public, Update], Update]
    # Into what can be added exactly; the key is for rounding at random.
    pack: Callable[[Public, Update, Key], PyTree]
    # The sum of packed reports in integer steps (`Int64`), exactly; in floats where nothing is
    # bounded.
    unpack: Callable[[Public, PyTree], PyTree]
    # How long a step is.
    step: Callable[[Public], jax.Array]
    # The largest norm of a report, in steps, whatever the round.
    reach: float
    # Raises where the bound does not fit the model.
    check: Callable[[Params], None]
    # All that there are over a run.
    clip_norms: tuple[float, ...] = (math.inf,)
    # M, where sums are known mod M only; reports do not say their weight then.
    modulus: int | None = None
    # This many add up exactly.
    most_reports: int = MOST_REPORTS


class Digits(NamedTuple):
    """One layer as (high · 2¹⁵ + low) · S · 2⁻³⁰.

    They are two sums of 32 bits with room for 65,535 reports.
    """

    high: jax.Array
    low: jax.Array


# Beyond it training has diverged, and its numbers may overflow in a batch of padding, of which a
# user has more or fewer according to who is trained beside them. Below it no product of two layers
# does.
LARGEST_UPDATE = 1e6
# The bits of a digit.
DIGIT = 15
STEPS = 2.0**DIGIT
REACH = STEPS**2


def pack(public: Public, update: Update, _key: Key | None = None) -> PyTree:
    """Round towards zero to multiples of S · 2⁻³⁰, so that no norm grows."""

    def pack_layer(values: jax.Array) -> Digits:
        scaled = jnp.clip(values * (STEPS / public.clip_norm), -STEPS, STEPS)
        # Both digits are of one value: compilers may compute it for each, rounded differently.
        scaled = jax.lax.optimization_barrier(scaled)
        high = jnp.trunc(scaled)
        low = jnp.trunc((scaled - high) * STEPS)
        return Digits(high.astype(jnp.int32), low.astype(jnp.int32))

    return jax.tree.map(pack_layer, update)


def unpack(_public: Public, total: PyTree) -> PyTree:
    """Return the sum of packed reports, in steps."""
    return jax.tree.map(_unpack_layer, total, is_leaf=_is_packed_layer)


def _unpack_layer(sums: Digits) -> Int64:
    high = int64.shift(int64.from_int32(sums.high), DIGIT)
    return int64.add(high, int64.from_int32(sums.low))


def _is_packed_layer(node: object) -> bool:
    return isinstance(node, Digits)


def step(public: Public) -> jax.Array:
    """Return how long a step is: S · 2⁻³⁰."""
    return public.clip_norm / REACH


def flat_clip(clip_norm: float | list[tuple[int, float]]) -> Bound:
    """Clip all layers together: π(Δ, S) = Δ · min(1, S / ‖Δ‖)."""
    schedule = clip_schedule(clip_norm)
    return Bound(
        public=schedule.public,
        project=_clip_together,
        pack=pack,
        unpack=unpack,
        step=step,
        reach=REACH,
        check=_fits_any_model,
        clip_norms=schedule.norms,
    )


def _fits_any_model(params: Params) -> None:
    pass


def per_layer_clip(
    clip_norm: float | list[tuple[int, float]] | None = None,
    layers: Mapping[str, float] | None = None,
) -> Bound:
    """Clip each layer to its own S_j, with S = √(Σ S_j²).

    Departs from McMahan et al. 2018: a layer is a leaf of the parameters, so their LSTM has 6 here;
    they count 11, with the four gates apart. Both keep ‖Δ‖ ≤ S.

    Args:
        clip_norm: S, of which each of m layers gets S/√m.
        layers: or every S_j, by the layer's name.

    Raises:
        ValueError: if both are given, or neither.
    """
    if (clip_norm is None) == (layers is None):
        raise ValueError(
            "per-layer clipping takes either one clip norm S, shared out as S/√m, or the S_j of"
            " every layer"
        )
    total = math.sqrt(sum(norm**2 for norm in layers.values())) if layers else 0.0
    schedule = clip_schedule(total if clip_norm is None else clip_norm)
    by_layer = _ByLayer(layers, total)
    return Bound(
        public=schedule.public,
        project=by_layer.project,
        pack=pack,
        unpack=unpack,
        step=step,
        reach=REACH,
        check=by_layer.check,
        clip_norms=schedule.norms,
    )


# Compared by identity, as functions are.
@dataclass(frozen=True, eq=False)
class _ByLayer:
    """What layers share a clip norm in: equal shares, or those of norms that are given."""

    norms: Mapping[str, float] | None
    # S, where the norms are given.
    total: float

    def project(self, public: Public, update: Update) -> Update:
        """Clip each layer to its share."""

        def clip_layer(layer: jax.Array, share: float) -> jax.Array:
            # Each S_j is rounded towards zero, so that √(Σ S_j²) ≤ S survives float32.
            return _clip(public.clip_norm * (share * (1 - 1e-6)), layer)

        return jax.tree.map(clip_layer, update, self._shares(update))

    def _shares(self, update: Update) -> PyTree:
        names = trees.layer_names(update)
        equal = 1.0 / math.sqrt(len(names))
        shares = [self.norms[name] / self.total if self.norms else equal for name in names]
        return jax.tree.unflatten(jax.tree.structure(update), shares)

    def check(self, params: Params) -> None:
        """Raise unless the norms are those of the model's layers."""
        names = set(trees.layer_names(params))
        if self.norms is not None and set(self.norms) != names:
            raise ValueError(
                f"per-layer clip norms are given for {sorted(self.norms)}, but the model's layers"
                f" are {sorted(names)}"
            )


def no_clip() -> Bound:
    """Clip nothing: for runs without privacy only."""
    return Bound(
        public=_any_norm,
        project=_keep,
        pack=_keep,
        unpack=_keep,
        step=_step_of_one,
        reach=math.inf,
        check=_fits_any_model,
    )


def _any_norm(_round: jax.Array) -> Public:
    return Public(jnp.float32(jnp.inf))


def _keep(_public: Public, update: Update, _key: Key | None = None) -> Update:
    return update


def _step_of_one(_public: Public) -> jax.Array:
    return jnp.float32(1)


def encode(bound: Bound, public: Public, update: Update, weight: jax.Array, key: Key) -> Report:
    """Return the report of one user: clip, weight, round.

    Args:
        bound: which keeps it within its reach.
        public: what the round's message says of it; if its clip norm is out of range, the report is
            zero.
        update: any.
        weight: any; it counts as between 0 and 1.
        key: for rounding at random.
    """
    # What is measured is what leaves: compilers may compute it twice, rounded differently.
    update = jax.lax.optimization_barrier(update)
    usable = trees.norm_upper_bound(update) <= LARGEST_UPDATE
    if math.isfinite(bound.reach):
        # Else a message could name one so small that its reciprocal overflows.
        is_clip_norm = _is_clip_norm(public.clip_norm)
        usable = usable & is_clip_norm
        public = public._replace(clip_norm=jnp.where(is_clip_norm, public.clip_norm, 1.0))
    update = jax.tree.map(lambda layer: jnp.where(usable, layer, 0.0), update)
    limited_weight = jnp.where(jnp.isfinite(weight), jnp.clip(weight, 0.0, 1.0), 0.0)
    whole_weight = jnp.floor(limited_weight * STEPS)
    weighted = trees.scale(bound.project(public, update), whole_weight / STEPS)
    stated = whole_weight if bound.modulus is None else jnp.zeros_like(whole_weight)
    return Report(bound.pack(public, weighted, key), stated.astype(jnp.int32))


def _is_clip_norm(norm: jax.Array) -> jax.Array:
    return (norm >= LEAST_CLIP_NORM) & (norm <= LARGEST_CLIP_NORM)


def decode(bound: Bound, public: Public, total: Report) -> Report:
    """Return a total in floats, Σ w_k Δ_k and Σ w_k: rounded, so for runs without privacy only."""
    update = bound.unpack(public, total.update)
    if math.isfinite(bound.reach):
        update = jax.tree.map(
            lambda sum: int64.to_float(sum, bound.step(public)), update, is_leaf=int64.is_int64
        )
    return Report(update, total.weight / STEPS)


def _clip_together(public: Public, update: Update) -> Update:
    return _clip(public.clip_norm, update)


def _clip(norm: jax.Array, update: PyTree) -> PyTree:
    factor = jnp.minimum(1.0, norm / jnp.maximum(trees.norm_upper_bound(update), 1e-30))
    # So small a factor has too few digits to be trusted; an update so large leaves as zero.
    return trees.scale(update, jnp.where(factor > 1e-30, factor, 0.0))
