"""Integers of b bits, packed without gaps: a report modulo 2^b travels as b bits a coordinate (Xu et al. 2023, §2.4).

The first number is in the lowest bits of the first byte, as in little-endian words.

>>> pack(np.array([1, 2, 7], np.uint32), 3).hex()
'd101'
>>> unpack(bytes.fromhex("d101"), 3, 3)
array([1, 2, 7], dtype=uint32)
"""

import math

import numpy as np

MOST_BITS = 32
BLOCK = 1 << 15  # numbers at a time, so that a block stays in the processor's cache


def packed_bytes(length: int, bits: int) -> int:
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"numbers have 1 to {MOST_BITS} bits, not {bits}")
    return (length * bits + 7) // 8


def pack(values: np.ndarray, bits: int) -> bytes:
    """Pack one-dimensional uint32; a number of more than `bits` bits is refused, not truncated."""
    size = packed_bytes(values.size, bits)
    if values.dtype != np.uint32 or values.ndim != 1:
        raise ValueError(f"numbers to pack are a row of uint32, not {values.dtype} of shape {values.shape}")
    if values.size and int(values.max()) >> bits:
        raise ValueError(f"{int(values.max())} does not fit into {bits} bits")
    packed = b"".join(_pack_block(values[start : start + BLOCK], bits) for start in range(0, values.size, BLOCK))
    return packed[:size]


def unpack(packed: bytes, length: int, bits: int) -> np.ndarray:
    """Return uint32 [length]. The exact inverse of `pack`: bits after the last number must be 0."""
    if len(packed) != (size := packed_bytes(length, bits)):
        raise ValueError(f"{length:,} numbers of {bits} bits take {size:,} bytes, not {len(packed):,}")
    if length * bits % 8 and packed[-1] >> length * bits % 8:
        raise ValueError("there are bits set after the last packed number")
    values = np.empty(length, np.uint32)
    for start in range(0, length, BLOCK):
        # BLOCK is a multiple of 8: it begins with a byte
        block = packed[start * bits // 8 : (start + BLOCK) * bits // 8]
        values[start : start + BLOCK] = _unpack_block(block, bits)[: length - start]
    return values


def _places(bits: int) -> list[tuple[int, int]]:
    """Return word and bit of each number of a group: the fewest numbers that fill words of 64 bits to the last bit."""
    return [divmod(bits * number, 64) for number in range(64 // math.gcd(bits, 64))]


def _pack_block(values: np.ndarray, bits: int) -> bytes:
    places = _places(bits)
    groups = -(-values.size // len(places))
    columns = np.zeros((groups, len(places)), np.uint64)
    columns.reshape(-1)[: values.size] = values
    columns = np.ascontiguousarray(columns.T)
    words = np.zeros((len(places) * bits // 64, groups), np.uint64)
    for column, (word, bit) in zip(columns, places, strict=True):
        words[word] |= column << np.uint64(bit)
        if bit + bits > 64:
            words[word + 1] |= column >> np.uint64(64 - bit)
    return words.T.astype("<u8").tobytes()


def _unpack_block(block: bytes, bits: int) -> np.ndarray:
    places = _places(bits)
    width = len(places) * bits // 64
    groups = -(-len(block) // (8 * width))
    words = np.frombuffer(block.ljust(groups * width * 8, b"\0"), "<u8").reshape(groups, width)
    words = np.ascontiguousarray(words.T).astype(np.uint64, copy=False)
    columns = np.empty((len(places), groups), np.uint32)
    for column, (word, bit) in zip(columns, places, strict=True):
        value = words[word] >> np.uint64(bit)
        if bit + bits > 64:
            value |= words[word + 1] << np.uint64(64 - bit)
        column[:] = value & np.uint64((1 << bits) - 1)
    return np.ascontiguousarray(columns.T).reshape(-1)
