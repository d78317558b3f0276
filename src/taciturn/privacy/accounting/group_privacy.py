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
from taciturn.privacy.accounting.accountant import (
    COARSE,
    LEAST_PLD_NOISE,
    CorrelatedDpEvent,
    compose,
    epsilon,
    repeat,
    rho,
)
from taciturn.privacy.accounting.conversions import smallest_epsilon, with_distance
from taciturn.privacy.accounting.loss_distributions import epsilon_by_loss_distributions


def group_epsilon(
    release: DpEvent,
    releases: int,
    delta: float,
    users: int,
    earlier: Sequence[DpEvent] = (),
    accountant: AccountantName = "pld",
    distance: float = 0.0,
) -> float:
    """Return ε at δ for `users` users together, after `releases` of a run and those before it;
    `distance` as in `accounting.epsilon`.
    """
    cost = compose(earlier, repeat(release, releases))
    whole = rho(cost)
    if users < 1:
        raise ValueError(f"a group has at least one user; {users} are none")
    if not whole < math.inf:
        return math.inf
    unsampled = GaussianDpEvent(1 / (users * math.sqrt(2 * whole)))
    mixture = None if earlier else _mixture(release, releases, users)

    def bound(at: float) -> float:
        alone = epsilon(unsampled, at, "rdp" if earlier else accountant)
        if mixture is not None and accountant == "pld":
            return min(alone, epsilon_by_loss_distributions(mixture, at, COARSE))
        one = smallest_epsilon(
            lambda at: epsilon(cost, at, accountant, COARSE),
            lambda one: at * chained_share(one, users),
        )
        return min(alone, users * one)

    return with_distance(bound, delta, distance)


def chained_share(epsilon: float, users: int) -> float:
    """Return δ of one user over δ of a group, (e^ε − 1)/(e^kε − 1): along k neighbours δ grows by 1
    + e^ε + … + e^((k−1)ε).
    """
    return 1 / math.fsum(math.exp(min(step * epsilon, 700.0)) for step in range(users))


def _mixture(release: DpEvent, releases: int, users: int) -> DpEvent | None:
    """Return the mixture of Gaussians that a group makes of releases which sample every user
    independently; None otherwise.
    """
    match repeat(release, releases):
        case SelfComposedDpEvent(
            event=PoissonSampledDpEvent(
                sampling_probability=q, event=GaussianDpEvent(noise_multiplier=multiplier)
            ),
            count=count,
        ) if not isinstance(release, CorrelatedDpEvent) and multiplier / users >= LEAST_PLD_NOISE:
            there = range(users + 1)
            chances = tuple(float(chance) for chance in binom.pmf(there, users, q))
            mixture = MixtureOfGaussiansDpEvent(
                multiplier, tuple(float(number) for number in there), chances
            )
            return SelfComposedDpEvent(mixture, count)
        case _:
            return None
