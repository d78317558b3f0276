"""Compute what a list of releases costs: events in, ε, ρ and words out. dp-accounting does the
analysis; the choices are here.

Accountants by name:

- `pld` (default): privacy loss distributions (privacy/accounting/loss_distributions.py), or RDP where that is
  smaller or they do not apply (fixed-size
  rounds, noise multipliers below 0.3, a δ below 10⁻¹⁸); the exact formula where nothing is sampled.
  All are upper bounds.
- `rdp`: Rényi differential privacy, the conversion of Canonne, Kamath and Steinke. Used to compose
  *runs*, each chosen
  after seeing the one before, where PLD is not a valid filter.
- `moments`: the 2016 moments accountant, orders 2 to 33 and the classic conversion, as papers of
  that time print it.

**Guarantee:** every ε returned is an upper bound for the event under its adjacency, or ∞, and never
falls as δ shrinks. Noise that is at total variation distance τ from the normal noise of the event,
over a whole run, is counted: what it may give away, (1 + e^ε)·τ, is subtracted from δ. ρ is that of
the normal noise.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import UnionType
from typing import Any

import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
)
from dp_accounting.dp_event import (
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from taciturn.names import AccountantName
from taciturn.privacy.accounting.conversions import gaussian_epsilon, with_distance
from taciturn.privacy.accounting.loss_distributions import epsilon_by_loss_distributions

# below it a PLD takes minutes and gigabytes, and log-ratios of those always drawn cancel
# (`_output_of`)
LEAST_PLD_NOISE = 0.3
CLASSIC_ORDERS = range(2, 34)
WHOLE_ORDERS = (*range(2, 64), 128, 256, 512, 1024)
# grids of privacy loss; a coarser one is ten times faster and its ε a little larger
FINE, COARSE = (
    1e-4,
    1e-3,
)

# dp-accounting announces each Rényi order that it leaves out; leaving one out only makes ε larger.
logging.getLogger("absl").setLevel(logging.ERROR)


@dataclass(frozen=True)
class CorrelatedDpEvent(DpEvent):
    """Gaussian noise that is correlated over a run's releases, and a claim about how often a user
    takes part in them. One release has no cost of its own. The first n together have: that of one
    Gaussian mechanism (privacy/noise/sensitivity.py), or of one for each turn of a user, where the
    curator draws who takes it (privacy/participation.py).
    """

    # (releases, what that many cost), rising
    costs: tuple[tuple[int, DpEvent], ...]
    # in words: which noise, which participation
    claim: str

    def __post_init__(self) -> None:
        counts, values = [count for count, _ in self.costs], [rho(cost) for _, cost in self.costs]
        rising = all(a < b for a, b in pairwise(counts)) and all(
            a <= b for a, b in pairwise(values)
        )
        if not (counts and counts[0] > 0 and values[0] > 0 and rising and values[-1] < math.inf):
            raise ValueError("the costs of a run rise with its releases, and are finite")

    @property
    def most(self) -> int:
        return self.costs[-1][0]

    def first(self, releases: int) -> DpEvent:
        """Return the cost of the next listed number of releases, which is no less."""
        for count, cost in self.costs:
            if releases <= count:
                return cost
        raise ValueError(f"this run has noise for {self.most} releases, not for {releases}")


@dataclass(frozen=True)
class Budget:
    """What a run may spend: an ε at a δ, or a ρ of zero-concentrated differential privacy, or both.
    None is no limit.
    """

    delta: float
    epsilon: float | None = None
    rho: float | None = None

    def allows(
        self, event: DpEvent, accountant: AccountantName, grid: float = FINE, distance: float = 0.0
    ) -> bool:
        if self.rho is not None and rho(event) > self.rho:
            return False
        return (
            self.epsilon is None
            or epsilon(event, self.delta, accountant, grid, distance) <= self.epsilon
        )


def epsilon(
    event: DpEvent,
    delta: float,
    accountant: AccountantName = "pld",
    grid: float = FINE,
    distance: float = 0.0,
) -> float:
    """Return the smallest ε that can be shown for an event at δ; ∞ if there is none.

    `distance` is the total variation distance τ, over all releases together, between the noise
    drawn and the event's normal noise. Two worlds that are (ε, δ′)-close under normal noise are (ε,
    δ′ + (1 + e^ε)·τ)-close under the noise drawn.

    >>> round(epsilon(SelfComposedDpEvent(PoissonSampledDpEvent(5000 / 763430, GaussianDpEvent(1.0)), 5000), 1e-9), 2)
    3.9
    """
    if _noise_multiplier(event) == 0:
        return math.inf
    return with_distance(lambda at: _bound(event, at, accountant, grid), delta, distance)


def _bound(event: DpEvent, delta: float, accountant: AccountantName, grid: float) -> float:
    """Return the smallest of several valid bounds on ε for normal noise."""
    if accountant == "moments":
        return classic_epsilon(event, delta)
    mu = _mu(event)
    if accountant == "pld" and mu is not None:
        return gaussian_epsilon(mu, delta)
    is_simple = not isinstance(event, ComposedDpEvent) and not _has(
        event, SampledWithoutReplacementDpEvent
    )
    if accountant == "pld" and is_simple and _noise_multiplier(event) >= LEAST_PLD_NOISE:
        # Integer orders are enough beside a loss distribution, and are quick to compute.
        return min(
            _renyi_epsilon(event, delta, WHOLE_ORDERS),
            epsilon_by_loss_distributions(event, delta, grid),
        )
    return _renyi_epsilon(event, delta)


def _renyi_epsilon(event: DpEvent, delta: float, orders: tuple[int, ...] | None = None) -> float:
    known, costs = _renyi_costs(event, orders)
    return (
        math.inf
        if np.isnan(costs).any()
        else float(compute_epsilon(list(known), list(costs), delta)[0])
    )


def _mu(event: DpEvent) -> float | None:
    """Return μ of an event that consists only of Gaussian mechanisms."""
    match event:
        case GaussianDpEvent() if event.noise_multiplier > 0:
            return 1 / event.noise_multiplier
        case SelfComposedDpEvent(
            event=GaussianDpEvent(noise_multiplier=multiplier), count=count
        ) if multiplier > 0:
            return math.sqrt(count) / multiplier
        case _:
            return None


def claim_of(release: DpEvent) -> str:
    """State in words what is claimed about who takes part, and about the noise."""
    match release:
        case CorrelatedDpEvent():
            return release.claim
        case PoissonSampledDpEvent():
            return (
                "each user takes part in a round with probability"
                f" {release.sampling_probability:.3g}, drawn by the curator"
            )
        case SampledWithoutReplacementDpEvent():
            return (
                f"{release.sample_size} of {release.source_dataset_size} users take part in a"
                " round, drawn by the curator"
            )
        case SelfComposedDpEvent():
            return claim_of(release.event)
        case GaussianDpEvent():
            return "everyone may take part in every round"
        case _:
            return "none"


def is_sampled(release: DpEvent) -> bool:
    """Tell whether its cost rests on cohorts that are drawn, and secret."""
    return _has(release, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent)


def _has(event: DpEvent, kind: type | UnionType) -> bool:
    """Tell whether what is repeated or composed in an event is of this kind."""
    match event:
        case CorrelatedDpEvent():
            return _has(event.costs[0][1], kind)
        case ComposedDpEvent():
            return any(_has(part, kind) for part in event.events)
        case SelfComposedDpEvent():
            return _has(event.event, kind)
        case _:
            return isinstance(event, kind)


def classic_epsilon(event: DpEvent, delta: float, orders: range = CLASSIC_ORDERS) -> float:
    """Return ε = min over orders of rdp + log(1/δ)/(order − 1) (Abadi et al. 2016)."""
    pairs = zip(*_renyi_costs(event, tuple(orders)), strict=True)
    return float(min(cost + math.log(1 / delta) / (order - 1) for order, cost in pairs))


def rho(event: DpEvent) -> float:
    """Return the ρ of zero-concentrated differential privacy. Sampling lowers ε, not ρ: at high
    orders it does not help.
    """
    match event:
        case GaussianDpEvent():
            return 1 / (2 * event.noise_multiplier**2)
        case PoissonSampledDpEvent() | SampledWithoutReplacementDpEvent():
            return rho(event.event)
        case SelfComposedDpEvent():
            return event.count * rho(event.event)
        case ComposedDpEvent():
            return sum(rho(part) for part in event.events)
        case _:
            return math.inf


def repeat(release: DpEvent, count: int) -> DpEvent:
    """Return the cost of `count` releases, at least one: for none of an event of infinite cost the
    library would say ε = 0.
    """
    if count < 1:
        raise ValueError(f"{count} releases have no cost to be stated")
    if isinstance(release, CorrelatedDpEvent):
        return release.first(count)
    if isinstance(release, SelfComposedDpEvent):
        return SelfComposedDpEvent(release.event, release.count * count)
    return (
        release if isinstance(release, NonPrivateDpEvent) else SelfComposedDpEvent(release, count)
    )


def most_releases(release: DpEvent, wanted: int) -> int:
    """Return how many releases are possible."""
    return min(wanted, release.most) if isinstance(release, CorrelatedDpEvent) else wanted


def compose(earlier: Sequence[DpEvent], event: DpEvent) -> DpEvent:
    """Compose an event with the earlier ones of the same model; accounted in RDP, since each was
    chosen after the last.
    """
    return ComposedDpEvent([*earlier, event]) if earlier else event


def allowed_releases(
    cost: Callable[[int], DpEvent],
    budget: Budget,
    accountant: AccountantName,
    most: int,
    distance: float = 0.0,
) -> int:
    """Return the largest number of releases, up to `most`, within the budget; `distance` is that of
    the noise of all of them.
    """

    def allows(releases: int, grid: float = FINE) -> bool:
        return budget.allows(cost(releases), accountant, grid, distance)

    if allows(most):
        return most
    # A coarse grid comes close, and the fine one has the last word.
    close, step = _last_allowed(lambda releases: allows(releases, COARSE), 0, most), 1
    if close and not allows(close):
        return _last_allowed(allows, 0, close)
    while close + step < most and allows(close + step):
        close, step = close + step, 2 * step
    return _last_allowed(allows, close, min(close + step, most))


def _last_allowed(allows: Callable[[int], bool], low: int, high: int) -> int:
    """Find the last allowed number between `low`, which is allowed, and `high`, which is not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allows(middle) else (low, middle)
    return low


