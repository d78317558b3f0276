"""Privacy loss distributions of sampled Gaussian mechanisms, composed so that they are accurate far
out in the tail.

The distribution of one release is on a grid, from above, as dp-accounting makes it (Doroshenko et
al. 2022). The library composes many by Fourier transforms, with rounding errors of 10⁻¹⁶ times the
releases in every entry; summed over a tail they are as large as a δ of 10⁻¹², and of either sign.
So the distribution is tilted first: every loss L is weighted by e^(λL), with the λ that puts the
middle of the composed distribution where its tail weighs δ (Esscher 1932), and the weight is
removed at the end. The errors are then small beside δ itself.

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
from typing import Any

import numpy as np
import scipy.fft
import scipy.special
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.optimize import minimize_scalar

# of the sum of rounding errors that are allowed for
DEVIATIONS = 10.0
# of the tilted mass, left out of the window at either end
OUTSIDE = 1e-18
# how far below Chernoff's bound δ(ε) is computed, in units of 1/λ
REACH = 40.0
LEAST_TILT = 1e-6
# of a window: beyond the first the grid is made coarser, beyond the second ε is ∞
WIDE, MOST_POINTS = 1 << 19, 1 << 22
# of δ: below 10⁻¹⁸ ε is ∞ too
MOST_HALVINGS = 60


# runs ask for one ε again and again
@functools.lru_cache(maxsize=4096)
def epsilon_by_loss_distributions(event: DpEvent, delta: float, grid: float) -> float:
    """Return ε at δ of a Gaussian mechanism, sampled, mixed or neither, repeated or not; ∞ where it
    cannot be computed.
    """
    release, count = (
        (event.event, event.count) if isinstance(event, SelfComposedDpEvent) else (event, 1)
    )
    grid = _fitting_grid(release, count, grid)
    for halvings in range(max(math.floor(-math.log2(delta)), 0), MOST_HALVINGS):
        # Where nothing is known at this δ, what is known at a smaller one holds too.
        at = min(delta, 2.0**-halvings) * (
            1 - math.fsum(_more_rounding(h) for h in range(halvings + 1))
        )
        bound = max(tail.epsilon(at) for tail in _tails(release, count, grid, halvings))
        if bound < math.inf:
            return max(bound, 0.0)
    return math.inf


def _more_rounding(halvings: int) -> float:
    """Return the share of δ kept for rounding, beyond what is kept where δ is twice as large."""
    return 1e-5 if halvings < 40 else 1e-3


@functools.lru_cache(maxsize=256)
def _fitting_grid(release: DpEvent, count: int, grid: float) -> float:
    """Coarsen the grid where the composed distribution would be too wide for it; the same for every
    δ.
    """
    while True:
        widths = []
        for lowest, probabilities, _ in _one_release(release, grid):
            losses = (lowest + np.arange(len(probabilities))) * grid
            spread = math.sqrt(
                count * max(float(probabilities @ losses**2 - (probabilities @ losses) ** 2), 0.0)
            )
            widths.append(len(losses) + 20 * spread / grid)
        if max(widths) <= WIDE:
            return grid
        grid *= 2


@dataclass(frozen=True)
class _Tail:
    """The upper end of a composed distribution: δ(ε) = lost + e^log_scale · (mass − e^(ε − middle)
    · discounted), over losses > ε.
    """

    losses: np.ndarray
    # Σ of the weights of this loss and all above it
    mass: np.ndarray
    # the same, each times e^(middle − loss)
    discounted: np.ndarray
    log_scale: float
    middle: float
    # mass at infinity, and outside the window
    lost: float

    def epsilon(self, delta: float) -> float:
        if delta <= self.lost:
            return math.inf
        wanted = math.exp(min(math.log(delta - self.lost) - self.log_scale, 700.0))
        # at each loss; the last is 0
        above = self.mass - _exp(self.losses - self.middle) * self.discounted
        first = int(np.argmax(above <= wanted))
        # Below the first loss δ is not known, and at it there is enough.
        if first == 0 or self.mass[first] <= wanted:
            return float(self.losses[first])
        within = self.middle + math.log((self.mass[first] - wanted) / self.discounted[first])
        return float(np.clip(within, self.losses[first - 1], self.losses[first]))


def _exp(values: np.ndarray) -> np.ndarray:
    """Return eˣ, limited to what a float holds; that subtracts less from δ, never more."""
    return np.exp(np.minimum(values, 350.0))


NOTHING_KNOWN = _Tail(np.array([math.inf]), np.zeros(1), np.zeros(1), 0.0, 0.0, 1.0)


@functools.lru_cache(maxsize=64)
def _tails(release: DpEvent, count: int, grid: float, halvings: int) -> list[_Tail]:
    """Return the tails for both directions in which neighbours may differ: with the user against
    without, and the reverse.
    """
    return [
        _tail(*one, count=count, grid=grid, halvings=halvings)
        for one in _one_release(release, grid)
    ]


@functools.lru_cache(maxsize=64)
def _one_release(release: DpEvent, grid: float) -> list[tuple[int, np.ndarray, float]]:
    """Return (the smallest loss in steps of the grid, probabilities, mass at infinity), in both
    directions.
    """
    match release:
        case GaussianDpEvent():
            made = from_gaussian_mechanism(
                release.noise_multiplier, value_discretization_interval=grid
            )
        case PoissonSampledDpEvent(
            sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=multiplier)
        ):
            return _one_release(
                MixtureOfGaussiansDpEvent(multiplier, (0.0, 1.0), (1 - rate, rate)), grid
            )
        case MixtureOfGaussiansDpEvent():
            return [_dense(_mixture_losses(release, is_there, grid)) for is_there in (True, False)]
        case _:
            raise TypeError(f"no loss distribution for {release}")
    return [_dense(pmf) for pmf in (made._pmf_remove, made._pmf_add)]


def _mixture_losses(mixture: MixtureOfGaussiansDpEvent, is_there: bool, grid: float) -> PLDPmf:
    """Return the losses of a mixture of Gaussians against one at 0, or the reverse, as the library
    does, but for all ε at once.
    """
    noise, shifts = mixture.standard_deviation, np.array(mixture.sensitivities)
    sign = 1.0 if is_there else -1.0
    # All but e⁻⁵⁰ of what is seen lies between.
    ends = np.array([-10.0 * noise, 10.0 * noise + (shifts.max() if is_there else 0.0)])
    bounds = np.sort(sign * _log_ratio(mixture, ends))
    # At least one step above 0: where no user is ever drawn, both bounds are 0.
    lowest, highest = math.floor(bounds[0] / grid), max(math.ceil(bounds[1] / grid), 1)
    wanted = np.arange(lowest, highest + 1) * grid
    low = _output_of(mixture, sign * wanted, ends + np.array([-noise, noise]))
    # Where the loss is more than ε: to the right of it if the loss rises with the output.
    mixed = np.array(mixture.sampling_probs) @ scipy.special.ndtr(
        sign * (shifts[:, None] - low) / noise
    )
    alone = scipy.special.ndtr(sign * -low / noise)
    first, second = (mixed, alone) if is_there else (alone, mixed)
    deltas = np.minimum.accumulate(np.clip(first - np.exp(wanted) * second, 0.0, 1.0))
    # The probability of a loss beyond the last ε stays, as at infinity.
    deltas[-1] = first[-1]
    return create_pmf_pessimistic_connect_dots_fixed_gap(grid, lowest, highest, deltas)


def _log_ratio(mixture: MixtureOfGaussiansDpEvent, outputs: np.ndarray) -> np.ndarray:
    """Return the log-ratio of an output's densities under the mixture and without the user. It
    rises with the output.
    """
    shifts, variance = np.array(mixture.sensitivities), mixture.standard_deviation**2
    # of those who always take part
    with np.errstate(divide="ignore"):
        exponents = (
            np.log(mixture.sampling_probs) + (shifts * outputs[:, None] - shifts**2 / 2) / variance
        )
    return np.asarray(scipy.special.logsumexp(exponents, axis=1))


def _output_of(
    mixture: MixtureOfGaussiansDpEvent, ratios: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Return the output of each log-ratio, within these ends."""
    if (
        len(mixture.sensitivities) == 2 and mixture.sensitivities[0] == 0
        # one who takes part or not: solved by hand
    ):
        shift, probability = mixture.sensitivities[1], mixture.sampling_probs[1]
        likelier = np.maximum(
            (np.expm1(np.minimum(ratios, 700.0)) + probability) / probability, 1e-300
        )
        return np.clip(mixture.standard_deviation**2 / shift * np.log(likelier) + shift / 2, *ends)
    low, high = np.full(len(ratios), ends[0]), np.full(len(ratios), ends[1])
    for _ in range(60):
        middle = (low + high) / 2
        is_above = _log_ratio(mixture, middle) > ratios
        low, high = np.where(is_above, low, middle), np.where(is_above, middle, high)
    return low


