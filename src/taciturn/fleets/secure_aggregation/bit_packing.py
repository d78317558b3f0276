"""Integers of b bits, packed without gaps (Xu et al. 2023, §2.4).

So a report modulo 2^b travels as b bits a coordinate. The first number is in the lowest bits of the
first byte, as in little-endian words.

>>> pack(np.array([1, 2, 7], np.uint32), 3).hex()
'd101'
>>> unpack(bytes.fromhex("d101"), 3, 3)
array([1, 2, 7], dtype=uint32)
"""

import numpy as np

MOST_BITS = 32
# Numbers at a time, so that a block stays in the processor's cache; a multiple of 8, so that it
# begins with a byte.
BLOCK = 1 << 15


def count_bytes(length: int, bits: int) -> int:
    """Return how many bytes this number of packed numbers takes."""
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"numbers have 1 to {MOST_BITS} bits, not {bits}")
    return (length * bits + 7) // 8


def pack(values: np.ndarray, bits: int) -> bytes:
    """Pack one-dimensional uint32; a number of more than `bits` bits is refused, not truncated."""
    # Refuses a number of bits that is not possible.
    count_bytes(values.size, bits)
    if values.dtype != np.uint32 or values.ndim != 1:
        raise ValueError(
            f"numbers to pack are a row of uint32, not {values.dtype} of shape {values.shape}"
        )
    largest = int(values.max()) if values.size else 0
    if largest >> bits:
        raise ValueError(f"{largest} does not fit into {bits} bits")
    packed = []
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        packed.append(_pack_block(block, bits))
    return b"".join(packed)


def _pack_block(values: np.ndarray, bits: int) -> bytes:
    four_bytes = values.astype("<u4").view(np.uint8).reshape(-1, 4)
    all_bits = np.unpackbits(
        four_bytes,
        axis=1,
        bitorder="little",
    )
    lowest_bits = all_bits[:, :bits]
    return np.packbits(lowest_bits, bitorder="little").tobytes()


def unpack(packed: bytes, length: int, bits: int) -> np.ndarray:
    """Return uint32 [length]. The exact inverse of `pack`: bits after the last number must be 0."""
    size = count_bytes(length, bits)
    if len(packed) != size:
        raise ValueError(
            f"{length:,} numbers of {bits} bits take {size:,} bytes, not {len(packed):,}"
        )
    bits_in_last_byte = length * bits % 8
    if bits_in_last_byte and packed[-1] >> bits_in_last_byte:
        raise ValueError("there are bits set after the last packed number")
    values = np.empty(length, np.uint32)
    for start in range(0, length, BLOCK):
        count = min(BLOCK, length - start)
        block = np.frombuffer(
            packed,
            np.uint8,
            count=count_bytes(count, bits),
            offset=start * bits // 8,
        )
        values[start : start + count] = _unpack_block(block, count, bits)
    return values


def _unpack_block(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    lowest_bits = np.unpackbits(
        packed,
        count=count * bits,
        bitorder="little",
    )
    all_bits = np.zeros((count, MOST_BITS), np.uint8)
    all_bits[:, :bits] = lowest_bits.reshape(count, bits)
    four_bytes = np.packbits(
        all_bits,
        axis=1,
        bitorder="little",
    )
    return four_bytes.view("<u4").ravel()