def noise_for_budget(
    cost: Callable[[float], DpEvent],
    budget: Budget,
    accountant: AccountantName,
    distance: float = 0.0,
) -> float:
    """Return the smallest noise multiplier, to a part in a thousand, whose `cost` (of all rounds)
    stays within the budget.
    """
    if budget.epsilon is None and budget.rho is None:
        raise ValueError("a noise multiplier can only be worked out from a budget of ε or ρ")

    def allows(multiplier: float, grid: float = COARSE) -> bool:
        return budget.allows(cost(multiplier), accountant, grid, distance)

    low, high = 1e-2, 1e4
    if not allows(high):
        raise ValueError(
            "no noise multiplier up to 10,000 meets this budget: allow more ε, fewer rounds or"
            " smaller cohorts"
        )
    if allows(low):
        raise ValueError(
            "this budget is met with almost no noise, so it would promise nobody anything: ask for"
            " a smaller ε"
        )
    # A coarse grid comes close, and the fine one has the last word.
    while high > low * 1.0005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if allows(middle) else (middle, high)
    while not allows(high, FINE):
        high *= 1.0005
    return high


def event_to_json(event: DpEvent) -> dict[str, Any]:
    match event:
        case GaussianDpEvent():
            return {"event": "gaussian", "noise_multiplier": event.noise_multiplier}
        case PoissonSampledDpEvent():
            return {
                "event": "poisson",
                "probability": event.sampling_probability,
                "of": event_to_json(event.event),
            }
        case SampledWithoutReplacementDpEvent():
            users, size = event.source_dataset_size, event.sample_size
            return {
                "event": "fixed size",
                "users": users,
                "size": size,
                "of": event_to_json(event.event),
            }
        case SelfComposedDpEvent():
            return {"event": "repeated", "count": event.count, "of": event_to_json(event.event)}
        case NonPrivateDpEvent():
            return {"event": "non-private"}
        case CorrelatedDpEvent():
            costs = [[count, event_to_json(cost)] for count, cost in event.costs]
            return {"event": "correlated", "costs": costs, "claim": event.claim}
        case _:
            raise TypeError(f"the ledger has no words for {event}")


