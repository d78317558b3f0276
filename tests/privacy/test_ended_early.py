"""A run that somebody ends because of what it released promises what all its releases would have.

Here it is ended as an attacker would: as soon as what it released tells the two worlds apart.
"""

import math

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent

from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.accounting.events import CorrelatedDpEvent, repeat
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.early_end import promise
from taciturn.privacy.ledger.ledger import Ledger

ROUNDS = 32
NOISE = 4.0
DELTA = 0.01
GAUSSIAN = GaussianDpEvent(NOISE)


def open_account(path, release: DpEvent = GAUSSIAN, epsilon=None):
    terms = RunTerms(
        name="run",
        recipe="r",
        population="p",
        adjacency="add or remove one user",
        randomness="operating system",
        accountant="pld",
        budget=Budget(delta=DELTA, epsilon=epsilon),
        rounds=ROUNDS,
    )
    account = Account(ledger=Ledger(path), terms=terms, release=release)
    account.open()
    return account


def charge(account, releases):
    for round in range(releases):
        account.charge(round, "record")
    return account


@pytest.fixture(scope="module")
def stated(tmp_path_factory):
    """Return what is stated of a run that ends after each number of releases."""
    account = open_account(tmp_path_factory.mktemp("stated") / "ledger.jsonl")
    spent = []
    promised = []
    for round in range(ROUNDS):
        account.charge(round, "record")
        spent.append(account.guarantee())
        promised.append(account.promise())
    return spent, promised


@pytest.fixture(scope="module")
def losses():
    """Return by run and number of releases log P/Q of what was released, in the world P."""
    coins = np.random.default_rng(1)
    noise = coins.normal(size=(100_000, ROUNDS))
    releases = np.arange(1, ROUNDS + 1)
    return releases / (2 * NOISE**2) + np.cumsum(noise, axis=1) / NOISE


def delta_needed(losses, epsilons):
    """Return Σ_t (P − e^ε_t Q)(S_t), where runs end as soon as that gains much, and S says so."""
    stated = np.array(epsilons)
    needed = 0.0
    for margin in (0.02, 0.05, 0.1, 0.2, 0.4):
        gains = losses > stated + margin
        ended = np.where(gains.any(axis=1), gains.argmax(axis=1), ROUNDS - 1)
        at_end = np.take_along_axis(losses, ended[:, None], axis=1)[:, 0]
        counted = -np.expm1(np.minimum(0, stated[ended] - at_end))
        needed = max(needed, float(counted.mean()))
    return needed


def test_what_is_promised_holds_for_runs_that_are_ended_by_what_they_released(stated, losses):
    _, promised = stated
    assert delta_needed(losses, [one.epsilon for one in promised]) <= DELTA
    ex_post = [one.ended_early.epsilon_ex_post for one in promised[:-1]]
    # Of those alone that ended early.
    assert delta_needed(losses, [*ex_post, math.inf]) <= DELTA


def test_the_twin_that_states_what_was_spent_promises_too_much(stated, losses):
    spent, _ = stated
    assert delta_needed(losses, [one.epsilon for one in spent]) > 3 * DELTA


def test_a_run_that_ended_early_promises_what_all_its_releases_would_have(stated):
    spent, promised = stated
    whole = promised[-1]
    assert whole == spent[-1]
    assert whole.ended_early is None
    for made, (one, used) in enumerate(zip(promised[:-1], spent[:-1], strict=True), start=1):
        assert (one.epsilon, one.delta, one.rho) == (whole.epsilon, DELTA, whole.rho)
        assert one.for_group(2) == whole.for_group(2)
        assert one.releases == made
        assert one.ended_early.declared == ROUNDS
        assert one.ended_early.epsilon_of_made == used.epsilon < whole.epsilon
        assert one.ended_early.epsilon_ex_post > used.epsilon


def test_what_is_counted_stays_what_was_made(tmp_path):
    account = charge(open_account(tmp_path / "ledger.jsonl"), 3)
    assert account.promise().ended_early is not None
    assert account.ledger.total(DELTA) == (account.guarantee().epsilon, account.guarantee().rho)
    assert account.ledger.counted_cost("run") == [repeat(GAUSSIAN, 3)]


@pytest.mark.parametrize(
    "release",
    [
        NonPrivateDpEvent(),
        # All rounds are charged with the first.
        CorrelatedDpEvent(((ROUNDS, GaussianDpEvent(1.0)), (40, GaussianDpEvent(0.9))), "claim"),
    ],
)
def test_nothing_changes_where_more_releases_would_have_cost_no_more(tmp_path, release):
    account = charge(open_account(tmp_path / "ledger.jsonl", release), 3)
    assert account.promise() == account.guarantee()


def test_what_a_budget_ends_was_ended_beforehand(tmp_path):
    account = open_account(tmp_path / "ledger.jsonl", epsilon=1.0)
    allowed = account.max_releases
    assert 1 < allowed < ROUNDS
    charge(account, allowed - 1)
    early = account.promise().ended_early
    assert early is not None
    assert early.declared == allowed
    assert account.promise().epsilon <= 1.0
    account.charge(allowed - 1, "record")
    assert account.promise() == account.guarantee()


def test_a_run_that_released_nothing_has_spent_nothing(tmp_path):
    account = open_account(tmp_path / "ledger.jsonl")
    assert account.promise().epsilon == 0.0


def test_sampled_rounds_too(tmp_path):
    release = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
    account = charge(open_account(tmp_path / "ledger.jsonl", release), 2)
    early = account.promise()
    charge_all = open_account(tmp_path / "other.jsonl", release)
    assert early.epsilon == charge(charge_all, ROUNDS).guarantee().epsilon
    assert early.epsilon > account.guarantee().epsilon


def test_a_model_of_a_run_that_went_on_promises_what_all_that_was_released_costs(tmp_path):
    account = charge(open_account(tmp_path / "ledger.jsonl"), 2)
    head = account.head
    at_head = account.ledger.guarantee("run", head)
    account.charge(2, "record")
    of_model = promise(account.ledger, "run", head)
    assert of_model.head == head
    assert of_model.releases == 3
    assert of_model.epsilon == account.promise().epsilon
    # The twin: what the ledger counted at the model's own row.
    assert at_head.releases == 2
    assert at_head.epsilon < of_model.ended_early.epsilon_of_made < of_model.epsilon


def test_a_model_from_before_the_first_release_of_a_run_promises_no_less(tmp_path):
    """Of a run that was killed, or that still goes on, the first model is there to be exported."""
    account = open_account(tmp_path / "ledger.jsonl")
    head = account.head
    assert promise(account.ledger, "run", head).epsilon == 0.0
    charge(account, 5)
    assert promise(account.ledger, "run", head).epsilon == account.promise().epsilon
