"""Reports for a secure sum: integers mod M (Xu et al. 2023, §2.4 and Algorithm 2: the device's
lines, and "unshift, unscale, and unrotate"; conditional rounding is from Kairouz, Liu and Steinke
2021, "The distributed discrete Gaussian mechanism").

**Guarantee:** for every update, weight, round and coin, a report is a vector of integers, each at
most C_∞ in size, of ℓ2 norm at most s · C_inflated. Both are checked on the integers, in integers,
so that no rounding of floats before can break them. One report moves a sum by up to C_inflated, not
by the clip norm C, and `reach` says so: rounding makes a report longer. Up to n_max
reports add up exactly: their sum mod M, or mod any multiple of M, gives the sum itself, whoever
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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import trees
from taciturn.core import Key, Params, PyTree, Update
from taciturn.privacy.bounding.clipping import DIGIT, MOST_REPORTS, Bound
from taciturn.privacy.noise import chacha20, int64
from taciturn.privacy.noise.int64 import Int64

# α, as in production: the largest share of roundings that are refused, of the longest updates
ALPHA = math.exp(-0.5)
# which all fail once in 10¹⁴
TRIES = 64
# how often an update with all its length in one block loses anything to C_∞
CLIPPED = 1e-6
MOST_INFLATION = 2.0
# C_inflated/C at most, where the number of bits is not given; the paper's settings give 1.0005
INFLATION = 1.001
# of integers below 2¹⁵ this many add up in 32 bits
LARGEST_BLOCK = 2**16
LARGEST_COORDINATE = 2**15 - 1
LARGEST_SIZE = 2**31
MOST_BITS = 30


class Encoding(NamedTuple):
    """The public constants of an encoding. Lengths are in units of 1/s.

    >>> gboard = encoding(2_400_000, 8_450)
    >>> gboard.bits, gboard.padded, gboard.upload_bytes
    (24, 2424832, 7274496)
    """

    # d
    size: int
    block: int
    # d̃, a multiple of the block
    padded: int
    # n_max
    most_reports: int
    # log₂ M
    bits: int
    # C_∞
    largest: int
    # s · C, of an update before it is rounded
    radius: float
    # (s · C_inflated)², of a report
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
        """Return the size of a report whose residues are packed without gaps
        (fleets/secure_aggregation/bit_packing.py).
        """
        return math.ceil(self.padded * self.bits / 8)


class Rotation(NamedTuple):
    """What devices must know of a round."""

    clip_norm: jax.Array
    # names the signs ξ
    round: jax.Array


def encoding(size: int, most_reports: int, bits: int | None = None) -> Encoding:
    """Choose constants for sums of up to `most_reports` updates of `size` parameters, in `bits`
    bits or as many as `INFLATION` takes.
    """
    if not 0 < size <= LARGEST_SIZE:
        raise ValueError(f"a secure sum is of 1 to {LARGEST_SIZE} parameters, not {size}")
    if not 0 < most_reports <= MOST_REPORTS:
        raise ValueError(f"a secure sum holds 1 to {MOST_REPORTS} reports, not {most_reports}")
    least = (2 * most_reports).bit_length()
    made = [_encoding(size, most_reports, number) for number in range(least, MOST_BITS + 1)]
    if bits is None:
        return next((one for one in made if one.inflation <= INFLATION), made[-1])
    enough = next((one.bits for one in made if one.inflation <= MOST_INFLATION), MOST_BITS)
    if not enough <= bits <= MOST_BITS:
        raise ValueError(
            f"a secure sum of {most_reports} reports of {size} parameters takes {enough} to"
            f" {MOST_BITS} bits each, not {bits}"
        )
    return made[bits - least]


def _encoding(size: int, most_reports: int, bits: int) -> Encoding:
    block = next(
        2**k for k in range(LARGEST_BLOCK.bit_length() - 1, -1, -1) if -size % 2**k <= size / 16
    )
    padded = size + -size % block
    largest = min((2**bits - 1) // (2 * most_reports), LARGEST_COORDINATE)
    # Hoeffding: a sum of x_i with random signs passes t·‖x‖ with a probability of at most 2
    # exp(−t²/2); there are d̃ of them.
    deviations = math.sqrt(2 * math.log(2 * padded / CLIPPED))
    radius = largest * max(1.0, math.sqrt(block) / deviations)
    # the smallest M ≥ 2 · C_∞ · n_max + 1
    needed = (2 * largest * most_reports).bit_length()
    limit = math.floor(inflated_square(radius, padded))
    return Encoding(size, block, padded, most_reports, needed, largest, radius, limit)


def inflated_square(radius: float, size: int) -> float:
    """Return s²C² + d/4 + √(2 ln(1/α)) · (sC + √d/2): stochastic rounding passes it with a
    probability of at most α.
    """
    return (
        radius**2 + size / 4 + math.sqrt(2 * math.log(1 / ALPHA)) * (radius + math.sqrt(size) / 2)
    )


def modular(clip: Bound, params: Params, encoded: Encoding) -> Bound:
    """Encode what `clip` leaves of an update in residues mod M. `params` may be only shapes.
    Reports do not state their weight: a fixed denominator does not need it, and no other is
    possible, because rounding makes light reports longer than weight × clip norm.
    """
    shapes, structure = (
        [jnp.shape(leaf) for leaf in jax.tree.leaves(params)],
        jax.tree.structure(params),
    )
    if trees.size(params) != encoded.size:
        raise ValueError(
            f"the encoding is for {encoded.size} parameters, and the model has {trees.size(params)}"
        )

    def public(round: jax.Array) -> Rotation:
        return Rotation(clip.public(round), jnp.asarray(round, jnp.int32))

    def project(rotation: Rotation, update: Update) -> Update:
        return clip.project(rotation.clip_norm, update)

    def pack(rotation: Rotation, update: Update, key: Key) -> jax.Array:
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(update)])
        scaled = jnp.pad(
            flat * (encoded.radius / rotation.clip_norm), (0, encoded.padded - encoded.size)
        )
        signed = scaled * (1.0 - 2.0 * _coins(encoded, rotation).astype(jnp.float32))
        # a block is a column, of distant parameters
        turned = hadamard(signed.reshape(encoded.block, -1)) / math.sqrt(encoded.block)
        whole = conditionally_rounded(encoded, turned, key)
        return jnp.ravel(jax.lax.bitcast_convert_type(whole, jnp.uint32)) & jnp.uint32(
            encoded.modulus - 1
        )

    def unpack(rotation: Rotation, total: jax.Array) -> PyTree:
        """Return H · x: turned back but for the factor 1/√(size of a block), which is in the length
        of a step.
        """
        turned = jax.tree.map(
            jnp.ravel, _exactly_turned(centre_residues(encoded, total).reshape(encoded.block, -1))
        )
        flat = int64.where(_coins(encoded, rotation) == 1, int64.negative(turned), turned)
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts = [
            jax.tree.map(
                lambda words, end=end, shape=shape: words[end - math.prod(shape) : end].reshape(
                    shape
                ),
                flat,
            )
            for end, shape in zip(ends, shapes, strict=True)
        ]
        return jax.tree.unflatten(structure, parts)

    def step(rotation: Rotation) -> jax.Array:
        return rotation.clip_norm * (1 / (encoded.radius * math.sqrt(encoded.block)))

    def check(params: Params) -> None:
        if (
            jax.tree.structure(params) != structure
            or [jnp.shape(leaf) for leaf in jax.tree.leaves(params)] != shapes
        ):
            raise ValueError("reports were to be encoded for a model of other layers")
        clip.check(params)

    # As long as the longest report, turned back: a little more, for the rounding of this product.
    reach = math.sqrt(encoded.limit) * math.sqrt(encoded.block) * (1 + 2.0**-50)
    return Bound(
        public,
        project,
        pack,
        unpack,
        step,
        reach,
        check,
        clip.clip_norms,
        encoded.modulus,
        encoded.most_reports,
    )


def conditionally_rounded(encoded: Encoding, values: jax.Array, key: Key) -> jax.Array:
    """Round each value up or down at random, on average to itself, and repeat until the norm is
    within the limit.
    """
    below = jnp.floor(values)
    # exact in floats, unlike a sum with the coin
    fraction = values - below

    def attempt(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        tries, _, _ = state
        up = jax.random.uniform(jax.random.fold_in(key, tries), values.shape) < fraction
        rounded = jnp.where(tries < TRIES, below + up, jnp.trunc(values))
        whole = jnp.clip(rounded.astype(jnp.int32), -encoded.largest, encoded.largest)
        return tries + 1, whole, within(whole, encoded.limit)

    nothing = jnp.zeros(values.shape, jnp.int32)
    start = jnp.int32(0), nothing, jnp.asarray(False)
    _, whole, fits = jax.lax.while_loop(
        lambda state: ~state[2] & (state[0] <= TRIES), attempt, start
    )
    return jnp.where(fits, whole, nothing)


def within(whole: jax.Array, limit: int) -> jax.Array:
    """Tell whether the squares of integers below 2¹⁵, in at most 2¹⁵ columns of at most 2¹⁶, add up
    to at most the limit, exactly: in halves of 16 bits, so that no sum overflows.
    """
    squares = jnp.square(whole).astype(jnp.uint32)
    low, high = (jnp.sum(half, axis=0, dtype=jnp.uint32) for half in _halves(squares))
    ones, carried, more, top = (
        jnp.sum(half, dtype=jnp.uint32) for half in (*_halves(low), *_halves(high))
    )
    middle = carried + more + (ones >> 16)
    upper, lower = top + (middle >> 16), (middle << 16) | (ones & 0xFFFF)
    most, least = jnp.uint32(limit >> 32), jnp.uint32(limit & 0xFFFFFFFF)
    return (upper < most) | ((upper == most) & (lower <= least))


def _halves(numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    return numbers & 0xFFFF, numbers >> 16


def centre_residues(encoded: Encoding, total: jax.Array) -> jax.Array:
    """Return the number next to zero with this residue mod M: the sum of up to n_max reports, added
    in integers of enough bits.
    """
    spare = 32 - encoded.bits
    return (
        jax.lax.bitcast_convert_type(jnp.asarray(total).astype(jnp.uint32) << spare, jnp.int32)
        >> spare
    )


def hadamard(columns: jax.Array) -> jax.Array:
    """Return H · x for every column x, over the last axis but one: exact in integers, its own
    inverse up to a factor of its size.
    """
    *_, size, width = columns.shape
    turned, step = columns, 1
    while step < size:
        pairs = turned.reshape(*columns.shape[:-2], size // (2 * step), 2, step * width)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        turned, step = jnp.stack([first + second, first - second], axis=-2), 2 * step
    return turned.reshape(columns.shape)


def _exactly_turned(whole: jax.Array) -> Int64:
    """Return H · x of integers below 2²⁹, exactly. By roundings one user could move a total further
    than the noise is made for.
    """
    high, low = hadamard(jnp.stack([whole >> DIGIT, whole & (2**DIGIT - 1)]))
    return int64.add(int64.shift(int64.from_int32(high), DIGIT), int64.from_int32(low))


def _coins(encoded: Encoding, rotation: Rotation) -> jax.Array:
    """Return the signs ξ (1 for minus) of a round: the same on all devices and the server; not
    secret, so under a key of zeros.
    """
    blocks = jnp.arange(math.ceil(encoded.padded / (32 * chacha20.WORDS)), dtype=jnp.uint32)
    nonce = jax.lax.bitcast_convert_type(rotation.round, jnp.uint32), jnp.uint32(0), jnp.uint32(0)
    words = jnp.concatenate(chacha20.blocks(np.zeros(8, np.uint32), blocks, nonce))
    coins = (words[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return jnp.ravel(coins)[: encoded.padded]
