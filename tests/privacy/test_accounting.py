"""ε is an upper bound to the last digit, far out in the tail and for noise that is not quite
normal; the smallest of several bounds.
"""

import functools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from curators import DELTA
from taciturn.privacy.accounting import accountant
from taciturn.privacy.accounting.accountant import (
    COARSE,
    FINE,
    Budget,
    allowed_releases,
    epsilon,
    noise_for_budget,
)
from taciturn.privacy.accounting.conversions import (
    gaussian_epsilon,
    smallest_epsilon,
    with_distance,
)
from taciturn.privacy.accounting.events import event_from_json, repeat
from taciturn.privacy.accounting.loss_distributions import epsilon_by_loss_distributions
from taciturn.privacy.noise.correlated import Bands, banded_toeplitz
from taciturn.privacy.participation import CyclicPoisson, FixedSize, MinSeparation
from taciturn.release.gate import ExportRefused, check_may_leave
from taciturn.release.privacy_statement import statement, statement_json


def sampled(q: float, noise: float, rounds: int) -> SelfComposedDpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(noise)), rounds)


def composed_by_library(q: float, noise: float, rounds: int, grid: float = FINE):
    return from_gaussian_mechanism(
        noise, sampling_prob=q, value_discretization_interval=grid
    ).self_compose(rounds)


def before(event: SelfComposedDpEvent, delta: float) -> float:
    """Compute ε as it was done earlier: by the library's loss distribution where it gives anything,
    else by RDP.
    """
    q, noise = event.event.sampling_probability, event.event.event.noise_multiplier
    bound = composed_by_library(q, noise, event.count).get_epsilon_for_delta(delta)
    return bound if math.isfinite(bound) else epsilon(event, delta, "rdp")


def delta_of_gaussian(mu, at):
    return norm.cdf(mu / 2 - at / mu) - np.exp(at) * norm.cdf(-mu / 2 - at / mu)


