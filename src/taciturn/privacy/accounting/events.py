"""Describe what releases cost as events: of dp-accounting, and one of our own for correlated noise.

An event says what was released. What that costs in ε is computed elsewhere
(privacy/accounting/accountant.py). Events are repeated, composed, put into words, and written to a
ledger as JSON and read back.

**Guarantee:** an event that is read from JSON is one that a release could have had. Anything else
is refused, and never taken for a cheaper one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import UnionType
from typing import Any

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, NonPrivateDpEvent
from dp_accounting.dp_event import (
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from taciturn.privacy.accounting.zero_concentrated import rho


@dataclass(frozen=True)
class CorrelatedDpEvent(DpEvent):
    """Gaussian noise that is correlated over a run's releases, with a claim about participation.

    One release has no cost of its own. The first n together have: that of one Gaussian mechanism
    (privacy/noise/sensitivity.py), or of one for each turn of a user, where the curator draws who
    takes it (privacy/participation.py).
    """

    # Pairs of a number of releases and what that many cost, both rising.
    costs: tuple[tuple[int, DpEvent], ...]
    # Which noise it is and which participation, in words.
    claim: str

    def __post_init__(self) -> None:
        counts = [count for count, _ in self.costs]
        rhos = [rho(cost) for _, cost in self.costs]
        has_costs = bool(counts) and counts[0] > 0 and rhos[0] > 0
        counts_rise = all(count < next_count for count, next_count in pairwise(counts))
        rhos_rise = all(value <= next_value for value, next_value in pairwise(rhos))
        if not (has_costs and counts_rise and rhos_rise and rhos[-1] < math.inf):
            raise ValueError("the costs of a run rise with its releases, and are finite")

    @property
    def max_releases(self) -> int:
        """Return for how many releases there is noise."""
        last_count, _ = self.costs[-1]
        return last_count

    def cost_of_first(self, releases: int) -> DpEvent:
        """Return the cost of the next listed number of releases, which is no less."""
        for count, cost in self.costs:
            if releases <= count:
                return cost
        raise ValueError(f"this run has noise for {self.max_releases} releases, not for {releases}")


def repeat(release: DpEvent, count: int) -> DpEvent:
    """Return the cost of `count` releases.

    Args:
        release: what one of them costs.
        count: at least one: for none of an event of infinite cost the library would say ε = 0.

    Raises:
        ValueError: if there are no releases, or more than correlated noise was made for.
    """
    if count < 1:
        raise ValueError(f"{count} releases have no cost to be stated")
    match release:
        case CorrelatedDpEvent():
            return release.cost_of_first(count)
        case SelfComposedDpEvent():
            return SelfComposedDpEvent(release.event, release.count * count)
        case NonPrivateDpEvent():
            return release
        case _:
            return SelfComposedDpEvent(release, count)


def most_releases(release: DpEvent, wanted: int) -> int:
    """Return how many of the wanted releases are possible."""
    if isinstance(release, CorrelatedDpEvent):
        return min(wanted, release.max_releases)
    return wanted


def compose(earlier: Sequence[DpEvent], event: DpEvent) -> DpEvent:
    """Compose an event with the earlier ones of the same model.

    The accountant uses RDP for the composition, since each was chosen after the last.
    """
    if not earlier:
        return event
    return ComposedDpEvent([*earlier, event])


def contains(event: DpEvent, kind: type | UnionType) -> bool:
    """Tell whether what is repeated or composed in an event is of this kind."""
    match event:
        case CorrelatedDpEvent():
            _, first_cost = event.costs[0]
            return contains(first_cost, kind)
        case ComposedDpEvent():
            return any(contains(part, kind) for part in event.events)
        case SelfComposedDpEvent():
            return contains(event.event, kind)
        case _:
            return isinstance(event, kind)


def is_sampled(release: DpEvent) -> bool:
    """Tell whether its cost rests on cohorts that are drawn, and secret."""
    return contains(release, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent)


def claim_of(release: DpEvent) -> str:
    """State in words what a cost claims: who takes part and, where rows share it, which noise."""
    match release:
        case CorrelatedDpEvent():
            return release.claim
        case PoissonSampledDpEvent():
            probability = f"{release.sampling_probability:.3g}"
            return (
                f"each user takes part in a round with probability {probability},"
                " drawn by the curator"
            )
        case SampledWithoutReplacementDpEvent():
            share = f"{release.sample_size} of {release.source_dataset_size} users"
            return f"{share} take part in a round, drawn by the curator"
        case SelfComposedDpEvent():
            return claim_of(release.event)
        case GaussianDpEvent():
            return "everyone may take part in every round"
        case _:
            return "none"


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """Return an event as the ledger writes it; refuse one that the ledger has no words for."""
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
            return {
                "event": "fixed size",
                "users": event.source_dataset_size,
                "size": event.sample_size,
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
        case {"event": "gaussian", "noise_multiplier": float(multiplier)}:
            if 0 < multiplier < math.inf:
                return GaussianDpEvent(multiplier)
        case {"event": "poisson", "probability": float(probability), "of": dict(inner)}:
            if 0 < probability < 1:
                return PoissonSampledDpEvent(probability, event_from_json(inner))
        case {"event": "fixed size", "users": int(users), "size": int(size), "of": dict(inner)}:
            if 0 < size < users:
                return SampledWithoutReplacementDpEvent(users, size, event_from_json(inner))
        case {"event": "repeated", "count": int(count), "of": dict(inner)}:
            if count > 0:
                return SelfComposedDpEvent(event_from_json(inner), count)
        case {"event": "non-private"}:
            return NonPrivateDpEvent()
        case {"event": "correlated", "costs": list(costs), "claim": str(claim)}:
            if all(type(count) is int and isinstance(cost, dict) for count, cost in costs):
                read_costs = [(count, event_from_json(cost)) for count, cost in costs]
                return CorrelatedDpEvent(tuple(read_costs), claim)
        case _:
            pass
    raise ValueError(f"a ledger could not hold this event: {row}")
