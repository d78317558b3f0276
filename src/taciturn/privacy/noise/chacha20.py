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
# Of 32 bits, in a block.
WORDS = 16
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
DOUBLE_ROUNDS = 10
# Of one nonce: the counter has 32 bits, and OpenSSL would carry into the nonce.
MOST_BLOCKS = 2**32


class CipherMissing(TaciturnError):
    """This OpenSSL, or its present mode, has no ChaCha20."""


def key_words(secret: bytes) -> np.ndarray:
    """Return a key of 32 bytes as the eight words that the block function takes."""
    if len(secret) != 32:
        raise ValueError(f"a key of ChaCha20 has 32 bytes, this one has {len(secret)}")
    return np.frombuffer(secret, "<u4").astype(np.uint32)


def blocks(key, counters, nonce) -> list[jax.Array]:
    """Return the words of these blocks: sixteen arrays in the shape of `counters`.

    Args:
        key: eight words.
        counters: the numbers of the blocks.
        nonce: three words.
    """
    shape = jnp.shape(counters)

    def fill(word) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(word, jnp.uint32), shape)

    start = [fill(word) for word in CONSTANTS]
    start += [fill(key[index]) for index in range(8)]
    start.append(fill(counters))
    start += [fill(nonce[index]) for index in range(3)]

    def run_double_round(_: jax.Array, words: list) -> list:
        return _double_round(words)

    mixed = jax.lax.fori_loop(0, DOUBLE_ROUNDS, run_double_round, start)
    return [word + first for word, first in zip(mixed, start, strict=True)]


def _double_round(words: list) -> list:
    words = list(words)
    for quarter in (*COLUMNS, *DIAGONALS):
        quarter_words = [words[place] for place in quarter]
        mixed = _quarter_round(*quarter_words)
        for place, word in zip(quarter, mixed, strict=True):
            words[place] = word
    return words


def _quarter_round(a, b, c, d) -> tuple:
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _rotate(word, bits: int):
    upper = word << np.uint32(bits)
    lower = word >> np.uint32(32 - bits)
    return upper | lower


class Coins:
    """Random choices made on the host: a stream of words under one key."""

    def __init__(self, secret: bytes) -> None:
        self._key = key_words(secret)
        self._nonce = np.zeros(3, np.uint32)
        # The next block of the stream.
        self._next = 0

    def sample(self, items: np.ndarray, probability: float) -> np.ndarray:
        """Return each of the items with this probability, or up to 2⁻⁶⁴ less, independently.

        As a whole the draw is within 2⁻²⁰⁰ of that in total variation, which is less than the last
        bit of the distance that noise is charged with. The time is proportional to the number
        drawn.
        """
        below = math.floor(probability * 2**64)
        if below >= 2**64:
            return items
        size = self._binomial(len(items), below)
        return self.choose(items, size)

    def _binomial(self, times: int, below: int) -> int:
        """Draw how many of `times` coins fall, each with a probability of below · 2⁻⁶⁴."""
        first, sums = _binomial_sums(times, below)
        # Of 384 bits.
        drawn = int.from_bytes(self._words(6).tobytes(), "little")
        scaled = drawn * sums[-1] >> 384
        return first + bisect_right(sums, scaled)

    def choose(self, items: np.ndarray, size: int) -> np.ndarray:
        """Return `size` of the items, in their given order.

        Every set of that size is equally likely.

        Raises:
            ValueError: there are fewer items.
        """
        if not 0 <= size <= len(items):
            raise ValueError(f"{size} of {len(items)} cannot be chosen")
        chosen = np.empty(size, int)
        # Fisher and Yates: where swaps have put other places' items.
        moved: dict[int, int] = {}
        words = self._words(size).tolist()
        for index, word in enumerate(words):
            remaining = len(items) - index
            # Of those from this place on, any may come here.
            other = index + self._below(remaining, word)
            chosen[index] = moved.get(other, other)
            moved[other] = moved.pop(index, index)
        return items[np.sort(chosen)]

    def _below(self, limit: int, word: int) -> int:
        """Return a number below the limit, from this word or from others.

        It is drawn again if it falls into the incomplete last stretch, so that no number is more
        likely.
        """
        while word >= 2**64 - 2**64 % limit:
            word = int(self._words(1)[0])
        return word % limit

    def _words(self, count: int) -> np.ndarray:
        """Draw words of 64 bits."""
        first = self._next
        blocks = -(-count // 8)
        if first + blocks > MOST_BLOCKS:
            raise ValueError("a stream of coins has 2³² blocks, and no more")
        self._next += blocks
        stream = _on_host(self._key, self._nonce, first, blocks)
        return stream.view("<u8")[:count]


# The weight of the most likely number.
LARGEST_WEIGHT = 2**256


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

    def weigh_next(weight: int, number: int) -> int:
        failures = times - number
        more_coins = number + 1
        return weight * failures * below // (more_coins * above)

    def weigh_previous(weight: int, number: int) -> int:
        more_failures = times - number + 1
        return weight * number * above // (more_failures * below)

    fewer = _weigh_until_zero(weigh_previous, range(likely, 0, -1))
    more = _weigh_until_zero(weigh_next, range(likely, times))
    weights = [*reversed(fewer), LARGEST_WEIGHT, *more]
    return likely - len(fewer), tuple(itertools.accumulate(weights))


def _weigh_until_zero(weigh: Callable[[int, int], int], numbers: Iterable[int]) -> list[int]:
    """Return the weights of the neighbours of these numbers, one after another, until one is 0."""
    weights = []
    weight = LARGEST_WEIGHT
    for number in numbers:
        weight = weigh(weight, number)
        if weight == 0:
            break
        weights.append(weight)
    return weights


def _on_host(key: np.ndarray, nonce: np.ndarray, first: int, count: int) -> np.ndarray:
    """Return the bytes of `count` blocks from block `first` on, by OpenSSL."""
    key_bytes = key.astype("<u4").tobytes()
    first_block = np.array([first, *nonce], "<u4").tobytes()
    try:
        algorithm = algorithms.ChaCha20(key_bytes, first_block)
        cipher = Cipher(algorithm, mode=None).encryptor()
    except UnsupportedAlgorithm as error:
        raise CipherMissing(
            "OpenSSL on this machine has no ChaCha20, perhaps because of its FIPS mode, and cohorts"
            " are drawn with it: leave that mode, or run on another machine"
        ) from error
    # Zeros, encrypted, are the key stream.
    zeros = bytes(4 * WORDS * count)
    return np.frombuffer(cipher.update(zeros), np.uint8)
