"""White noise in integers: the rounded normal, drawn from tables of a small discrete Gaussian.

The ideal is ⌊y + ½⌋ for y ~ N(0, σ²): for an integer x, x + ⌊y + ½⌋ = ⌊x + y + ½⌋, so that whoever sees a noised whole number sees a
rounding of the Gaussian mechanism, and nothing else. Floating-point noise has no such ideal: it reaches some numbers and not others, and
which it reaches tells what is beneath.

How: X = Σ c_i X_i, where each X_i is a discrete Gaussian of standard deviation `BASE`, looked up in a table of cumulative probabilities by
comparing 127 random bits in whole, and c_i are integers small enough that each addition stays a discrete Gaussian (Micciancio and
Walter 2017, "Gaussian sampling over the integers"). σ is so large that a discrete Gaussian and a rounded normal are the same to
2⁻⁹⁰ or better. All of it is integers; the bits are ChaCha20's.

**Guarantee:** a draw of `white` is within `distance` of independent rounded normals of standard deviation `deviation`, in total variation,
for uniform bits. docs/proofs.md has the proof.

**Assumes:** ChaCha20 (privacy/chacha20.py), and a key that no other noise is drawn with.
"""

import functools
import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.privacy import chacha20, wide
from taciturn.privacy.wide import Wide

BASE = 2048  # standard deviation of a table's discrete Gaussian
BITS = 127  # of a cumulative probability
LARGEST = 2**15 - 1  # of what a table gives; 16 standard deviations
WORDS = 4  # of 32 bits, for each draw of each coordinate: 127 bits and a sign
# A lattice of spacing c meets a Gaussian of standard deviation ≥ 2c: its sums over the lattice differ by 2 exp(−8π²), less than 2⁻¹¹².
SMOOTHING = Fraction(1, 4) - Fraction(1, BASE**2)
ADDITION_ERROR = 2.0**-111  # of one addition, in total variation
TABLE_ERROR = (LARGEST + 1) * 2.0 ** -(BITS + 1) + 2.0**-180  # of one look-up: rounded probabilities, and the tail that is cut off


class Spread(NamedTuple):
    """Noise of one standard deviation, and how it is put together."""

    deviation: float  # σ, rounded down: the noise is never narrower
    factors: tuple[int, ...]  # c_i

    @property
    def distance(self) -> float:
        """Return the distance of one coordinate from the rounded normal, in total variation."""
        rounding = 0.0203 / self.deviation**2  # between a discrete Gaussian and a rounded normal
        return len(self.factors) * (TABLE_ERROR + ADDITION_ERROR) + rounding


def spread(deviation: float) -> Spread:
    """The narrowest noise of at least this standard deviation that can be put together: by up to `BASE` steps more."""
    if not BASE <= deviation < 2.0**58:
        raise ValueError(f"whole-number noise has a standard deviation of {BASE} to 2⁵⁸ steps; {deviation:.3g} is outside")
    wanted, variance, factors = Fraction(deviation) ** 2, Fraction(BASE**2), [1]
    while variance < wanted:
        most = math.isqrt(math.floor(variance * SMOOTHING))
        missing = (wanted - variance) / BASE**2
        least = math.isqrt(math.floor(missing))
        factors.append(min(most, least if least * least >= missing else least + 1))
        variance += factors[-1] ** 2 * BASE**2
    exact = float(math.isqrt(math.floor(variance)))
    return Spread(math.nextafter(exact, 0.0), tuple(factors))


def white(spread: Spread, key: jax.Array, stream: jax.Array | int, size: int) -> Wide:
    """`size` independent draws. Streams of one key share no bits."""
    counters = jnp.arange(-(-size // WORDS), dtype=jnp.uint32)
    table = tuple(map(jnp.asarray, cumulative()))
    names = jnp.arange(len(spread.factors), dtype=jnp.uint32)
    lower = jnp.asarray([factor & 0x7FFFFFFF for factor in spread.factors], jnp.uint32)
    upper = jnp.asarray([factor >> 31 for factor in spread.factors], jnp.uint32)

    def add(sum: Wide, one: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Wide, None]:
        name, low, high = one
        words = chacha20.blocks(key, counters, (name, jnp.asarray(stream, jnp.uint32), jnp.uint32(0)))
        # A block serves four coordinates, a quarter of them all apart.
        bits = [jnp.concatenate(words[place::WORDS])[:size] for place in range(WORDS)]
        drawn = wide.of(discrete(table, bits))
        scaled = wide.add(wide.times(drawn, low), wide.shifted(wide.times(drawn, high), 31))
        return wide.add(sum, scaled), None

    return jax.lax.scan(add, wide.zeros((size,)), (names, lower, upper))[0]


def discrete(table: tuple[jax.Array, ...], bits: list[jax.Array]) -> jax.Array:
    """A discrete Gaussian for each four words: one bit is the sign, 127 are looked up."""
    first, second, third, fourth = bits
    number = first >> 1, second, third, fourth

    def search(words: int) -> jax.Array:
        """How many of the table's entries are no larger, or, of their first words alone, smaller."""

        def halve(step: jax.Array, found: jax.Array) -> jax.Array:
            size = jnp.int32(2**14) >> step
            place = found + size - 1
            smaller, same = jnp.asarray(False), jnp.asarray(True)
            for entry, word in zip(table[:words], number, strict=False):
                here = entry[place]
                smaller, same = smaller | (same & (here < word)), same & (here == word)
            return found + jnp.where(smaller | (same & (words == WORDS)), size, 0)

        return jax.lax.fori_loop(0, 15, halve, jnp.zeros(first.shape, jnp.int32))

    # Two words decide, but for once in 2⁴⁸ draws; where they do not, all four are compared.
    found = search(2)
    undecided = jnp.any((table[0][found] == number[0]) & (table[1][found] == number[1]))
    found = jax.lax.cond(undecided, lambda: search(WORDS), lambda: found)
    return jnp.where(first & 1 == 1, -found, found)


@functools.cache
def cumulative() -> tuple[np.ndarray, ...]:
    """P(|X| ≤ k) · 2¹²⁷ for k = 0, 1, …, rounded, in four words; X is the discrete Gaussian, P(k) ∝ exp(−k²/2 BASE²). 60 digits."""
    context = Context(prec=60)
    factor = context.exp(context.divide(Decimal(-1), Decimal(BASE**2)))
    ratio = context.sqrt(factor)  # of the next probability to this one: exp(−(2k + 1)/2 BASE²)
    share, sums = Decimal(1), [Decimal(1)]
    for _ in range(1, LARGEST + 1):
        share, ratio = context.multiply(share, ratio), context.multiply(ratio, factor)
        sums.append(context.add(sums[-1], context.multiply(Decimal(2), share)))
    scale = context.divide(Decimal(2**BITS), sums[-1])
    whole = [int(context.multiply(sum, scale).to_integral_value()) for sum in sums[:-1]]
    whole.append(2**BITS)  # larger than any number that is looked up
    shifts = (96, 64, 32, 0)
    return tuple(np.array([number >> shift & 0xFFFFFFFF for number in whole], np.uint32) for shift in shifts)
