"""Write a ledger's costs as events of dp-accounting.

Others can then recompute ε without any of our code.

Each run's cost is one event of that library: a class by its name and its fields, events inside
events. Under correlated noise it is the one Gaussian mechanism (or the sampled ones, one for each
turn) that its rows amount to; that they do is our claim (docs/proofs.md), not the library's. Noise
multipliers already include sensitivities: those of fixed-size rounds, which replace a user by
another, are halved.

A run on people whose noise came from a seed is an event without privacy, and says so: recomputed,
it costs ∞.
"""

from typing import Any

import attr
import dp_accounting
from dp_accounting import DpEvent

from taciturn.privacy.accounting.events import compose
from taciturn.privacy.ledger.guarantee import Guarantee
from taciturn.privacy.ledger.ledger import Ledger

REPLACE_ONE = "replace one user by another"


def events_for_others(ledger: Ledger) -> list[dict[str, Any]]:
    """List every run that released something, with what is needed to recompute its ε.

    Its event is its own cost and that of its start.
    """
    rows = []
    for run in ledger.runs():
        costs = ledger.counted_cost(run)
        if costs:
            rows.append(_row_for_others(ledger.guarantee(run), costs))
    return rows


def _row_for_others(guarantee: Guarantee, costs: list[DpEvent]) -> dict[str, Any]:
    is_replacing = guarantee.adjacency == REPLACE_ONE
    return {
        "run": guarantee.run,
        "event": _in_words(compose(costs[:-1], costs[-1])),
        "neighboring_relation": "REPLACE_ONE" if is_replacing else "ADD_OR_REMOVE_ONE",
        "adjacency": guarantee.adjacency,
        "unit": guarantee.unit,
        "randomness": guarantee.randomness,
        "noise_is_known": guarantee.is_noise_known,
        "delta": guarantee.delta,
        "distance": guarantee.distance,
        "epsilon": guarantee.counted_spending.epsilon,
    }


def _in_words(event: DpEvent) -> dict[str, Any]:
    """Return an event of dp-accounting as JSON: its class by name, and its fields."""
    name = type(event).__name__
    if getattr(dp_accounting, name, None) is not type(event):
        raise TypeError(f"dp-accounting has no event like {event}")
    words: dict[str, Any] = {"class_name": name}
    for field, value in attr.asdict(event, recurse=False).items():
        words[field] = _value_in_words(value)
    return words


def _value_in_words(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return _in_words(value)
    if isinstance(value, list | tuple):
        return [_value_in_words(item) for item in value]
    return value
