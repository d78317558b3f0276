"""Integers of 64 bits in two words of 32, so that noise and totals are exact whatever JAX is set
to.

JAX has 64-bit integers only where a process switched them on for everything, and else silently
truncates numbers to 32 bits. These are two's complement: the number is high · 2³² + low, modulo
2⁶⁴. Every operation is exact modulo 2⁶⁴.

>>> number = times(of(jnp.int32(-3)), 1_000_000_007)
>>> int(to_numpy(number)), int(to_numpy(rounded_shift(number, 10)))
(-3000000021, -2929688)
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

HALF = 16
LOW_HALF = np.uint32(0xFFFF)


class Int64(NamedTuple):
    # int32
    high: jax.Array
    # uint32
    low: jax.Array


def is_wide(node: object) -> bool:
    """Tell whether a node is a leaf."""
    return isinstance(node, Int64)


def of(numbers: jax.Array) -> Int64:
    """Convert int32; wider integers would become numbers of other shapes."""
    if numbers.dtype != jnp.int32:
        raise TypeError(f"integers of 64 bits are made of int32, not of {numbers.dtype}")
    return Int64(numbers >> 31, jax.lax.bitcast_convert_type(numbers, jnp.uint32))


def zeros(shape: tuple[int, ...]) -> Int64:
    return Int64(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.uint32))


def add(left: Int64, right: Int64) -> Int64:
    low = left.low + right.low
    return Int64(left.high + right.high + (low < left.low), low)


def negative(number: Int64) -> Int64:
    low = ~number.low + np.uint32(1)
    return Int64(~number.high + (low == 0), low)


def subtract(left: Int64, right: Int64) -> Int64:
    return Int64(left.high - right.high - (left.low < right.low), left.low - right.low)


def where(condition: jax.Array, yes: Int64, no: Int64) -> Int64:
    return Int64(jnp.where(condition, yes.high, no.high), jnp.where(condition, yes.low, no.low))


def shift(number: Int64, bits: int) -> Int64:
    """Return number · 2^bits, for 0 ≤ bits < 64."""
    if bits == 0:
        return number
    if bits >= 32:
        return Int64(_signed(number.low << np.uint32(bits - 32)), jnp.zeros_like(number.low))
    high = (number.high << bits) | _signed(number.low >> np.uint32(32 - bits))
    return Int64(high, number.low << np.uint32(bits))


def shifted_down(number: Int64, bits: int) -> Int64:
    """Return ⌊number / 2^bits⌋, for 0 ≤ bits < 64."""
    if bits == 0:
        return number
    if bits >= 32:
        return Int64(number.high >> 31, _unsigned(number.high >> (bits - 32)))
    return Int64(
        number.high >> bits, _unsigned(number.high << (32 - bits)) | (number.low >> np.uint32(bits))
    )


def rounded_shift(number: Int64, bits: int) -> Int64:
    """Return ⌊number / 2^bits + ½⌋, for 0 < bits ≤ 31."""
    return shifted_down(add(number, of(jnp.int32(1 << (bits - 1)))), bits)


def times(number: Int64, factor: int | jax.Array) -> Int64:
    """Multiply by a number of up to 31 bits (uint32, if it is an array)."""
    if isinstance(factor, int) and not 0 <= factor < 2**31:
        raise ValueError(f"a factor has up to 31 bits and no sign; {factor} does not fit")
    factor = jnp.asarray(factor, jnp.uint32)
    high, low = _product(number.low, factor)
    return Int64(number.high * _signed(factor) + _signed(high), low)


def times_fraction(number: Int64, factor: int | jax.Array, bits: int) -> Int64:
    """Return ⌊number · factor / 2^bits + ½⌋ for a factor of up to 2^bits ≤ 2²⁴; no overflow on the
    way unless the result overflows.
    """
    whole, rest = (
        shifted_down(number, bits),
        Int64(jnp.zeros_like(number.high), number.low & np.uint32((1 << bits) - 1)),
    )
    return add(times(whole, factor), rounded_shift(times(rest, factor), bits))


def divide(number: Int64, divisor: jax.Array) -> Int64:
    """Return ⌊number / divisor⌋ for a positive int32 divisor, by long division."""
    is_negative = number.high < 0
    # ⌊−n/d⌋ = −⌈n/d⌉ = −⌊(n + d − 1)/d⌋.
    size = where(is_negative, add(negative(number), of(divisor - 1)), number)
    by = _unsigned(divisor)

    def bit(
        index: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        remainder, high, low = state
        # The remainder is below the divisor, so below 2³¹, and doubled it still fits.
        remainder = (remainder << np.uint32(1)) | (high >> np.uint32(31))
        high, low = (high << np.uint32(1)) | (low >> np.uint32(31)), low << np.uint32(1)
        fits = remainder >= by
        return jnp.where(fits, remainder - by, remainder), high, low | fits.astype(jnp.uint32)

    start = jnp.zeros_like(size.low), _unsigned(size.high), size.low
    _, high, low = jax.lax.fori_loop(0, 64, bit, start)
    quotient = Int64(_signed(high), low)
    return where(is_negative, negative(quotient), quotient)


def to_float(number: Int64, unit: jax.Array | float) -> jax.Array:
    """Return number · unit in float32: rounded, so for what is noised already and for what has no
    privacy.
    """
    is_negative = number.high < 0
    size = where(is_negative, negative(number), number)
    high, low = _unsigned(size.high).astype(jnp.float32), size.low.astype(jnp.float32)
    value = high * jnp.float32(2.0**32 * unit) + low * jnp.float32(unit)
    return jnp.where(is_negative, -value, value)


def to_numpy(number: Int64) -> np.ndarray:
    """Return int64, on the host."""
    return (np.asarray(number.high, np.int64) << 32) + np.asarray(number.low, np.int64)


def _product(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the upper and the lower word of a product of two words, in halves."""
    left_high, left_low = left >> HALF, left & LOW_HALF
    right_high, right_low = right >> HALF, right & LOW_HALF
    lowest, crossed = left_low * right_low, left_high * right_low
    middle = (lowest >> HALF) + (crossed & LOW_HALF) + left_low * right_high
    # Neither sum overflows: (2¹⁶ − 1)² + 2 · (2¹⁶ − 1) = 2³² − 1.
    return left_high * right_high + (crossed >> HALF) + (middle >> HALF), left * right


_signed, _unsigned = (
    partial(jax.lax.bitcast_convert_type, new_dtype=kind) for kind in (jnp.int32, jnp.uint32)
)
