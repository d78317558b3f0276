"""What a run promises that makes fewer releases than it declared.

**Guarantee:** the pair that is promised holds whatever decided how many releases were made, what
they showed included. Who looks at releases may end a run because of them: the ε of those that were
made would hold if their number had been fixed beforehand. That of all that were declared always
holds, as what was released is a function of what all would have been (docs/proofs.md, 5). For
correlated noise the two are the same, as all rounds are charged with the first.

Ledgers still count what was made, as a budget may (privacy/ledger/population_budget.py).
"""

from dataclasses import replace

from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.events import compose, event_from_json, repeat
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.ledger.guarantee import EarlyEnd, Guarantee
from taciturn.privacy.ledger.run_rows import RunRows


def promise(ledger: RunRows, run: str, head: str | None = None) -> Guarantee:
    """Return what holds for what a run released, whatever decided when it ended.

    It counts all that the run has released, also after the row of this model: who reads the model
    may have later ones, and the statement speaks of them, too.

    Args:
        ledger: of the run, or the run's own rows.
        run: its name.
        head: the row of a model (default: the run's last).

    Raises:
        LedgerError: if the ledger has no such run, or the run no such row.
    """
    spent = ledger.guarantee(run)
    last = spent.head
    if head is not None and head != last:
        spent = replace(spent, head=ledger.guarantee(run, head).head)
    made = ledger.cost(run, last)
    all_declared = promised_cost(ledger, run, last)
    if all_declared == made:
        return spent

    def epsilon_of(costs: list[DpEvent], delta: float) -> float:
        cost = compose(costs[:-1], costs[-1])
        return epsilon(cost, delta, spent.accountant, distance=spent.distance)

    declared = _count_declared(ledger, run)
    early = EarlyEnd(
        declared=declared,
        epsilon_of_made=spent.epsilon,
        epsilon_ex_post=epsilon_of(made, spent.delta / declared),
    )
    return replace(
        spent,
        epsilon=epsilon_of(all_declared, spent.delta),
        rho=rho(compose(all_declared[:-1], all_declared[-1])),
        ended_early=early,
    )


def promised_cost(ledger: RunRows, run: str, head: str) -> list[DpEvent]:
    """Return the costs of a run's model that hold whatever decided when it ended.

    They are those of its lineage, and of all releases that it declared, if it made any.

    Args:
        ledger: of the run, or the run's own rows.
        run: its name.
        head: up to which row.
    """
    costs = ledger.cost(run, head)
    declared = _count_declared(ledger, run)
    is_early = 0 < _count_made(ledger, run, head) < declared
    # Noise of floats has no cost that could be repeated.
    if not is_early or isinstance(costs[-1], NonPrivateDpEvent):
        return costs
    opening = ledger.run_rows(run)[0]
    return [*costs[:-1], repeat(event_from_json(opening["release"]), declared)]


def _count_made(ledger: RunRows, run: str, head: str) -> int:
    made = 0
    for row in ledger.run_rows(run):
        made += row["kind"] == "charge"
        if row["hash"] == head:
            break
    return made


def _count_declared(ledger: RunRows, run: str) -> int:
    """Return how many releases a run makes that nobody ends; its budget may allow no more."""
    opening = ledger.run_rows(run)[0]
    # Ledgers of older versions do not say it.
    rounds = opening.get("rounds", 0)
    return min(rounds, opening.get("reserved", rounds))
