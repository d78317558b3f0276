"""Sensitivities of correlated noise agree with brute force, with jax-privacy, and with what a user
can actually do.
"""

import numpy as np
import pytest
import scipy.linalg
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.privacy.accounting.events import (
    CorrelatedDpEvent,
    event_from_json,
    event_to_json,
    repeat,
)
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.noise.correlated import Bands, Buffers, banded_toeplitz, blt, tree
from taciturn.privacy.noise.sensitivity import (
    blt_coefficients,
    independent,
    most_participations,
    toeplitz,
    toeplitz_inverse,
    tree_sensitivity_squared,
    tree_weights,
)
from taciturn.privacy.noise.sensitivity import tree as tree_strategy
from taciturn.privacy.noise.white import gaussian
from taciturn.privacy.participation import FixedSize, MinSeparation, PoissonSampling

DECAY, SCALE = (0.97, 0.4), (0.3, 0.2)


def patterns(rows, min_separation, most):
    """List all ways to take part."""

    def extended(pattern):
        yield pattern
        if len(pattern) < most:
            for row in range(pattern[-1] + min_separation + 1 if pattern else 0, rows):
                yield from extended([*pattern, row])

    return extended([])


def tree_matrix(rows):
    """Build a row for every complete node."""
    nodes, size = [], 1
    while size <= rows:
        for start in range(0, rows - size + 1, size):
            nodes.append([start <= row < start + size for row in range(rows)])
        size *= 2
    return np.array(nodes, float)


def toeplitz_matrix(coefficients, rows):
    return np.array(
        [
            [coefficients[i - j] if 0 <= i - j < len(coefficients) else 0.0 for j in range(rows)]
            for i in range(rows)
        ]
    )


def largest(matrix, min_separation, most):
    return max(
        np.sum(matrix[:, pattern].sum(axis=1) ** 2)
        for pattern in patterns(matrix.shape[1], min_separation, most)
    )


@pytest.mark.parametrize("rows", range(1, 14))
def test_the_sensitivity_of_a_tree_is_that_of_the_worst_pattern(rows):
    for min_separation in range(5):
        for most in range(1, 5):
            assert tree_sensitivity_squared(rows, min_separation, most) == largest(
                tree_matrix(rows), min_separation, most
            )


@pytest.mark.parametrize("rows", [1, 2, 7, 12])
@pytest.mark.parametrize(
    "coefficients",
    [blt_coefficients(DECAY, SCALE, 20), np.array([1.0, 0.5, 0.375] + [0.0] * 17), np.eye(20)[0]],
)
def test_the_sensitivity_of_a_toeplitz_strategy_is_that_of_the_worst_pattern(rows, coefficients):
    strategy = toeplitz("any", coefficients)
    for min_separation in range(4):
        for most in range(1, 5):
            worst = largest(toeplitz_matrix(coefficients, rows), min_separation, most)
            assert strategy.sensitivity_squared(rows, min_separation, most) == pytest.approx(
                worst, rel=1e-6
            )
            assert strategy.sensitivity_squared(rows, min_separation, most) >= worst


def test_jax_privacy_agrees():
    import jax
    from jax_privacy.matrix_factorization import toeplitz as theirs

    coefficients = blt_coefficients(DECAY, SCALE, 300)
    with jax.enable_x64():
        expected = theirs.minsep_sensitivity_squared(
            coefficients, min_sep=40, max_participations=6, n=300
        )
    assert toeplitz("BLT", coefficients).sensitivity_squared(300, 39, 6) == pytest.approx(
        float(expected), rel=1e-6
    )


def test_separation_counts_the_rounds_between():
    """Two participations with MinS rounds between them are MinS + 1 apart; off by one would charge
    too little.
    """
    coefficients = blt_coefficients(DECAY, SCALE, 50)
    ours = toeplitz("BLT", coefficients).sensitivity_squared(50, 9, 5)
    assert ours == pytest.approx(largest_at(coefficients, 10), rel=1e-6)
    assert ours > largest_at(coefficients, 11)  # the twin that would understate