def event_from_json(row: dict[str, Any]) -> DpEvent:
    """Read what `event_to_json` wrote; refuse anything that could not have been an event."""
    match row:
        case {"event": "gaussian", "noise_multiplier": float(multiplier)} if (
            0 < multiplier < math.inf
        ):
            return GaussianDpEvent(multiplier)
        case {"event": "poisson", "probability": float(probability), "of": dict(inner)} if (
            0 < probability < 1
        ):
            return PoissonSampledDpEvent(probability, event_from_json(inner))
        case {"event": "fixed size", "users": int(users), "size": int(size), "of": dict(inner)} if (
            0 < size < users
        ):
            return SampledWithoutReplacementDpEvent(users, size, event_from_json(inner))
        case {"event": "repeated", "count": int(count), "of": dict(inner)} if count > 0:
            return SelfComposedDpEvent(event_from_json(inner), count)
        case {"event": "non-private"}:
            return NonPrivateDpEvent()
        case {"event": "correlated", "costs": list(costs), "claim": str(claim)}:
            if not all(type(count) is int and isinstance(cost, dict) for count, cost in costs):
                raise ValueError(f"this is no event that a ledger could hold: {row}")
            return CorrelatedDpEvent(
                tuple((count, event_from_json(cost)) for count, cost in costs), claim
            )
        case _:
            raise ValueError(f"this is no event that a ledger could hold: {row}")


