"""The noise of every mechanism has the covariance over rounds that its cost assumes; a wrong one is
noticed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import block_diag

from harness import mostly_slow, nobody, noise_key
from taciturn.privacy.bounding.clipping import REACH, flat_clip
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.noise import correlated, int64, sampler
from taciturn.privacy.noise.correlated import Bands, Buffers, banded_toeplitz, blt, tree
from taciturn.privacy.noise.mechanism import choose_grid, mechanism
from taciturn.privacy.noise.sensitivity import tree_weights
from taciturn.privacy.noise.white import gaussian

ROUNDS, COORDINATES = 21, 10_000
SEGMENTS = 5, 6, 10  # trees of 5 and 6 rows have to be completed
MECHANISMS = {
    "independent": lambda: gaussian(1.0),
    "tree": lambda: tree(1.0, ROUNDS, honaker=False),
    "honaker": lambda: tree(1.0, ROUNDS),
    "banded": lambda: banded_toeplitz(1.0, Bands(ROUNDS, [1.0, 0.5, 0.375, 0.3125])),
    "blt": lambda: blt(1.0, Buffers(ROUNDS, (0.97, 0.4), (0.3, 0.2))),
    "tree, restarted": lambda: tree(1.0, *SEGMENTS, honaker=False),
    "honaker, restarted": lambda: tree(1.0, *SEGMENTS),
    "banded, restarted": lambda: banded_toeplitz(
        1.0, Bands(5, [1.0, 0.5]), Bands(6, [1.0, 0.5, 0.375, 0.3125]), Bands(10, [1.0, 0.4])
    ),
    "blt, restarted": lambda: blt(
        1.0,
        Buffers(5, (0.9,), (0.4,)),
        Buffers(6, (0.97, 0.4), (0.3, 0.2)),
        Buffers(10, (0.8,), (0.5,)),
    ),
}
QUICK = mostly_slow(MECHANISMS, *(set(MECHANISMS) - {"tree, restarted"}))  # Honaker's is one too


@functools.cache
def given_out(name):
    """Draw, once for all tests, what a run would add to its estimates: [rounds, coordinates], in
    standard deviations of white noise.
    """
    noise, size, spread = MECHANISMS[name](), COORDINATES, sampler.spread(2.0**40)

    @jax.jit
    def step(state, key):
        return noise.next(state, lambda stream: sampler.white(spread, key, stream, size))

    state, rows = noise.init(size), []
    for round in range(ROUNDS):
        row, state = step(state, noise_key(round))
        rows.append(int64.to_numpy(row) / spread.deviation)
    rows = np.array(rows)
    rows.flags.writeable = False
    return rows


COLUMNS = {
    "independent": [([1.0], ROUNDS)],
    "banded": [([1.0, 0.5, 0.375, 0.3125], ROUNDS)],
    "blt": [([1.0] + [0.3 * 0.97**n + 0.2 * 0.4**n for n in range(ROUNDS)], ROUNDS)],
    "banded, restarted": [([1.0, 0.5], 5), ([1.0, 0.5, 0.375, 0.3125], 6), ([1.0, 0.4], 10)],
    "blt, restarted": [
        ([1.0] + [0.4 * 0.9**n for n in range(5)], 5),
        ([1.0] + [0.3 * 0.97**n + 0.2 * 0.4**n for n in range(6)], 6),
        ([1.0] + [0.5 * 0.8**n for n in range(10)], 10),
    ],
}


def expected_covariance(name):
    """Compute the covariance of the rows C⁻¹ z from the definition of each mechanism, without its
    code.
    """
    blocks = []
    if name in COLUMNS:
        for column, size in COLUMNS[name]:
            matrix = [
                [column[i - j] if 0 <= i - j < len(column) else 0.0 for j in range(size)]
                for i in range(size)
            ]
            inverse = np.linalg.inv(np.array(matrix))
            blocks.append(inverse @ inverse.T)
    else:
        sizes = SEGMENTS if "restarted" in name else (ROUNDS,)
        for position, size in enumerate(sizes):
            sums = prefix_covariance(size, "honaker" in name, completed=position < len(sizes) - 1)
            blocks.append(np.diff(np.diff(sums, axis=0, prepend=0), axis=1, prepend=0))
    return block_diag(*blocks)  # rows before a restart are independent of those after it


def prefix_covariance(rounds, honaker, completed):
    """Compute the covariance of the noise on the sums of the first 1, 2, … rounds: each is a
    combination of nodes, written as vectors. In a tree that is completed, the last sum is the
    root's; there are no nodes over only empty rows.
    """
    whole = 2 ** (rounds - 1).bit_length()
    nodes, size = {}, 1
    while size <= whole:
        for start in range(0, rounds, size):
            if completed or start + size <= rounds:
                nodes[start, size] = len(nodes)
        size *= 2

    def estimate(start, size):
        if start >= rounds:
            return np.zeros(len(nodes))
        own = np.eye(len(nodes))[nodes[start, size]]
        if size == 1 or not honaker:
            return own
        below = estimate(start, size // 2) + estimate(start + size // 2, size // 2)
        variances = [
            np.sum(own**2),
            np.sum(below**2),
        ]  # independent guesses: weigh them by their precision
        weight = (1 / variances[0]) / (1 / variances[0] + 1 / variances[1])
        return weight * own + (1 - weight) * below

    sums = []
    for done in range(1, rounds + 1):
        start, total = 0, np.zeros(len(nodes))
        for level in reversed(range(done.bit_length())):
            if done >> level & 1:
                total += estimate(start, 2**level)
                start += 2**level
        sums.append(estimate(0, whole) if completed and done == rounds else total)
    return np.array(sums) @ np.array(sums).T


def furthest(rows, covariance):
    """Return the largest deviation of the measured covariance, in standard errors."""
    measured = rows @ rows.T / rows.shape[1]
    diagonal = np.diag(covariance)
    return np.max(
        np.abs(measured - covariance)
        / np.sqrt((np.outer(diagonal, diagonal) + covariance**2) / rows.shape[1])
    )


@pytest.mark.parametrize("name", QUICK)
def test_noise_has_the_covariance_that_its_cost_assumes(name):
    rows = given_out(name)
    assert furthest(rows, expected_covariance(name)) < 5.5
    # The twins that must fail: noise of another strength, and noise of another mechanism.
    assert furthest(1.5 * rows, expected_covariance(name)) > 20
    assert furthest(rows / 1.5, expected_covariance(name)) > 20
    for other in MECHANISMS:
        if other != name:
            assert furthest(rows, expected_covariance(other)) > 20


def test_every_segment_of_a_tree_is_the_tree_of_its_own_length():
    """Those of a power of two rows and the last are one program; one that has to be completed lies
    between them.
    """

    def stepping(noise):
        def draw(row, stream):
            return int64.from_int32(
                (
                    (row * 97 + stream * 1009 + jnp.arange(3, dtype=jnp.int32) * 31 + 1)
                    * jnp.int32(0x2C1B3C6D)
                )
                >> 2
            )

        return noise, jax.jit(lambda state, row: noise.next(state, functools.partial(draw, row)))

    def rows(noise, step, first, count):
        state, found = noise.init(3), []
        for row in range(first, first + count):
            residual, state = step(state, jnp.int32(row))
            found.append(int64.to_numpy(residual))
        return np.array(found)

    joined, plain, completed = (
        stepping(tree(1.0, *lengths, honaker=False)) for lengths in ((4, 5, 8, 3), (8,), (5, 1))
    )
    found = np.split(rows(*joined, 0, 20), [4, 9, 17])
    expected = rows(*plain, 0, 4), rows(*completed, 4, 5), rows(*plain, 9, 8), rows(*plain, 17, 3)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    # The twins that must fail: each of the two long segments continues as the other.
    assert not np.array_equal(found[1], rows(*plain, 4, 5))
    assert not np.array_equal(found[2][:6], rows(*completed, 9, 6))


@pytest.mark.parametrize("name", QUICK)
def test_the_error_that_planning_promises_is_that_of_the_noise(name):
    measured = np.cumsum(given_out(name), axis=0).var(axis=1)
    assert measured == pytest.approx(MECHANISMS[name]().strategy.prefix_variance(ROUNDS), rel=0.06)


def test_noise_cancels_in_sums_where_it_should():
    ends = {
        name: np.cumsum(given_out(name), axis=0)[-1].std()
        for name in ("independent", "tree", "honaker", "blt")
    }
    assert ends["independent"] > 1.5 * ends["tree"] > 1.5 * ends["honaker"] * 0.9
    assert ends["independent"] > 2 * ends["blt"]


@pytest.mark.parametrize("name", QUICK)
def test_coordinates_are_independent(name):
    for one in given_out(name)[:8]:
        assert abs(np.corrcoef(*np.split(one, 2))[0, 1]) < 0.07
        assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.07


def test_residual_noise_and_momentum_are_the_cumulative_form_of_the_paper():
    """Xu's Alg. 1 steps from θ⁰ by a momentum over noised *sums*; residuals through optax's
    momentum give the same.
    """
    rate, momentum = 0.5, 0.9
    residuals = given_out("honaker")[:, :50]
    updates = np.random.default_rng(0).normal(size=(ROUNDS, 50))
    optimizer = optax.sgd(rate, momentum=momentum)
    params, state = jnp.zeros(50), optimizer.init(jnp.zeros(50))
    for row in updates + residuals:
        step, state = optimizer.update(-jnp.asarray(row, jnp.float32), state, params)
        params = params + step
    sums, buffer = np.cumsum(updates, axis=0) + np.cumsum(residuals, axis=0), np.zeros(50)
    for row in sums:  # Δ̄ᵗ = β Δ̄ᵗ⁻¹ + PrivateSum, θᵗ⁺¹ = θ⁰ + η Δ̄ᵗ
        buffer = momentum * buffer + row
    assert np.asarray(params) == pytest.approx(rate * buffer, abs=2e-4)


def test_honakers_weights_are_those_of_inverse_variances():
    assert tree_weights(4) == pytest.approx([1, 2 / 3, 4 / 7, 8 / 15])


def test_a_blt_streams_as_jax_privacy_does():
    from jax_privacy.matrix_factorization import buffered_toeplitz

    theirs = buffered_toeplitz.BufferedToeplitz.build(
        buf_decay=np.array([0.97, 0.4]), output_scale=np.array([0.3, 0.2]), dtype=jnp.float32
    )
    inverse = theirs.inverse_as_streaming_matrix()
    white = given_out("independent")[:, :7]
    state, rows = inverse.init_multiply(jnp.zeros(7)), []
    for row in white:
        value, state = inverse.multiply_next(jnp.asarray(row, jnp.float32), state)
        rows.append(np.asarray(value))
    assert np.array(rows) == pytest.approx(given_out("blt")[:, :7], abs=1e-5)


FOUR = {"x": jnp.zeros(4)}


@pytest.mark.parametrize("noise", [blt(1.5, Buffers(9, (0.9,), (0.4,))), correlated.tree(1.5, 9)])
def test_correlated_noise_is_made_of_white_noise_of_z_clip_norms(noise):
    """The strategy's sensitivity does not scale the noise, as the cost already includes it."""
    made = mechanism(flat_clip(3.0), fixed_denominator(20.0), noise, most_reports=100)
    bits, spread = choose_grid(
        noise, deviation=1.5 * REACH, reach=REACH, largest=REACH * 100, size=4
    )
    assert spread.deviation == pytest.approx(1.5 * REACH * 2**bits, rel=2e-6)
    state, unit_state = made.init(FOUR), noise.init(4)
    for row in range(3):
        release, state = made.release(state, nobody(made, FOUR), noise_key(row))
        unit, unit_state = noise.next(
            unit_state, lambda stream, row=row: sampler.white(spread, noise_key(row), stream, 4)
        )
        expected = 1.5 * 3.0 / 20.0 * int64.to_numpy(unit) / spread.deviation
        np.testing.assert_allclose(release.estimate["x"], expected, rtol=1e-5, atol=1e-8)


def test_a_blt_of_three_buffers_keeps_six_times_the_model():
    private = mechanism(
        flat_clip(1.0),
        fixed_denominator(10.0),
        blt(1.0, Buffers(100, (0.99, 0.9, 0.4), (0.1, 0.1, 0.2))),
    )
    kept = sum(
        leaf.nbytes
        for leaf in jax.tree.leaves(
            private.init({"a": jnp.zeros((40, 50)), "b": jnp.zeros(1000)}).noise
        )
    )
    assert kept <= 6 * 4 * 3000
