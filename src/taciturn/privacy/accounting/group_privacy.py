"""Compute what a run promises several users at once: a person with two devices, a household.

Of three bounds the smallest: that of a Gaussian mechanism whose sensitivity is k times one user's;
that of one user, k times in a row (Dwork and Roth 2014, Theorem 2.2, with the δ of its proof); and,
where each release samples every user independently, that of a mixture of Gaussians, in which j of
the k are there with the probability of a binomial distribution (Ganesh 2024). Only the third keeps
what sampling gives. It needs releases whose noise is independent: under noise that is correlated
over rounds two users with different turns move the same noise, and fixed-size cohorts are not
binomial.

**Guarantee:** an upper bound for any k users, as far as the accounting's own ε is one for a single
user.
"""

import math
from collections.abc import Sequence

from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from scipy.stats import binom

from taciturn.names import AccountantName
from taciturn.privacy.accounting.accountant import COARSE, LEAST_PLD_NOISE, epsilon
from taciturn.privacy.accounting.conversions import smallest_epsilon, with_distance
from taciturn.privacy.accounting.events import CorrelatedDpEvent, compose, repeat
from taciturn.privacy.accounting.loss_distributions import epsilon_by_loss_distributions
from taciturn.privacy.accounting.zero_concentrated import rho

# Exponents are limited to this, so that e to their power is a float.
LARGEST_EXPONENT = 700.0


def group_epsilon(
    release: DpEvent,
    releases: int,
    delta: float,
    users: int,
    earlier: Sequence[DpEvent] = (),
    accountant: AccountantName = "pld",
    distance: float = 0.0,
) -> float:
    """Return ε at δ for several users together, after the releases of a run and those before it.

    Args:
        release: what one release costs.
        releases: how many the run has made.
        delta: the δ at which ε is wanted.
        users: how many users the group has.
        earlier: what the runs cost that this one started from.
        accountant: how ε is computed.
        distance: as for `accountant.epsilon`.
    """
    cost = compose(earlier, repeat(release, releases))
    total_rho = rho(cost)
    if users < 1:
        raise ValueError(f"a group has at least one user, not {users}")
    if not total_rho < math.inf:
        return math.inf
    total_mu = math.sqrt(2 * total_rho)
    unsampled = GaussianDpEvent(1 / (users * total_mu))
    unsampled_accountant = "rdp" if earlier else accountant
    mixture = None if earlier else _mixture(release, releases, users)

    def bound(normal_delta: float) -> float:
        by_sensitivity = epsilon(unsampled, normal_delta, unsampled_accountant)
        if mixture is not None and accountant == "pld":
            by_mixture = epsilon_by_loss_distributions(mixture, normal_delta, COARSE)
            return min(by_sensitivity, by_mixture)
        by_chain = _chained_epsilon(cost, normal_delta, users=users, accountant=accountant)
        return min(by_sensitivity, by_chain)

    return with_distance(bound, delta, distance)


def _chained_epsilon(
    cost: DpEvent, delta: float, *, users: int, accountant: AccountantName
) -> float:
    """Return ε of a group from that of one user, k times in a row."""

    def bound_of_one(delta_of_one: float) -> float:
        return epsilon(cost, delta_of_one, accountant, grid=COARSE)

    def share_of_one(epsilon_of_one: float) -> float:
        return delta * chained_share(epsilon_of_one, users)

    return users * smallest_epsilon(bound_of_one, share_of_one)


def chained_share(epsilon: float, users: int) -> float:
    """Return δ of one user over δ of a group, (e^ε − 1)/(e^kε − 1).

    Along k neighbours δ grows by 1 + e^ε + … + e^((k−1)ε).
    """
    return 1 / math.fsum(math.exp(min(step * epsilon, LARGEST_EXPONENT)) for step in range(users))


def _mixture(release: DpEvent, releases: int, users: int) -> DpEvent | None:
    """Return the mixture of Gaussians that a group makes of independently sampled releases.

    None if the releases do not sample every user independently, or their noise is too small.
    """
    if isinstance(release, CorrelatedDpEvent):
        return None
    match repeat(release, releases):
        case SelfComposedDpEvent(
            event=PoissonSampledDpEvent(
                sampling_probability=probability, event=GaussianDpEvent(noise_multiplier=multiplier)
            ),
            count=count,
        ):
            if multiplier / users < LEAST_PLD_NOISE:
                return None
            numbers = range(users + 1)
            shifts = tuple(float(number) for number in numbers)
            probabilities = tuple(binom.pmf(numbers, users, probability).tolist())
            mixture = MixtureOfGaussiansDpEvent(multiplier, shifts, probabilities)
            return SelfComposedDpEvent(mixture, count)
        case _:
            return None
