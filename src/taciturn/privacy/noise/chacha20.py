"""ChaCha20 (RFC 8439), the source of every random bit that protects people: noise, and the coins
that draw a cohort.

For noise it is written here, in 32-bit additions, exclusive ors and rotations, so that a key gives
the same bits on every machine, with every version and setting of JAX, on a CPU and on a GPU; the
RFC's test vectors fix them. Coins, which fall on the host, are OpenSSL's.

**Guarantee:** `blocks` is the block function of RFC 8439, §2.3, for arrays of block counters.

**Assumes:** ChaCha20 is a pseudo-random function, and no (key, nonce, counter) is used twice.
"""

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from taciturn.errors import TaciturnError

CONSTANTS = tuple(int(word) for word in np.frombuffer(b"expand 32-byte k", "<u4"))
# of a block
WORDS = 16
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
DOUBLE_ROUNDS = 10
# of a nonce: the counter has 32 bits, and OpenSSL carries into the nonce
MOST_BLOCKS = 2**32


class CipherMissing(TaciturnError):
    """This OpenSSL, or its present mode, has no ChaCha20."""


def key_words(secret: bytes) -> np.ndarray:
    """Return a key of 32 bytes as the eight words that the block function takes."""
    if len(secret) != 32:
        raise ValueError(f"a key of ChaCha20 has 32 bytes, this one has {len(secret)}")
    return np.frombuffer(secret, "<u4").astype(np.uint32)


def blocks(key, counters, nonce) -> list[jax.Array]:
    """Return the words of these blocks, for a key of eight words and a nonce of three: sixteen
    arrays in the shape of `counters`.
    """
    words = [
        *CONSTANTS,
        *(key[index] for index in range(8)),
        counters,
        *(nonce[index] for index in range(3)),
    ]
    start = [jnp.broadcast_to(jnp.asarray(word, jnp.uint32), jnp.shape(counters)) for word in words]
    made = jax.lax.fori_loop(0, DOUBLE_ROUNDS, lambda _, words: _double_round(words), start)
    return [word + first for word, first in zip(made, start, strict=True)]


class Coins:
    """Random choices made on the host: a stream of words under one key."""

    def __init__(self, secret: bytes) -> None:
        self._key, self._nonce = key_words(secret), np.zeros(3, np.uint32)
        # block
        self._next = 0

    def sample(self, items: np.ndarray, probability: float) -> np.ndarray:
        """Draw each item independently with this probability, or up to 2⁻⁶⁴ less; as a whole within
        2⁻²⁰⁰ of that in total variation, which is less than the last bit of the distance that noise
        is charged with. The time is proportional to the number drawn.
        """
        below = math.floor(probability * 2**64)
        return items if below >= 2**64 else self.choose(items, self._binomial(len(items), below))

    def _binomial(self, times: int, below: int) -> int:
        """Draw how many of `times` coins fall, each with a probability of below · 2⁻⁶⁴."""
        first, sums = _binomial_sums(times, below)
        # of 384 bits
        drawn = int.from_bytes(self._words(6).tobytes(), "little")
        return first + bisect_right(sums, drawn * sums[-1] >> 384)

    def choose(self, items: np.ndarray, size: int) -> np.ndarray:
        """Draw `size` of the items, in their given order; every set of that size is equally
        likely.
        """
        if not 0 <= size <= len(items):
            raise ValueError(f"{size} of {len(items)} cannot be chosen")
        # where swaps have put others than were there
        chosen, moved = np.empty(size, int), {}
        # Fisher and Yates
        for index, word in enumerate(self._words(size).tolist()):
            other = index + self._below(len(items) - index, word)
            chosen[index], moved[other] = moved.get(other, other), moved.pop(index, index)
        return items[np.sort(chosen)]

    def _below(self, limit: int, word: int) -> int:
        """Return a number below the limit, drawn again if it falls into the incomplete last
        stretch, so that none is more likely.
        """
        while word >= 2**64 - 2**64 % limit:
            word = int(self._words(1)[0])
        return word % limit

    def _words(self, count: int) -> np.ndarray:
        """Draw words of 64 bits."""
        first, blocks = self._next, -(-count // 8)
        if first + blocks > MOST_BLOCKS:
            raise ValueError("a stream of coins has 2³² blocks, and no more")
        self._next += blocks
        return _on_host(self._key, self._nonce, first, blocks).view("<u8")[:count]


@functools.lru_cache(maxsize=4)
def _binomial_sums(times: int, below: int) -> tuple[int, tuple[int, ...]]:
    """Return the smallest number of coins with any weight, and the sums of weights up to each
    number from there.

    Weights are in proportion to the binomial probabilities, in integers, from 2²⁵⁶ at the most
    likely number down to 0 on both sides: each is that of its neighbour times the ratio of the two,
    which is at most 1, rounded down. So none is off by more than the number of weights, which is
    2¹⁸ for 10⁸ coins: in total variation the square of that, less than 2⁻²⁰⁰.
    """
    above = 2**64 - below
    likely = (times + 1) * below >> 64

    def upwards(weight: int, number: int) -> int:
        return weight * (times - number) * below // ((number + 1) * above)

    def downwards(weight: int, number: int) -> int:
        return weight * number * above // ((times - number + 1) * below)

    def positive(step: Callable[[int, int], int], numbers: Iterable[int]) -> list[int]:
        return list(itertools.takewhile(bool, itertools.accumulate(numbers, step, initial=2**256)))[
            1:
        ]

    fewer = positive(downwards, range(likely, 0, -1))
    weights = [*reversed(fewer), 2**256, *positive(upwards, range(likely, times))]
    return likely - len(fewer), tuple(itertools.accumulate(weights))


def _on_host(key: np.ndarray, nonce: np.ndarray, first: int, count: int) -> np.ndarray:
    """Return the bytes of `count` blocks from block `first` on."""
    named = np.array([first, *nonce], "<u4").tobytes()
    try:
        cipher = Cipher(
            algorithms.ChaCha20(key.astype("<u4").tobytes(), named), mode=None
        ).encryptor()
    except UnsupportedAlgorithm as error:
        lacking = (
            "OpenSSL on this machine has no ChaCha20, perhaps because of its FIPS mode, and cohorts"
            " are drawn with it"
        )
        raise CipherMissing(f"{lacking}: leave that mode, or run on another machine") from error
    # zeros, encrypted, are the key stream
    return np.frombuffer(cipher.update(bytes(4 * WORDS * count)), np.uint8)


def _double_round(words: list) -> list:
    words = list(words)
    for quarter in (*COLUMNS, *DIAGONALS):
        a, b, c, d = (words[place] for place in quarter)
        a = a + b
        d = _rotated(d ^ a, 16)
        c = c + d
        b = _rotated(b ^ c, 12)
        a = a + b
        d = _rotated(d ^ a, 8)
        c = c + d
        b = _rotated(b ^ c, 7)
        for place, word in zip(quarter, (a, b, c, d), strict=True):
            words[place] = word
    return words


def _rotated(word, bits: int):
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))
