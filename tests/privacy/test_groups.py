"""Promises to several users at once are compared with brute force and with bounds that are too
small.
"""

import functools
import json
import math

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism
from scipy.stats import binom, norm
from test_accounting import guarantee

from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.conversions import gaussian_epsilon
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.accounting.group_privacy import chained_share, group_epsilon
from taciturn.privacy.accounting.loss_distributions import epsilon_by_loss_distributions
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.noise.sensitivity import toeplitz, tree
from taciturn.privacy.participation import CyclicPoisson, MinSeparation
from taciturn.release.privacy_statement import statement, statement_json

RELEASE = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.5))


def delta_by_brute_force(q: float, noise: float, users: int, releases: int, at: float) -> float:
    """Integrate max(0, P − e^ε Q) over one or two outputs, with all `users` present and pointing
    the same way, or all absent; both ways.
    """
    outputs = np.linspace(-14 * noise, 14 * noise + users, 4001)
    width = outputs[1] - outputs[0]
    there = sum(binom.pmf(j, users, q) * norm.pdf(outputs, j, noise) for j in range(users + 1))
    absent = norm.pdf(outputs, 0, noise)
    for _ in range(releases - 1):
        there, absent, width = (
            np.multiply.outer(there, there),
            np.multiply.outer(absent, absent),
            width**2,
        )
    pairs = ((there, absent), (absent, there))
    return max(float(np.maximum(p - math.exp(at) * q, 0).sum() * width) for p, q in pairs)


