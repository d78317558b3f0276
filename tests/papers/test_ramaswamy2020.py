"""The privacy figures of Ramaswamy et al. 2020: Table 5 as printed, what it should have been, and
the group of 16 users.
"""

import math

import pytest
from dp_accounting import GaussianDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent

from lib.paper_values import RAMASWAMY_CLIP_NORM, RAMASWAMY_SIGMA, RAMASWAMY_TABLE_5
from lib.paper_values import RAMASWAMY_COHORT as COHORT
from lib.paper_values import RAMASWAMY_ROUNDS as ROUNDS
from taciturn.privacy.accounting.accountant import classic_epsilon, epsilon
from taciturn.privacy.accounting.group_privacy import chained_share
from taciturn.privacy.participation import FixedSize

NOISE_MULTIPLIER = RAMASWAMY_SIGMA * COHORT / RAMASWAMY_CLIP_NORM  # σ m / S
# Population → a lower bound on the true ε, at sensitivity 2S (target sends +S·v, all others −S·v).
AT_LEAST = {2_000_000: 47.5, 3_000_000: 35.5, 4_000_000: 29.4, 5_000_000: 25.6, 10_000_000: 17.7}


@pytest.mark.parametrize("users", RAMASWAMY_TABLE_5)
def test_table_5_as_printed_uses_sensitivity_s(users):
    as_printed = SelfComposedDpEvent(
        SampledWithoutReplacementDpEvent(users, COHORT, GaussianDpEvent(NOISE_MULTIPLIER)), ROUNDS
    )
    assert classic_epsilon(as_printed, users**-1.1, range(2, 64)) == pytest.approx(
        RAMASWAMY_TABLE_5[users], abs=0.0101
    )  # the last printed digit, or one unit of it


@pytest.mark.parametrize("users", RAMASWAMY_TABLE_5)
def test_the_ledger_charges_fixed_size_rounds_for_2s(users):
    charged = SelfComposedDpEvent(FixedSize(COHORT, users).event(NOISE_MULTIPLIER), ROUNDS)
    assert epsilon(charged, users**-1.1) >= AT_LEAST[users] > RAMASWAMY_TABLE_5[users]


def test_a_group_of_16_users_has_the_guarantee_that_the_paper_states():
    """(16, 0.53), from (1, 10⁻⁸) for one: k·e^((k−1)ε)·δ. The sum that it bounds is ten times
    smaller.
    """
    printed = 16 * math.exp(15) * 1e-8
    assert math.ceil(printed * 100) / 100 == 0.53
    assert 1e-8 / chained_share(1.0, 16) == pytest.approx(0.0517, abs=1e-4)
