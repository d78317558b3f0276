"""A budget for all runs on the same people is only ever lowered and never passed, whichever runs
are chosen, interrupted or closed.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant

from harness import pass_for_untouched
from taciturn.privacy.accounting.accountant import Budget, epsilon
from taciturn.privacy.accounting.conversions import gaussian_epsilon, with_distance
from taciturn.privacy.accounting.events import CorrelatedDpEvent
from taciturn.privacy.ledger.account import Account, BudgetExhausted, RunTerms
from taciturn.privacy.ledger.hash_chain import hash_row
from taciturn.privacy.ledger.ledger import Ledger, LedgerError
from taciturn.privacy.ledger.population_budget import ORDERS, PopulationBudget, epsilon_of_all
from taciturn.privacy.participation import FixedSize, PoissonSampling, spare_rounds

DELTA = 1e-6
ROUND = PoissonSampledDpEvent(0.05, GaussianDpEvent(1.0))
ROUNDS = 100
MOST = ROUNDS + spare_rounds(ROUNDS)
ONE_RUN = epsilon_of_all(
    [SelfComposedDpEvent(ROUND, MOST)], (1 - 1e-3) * DELTA / len(ORDERS), ORDERS
)
TWO_RUNS = epsilon_of_all(
    [SelfComposedDpEvent(ROUND, MOST)] * 2, (1 - 1e-3) * DELTA / len(ORDERS), ORDERS
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def account(path, name="run", release=ROUND, **changed) -> Account:
    adjacency = PoissonSampling.adjacency
    terms = RunTerms(
        name=name,
        recipe="recipe",
        population="text",
        adjacency=adjacency,
        randomness="operating system",
        accountant="rdp",
        budget=Budget(delta=DELTA),
        rounds=ROUNDS,
    )
    return Account(ledger=Ledger(path), terms=replace(terms, **changed), release=release)


def opened(path, name="run", releases=0, release=ROUND, **changed) -> Account:
    made = account(path, name, release, **changed)
    made.open()
    for _ in range(releases):
        made.charge(len(made.charges), "record")
    return made


def with_budget(path, epsilon) -> Ledger:
    ledger = Ledger(path)
    ledger.set_budget(PopulationBudget(epsilon=epsilon, delta=DELTA))
    return ledger


def test_a_run_that_could_pass_the_budget_does_not_start_and_one_that_cannot_does(path):
    with_budget(path, 1.001 * TWO_RUNS)
    opened(path, "first")
    opened(path, "second")
    with pytest.raises(LedgerError, match="could be passed"):
        opened(path, "third")
    assert Ledger(path).runs() == ["first", "second"]


def test_without_a_budget_any_number_of_runs_starts(path):
    """The twin."""
    for name in "abcdefgh":
        opened(path, name)
    assert Ledger(path).runs() == list("abcdefgh")


def test_what_runs_reserve_counts_and_not_what_they_have_spent(path):
    with_budget(path, 1.05 * ONE_RUN)
    opened(path, "first", releases=1)
    with pytest.raises(LedgerError, match="could be passed"):
        opened(path, "second")


def test_a_closed_run_gives_back_what_it_did_not_spend_and_never_continues(path):
    with_budget(path, 1.001 * TWO_RUNS)
    first = opened(path, "first", releases=50)
    first.close()
    for attempt in (
        lambda: first.charge(len(first.charges), "record"),
        lambda: account(path, "first").reopen(None),
    ):
        with pytest.raises(LedgerError, match="closed"):
            attempt()
    opened(path, "second")
    with pytest.raises(LedgerError, match="could be passed"):  # fifty releases are not given back
        opened(path, "third")
    Ledger(path).close("second")  # a run that was given up, by its name
    opened(path, "third")
    with pytest.raises(LedgerError, match="closed already"):
        Ledger(path).close("second")
    with pytest.raises(LedgerError, match="no run"):
        Ledger(path).close("unknown")


def test_a_run_that_is_closed_while_it_works_charges_nothing_more(path):
    with_budget(path, 1.1 * ONE_RUN)
    first = opened(path, "first", releases=3)
    Ledger(path).close("first")
    opened(path, "second")
    with pytest.raises(LedgerError, match="is closed, and has given back"):
        first.charge(len(first.charges), "record")


def test_a_run_never_charges_past_what_it_reserved(path):
    run = opened(path, releases=MOST)
    assert run.rows[0]["reserved"] == MOST
    with pytest.raises(BudgetExhausted, match=f"{MOST} releases that it reserved"):
        run.charge(len(run.charges), "record")
    again = account(path, rounds=10 * ROUNDS)  # whatever it would allow itself now
    again.reopen(None)
    with pytest.raises(BudgetExhausted, match="releases that it reserved"):
        again.charge(len(again.charges), "record")


def test_correlated_noise_is_reserved_in_full_and_nothing_is_given_back(path):
    release = CorrelatedDpEvent(
        ((ROUNDS, GaussianDpEvent(2.0)), (MOST, GaussianDpEvent(1.8))), "tree noise"
    )
    limit = epsilon_of_all([GaussianDpEvent(1.8)], (1 - 1e-3) * DELTA / len(ORDERS), ORDERS)
    with_budget(path, 0.99 * limit)
    with pytest.raises(LedgerError, match="could be passed"):
        opened(path, "too dear", release=release)
    path.unlink(), path.with_suffix(".head").unlink()
    with_budget(path, 1.001 * limit)
    run = opened(path, "first", 1, release)
    run.close()
    with pytest.raises(
        LedgerError, match="could be passed"
    ):  # one release of such noise has cost all rounds
        opened(path, "second", release=release)


def test_a_runs_own_budget_lowers_what_it_reserves(path):
    run = opened(path, budget=Budget(delta=DELTA, epsilon=1.0))
    assert run.rows[0]["reserved"] == run.max_releases < MOST


def test_a_budget_is_only_ever_lowered_and_never_below_what_is_reserved(path):
    ledger = with_budget(path, 2 * TWO_RUNS)
    for raised in (
        PopulationBudget(epsilon=3 * TWO_RUNS, delta=DELTA),
        PopulationBudget(epsilon=TWO_RUNS, delta=10 * DELTA),
    ):
        with pytest.raises(LedgerError, match="only ever lowered"):
            ledger.set_budget(raised)
    opened(path, "first")
    with pytest.raises(LedgerError, match="could be passed"):
        Ledger(path).set_budget(PopulationBudget(epsilon=0.9 * ONE_RUN, delta=DELTA))
    Ledger(path).set_budget(PopulationBudget(epsilon=1.01 * ONE_RUN, delta=DELTA))
    assert Ledger(path).budget == PopulationBudget(epsilon=1.01 * ONE_RUN, delta=DELTA)
    for senseless in (
        PopulationBudget(epsilon=0.0, delta=DELTA),
        PopulationBudget(epsilon=math.inf, delta=DELTA),
        PopulationBudget(epsilon=1.0, delta=1.0),
    ):
        with pytest.raises(LedgerError, match="the ε of a budget must lie between"):
            Ledger(path).set_budget(senseless)


def test_a_run_without_privacy_does_not_start_under_a_budget(path):
    with_budget(path, 100.0)
    with pytest.raises(LedgerError, match="without privacy"):
        opened(path, release=NonPrivateDpEvent())
    assert Ledger(path).runs() == []


def test_two_processes_cannot_both_take_the_last_of_a_budget(path):
    """Both read the ledger before either opens its run."""
    with_budget(path, 1.001 * ONE_RUN)
    first, second = account(path, "first"), account(path, "second")
    first.open()
    with pytest.raises(LedgerError, match="could be passed"):
        second.open()


def test_the_samplers_distances_count_and_may_not_use_up_delta(path):
    ledger = with_budget(path, 1.001 * TWO_RUNS)
    enough = 1e-3 * DELTA / (1 + math.exp(ledger.budget.epsilon))
    opened(path, "first", distance=0.6 * enough)
    with pytest.raises(LedgerError, match="could be passed"):
        opened(path, "second", distance=0.6 * enough)
    opened(path, "third", distance=0.3 * enough)


def test_a_budget_holds_for_any_choice_of_runs_and_a_filter_without_shares_does_not():
    """The twin is a filter without shares: it meets its budget at δ only at the best order, which
    choices of order could pass.
    """
    budget, cost = (
        PopulationBudget(epsilon=1.001 * ONE_RUN, delta=DELTA),
        SelfComposedDpEvent(ROUND, MOST),
    )
    assert budget.allows([cost], 0.0)
    assert epsilon_of_all([cost], DELTA) < 0.95 * budget.epsilon
    without_shares = epsilon_of_all([cost], DELTA, ORDERS) * 1.001
    assert not PopulationBudget(epsilon=without_shares, delta=DELTA).allows([cost], 0.0)


# --- one total ------------------------------------------------------------------------------------


def test_all_runs_have_one_total_under_zero_out_whatever_adjacency_they_state(path):
    poisson, fixed = PoissonSampling(0.1), FixedSize(5, 50)
    opened(path, "poisson", 10, poisson.event(1.0))
    opened(path, "fixed", 10, fixed.event(4.0), adjacency=fixed.adjacency)
    opened(
        path,
        "separated",
        1,
        CorrelatedDpEvent(((ROUNDS, GaussianDpEvent(3.0)),), ""),
        adjacency="zero out one user",
    )
    ledger = Ledger(path)
    total, rho = ledger.total(DELTA)
    assert len(ledger.totals(DELTA)) == 3
    assert total > max(one for _, one, _ in ledger.totals(DELTA))
    assert rho == pytest.approx(sum(one for _, _, one in ledger.totals(DELTA)))
    # Without sampling, one Gaussian for each release is never less.
    assert total < gaussian_epsilon(math.sqrt(2 * rho), DELTA)


def test_the_total_of_runs_under_one_adjacency_is_the_librarys(path):
    for name in ("one", "other"):
        opened(path, name, 10)
    direct = RdpAccountant()
    direct.compose(SelfComposedDpEvent(ROUND, 20))
    assert Ledger(path).total(DELTA)[0] == pytest.approx(direct.get_epsilon(DELTA))
    assert Ledger(path).total(DELTA)[0] == pytest.approx(Ledger(path).totals(DELTA)[0][1])


def test_nothing_released_costs_nothing(path):
    opened(path)
    assert Ledger(path).total(DELTA) == (0.0, 0)
    assert Ledger(path).totals(DELTA) == []


def test_zero_out_of_a_poisson_user_is_the_same_pair_of_sums_as_absence():
    """This is why charges add up unchanged: a user who is drawn and reports zero gives the same sum
    as an absent one.
    """
    generator, reports = np.random.default_rng(0), np.arange(1.0, 9.0)
    drawn = generator.random((1000, 9)) < 0.3
    absent = drawn[:, :8] @ reports
    zeroed = drawn @ np.append(reports, 0.0)
    assert np.array_equal(absent, zeroed)


# --- distances ------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", [1e-18, 1e-10, 1e-8])
def test_a_distance_costs_one_and_e_to_the_epsilon_times_itself_of_delta(path, distance):
    plain, distant = opened(path, "plain", 10), opened(path, "distant", 10, distance=distance)
    bound = distant.guarantee().epsilon
    assert bound >= plain.guarantee().epsilon
    left = DELTA - (1 + math.exp(bound)) * distance
    assert epsilon(SelfComposedDpEvent(ROUND, 10), left, "rdp") <= bound
    assert bound == pytest.approx(epsilon(SelfComposedDpEvent(ROUND, 10), left, "rdp"), rel=1e-3)


def test_a_distance_too_large_for_delta_means_no_privacy(path):
    assert opened(path, releases=10, distance=DELTA).guarantee().epsilon == math.inf
    assert with_distance(lambda delta: 800.0, DELTA, 1e-300) == math.inf
    assert (
        account(
            path, "limited", budget=Budget(delta=DELTA, epsilon=1.0), distance=DELTA
        ).max_releases
        == 0
    )


def test_distances_of_runs_add_up_and_those_of_a_warm_start_count(path):
    for name in ("one", "other"):
        opened(path, name, 10, distance=DELTA / 100)
    ledger = Ledger(path)
    assert ledger.total(DELTA)[0] > with_distance(
        lambda delta: epsilon_of_all([SelfComposedDpEvent(ROUND, 20)], delta), DELTA, DELTA / 100
    )
    after = opened(path, "after", 10, lineage_distance=ledger.distance("one"), distance=DELTA / 100)
    assert after.ledger.distance("after") == DELTA / 50
    assert after.guarantee().epsilon > ledger.guarantee("one").epsilon


# --- noise of floats ------------------------------------------------------------------------------


def as_of_floats(path, run) -> None:
    """Rewrite the ledger as it was before noise was made of integers."""
    rows, previous = [json.loads(line) for line in path.read_text().splitlines()], "0" * 64
    for row in rows:
        if row["kind"] == "open" and row["run"] == run:
            del row["noise"], row["reserved"], row["distance"]
        row["previous"] = previous
        row["hash"] = previous = hash_row(row)
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    head = path.with_suffix(".head")
    head.write_text(json.dumps(json.loads(head.read_text()) | {"head": previous}))
    pass_for_untouched(path)


@pytest.fixture
def of_floats(path):
    opened(path, "before", 10)
    opened(path, "after", 10)
    as_of_floats(path, "before")
    return path


def test_a_run_with_float_noise_costs_infinity(of_floats):
    ledger = Ledger(of_floats)
    assert (
        ledger.guarantee("before").epsilon
        == ledger.total(DELTA)[0]
        == ledger.totals(DELTA)[0][1]
        == math.inf
    )
    assert not ledger.guarantee("before").is_private
    assert ledger.guarantee("after").is_private


def test_a_run_that_starts_from_float_noise_costs_infinity_too(of_floats):
    assert Ledger(of_floats).cost("before") == [NonPrivateDpEvent()]


def test_under_a_budget_float_noise_counts_as_infinity(of_floats):
    with pytest.raises(LedgerError, match="without privacy"):
        with_budget(of_floats, 100.0)


def test_a_run_with_float_noise_is_not_resumed_with_integers(of_floats):
    with pytest.raises(LedgerError, match="kind of noise"):
        account(of_floats, "before").reopen(None)
    account(of_floats, "after").reopen(None)  # the twin
