"""`taciturn ledger …` as somebody types it who answers for a population."""

import itertools
import json
import shutil

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from typer.testing import CliRunner

from harness import Cut
from taciturn.cli import app
from taciturn.data.population import Population
from taciturn.errors import TaciturnError
from taciturn.people import open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.privacy.ledger import hash_chain
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import Ledger, LedgerError
from taciturn.privacy.ledger.ledger_export import events_for_others
from taciturn.privacy.ledger.population_budget import PopulationBudget
from taciturn.privacy.participation import round_for_publication


def run_cli(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def spend(folder, name, adjacency="add or remove one user", ledger=None, people=0):
    terms = RunTerms(
        name=name,
        recipe="r",
        population="p",
        adjacency=adjacency,
        randomness="operating system",
        accountant="pld",
        budget=Budget(delta=1e-6),
        rounds=5,
        people=people,
    )
    account = Account(
        ledger=ledger or open_ledger(Population(folder)),
        terms=terms,
        release=PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)),
    )
    account.open()
    account.charge(len(account.charges), "record")
    return account


def test_what_was_spent_is_shown_by_adjacency_and_for_all_runs_together(population):
    spend(population.folder, "first")
    spend(population.folder, "second", "zero out one user")
    shown = run_cli("ledger", "show", population.folder)
    assert shown.count("together │") == 3  # two adjacencies, and all runs
    assert "fits the one before it" in shown
    assert run_cli("ledger", "show", "--delta", "1e-7", population.folder) != shown
    with pytest.raises(TaciturnError, match="between 0 and 1"):
        run_cli("ledger", "show", population.folder, "--delta", 2)


