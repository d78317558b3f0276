"""The ledger charges before a release and never less than was released, and refuses tampering."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from harness import cut_off_rows
from taciturn.privacy.accounting.accountant import Budget, epsilon
from taciturn.privacy.accounting.events import event_from_json, event_to_json
from taciturn.privacy.ledger.account import Account, BudgetExhausted, RunTerms
from taciturn.privacy.ledger.ledger import Ledger, LedgerError
from taciturn.privacy.participation import FixedSize, PoissonSampling
from taciturn.release.gate import ExportRefused, verified_guarantee
from taciturn.release.model_file import ModelCard, card_digest, params_digest

ROUND_COST = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))


def terms(
    name="run",
    budget=Budget(delta=1e-5),
    adjacency=PoissonSampling.adjacency,
    rounds=100,
    lineage=(),
):
    return RunTerms(
        name=name,
        recipe="recipe",
        population="text",
        adjacency=adjacency,
        randomness="operating system",
        accountant="pld",
        budget=budget,
        rounds=rounds,
        start="start",
        lineage=lineage,
    )


def account(path, run_terms=None, release=SelfComposedDpEvent(ROUND_COST, 1)) -> Account:
    return Account(ledger=Ledger(path), terms=run_terms or terms(), release=release)


@pytest.fixture
def ledger_path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def opened(ledger_path) -> Account:
    made = account(ledger_path)
    made.open()
    for round in range(3):
        made.charge(round, "record")
    return made


def test_a_charge_is_on_disk_when_it_returns(opened, ledger_path):
    assert [row["kind"] for row in Ledger(ledger_path).rows] == [
        "ledger",
        "open",
        "charge",
        "charge",
        "charge",
    ]
    assert opened.guarantee().epsilon == pytest.approx(
        epsilon(SelfComposedDpEvent(ROUND_COST, 3), 1e-5)
    )
    assert opened.guarantee().rho == pytest.approx(1.5)


@pytest.mark.parametrize("line", range(5))
def test_a_changed_row_is_noticed_and_refuses_every_charge(opened, ledger_path, line):
    lines = ledger_path.read_bytes().split(b"\n")
    lines[line] = lines[line].replace(b'"kind"', b'"kinb"')
    ledger_path.write_bytes(b"\n".join(lines))
    with pytest.raises(LedgerError, match=f"row {line + 1}"):
        Ledger(ledger_path)


def test_a_changed_row_with_a_fitting_hash_breaks_the_next_row(opened, ledger_path):
    from taciturn.privacy.ledger.hash_chain import hash_row

    rows = [json.loads(line) for line in ledger_path.read_text().splitlines()]
    rows[1]["release"]["of"]["of"]["noise_multiplier"] = 100.0
    rows[1]["hash"] = hash_row(rows[1])
    ledger_path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    with pytest.raises(LedgerError, match="row 3"):
        Ledger(ledger_path)


@pytest.mark.parametrize("gone", [[2], [1, 2], [0]])
def test_rows_removed_from_the_middle_are_noticed(opened, ledger_path, gone):
    lines = ledger_path.read_text().splitlines(keepends=True)
    ledger_path.write_text("".join(line for index, line in enumerate(lines) if index not in gone))
    with pytest.raises(LedgerError, match="does not fit the row before it"):
        Ledger(ledger_path)


def test_a_later_head_shows_that_the_last_rows_were_removed(opened, ledger_path):
    cut_off_rows(ledger_path)
    shortened = account(ledger_path)
    with pytest.raises(LedgerError, match="lacks the row at which this run was saved"):
        shortened.reopen(opened.head)
    with pytest.raises(LedgerError, match="became shorter"):
        opened.charge(3, "record")


def test_a_line_torn_by_a_crash_is_removed_and_a_row_records_it(opened, ledger_path):
    with open(ledger_path, "ab") as file:
        file.write(b'{"kind": "charge", "run": "ru')
    mended = Ledger(ledger_path)
    assert mended.rows[-1]["kind"] == "torn"
    assert mended.guarantee("run").releases == 3
    assert Ledger(ledger_path).head == mended.head


@pytest.mark.parametrize("bytes_written", [1, 5, 40])
def test_a_first_row_torn_by_a_crash_is_written_again(opened, ledger_path, tmp_path, bytes_written):
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(ledger_path.read_bytes()[:bytes_written])
    assert len(Ledger(torn).rows) == 1


def test_a_first_row_of_which_a_power_cut_left_zeros_is_written_again(tmp_path):
    """The file system had made the file longer, and not yet written what belongs there."""
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(bytes(199))
    assert len(Ledger(torn).rows) == 1


def test_a_file_that_is_not_a_ledger_is_left_as_it_is(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("what I wanted to remember")
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger(notes)
    assert notes.read_text() == "what I wanted to remember"


@pytest.mark.parametrize("kept", [1.0, 0.5, 0.0])
def test_a_charge_that_only_lost_the_end_of_its_line_still_counts(opened, ledger_path, kept):
    content = ledger_path.read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    cut_off_rows(ledger_path)
    if kept:  # a write of nothing does not change the file
        ledger_path.write_bytes(content[: last + int(kept * (len(content) - 1 - last))])
    assert Ledger(ledger_path).guarantee("run").releases == (3 if kept == 1.0 else 2)


def test_a_budget_becomes_a_number_of_releases_before_the_first_and_limits_them(ledger_path):
    limited = account(ledger_path, terms(budget=Budget(delta=1e-5, epsilon=3.0)))
    limited.open()
    allowed = limited.max_releases
    assert epsilon(SelfComposedDpEvent(ROUND_COST, allowed), 1e-5) <= 3.0
    assert epsilon(SelfComposedDpEvent(ROUND_COST, allowed + 1), 1e-5) > 3.0
    for round in range(allowed):
        limited.charge(round, "record")
    with pytest.raises(BudgetExhausted, match=f"{allowed} releases"):
        limited.charge(allowed, "record")
    assert limited.guarantee().epsilon <= 3.0


def test_a_budget_of_rho_counts_rho(ledger_path):
    assert account(ledger_path, terms(budget=Budget(delta=1e-5, rho=5.0))).max_releases == 10


def test_runs_on_the_same_users_add_up(ledger_path):
    for name in ("first", "second"):
        one = account(ledger_path, terms(name))
        one.open()
        for round in range(10):
            one.charge(round, "record")
    ledger = Ledger(ledger_path)
    ((adjacency, total, rho),) = ledger.totals(1e-5)
    assert adjacency == PoissonSampling.adjacency
    assert rho == pytest.approx(10.0)
    assert total == pytest.approx(epsilon(SelfComposedDpEvent(ROUND_COST, 20), 1e-5, "rdp"))
    assert total > ledger.guarantee("first").epsilon


def test_runs_under_different_adjacency_are_not_added_up(ledger_path):
    poisson = account(ledger_path)
    poisson.open()
    poisson.charge(0, "record")
    fixed_round = FixedSize(5, 50)
    fixed = account(
        ledger_path,
        terms("fixed", adjacency=fixed_round.adjacency),
        SelfComposedDpEvent(fixed_round.event(1.0), 1),
    )
    fixed.open()
    fixed.charge(0, "record")
    assert [adjacency for adjacency, _, _ in Ledger(ledger_path).totals(1e-5)] == [
        poisson.terms.adjacency,
        fixed_round.adjacency,
    ]


def test_a_non_private_run_costs_infinity_for_good(ledger_path):
    open_run = account(ledger_path, release=NonPrivateDpEvent())
    open_run.open()
    assert open_run.guarantee().epsilon == 0  # nothing released yet
    open_run.charge(0, "record")
    assert open_run.guarantee().epsilon == math.inf
    assert not open_run.guarantee().is_private
    assert Ledger(ledger_path).totals(1e-5)[0][1] == math.inf


def test_a_model_that_comes_from_an_earlier_run_carries_its_cost(ledger_path):
    earlier = (SelfComposedDpEvent(ROUND_COST, 50),)
    later = account(ledger_path, terms(lineage=earlier))
    later.open()
    assert later.guarantee().epsilon == pytest.approx(epsilon(earlier[0], 1e-5))
    later.charge(0, "record")
    assert later.guarantee().epsilon > epsilon(SelfComposedDpEvent(ROUND_COST, 50), 1e-5)
    spent = account(ledger_path, terms("spent", Budget(delta=1e-5, epsilon=3.0), lineage=earlier))
    assert spent.max_releases == 0
    stained = account(ledger_path, terms("stained", lineage=(NonPrivateDpEvent(),)))
    stained.open()
    assert stained.guarantee().epsilon == math.inf


def test_a_name_is_used_once(opened, ledger_path):
    with pytest.raises(LedgerError, match="already has a run"):
        account(ledger_path).open()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"recipe": "other"}, "recipe"),
        ({"population": "other"}, "text"),
        ({"start": "other"}, "starting model"),
        ({"randomness": "seeded simulation"}, "randomness"),
        ({"lineage": (NonPrivateDpEvent(),)}, "cost"),
    ],
)
def test_a_run_is_resumed_only_on_the_terms_it_was_opened_with(opened, ledger_path, changed, named):
    account(ledger_path).reopen(opened.head)
    with pytest.raises(LedgerError, match=named):
        account(ledger_path, replace(terms(), **changed)).reopen(opened.head)


def test_a_run_is_not_resumed_with_other_noise(opened, ledger_path):
    louder = account(
        ledger_path,
        release=SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(9.0)), 1),
    )
    with pytest.raises(LedgerError, match="cost"):
        louder.reopen(opened.head)


def test_the_parameters_of_a_model_are_on_record_with_what_they_cost(opened, ledger_path):
    head = opened.record_model(3, "digest")
    assert opened.record_model(3, "digest") == head  # saved twice, written once
    opened.charge(3, "record")
    ledger = Ledger(ledger_path)
    assert ledger.model_row("digest")["hash"] == head
    assert ledger.model_row("other") is None
    assert ledger.guarantee("run", head).releases == 3
    assert ledger.cost("run", head) == [SelfComposedDpEvent(ROUND_COST, 3)]


def test_two_processes_on_one_run_are_noticed(opened, ledger_path):
    second = account(ledger_path)
    second.reopen(opened.head)
    second.charge(3, "record")
    with pytest.raises(LedgerError, match="another process"):
        opened.charge(3, "record")


def test_rows_are_found_by_run_whichever_process_adds_them(opened, ledger_path):
    """Rows are added by this process, by another, after a torn line, and for no run."""
    book, other = opened.ledger, Ledger(ledger_path)

    def check() -> None:
        other.refresh()
        book.refresh()
        for each in (book, other, Ledger(ledger_path)):
            for run in ("run", "second", None):
                assert each.run_rows(run) == [row for row in each.rows if row.get("run") == run]

    check()
    Account(ledger=other, terms=terms("second"), release=opened.release).open()
    check()
    opened.charge(3, "record")
    with open(ledger_path, "ab") as file:
        file.write(b'{"kind": "charge", "run": "ru')
    check()
    other.close("second")
    assert not book.is_closed("second")  # it has not looked
    check()
    assert book.is_closed("second")


def test_a_close_while_another_thread_reads_is_not_missed(opened, ledger_path):
    """Your own loop may read new rows while another thread shows its progress."""
    book, looks = opened.ledger, []

    class Rows(list):
        def __getitem__(self, place):
            found = super().__getitem__(place)
            if isinstance(place, slice) and not looks.append(place) and len(looks) == 1:
                book.refresh()
            return found

    Ledger(ledger_path).close("run")
    book.rows = Rows(book.rows)
    opened.guarantee()
    with pytest.raises(LedgerError, match="is closed"):
        opened.charge(3, "record")
    assert book.run_rows("run") == [row for row in book.rows if row.get("run") == "run"]


def test_charges_of_several_processes_form_one_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path)
    script = (
        "import sys, pathlib\n"
        "from taciturn.privacy.ledger.ledger import Ledger\n"
        "book = Ledger(pathlib.Path(sys.argv[1]))\n"
        "for n in range(30): book.append({'kind': 'note', 'from': sys.argv[2]})\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    writers = [
        subprocess.Popen([sys.executable, "-c", script, path, str(index)], env=environment)
        for index in range(2)
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert len(Ledger(path).rows) == 61


@pytest.mark.parametrize(
    "participation",
    [PoissonSampling(0.1), PoissonSampling(1.0), FixedSize(5, 50), FixedSize(50, 50)],
)
def test_events_survive_being_written_and_read(participation):
    event = SelfComposedDpEvent(participation.event(1.3), 7)
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


def test_a_model_leaves_only_with_the_card_that_was_recorded_with_it(opened, ledger_path):
    params, words = {"w": np.ones(3, np.float32)}, ("<pad>", "<unk>", "<bos>", "<eos>", "word")
    card = ModelCard(
        architecture={"kind": "lstm"},
        vocabulary=words,
        text={"language": "en", "source": "a list"},
        run="run",
    )
    card = replace(
        card, ledger_head=opened.record_model(3, params_digest(params), card_digest(card))
    )
    assert (
        verified_guarantee(params, card, Ledger(ledger_path)).run == "run"
    )  # the twin: what was recorded may leave
    for said in (
        {"vocabulary": (*words[:-1], "secret")},
        {"public_sources": ("all of it",)},
        {"sentences": True},
    ):
        with pytest.raises(ExportRefused, match="changed"):
            verified_guarantee(params, replace(card, **said), Ledger(ledger_path))


def test_a_run_protects_the_unit_it_declared_whatever_is_stated_later(ledger_path):
    account(ledger_path, replace(terms(), unit="one simulated user")).open()
    account(ledger_path, terms()).reopen(None)  # a population that was described anew
    assert Ledger(ledger_path).guarantee("run").unit == "one simulated user"


def test_a_model_recorded_again_with_another_card_is_another_row(opened):
    assert opened.record_model(3, "digest", "one") == opened.record_model(3, "digest", "one")
    assert opened.record_model(3, "digest", "one") != opened.record_model(3, "digest", "other")
