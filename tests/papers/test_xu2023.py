"""Every privacy figure printed by Xu et al. 2023."""

import math
import time

import pytest

from taciturn.privacy.accounting import epsilon, repeated, rho
from taciturn.privacy.participation import MinSeparation
from taciturn.privacy.sensitivity import tree, tree_sensitivity_squared

NOISE_MULTIPLIER = 7.0
# rounds, MinS, MaxP, squared sensitivity, ρ as printed (Tables 1 and 2)
MODELS = {
    "NWP de-DE": (930, 212, 4, 47, 0.48),
    "NWP en-GB": (980, 226, 4, 47, 0.48),
    "NWP fr-FR": (1280, 180, 5, 87, 0.89),
    "NWP it-IT": (1620, 303, 5, 70, 0.71),
    "NWP pt-PT": (530, 54, 8, 182, 1.86),
    "NWP es-ES": (1900, 526, 3, 34, 0.35),
    "NWP es-ES, secure aggregation": (1750, 349, 4, 51, 0.52),
    "NWP en-US": (2800, 371, 7, 128, 1.31),
    "NWP en-US, secure aggregation": (1360, 622, 2, 24, 0.25),
    "NWP pt-BR": (3600, 909, 3, 44, 0.45),
    "NWP en-IN": (1290, 170, 6, 112, 1.14),
    "NWP es-MX": (1980, 343, 5, 63, 0.64),
    "NWP es-AR": (640, 90, 5, 82, 0.84),
    "es-ES of 2022": (2000, 313, 6, 79, 0.81),
    "OTF de-DE": (1170, 206, 5, 87, 0.89),
    "OTF en-GB": (1220, 206, 5, 87, 0.89),
    "OTF es-ES": (1280, 197, 5, 87, 0.89),
    "OTF fr-FR": (1300, 290, 4, 60, 0.61),
    "OTF it-IT": (1360, 188, 5, 87, 0.89),
    "OTF ru-RU": (870, 327, 3, 31, 0.32),
    "OTF pt-PT": (430, 54, 7, 97, 0.99),
}


@pytest.mark.parametrize("model", MODELS)
def test_zcdp_of_every_model_as_printed(model):
    rounds, min_separation, max_participations, squared, printed = MODELS[model]
    assert tree_sensitivity_squared(rounds, min_separation, max_participations) == squared
    claim = MinSeparation(6500, min_separation, max_participations, rounds)
    cost = repeated(claim.event(NOISE_MULTIPLIER, tree(rounds, honaker=True)), rounds)
    assert rho(cost) == pytest.approx(squared / (2 * NOISE_MULTIPLIER**2))
    assert rho(cost) == pytest.approx(printed, abs=0.0052)  # one unit of the last digit: secure aggregation adds 0.1 %


@pytest.mark.parametrize(
    ("printed_rho", "printed_epsilon"), [(0.89, 9.01), (0.61, 7.31), (0.32, 5.13), (0.99, 9.56), (0.25, 4.49), (1.86, 13.69)]
)
def test_epsilon_of_a_rho_as_printed(printed_rho, printed_epsilon):
    """Table 2's last column, at δ = 1e-10: the exact Gaussian."""
    from dp_accounting import GaussianDpEvent

    assert epsilon(GaussianDpEvent(1 / math.sqrt(2 * printed_rho)), 1e-10) == pytest.approx(printed_epsilon, abs=0.006)


def test_the_sensitivity_of_a_tree_takes_no_time():
    tree_sensitivity_squared.cache_clear()
    began = time.perf_counter()
    for rounds, min_separation, max_participations, _, _ in MODELS.values():
        tree_sensitivity_squared(rounds, min_separation, max_participations)
    assert (time.perf_counter() - began) / len(MODELS) < 0.01
