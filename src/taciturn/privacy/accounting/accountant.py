"""Compute ε of a list of releases, and search for what a budget allows.

An event goes in (privacy/accounting/events.py), and ε comes out. dp-accounting does the analysis;
the choices are here.

Accountants by name:

- `pld` (default): privacy loss distributions (privacy/accounting/loss_distributions.py), or RDP
  where that is smaller or they do not apply (fixed-size rounds, noise multipliers below 0.3, a δ
  below 10⁻¹⁸); the exact formula where nothing is sampled. All are upper bounds.
- `rdp`: Rényi differential privacy, the conversion of Canonne, Kamath and Steinke. Used to compose
  *runs*, each chosen after seeing the one before, where PLD is not a valid filter.
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, NeighboringRelation
from dp_accounting.dp_event import (
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from taciturn.names import AccountantName
from taciturn.privacy.accounting.conversions import gaussian_epsilon, with_distance
from taciturn.privacy.accounting.events import contains
from taciturn.privacy.accounting.loss_distributions import epsilon_by_loss_distributions
from taciturn.privacy.accounting.zero_concentrated import rho

# Below this noise multiplier a PLD takes minutes and gigabytes, and log-ratios of those always
# drawn cancel (`_output_of` in loss_distributions.py).
LEAST_PLD_NOISE = 0.3
CLASSIC_ORDERS = range(2, 34)
WHOLE_ORDERS = (*range(2, 64), 128, 256, 512, 1024)
# Grids of privacy loss: a coarse one is ten times faster, and its ε a little larger.
FINE = 1e-4
COARSE = 1e-3
# Noise multipliers are looked for between these two, to this factor.
LEAST_NOISE = 1e-2
MOST_NOISE = 1e4
NOISE_STEP = 1.0005
# ε falls as noise rises, at least as fast as a line of this slope, both in logarithms.
LEAST_SLOPE = -0.3
# A logarithm that stands for no ε at all, and for one that is infinite.
MOST_OVER = 30.0

# dp-accounting announces each Rényi order that it leaves out; leaving one out only makes ε larger.
logging.getLogger("absl").setLevel(logging.ERROR)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend: an ε at a δ, or a ρ of zero-concentrated differential privacy, or both.

    None stands for no limit.
    """

    delta: float
    epsilon: float | None = None
    rho: float | None = None

    def allows(
        self, event: DpEvent, accountant: AccountantName, grid: float = FINE, distance: float = 0.0
    ) -> bool:
        """Tell whether an event stays within it; `distance` is that of the noise drawn."""
        if self.rho is not None and rho(event) > self.rho:
            return False
        if self.epsilon is None:
            return True
        return epsilon(event, self.delta, accountant, grid=grid, distance=distance) <= self.epsilon

    def over(
        self, event: DpEvent, accountant: AccountantName, grid: float = FINE, distance: float = 0.0
    ) -> float:
        """Return by how much an event passes it, as a logarithm; 0 and less is within it."""
        excesses = []
        if self.rho is not None:
            excesses.append(_log_ratio(rho(event), self.rho))
        if self.epsilon is not None:
            spent = epsilon(event, self.delta, accountant, grid=grid, distance=distance)
            excesses.append(_log_ratio(spent, self.epsilon))
        return max(excesses)


def _log_ratio(spent: float, limit: float) -> float:
    """Return the logarithm of a ratio, between −MOST_OVER and MOST_OVER."""
    if spent <= 0:
        return -MOST_OVER
    return max(-MOST_OVER, min(MOST_OVER, math.log(spent / limit)))


def epsilon(
    event: DpEvent,
    delta: float,
    accountant: AccountantName = "pld",
    grid: float = FINE,
    distance: float = 0.0,
) -> float:
    """Return the smallest ε that can be shown for an event at δ; ∞ if there is none.

    Args:
        event: what was released.
        delta: the δ at which ε is wanted.
        accountant: how ε is computed.
        grid: the step of privacy loss distributions.
        distance: the total variation distance τ, over all releases together, between the noise
            drawn and the event's normal noise. Two worlds that are (ε, δ′)-close under normal noise
            are (ε, δ′ + (1 + e^ε)·τ)-close under the noise drawn.

    >>> sampled = PoissonSampledDpEvent(5000 / 763430, GaussianDpEvent(1.0))
    >>> round(epsilon(SelfComposedDpEvent(sampled, 5000), 1e-9), 2)
    3.9
    """
    if _least_noise_multiplier(event) == 0:
        return math.inf

    def bound(normal_delta: float) -> float:
        return _epsilon_of_normal_noise(event, normal_delta, accountant, grid)

    return with_distance(bound, delta, distance)