def _dense(pmf: Any) -> tuple[int, np.ndarray, float]:
    """Read a distribution of the library, which publishes only what follows from it."""
    dense = pmf.to_dense_pmf()
    return int(dense._lower_loss), np.asarray(dense._probs, np.float64), float(dense._infinity_mass)


def _tail(
    lowest: int,
    probabilities: np.ndarray,
    at_infinity: float,
    *,
    count: int,
    grid: float,
    halvings: int,
) -> _Tail:
    there = np.flatnonzero(probabilities > 0)
    one = _Release(lowest + there, np.log(probabilities[there]), count, grid)
    lost = -math.expm1(count * math.log1p(-at_infinity))
    delta = 2.0**-halvings
    tilt, _ = _least(lambda tilt: (one.log_moment(tilt) - math.log(delta)) / tilt)
    error = math.inf
    while tilt > LEAST_TILT:
        tail, rounding = one.tilted(tilt, lost)
        at = max(tail.epsilon(delta), 0.0)
        if at > tail.losses[0]:
            if rounding(at) <= _more_rounding(halvings) / 2 * delta:
                return tail
            if rounding(at) > error:
                break
            error = rounding(at)
        # Chernoff's bound was far too large: δ is reached below the window, or where rounding is
        # not small
        tilt /= 2
    return NOTHING_KNOWN


