"""White noise in integers: its bits are ChaCha20's, its tables are correct, its distance from the
rounded normal is charged.
"""

import bisect
import hashlib
import itertools
import math
import re
from collections import Counter
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import curators
from harness import from_numpy, lowers_for_gpus
from taciturn.privacy.bounding.clipping import MOST_REPORTS, flat_clip
from taciturn.privacy.bounding.estimators import clipped_denominator, fixed_denominator
from taciturn.privacy.noise import chacha20, int64, sampler
from taciturn.privacy.noise.correlated import Bands, Buffers, banded_toeplitz, blt, tree
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import gaussian

pytestmark = pytest.mark.optimised

KEY = chacha20.key_words(bytes(range(32)))
NONCE = np.frombuffer(bytes.fromhex("000000090000004a00000000"), "<u4")


def keystream(key, counters, nonce) -> bytes:
    words = chacha20.blocks(key, jnp.asarray(counters, jnp.uint32), nonce)
    return np.stack([np.asarray(word) for word in words], axis=-1).astype("<u4").tobytes()


def test_blocks_are_those_of_the_rfc():
    """RFC 8439, §2.3.2 and Appendix A.1, vectors 1 and 2."""
    assert (
        keystream(KEY, [1], NONCE).hex()
        == "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    zero = np.zeros(8, np.uint32), np.zeros(3, np.uint32)
    assert (
        keystream(zero[0], [0, 1], zero[1]).hex()
        == "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def test_blocks_are_those_of_another_implementation_and_coins_use_them():
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key = bytes(range(100, 132))
    theirs = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(64 * 40))
    assert keystream(chacha20.key_words(key), np.arange(40), np.zeros(3, np.uint32)) == theirs
    drawn = int.from_bytes(
        theirs[:48], "little"
    )  # of a fair coin, one in two comes up for the upper half
    assert len(chacha20.Coins(key).sample(np.arange(1), 0.5)) == drawn >> 383
    words = np.frombuffer(theirs, "<u8")[:3].tolist()
    places = sorted(index + word % (2**20 - index) for index, word in enumerate(words))
    assert chacha20.Coins(key).choose(np.arange(2**20), 3).tolist() == places


def test_coins_continue_with_the_next_block(monkeypatch):
    def drawn() -> list[int]:
        coins = chacha20.Coins(bytes(range(32)))
        return [*coins._words(8), *coins._words(9), *coins._words(1)]

    ours = np.frombuffer(keystream(KEY, np.arange(4), np.zeros(3, np.uint32)), "<u8").tolist()
    assert drawn() == [*ours[:17], ours[24]]  # what is left of a block is not drawn from again
    made = chacha20._on_host
    monkeypatch.setattr(
        chacha20, "_on_host", lambda key, nonce, first, count: made(key, nonce, 0, count)
    )
    assert drawn() != [*ours[:17], ours[24]]  # the twin


def test_without_chacha20_in_openssl_nothing_is_drawn_and_the_error_says_why(monkeypatch):
    def lacking(*_, **__):
        raise UnsupportedAlgorithm("cipher ChaCha20 in None mode is not supported by this backend")

    monkeypatch.setattr(chacha20, "Cipher", lacking)
    with pytest.raises(chacha20.CipherMissing, match="FIPS mode"):
        chacha20.Coins(bytes(32)).choose(np.arange(9), 3)


def binomial(times: int, below: int) -> dict[int, Fraction]:
    """Return the distribution of how many coins fall, each with a probability of below · 2⁻⁶⁴, by
    definition.
    """
    chance = Fraction(below, 2**64)
    return {
        number: math.comb(times, number) * chance**number * (1 - chance) ** (times - number)
        for number in range(times + 1)
    }


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.999, 1e-3, 2.0**-64, 2.0**-30, 1 - 2.0**-53])
@pytest.mark.parametrize("times", [0, 1, 2, 7, 40])
def test_how_many_coins_fall_is_binomial_but_for_rounding(times, chance):
    below = math.floor(chance * 2**64)
    first, sums = chacha20._binomial_sums(times, below)
    drawn = {
        first + index: Fraction(after - before, sums[-1])
        for index, (before, after) in enumerate(itertools.pairwise([0, *sums]))
    }
    exact = binomial(times, below)

    def variation(one, other):
        return (
            sum(abs(one.get(number, 0) - other.get(number, 0)) for number in range(times + 2)) / 2
        )

    # Each share is off by less than one bit string in 2³⁸⁴.
    assert variation(drawn, exact) + Fraction(len(sums), 2**384) < Fraction(1, 2**200)
    # The twins that must fail: one coin more, or a probability that is larger by one part in 2⁶⁴.
    if times and chance < 1 - 2.0**-53:
        assert variation(drawn, binomial(times + 1, below)) > Fraction(1, 2**65)
        assert variation(drawn, binomial(times, below + 1)) > Fraction(1, 2**66)