def _noise_multiplier(event: DpEvent) -> float:
    """Return the smallest noise multiplier inside an event; 0 if part of it is not private."""
    match event:
        case GaussianDpEvent():
            return event.noise_multiplier if event.noise_multiplier > 0 else 0.0
        case PoissonSampledDpEvent() | SampledWithoutReplacementDpEvent() | SelfComposedDpEvent():
            return _noise_multiplier(event.event)
        case ComposedDpEvent():
            return min(map(_noise_multiplier, event.events), default=math.inf)
        case _:
            return 0.0


def _renyi_costs(
    event: DpEvent, orders: tuple[int, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return (orders, cost of an event at each). Costs at an order add up under any adjacency, as
    all of them hold under zero-out.
    """
    match event:
        case ComposedDpEvent():
            parts = [_renyi_costs(part, orders) for part in event.events]
            return parts[0][0], np.sum([costs for _, costs in parts], axis=0)
        case SelfComposedDpEvent():
            known, costs = _renyi_costs(event.event, orders)
            return known, event.count * costs
        case _:
            return renyi_costs_of_one(event, orders)


@functools.lru_cache(maxsize=256)
def renyi_costs_of_one(
    event: DpEvent, orders: tuple[float, ...] | None
) -> tuple[np.ndarray, np.ndarray]:
    # Fixed-size events carry half the noise multiplier already (participation.py), because the
    # library's replace-one RDP does not double the sensitivity.
    is_fixed_size = _has(event, SampledWithoutReplacementDpEvent)
    relation = (
        NeighboringRelation.REPLACE_ONE if is_fixed_size else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant = RdpAccountant(list(orders) if orders else None, relation)
    accountant.compose(event)
    # The library takes values that come out a hair below zero for no cost at all; NaN stays, and is
    # ∞ in the end.
    return accountant.orders, np.maximum(accountant.rdp, 0.0)