def _epsilon_of_normal_noise(
    event: DpEvent, delta: float, accountant: AccountantName, grid: float
) -> float:
    """Return the smallest of several valid bounds on ε for normal noise."""
    if accountant == "moments":
        return classic_epsilon(event, delta)
    mu = _mu(event)
    if accountant == "pld" and mu is not None:
        return gaussian_epsilon(mu, delta)
    if accountant == "pld" and _has_loss_distribution(event):
        # Integer orders are enough beside a loss distribution, and are quick to compute.
        by_renyi = _renyi_epsilon(event, delta, WHOLE_ORDERS)
        by_losses = epsilon_by_loss_distributions(event, delta, grid)
        return min(by_renyi, by_losses)
    return _renyi_epsilon(event, delta)


def _has_loss_distribution(event: DpEvent) -> bool:
    if isinstance(event, ComposedDpEvent) or contains(event, SampledWithoutReplacementDpEvent):
        return False
    return _least_noise_multiplier(event) >= LEAST_PLD_NOISE


def _mu(event: DpEvent) -> float | None:
    """Return μ of an event that consists only of Gaussian mechanisms; None for any other."""
    match event:
        case GaussianDpEvent(noise_multiplier=multiplier) if multiplier > 0:
            return 1 / multiplier
        case SelfComposedDpEvent(
            event=GaussianDpEvent(noise_multiplier=multiplier), count=count
        ) if multiplier > 0:
            return math.sqrt(count) / multiplier
        case _:
            return None


def _least_noise_multiplier(event: DpEvent) -> float:
    """Return the smallest noise multiplier inside an event; 0 if part of it is not private."""
    match event:
        case GaussianDpEvent():
            return event.noise_multiplier if event.noise_multiplier > 0 else 0.0
        case PoissonSampledDpEvent() | SampledWithoutReplacementDpEvent() | SelfComposedDpEvent():
            return _least_noise_multiplier(event.event)
        case ComposedDpEvent():
            return min(map(_least_noise_multiplier, event.events), default=math.inf)
        case _:
            return 0.0


class RenyiCurve(NamedTuple):
    """The cost of an event in Rényi differential privacy, at each of some orders."""

    orders: np.ndarray
    costs: np.ndarray


def classic_epsilon(event: DpEvent, delta: float, orders: range = CLASSIC_ORDERS) -> float:
    """Return ε = min over orders of rdp + log(1/δ)/(order − 1) (Abadi et al. 2016)."""
    curve = _renyi_curve(event, tuple(orders))
    bounds = [
        cost + math.log(1 / delta) / (order - 1)
        for order, cost in zip(curve.orders, curve.costs, strict=True)
    ]
    return float(min(bounds))


def _renyi_epsilon(event: DpEvent, delta: float, orders: tuple[int, ...] | None = None) -> float:
    curve = _renyi_curve(event, orders)
    if np.isnan(curve.costs).any():
        return math.inf
    smallest, _ = compute_epsilon(list(curve.orders), list(curve.costs), delta)
    return float(smallest)


def _renyi_curve(event: DpEvent, orders: tuple[int, ...] | None = None) -> RenyiCurve:
    """Return the Rényi cost of an event at each order.

    Costs at an order add up under any adjacency, as all of them hold under zero-out.
    """
    match event:
        case ComposedDpEvent():
            curves = [_renyi_curve(part, orders) for part in event.events]
            total = np.sum([curve.costs for curve in curves], axis=0)
            return RenyiCurve(curves[0].orders, total)
        case SelfComposedDpEvent():
            curve = _renyi_curve(event.event, orders)
            return RenyiCurve(curve.orders, event.count * curve.costs)
        case _:
            return renyi_curve_of_one(event, orders)


