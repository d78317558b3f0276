"""Integers of b bits, packed without gaps: a report modulo 2^b travels as b bits a coordinate (Xu
et al. 2023, §2.4).

The first number is in the lowest bits of the first byte, as in little-endian words.

>>> pack(np.array([1, 2, 7], np.uint32), 3).hex()
'd101'
>>> unpack(bytes.fromhex("d101"), 3, 3)
array([1, 2, 7], dtype=uint32)
"""

import numpy as np

MOST_BITS = 32
# numbers at a time, so that a block stays in the processor's cache; a multiple of 8, so that it
# begins with a byte
BLOCK = 1 << 15


def packed_bytes(length: int, bits: int) -> int:
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"numbers have 1 to {MOST_BITS} bits, not {bits}")
    return (length * bits + 7) // 8


def pack(values: np.ndarray, bits: int) -> bytes:
    """Pack one-dimensional uint32; a number of more than `bits` bits is refused, not truncated."""
    # refuses a number of bits that is none
    packed_bytes(values.size, bits)
    if values.dtype != np.uint32 or values.ndim != 1:
        raise ValueError(
            f"numbers to pack are a row of uint32, not {values.dtype} of shape {values.shape}"
        )
    if values.size and int(values.max()) >> bits:
        raise ValueError(f"{int(values.max())} does not fit into {bits} bits")
    packed = []
    for start in range(0, values.size, BLOCK):
        some = values[start : start + BLOCK].astype("<u4").view(np.uint8).reshape(-1, 4)
        packed.append(
            np.packbits(np.unpackbits(some, axis=1, bitorder="little")[:, :bits], bitorder="little")
        )
    return b"".join(packed)


def unpack(packed: bytes, length: int, bits: int) -> np.ndarray:
    """Return uint32 [length]. The exact inverse of `pack`: bits after the last number must be 0."""
    if len(packed) != (size := packed_bytes(length, bits)):
        raise ValueError(
            f"{length:,} numbers of {bits} bits take {size:,} bytes, not {len(packed):,}"
        )
    if length * bits % 8 and packed[-1] >> length * bits % 8:
        raise ValueError("there are bits set after the last packed number")
    values = np.empty(length, np.uint32)
    for start in range(0, length, BLOCK):
        some = min(BLOCK, length - start)
        block = np.frombuffer(packed, np.uint8, packed_bytes(some, bits), start * bits // 8)
        numbers = np.zeros((some, MOST_BITS), np.uint8)
        numbers[:, :bits] = np.unpackbits(block, count=some * bits, bitorder="little").reshape(
            some, bits
        )
        values[start : start + some] = (
            np.packbits(numbers, axis=1, bitorder="little").view("<u4").ravel()
        )
    return values