def test_drawing_takes_time_in_proportion_to_the_number_drawn():
    used = []
    for users in (10**4, 10**7):
        coins = chacha20.Coins(bytes(32))
        assert 60 < len(coins.sample(np.arange(users), 100 / users)) < 140
        used.append(coins._next)
    assert max(used) < 20  # blocks of eight words; a coin for each would take 1,250 and 1,250,000


def scripted(*batches):
    """Make coins whose words are these, batch after batch."""
    coins, left = chacha20.Coins(bytes(32)), iter(batches)

    def words(count):
        batch = np.array(next(left), np.uint64)
        assert len(batch) == count
        return batch

    coins._words = words
    return coins


@pytest.mark.parametrize("size", range(6))
def test_every_choice_comes_from_equally_many_words(size):
    """Count the choices over all possible words; no item is chosen twice."""
    for chosen in range(size + 1):
        words = itertools.product(*(range(size - index) for index in range(chosen)))
        sets = Counter(
            tuple(scripted(one).choose(np.arange(size), chosen).tolist()) for one in words
        )
        assert sets == dict.fromkeys(
            itertools.combinations(range(size), chosen), math.factorial(chosen)
        )


@pytest.mark.parametrize("limit", [3, 5, 10**8, 2**63 + 1])
def test_a_word_of_the_incomplete_last_stretch_is_drawn_again(limit):
    end = 2**64 - 2**64 % limit
    assert scripted()._below(limit, end - 1) == limit - 1
    assert scripted([end], [2**64 - 1], [1])._below(limit, end) == 1


def test_words_that_are_drawn_again_are_new_ones_until_the_stream_ends():
    coins = chacha20.Coins(bytes(32))
    stream = chacha20.Coins(bytes(32))._words(24).tolist()
    assert [int(coins._words(1)[0]) for _ in range(3)] == stream[::8]
    coins._next = 2**32 - 1
    coins._words(8)
    for draw in (lambda: coins._words(1), lambda: coins.sample(np.arange(5), 0.5)):
        with pytest.raises(ValueError, match="and no more"):
            draw()