@functools.lru_cache(maxsize=256)
def renyi_curve_of_one(event: DpEvent, orders: tuple[float, ...] | None) -> RenyiCurve:
    """Return the Rényi cost of one event at each order, as dp-accounting computes it."""
    # Fixed-size events carry half the noise multiplier already (participation.py), because the
    # library's replace-one RDP does not double the sensitivity.
    is_fixed_size = contains(event, SampledWithoutReplacementDpEvent)
    relation = (
        NeighboringRelation.REPLACE_ONE if is_fixed_size else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant = RdpAccountant(list(orders) if orders else None, relation)
    accountant.compose(event)
    # The library takes values that come out a hair below zero for no cost at all; NaN stays, and is
    # ∞ in the end.
    costs = np.maximum(accountant.rdp, 0.0)
    return RenyiCurve(accountant.orders, costs)


def allowed_releases(
    cost: Callable[[int], DpEvent],
    budget: Budget,
    accountant: AccountantName,
    most: int,
    distance: float = 0.0,
) -> int:
    """Return the largest number of releases, up to `most`, within the budget.

    Args:
        cost: what a number of releases costs.
        budget: what they may cost.
        accountant: how ε is computed.
        most: the most releases there may be.
        distance: that of the noise of all of them from normal noise.
    """

    def allows(releases: int, grid: float = FINE) -> bool:
        return budget.allows(cost(releases), accountant, grid=grid, distance=distance)

    def allows_roughly(releases: int) -> bool:
        return allows(releases, COARSE)

    if allows(most):
        return most
    # A coarse grid comes close, and the fine one has the last word.
    allowed = _find_last_allowed(allows_roughly, low=0, high=most)
    if allowed and not allows(allowed):
        return _find_last_allowed(allows, low=0, high=allowed)
    step = 1
    while allowed + step < most and allows(allowed + step):
        allowed += step
        step *= 2
    return _find_last_allowed(allows, low=allowed, high=min(allowed + step, most))


def _find_last_allowed(allows: Callable[[int], bool], low: int, high: int) -> int:
    """Find the last allowed number between `low`, which is allowed, and `high`, which is not."""
    while high - low > 1:
        middle = (low + high) // 2
        if allows(middle):
            low = middle
        else:
            high = middle
    return low


def noise_for_budget(
    cost: Callable[[float], DpEvent],
    budget: Budget,
    accountant: AccountantName,
    distance: float = 0.0,
) -> float:
    """Return the smallest noise multiplier within the budget, to a part in a thousand.

    Args:
        cost: what all rounds cost at a noise multiplier.
        budget: what they may cost.
        accountant: how ε is computed.
        distance: that of the noise of all rounds from normal noise.

    Raises:
        ValueError: if the budget has no limit, or is met by no noise or by almost none.
    """
    if budget.epsilon is None and budget.rho is None:
        raise ValueError("a noise multiplier can only be worked out from a budget of ε or ρ")

    def allows(multiplier: float, grid: float = COARSE) -> bool:
        return budget.allows(cost(multiplier), accountant, grid=grid, distance=distance)

    def over(multiplier: float) -> float:
        return budget.over(cost(multiplier), accountant, grid=COARSE, distance=distance)

    low = LEAST_NOISE
    high = MOST_NOISE
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
    refused, allowed = _find_crossing(over, low=low, high=high)

    def allows_roughly(multiplier: float) -> bool:
        """Answer from the two known multipliers where they tell: each answer takes a while."""
        if multiplier <= refused or multiplier >= allowed:
            return multiplier >= allowed
        return allows(multiplier)

    # Halving still decides, so that the multiplier does not depend on how the crossing was found.
    # A coarse grid comes close, and the fine one has the last word.
    while high > low * NOISE_STEP:
        middle = math.sqrt(low * high)
        if allows_roughly(middle):
            high = middle
        else:
            low = middle
    while not allows(high, FINE):
        high *= NOISE_STEP
    return high


def _find_crossing(
    over: Callable[[float], float], *, low: float, high: float
) -> tuple[float, float]:
    """Return a multiplier that passes the budget and one that does not, close together.

    They are found by secants, in logarithms, where ε falls nearly along a line.

    Args:
        over: by how much a multiplier passes the budget; it falls as the multiplier rises.
        low: one that passes it.
        high: one that does not.
    """
    within = math.log(NOISE_STEP)
    low, high = math.log(low), math.log(high)
    place = 0.0
    slope = -1.0
    last: tuple[float, float] | None = None
    while high - low > within:
        # Where the line misleads, halve.
        if not low < place < high:
            place = (low + high) / 2
        excess = over(math.exp(place))
        if excess > 0:
            low = place
        else:
            high = place
        if abs(excess) == MOST_OVER:
            place = math.nan
            continue
        if last is not None:
            slope = min(LEAST_SLOPE, (excess - last[1]) / (place - last[0]))
        last = (place, excess)
        # A little past the crossing, so that the other side comes close as well.
        beyond = within / 3 if excess > 0 else -within / 3
        place = place - excess / slope + beyond
    return math.exp(low), math.exp(high)
