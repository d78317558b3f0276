"""Compute ρ of zero-concentrated differential privacy, which adds up over releases.

**Guarantee:** what is returned is an upper bound for the event, or ∞.
"""

import math

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent
from dp_accounting.dp_event import (
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)


def rho(event: DpEvent) -> float:
    """Return the ρ of an event; ∞ if part of it is not private.

    Sampling lowers ε, not ρ: at high orders it does not help.
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
