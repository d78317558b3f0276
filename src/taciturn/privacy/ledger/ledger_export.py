"""Write a ledger's costs as events of dp-accounting, so that others can recompute ε without any of
our code.

Each run's cost is one event of that library: a class by its name and its fields, events inside
events. Under correlated noise it is the one Gaussian mechanism (or the sampled ones, one for each
turn) that its rows amount to; that they do is our claim (docs/proofs.md), not the library's. Noise
multipliers already include sensitivities: those of fixed-size rounds, which replace a user by
another, are halved.
"""

from typing import Any

import attr
import dp_accounting
from dp_accounting import DpEvent

from taciturn.privacy.accounting.events import compose
from taciturn.privacy.ledger.ledger import Ledger

REPLACE_ONE = "replace one user by another"


def events_for_others(ledger: Ledger) -> list[dict[str, Any]]:
    """List every run that released something: its cost, with that of its start, and what is needed
    to recompute its ε.
    """
    rows = []
    for run in ledger.runs():
        costs, guarantee = ledger.cost(run), ledger.guarantee(run)
        if costs:
            relation = "REPLACE_ONE" if guarantee.adjacency == REPLACE_ONE else "ADD_OR_REMOVE_ONE"
            event = {
                "run": run,
                "event": _in_words(compose(costs[:-1], costs[-1])),
                "neighboring_relation": relation,
            }
            rows.append(
                event
                | {
                    name: getattr(guarantee, name)
                    for name in ("adjacency", "delta", "distance", "epsilon")
                }
            )
    return rows


def _in_words(event: DpEvent) -> dict[str, Any]:
    if getattr(dp_accounting, type(event).__name__, None) is not type(event):
        raise TypeError(f"dp-accounting has no event like {event}")
    fields = attr.asdict(event, recurse=False)
    return {"class_name": type(event).__name__} | {
        name: _value(value) for name, value in fields.items()
    }


def _value(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return _in_words(value)
    return [_value(one) for one in value] if isinstance(value, list | tuple) else value