@functools.cache
def composed_by_hand(q: float, noise: float, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (losses, probabilities), by sums of products, none of them negative, so that every
    entry is accurate to a part in 10¹².
    """
    one = from_gaussian_mechanism(
        noise, sampling_prob=q, value_discretization_interval=COARSE
    )._pmf_remove.to_dense_pmf()
    power, result = (one._lower_loss, one._probs), (0, np.ones(1))
    while rounds:
        if rounds & 1:
            result = _product(result, power)
        power, rounds = _product(power, power), rounds >> 1
    return (result[0] + np.arange(len(result[1]))) * COARSE, result[1]


def _product(one: tuple[int, np.ndarray], other: tuple[int, np.ndarray]) -> tuple[int, np.ndarray]:
    entries = np.convolve(one[1], other[1])
    there = np.flatnonzero(entries > 1e-40)
    return one[0] + other[0] + there[0], entries[there[0] : there[-1] + 1]


def delta_by_hand(q: float, noise: float, rounds: int, at: float) -> float:
    losses, entries = composed_by_hand(q, noise, rounds)
    above = losses > at
    return float(np.sum(entries[above] * -np.expm1(at - losses[above])))


MANY = (5_000, 20_000, 50_000)


@pytest.mark.parametrize("rounds", MANY)
@pytest.mark.parametrize("delta", [1e-4, 1e-8, 1e-12, 1e-15])
def test_composed_losses_are_accurate_far_out_in_the_tail(delta, rounds):
    ours = epsilon_by_loss_distributions(sampled(0.01, 5.0, rounds), delta, COARSE)
    assert delta_by_hand(0.01, 5.0, rounds, ours) <= delta
    assert delta_by_hand(0.01, 5.0, rounds, 0.999 * ours) > delta


def test_the_librarys_own_composition_promises_too_much_in_the_tail():
    """The twin that must fail: rounding is as large as δ, up or down."""
    theirs = {
        rounds: composed_by_library(0.01, 5.0, rounds, COARSE).get_epsilon_for_delta(3e-13)
        for rounds in MANY
    }
    assert max(delta_by_hand(0.01, 5.0, rounds, at) for rounds, at in theirs.items()) > 1.02 * 3e-13


@pytest.mark.parametrize("rounds", [1, 10, 1000])
@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-15])
def test_without_sampling_composed_losses_are_those_of_the_exact_gaussian(rounds, delta):
    exact = gaussian_epsilon(0.1 * math.sqrt(rounds), delta)
    ours = epsilon_by_loss_distributions(
        SelfComposedDpEvent(GaussianDpEvent(10.0), rounds), delta, 1e-4
    )
    assert exact <= ours <= exact * 1.001


def test_the_smaller_of_two_bounds_is_stated():
    """A grid of losses of 10⁻⁴ is too coarse for rounds that lose less than that (F11)."""
    event = sampled(1e-3, 100.0, 100_000)
    by_losses = epsilon_by_loss_distributions(event, 1e-6, 1e-4)
    assert epsilon(event, 1e-6) == epsilon(event, 1e-6, "rdp") < by_losses / 1.5
    assert before(event, 1e-6) > 1.5 * epsilon(event, 1e-6)  # the twin that must fail


@pytest.mark.parametrize(("q", "noise"), [(1e-17, 1.0), (2.9e-14, 9e3), (1e-14, 100.0)])
def test_a_tiny_sampling_probability_costs_hardly_anything(q, noise):
    assert 0 <= epsilon_by_loss_distributions(sampled(q, noise, 10), 1e-6, COARSE) < 1e-2


@pytest.mark.parametrize(("noise", "rounds"), [(0.5, 1), (3.0, 10), (20.0, 400)])
def test_users_who_are_always_drawn_cost_what_a_gaussian_does(noise, rounds):
    """The exact ε of a Gaussian is reached from above."""
    exact, found = (
        gaussian_epsilon(math.sqrt(rounds) / noise, 1e-6),
        epsilon_by_loss_distributions(sampled(1.0, noise, rounds), 1e-6, FINE),
    )
    assert exact <= found < exact * 1.001
    assert (
        epsilon_by_loss_distributions(sampled(0.9, noise, rounds), 1e-6, FINE) < exact
    )  # the twin: some are left out


EVENTS: list[DpEvent] = [
    sampled(0.01, 1.0, 100),
    sampled(5e-5, 1.0, 5000),
    sampled(0.01, 5.0, 20_000),
    sampled(1e-3, 100.0, 100_000),
    SelfComposedDpEvent(GaussianDpEvent(4.0), 3),
    SelfComposedDpEvent(SampledWithoutReplacementDpEvent(1000, 20, GaussianDpEvent(1.0)), 100),
    ComposedDpEvent([sampled(0.01, 1.0, 100), sampled(0.02, 2.0, 50)]),
]


@pytest.mark.parametrize("event", EVENTS, ids=range(len(EVENTS)))
@settings(max_examples=25, deadline=None)
@given(
    st.floats(2, 58),
    st.one_of(st.floats(1e-9, 1e-3), st.floats(1e-3, 20)),
    st.sampled_from([0.0, 2.0**-60, 1e-14, 1e-9]),
)
def test_epsilon_never_falls_as_delta_shrinks(event, power, further, distance):
    larger, smaller = 2.0**-power, 2.0 ** -min(power + further, 59.0)
    at_larger, at_smaller = (
        epsilon(event, delta, grid=1e-3, distance=distance) for delta in (larger, smaller)
    )
    assert at_smaller >= at_larger
    assert epsilon(event, larger, grid=1e-3, distance=2 * distance) >= at_larger


def test_epsilon_of_the_earlier_accounting_did_fall():
    """The twin that must fail: loss distributions were lost in rounding, and RDP took over."""
    event = sampled(0.01, 5.0, 20_000)
    assert before(event, 1e-15) < before(event, 2e-15)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("distance", [1e-15, 1e-12, 1e-9, 3e-8])
def test_the_distance_of_noise_from_normal_is_subtracted_from_delta(mu, distance):
    delta = 1e-7
    found = epsilon(GaussianDpEvent(1 / mu), delta, distance=distance)
    if math.isfinite(found):
        assert delta_of_gaussian(mu, found) + (1 + math.exp(found)) * distance <= delta * (1 + 1e-9)
        less = found * (1 - 3e-5)
        assert delta_of_gaussian(mu, less) + (1 + math.exp(less)) * distance > delta * (1 - 1e-9)
    else:  # nowhere on the whole scale
        scale = np.linspace(0, 20, 20_001)
        assert np.all(delta_of_gaussian(mu, scale) + (1 + np.exp(scale)) * distance > delta)
    if distance >= 1e-9:  # the twin that must fail
        ideal = epsilon(GaussianDpEvent(1 / mu), delta)
        assert delta_of_gaussian(mu, ideal) + (1 + math.exp(ideal)) * distance > delta


def test_noise_too_far_from_normal_promises_nothing_at_any_epsilon():
    event = sampled(0.01, 1.0, 100)
    assert epsilon(event, 1e-10, distance=1e-10) == math.inf
    assert (
        epsilon(event, 1e-10, distance=0.49e-10) == math.inf
    )  # at ε = 0 there would be room for it
    assert epsilon(event, 1e-10, distance=1e-18) == pytest.approx(epsilon(event, 1e-10), rel=1e-4)
    for wrong in (-1e-9, math.nan, math.inf):
        with pytest.raises(ValueError, match="cannot be one"):
            epsilon(event, 1e-10, distance=wrong)


def test_a_distance_just_small_enough_is_accepted_and_a_larger_one_ends_the_search():
    """Test the point where δ_ideal(ε) + (1 + e^ε)·τ touches δ."""
    scale = np.linspace(0, 10, 100_001)
    least = float(np.min(delta_of_gaussian(1.0, scale) + (1 + np.exp(scale)) * 1e-8))
    assert math.isfinite(epsilon(GaussianDpEvent(1.0), least * 1.0005, distance=1e-8))
    assert epsilon(GaussianDpEvent(1.0), least * 0.9995, distance=1e-8) == math.inf


def test_a_budget_counts_the_distance():
    release, budget = (
        PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)),
        Budget(delta=1e-5, epsilon=3.0),
    )
    exact, off = (
        allowed_releases(lambda n: repeat(release, n), budget, "rdp", 1000, distance)
        for distance in (0.0, 1e-7)
    )
    assert 0 < off < exact
    assert epsilon(repeat(release, exact), 1e-5, "rdp", distance=1e-7) > 3.0
    more = noise_for_budget(lambda z: sampled(0.1, z, 50), budget, "rdp", 1e-7)
    assert epsilon(sampled(0.1, more, 50), 1e-5, "rdp", distance=1e-7) <= 3.0
    assert more > noise_for_budget(lambda z: sampled(0.1, z, 50), budget, "rdp")


def test_costs_under_several_adjacencies_add_up_order_by_order():
    """One total over all runs, in which one user's reports become zero, needs this."""
    poisson, fixed = (
        sampled(0.1, 1.0, 20),
        SampledWithoutReplacementDpEvent(50, 5, GaussianDpEvent(1.0)),
    )
    both = epsilon(ComposedDpEvent([poisson, SelfComposedDpEvent(fixed, 20)]), 1e-5)
    assert both > max(epsilon(poisson, 1e-5), epsilon(SelfComposedDpEvent(fixed, 20), 1e-5))
    twice, direct = ComposedDpEvent([poisson, poisson]), RdpAccountant()
    direct.compose(twice)
    assert epsilon(twice, 1e-5) == pytest.approx(direct.get_epsilon(1e-5))
    assert epsilon(ComposedDpEvent([poisson, NonPrivateDpEvent()]), 1e-5) == math.inf


def test_the_smallest_epsilon_on_the_scale_is_found_or_infinity_if_there_is_none():
    assert smallest_epsilon(lambda delta: 0.0, lambda at: 1.0) == 0.0
    assert smallest_epsilon(lambda delta: 2.0, lambda at: 1.0) == pytest.approx(2.0, rel=1e-4)
    assert smallest_epsilon(lambda delta: 2.0, lambda at: 1.0 - at) == math.inf
    assert smallest_epsilon(lambda delta: math.inf, lambda at: 1.0) == math.inf
    assert with_distance(lambda delta: 1.0, 0.0, 0.0) == math.inf


@pytest.mark.parametrize("mu", [1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-5])
def test_the_gaussian_epsilon_is_no_less_than_in_sixty_digits(mu, delta):
    mpmath = pytest.importorskip("mpmath")
    found = gaussian_epsilon(mu, delta)
    with mpmath.workdps(60):
        mean, at = mpmath.mpf(mu), mpmath.mpf(found)
        lost = mpmath.ncdf(mean / 2 - at / mean) - mpmath.exp(at) * mpmath.ncdf(
            -mean / 2 - at / mean
        )
        assert lost <= delta
        if found:
            at *= 1 - mpmath.mpf(1e-7)
            assert (
                mpmath.ncdf(mean / 2 - at / mean)
                - mpmath.exp(at) * mpmath.ncdf(-mean / 2 - at / mean)
                > delta
            )


def guarantee(**changes):
    from taciturn.privacy.ledger.guarantee import Guarantee

    given = {
        "run": "run",
        "releases": 3,
        "epsilon": 1.0,
        "delta": 1e-6,
        "rho": 0.5,
        "accountant": "pld",
        "adjacency": "add or remove one user",
        "randomness": "operating system",
        "head": "0" * 64,
        "claim": "sampled",
        "release": PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)),
    }
    return Guarantee(**(given | changes))