def largest_at(coefficients, distance):
    return np.sum(toeplitz_matrix(coefficients, 50)[:, range(0, 50, distance)[:5]].sum(axis=1) ** 2)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_no_user_moves_the_noised_rows_further_than_is_charged(rows, min_separation, most, seed):
    """Try reports in any direction, on any allowed rounds, for every mechanism."""
    rng = np.random.default_rng(seed)
    rounds, pattern = 0, []
    while rounds < rows and len(pattern) < most:
        pattern.append(rounds)
        rounds += min_separation + 1 + int(rng.integers(0, 3))
    reports = np.zeros((rows, 3))
    directions = rng.normal(size=(len(pattern), 3))
    reports[pattern] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    coefficients = blt_coefficients(DECAY, SCALE, rows)
    for matrix, strategy in (
        (np.eye(rows), independent(rows)),
        (tree_matrix(rows), tree(1.0, rows).strategy),
        (toeplitz_matrix(coefficients, rows), toeplitz("BLT", coefficients)),
    ):
        assert np.sum((matrix @ reports) ** 2) <= strategy.sensitivity_squared(
            rows, min_separation, most
        ) * (1 + 1e-9)


def test_the_inverse_of_a_toeplitz_strategy():
    coefficients = blt_coefficients(DECAY, SCALE, 30)
    assert np.linalg.inv(toeplitz_matrix(coefficients, 30))[:, 0] == pytest.approx(
        toeplitz_inverse(coefficients, 30), abs=1e-12
    )


def test_coefficients_for_which_the_formula_does_not_hold_are_refused():
    for coefficients in ([], [0.5, 0.2], [1.0, 0.2, 0.3], [1.0, -0.1], [1.0, np.nan]):
        with pytest.raises(ValueError, match="start with 1, fall"):
            toeplitz("bad", np.array(coefficients))
    for decay, scale in (
        ((1.0,), (0.1,)),
        ((0.5,), (-0.1,)),
        ((0.5, 0.6), (0.1,)),
        ((-0.5,), (0.1,)),
    ):
        with pytest.raises(ValueError, match="BLT"):
            blt(1.0, Buffers(10, decay, scale))
    with pytest.raises(ValueError, match="fall"):
        blt(1.0, Buffers(10, (0.99,), (1.5,)))  # more noise taken back than was given


def test_the_cost_of_a_run_is_one_gaussian_and_only_rises():
    claim = MinSeparation(size=100, min_separation=58, max_participations=10, rounds=590)
    event = claim.event(2.0, tree(2.0, 610).strategy)
    assert rho(repeat(event, 590)) == pytest.approx(tree_sensitivity_squared(590, 58, 10) / 8)
    assert (
        rho(repeat(event, 1))
        <= rho(repeat(event, 100))
        <= rho(repeat(event, 590))
        <= rho(repeat(event, 605))
    )
    assert rho(repeat(event, 100)) >= tree_sensitivity_squared(100, 58, 10) / 8
    with pytest.raises(ValueError, match="noise for"):
        repeat(event, 10**4)
    assert event_from_json(event_to_json(event)) == event


def test_one_convention_sigma_from_z_and_the_cost_from_the_sensitivity():
    """The pitfall: σ multiplied by the sensitivity and ρ divided by it as well."""
    claim, strategy = (
        MinSeparation(size=10, min_separation=3, max_participations=2, rounds=20),
        tree(3.0, 20).strategy,
    )
    assert rho(repeat(claim.event(3.0, strategy), 20)) == pytest.approx(
        strategy.sensitivity_squared(20, 3, 2) / (2 * 3.0**2)
    )


def test_correlated_noise_is_not_paired_with_sampling():
    for participation in (PoissonSampling(0.1), FixedSize(10, 100)):
        for noise in (
            tree(1.0, 20),
            blt(1.0, Buffers(20, DECAY, SCALE)),
            banded_toeplitz(1.0, Bands(20, [1.0, 0.5])),
        ):
            with pytest.raises(ValueError, match="min-separation"):
                participation.event(1.0, noise.strategy)
        participation.event(1.0, gaussian(1.0).strategy)


def test_impossible_events_are_refused():
    for costs in (((2, 1.0), (1, 0.5)), ((1, 1.0), (2, 2.0)), ((1, np.inf),), ((0, 1.0),), ()):
        with pytest.raises(ValueError, match="rise"):
            CorrelatedDpEvent(
                tuple((count, GaussianDpEvent(multiplier)) for count, multiplier in costs), ""
            )


