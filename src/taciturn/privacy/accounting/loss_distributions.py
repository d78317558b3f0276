"""Compute ε from privacy loss distributions of sampled Gaussian mechanisms.

They are composed so that they are accurate far out in the tail. The distribution of one release is
on a grid, from above, as dp-accounting makes it (Doroshenko et al. 2022). The library composes many
by Fourier transforms, with rounding errors of 10⁻¹⁶ times the releases in every entry; summed over
a tail they are as large as a δ of 10⁻¹², and of either sign. So the distribution is tilted first:
every loss L is weighted by e^(λL), with the λ that puts the middle of the composed distribution
where its tail weighs δ (Esscher 1932), and the weight is removed at the end. The errors are then
small beside δ itself.

**Guarantee:** every ε returned is an upper bound for its event at δ, and never falls as δ shrinks:
one tilt serves all δ between two powers of two, and what is kept free for rounding grows from each
such stretch to the next by more than the rounding.

**Assumes:** rounding errors of a Fourier transform are practically independent. Ten standard
deviations of their sum are allowed for, and where that is not small beside δ, ε is ∞.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
import scipy.special
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.optimize import minimize_scalar

# This many standard deviations of the sum of rounding errors are allowed for.
DEVIATIONS = 10.0
# This share of the tilted mass is left out of the window at either end.
OUTSIDE = 1e-18
# δ(ε) is computed down to this far below Chernoff's bound, in units of 1/λ.
REACH = 40.0
LEAST_TILT = 1e-6
# A distribution that has more points than this gets a coarser grid.
WIDE = 1 << 19
# A window that has more points than this is not computed, and ε is ∞.
MOST_POINTS = 1 << 22
# δ is halved this many times at most: below 10⁻¹⁸ ε is ∞ too.
MOST_HALVINGS = 60
# The largest exponents whose powers of e, and products of those, are floats.
LARGEST_EXPONENT = 700.0
LARGEST_HALF_EXPONENT = 350.0


# Runs ask for one ε again and again.
@functools.lru_cache(maxsize=4096)
def epsilon_by_loss_distributions(event: DpEvent, delta: float, grid: float) -> float:
    """Return ε at δ of a Gaussian mechanism; ∞ where it cannot be computed.

    The mechanism may be sampled, mixed or neither, and repeated or not.
    """
    release = event
    count = 1
    if isinstance(event, SelfComposedDpEvent):
        release = event.event
        count = event.count
    grid = _fitting_grid(release, count, grid)
    first_halvings = max(math.floor(-math.log2(delta)), 0)
    # Where nothing is known at this δ, what is known at a smaller one holds too.
    for halvings in range(first_halvings, MOST_HALVINGS):
        known_delta = min(delta, 2.0**-halvings)
        delta_left = known_delta * (1 - _share_for_rounding(halvings))
        tails = _tails(release, count, grid, halvings)
        bound = max(tail.epsilon(delta_left) for tail in tails)
        if bound < math.inf:
            return max(bound, 0.0)
    return math.inf


def _share_for_rounding(halvings: int) -> float:
    """Return the share of δ kept for rounding."""
    return math.fsum(_more_rounding(number) for number in range(halvings + 1))


def _more_rounding(halvings: int) -> float:
    """Return the share of δ kept for rounding, beyond what is kept where δ is twice as large."""
    return 1e-5 if halvings < 40 else 1e-3


@functools.lru_cache(maxsize=256)
def _fitting_grid(release: DpEvent, count: int, grid: float) -> float:
    """Coarsen the grid until the composed distribution fits on it; the same for every δ."""
    while True:
        directions = _losses_of_one(release, grid)
        widths = [_composed_width(losses, count, grid) for losses in directions]
        if max(widths) <= WIDE:
            return grid
        grid *= 2


class _Losses(NamedTuple):
    """The privacy losses of one release on a grid, in one direction."""

    # In steps of the grid.
    lowest: int
    probabilities: np.ndarray
    mass_at_infinity: float


def _composed_width(losses: _Losses, count: int, grid: float) -> float:
    """Return about how many points of the grid the composed distribution takes."""
    probabilities = losses.probabilities
    values = (losses.lowest + np.arange(len(probabilities))) * grid
    variance = float(probabilities @ values**2 - (probabilities @ values) ** 2)
    spread = math.sqrt(count * max(variance, 0.0))
    return len(values) + 20 * spread / grid


@dataclass(frozen=True, kw_only=True)
class _Tail:
    """The upper end of a composed distribution.

    δ(ε) = lost + e^log_scale · (mass − e^(ε − middle) · discounted), over losses > ε.
    """

    losses: np.ndarray
    # Σ of the weights of this loss and all above it.
    mass: np.ndarray
    # The same sums, each weight times e^(middle − loss).
    discounted: np.ndarray
    log_scale: float
    middle: float
    # The mass at infinity, and that outside the window.
    lost: float

    def epsilon(self, delta: float) -> float:
        """Return the smallest ε with δ(ε) ≤ `delta`, rounded up to what is known."""
        if delta <= self.lost:
            return math.inf
        wanted = self._scale_down(delta - self.lost)
        first = int(np.argmax(self._above_losses() <= wanted))
        # Below the first loss δ is not known, and at it there is enough.
        if first == 0 or self.mass[first] <= wanted:
            return float(self.losses[first])
        return self._epsilon_below(first, wanted)

    def _above_losses(self) -> np.ndarray:
        """Return δ at each loss, in units of e^log_scale; the last is 0."""
        return self.mass - _exp(self.losses - self.middle) * self.discounted

    def _scale_down(self, delta: float) -> float:
        """Return δ in units of e^log_scale, limited to what a float holds."""
        log_delta = math.log(delta) - self.log_scale
        return math.exp(min(log_delta, LARGEST_EXPONENT))

    def _epsilon_below(self, place: int, wanted: float) -> float:
        """Return ε between a loss and the one before it.

        There δ(ε) is a straight line in e^ε, which is solved for ε.
        """
        ratio = (self.mass[place] - wanted) / self.discounted[place]
        epsilon = self.middle + math.log(ratio)
        return float(np.clip(epsilon, self.losses[place - 1], self.losses[place]))


def _exp(values: np.ndarray) -> np.ndarray:
    """Return eˣ, limited to what a float holds; that subtracts less from δ, never more."""
    return np.exp(np.minimum(values, LARGEST_HALF_EXPONENT))


NOTHING_KNOWN = _Tail(
    losses=np.array([math.inf]),
    mass=np.zeros(1),
    discounted=np.zeros(1),
    log_scale=0.0,
    middle=0.0,
    lost=1.0,
)


@functools.lru_cache(maxsize=64)
def _tails(release: DpEvent, count: int, grid: float, halvings: int) -> list[_Tail]:
    """Return the tails for both directions in which neighbours may differ.

    One is with the user against without, the other the reverse.
    """
    directions = _losses_of_one(release, grid)
    return [_tail(losses, count=count, grid=grid, halvings=halvings) for losses in directions]


@functools.lru_cache(maxsize=64)
def _losses_of_one(release: DpEvent, grid: float) -> list[_Losses]:
    """Return the losses of one release, in both directions."""
    match release:
        case GaussianDpEvent():
            gaussian = from_gaussian_mechanism(
                release.noise_multiplier, value_discretization_interval=grid
            )
            with_user = _dense_losses(gaussian._pmf_remove)
            without_user = _dense_losses(gaussian._pmf_add)
            return [with_user, without_user]
        case PoissonSampledDpEvent(
            sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=multiplier)
        ):
            mixture = MixtureOfGaussiansDpEvent(multiplier, (0.0, 1.0), (1 - rate, rate))
            return _losses_of_one(mixture, grid)
        case MixtureOfGaussiansDpEvent():
            with_user = _mixture_losses(release, is_there=True, grid=grid)
            without_user = _mixture_losses(release, is_there=False, grid=grid)
            return [_dense_losses(with_user), _dense_losses(without_user)]
        case _:
            raise TypeError(f"no loss distribution for {release}")


def _dense_losses(pmf: Any) -> _Losses:
    """Read a distribution of the library, which publishes only what follows from it."""
    dense = pmf.to_dense_pmf()
    return _Losses(
        lowest=int(dense._lower_loss),
        probabilities=np.asarray(dense._probs, np.float64),
        mass_at_infinity=float(dense._infinity_mass),
    )


def _mixture_losses(mixture: MixtureOfGaussiansDpEvent, is_there: bool, grid: float) -> PLDPmf:
    """Return the losses of a mixture of Gaussians against one at 0, or the reverse.

    They are what the library computes, but for all ε at once.
    """
    sign = 1.0 if is_there else -1.0
    ends = _ends_of_outputs(mixture, is_there)
    lowest, highest = _steps_between(sign * _log_ratio(mixture, ends), grid)
    epsilons = np.arange(lowest, highest + 1) * grid
    noise = mixture.standard_deviation
    further_ends = ends + np.array([-noise, noise])
    outputs = _output_of(mixture, sign * epsilons, further_ends)
    deltas = _deltas(mixture, is_there, epsilons=epsilons, outputs=outputs)
    return create_pmf_pessimistic_connect_dots_fixed_gap(grid, lowest, highest, deltas)


def _steps_between(losses: np.ndarray, grid: float) -> tuple[int, int]:
    """Return the lowest and the highest step of the grid that hold two losses between them."""
    lowest = math.floor(losses.min() / grid)
    # At least one step above 0: where no user is ever drawn, both losses are 0.
    highest = max(math.ceil(losses.max() / grid), 1)
    return lowest, highest


def _ends_of_outputs(mixture: MixtureOfGaussiansDpEvent, is_there: bool) -> np.ndarray:
    """Return between which two ends all but e⁻⁵⁰ of what is seen lies."""
    noise = mixture.standard_deviation
    largest_shift = max(mixture.sensitivities) if is_there else 0.0
    return np.array([-10.0 * noise, 10.0 * noise + largest_shift])


def _deltas(
    mixture: MixtureOfGaussiansDpEvent,
    is_there: bool,
    *,
    epsilons: np.ndarray,
    outputs: np.ndarray,
) -> np.ndarray:
    """Return δ at each ε, which is the loss of its output."""
    noise = mixture.standard_deviation
    shifts = np.array(mixture.sensitivities)
    sign = 1.0 if is_there else -1.0
    # The loss is more than ε to the right of its output if the loss rises with the output, else to
    # the left of it.
    from_shifted = shifts[:, None] - outputs
    beyond_shifted = scipy.special.ndtr(sign * from_shifted / noise)
    beyond_mixture = np.array(mixture.sampling_probs) @ beyond_shifted
    beyond_alone = scipy.special.ndtr(sign * -outputs / noise)
    first = beyond_mixture if is_there else beyond_alone
    second = beyond_alone if is_there else beyond_mixture
    differences = first - np.exp(epsilons) * second
    deltas = np.minimum.accumulate(np.clip(differences, 0.0, 1.0))
    # The probability of a loss beyond the last ε stays, as at infinity.
    deltas[-1] = first[-1]
    return deltas


def _log_ratio(mixture: MixtureOfGaussiansDpEvent, outputs: np.ndarray) -> np.ndarray:
    """Return the log-ratio of an output's densities under the mixture and without the user.

    It rises with the output.
    """
    shifts = np.array(mixture.sensitivities)
    variance = mixture.standard_deviation**2
    # The logarithm of 0 is that of an absence which never happens, where users always take part.
    with np.errstate(divide="ignore"):
        log_chances = np.log(mixture.sampling_probs)
        exponents = log_chances + (shifts * outputs[:, None] - shifts**2 / 2) / variance
    return np.asarray(scipy.special.logsumexp(exponents, axis=1))


def _output_of(
    mixture: MixtureOfGaussiansDpEvent, ratios: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Return the output of each log-ratio, within these ends."""
    is_one_user = len(mixture.sensitivities) == 2 and mixture.sensitivities[0] == 0
    if is_one_user:
        outputs = _output_of_one_user(mixture, ratios)
        return np.clip(outputs, ends[0], ends[1])
    return _bisect_outputs(mixture, ratios, ends)


