"""The claim describes exactly how users are selected."""

import math

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from taciturn import randomness
from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.events import event_from_json, event_to_json, repeat
from taciturn.privacy.noise.chacha20 import Coins
from taciturn.privacy.noise.correlated import Bands, Buffers, banded_toeplitz, blt, tree
from taciturn.privacy.participation import (
    CyclicPoisson,
    FixedSize,
    PoissonSampling,
    WrongNumberOfUsers,
)

USERS = np.arange(1000)


def coins(round: int) -> Coins:
    return Coins(randomness.derive(randomness.root_from_seed(3), "cohort", round))


def test_poisson_selects_each_user_independently_with_probability_q():
    cohorts = [PoissonSampling(0.1).select(USERS, 0, coins(round)) for round in range(300)]
    sizes = np.array([len(cohort) for cohort in cohorts])
    assert sizes.mean() == pytest.approx(100, abs=2)
    assert sizes.var() == pytest.approx(90, rel=0.35)  # binomial; a fixed size would have none
    seen = np.bincount(np.concatenate(cohorts), minlength=1000)
    assert seen.var() == pytest.approx(300 * 0.1 * 0.9, rel=0.2)


def test_a_fixed_cohort_has_its_size_and_no_user_twice():
    cohort = FixedSize(100, 1000).select(USERS, 0, coins(0))
    assert len(cohort) == len(set(cohort)) == 100


def test_a_shuffle_is_not_claimed_to_be_poisson():
    assert PoissonSampling(0.1).event(1.0) == PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
    assert FixedSize(100, 1000).event(1.0) == SampledWithoutReplacementDpEvent(
        1000, 100, GaussianDpEvent(0.5)
    )


def test_a_cohort_of_all_users_claims_nothing_for_sampling():
    assert PoissonSampling(1.0).event(1.0) == GaussianDpEvent(1.0)
    assert FixedSize(10, 10).event(1.0) == GaussianDpEvent(0.5)


def test_fewer_users_than_the_cost_was_computed_for_are_refused():
    with pytest.raises(WrongNumberOfUsers, match="understated"):
        FixedSize(10, 2000).select(USERS, 0, coins(0))


@pytest.mark.parametrize("wrong", [0.0, -0.1, 1.1, float("nan")])
def test_a_probability_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match="probability"):
        PoissonSampling(wrong)


def test_rounds_and_attempts_draw_different_cohorts_and_each_repeats():
    root = randomness.root_from_seed(3)
    drawn = [
        PoissonSampling(0.5).select(USERS, 0, Coins(randomness.derive(root, "cohort", *place)))
        for place in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert np.array_equal(drawn[0], drawn[3])
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_entropy_roots_differ_and_have_256_bits():
    roots = {randomness.root_from_entropy() for _ in range(50)}
    assert len(roots) == 50
    assert all(len(root) == 32 for root in roots)


def test_users_take_turns_and_the_curator_draws_who_takes_theirs():
    claim = CyclicPoisson(0.25, cycle=10, rounds=300)
    cohorts = [claim.select(USERS, row, coins(row)) for row in range(300)]
    assert all(np.all(cohort % 10 == row % 10) for row, cohort in enumerate(cohorts))
    times = np.bincount(np.concatenate(cohorts), minlength=1000)
    assert times.mean() == pytest.approx(30 * 0.25, rel=0.05)
    assert times.var() == pytest.approx(30 * 0.25 * 0.75, rel=0.2)


def test_a_turn_costs_a_sampled_gaussian_of_one_column_of_the_strategy():
    strategy = banded_toeplitz(2.0, Bands(300, [1.0, 0.5, 0.375])).strategy
    claim = CyclicPoisson(0.25, cycle=10, rounds=290)
    turn = GaussianDpEvent(2.0 / math.sqrt(1 + 0.5**2 + 0.375**2))
    cost = repeat(claim.event(2.0, strategy), 290)
    assert cost.count == 29
    assert cost.event.sampling_probability == 0.25
    assert cost.event.event.noise_multiplier == pytest.approx(turn.noise_multiplier, rel=1e-8)
    # Less than without sampling, more than if each turn were a round of Poisson sampling among all
    # users.
    everyone = SelfComposedDpEvent(turn, 29)
    lucky = SelfComposedDpEvent(PoissonSampledDpEvent(0.025, turn), 29)
    assert epsilon(lucky, 1e-5) < epsilon(cost, 1e-5) < epsilon(everyone, 1e-5)
    assert event_from_json(event_to_json(claim.event(2.0, strategy))) == claim.event(2.0, strategy)


def test_jax_privacy_agrees_about_turns():
    from jax_privacy.experimental.accounting import amplified_bandmf_event

    strategy = banded_toeplitz(1.5, Bands(62, [1.0, 0.5, 0.375, 0.3125])).strategy
    ours = repeat(CyclicPoisson(0.2, cycle=4, rounds=54).event(1.5, strategy), 62)
    column = math.sqrt(1 + 0.5**2 + 0.375**2 + 0.3125**2)  # its strategies have columns of norm 1
    theirs = amplified_bandmf_event(1.5 / column, iterations=62, num_bands=4, sampling_prob=0.2)
    assert ours.count == theirs.count == 16
    assert ours.event.sampling_probability == theirs.event.sampling_probability
    assert ours.event.event.noise_multiplier == pytest.approx(theirs.event.event.noise_multiplier)


@pytest.mark.parametrize(
    "noise",
    [
        tree(1.0, 300),
        blt(1.0, Buffers(300, (0.9,), (0.4,))),
        banded_toeplitz(1.0, Bands(300, [1.0, 0.5, 0.375, 0.3125])),
    ],
)
def test_noise_that_correlates_a_users_turns_is_refused(noise):
    with pytest.raises(ValueError, match="sampling proves nothing"):
        CyclicPoisson(0.1, cycle=3, rounds=200).event(1.0, noise.strategy)


def test_turns_that_share_rows_of_noise_cost_more():
    """This is why it is refused: with more bands than rounds between two turns, a user who takes
    both moves some rows twice.
    """
    strategy = banded_toeplitz(1.0, Bands(40, [1.0, 0.5, 0.375, 0.3125])).strategy
    separate = 2 * strategy.sensitivity_squared(40, 0, 1)
    assert strategy.sensitivity_squared(40, 3, 2) == pytest.approx(
        separate
    )  # four rounds apart: as if separate
    assert strategy.sensitivity_squared(40, 2, 2) > 1.1 * separate


def test_a_cycle_that_cannot_fill_its_cohorts_is_refused():
    with pytest.raises(ValueError, match="fewer bands"):
        CyclicPoisson(1.5, cycle=4, rounds=10)
