"""Encode reports for a secure sum: integers mod M.

They follow Xu et al. 2023, §2.4 and Algorithm 2 (the device's lines, and "unshift, unscale, and
unrotate"); conditional rounding is from Kairouz, Liu and Steinke 2021, "The distributed discrete
Gaussian mechanism".

**Guarantee:** for every update, weight, round and coin, a report is a vector of integers, each at
most C_∞ in size, of ℓ2 norm at most s · C_inflated. Both are checked on the integers, in integers,
so that no rounding of floats before can break them. One report moves a sum by up to C_inflated, not
by the clip norm C, and `reach` says so: rounding makes a report longer. Up to n_max
reports add up exactly: their sum mod M, or mod any multiple of M, gives the sum itself, whichever
dropped out.

Rotation is in blocks: a Walsh–Hadamard matrix over the root of its size is orthonormal, so is a
matrix with several of them along its diagonal, and so are signs. No norm changes, and blocks of 2¹⁶
pad 2.4 million parameters by 1 %, where a single one would by 75 %. A block has parameters at equal
distances, and thereby its share of every layer. If an update has all its length in one block,
coordinates are still sub-Gaussian with σ = sC/√(size of a block), and C_∞ is made for that.

Departs from Algorithm 2 in five places. Reports are not shifted by C_∞: the sum of n would have to
be unshifted by n · C_∞, where the paper prints C_∞, and to take the residue next to zero a server
need not know n. M is a power of two, for the n_max reports that may come and not the m that are
hoped for. C_∞ follows from the bits there are, and s from C_∞; the paper has s, and C_∞ = ⌈2sC ln
d/√d⌉, about as much. Coordinates are clipped each for itself. A device that fails to round `TRIES`
times rounds towards zero, or reports zero.

**Assumes:** the device runs this code. Neither signs nor the coins of rounding are secrets: what is
guaranteed holds for all of them.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import trees
from taciturn.core import Key, Params, Public, PyTree, Update
from taciturn.privacy.bounding.clipping import DIGIT, MOST_REPORTS, Bound
from taciturn.privacy.noise import chacha20, int64
from taciturn.privacy.noise.int64 import Int64

# α, as in production: the largest share of roundings that are refused, of the longest updates.
ALPHA = math.exp(-0.5)
# A device rounds at random this many times at most; all of them fail once in 10¹⁴.
TRIES = 64
# How often an update with all its length in one block loses anything to C_∞.
CLIPPED = 1e-6
# The largest C_inflated/C that a number of bits may lead to.
MOST_INFLATION = 2.0
# The largest C_inflated/C where the number of bits is not given; the paper's settings give 1.0005.
INFLATION = 1.001
# This many integers below 2¹⁵ add up in 32 bits.
LARGEST_BLOCK = 2**16
LARGEST_COORDINATE = 2**15 - 1
LARGEST_SIZE = 2**31
MOST_BITS = 30
# Padding is at most this share of the parameters.
MOST_PADDING = 1 / 16


class Encoding(NamedTuple):
    """The public constants of an encoding. Lengths are in units of 1/s.

    >>> gboard = encoding(2_400_000, 8_450)
    >>> gboard.bits, gboard.padded, gboard.upload_bytes
    (24, 2424832, 7274496)
    """

    # d.
    size: int
    block: int
    # d̃, a multiple of the block.
    padded: int
    # n_max.
    most_reports: int
    # log₂ M.
    bits: int
    # C_∞.
    largest: int
    # s · C, of an update before it is rounded.
    radius: float
    # (s · C_inflated)², of a report.
    limit: int

    @property
    def modulus(self) -> int:
        """Return M, of which 2³² is a multiple: sums in 32 bits may overflow."""
        return 2**self.bits

    @property
    def inflation(self) -> float:
        """Return C_inflated/C."""
        return math.sqrt(self.limit) / self.radius

    @property
    def upload_bytes(self) -> int:
        """Return the size of a report whose residues are packed without gaps.

        fleets/secure_aggregation/bit_packing.py packs them.
        """
        return math.ceil(self.padded * self.bits / 8)


def encoding(size: int, most_reports: int, bits: int | None = None) -> Encoding:
    """Choose the constants for sums of reports.

    Args:
        size: the number of parameters.
        most_reports: how many reports one sum may hold.
        bits: of each residue; None for as many as `INFLATION` takes.

    Raises:
        ValueError: if no secure sum of that size, or of that many reports, is possible in the bits.
    """
    if not 0 < size <= LARGEST_SIZE:
        raise ValueError(f"a secure sum is of 1 to {LARGEST_SIZE} parameters, not {size}")
    if not 0 < most_reports <= MOST_REPORTS:
        raise ValueError(f"a secure sum holds 1 to {MOST_REPORTS} reports, not {most_reports}")
    least_bits = (2 * most_reports).bit_length()
    encodings = [
        _encoding_in(number, size=size, most_reports=most_reports)
        for number in range(least_bits, MOST_BITS + 1)
    ]
    if bits is None:
        return _first_within(INFLATION, encodings) or encodings[-1]
    sufficient = _first_within(MOST_INFLATION, encodings)
    enough = sufficient.bits if sufficient else MOST_BITS
    if not enough <= bits <= MOST_BITS:
        raise ValueError(
            f"a secure sum of {most_reports} reports of {size} parameters takes {enough} to"
            f" {MOST_BITS} bits each, not {bits}"
        )
    return encodings[bits - least_bits]


def _first_within(inflation: float, encodings: list[Encoding]) -> Encoding | None:
    """Return the first encoding whose reports are inflated no more than this."""
    for candidate in encodings:
        if candidate.inflation <= inflation:
            return candidate
    return None


def _encoding_in(bits: int, *, size: int, most_reports: int) -> Encoding:
    """Return the constants that make the most of this many bits."""
    block = _choose_block(size)
    padded = size + -size % block
    room_of_a_report = (2**bits - 1) // (2 * most_reports)
    largest = min(room_of_a_report, LARGEST_COORDINATE)
    # Hoeffding: a sum of x_i with random signs passes t·‖x‖ with a probability of at most 2
    # exp(−t²/2); there are d̃ of them.
    deviations = math.sqrt(2 * math.log(2 * padded / CLIPPED))
    radius = largest * max(1.0, math.sqrt(block) / deviations)
    # The smallest M ≥ 2 · C_∞ · n_max + 1.
    bits_needed = (2 * largest * most_reports).bit_length()
    return Encoding(
        size=size,
        block=block,
        padded=padded,
        most_reports=most_reports,
        bits=bits_needed,
        largest=largest,
        radius=radius,
        limit=math.floor(inflated_square(radius, padded)),
    )


def _choose_block(size: int) -> int:
    """Return the largest power of two whose blocks need no more than `MOST_PADDING`."""
    block = LARGEST_BLOCK
    while -size % block > size * MOST_PADDING:
        block //= 2
    return block


def inflated_square(radius: float, size: int) -> float:
    """Return s²C² + d/4 + √(2 ln(1/α)) · (sC + √d/2).

    Stochastic rounding passes it with a probability of at most α.
    """
    deviations = math.sqrt(2 * math.log(1 / ALPHA))
    return radius**2 + size / 4 + deviations * (radius + math.sqrt(size) / 2)


def modular(clip: Bound, params: Params, encoded: Encoding) -> Bound:
    """Encode what a bound leaves of an update in residues mod M.

    Reports do not state their weight: a fixed denominator does not need it, and no other is
    possible, because rounding makes light reports longer than weight × clip norm.

    Args:
        clip: the bound.
        params: the model's parameters, or only their shapes.
        encoded: the constants of the encoding.

    Raises:
        ValueError: if the encoding is for another number of parameters.
    """
    if trees.size(params) != encoded.size:
        raise ValueError(
            f"the encoding is for {encoded.size} parameters, and the model has {trees.size(params)}"
        )
    residues = _Residues(
        clip=clip,
        encoded=encoded,
        shapes=_shapes(params),
        structure=jax.tree.structure(params),
    )
    return Bound(
        public=residues.public,
        project=residues.project,
        pack=residues.pack,
        unpack=residues.unpack,
        step=residues.step,
        reach=residues.reach,
        check=residues.check,
        clip_norms=clip.clip_norms,
        modulus=encoded.modulus,
        most_reports=encoded.most_reports,
    )


def _flatten(update: Update) -> jax.Array:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(update)])


def _shapes(params: Params) -> list[tuple[int, ...]]:
    return [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]


# Compared by identity, as functions are.
@dataclass(frozen=True, kw_only=True, eq=False)
class _Residues:
    """The parts of a bound whose reports are residues; `Bound` says what each of them is."""

    clip: Bound
    encoded: Encoding
    # Of the model's layers, and how they are nested.
    shapes: list[tuple[int, ...]]
    structure: Any

    def public(self, round: jax.Array) -> Public:
        return self.clip.public(round)._replace(round=jnp.asarray(round, jnp.int32))

    def project(self, public: Public, update: Update) -> Update:
        return self.clip.project(public, update)

    def pack(self, public: Public, update: Update, key: Key) -> jax.Array:
        """Scale, rotate, round: Algorithm 2."""
        scaled = _flatten(update) * (self.encoded.radius / public.clip_norm)
        rotated = self._rotate(public, scaled)
        whole = round_conditionally(self.encoded, rotated, key)
        words = jax.lax.bitcast_convert_type(whole, jnp.uint32)
        return jnp.ravel(words) & jnp.uint32(self.encoded.modulus - 1)

    def _rotate(self, public: Public, flat: jax.Array) -> jax.Array:
        """Return the blocks, rotated; a block is a column, of distant parameters."""
        encoded = self.encoded
        padded = jnp.pad(flat, (0, encoded.padded - encoded.size))
        coins = _coins(encoded, public).astype(jnp.float32)
        signed = padded * (1.0 - 2.0 * coins)
        columns = signed.reshape(encoded.block, -1)
        return hadamard(columns) / math.sqrt(encoded.block)

    def unpack(self, public: Public, total: jax.Array) -> PyTree:
        """Return H · x: turned back but for the factor 1/√(size of a block).

        That factor is in the length of a step.
        """
        sums = centre_residues(self.encoded, total)
        columns = _hadamard_exactly(sums.reshape(self.encoded.block, -1))
        turned_back = jax.tree.map(jnp.ravel, columns)
        is_minus = _coins(self.encoded, public) == 1
        flat = int64.where(is_minus, int64.negative(turned_back), turned_back)
        return jax.tree.unflatten(self.structure, self._cut_into_layers(flat))

    def _cut_into_layers(self, flat: Int64) -> list[Int64]:
        layers = []
        start = 0
        for shape in self.shapes:
            place = slice(start, start + math.prod(shape))
            high = flat.high[place].reshape(shape)
            low = flat.low[place].reshape(shape)
            layers.append(Int64(high, low))
            start = place.stop
        return layers

    def step(self, public: Public) -> jax.Array:
        return public.clip_norm * (1 / (self.encoded.radius * math.sqrt(self.encoded.block)))

    @property
    def reach(self) -> float:
        """Return the length of the longest report, turned back.

        It is a little more, for the rounding of this product.
        """
        longest = math.sqrt(self.encoded.limit)
        return longest * math.sqrt(self.encoded.block) * (1 + 2.0**-50)

    def check(self, params: Params) -> None:
        if jax.tree.structure(params) != self.structure or _shapes(params) != self.shapes:
            raise ValueError("reports were to be encoded for a model of other layers")
        self.clip.check(params)


class _Rounding(NamedTuple):
    """A rounding that was tried."""

    # How many there were, this one included.
    tries: jax.Array
    whole: jax.Array
    # Whether its norm is within the limit.
    fits: jax.Array


def round_conditionally(encoded: Encoding, values: jax.Array, key: Key) -> jax.Array:
    """Round each value up or down at random, on average to itself, until the norm fits.

    Args:
        encoded: the constants of the encoding, the limit of the norm among them.
        values: what is rounded.
        key: of the coins.
    """
    below = jnp.floor(values)
    # Exact in floats, unlike a sum with the coin.
    fraction = values - below

    def is_to_be_tried(rounding: _Rounding) -> jax.Array:
        return ~rounding.fits & (rounding.tries <= TRIES)

    def try_again(rounding: _Rounding) -> _Rounding:
        key_of_try = jax.random.fold_in(key, rounding.tries)
        is_up = jax.random.uniform(key_of_try, values.shape) < fraction
        at_random = below + is_up
        towards_zero = jnp.trunc(values)
        rounded = jnp.where(rounding.tries < TRIES, at_random, towards_zero)
        whole = jnp.clip(rounded.astype(jnp.int32), -encoded.largest, encoded.largest)
        return _Rounding(
            tries=rounding.tries + 1,
            whole=whole,
            fits=is_within_limit(whole, encoded.limit),
        )

    nothing = jnp.zeros(values.shape, jnp.int32)
    before = _Rounding(
        tries=jnp.int32(0),
        whole=nothing,
        fits=jnp.asarray(False),
    )
    last = jax.lax.while_loop(is_to_be_tried, try_again, before)
    return jnp.where(last.fits, last.whole, nothing)


def is_within_limit(whole: jax.Array, limit: int) -> jax.Array:
    """Tell whether the squares of integers add up to at most the limit, exactly.

    Args:
        whole: integers below 2¹⁵, in at most 2¹⁵ columns of at most 2¹⁶.
        limit: less than 2⁶⁴.
    """
    square = _sum_of_squares(whole)
    upper_limit = jnp.uint32(limit >> 32)
    lower_limit = jnp.uint32(limit & 0xFFFFFFFF)
    is_below = square.upper < upper_limit
    is_level = square.upper == upper_limit
    return is_below | (is_level & (square.lower <= lower_limit))


class _Words(NamedTuple):
    """A number of 64 bits, which is not negative: upper · 2³² + lower."""

    upper: jax.Array
    lower: jax.Array


def _sum_of_squares(whole: jax.Array) -> _Words:
    """Add up the squares in halves of 16 bits, so that no sum overflows."""
    squares = jnp.square(whole).astype(jnp.uint32)
    low, high = _halves(squares)
    low_of_columns = _add_up(low, axis=0)
    high_of_columns = _add_up(high, axis=0)
    low_of_low, high_of_low = _halves(low_of_columns)
    low_of_high, high_of_high = _halves(high_of_columns)
    # The sum is ones + (carried + more) · 2¹⁶ + top · 2³².
    ones = _add_up(low_of_low)
    carried = _add_up(high_of_low)
    more = _add_up(low_of_high)
    top = _add_up(high_of_high)
    middle = carried + more + (ones >> 16)
    upper = top + (middle >> 16)
    lower = (middle << 16) | (ones & 0xFFFF)
    return _Words(upper, lower)


def _add_up(numbers: jax.Array, axis: int | None = None) -> jax.Array:
    return jnp.sum(numbers, axis=axis, dtype=jnp.uint32)


def _halves(numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the lower and the upper 16 bits."""
    return numbers & 0xFFFF, numbers >> 16


