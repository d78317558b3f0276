"""Test the noise of a run's first rounds itself: is there enough, everywhere, and only once?

Audit users add up all parameters, so their scores look the same where two parts of the parameters
have the same noise. An attacker who subtracts one part from the other is then rid of it. This test
subtracts parts from parts as that attacker would, and looks at what is left.

What was released is what people did plus noise. Given all that came before, the noise of a row is
independent of what people did in it, and of every other parameter's noise. So the squares of a
stretch of parameters, and half the squares of the differences of two stretches, are at least as
large as those of noise of the claimed deviation: whatever people do, it can only add to them
(Anderson 1955). A stretch with too small squares has too little noise (it is `quiet`); two
stretches with too small differences, or sums, share theirs (they are `repeated`).

**Guarantee:** a mechanism whose noise is what is claimed is accused at most once in a million runs
(`LEVEL`), whatever people do, and whichever parts are compared: half of that for too little noise,
half for all pairs of stretches of `WINDOW` parameters at any distance, of both signs, and of all
pairs of layers.

**Assumes:** the rows are the first ones of the run, with none left out. It says nothing about later
ones, nor about parameters whose noise is repeated in another order.

Which distances are tried is decided by the autocorrelation of all rows, one fast Fourier transform:
this cannot accuse anyone, only miss. What it would have missed is measured too.
"""

import math
from collections import Counter
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import ndtri
from scipy.stats import chi2

# One false alarm in a million audits.
LEVEL = 1e-6
LIKELY = 0.95
# The length of a stretch of parameters.
WINDOW = 256
# In deviations of the noise: beyond this, a float16 has not enough digits to show the noise.
LOUD = 1000.0
# How many distances are tried, beside those of the layers.
DISTANCES = 24
# Where few people do much, a few parameters would outweigh all others in choosing distances.
MOST = 2.0
# By this factor a frequency counts at most more than the usual one: what people do is often
# periodic, as the rows of a matrix are.
USUAL = 8.0
# By which an autocorrelation must rise above those that were tried last to be tried too.
CLEAR = 2.0
# Noise is called repeated where two parts have a correlation of at least this. Other parts of which
# too little is left have too little noise.
ALIKE = 0.25


class Distance(NamedTuple):
    """Two parts of the parameters whose noise is compared."""

    # In parameters.
    between: int
    # 1 where they are subtracted, −1 where they are added.
    sign: int


class NoiseAudit(NamedTuple):
    """What the first estimates of a run say about its noise."""

    rounds: int
    parameters: int
    # How many of them have less noise than is claimed, and how many the noise of others.
    quiet: int
    repeated: int
    # The distance at which most of it is repeated.
    distance: Distance | None
    # All noise together is at least this many times smaller than is claimed.
    times_at_least: float
    # How many times too small all of it must be to be noticed, with the probability of `LIKELY`;
    # infinite where people hide it.
    caught: float
    # The share of stretches whose noise would be noticed if it were repeated.
    noticed: float
    # The length from which on a single repetition is noticed.
    noticed_from: int

    @property
    def is_refuted(self) -> bool:
        return self.quiet > 0 or self.repeated > 0 or self.times_at_least > 1


def audit_noise(
    estimates: np.ndarray,
    noise: np.ndarray,
    layers: list[int],
    is_kept: np.ndarray | None = None,
    level: float = LEVEL,
) -> NoiseAudit:
    """Audit the noise of the first estimates of a run.

    Args:
        estimates: [rows, parameters that are kept], in deviations of white noise, as claimed.
        noise: [rows, draws], the share of each draw of white noise in each of these rows.
        layers: the number of parameters of each layer.
        is_kept: of all parameters, which are in `estimates` (default: all).
        level: how often a sound mechanism may be accused.
    """
    if is_kept is None:
        is_kept = np.ones(sum(layers), bool)
    # A layer may have no parameters.
    layers = [size for size in layers if size]
    fresh = _remove_known_noise(estimates, noise)
    by_energy = _find_quiet(fresh, is_kept, layers, level / 2)
    past = _weigh_past(noise)
    rows = np.zeros((len(fresh), len(is_kept)), np.float32)
    rows[:, is_kept] = _subtract_past(_forget_loud(fresh, estimates), past)
    comparison = _Comparison(
        rows=rows,
        is_kept=is_kept,
        layers=layers,
        noise_left=1 + float(np.mean(np.sum(past**2, axis=1))),
        level=level / 2,
    )
    comparison.compare_all()
    # Where there is no noise, none of it is repeated.
    repeated = comparison.is_repeated & ~by_energy.is_quiet
    return NoiseAudit(
        rounds=len(fresh),
        parameters=int(is_kept.sum()),
        quiet=int(by_energy.is_quiet.sum()),
        repeated=int(repeated.sum()),
        distance=comparison.distance if repeated.any() else None,
        times_at_least=by_energy.times_at_least,
        caught=by_energy.caught,
        noticed=comparison.measure_noticed(),
        noticed_from=comparison.noticed_from,
    )