def test_the_statement_distinguishes_noise_that_promises_nothing_from_no_noise():
    far = guarantee(epsilon=math.inf, distance=1e-6)
    assert far.is_private
    words = " ".join(statement(far, ()).split())
    assert "(∞, 1e-06)-differential privacy" in words
    assert "at this δ it promises NOTHING" in words
    assert json.loads(statement_json(far, ()))["private"] is False
    with pytest.raises(ExportRefused, match="guarantees nothing at δ = 1e-06"):
        check_may_leave(far, non_private=False)
    check_may_leave(far, non_private=True)
    check_may_leave(guarantee(), non_private=False)
    without = guarantee(epsilon=math.inf, rho=math.inf, release=NonPrivateDpEvent())
    assert not without.is_private
    assert "NO privacy guarantee" in statement(without, ())


@pytest.mark.parametrize(
    "row",
    [
        {"event": "repeated", "count": -1000, "of": {"event": "gaussian", "noise_multiplier": 1.0}},
        {
            "event": "poisson",
            "probability": -0.5,
            "of": {"event": "gaussian", "noise_multiplier": 1.0},
        },
        {"event": "gaussian", "noise_multiplier": -1.0},
        {
            "event": "fixed size",
            "users": 10,
            "size": -1,
            "of": {"event": "gaussian", "noise_multiplier": 1.0},
        },
    ],
    ids=["count", "probability", "multiplier", "size"],
)
def test_an_event_that_would_return_budget_is_refused(row):
    with pytest.raises(ValueError, match=r"."):
        event_from_json(row)