def centre_residues(encoded: Encoding, total: jax.Array) -> jax.Array:
    """Return the number next to zero with this residue mod M.

    It is the sum of up to n_max reports, added in integers of enough bits.
    """
    spare = 32 - encoded.bits
    shifted = jnp.asarray(total).astype(jnp.uint32) << spare
    return jax.lax.bitcast_convert_type(shifted, jnp.int32) >> spare


def hadamard(columns: jax.Array) -> jax.Array:
    """Return H · x for every column x, over the last axis but one.

    It is exact in integers, and its own inverse up to a factor of its size.
    """
    *others, size, width = columns.shape
    transformed = columns
    step = 1
    while step < size:
        pairs = transformed.reshape(*others, size // (2 * step), 2, step * width)
        transformed = _sums_and_differences(pairs)
        step = 2 * step
    return transformed.reshape(columns.shape)


def _sums_and_differences(pairs: jax.Array) -> jax.Array:
    first = pairs[..., 0, :]
    second = pairs[..., 1, :]
    return jnp.stack([first + second, first - second], axis=-2)


def _hadamard_exactly(whole: jax.Array) -> Int64:
    """Return H · x of integers below 2²⁹, exactly.

    By roundings one user could move a total further than the noise is made for.
    """
    digits = jnp.stack([whole >> DIGIT, whole & (2**DIGIT - 1)])
    high, low = hadamard(digits)
    return int64.add(int64.shift(int64.from_int32(high), DIGIT), int64.from_int32(low))


def _coins(encoded: Encoding, public: Public) -> jax.Array:
    """Return the signs ξ of a round, 1 for minus: the same on all devices and the server.

    They are not secret, and so under a key of zeros.
    """
    count = math.ceil(encoded.padded / (32 * chacha20.WORDS))
    blocks = jnp.arange(count, dtype=jnp.uint32)
    assert public.round is not None
    round = jax.lax.bitcast_convert_type(public.round, jnp.uint32)
    nonce = round, jnp.uint32(0), jnp.uint32(0)
    words = jnp.concatenate(chacha20.blocks(np.zeros(8, np.uint32), blocks, nonce))
    return _bits(words)[: encoded.padded]


def _bits(words: jax.Array) -> jax.Array:
    """Return the bits of all words, one after another, each word's lowest first."""
    places = jnp.arange(32, dtype=jnp.uint32)
    return jnp.ravel((words[:, None] >> places) & 1)
