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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

# The standard deviation of a table's discrete Gaussian.
BASE = 2048
# Of a cumulative probability.
BITS = 127
# The largest number that a table gives: 16 standard deviations.
LARGEST = 2**15 - 1
# Of 32 bits, for each draw of each coordinate: 127 bits and a sign.
WORDS = 4
# Coordinates whose first words one block holds.
LANES = chacha20.WORDS
# Blocks that one program of a GPU draws from at a time.
HELD = 128
# Blocks that a core draws from at a time.
HELD_BY_A_CORE = 4096
# A lattice of spacing c meets a Gaussian of standard deviation ≥ 2c: its sums over the lattice
# differ by 2 exp(−8π²), less than 2⁻¹¹².
SMOOTHING = Fraction(1, 4) - Fraction(1, BASE**2)
# Of one addition, in total variation.
ADDITION_ERROR = 2.0**-111
# Of one look-up, in total variation: rounded probabilities, and the tail beyond the table.
TABLE_ERROR = (LARGEST + 1) * 2.0 ** -(BITS + 1) + 2.0**-180
# Steps of a search that a guide begins.
GUIDED = 3
# Platforms on which tests have compared the noise with its definition.
SEEN_ON = ("cpu",)
# The hash of 10⁶ draws at a standard deviation of 2⁵⁷ steps, key 0 … 7, stream 5. For some of these
# draws the first word would decide wrongly.
KNOWN = "a6adeb9d0c219da9aae5c74a99e6941deeb5af95a2e10529c774f6181e00efb4"

# The columns of `cumulative_table`, as arrays or as refs of a kernel.
Table = Sequence[Any]
# The further words of the draw at a place, or of all draws of a lane (None).
MoreWords = Callable[[Any], list[jax.Array]]


class OtherBits(TaciturnError):
    """Noise has other bits on this machine than on others."""


# How wide noise is composed.


class Spread(NamedTuple):
    """Noise of one standard deviation, and how it is composed."""

    # σ, rounded down: the noise is never narrower.
    deviation: float
    # c_i.
    factors: tuple[int, ...]

    @property
    def distance(self) -> float:
        """Return the distance of one coordinate from the rounded normal, in total variation."""
        # Between a discrete Gaussian and a rounded normal.
        rounding = 0.0203 / self.deviation**2
        return len(self.factors) * (TABLE_ERROR + ADDITION_ERROR) + rounding


def spread(deviation: float) -> Spread:
    """Return the narrowest noise of at least this standard deviation that can be composed.

    It is up to `BASE` steps wider.

    Raises:
        ValueError: the deviation is less than `BASE`, or does not fit into 64 bits.
    """
    if not BASE <= deviation < 2.0**58:
        raise ValueError(
            f"whole-number noise has a standard deviation of {BASE} to 2⁵⁸ steps; {deviation:.3g}"
            " is outside"
        )
    wanted = Fraction(deviation) ** 2
    variance = Fraction(BASE**2)
    factors = [1]
    while variance < wanted:
        factor = _choose_factor(variance, wanted)
        factors.append(factor)
        variance += factor**2 * BASE**2
    exact = float(math.isqrt(math.floor(variance)))
    return Spread(math.nextafter(exact, 0.0), tuple(factors))


def _choose_factor(variance: Fraction, wanted: Fraction) -> int:
    """Return the least factor that reaches the wanted variance, or the largest allowed one."""
    largest = math.isqrt(math.floor(variance * SMOOTHING))
    missing = (wanted - variance) / BASE**2
    least = math.isqrt(math.floor(missing))
    if least * least < missing:
        least += 1
    return min(largest, least)


# Drawing.


def white(spread: Spread, key: jax.Array, stream: jax.Array | int, size: int) -> Int64:
    """Draw `size` independent numbers. Streams of one key share no bits."""
    key = jnp.asarray(key, jnp.uint32)
    return _white(spread, key, jnp.asarray(stream, jnp.uint32), size)


# It is traced once for all rows, levels and runs.
@functools.partial(jax.jit, static_argnums=(0, 3))
def _white(spread: Spread, key: jax.Array, stream: jax.Array, size: int) -> Int64:
    return jax.lax.platform_dependent(
        cuda=lambda: draw_in_one_kernel(spread, key, stream, size),
        default=lambda: draw_with_xla(spread, key, stream, size),
    )


