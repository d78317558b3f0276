"""ε recomputed from only a ledger's events and dp-accounting is no more than we stated."""

import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.ledger_export import events_for_others
from taciturn.privacy.noise.sensitivity import toeplitz, tree
from taciturn.privacy.participation import CyclicPoisson, FixedSize, MinSeparation, PoissonSampling

BANDS = toeplitz("banded", np.array([1.0, 0.5, *np.zeros(18)]))
TAKING_PART = {
    "poisson": (PoissonSampling(0.1), lambda one: one.event(1.0)),
    "fixed": (FixedSize(5, 50), lambda one: one.event(2.0)),
    "tree": (
        MinSeparation(size=10, min_separation=4, max_participations=4, rounds=20),
        lambda one: one.event(5.0, tree(20, honaker=True)),
    ),
    "cyclic": (CyclicPoisson(0.3, 2, 20), lambda one: one.event(2.0, BANDS)),
}


@pytest.fixture
def ledger(tmp_path):
    book = Ledger(tmp_path / "ledger.jsonl")
    for name, (participation, event) in TAKING_PART.items():
        release = event(participation)
        terms = RunTerms(
            name=name,
            recipe="recipe",
            population="text",
            adjacency=participation.adjacency,
            randomness="operating system",
            accountant="pld",
            budget=Budget(delta=1e-6),
            rounds=20,
            start="start",
        )
        account = Account(ledger=book, terms=terms, release=release)
        account.open()
        for round in range(10):
            account.charge(round, "record")
    return book


def event_of(words):
    """Rebuild an event as others would, without our code."""
    if isinstance(words, dict):
        fields = {name: event_of(value) for name, value in words.items()}
        return getattr(dp_accounting, fields.pop("class_name"))(**fields)
    return [event_of(one) for one in words] if isinstance(words, list) else words


def recomputed(row) -> float:
    relation = NeighboringRelation[row["neighboring_relation"]]
    accountant = RdpAccountant if relation is NeighboringRelation.REPLACE_ONE else PLDAccountant
    theirs = accountant(neighboring_relation=relation)
    theirs.compose(event_of(row["event"]))
    return theirs.get_epsilon(row["delta"])


@pytest.mark.parametrize("name", TAKING_PART)
def test_recomputed_epsilon_is_no_more_than_stated(ledger, name):
    rows = {row["run"]: row for row in json.loads(json.dumps(events_for_others(ledger)))}
    assert set(rows) == set(TAKING_PART)
    theirs = recomputed(rows[name])
    assert theirs <= rows[name]["epsilon"] * (1 + 1e-3)  # the width of their grid
    assert theirs > 0.99 * rows[name]["epsilon"]
    assert rows[name]["epsilon"] == ledger.guarantee(name).epsilon


def test_leaving_out_a_release_shows(ledger):
    """The twin that must fail: the events of a ledger that counts one release less cost less than
    was stated.
    """
    row = next(row for row in events_for_others(ledger) if row["run"] == "poisson")
    row["event"]["count"] -= 1
    assert recomputed(row) < 0.99 * row["epsilon"]


def test_the_event_of_a_run_includes_its_starting_model(tmp_path):
    start = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)
    release, book = (
        PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)),
        Ledger(tmp_path / "ledger.jsonl"),
    )
    for name, lineage in (("begun", (start,)), ("stained", (NonPrivateDpEvent(),)), ("idle", ())):
        terms = RunTerms(
            name=name,
            recipe="recipe",
            population="text",
            adjacency="add or remove one user",
            randomness="operating system",
            accountant="pld",
            budget=Budget(delta=1e-6),
            rounds=5,
            start="",
            lineage=lineage,
        )
        Account(ledger=book, terms=terms, release=release).open()
    terms = RunTerms(
        name="ran",
        recipe="recipe",
        population="text",
        adjacency="",
        randomness="operating system",
        accountant="pld",
        budget=Budget(delta=1e-6),
        rounds=5,
        start="",
        lineage=(start,),
    )
    account = Account(ledger=book, terms=terms, release=release)
    account.open()
    account.charge(0, "record")
    rows = {row["run"]: row for row in events_for_others(book)}
    assert set(rows) == {"begun", "stained", "ran"}
    assert event_of(rows["begun"]["event"]) == start
    assert event_of(rows["ran"]["event"]) == ComposedDpEvent(
        [start, SelfComposedDpEvent(release, 1)]
    )
    assert rows["stained"]["epsilon"] == math.inf
    assert recomputed(rows["stained"]) == math.inf