def test_many_participations_are_bounded_quickly():
    for rows in (16, 40, 64):
        assert tree_sensitivity_squared(rows, 0, rows) == largest_full(rows)
    assert tree_sensitivity_squared(2048, 0, 2048) == largest_full(2048)
    exact, bound = tree_sensitivity_squared(200, 2, 64), tree_sensitivity_squared(200, 2, 67)
    assert bound >= exact


def largest_full(rows):
    """Compute it for a user in every round."""
    return sum((rows // 2**level) * 4**level for level in range(rows.bit_length()))


def test_participations_that_fit():
    assert most_participations(590, 58) == 10
    assert most_participations(591, 58) == 11
    assert most_participations(5, 100) == 1


def completed_tree_matrix(rows):
    """Build the nodes of a tree over the next power of two that has only its first rows."""
    whole = tree_matrix(2 ** (rows - 1).bit_length())[:, :rows]
    return whole[whole.any(axis=1)]


@pytest.mark.parametrize("lengths", [(5, 7), (3, 4, 6), (8, 5), (1, 11), (6, 1, 6)])
def test_with_restarts_the_worst_pattern_over_all_segments_is_charged(lengths):
    rows = sum(lengths)
    forests = [completed_tree_matrix(length) for length in lengths[:-1]] + [
        tree_matrix(lengths[-1])
    ]
    columns = [
        blt_coefficients((0.9 - 0.1 * n,), (0.4 + 0.1 * n,), length)
        for n, length in enumerate(lengths)
    ]
    blocks = [toeplitz_matrix(column, len(column)) for column in columns]
    for min_separation in (0, 1, 2, 4):
        for most in (1, 2, 3, rows):
            worst = largest(scipy.linalg.block_diag(*forests), min_separation, most)
            assert tree_strategy(*lengths, honaker=True).sensitivity_squared(
                rows, min_separation, most
            ) == pytest.approx(worst)
            worst = largest(scipy.linalg.block_diag(*blocks), min_separation, most)
            assert toeplitz("BLT", *columns).sensitivity_squared(
                rows, min_separation, most
            ) == pytest.approx(worst)
            # The twin that must fail: each segment separately, as if no user came back after a
            # restart.
            alone = [largest(one, min_separation, most) for one in blocks]
            assert most < rows or min_separation or max(alone) < 0.999 * worst


def test_a_run_that_ends_before_or_at_a_restart_costs_what_was_released():
    strategy = tree_strategy(5, 7, honaker=False)
    assert strategy.sensitivity_squared(4, 0, 4) == pytest.approx(largest(tree_matrix(4), 0, 4))
    assert strategy.sensitivity_squared(5, 0, 5) == pytest.approx(
        largest(completed_tree_matrix(5), 0, 5)
    )
    assert strategy.sensitivity_squared(5, 0, 5) > largest(tree_matrix(5), 0, 5)


def test_restarts_of_the_paper():
    """2,000 rounds, 300 apart, 6 participations, restarts 128 + 1024 i."""
    strategy = tree_strategy(128, 1024, 848, honaker=True)
    assert strategy.sensitivity_squared(2000, 299, 6) == 82
    error = np.sqrt(82 * np.mean(strategy.prefix_variance(2000)))
    assert error == pytest.approx(16.87, abs=0.01)
    # One round later, and not completed, a tree leaves the noise of two nodes in the sum for good,
    # as some implementations do.
    left_over = np.concatenate([np.zeros(129), np.full(1024, 1.0), np.full(847, 1.0)])
    parts = [
        tree_strategy(length, honaker=True).prefix_variance(length) for length in (129, 1024, 847)
    ]
    ends = np.repeat(
        [0.0, tree_weights(8)[-1], tree_weights(8)[-1] + tree_weights(11)[-1]], (129, 1024, 847)
    )
    assert np.sqrt(82 * np.mean(np.concatenate(parts) + ends + left_over)) == pytest.approx(
        19.01, abs=0.01
    )
    assert strategy.name.endswith("restarted after 128, 1152 rounds")


def test_a_segment_without_rows_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        tree_strategy(4, 0, 3, honaker=True)