def draw_with_xla(spread: Spread, key: jax.Array, stream: jax.Array, size: int) -> Int64:
    """Draw by definition, as many blocks at a time as a core's cache holds.

    A block of ChaCha20 has first words for 16 coordinates, one in each sixteenth of them.
    """
    blocks = -(-size // LANES)
    held = min(blocks, HELD_BY_A_CORE)
    chunks = _Chunks(
        key=key,
        stream=stream,
        held=held,
        terms=len(spread.factors),
        table=_load_table(),
        guide=jnp.asarray(search_guide()),
        factors=_split_factors(spread),
    )

    def put_in_order(words: jax.Array) -> jax.Array:
        by_chunk = words.reshape(-1, LANES, held)
        by_lane = by_chunk.swapaxes(0, 1).reshape(LANES, -1)
        # The last chunk may have more blocks than are asked for, and the last block more words.
        wanted = by_lane[:, :blocks]
        return wanted.reshape(-1)[:size]

    first_blocks = jnp.arange(0, blocks, held, dtype=jnp.uint32)
    drawn = jax.lax.map(chunks.draw, first_blocks)
    return jax.tree.map(put_in_order, drawn)


class _Factors(NamedTuple):
    """The factors c_i of a spread, in two parts that are multiplied by separately."""

    # 31 bits.
    lower: jax.Array
    upper: jax.Array


def _split_factors(spread: Spread) -> _Factors:
    lower = [factor & 0x7FFFFFFF for factor in spread.factors]
    upper = [factor >> 31 for factor in spread.factors]
    return _Factors(jnp.asarray(lower, jnp.uint32), jnp.asarray(upper, jnp.uint32))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Chunks:
    """How a chunk of blocks is drawn."""

    key: jax.Array
    stream: jax.Array
    # Blocks in a chunk.
    held: int
    # How many discrete Gaussians are added up.
    terms: int
    table: Table
    guide: jax.Array
    factors: _Factors

    def draw(self, first: jax.Array) -> Int64:
        """Draw from the blocks that begin with this one."""

        def add_term(name: jax.Array, sum: Int64) -> Int64:
            return int64.add(sum, self._draw_term(name, first))

        nothing = int64.zeros((LANES * self.held,))
        return jax.lax.fori_loop(0, self.terms, add_term, nothing)

    def _draw_term(self, name: jax.Array, first: jax.Array) -> Int64:
        words = functools.partial(_draw_words, self.key, name, self.stream)
        counters = first + jnp.arange(self.held, dtype=jnp.uint32)
        first_words = jnp.concatenate(words(0, counters))

        def draw_more(place: jax.Array) -> list[jax.Array]:
            lane = place // self.held
            counter = counters[place % self.held]
            return words(1 + lane, counter)

        drawn = draw_discrete(
            self.table,
            first_words,
            draw_more=draw_more,
            guide=self.guide,
        )
        return _multiply(
            drawn,
            lower=self.factors.lower[name],
            upper=self.factors.upper[name],
        )


def draw_in_one_kernel(
    spread: Spread, key: jax.Array, stream: jax.Array, size: int, interpret: bool = False
) -> Int64:
    """Draw the same bits on a GPU (Pallas): a program keeps `HELD` blocks in registers.

    XLA would write all words of all blocks to memory after every double round, and the state of
    every search after every step.
    """
    blocks = -(-size // LANES)
    programs = -(-blocks // HELD)
    shape = (LANES, programs * HELD)
    call = pallas.pallas_call(
        functools.partial(_kernel, len(spread.factors)),
        grid=(programs,),
        out_shape=(
            jax.ShapeDtypeStruct(shape, jnp.int32),
            jax.ShapeDtypeStruct(shape, jnp.uint32),
        ),
        compiler_params=None if interpret else triton.CompilerParams(num_warps=4),
        interpret=interpret,
    )
    high, low = call(key, stream[None], *_split_factors(spread), *_load_table())

    def put_in_order(words: jax.Array) -> jax.Array:
        return words[:, :blocks].reshape(-1)[:size]

    return Int64(high=put_in_order(high), low=put_in_order(low))


class _Lane(NamedTuple):
    """A coordinate of each block: its first words, and the sum of what was drawn for it."""

    first_words: jax.Array
    sum: Int64


def _kernel(terms: int, key_ref, stream_ref, lower_ref, upper_ref, *refs) -> None:
    """Draw from `HELD` blocks. The refs are the table's columns, then the words that are drawn."""
    table = refs[:WORDS]
    drawn_refs = refs[WORDS:]
    first = pallas.program_id(0) * HELD
    counters = (first + jnp.arange(HELD)).astype(jnp.uint32)

    def add_term(name: jax.Array, sums: list[Int64]) -> list[Int64]:
        words = functools.partial(_draw_words, key_ref, name, stream_ref[0])

        def add_to_next_lane(number: jax.Array, lanes: list[_Lane]) -> list[_Lane]:
            """Add to the first lane, and put it last: registers cannot be indexed."""
            lane, *others = lanes

            def draw_more(_: None) -> list[jax.Array]:
                return words(1 + number, counters)

            drawn = draw_discrete(table, lane.first_words, draw_more)
            term = _multiply(
                drawn,
                lower=lower_ref[name],
                upper=upper_ref[name],
            )
            sum = int64.add(lane.sum, term)
            return [*others, lane._replace(sum=sum)]

        first_words = words(0, counters)
        lanes = [_Lane(word, sum) for word, sum in zip(first_words, sums, strict=True)]
        lanes = jax.lax.fori_loop(0, LANES, add_to_next_lane, lanes)
        return [lane.sum for lane in lanes]

    nothing = [int64.zeros(counters.shape)] * LANES
    sums = jax.lax.fori_loop(0, terms, add_term, nothing)
    for lane, sum in enumerate(sums):
        for ref, words in zip(drawn_refs, sum, strict=True):
            ref[lane, pallas.ds(first, HELD)] = words


def _draw_words(
    key, name: jax.Array, stream: jax.Array, kind: jax.Array | int, counters: jax.Array
) -> list[jax.Array]:
    """Draw blocks for the term of this name.

    Those of kind 0 have first words; those of kind 1 + lane have further words for that lane.
    """
    nonce = (name.astype(jnp.uint32), stream, jnp.asarray(kind, jnp.uint32))
    return chacha20.blocks(key, counters, nonce)


def _multiply(drawn: jax.Array, *, lower: jax.Array, upper: jax.Array) -> Int64:
    """Return what was drawn times lower + 2³¹ · upper."""
    number = int64.from_int32(drawn)
    by_lower = int64.times(number, lower)
    by_upper = int64.times(number, upper)
    return int64.add(by_lower, int64.shift(by_upper, 31))


# The discrete Gaussian.


def draw_discrete(
    table: Table,
    first: jax.Array,
    draw_more: MoreWords,
    guide: jax.Array | None = None,
) -> jax.Array:
    """Draw a discrete Gaussian from each first word: one bit is the sign, 31 are looked up.

    Where they do not decide (for one draw in 190,000), three more words are drawn, and all 127 bits
    are looked up: with a guide one draw after another; without one, as in a GPU's registers, all at
    once.

    Args:
        table: the columns of `cumulative_table`.
        first: the first words.
        draw_more: draws the other three.
        guide: says where a search begins.
    """
    number = first >> 1
    if guide is None:
        magnitude = _look_up_together(table, number, draw_more)
    else:
        magnitude = _look_up_one_by_one(table, number, draw_more, guide)
    return jnp.where(first & 1 == 1, -magnitude, magnitude)


def _look_up_together(table: Table, number: jax.Array, draw_more: MoreWords) -> jax.Array:
    """Look up all numbers again, with all their bits, where one of them was undecided."""
    magnitude = _search(table, [number])
    is_undecided = table[0][magnitude] == number

    def look_up_again() -> jax.Array:
        return _search(table, [number, *draw_more(None)])

    def leave() -> jax.Array:
        return magnitude

    return jax.lax.cond(
        jnp.max(is_undecided.astype(jnp.int32)) > 0,
        look_up_again,
        leave,
    )


class _Decisions(NamedTuple):
    """What was looked up, and where the first words did not decide."""

    magnitude: jax.Array
    undecided: jax.Array


def _look_up_one_by_one(
    table: Table, number: jax.Array, draw_more: MoreWords, guide: jax.Array
) -> jax.Array:
    """Look up only those numbers again, with all their bits, that were undecided."""

    def is_any_undecided(decisions: _Decisions) -> jax.Array:
        return jnp.any(decisions.undecided)

    def decide_one(decisions: _Decisions) -> _Decisions:
        place = jnp.argmax(decisions.undecided)
        decided = _search(table, [number[place], *draw_more(place)])
        return _Decisions(
            magnitude=decisions.magnitude.at[place].set(decided),
            undecided=decisions.undecided.at[place].set(False),
        )

    stretch = _find_stretch(number)
    magnitude = _search(table, [number], start=guide[stretch], steps=GUIDED)
    undecided = table[0][magnitude] == number
    decisions = _Decisions(magnitude=magnitude, undecided=undecided)
    end = jax.lax.while_loop(is_any_undecided, decide_one, decisions)
    return end.magnitude


def _search(
    table: Table, words: list[jax.Array], start: jax.Array | int = 0, steps: int = 15
) -> jax.Array:
    """Count the entries of the table that are no larger.

    If only first words are compared, count those that are smaller.
    """
    largest_step = 2 ** (steps - 1)

    def halve(step: jax.Array, count: jax.Array) -> jax.Array:
        size = jnp.int32(largest_step) >> step
        is_counted = _is_counted(table, words, count + size - 1)
        return count + jnp.where(is_counted, size, 0)

    begin = jnp.broadcast_to(jnp.int32(start), words[0].shape)
    return jax.lax.fori_loop(0, steps, halve, begin)


def _is_counted(table: Table, words: list[jax.Array], place: jax.Array) -> jax.Array:
    """Tell whether the entry at a place is smaller, or the same where all words are compared."""
    is_smaller = jnp.asarray(False)
    is_same = jnp.asarray(True)
    for column, word in zip(table, words, strict=False):
        entry = column[place]
        is_smaller = is_smaller | (is_same & (entry < word))
        is_same = is_same & (entry == word)
    has_all_words = len(words) > 1
    return is_smaller | (is_same & has_all_words)


def _find_stretch(number: jax.Array) -> jax.Array:
    """Return the stretch of first words that this one lies in.

    It is named by the length, and by the eight bits after the leading one, of what the number is
    short of the largest. So stretches are shorter where the table is denser.
    """
    largest = jnp.uint32(2**31 - 1)
    short = largest - number
    zeros = jax.lax.clz(short)
    length = 32 - zeros
    eight_bits = short << zeros << 1 >> 24
    return ((length << 8) + eight_bits).astype(jnp.int32)


@functools.cache
def search_guide() -> np.ndarray:
    """Count for each stretch the entries of the table that lie below all of it.

    Fewer than 2³ more lie below a number in it.
    """
    first = cumulative_table()[0]
    looked_up = first[first < 2**31]
    with jax.ensure_compile_time_eval():
        stretches = np.asarray(_find_stretch(jnp.asarray(looked_up)))
    # Stretches are numbered downwards.
    counts = np.searchsorted(-stretches, -np.arange(32 << 8), "left")
    return counts.astype(np.int32)


@functools.cache
def cumulative_table() -> tuple[np.ndarray, ...]:
    """Return P(|X| ≤ k) · 2¹²⁷ for k = 0, 1, …, in four columns of words, the upper first.

    X is the discrete Gaussian, P(k) ∝ exp(−k²/2 BASE²), computed with 60 digits.
    """
    context = Context(prec=60)
    sums = _sum_weights(context)
    scale = context.divide(Decimal(2**BITS), sums[-1])
    entries = []
    for sum in sums[:-1]:
        scaled = context.multiply(sum, scale)
        entries.append(int(scaled.to_integral_value()))
    # The last is larger than any number that is looked up.
    entries.append(2**BITS)
    columns = []
    for shift in (96, 64, 32, 0):
        words = [entry >> shift & 0xFFFFFFFF for entry in entries]
        columns.append(np.array(words, np.uint32))
    return tuple(columns)


def _load_table() -> Table:
    return [jnp.asarray(column) for column in cumulative_table()]


def _sum_weights(context: Context) -> list[Decimal]:
    """Return Σ exp(−j²/2 BASE²) over |j| ≤ k, for k = 0, 1, …, `LARGEST`."""
    exponent = context.divide(Decimal(-1), Decimal(BASE**2))
    factor = context.exp(exponent)
    # Of the next weight to this one: exp(−(2k + 1)/2 BASE²).
    ratio = context.sqrt(factor)
    weight = Decimal(1)
    sums = [Decimal(1)]
    for _ in range(LARGEST):
        weight = context.multiply(weight, ratio)
        ratio = context.multiply(ratio, factor)
        both_signs = context.multiply(Decimal(2), weight)
        sums.append(context.add(sums[-1], both_signs))
    return sums


# Checking devices.


@functools.cache
def check_bits(device: Any) -> None:
    """Raise unless this device draws the same bits as all others.

    Tests cover CPUs; GPUs are tried once in each process.

    Raises:
        OtherBits: it draws others.
    """
    if device.platform in SEEN_ON:
        return

    def draw(key: jax.Array) -> Int64:
        return white(spread(2.0**57), key, 5, 10**6)

    # JAX might put the key, and so the noise, on another device.
    key = jax.device_put(np.arange(8, dtype=np.uint32), device)
    drawn = int64.to_numpy(jax.jit(draw)(key))
    if hashlib.sha256(drawn.tobytes()).hexdigest() != KNOWN:
        raise OtherBits(
            f"on {device.device_kind} noise has other bits than elsewhere, so nothing is known of"
            " it. Nothing was released. Update JAX and the driver, or train on CPUs"
            " (JAX_PLATFORMS=cpu)"
        )


def check_drawn(drawn: PyTree) -> PyTree:
    """Return what was drawn, once the devices that it is on are known to draw the right bits.

    What it was drawn from decides which devices these are, and else JAX's settings.

    Raises:
        OtherBits: one of them draws others.
    """
    for leaf in jax.tree.leaves(drawn):
        for device in leaf.devices():
            check_bits(device)
    return drawn
