"""A budget for all runs on the same people together: a filter in Rényi differential privacy (RDP).

Runs are chosen after seeing earlier ones. RDP adds up even then, so the curves of all runs are
added, order by order.

**One adjacency for all: zero out one user's reports.** Charges under other adjacencies count as
they stand. A user who is absent under Poisson sampling, and one who is sampled and reports zero,
give the same sum; and to zero a user out is one way of replacing them. No factor is needed.

**Guarantee:** with a budget (E, D), fixed before the runs, all of them together are (E,
D)-differentially private under zero-out. Let a path be what the runs chose and released. The filter
holds at order α on a path if the sum of the curves there is at most B(α), where B(α) at order α
implies (E, D′). Stopped where it would not hold at α, the runs are B(α)-RDP at α for any way of
choosing (Feldman and Zrnic 2021, Theorem 3.1), hence (E, D′)-private. A path continues while *some*
order holds. Share out the paths among the orders that hold
to their end: each share is (E, D′)-private, so all are (E, D′·orders). Hence D′ = D/orders, and few
orders. A thousandth of D is set apart for the samplers' distances τ from their ideal, which cost (1
+ e^E)·Στ.

From its opening a run counts with the most it may cost; once closed, with what it did cost. Closing
gives the rest back: a filter counts the releases that were made, whatever decided when to stop.
Correlated noise is charged in full with its first release.

**Assumes:** the budget did not depend on what earlier runs released. One that is set later is kept
all the same, and is a promise for the largest that might have been set.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from dp_accounting.rdp import compute_epsilon

from taciturn.privacy.accounting.accountant import renyi_curve_of_one

ORDERS = (1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256)
# This share of δ is set apart for the samplers' distances from their ideal.
FOR_DISTANCES = 1e-3


@dataclass(frozen=True, kw_only=True)
class PopulationBudget:
    """What all runs on the same people may cost together."""

    epsilon: float
    delta: float

    def allows(self, costs: Sequence[DpEvent], distance: float) -> bool:
        """Tell whether runs of these costs stay within it, however they are chosen.

        Args:
            costs: what each run may cost.
            distance: how far the samplers of all runs together are from their ideal.
        """
        if (1 + math.exp(self.epsilon)) * distance > FOR_DISTANCES * self.delta:
            return False
        delta_of_an_order = (1 - FOR_DISTANCES) * self.delta / len(ORDERS)
        return epsilon_of_all(costs, delta_of_an_order, ORDERS) <= self.epsilon


def epsilon_of_all(
    costs: Sequence[DpEvent], delta: float, orders: tuple[float, ...] | None = None
) -> float:
    """Return ε at δ of all costs together, each under its own adjacency, under zero-out."""
    if not costs:
        return 0.0
    curves = [renyi_curve_of_one(cost, orders) for cost in costs]
    total = np.sum([curve.costs for curve in curves], axis=0)
    # The library takes NaN for no cost at all.
    has_unknown_cost = np.isnan(total).any()
    if has_unknown_cost:
        return math.inf
    used_orders = list(curves[0].orders)
    smallest, _ = compute_epsilon(used_orders, list(total), delta)
    return float(smallest)