@pytest.mark.parametrize(
    ("times", "below"), [(1, 2**63), (3, 2**63), (40, 2**64 // 3), (5, 2**64 - 2048), (5000, 2**63)]
)
def test_a_number_is_drawn_from_the_first_bit_string_of_its_share_to_the_last(times, below):
    first, sums = chacha20._binomial_sums(times, below)
    for number, end in enumerate(sums[:: max(1, len(sums) // 50)]):
        number = first + number * max(1, len(sums) // 50)
        beyond = -(-end * 2**384 // sums[-1])
        for drawn, expected in ((beyond - 1, number), (beyond, number + 1)):
            if drawn < 2**384:
                assert (
                    scripted([(drawn >> 64 * word) % 2**64 for word in range(6)])._binomial(
                        times, below
                    )
                    == expected
                )


@pytest.mark.parametrize(
    "chance",
    [
        5e-324,
        2.0**-65,
        math.nextafter(2.0**-64, 0),
        math.nextafter(2.0**-64, 1),
        1e-3,
        1 - 2.0**-53,
    ],
)
def test_no_user_is_drawn_with_more_than_the_charged_probability(chance, monkeypatch):
    asked = []
    monkeypatch.setattr(chacha20.Coins, "_binomial", lambda self, *given: asked.append(given) or 0)
    chacha20.Coins(bytes(32)).sample(np.arange(9), chance)
    [(times, below)] = asked
    assert times == 9
    assert 0 <= Fraction(chance) - Fraction(below, 2**64) < Fraction(1, 2**64)


def test_of_many_coins_few_weights_matter():
    first, sums = chacha20._binomial_sums(10**7, math.floor(1e-4 * 2**64))
    weights = np.diff(np.array([0, *sums], object)) / sums[-1]
    assert len(weights) < 1500
    np.testing.assert_allclose(
        weights.astype(float),
        stats.binom.pmf(first + np.arange(len(weights)), 10**7, 1e-4),
        rtol=1e-6,
        atol=1e-12,
    )


def test_coins_fall_as_often_as_they_should_and_choices_are_uniform():
    coins, users = chacha20.Coins(bytes(32)), np.arange(100, 120)
    drawn = [coins.sample(users, 0.1) for _ in range(1200)]
    assert all(len(set(one.tolist())) == len(one) for one in drawn)
    met = np.array([np.isin(users, one) for one in drawn])
    together = (
        met.T.astype(int) @ met
    )  # how often two were drawn together, and on the diagonal how often each was
    for one, other in itertools.combinations_with_replacement(range(len(users)), 2):
        assert (
            stats.binomtest(int(together[one, other]), 1200, 0.1 if one == other else 0.01).pvalue
            > 1e-6
        )
    assert np.array_equal(coins.sample(users, 1.0), users)
    assert 4800 < len(coins.sample(np.arange(10_000), 0.5)) < 5200
    counts = np.zeros(10)
    for _ in range(2000):
        counts[coins.choose(np.arange(10), 3)] += 1
    assert stats.chisquare(counts).pvalue > 1e-4
    assert coins.choose(np.arange(4), 4).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="cannot be chosen"):
        coins.choose(np.arange(4), 5)


numbers = st.integers(-(2**62), 2**62 - 1)


@settings(max_examples=50, deadline=None)
@given(
    numbers,
    numbers,
    st.integers(0, 2**31 - 1),
    st.integers(1, 31),
    st.integers(1, 2**31 - 1),
    st.integers(0, 2**24),
)
def test_wide_numbers_are_integers_of_64_bits(a, b, factor, bits, divisor, fraction):
    def wrapped(number: int) -> int:
        return (number + 2**63) % 2**64 - 2**63

    left, right = from_numpy(np.int64(a)), from_numpy(np.int64(b))
    for made, expected in (
        (int64.add(left, right), a + b),
        (int64.subtract(left, right), a - b),
        (int64.negative(left), -a),
        (int64.times(left, factor), a * factor),
        (int64.shift(left, bits), a << bits),
        (int64.shift(left, bits + 32), a << (bits + 32)),
        (int64.shift_down(left, bits), a >> bits),
        (int64.shift_down(left, bits + 32), a >> (bits + 32)),
        (int64.shift_down_and_round(left, bits), (a + (1 << (bits - 1))) >> bits),
        (int64.times_fraction(left, fraction, 24), (a * fraction + 2**23) >> 24),
        (int64.divide(left, jnp.int32(divisor)), a // divisor),
    ):
        assert int(int64.to_numpy(made)) == wrapped(expected)


def test_tables_hold_the_cumulative_probabilities_of_the_discrete_gaussian():
    """Recompute them term by term, each exponential separately, with 50 digits."""
    from mpmath import mp, mpf

    words = [column.astype(object) for column in sampler.cumulative_table()]
    table = [(a << 96) + (b << 64) + (c << 32) + d for a, b, c, d in zip(*words, strict=True)]
    assert table == sorted(table)
    assert table[-1] == 2**sampler.BITS
    with mp.workdps(50):
        terms = [mp.exp(-(mpf(k) ** 2) / (2 * sampler.BASE**2)) for k in range(sampler.LARGEST + 1)]
        total, sum = terms[0] + 2 * mp.fsum(terms[1:]), mpf(0)
        for k in range(sampler.LARGEST):
            sum += terms[k] * (1 if k == 0 else 2)
            if k % 97 == 0 or k < 5:
                assert abs(mpf(int(table[k])) / 2**sampler.BITS - sum / total) < mpf(2) ** -126
        beyond = mp.erfc(mpf(sampler.LARGEST) / (sampler.BASE * mp.sqrt(2)))
        assert beyond < mpf(2) ** -180


@pytest.mark.parametrize("is_guided", [False, True])
def test_look_ups_compare_all_127_bits(is_guided):
    """Try numbers at an entry of the table and one below it, whose first 64 bits are equal."""

    def found(bits: list[np.ndarray]) -> list[int]:
        first, *more = map(jnp.asarray, bits)
        return np.asarray(
            sampler.draw_discrete(
                table, first, lambda at: more if at is None else [word[at] for word in more], guide
            )
        ).tolist()

    table, guide = (
        tuple(map(jnp.asarray, sampler.cumulative_table())),
        jnp.asarray(sampler.search_guide()) if is_guided else None,
    )
    places = np.array([0, 1, 2, 500, 2048, 9000, 20_000, 24_000])
    at = [np.asarray(column)[places] for column in sampler.cumulative_table()]
    exact = [at[0] << 1, *at[1:]]
    assert found(exact) == (places + 1).tolist()
    below = [at[0] << 1, at[1], at[2] - (at[3] == 0), at[3] - 1]
    assert found(below) == places.tolist()
    negative = [exact[0] | 1, *exact[1:]]
    assert found(negative) == (-places - 1).tolist()


def test_a_guided_search_finds_every_number():
    """Try the first words of all entries and their neighbours, which are at the edges of what is
    counted, and those at the edges of stretches.
    """
    first, largest = sampler.cumulative_table()[0].astype(np.int64), 2**31 - 1
    edges = [
        largest - (np.arange(256, 513) << shift) + beside
        for shift in range(23)
        for beside in (0, 1)
    ]
    tried = np.unique(
        np.concatenate([first - 1, first, first + 1, largest - np.arange(512), *edges])
    )
    tried = tried[(tried >= 0) & (tried <= largest)]
    missing = (
        np.searchsorted(first, tried)
        - sampler.search_guide()[sampler._find_stretch(jnp.asarray(tried, jnp.uint32))]
    )
    assert missing.min() == 0
    assert missing.max() < 2**sampler.GUIDED


@pytest.mark.parametrize("deviation", [2048.0, 5000.0, 1e6, 2.0**30, 1.7 * 2**44, 2.0**50, 2.0**57])
def test_noise_is_never_narrower_than_asked_and_every_addition_is_smooth(deviation):
    made = sampler.spread(deviation)
    variance = Fraction(0)
    for factor in made.factors:
        if variance:  # σ_i² ≥ … so that 1/BASE² + c²/σ_i² ≤ 1/4
            assert Fraction(1, sampler.BASE**2) + factor**2 / variance <= Fraction(1, 4)
        variance += factor**2 * sampler.BASE**2
    assert variance >= Fraction(deviation) ** 2
    assert made.deviation <= math.sqrt(variance)
    assert made.deviation <= deviation + 2 * sampler.BASE


def test_two_additions_of_the_smallest_kind_are_a_discrete_gaussian_exactly_as_claimed():
    """Compute X₀ + c X₁ by brute force, with a base as narrow as the condition allows: the largest
    relative error is the bound's.
    """
    base, factor = 8.0, 3  # 1/64 + 9/64 ≤ 1/4
    reach = np.arange(-400, 401)
    single = np.exp(-(reach.astype(float) ** 2) / (2 * base**2))
    single /= single.sum()
    wide_one = np.zeros(2 * 400 * factor + 1)
    wide_one[::factor] = single
    sum = np.convolve(single, wide_one)
    places = np.arange(len(sum)) - len(sum) // 2
    ideal = np.exp(-(places.astype(float) ** 2) / (2 * (base**2 * (1 + factor**2))))
    ideal /= ideal.sum()
    assert np.abs(sum - ideal).sum() / 2 < 1e-14
    # The twin: a factor that is too large leaves gaps.
    sparse = np.zeros(2 * 400 * 40 + 1)
    sparse[::40] = single
    gaps = np.convolve(single, sparse)
    places = np.arange(len(gaps)) - len(gaps) // 2
    ideal = np.exp(-(places.astype(float) ** 2) / (2 * (base**2 * (1 + 40**2))))
    assert np.abs(gaps - ideal / ideal.sum()).sum() / 2 > 1e-2


def test_a_discrete_gaussian_is_as_far_from_a_rounded_normal_as_is_counted():
    for deviation in (4.0, 16.0):
        places = np.arange(-400, 401)
        discrete = np.exp(-(places**2) / (2 * deviation**2))
        rounded = stats.norm.cdf(places + 0.5, scale=deviation) - stats.norm.cdf(
            places - 0.5, scale=deviation
        )
        distance = np.abs(discrete / discrete.sum() - rounded).sum() / 2
        assert 0.019 / deviation**2 < distance < 0.0203 / deviation**2


def drawn(deviation: float, size: int = 200_000, stream: int = 0) -> np.ndarray:
    made = sampler.spread(deviation)
    return int64.to_numpy(jax.jit(lambda: sampler.white(made, KEY, stream, size))())


def by(draw, deviation: float, size: int, stream: int) -> np.ndarray:
    made, key = sampler.spread(deviation), np.arange(8, dtype=np.uint32)
    return int64.to_numpy(
        jax.jit(lambda key, stream: draw(made, key, stream, size))(key, np.uint32(stream))
    )


interpreted = partial(sampler.draw_in_one_kernel, interpret=True)  # on a GPU it is compiled


def by_definition(
    table: list[int],
    factors: tuple[int, ...],
    size: int,
    stream: int,
    thinned=lambda is_first, words: words,
) -> list[int]:
    """Draw with OpenSSL's blocks, a search that compares integers, and sums that cannot
    overflow.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    blocks, key = -(-size // 16), np.arange(8, dtype="<u4").tobytes()

    def words(name: int, kind: int) -> list[np.ndarray]:
        nonce = np.array([0, name, stream, kind], "<u4").tobytes()
        made = Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(64 * blocks))
        return [
            word.astype(object)
            for word in thinned(kind == 0, list(np.frombuffer(made, "<u4").reshape(blocks, 16).T))
        ]

    sums = [0] * (16 * blocks)
    for name, factor in enumerate(factors):
        for lane, first in enumerate(words(name, 0)):
            more = words(name, 1 + lane)
            numbers = ((first >> 1) << 96) + (more[0] << 64) + (more[1] << 32) + more[2]
            for block, (sign, number) in enumerate(zip(first, numbers, strict=True)):
                sums[lane * blocks + block] += (
                    factor * bisect.bisect_right(table, number) * (-1 if sign & 1 else 1)
                )
    return sums[:size]


STREAMS = 0, 2**31 + 5, 2**32 - 1
SIZES = [
    (2048.0, 1),
    (3000.0, 511),
    (2.0**31, 131),
    (2.0**46, 2049),
    (2.0**57, 4100),
    (2.0**58 - 2.0**30, 6),
]  # full programs and not


@pytest.mark.parametrize(
    ("deviation", "size", "streams"), [*((*one, STREAMS) for one in SIZES), (2.0**57, 10**5, (5,))]
)
def test_a_draw_and_the_kernel_equal_their_definition_in_python_integers(deviation, size, streams):
    words = [column.tolist() for column in sampler.cumulative_table()]
    table = [(a << 96) + (b << 64) + (c << 32) + d for a, b, c, d in zip(*words, strict=True)]
    for stream in streams:
        defined = by_definition(table, sampler.spread(deviation).factors, size, stream)
        assert all(
            by(draw, deviation, size, stream).tolist() == defined
            for draw in (sampler.white, interpreted)
        )


@pytest.mark.parametrize(("size", "held"), [(17, 4096), (16 * 300 + 5, 128)])
def test_whichever_draws_are_undecided_each_is_decided_by_bits_of_its_own(monkeypatch, size, held):
    """With a table in which four entries share every first word, and words of few values, hardly
    any draw is decided by its first: in all lanes, terms, chunks and programs, and by each of the
    other three words. (Of real ones, one in 190,000 is undecided.)
    """
    place, last = (
        np.arange(2**15, dtype=object),
        np.random.default_rng(0).integers(1, 2**32 - 1, 2**15).astype(object),
    )
    table = [
        *((place >> 2 << 114) + ((place & 2) << 64) + ((place & 1) << 32) + last)[:-1].tolist(),
        2**127,
    ]
    assert table == sorted(table)

    def thinned(is_first, words):
        """Leave a sign and 13 of 31 bits of first words, and of the others one bit, one bit, and
        all.
        """
        return (
            [word & np.uint32(0xFFF80001) for word in words]
            if is_first
            else [words[0] & 2, words[1] & 1, words[2]]
        )

    usual, factors = sampler._draw_words, (1, 3, 2**33 + 1)
    monkeypatch.setattr(
        sampler, "_draw_words", lambda *given: thinned(isinstance(given[3], int), usual(*given))
    )
    monkeypatch.setattr(
        sampler,
        "cumulative_table",
        lambda: tuple(
            np.array([entry >> shift & 0xFFFFFFFF for entry in table], np.uint32)
            for shift in (96, 64, 32, 0)
        ),
    )
    monkeypatch.setattr(sampler, "search_guide", lambda: np.zeros(32 << 8, np.int32))
    monkeypatch.setattr(sampler, "GUIDED", 15)
    monkeypatch.setattr(sampler, "HELD_BY_A_CORE", held)
    monkeypatch.setattr(sampler, "spread", lambda deviation: sampler.Spread(deviation, factors))
    right = by_definition(table, factors, size, 2**31 + 5, thinned)
    assert all(
        by(draw, 2048.0, size, 2**31 + 5).tolist() == right
        for draw in (sampler.draw_with_xla, interpreted)
    )
    # The twin: where first words decide by themselves, most would be another number.
    assert (
        np.mean(
            np.array(right)
            != by_definition(
                [entry >> 96 << 96 for entry in table], factors, size, 2**31 + 5, thinned
            )
        )
        > 0.9
    )


def test_two_spreads_never_share_a_compiled_program():
    """Not even where only their factors differ, and with 64-bit numbers as without."""

    class Alike(sampler.Spread):
        """The twin that must fail: to the compiler all of them are the same."""

        __eq__, __hash__ = (lambda self, other: True), (lambda self: 0)

    def drawn(made):
        return int64.to_numpy(sampler.white(made, np.arange(8, dtype=np.uint32), 1, 5)).tolist()

    one = sampler.spread(2048.0)
    twice, right = one._replace(factors=(2,)), drawn(one)
    assert one.factors == (1,)
    assert drawn(twice) == [2 * number for number in right]
    with jax.enable_x64(True):
        assert drawn(twice) == [2 * number for number in right]
    assert drawn(Alike(*one)) == drawn(Alike(*twice)) == right


def test_the_bits_have_the_hash_that_devices_are_checked_against(monkeypatch):
    """For a few of the draws one word of the number does not decide: the twin that stops there is
    noticed.
    """
    assert (
        hashlib.sha256(by(sampler.draw_with_xla, 2.0**57, 10**6, 5).tobytes()).hexdigest()
        == sampler.KNOWN
    )
    right, found = (by(draw, 2.0**57, 10**5, 5) for draw in (sampler.draw_with_xla, interpreted))
    assert np.array_equal(right, found)
    monkeypatch.setattr(jax.lax, "cond", lambda condition, yes, no: no())
    assert np.count_nonzero(by(interpreted, 2.0**57, 10**5, 5) != right) == 4


def test_a_device_whose_noise_has_other_bits_is_refused_before_anything_is_released(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sampler, "SEEN_ON", ())
    white = sampler.white
    sampler.check_bits.__wrapped__(jax.local_devices()[0])
    monkeypatch.setattr(
        sampler, "white", lambda spread, key, stream, size: white(spread, key, stream + 1, size)
    )
    sampler.check_bits.cache_clear()
    with pytest.raises(sampler.OtherBits, match="Nothing was released"):
        curators.opened(curators.averaging(), curators.Loop(), tmp_path / "ledger.jsonl")
    sampler.check_bits.cache_clear()


def test_noise_is_checked_on_the_device_that_draws_it(tmp_path, monkeypatch):
    """It need not be JAX's default, nor known when a curator is made. It is checked before a
    charge, and when a state follows a record.
    """
    algorithm, params, device = curators.averaging(), {"x": jnp.zeros(3)}, jax.local_devices()[0]
    curator, state = (
        curators.opened(algorithm, curators.Loop(), tmp_path / "ledger.jsonl"),
        algorithm.mechanism.init(params),
    )

    def is_refused() -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(
                sampler,
                "check_bits",
                lambda device: (_ for _ in ()).throw(sampler.OtherBits(str(device))),
            )
            with pytest.raises(sampler.OtherBits, match=re.escape(str(device))):
                curator.private_mean(params, state, 0)
        return True

    assert is_refused()
    assert not curator.account.charges
    assert not (tmp_path / "ledger.releases").exists()
    curator.private_mean(params, state, 0)
    assert is_refused()  # to follow what is charged and on record
    tried = []
    monkeypatch.setattr(sampler, "SEEN_ON", ())
    monkeypatch.setattr(jax, "device_put", lambda key, device: tried.append(device) or key)
    sampler.check_bits.__wrapped__(device)
    assert tried == [device]


@lowers_for_gpus
def test_the_kernel_lowers_for_a_gpu():
    """This is as far as a machine without one can tell."""
    asked = jax.ShapeDtypeStruct((8,), jnp.uint32), jax.ShapeDtypeStruct((), jnp.uint32)
    traced = jax.jit(
        lambda key, stream: sampler.white(sampler.spread(2.0**57), key, stream, 2_400_000)
    ).trace(*asked)
    assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "triton" not in traced.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize("deviation", [3000.0, 1.3 * 2**46])
def test_moments_and_tails_are_those_of_the_normal(deviation):
    values = drawn(deviation) / sampler.spread(deviation).deviation
    assert abs(values.mean()) < 5 / math.sqrt(len(values))
    assert values.var() == pytest.approx(1, abs=5 * math.sqrt(2 / len(values)))
    assert abs(stats.kurtosis(values)) < 5 * math.sqrt(24 / len(values))
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert stats.kstest(values * 1.02, "norm").pvalue < 1e-3  # the twin
    for tail in (2.0, 3.0, 3.7):
        expected = 2 * stats.norm.sf(tail) * len(values)
        assert abs(np.sum(np.abs(values) > tail) - expected) < 5 * math.sqrt(expected)


def test_every_last_digit_is_as_likely_as_any_other():
    values = drawn(2.0**46)
    for modulus in (2, 3, 7, 256, 2047):
        assert stats.chisquare(np.bincount(values % modulus, minlength=modulus)).pvalue > 1e-4
    # The twin: normals of float32, rounded, have hardly any.
    floats = np.random.default_rng(0).normal(size=len(values)).astype(np.float32) * np.float32(
        2.0**46
    )
    assert len(np.unique(np.rint(floats.astype(np.float64)).astype(np.int64) % 256)) < 10


def test_no_two_coordinates_draws_or_streams_share_bits():
    first, second = drawn(2.0**46, 4001), drawn(2.0**46, 4001, stream=1)
    assert len(np.unique(np.concatenate([first, second]))) == 8002
    for left, right in ((first[:-1], first[1:]), (first, second), (first[:1000], first[1001:2001])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 5 / math.sqrt(len(left))


CASES = {
    "independent": lambda: gaussian(1.0),
    "tree": lambda: tree(1.0, 2000, honaker=False),
    "honaker": lambda: tree(1.0, 2000),
    "honaker, restarted": lambda: tree(1.0, 128, 800, 1072),
    "banded": lambda: banded_toeplitz(1.0, Bands(2000, [1.0, 0.5, 0.375, 0.3125])),
    "blt": lambda: blt(1.0, Buffers(2000, (0.999, 0.97, 0.4), (0.1, 0.2, 0.2))),
}


@pytest.mark.parametrize("estimator", [fixed_denominator(1000.0), clipped_denominator(1000.0)])
@pytest.mark.parametrize("kind", CASES)
def test_a_run_of_2000_rows_of_a_gboard_model_is_within_2_to_the_minus_60_of_the_ideal(
    kind, estimator
):
    made = mechanism(flat_clip(0.5), estimator, CASES[kind](), MOST_REPORTS)
    assert 0 < made.distance(2_400_000, 2000) < 2.0**-60
    assert made.distance(2_400_000, 2000) > 900 * made.distance(2400, 2000)


def test_noise_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="standard deviation"):
        sampler.spread(100.0)
    made = mechanism(
        flat_clip(1.0), fixed_denominator(10.0), blt(1.0, Buffers(2000, (1 - 2.0**-20,), (0.99,)))
    )
    with pytest.raises(ValueError, match="rounds too coarsely"):
        made.init({"w": jnp.zeros(2_400_000)})