@pytest.mark.parametrize(
    ("recorded", "delta", "users"), [(0, 1 / 50**2, "50"), (9_364, 1 / 9_300**2, "9,300")]
)
def test_the_total_is_at_the_delta_of_the_largest_population_and_says_so(
    population, recorded, delta, users
):
    """There are fifty people now; the ledger may have protected more, before they opted out."""
    spend(population.folder, "first", people=recorded)
    # Fewer people later do not make it larger.
    spend(population.folder, "second", people=recorded // 2)
    shown = run_cli("ledger", "show", population.folder)
    epsilon = open_ledger(population).total(delta).epsilon
    line = f"All runs on these people together: {pair_text(epsilon, delta)}"
    whose = f"1/users² of the largest population that this ledger protects, {users}"
    assert f"{line} (δ: {whose})." in shown
    content = CliRunner().invoke(app, ["ledger", "show", str(population.folder), "--json"]).stdout
    total = json.loads(content)["total"]
    assert (total["delta"], total["delta_is"]) == (pytest.approx(delta), whose)
    assert "(δ: as asked for)" in run_cli("ledger", "show", population.folder, "--delta", 1e-9)


def test_the_number_of_people_cannot_be_confirmed_by_the_hashes_of_rows(population):
    """Heads are published; two ledgers with the same number have rows of other hashes."""
    rows = []
    for folder in (population.folder / "one.jsonl", population.folder / "two.jsonl"):
        book = Ledger(folder)
        book.record_people(9_364)
        rows.append(book.rows[-1])
    assert rows[0]["users"] == rows[1]["users"] == 9_300
    assert rows[0]["salt"] != rows[1]["salt"]


def test_a_budget_cannot_be_confirmed_by_the_hashes_of_rows(population):
    """Its δ follows from the number of people. The twin: with its salt, a guess fits."""
    book = Ledger(population.folder / "one.jsonl")
    book.record_people(9_364)
    book.set_budget(PopulationBudget(epsilon=4.0, delta=book.usual_delta().delta))
    before, row = book.rows[-2:]
    guess = {
        "kind": "budget",
        "epsilon": 4.0,
        "delta": 1 / 9_300**2,
        "previous": before["hash"],
    }
    for guessed in (guess, {**guess, "salt": ""}):
        assert hash_chain.hash_row(guessed) != row["hash"]
    assert hash_chain.hash_row({**guess, "salt": row["salt"]}) == row["hash"]


def links(account) -> list[bool]:
    """Whether each row of a run, as published, follows the one before it in the ledger too."""
    return [after["previous"] == row["hash"] for row, after in itertools.pairwise(account.rows)]


def follows(second, first) -> bool:
    return second.rows[0]["previous"] == first.rows[-1]["hash"]


def test_the_rows_of_a_run_do_not_tell_whether_there_are_more_people(population, tmp_path):
    """One person more tips the number that is recorded, and changes nothing that is published."""
    seen = []
    for people in (999, 1000):
        book = Ledger(tmp_path / f"{people}.jsonl")
        first, second = (
            spend(population.folder, name, ledger=book, people=count)
            for name, count in (("first", 999), ("second", people))
        )
        seen.append((links(second), follows(second, first)))
        assert book.largest_population == people // 10 * 10
    assert seen[0] == seen[1]


def test_recorded_only_when_there_are_more_people_they_tell(population, tmp_path, monkeypatch):
    """The twin that must fail."""
    record = Ledger.record_people

    def record_news(self, users, check=lambda rows: None):
        if round_for_publication(users) > self.largest_population:
            record(self, users, check)

    monkeypatch.setattr(Ledger, "record_people", record_news)
    with pytest.raises(AssertionError):
        test_the_rows_of_a_run_do_not_tell_whether_there_are_more_people(population, tmp_path)


def test_a_crash_leaves_no_run_without_the_number_of_its_people(population, monkeypatch):
    """Wherever it comes: the totals of a run would be at the δ of fewer people."""
    write = Ledger._write
    for rows_written in range(2):
        rows = itertools.count()

        def crash(self, file, row, rows=rows, at=rows_written):
            if next(rows) == at:
                raise Cut
            return write(self, file, row)

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_write", crash)
            with pytest.raises(Cut):
                spend(population.folder, "first", people=9_364)
        book = open_ledger(population)
        assert book.largest_population == 9_300 * rows_written
        assert book.runs() == []
    spend(population.folder, "first", people=9_364)


def test_a_run_that_is_refused_leaves_no_number_of_people(population):
    spend(population.folder, "first", people=50)
    before = open_ledger(population).rows
    with pytest.raises(LedgerError, match="already has a run"):
        spend(population.folder, "first", people=9_364)
    assert open_ledger(population).rows == before


def test_a_ledger_that_was_made_from_python_is_shown_with_what_is_not_known(population, tmp_path):
    for name in ("ledger.jsonl", "emoji.book"):
        spend(None, "first", ledger=Ledger(tmp_path / name))
        shown = run_cli("ledger", "show", tmp_path / name)
        assert "first │ 1 │" in shown
        assert "Made from Python: whether its runs" in shown
    assert run_cli("ledger", "show", tmp_path).count("first") == 1
    run_cli("ledger", "budget", tmp_path, "--epsilon", 9)
    spend(population.folder, "first")
    assert "Made from Python" not in run_cli("ledger", "show", population.folder)


def test_a_copy_of_a_ledger_that_was_made_from_python_is_adopted(tmp_path):
    spend(None, "first", ledger=Ledger(tmp_path / "old" / "ledger.jsonl"))
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    with pytest.raises(LedgerError, match="taciturn ledger adopt"):
        run_cli("ledger", "show", tmp_path / "new")
    assert "is retired" in run_cli("ledger", "adopt", tmp_path / "new")
    assert "first" in run_cli("ledger", "show", tmp_path / "new")


def test_a_ledger_with_a_name_of_its_own_is_adopted_as_the_refusal_says(tmp_path):
    spend(None, "first", ledger=Ledger(tmp_path / "old" / "mine.jsonl"))
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    with pytest.raises(LedgerError, match="taciturn ledger adopt") as refused:
        run_cli("ledger", "show", tmp_path / "new" / "mine.jsonl")
    run_cli(*str(refused.value).partition("taciturn ")[2].split())
    assert json.loads(run_cli("ledger", "show", tmp_path / "new" / "mine.jsonl", "--json"))[
        "made_from_python"
    ]


def test_a_ledger_copied_without_its_population_does_not_retire_the_original(population, tmp_path):
    spend(population.folder, "first")
    for name in ("ledger.jsonl", "ledger.head"):
        shutil.copy(population.folder / name, tmp_path / name)
    with pytest.raises(LedgerError, match="without the population"):
        run_cli("ledger", "adopt", tmp_path)
    assert "first" in run_cli("ledger", "show", population.folder)


@pytest.mark.parametrize("manifest_is_lost", [False, True])
def test_a_ledger_that_replaced_a_populations_own_is_refused_by_any_name(
    population, tmp_path, manifest_is_lost
):
    """Opened by itself it is held against no id, and would show that nothing was ever spent."""
    spend(population.folder, "first")
    for name in ("ledger.jsonl", "ledger.head"):
        (population.folder / name).unlink()
    Ledger(population.folder / "ledger.jsonl")
    if manifest_is_lost:
        (population.folder / "manifest.json").unlink()
    (tmp_path / "link").symlink_to(population.folder)
    for place in (
        population.folder,
        population.folder / "ledger.jsonl",
        tmp_path / "link" / "ledger.jsonl",
    ):
        for command in ("show", "adopt"):
            with pytest.raises(
                TaciturnError, match=r"not the ledger of these users|not a population"
            ):
                run_cli("ledger", command, place)


def test_a_file_that_is_not_a_ledger_is_left_as_it_is(tmp_path):
    (tmp_path / "notes.txt").write_text("no end of line")
    with pytest.raises(TaciturnError, match="not a population"):
        run_cli("ledger", "show", tmp_path / "notes.txt")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["no end of line"]


def test_what_was_spent_is_exported_for_others_to_recompute(population, tmp_path):
    spend(population.folder, "first")
    run_cli("ledger", "export", population.folder, tmp_path / "costs.json")
    assert json.loads((tmp_path / "costs.json").read_text()) == events_for_others(
        open_ledger(population)
    )


def test_a_budget_is_fixed_lowered_and_shown(population):
    said = run_cli("ledger", "budget", population.folder, "--epsilon", 4)
    assert "at most ε = 4.00 at δ = 0.0004" in said  # of fifty people
    assert "at most ε = 3.00 at δ = 0.0004" in run_cli(
        "ledger", "budget", population.folder, "--epsilon", 3
    )
    with pytest.raises(LedgerError, match="only ever lowered"):
        run_cli("ledger", "budget", population.folder, "--epsilon", 4)
    spend(population.folder, "first")
    shown = run_cli("ledger", "show", population.folder)
    assert "Budget for all runs together: ε = 3.00 at δ = 0.0004. Not closed" in shown
    run_cli("ledger", "close", population.folder, "first")
    assert "Not closed" not in run_cli("ledger", "show", population.folder)


def test_the_usual_delta_of_a_budget_is_the_last_ones(population):
    first = ("--epsilon", 40, "--delta", 1e-6)
    assert "δ = 1e-06" in run_cli("ledger", "budget", population.folder, *first)
    assert "δ = 1e-06" in run_cli("ledger", "budget", population.folder, "--epsilon", 30)


def test_a_copy_is_adopted_and_the_original_retired(population, tmp_path):
    spend(population.folder, "first")
    shutil.copytree(population.folder, tmp_path / "copy")
    with pytest.raises(LedgerError, match="taciturn ledger adopt"):
        run_cli("ledger", "show", tmp_path / "copy")
    said = run_cli("ledger", "adopt", tmp_path / "copy")
    assert "is adopted (rows: 4, runs: 1)" in said
    assert "is retired" in said
    run_cli("ledger", "show", tmp_path / "copy")
    with pytest.raises(LedgerError, match="retired"):
        run_cli("ledger", "show", population.folder)


def test_an_anchor_is_kept_outside_of_the_folder(population, tmp_path):
    for wrong in ((), ("--file", tmp_path / "a", "--command", "true")):
        with pytest.raises(TaciturnError, match="name one anchor"):
            run_cli("ledger", "anchor", population.folder, *wrong)
    with pytest.raises(TaciturnError, match="put back with it"):
        run_cli("ledger", "anchor", population.folder, "--file", population.folder / "anchor")
    run_cli("ledger", "anchor", population.folder, "--file", tmp_path / "people.head")
    account = spend(population.folder, "first")
    assert (tmp_path / "people.head").read_text() == account.head
    assert "Anchored in" in run_cli("ledger", "show", population.folder)
    run_cli("ledger", "anchor", population.folder, "--command", "true")
    spend(population.folder, "second")
