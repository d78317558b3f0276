"""White noise in integers: the rounded normal, drawn from tables of a small discrete Gaussian.

The ideal is ⌊y + ½⌋ for y ~ N(0, σ²): for an integer x, x + ⌊y + ½⌋ = ⌊x + y + ½⌋, so that a noised
integer is a rounding of the Gaussian mechanism, and reveals nothing else. Floating-point noise has
no such ideal: it reaches some numbers and not others, and which it reaches depends on what it
hides.

How: X = Σ c_i X_i, where each X_i is a discrete Gaussian of standard deviation `BASE`, looked up in
a table of cumulative probabilities by comparing 127 random bits, of which 96 are drawn only where
the first 31 do not decide; and c_i are integers small enough that each addition stays a discrete
Gaussian (Micciancio and Walter 2017, "Gaussian sampling over the integers"). σ is so large that a
discrete Gaussian and a rounded normal are the same to 2⁻⁹⁰ or better. All of it is integers; the
bits are ChaCha20's, and the same on every machine, whether a GPU's own kernel draws them or not.

**Guarantee:** a draw of `white` is within `distance` of independent rounded normals of standard
deviation `deviation`, in total variation, for uniform bits. docs/proofs.md has the proof.

**Assumes:** ChaCha20 (privacy/noise/chacha20.py), and a key that no other noise is drawn with.
"""

import functools
import hashlib
import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas
from jax.experimental.pallas import triton

from taciturn.core import PyTree
from taciturn.errors import TaciturnError
from taciturn.privacy.noise import chacha20, int64
from taciturn.privacy.noise.int64 import Int64

# standard deviation of a table's discrete Gaussian
BASE = 2048
# of a cumulative probability
BITS = 127
# of what a table gives; 16 standard deviations
LARGEST = 2**15 - 1
# of 32 bits, for each draw of each coordinate: 127 bits and a sign
WORDS = 4
# coordinates whose first words one block holds
LANES = chacha20.WORDS
# blocks that one program of a GPU, and a core, draw from at a time
HELD, HELD_BY_A_CORE = (
    128,
    4096,
)
# A lattice of spacing c meets a Gaussian of standard deviation ≥ 2c: its sums over the lattice
# differ by 2 exp(−8π²), less than 2⁻¹¹².
SMOOTHING = Fraction(1, 4) - Fraction(1, BASE**2)
# of one addition, in total variation
ADDITION_ERROR = 2.0**-111
TABLE_ERROR = (LARGEST + 1) * 2.0 ** -(
    BITS + 1
    # of one look-up: rounded probabilities, and the tail that is cut off
) + 2.0**-180
# steps of a search that a guide begins
GUIDED = 3
# platforms whose noise tests have seen
SEEN_ON = ("cpu",)
# The hash of 10⁶ draws at a standard deviation of 2⁵⁷ steps, key 0 … 7, stream 5: for some the
# first word would decide wrongly.
KNOWN = "a6adeb9d0c219da9aae5c74a99e6941deeb5af95a2e10529c774f6181e00efb4"


class OtherBits(TaciturnError):
    """Noise has other bits on this machine than on others."""


class Spread(NamedTuple):
    """Noise of one standard deviation, and how it is composed."""

    # σ, rounded down: the noise is never narrower
    deviation: float
    # c_i
    factors: tuple[int, ...]

    @property
    def distance(self) -> float:
        """Return the distance of one coordinate from the rounded normal, in total variation."""
        # between a discrete Gaussian and a rounded normal
        rounding = 0.0203 / self.deviation**2
        return len(self.factors) * (TABLE_ERROR + ADDITION_ERROR) + rounding


def spread(deviation: float) -> Spread:
    """Return the narrowest noise of at least this standard deviation that can be composed: up to
    `BASE` steps wider.
    """
    if not BASE <= deviation < 2.0**58:
        raise ValueError(
            f"whole-number noise has a standard deviation of {BASE} to 2⁵⁸ steps; {deviation:.3g}"
            " is outside"
        )
    wanted, variance, factors = Fraction(deviation) ** 2, Fraction(BASE**2), [1]
    while variance < wanted:
        most = math.isqrt(math.floor(variance * SMOOTHING))
        missing = (wanted - variance) / BASE**2
        least = math.isqrt(math.floor(missing))
        factors.append(min(most, least if least * least >= missing else least + 1))
        variance += factors[-1] ** 2 * BASE**2
    exact = float(math.isqrt(math.floor(variance)))
    return Spread(math.nextafter(exact, 0.0), tuple(factors))


def white(spread: Spread, key: jax.Array, stream: jax.Array | int, size: int) -> Int64:
    """Draw `size` independent numbers. Streams of one key share no bits."""
    return _white(spread, jnp.asarray(key, jnp.uint32), jnp.asarray(stream, jnp.uint32), size)


# traced once for all rows, levels and runs
@functools.partial(jax.jit, static_argnums=(0, 3))
def _white(*given: Any) -> Int64:
    return jax.lax.platform_dependent(
        cuda=lambda: in_one_kernel(*given), default=lambda: plain(*given)
    )