@dataclass(frozen=True)
class _Release:
    # losses, in steps of the grid
    steps: np.ndarray
    # of their probabilities
    logs: np.ndarray
    count: int
    grid: float

    def log_moment(self, tilt: float) -> float:
        """Return log E e^(tilt · L) of all releases together."""
        exponents = self.logs + tilt * self.grid * self.steps
        largest = exponents.max()
        return self.count * float(largest + math.log(np.exp(exponents - largest).sum()))

    def tilted(self, tilt: float, lost: float) -> tuple[_Tail, Callable[[float], float]]:
        """Return the composed distribution around the middle of the tilted one, and the rounding
        error of δ(ε).
        """
        whole, grid = self.log_moment(tilt), self.grid
        # Chernoff's bounds on where the tilted sum lies, but for OUTSIDE of it.
        _, further = _least(
            lambda more: (self.log_moment(tilt + more) - whole - math.log(OUTSIDE)) / more
        )
        _, nearer = _least(
            lambda less: (self.log_moment(tilt - less) - whole - math.log(OUTSIDE)) / less
        )
        top, bottom = math.ceil(further / grid) + 1, math.floor(-nearer / grid) - 1
        points = 1 << max(top - bottom, int(self.steps[-1] - self.steps[0]), 1).bit_length()
        if points > MOST_POINTS:
            return NOTHING_KNOWN, lambda epsilon: math.inf
        probabilities = np.exp(self.logs + tilt * grid * self.steps - whole / self.count)
        middle = self.count * grid * float(probabilities @ self.steps)
        folded = np.zeros(points, np.longdouble)
        np.add.at(folded, self.steps % points, probabilities)
        spectrum = np.asarray(scipy.fft.rfft(folded)) ** self.count
        sums = np.maximum(np.asarray(scipy.fft.irfft(spectrum, points)), 0.0).astype(np.float64)
        places = np.arange(max(bottom, math.ceil((middle - REACH / tilt) / grid)), top + 1)
        weights = sums[places % points] * np.exp(-tilt * (places * grid - middle))
        mass = np.cumsum(weights[::-1])[::-1]
        discounted = np.cumsum((weights * _exp(middle - places * grid))[::-1])[::-1]
        log_scale = whole - tilt * middle
        beyond = OUTSIDE * math.exp(min(whole - tilt * top * grid, 0.0))
        # Of an entry of `sums`, as a standard deviation: the transform's rounding and that of its
        # phase, `count` times over.
        size = float(np.sqrt(np.mean(np.abs(spectrum) ** 2) / points))
        size *= 4 + math.log2(points) * float(np.linalg.norm(probabilities))
        error = float(np.finfo(np.longdouble).eps) * self.count * size

        def rounding(epsilon: float) -> float:
            return (
                DEVIATIONS
                * error
                * math.exp(min(whole - tilt * epsilon, 700.0))
                / math.sqrt(-math.expm1(-2 * tilt * grid))
            )

        losses = np.append(places, places[-1] + 1) * grid
        return _Tail(
            losses,
            np.append(mass, 0.0),
            np.append(discounted, 0.0),
            log_scale,
            middle,
            lost + beyond,
        ), rounding


def _least(value: Callable[[float], float]) -> tuple[float, float]:
    """Find where a function of a positive number is smallest, and its value there."""
    found = minimize_scalar(
        lambda power: value(math.exp(power)), bounds=(-14.0, 14.0), method="bounded"
    )
    return math.exp(float(found.x)), float(found.fun)
