"""The privacy figures of Ramaswamy et al. 2020: Table 5 as printed, what it should have been, and the group of 16 users."""

import math

import pytest
from dp_accounting import GaussianDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent

from taciturn.privacy.accounting import classic_epsilon, epsilon
from taciturn.privacy.groups import chained_share
from taciturn.privacy.participation import FixedSize

COHORT, ROUNDS = 20_000, 2_000
NOISE_MULTIPLIER = 3.2e-5 * COHORT / 0.8  # σ m / S
# Population → ε as printed, and a lower bound on the truth at sensitivity 2S (target sends +S·v, all others −S·v).
TABLE_5 = {2_000_000: (9.86, 46.7), 3_000_000: (6.73, 34.7), 4_000_000: (5.36, 28.8), 5_000_000: (4.54, 25.1), 10_000_000: (3.27, 17.4)}


@pytest.mark.parametrize("users", TABLE_5)
def test_table_5_as_printed_uses_sensitivity_s(users):
    as_printed = SelfComposedDpEvent(SampledWithoutReplacementDpEvent(users, COHORT, GaussianDpEvent(NOISE_MULTIPLIER)), ROUNDS)
    assert classic_epsilon(as_printed, users**-1.1, range(2, 64)) == pytest.approx(
        TABLE_5[users][0], abs=0.0101
    )  # the last printed digit, or one unit of it


@pytest.mark.parametrize("users", TABLE_5)
def test_the_ledger_charges_fixed_size_rounds_for_2s(users):
    charged = SelfComposedDpEvent(FixedSize(COHORT, users).event(NOISE_MULTIPLIER), ROUNDS)
    printed, truth_at_least = TABLE_5[users]
    assert epsilon(charged, users**-1.1) >= truth_at_least > printed


def test_a_group_of_16_users_has_the_guarantee_that_the_paper_states():
    """(16, 0.53), from (1, 10⁻⁸) for one: k·e^((k−1)ε)·δ. The sum that it bounds is ten times smaller."""
    printed = 16 * math.exp(15) * 1e-8
    assert math.ceil(printed * 100) / 100 == 0.53
    assert 1e-8 / chained_share(1.0, 16) == pytest.approx(0.0517, abs=1e-4)