def _remove_known_noise(values: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Remove from each row the noise that follows from the rows before it.

    What is left of the noise is independent of all rows before, with a deviation of 1.
    """
    root = np.linalg.cholesky(noise @ noise.T)
    return solve_triangular(root, values, lower=True).astype(np.float32)


def _weigh_past(noise: np.ndarray) -> np.ndarray:
    """Return [rows, rows]: what of the rows before a row predicts it best.

    People do much the same from round to round. Where they do exactly the same, what is left of
    them after `_remove_known_noise` differs from row to row by known factors.
    """
    steady = _remove_known_noise(np.ones((len(noise), 1)), noise)[:, 0].astype(np.float64)
    squares = np.cumsum(steady**2) - steady**2
    weights = np.outer(steady, steady) / np.maximum(squares, 1e-30)[:, None]
    return np.tril(weights, -1)


def _subtract_past(rows: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Subtract from each row what those before it predict; what is known may be subtracted."""
    return (rows - past.astype(np.float32) @ rows).astype(np.float32)


def _forget_loud(fresh: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    """Return the rows without parameters of which too few digits were kept to show the noise.

    They become NaN, and nothing that is compared with NaN is too small: to leave them out and
    compare what is beside them would favour some noise over other.
    """
    is_loud = np.any(np.abs(estimates) >= LOUD, axis=0)
    return np.where(is_loud, np.float32(np.nan), fresh)


class _Energy(NamedTuple):
    """What the squares say."""

    # Of all parameters.
    is_quiet: np.ndarray
    times_at_least: float
    caught: float


def _find_quiet(fresh: np.ndarray, is_kept: np.ndarray, layers: list[int], level: float) -> _Energy:
    """Find too little noise, in all parameters together and in every stretch of a layer."""
    squares = np.einsum("rp,rp->p", fresh, fresh, dtype=np.float64)
    least_mean = _least_mean(fresh.size, level / 2)
    mean = squares.sum() / fresh.size
    hidden = max(0.0, mean - 1)
    # Noise as much larger than usual is still caught with the probability of `LIKELY`.
    scatter = float(ndtri(LIKELY)) * math.sqrt(2 / fresh.size)
    can_be_caught = least_mean - scatter > hidden
    spread_out = np.zeros(len(is_kept))
    spread_out[is_kept] = squares
    of_layers = np.cumsum([0, *layers[:-1]])
    starts = np.union1d(of_layers, np.arange(0, len(is_kept), WINDOW))
    sums = np.add.reduceat(spread_out, starts)
    counts = np.add.reduceat(is_kept.astype(int), starts)
    least = [
        number * len(fresh) * _least_mean(number * len(fresh), level / 2 / len(starts))
        for number in counts.tolist()
    ]
    lengths = np.diff(np.append(starts, len(is_kept)))
    return _Energy(
        is_quiet=np.repeat(sums < np.array(least), lengths) & is_kept,
        times_at_least=math.sqrt(least_mean / mean) if mean else math.inf,
        caught=1 / math.sqrt(least_mean - scatter - hidden) if can_be_caught else math.inf,
    )


@lru_cache(maxsize=4096)
def _least_mean(count: int, level: float) -> float:
    """Return what the mean of `count` squares of noise falls below with probability `level`."""
    return float(chi2.ppf(level, count)) / count if count else 0.0


class _Comparison:
    """Compares parts of the parameters with parts, in all rows together."""

    def __init__(
        self,
        *,
        rows: np.ndarray,
        is_kept: np.ndarray,
        layers: list[int],
        noise_left: float,
        level: float,
    ) -> None:
        """Prepare to compare.

        Args:
            rows: [rows, parameters], without what the rows before them predict.
            is_kept: of all parameters, which are known.
            layers: the number of parameters of each layer.
            noise_left: the mean square of sound noise in these rows.
            level: how often a sound mechanism may be accused.
        """
        self.is_repeated = np.zeros(len(is_kept), bool)
        # From this length on, a single repetition stands out in the autocorrelation.
        self.noticed_from = len(is_kept)
        self._rows = rows
        # Those in which people do least tell which stretches deserve a closer look.
        loudness = np.nansum(rows**2, axis=1)
        self._quietest = rows[np.sort(np.argsort(loudness)[:2])]
        self._noise_left = noise_left
        self._is_kept = is_kept
        self._sizes = layers
        self._starts = np.cumsum([0, *layers[:-1]]).tolist()
        windows = -(-len(is_kept) // WINDOW)
        # At any distance, of both signs, and in two parts where distances are short.
        any_two = 4 * len(is_kept) * windows
        pairs = len(layers) * (len(layers) - 1)
        self._level_of_windows = level / 2 / any_two
        self._level_of_layers = level / 2 / max(pairs, 1)
        # How many parameters are repeated at each distance.
        self._found: Counter[Distance] = Counter()

    @property
    def distance(self) -> Distance | None:
        """Return the distance at which most parameters are repeated."""
        most = self._found.most_common(1)
        return most[0][0] if most else None

    def compare_all(self) -> None:
        """Mark all parameters whose noise is repeated, as far as it can be found."""
        for distance in self._choose_distances():
            for part in _split_short(distance.between):
                self._compare_windows(distance, part)
        for first, second in combinations(range(len(self._sizes)), 2):
            for sign in (1, -1):
                self._compare_layers(first, second, sign)

    def measure_noticed(self) -> float:
        """Return for how many stretches a repetition would be noticed.

        People may do so much in a stretch that nothing can be said of its noise. What they do is
        measured at distances that have no meaning.
        """
        generator = np.random.default_rng(0)
        most = max(len(self._is_kept) // 2, 2)
        noticed = []
        for between in generator.integers(1, most, size=4).tolist():
            places = self._window_starts(between)
            squares, counts = self._sum_windows(Distance(between, 1), places, self._rows)
            counts = np.maximum(counts, 1)
            by_people = squares / counts - self._noise_left
            least = [_least_mean(count, self._level_of_windows) for count in counts.tolist()]
            noticed += (by_people < np.array(least)).tolist()
        return float(np.mean(noticed)) if noticed else 0.0

    def _choose_distances(self) -> list[Distance]:
        """Choose those at which the rows are most alike, or most opposite."""
        size = len(self._is_kept)
        rows = np.clip(np.nan_to_num(self._rows), -MOST, MOST)
        # Where there is no noise, or people hide all of it, no distance is better than another.
        if size == 1 or not rows.any():
            return []
        spectrum = _sum_spectra(rows)
        usual = np.minimum(spectrum, USUAL * np.median(spectrum))
        chosen: dict[Distance, None] = {}
        for power in (spectrum, usual):
            alike = _correlate(power, size)
            top = np.argsort(-np.abs(alike))[:DISTANCES].tolist()
            for place in top:
                sign = 1 if alike[place] > 0 else -1
                chosen[Distance(place + 1, sign)] = None
            # The flatter spectrum comes last, which shows what is not periodic.
            last = float(np.abs(alike[top[-1]]))
            clear = math.ceil((last + CLEAR) * math.sqrt(size / len(self._rows)))
            # Wherever it begins, a whole stretch of those compared must lie in it.
            self.noticed_from = max(clear, 2 * WINDOW - 1)
        return list(chosen)

    def _window_starts(self, between: int) -> np.ndarray:
        """Return where stretches begin that have another one at this distance."""
        return np.arange(0, len(self._is_kept) - between - WINDOW + 1, WINDOW)

    def _compare_windows(self, distance: Distance, part: np.ndarray) -> None:
        """Compare all stretches with those at this distance, in a part of their places."""
        starts = self._window_starts(distance.between)
        squares, counts = self._sum_windows(distance, starts, self._quietest, part)
        starts = starts[squares < counts]
        squares, counts = self._sum_windows(distance, starts, self._rows, part)
        least = [_least_mean(count, self._level_of_windows) for count in counts.tolist()]
        for start in starts[squares < counts * least].tolist():
            self._mark(distance, start + np.flatnonzero(part))

    def _sum_windows(
        self,
        distance: Distance,
        starts: np.ndarray,
        rows: np.ndarray,
        part: np.ndarray = np.ones(WINDOW, bool),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return half the sum of squares of what is left in each stretch, and how many they are."""
        places = starts[:, None] + np.flatnonzero(part)
        is_compared = self._is_kept[places] & self._is_kept[places + distance.between]
        squares = np.zeros(len(starts))
        for row in rows:
            left = row[places] - distance.sign * row[places + distance.between]
            squares += np.einsum("wp,wp,wp->w", left, left, is_compared) / 2
        return squares, len(rows) * np.count_nonzero(is_compared, axis=1)

    def _compare_layers(self, first: int, second: int, sign: int) -> None:
        """Compare two layers from their beginnings, as far as both go."""
        start = self._starts[first]
        length = min(self._sizes[first], self._sizes[second])
        distance = Distance(self._starts[second] - start, sign)
        one = slice(start, start + length)
        other = slice(one.start + distance.between, one.stop + distance.between)
        is_compared = self._is_kept[one] & self._is_kept[other]
        count = int(is_compared.sum()) * len(self._rows)
        least = count * _least_mean(count, self._level_of_layers)
        squares = 0.0
        for row in self._rows[::-1]:
            left = (row[one] - sign * row[other])[is_compared]
            squares += float(left @ left) / 2
            # Squares only add up; and nothing is known of a sum that is NaN.
            if not squares < least:
                return
        self._mark(distance, start + np.flatnonzero(is_compared))

    def _mark(self, distance: Distance, places: np.ndarray) -> None:
        """Mark these places, and those at this distance from them, as repeated.

        If the one part has no noise at all, little is left too, but then they are not alike.
        """
        one = self._rows[:, places]
        other = self._rows[:, places + distance.between]
        alike = 2 * distance.sign * float(np.vdot(one, other))
        if alike > ALIKE * float(np.vdot(one, one) + np.vdot(other, other)):
            self.is_repeated[places] = True
            self.is_repeated[places + distance.between] = True
            self._found[distance] += len(places)


def _split_short(between: int) -> list[np.ndarray]:
    """Return the parts of a stretch to compare, so that none is compared with itself.

    Where a distance is short, a value would be both minuend and subtrahend.
    """
    places = np.arange(WINDOW)
    if between >= WINDOW:
        return [places >= 0]
    is_even = places // between % 2 == 0
    return [is_even, ~is_even]


def _sum_spectra(rows: np.ndarray) -> np.ndarray:
    """Return the power of all rows by frequency, with zeros after each so that it has no cycle."""
    length = 2 ** math.ceil(math.log2(2 * rows.shape[1]))
    total = np.zeros(length // 2 + 1, np.float32)
    for row in rows:
        total += np.abs(np.fft.rfft(row, length)) ** 2
    return total


def _correlate(power: np.ndarray, size: int) -> np.ndarray:
    """Return how alike rows are at the distances 1, 2, …, in deviations."""
    alike = np.fft.irfft(power)[1:size]
    pairs = np.arange(size - 1, 0, -1)
    scaled = alike / np.sqrt(pairs)
    # Of the usual one: a few may be far larger.
    usual = 1.4826 * np.median(np.abs(scaled))
    return scaled / usual if usual else np.zeros_like(scaled)
