"""Every privacy figure that McMahan et al. print (ICLR 2018 and the version of 2017), from our
accountants.
"""

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from harness import mostly_slow
from lib.paper_values import MCMAHAN_TABLE_1, MCMAHAN_TABLE_2, MCMAHAN_TEXT
from taciturn.privacy.accounting.accountant import classic_epsilon, epsilon
from taciturn.privacy.participation import PoissonSampling


def training(
    users: float, cohort: float, rounds: int, noise_multiplier: float = 1.0
) -> SelfComposedDpEvent:
    return SelfComposedDpEvent(PoissonSampling(cohort / users).event(noise_multiplier), rounds)


@pytest.mark.parametrize("setting", MCMAHAN_TABLE_1)
def test_table_1_is_reproduced_by_the_moments_accountant(setting):
    users, cohort, noise_multiplier = setting
    for power, printed in enumerate(MCMAHAN_TABLE_1[setting]):
        ours = epsilon(training(users, cohort, 10**power, noise_multiplier), users**-1.1, "moments")
        assert ours == pytest.approx(
            printed, abs=0.0101
        )  # the last printed digit, or one unit of it


PRINTED = {
    (users, cohort, 5000, 1e-9): found
    for (_, _, users, cohort), (found, _) in MCMAHAN_TABLE_2.items()
} | MCMAHAN_TEXT
# (users, cohort, rounds, δ), then moments, RDP and PLD.
FIGURES = [
    (763_430, 5000, 5000, 1e-9, 4.634, 4.183, 3.899),
    (763_430, 1667, 5000, 1e-9, 2.314, 1.979, 1.262),
    (763_430, 1250, 5000, 1e-9, 2.038, 1.725, 0.950),
    (1e8, 5000, 5000, 1e-9, 1.152, 0.934, 0.028),
    (1e8, 1667, 5000, 1e-9, 0.991, 0.797, 0.012),
    (1e8, 1250, 5000, 1e-9, 0.987, 0.793, 0.010),
    (763_430, 1250, 3000, 1e-9, 1.976, 1.663, 0.815),
    (763_430, 1250, 3000, 1e-6, 1.348, 1.035, 0.517),
    (763_430, 5000, 3000, 1e-9, 3.816, 3.421, 3.071),
    (763_430, 5000, 20000, 1e-9, 8.921, 8.353, 7.939),
    (763_430, 5000, 4980, 1e-9, 4.626, 4.176, 3.891),
    (1e8, 5000, 4980, 1e-9, 1.152, 0.934, 0.028),
]


@pytest.mark.parametrize(
    "row", mostly_slow(FIGURES, FIGURES[0], FIGURES[3], FIGURES[7], FIGURES[9])
)
def test_table_2_and_the_text_are_reproduced_and_the_default_accountant_is_tighter(row):
    users, cohort, rounds, delta, moments, rdp, pld = row
    printed = PRINTED[users, cohort, rounds, delta]
    event = training(users, cohort, rounds)
    assert epsilon(event, delta, "moments") == pytest.approx(moments, abs=6e-4)
    assert epsilon(event, delta, "rdp") == pytest.approx(rdp, abs=6e-4)
    assert epsilon(event, delta, "pld") == pytest.approx(pld, abs=6e-4)
    digits = len(str(printed).split(".")[1])
    assert moments == pytest.approx(printed, abs=10**-digits)
    assert pld < rdp < moments


def test_counting_fewer_rounds_than_were_released_would_show():
    """The twin that must fail: 4,000 rounds do not cost what Table 2 prints for 5,000."""
    assert epsilon(training(763_430, 5000, 4000), 1e-9, "moments") != pytest.approx(4.634, abs=0.1)


def test_noise_too_small_for_loss_distributions_is_accounted_by_rdp():
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.1)), 10)
    assert epsilon(event, 1e-6, "pld") == epsilon(event, 1e-6, "rdp") > 100


def test_a_delta_lost_in_the_tail_of_the_distribution_is_accounted_by_rdp():
    event = SelfComposedDpEvent(PoissonSampledDpEvent(1e-3, GaussianDpEvent(1.0)), 1000)
    assert epsilon(event, 1e-20) == epsilon(event, 1e-20, "rdp") < 4


def test_the_papers_delta_would_fail_somebody_among_a_million_one_time_in_four():
    """So it is not the default, and those who want it name it (F10)."""
    assert pytest.approx(0.25, abs=0.01) == 10**6 * (10**6) ** -1.1
    assert classic_epsilon(training(1e5, 1e2, 1), 100_000**-1.1) == pytest.approx(0.97, abs=0.01)