def plain(spread: Spread, key: jax.Array, stream: jax.Array, size: int) -> Int64:
    """Draw by definition: a block of ChaCha20 has first words for 16 coordinates, one in each
    sixteenth of them. A cache holds `held`.
    """
    blocks = -(-size // LANES)
    held = min(blocks, HELD_BY_A_CORE)
    table, begin, (lower, upper) = (
        tuple(map(jnp.asarray, cumulative())),
        jnp.asarray(guide()),
        _halves(spread),
    )

    def draw(first: jax.Array) -> Int64:
        def add(name: jax.Array, sum: Int64) -> Int64:
            words = functools.partial(_words, key, name, stream)
            counters = first + jnp.arange(held, dtype=jnp.uint32)
            first_words = jnp.concatenate(words(0, counters))
            drawn = discrete(
                table,
                first_words,
                lambda place: words(1 + place // held, counters[place % held]),
                begin,
            )
            return int64.add(sum, _times(drawn, lower[name], upper[name]))

        return jax.lax.fori_loop(0, len(spread.factors), add, int64.zeros((LANES * held,)))

    # the last may draw more than is asked for
    drawn = jax.lax.map(draw, jnp.arange(0, blocks, held, dtype=jnp.uint32))
    return jax.tree.map(
        lambda one: (
            one.reshape(-1, LANES, held)
            .swapaxes(0, 1)
            .reshape(LANES, -1)[:, :blocks]
            .reshape(-1)[:size]
        ),
        drawn,
    )


def in_one_kernel(
    spread: Spread, key: jax.Array, stream: jax.Array, size: int, interpret: bool = False
) -> Int64:
    """Draw the same bits on a GPU (Pallas): a program keeps `HELD` blocks in registers. XLA would
    write all words of all blocks to memory after every double round, and the state of every search
    after every step.
    """
    blocks = -(-size // LANES)
    programs = -(-blocks // HELD)
    out = (
        jax.ShapeDtypeStruct((LANES, programs * HELD), jnp.int32),
        jax.ShapeDtypeStruct((LANES, programs * HELD), jnp.uint32),
    )
    kernel, options = (
        functools.partial(_kernel, len(spread.factors)),
        None if interpret else triton.CompilerParams(num_warps=4),
    )
    call = pallas.pallas_call(
        kernel, grid=(programs,), out_shape=out, compiler_params=options, interpret=interpret
    )
    drawn = call(key, stream[None], *_halves(spread), *map(jnp.asarray, cumulative()))
    return Int64(*(words[:, :blocks].reshape(-1)[:size] for words in drawn))


def _kernel(factors: int, key_ref, stream_ref, lower_ref, upper_ref, *refs) -> None:
    table, drawn_refs = refs[:WORDS], refs[WORDS:]
    first = pallas.program_id(0) * HELD
    counters = (first + jnp.arange(HELD)).astype(jnp.uint32)

    def add(name: jax.Array, sums: list[Int64]) -> list[Int64]:
        words = functools.partial(_words, key_ref, name, stream_ref[0])

        def take_turns(
            lane: jax.Array, lanes: list[tuple[jax.Array, Int64]]
        ) -> list[tuple[jax.Array, Int64]]:
            """Add to the first lane, and put it last: registers cannot be indexed."""
            (word, sum), *others = lanes
            drawn = discrete(table, word, lambda _: words(1 + lane, counters))
            return [
                *others,
                (word, int64.add(sum, _times(drawn, lower_ref[name], upper_ref[name]))),
            ]

        return [
            sum
            for _, sum in jax.lax.fori_loop(
                0, LANES, take_turns, list(zip(words(0, counters), sums, strict=True))
            )
        ]

    for lane, sum in enumerate(
        jax.lax.fori_loop(0, factors, add, [int64.zeros(counters.shape)] * LANES)
    ):
        for ref, words in zip(drawn_refs, sum, strict=True):
            ref[lane, pallas.ds(first, HELD)] = words


def _words(
    key, name: jax.Array, stream: jax.Array, kind: jax.Array | int, counters: jax.Array
) -> list[jax.Array]:
    """Draw blocks for the term of this name: kind 0 has first words, and kind 1 + lane has further
    words for that lane.
    """
    return chacha20.blocks(
        key, counters, (name.astype(jnp.uint32), stream, jnp.asarray(kind, jnp.uint32))
    )


@functools.cache
def check_bits(device: Any) -> None:
    """Raise unless this device draws the same bits as all others. Tests cover CPUs; GPUs are tried
    once in each process.
    """
    if device.platform in SEEN_ON:
        return
    # wherever else JAX would put it
    key = jax.device_put(np.arange(8, dtype=np.uint32), device)
    drawn = jax.jit(lambda key: white(spread(2.0**57), key, 5, 10**6))(key)
    if hashlib.sha256(int64.to_numpy(drawn).tobytes()).hexdigest() != KNOWN:
        to_do = (
            "Nothing was released. Update JAX and the driver, or train on CPUs (JAX_PLATFORMS=cpu)"
        )
        raise OtherBits(
            f"on {device.device_kind} noise has other bits than elsewhere, so nothing is known of"
            f" it. {to_do}"
        )


def checked(made: PyTree) -> PyTree:
    """Return what was drawn, or raise if its devices draw other bits: its arguments decide where it
    was drawn, else JAX's settings.
    """
    for device in set().union(*(leaf.devices() for leaf in jax.tree.leaves(made))):
        check_bits(device)
    return made


def _halves(spread: Spread) -> tuple[jax.Array, jax.Array]:
    """Split the factors into their lower 31 bits and those above."""
    lower, upper = zip(
        *((factor & 0x7FFFFFFF, factor >> 31) for factor in spread.factors), strict=True
    )
    return jnp.asarray(lower, jnp.uint32), jnp.asarray(upper, jnp.uint32)


def _times(drawn: jax.Array, lower: jax.Array, upper: jax.Array) -> Int64:
    number = int64.from_int32(drawn)
    return int64.add(int64.times(number, lower), int64.shift(int64.times(number, upper), 31))


def discrete(
    table: tuple,
    first: jax.Array,
    more: Callable[[Any], list[jax.Array]],
    guide: jax.Array | None = None,
) -> jax.Array:
    """Draw a discrete Gaussian from each first word: one bit is the sign, 31 are looked up. Where
    they do not decide (for one draw in 190,000), `more` draws three more words, and all 127 bits
    are looked up: with a guide, which says where a search begins, one draw after another; without
    one, as in a GPU's registers, all at once.
    """
    number = first >> 1

    def decide(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        found, undecided = state
        place = jnp.argmax(undecided)
        return found.at[place].set(_search(table, [number[place], *more(place)])), undecided.at[
            place
        ].set(False)

    found = (
        _search(table, [number])
        if guide is None
        else _search(table, [number], guide[_stretch(number)], GUIDED)
    )
    undecided = table[0][found] == number
    if guide is not None:
        found, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), decide, (found, undecided))
    else:
        found = jax.lax.cond(
            jnp.max(undecided.astype(jnp.int32)) > 0,
            lambda: _search(table, [number, *more(None)]),
            lambda: found,
        )
    return jnp.where(first & 1 == 1, -found, found)


def _search(
    table: tuple, words: list[jax.Array], start: jax.Array | int = 0, steps: int = 15
) -> jax.Array:
    """Count the entries of the table that are no larger, or, if only their first words are
    compared, smaller.
    """

    def halve(step: jax.Array, found: jax.Array) -> jax.Array:
        size = jnp.int32(2 ** (steps - 1)) >> step
        place = found + size - 1
        smaller, same = jnp.asarray(False), jnp.asarray(True)
        for entry, word in zip(table, words, strict=False):
            here = entry[place]
            smaller, same = smaller | (same & (here < word)), same & (here == word)
        return found + jnp.where(smaller | (same & (len(words) > 1)), size, 0)

    return jax.lax.fori_loop(0, steps, halve, jnp.broadcast_to(jnp.int32(start), words[0].shape))


def _stretch(number: jax.Array) -> jax.Array:
    """Name the stretch of first words that this one lies in: by the length, and the eight bits
    after the leading one, of what it is short of the largest. So stretches are shorter where the
    table is denser.
    """
    short = jnp.uint32(2**31 - 1) - number
    zeros = jax.lax.clz(short)
    return ((32 - zeros << 8) + (short << zeros << 1 >> 24)).astype(jnp.int32)


@functools.cache
def guide() -> np.ndarray:
    """Count for each stretch the entries of the table that lie below all of it; fewer than 2³ more
    lie below a number in it.
    """
    first = cumulative()[0]
    with jax.ensure_compile_time_eval():
        stretches = np.asarray(_stretch(jnp.asarray(first[first < 2**31])))
    return np.searchsorted(-stretches, -np.arange(32 << 8), "left").astype(np.int32)


@functools.cache
def cumulative() -> tuple[np.ndarray, ...]:
    """Compute P(|X| ≤ k) · 2¹²⁷ for k = 0, 1, …, in four words, with 60 digits; X is the discrete
    Gaussian, P(k) ∝ exp(−k²/2 BASE²).
    """
    context = Context(prec=60)
    factor = context.exp(context.divide(Decimal(-1), Decimal(BASE**2)))
    # of the next probability to this one: exp(−(2k + 1)/2 BASE²)
    ratio = context.sqrt(factor)
    share, sums = Decimal(1), [Decimal(1)]
    for _ in range(1, LARGEST + 1):
        share, ratio = context.multiply(share, ratio), context.multiply(ratio, factor)
        sums.append(context.add(sums[-1], context.multiply(Decimal(2), share)))
    scale = context.divide(Decimal(2**BITS), sums[-1])
    whole = [int(context.multiply(sum, scale).to_integral_value()) for sum in sums[:-1]]
    # larger than any number that is looked up
    whole.append(2**BITS)
    shifts = (96, 64, 32, 0)
    return tuple(
        np.array([number >> shift & 0xFFFFFFFF for number in whole], np.uint32) for shift in shifts
    )
