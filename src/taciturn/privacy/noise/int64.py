"""Integers of 64 bits in two words of 32, so that noise and totals are exact whatever JAX is set
to.

JAX has 64-bit integers only where a process switched them on for everything, and else silently
truncates numbers to 32 bits. These are two's complement: the number is high · 2³² + low, modulo
2⁶⁴. Every operation is exact modulo 2⁶⁴.

>>> number = times(from_int32(jnp.int32(-3)), 1_000_000_007)
>>> int(to_numpy(number)), int(to_numpy(shift_down_and_round(number, 10)))
(-3000000021, -2929688)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

HALF = 16
LOW_HALF = np.uint32(0xFFFF)


class Int64(NamedTuple):
    """Numbers of 64 bits, as two arrays of one shape."""

    # int32, with the sign.
    high: jax.Array
    # uint32.
    low: jax.Array


def is_int64(node: object) -> bool:
    """Tell whether a node of a tree is an `Int64`, which trees of numbers have as leaves."""
    return isinstance(node, Int64)


def from_int32(numbers: jax.Array) -> Int64:
    """Convert int32.

    Raises:
        TypeError: they are of another type, which would become numbers of other shapes.
    """
    if numbers.dtype != jnp.int32:
        raise TypeError(f"integers of 64 bits are made of int32, not of {numbers.dtype}")
    return Int64(high=numbers >> 31, low=_as_uint32(numbers))


def zeros(shape: tuple[int, ...]) -> Int64:
    """Return zeros of this shape."""
    return Int64(
        high=jnp.zeros(shape, jnp.int32),
        low=jnp.zeros(shape, jnp.uint32),
    )


def add(left: Int64, right: Int64) -> Int64:
    """Return left + right."""
    low = left.low + right.low
    carry = low < left.low
    return Int64(high=left.high + right.high + carry, low=low)


def negative(number: Int64) -> Int64:
    """Return −number."""
    low = ~number.low + np.uint32(1)
    carry = low == 0
    return Int64(high=~number.high + carry, low=low)


def subtract(left: Int64, right: Int64) -> Int64:
    """Return left − right."""
    high = left.high - right.high
    borrow = left.low < right.low
    return Int64(high=high - borrow, low=left.low - right.low)


def where(condition: jax.Array, yes: Int64, no: Int64) -> Int64:
    """Return `yes` where the condition holds, and `no` elsewhere."""
    high = jnp.where(condition, yes.high, no.high)
    low = jnp.where(condition, yes.low, no.low)
    return Int64(high=high, low=low)


def concatenate(parts: list[Int64]) -> Int64:
    """Join one-dimensional numbers end to end."""
    high = jnp.concatenate([part.high for part in parts])
    low = jnp.concatenate([part.low for part in parts])
    return Int64(high=high, low=low)


def shift(number: Int64, bits: int) -> Int64:
    """Return number · 2^bits, for 0 ≤ bits < 64."""
    if bits == 0:
        return number
    if bits >= 32:
        high = number.low << np.uint32(bits - 32)
        return Int64(
            high=_as_int32(high),
            low=jnp.zeros_like(number.low),
        )
    high = number.high << bits
    carried = number.low >> np.uint32(32 - bits)
    low = number.low << np.uint32(bits)
    return Int64(
        high=high | _as_int32(carried),
        low=low,
    )


def shift_down(number: Int64, bits: int) -> Int64:
    """Return ⌊number / 2^bits⌋, for 0 ≤ bits < 64."""
    if bits == 0:
        return number
    if bits >= 32:
        sign = number.high >> 31
        low = number.high >> (bits - 32)
        return Int64(high=sign, low=_as_uint32(low))
    high = number.high >> bits
    carried = number.high << (32 - bits)
    low = number.low >> np.uint32(bits)
    return Int64(
        high=high,
        low=_as_uint32(carried) | low,
    )


def shift_down_and_round(number: Int64, bits: int) -> Int64:
    """Return ⌊number / 2^bits + ½⌋, for 0 < bits ≤ 31."""
    half = from_int32(jnp.int32(1 << (bits - 1)))
    return shift_down(add(number, half), bits)


def times(number: Int64, factor: int | jax.Array) -> Int64:
    """Return number · factor.

    Args:
        number: the first factor.
        factor: the second, of up to 31 bits and without a sign (uint32, if it is an array).
    """
    if isinstance(factor, int) and not 0 <= factor < 2**31:
        raise ValueError(f"a factor has up to 31 bits and no sign; {factor} does not fit")
    factor = jnp.asarray(factor, jnp.uint32)
    carried, low = _product(number.low, factor)
    high = number.high * _as_int32(factor)
    return Int64(high=high + _as_int32(carried), low=low)


def times_fraction(number: Int64, factor: int | jax.Array, bits: int) -> Int64:
    """Return ⌊number · factor / 2^bits + ½⌋ for a factor of up to 2^bits ≤ 2²⁴.

    Nothing overflows on the way unless the result does.
    """
    whole = shift_down(number, bits)
    fraction = number.low & np.uint32((1 << bits) - 1)
    rest = Int64(high=jnp.zeros_like(number.high), low=fraction)
    return add(times(whole, factor), shift_down_and_round(times(rest, factor), bits))


class _Division(NamedTuple):
    """A long division on the way, of positive numbers."""

    remainder: jax.Array
    # Bits of the dividend leave at the top, and bits of the quotient come in at the bottom.
    high: jax.Array
    low: jax.Array


def divide(number: Int64, divisor: jax.Array) -> Int64:
    """Return ⌊number / divisor⌋ for a positive int32 divisor, by long division."""
    is_negative = number.high < 0
    # ⌊−n/d⌋ = −⌈n/d⌉ = −⌊(n + d − 1)/d⌋.
    rounded_up = add(negative(number), from_int32(divisor - 1))
    dividend = where(is_negative, rounded_up, number)
    unsigned_divisor = _as_uint32(divisor)

    def divide_next_bit(_: jax.Array, division: _Division) -> _Division:
        return _divide_next_bit(division, unsigned_divisor)

    start = _Division(
        remainder=jnp.zeros_like(dividend.low),
        high=_as_uint32(dividend.high),
        low=dividend.low,
    )
    end = jax.lax.fori_loop(0, 64, divide_next_bit, start)
    # Bit by bit, the quotient has taken the place of the dividend.
    quotient = Int64(high=_as_int32(end.high), low=end.low)
    return where(is_negative, negative(quotient), quotient)


def _divide_next_bit(division: _Division, divisor: jax.Array) -> _Division:
    """Move one bit of the dividend into the remainder, and one into the quotient."""
    one_bit = np.uint32(1)
    to_the_last = np.uint32(31)
    # The remainder is below the divisor, so below 2³¹, and doubled it still fits.
    remainder = (division.remainder << one_bit) | (division.high >> to_the_last)
    high = (division.high << one_bit) | (division.low >> to_the_last)
    low = division.low << one_bit
    fits = remainder >= divisor
    return _Division(
        remainder=jnp.where(fits, remainder - divisor, remainder),
        high=high,
        low=low | fits.astype(jnp.uint32),
    )


def to_float(number: Int64, unit: jax.Array | float) -> jax.Array:
    """Return number · unit in float32.

    It is rounded: for what is noised already, and for what has no privacy.
    """
    is_negative = number.high < 0
    size = where(is_negative, negative(number), number)
    high = _as_uint32(size.high).astype(jnp.float32)
    low = size.low.astype(jnp.float32)
    value = high * jnp.float32(2.0**32 * unit) + low * jnp.float32(unit)
    return jnp.where(is_negative, -value, value)


def to_numpy(number: Int64) -> np.ndarray:
    """Return int64, on the host."""
    high = np.asarray(number.high, np.int64)
    low = np.asarray(number.low, np.int64)
    return (high << 32) + low


def _product(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the upper and the lower word of a product of two words, by halves of them."""
    left_high = left >> HALF
    left_low = left & LOW_HALF
    right_high = right >> HALF
    right_low = right & LOW_HALF
    lowest = left_low * right_low
    crossed = left_high * right_low
    highest = left_high * right_high
    # Neither sum overflows: (2¹⁶ − 1)² + 2 · (2¹⁶ − 1) = 2³² − 1.
    middle = (lowest >> HALF) + (crossed & LOW_HALF) + left_low * right_high
    upper = highest + (crossed >> HALF) + (middle >> HALF)
    return upper, left * right


def _as_int32(words: jax.Array) -> jax.Array:
    """Read the same bits as int32."""
    return jax.lax.bitcast_convert_type(words, new_dtype=jnp.int32)


def _as_uint32(words: jax.Array) -> jax.Array:
    """Read the same bits as uint32."""
    return jax.lax.bitcast_convert_type(words, new_dtype=jnp.uint32)