def _bisect_outputs(
    mixture: MixtureOfGaussiansDpEvent, ratios: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    lowest, highest = ends
    low = np.full(len(ratios), lowest)
    high = np.full(len(ratios), highest)
    for _ in range(60):
        middle = (low + high) / 2
        is_above = _log_ratio(mixture, middle) > ratios
        low = np.where(is_above, low, middle)
        high = np.where(is_above, middle, high)
    return low


def _output_of_one_user(mixture: MixtureOfGaussiansDpEvent, ratios: np.ndarray) -> np.ndarray:
    """Return the output of each log-ratio of one user who takes part or not, solved by hand."""
    shift = mixture.sensitivities[1]
    probability = mixture.sampling_probs[1]
    variance = mixture.standard_deviation**2
    excess = np.expm1(np.minimum(ratios, LARGEST_EXPONENT))
    likelier = np.maximum((excess + probability) / probability, 1e-300)
    return variance / shift * np.log(likelier) + shift / 2


def _tail(losses: _Losses, *, count: int, grid: float, halvings: int) -> _Tail:
    """Return the tail of a composed distribution where it weighs 2^(−halvings)."""
    possible = np.flatnonzero(losses.probabilities > 0)
    release = _TiltedRelease(
        steps=losses.lowest + possible,
        log_probabilities=np.log(losses.probabilities[possible]),
        count=count,
        grid=grid,
    )
    lost = -math.expm1(count * math.log1p(-losses.mass_at_infinity))
    delta = 2.0**-halvings

    def chernoff_bound(tilt: float) -> float:
        return (release.log_moment(tilt) - math.log(delta)) / tilt

    tilt = _minimize(chernoff_bound).place
    error = math.inf
    while tilt > LEAST_TILT:
        composed = release.compose(tilt, lost)
        if composed is not None and composed.has_known(delta):
            rounding = composed.rounding_at(delta)
            if rounding <= _more_rounding(halvings) / 2 * delta:
                return composed.tail
            if rounding > error:
                break
            error = rounding
        # Chernoff's bound was far too large: δ is reached below the window, or where rounding is
        # not small.
        tilt /= 2
    return NOTHING_KNOWN


class _Window(NamedTuple):
    """Between which steps of the grid a sum lies."""

    bottom: int
    top: int


@dataclass(frozen=True, kw_only=True)
class _ComposedTail:
    """A tail as it was computed, and how large its rounding errors may be."""

    tail: _Tail
    tilt: float
    log_moment: float
    grid: float
    # The standard deviation of the rounding error of an entry of the composed sums.
    entry_error: float

    def has_known(self, delta: float) -> bool:
        """Tell whether δ is reached inside the window, and not below it."""
        return self._epsilon(delta) > self.tail.losses[0]

    def rounding_at(self, delta: float) -> float:
        """Return the rounding error of δ(ε) at the ε of this δ."""
        log_scale = self.log_moment - self.tilt * self._epsilon(delta)
        scale = math.exp(min(log_scale, LARGEST_EXPONENT))
        entries = math.sqrt(-math.expm1(-2 * self.tilt * self.grid))
        return DEVIATIONS * self.entry_error * scale / entries

    def _epsilon(self, delta: float) -> float:
        return max(self.tail.epsilon(delta), 0.0)


@dataclass(frozen=True, kw_only=True)
class _TiltedRelease:
    """The losses of one release, to be weighted by e^(λL) and composed `count` times."""

    # The losses that are possible, in steps of the grid.
    steps: np.ndarray
    # The logarithms of their probabilities.
    log_probabilities: np.ndarray
    count: int
    grid: float

    def log_moment(self, tilt: float) -> float:
        """Return log E e^(tilt · L) of all releases together."""
        exponents = self._exponents(tilt)
        largest = exponents.max()
        log_sum = largest + math.log(np.exp(exponents - largest).sum())
        return self.count * float(log_sum)

    def _exponents(self, tilt: float) -> np.ndarray:
        return self.log_probabilities + tilt * self.grid * self.steps

    def compose(self, tilt: float, lost: float) -> _ComposedTail | None:
        """Return the composed distribution around the middle of the tilted one.

        It is None if that would have too many points.
        """
        window = self._window(tilt)
        points = self._count_points(window)
        if points > MOST_POINTS:
            return None
        log_moment = self.log_moment(tilt)
        probabilities = np.exp(self._exponents(tilt) - log_moment / self.count)
        middle = self.count * self.grid * float(probabilities @ self.steps)
        spectrum = self._composed_spectrum(probabilities, points)

        least_loss = middle - REACH / tilt
        first_place = max(window.bottom, math.ceil(least_loss / self.grid))
        places = np.arange(first_place, window.top + 1)
        losses = places * self.grid
        tilted_weights = _entries(spectrum, points)[places % points]
        # The weights of the tilt are removed, up to a factor that is kept in log_scale.
        weights = tilted_weights * np.exp(-tilt * (losses - middle))
        beyond = OUTSIDE * math.exp(min(log_moment - tilt * window.top * self.grid, 0.0))
        tail = _Tail(
            losses=np.append(places, places[-1] + 1) * self.grid,
            mass=_sums_from_above(weights),
            discounted=_sums_from_above(weights * _exp(middle - losses)),
            log_scale=log_moment - tilt * middle,
            middle=middle,
            lost=lost + beyond,
        )
        return _ComposedTail(
            tail=tail,
            tilt=tilt,
            log_moment=log_moment,
            grid=self.grid,
            entry_error=self._entry_error(spectrum, probabilities, points),
        )

    def _window(self, tilt: float) -> _Window:
        """Return between which steps the tilted sum lies, but for OUTSIDE, by Chernoff's bounds."""
        furthest_above = self._furthest(tilt, sign=1)
        furthest_below = self._furthest(tilt, sign=-1)
        return _Window(
            bottom=math.floor(-furthest_below / self.grid) - 1,
            top=math.ceil(furthest_above / self.grid) + 1,
        )

    def _furthest(self, tilt: float, sign: int) -> float:
        """Return how far the tilted sum goes above 0, or below it."""
        log_moment = self.log_moment(tilt)

        def chernoff_bound(change: float) -> float:
            log_ratio = self.log_moment(tilt + sign * change) - log_moment
            return (log_ratio - math.log(OUTSIDE)) / change

        return _minimize(chernoff_bound).value

    def _count_points(self, window: _Window) -> int:
        """Return the power of two that holds the window and the losses of one release."""
        losses_of_one = int(self.steps[-1] - self.steps[0])
        width = max(window.top - window.bottom, losses_of_one, 1)
        return 1 << width.bit_length()

    def _composed_spectrum(self, probabilities: np.ndarray, points: int) -> np.ndarray:
        """Return the Fourier transform of the composed distribution, folded into the window."""
        folded = np.zeros(points, np.longdouble)
        np.add.at(folded, self.steps % points, probabilities)
        spectrum = np.asarray(scipy.fft.rfft(folded))
        return spectrum**self.count

    def _entry_error(self, spectrum: np.ndarray, probabilities: np.ndarray, points: int) -> float:
        """Return the standard deviation of the rounding error of an entry of the composed sums.

        It is that of the transform, and that of its phase, `count` times over.
        """
        size = float(np.sqrt(np.mean(np.abs(spectrum) ** 2) / points))
        size *= 4 + math.log2(points) * float(np.linalg.norm(probabilities))
        return float(np.finfo(np.longdouble).eps) * self.count * size


def _entries(spectrum: np.ndarray, points: int) -> np.ndarray:
    """Return the composed sums; rounding may have made some negative."""
    rounded_sums = np.asarray(scipy.fft.irfft(spectrum, points))
    return np.maximum(rounded_sums, 0.0).astype(np.float64)


def _sums_from_above(weights: np.ndarray) -> np.ndarray:
    """Return at each place the sum of its weight and all above it, and 0 after the last."""
    sums = np.cumsum(weights[::-1])[::-1]
    return np.append(sums, 0.0)


class _Minimum(NamedTuple):
    """Where a function is smallest, and its value there."""

    place: float
    value: float


def _minimize(value: Callable[[float], float]) -> _Minimum:
    """Find where a function of a positive number is smallest."""

    def value_at_power(power: float) -> float:
        return value(math.exp(power))

    smallest = minimize_scalar(value_at_power, bounds=(-14.0, 14.0), method="bounded")
    return _Minimum(place=math.exp(float(smallest.x)), value=float(smallest.fun))