def test_fixed_size_rounds_cost_at_least_what_replacing_one_user_reveals():
    # One user's report is +S in one world and −S in the other, all others are silent.
    size, users, multiplier = 50, 100, 1.0
    stated = epsilon(FixedSize(size, users).event(multiplier), DELTA)
    x = np.linspace(-15, 15, 100_001)

    def density(shift: float) -> np.ndarray:
        share = size / users
        return (1 - share) * np.exp(-(x**2) / 2) + share * np.exp(-((x - shift) ** 2) / 2)

    beyond = (
        np.maximum(density(1.0) - np.exp(stated) * density(-1.0), 0.0).sum()
        * (x[1] - x[0])
        / np.sqrt(2 * np.pi)
    )
    assert beyond <= DELTA


def test_one_release_without_privacy_makes_a_composition_cost_infinity():
    from taciturn.privacy.accounting.accountant import epsilon
    from taciturn.privacy.accounting.zero_concentrated import rho

    mixture = ComposedDpEvent([NonPrivateDpEvent(), SelfComposedDpEvent(GaussianDpEvent(9.0), 1)])
    assert (
        epsilon(mixture, 1e-5, "rdp")
        == epsilon(mixture, 1e-5, "pld")
        == rho(mixture)
        == float("inf")
    )


@pytest.mark.parametrize(
    "claim",
    [
        MinSeparation(size=10, min_separation=3, max_participations=2, rounds=20),
        CyclicPoisson(0.5, 4, 20),
    ],
)
def test_all_rounds_of_correlated_noise_are_charged_with_the_first(claim):
    """When to stop may depend on what was seen. The twin: only the rounds so far would cost
    less.
    """
    strategy = banded_toeplitz(3.0, Bands(28, [1.0, 0.5])).strategy
    event = claim.event(3.0, strategy)
    assert repeat(event, 1) == repeat(event, 20)
    assert repeat(replace(claim, rounds=1).event(3.0, strategy), 1) != repeat(event, 1)


@pytest.mark.parametrize("coarse", [0, 1, 6, 7, 8, 50, 99, 100])
@pytest.mark.parametrize("fine", [0, 1, 7, 99, 100])
def test_the_fine_grid_decides_how_many_releases_are_allowed(fine, coarse, monkeypatch):
    def allows(budget, releases, chosen, grid=accountant.FINE, distance=0.0):
        return releases <= (fine if grid == accountant.FINE else coarse)

    monkeypatch.setattr(Budget, "allows", allows)
    assert (
        accountant.allowed_releases(
            lambda releases: releases, Budget(delta=1e-6, epsilon=1.0), "pld", 100
        )
        == fine
    )
    by_the_coarse_one_alone = accountant._find_last_allowed(
        lambda releases: releases <= coarse, low=0, high=101
    )
    assert (by_the_coarse_one_alone > fine) == (
        coarse > fine
    )  # it would release more than the budget allows


@pytest.mark.parametrize(
    ("probability", "rounds", "promised"),
    [(0.113, 400, 8.0), (0.001, 2000, 0.1)],
)
def test_the_noise_for_a_budget_is_what_only_halving_would_find(
    monkeypatch, probability, rounds, promised
):
    budget = Budget(delta=1e-6, epsilon=promised)
    asked = []
    really_over = Budget.over

    def count(self, *args, **how):
        asked.append(args)
        return really_over(self, *args, **how)

    monkeypatch.setattr(Budget, "over", count)
    found = noise_for_budget(lambda z: sampled(probability, z, rounds), budget, "pld")
    # Halving asks 15 times.
    assert len(asked) <= 15
    monkeypatch.setattr(
        accountant, "_find_crossing", lambda over, low, high: (accountant.LEAST_NOISE, math.inf)
    )
    halved = noise_for_budget(lambda z: sampled(probability, z, rounds), budget, "pld")
    assert found == halved
    assert budget.allows(sampled(probability, found, rounds), "pld")