FEW = [
    pytest.param(2, 1, marks=pytest.mark.slow),
    (2, 2),
    (4, 1),
    pytest.param(4, 2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("users", "releases"), FEW)
def test_a_group_under_sampling_is_the_mixture_that_brute_force_finds(users, releases):
    found = group_epsilon(RELEASE, releases, 1e-5, users)
    assert delta_by_brute_force(0.1, 1.5, users, releases, found) <= 1e-5 * 1.001
    assert delta_by_brute_force(0.1, 1.5, users, releases, 0.998 * found) > 1e-5
    for too_little in (  # twins that must fail: one user's ε, and as many times it
        epsilon(repeat(RELEASE, releases), 1e-5),
        users * epsilon(repeat(RELEASE, releases), 1e-5),
    ):
        assert delta_by_brute_force(0.1, 1.5, users, releases, too_little) > 1.1e-5


@functools.cache
def by_the_library(users: int):
    losses = from_mixture_gaussian_mechanism(
        2.0, range(users + 1), chances(users), value_discretization_interval=1e-3
    )
    return losses.self_compose(4)


def chances(users: int) -> tuple[float, ...]:
    return tuple(float(chance) for chance in binom.pmf(range(users + 1), users, 0.05))


@pytest.mark.parametrize("users", [1, 3])
@pytest.mark.parametrize("delta", [1e-4, 1e-8, 1e-12])
def test_a_mixtures_losses_are_the_librarys(users, delta):
    mixture = MixtureOfGaussiansDpEvent(2.0, tuple(map(float, range(users + 1))), chances(users))
    ours = epsilon_by_loss_distributions(SelfComposedDpEvent(mixture, 4), delta, 1e-3)
    assert ours == pytest.approx(by_the_library(users).get_epsilon_for_delta(delta), rel=1e-3)


def test_two_devices_cost_far_less_than_they_would_without_sampling():
    """F12: a mixture of Gaussians gives ε = 7.7, k²ρ gives 92."""
    release = PoissonSampledDpEvent(0.109, GaussianDpEvent(1.6))
    found = group_epsilon(release, 50, 1.5e-8, 2)
    assert found == pytest.approx(7.7, abs=0.05)
    by_rho = 4 * rho(repeat(release, 50))
    assert by_rho + 2 * math.sqrt(by_rho * math.log(1 / 1.5e-8)) == pytest.approx(92, abs=1)


def test_without_sampling_a_group_is_one_user_of_multiplied_sensitivity():
    event = MinSeparation(size=10, min_separation=4, max_participations=3, rounds=20).event(
        5.0, tree(20, honaker=False)
    )
    mu = math.sqrt(2 * rho(repeat(event, 20)))
    for users in (1, 2, 4):
        assert group_epsilon(event, 20, 1e-6, users) == pytest.approx(
            gaussian_epsilon(users * mu, 1e-6), rel=1e-6
        )
    assert group_epsilon(event, 20, 1e-6, 2) > 2 * gaussian_epsilon(
        mu, 1e-6
    )  # only k·ε would be too little


def test_turns_that_overlap_are_not_taken_for_a_mixture():
    """Two users whose turns are a row apart move the same correlated noise twice; a mixture by
    turns would miss that.
    """
    strategy = toeplitz("banded", np.array([1.0, 0.8, 0.6, *np.zeros(9)]))
    event = CyclicPoisson(0.3, 3, 12).event(2.0, strategy)
    turns = repeat(event, 12)
    mixture = group_epsilon(
        turns, 1, 1e-5, 2
    )  # the twin: the same cost, taken for independent releases
    found = group_epsilon(event, 12, 1e-5, 2)
    assert found > mixture
    one = epsilon(turns, 1e-5 * chained_share(found / 2, 2), grid=1e-3)
    assert one <= found / 2 * (1 + 1e-4) or found <= gaussian_epsilon(
        2 * math.sqrt(2 * rho(turns)), 1e-5
    ) * (1 + 1e-9)


def test_fixed_size_cohorts_are_chained_user_by_user():
    release = SampledWithoutReplacementDpEvent(1000, 20, GaussianDpEvent(1.0))
    cost = SelfComposedDpEvent(release, 100)
    found = group_epsilon(release, 100, 1e-10, 2)
    one = found / 2
    assert epsilon(cost, 1e-10 / (1 + math.exp(one))) <= one
    assert 2 * epsilon(cost, 1e-10) < found < gaussian_epsilon(2 * math.sqrt(2 * rho(cost)), 1e-10)


def test_a_group_of_one_is_one_user_and_larger_groups_cost_more():
    alone = group_epsilon(RELEASE, 20, 1e-6, 1)
    assert alone == pytest.approx(epsilon(repeat(RELEASE, 20), 1e-6), rel=1e-3)
    costs = [group_epsilon(RELEASE, 20, 1e-6, users) for users in (1, 2, 3, 4)]
    assert costs == sorted(costs)
    assert costs[1] > 2 * costs[0]
    assert group_epsilon(RELEASE, 20, 1e-6, 2, distance=1e-9) > costs[1]
    assert group_epsilon(RELEASE, 20, 1e-6, 4, distance=1e-8) == math.inf
    earlier = (repeat(RELEASE, 20),)
    assert group_epsilon(RELEASE, 20, 1e-6, 2, earlier) > group_epsilon(RELEASE, 40, 1e-6, 2)
    assert group_epsilon(NonPrivateDpEvent(), 1, 1e-6, 2) == math.inf
    with pytest.raises(ValueError, match="at least one user"):
        group_epsilon(RELEASE, 1, 1e-6, 0)


def test_the_statement_names_the_promise_to_groups_its_basis_and_what_to_delete():
    made = guarantee(distance=2.0**-60)
    words = " ".join(statement(made, ("a list of words",)).split())
    two = math.ceil(100 * made.for_group(2)) / 100
    assert f"a person with two devices, who is two users here: ε = {two:.2f}" in words
    assert "ChaCha20 and HMAC-SHA256" in words
    assert "at most 8.7e-19 (total variation, over the whole run)" in words
    assert "A backup or snapshot of either undoes the deletion" in words
    content = json.loads(statement_json(made, ()))
    assert (
        content["epsilon_of_two_devices"] == made.for_group(2) < content["epsilon_of_a_household"]
    )
    assert "release" not in content
    assert "Groups" not in statement(
        guarantee(epsilon=math.inf, rho=math.inf, release=NonPrivateDpEvent()), ()
    )


def test_a_run_that_released_nothing_promises_groups_what_it_started_from():
    start = (repeat(RELEASE, 20),)
    begun = guarantee(releases=0, earlier=start)
    assert begun.for_group(2) == group_epsilon(RELEASE, 20, begun.delta, 2, accountant="rdp")
    assert guarantee(releases=0, epsilon=0.0, rho=0.0).for_group(2) == 0.0
