"""The same people in two folders: one ledger, one salt, one list of those who opted out; and
figures of nobody whom a model protects.
"""

import csv
import shutil

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from typer.testing import CliRunner

from harness import made_up_users, quietly, tiny_recipe
from taciturn.cli import app
from taciturn.data.population import (
    LEAST_HELD_OUT,
    HeldOutUsers,
    Population,
    hashed_id,
    remember_opt_outs,
    write_population,
)
from taciturn.data.same_people import check_strangers
from taciturn.data.vocabulary import DataError
from taciturn.errors import TaciturnError
from taciturn.people import adopt_ledger, build_population, open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import LedgerError
from taciturn.privacy.ledger.population_budget import PopulationBudget
from taciturn.runs.finished import FinishedRun
from taciturn.runs.loop import train_run
from taciturn.runs.warm_start import load_warm_start

TEXT = "the quick messages that people write to each other every day are not long"


def run_cli(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.fixture
def months(tmp_path):
    """May, and June of the same people; `users` are those who wrote then."""
    for name, users in (("may", 300), ("june", 330)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["user", "text"])
            rows.writerows([f"user {number}", f"{TEXT} in {name}"] for number in range(users))
    (tmp_path / "left.txt").write_text("user 7\n")
    run_cli(
        "data",
        "build",
        tmp_path / "may.csv",
        "--out",
        tmp_path / "may",
        "--least-tokens",
        5,
        "--exclude",
        tmp_path / "left.txt",
    )
    return tmp_path


def build_june(months, *more):
    run_cli(
        "data",
        "build",
        months / "june.csv",
        "--out",
        months / "june",
        "--least-tokens",
        5,
        "--same-people-as",
        months / "may",
        *more,
    )
    return Population(months / "june")


def spend(folder, name):
    terms = RunTerms(
        name=name,
        recipe="r",
        population="p",
        adjacency="add or remove one user",
        randomness="operating system",
        accountant="rdp",
        budget=Budget(delta=1e-6),
        rounds=5,
    )
    account = Account(
        ledger=open_ledger(Population(folder)),
        terms=terms,
        release=PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0)),
    )
    account.open()
    account.charge(len(account.charges), "record")


def is_enough(folder, limit) -> bool:
    try:
        open_ledger(Population(folder)).set_budget(PopulationBudget(epsilon=limit, delta=1e-6))
    except LedgerError:
        return False
    return True


def test_runs_in_either_folder_are_counted_in_one_ledger(months):
    june = build_june(months)
    spend(months / "may", "first")
    spend(months / "june", "second")
    for folder in ("may", "june"):
        assert open_ledger(Population(months / folder)).runs() == ["first", "second"]
    assert not (june.folder / "ledger.jsonl").exists()
    with pytest.raises(LedgerError, match="already has a run"):
        spend(months / "june", "first")
    enough = next(limit for limit in range(1, 200) if is_enough(months / "may", limit))
    run_cli("ledger", "budget", months / "may", "--epsilon", enough, "--delta", 1e-6)
    with pytest.raises(LedgerError, match="could be passed"):
        spend(months / "june", "third")
    shown = run_cli("ledger", "show", months / "june")
    assert "first" in shown
    assert "second" in shown


def test_two_folders_without_it_have_two_ledgers(months):
    """The twin that must fail: what both cost is not added up."""
    run_cli("data", "build", months / "june.csv", "--out", months / "apart", "--least-tokens", 5)
    spend(months / "may", "first")
    spend(months / "apart", "second")
    assert open_ledger(Population(months / "may")).runs() == ["first"]


def test_who_opted_out_or_is_held_out_is_so_in_both(months):
    june = build_june(months)
    salt = (months / "may" / "private" / "salt").read_bytes()
    assert (june.folder / "private" / "salt").read_bytes() == salt
    assert remember_opt_outs(june.folder, salt) == {hashed_id(salt, "user 7")}
    assert "users who opted out: 1" in run_cli("data", "show", june.folder)
    check_strangers(months / "june", months / "may")
    check_strangers(months / "may", months / "june")
    with pytest.raises(DataError, match="held out a share"):
        build_june(months, "--replace", "--held-out", "0.3")


def test_a_folder_of_a_folder_of_the_same_people_names_the_same_ledger(months):
    build_june(months)
    run_cli(
        "data",
        "build",
        months / "june.csv",
        "--out",
        months / "july",
        "--least-tokens",
        5,
        "--same-people-as",
        months / "june",
    )
    spend(months / "july", "third")
    assert open_ledger(Population(months / "may")).runs() == ["third"]


def test_the_ledger_stays_shared_when_the_text_is_replaced(months):
    build_june(months)
    run_cli(
        "data",
        "build",
        months / "may.csv",
        "--out",
        months / "june",
        "--least-tokens",
        5,
        "--replace",
    )
    spend(months / "june", "second")
    assert open_ledger(Population(months / "may")).runs() == ["second"]


def test_a_shared_ledger_that_cannot_be_reached_is_not_made_anew(months):
    june = build_june(months)
    spend(months / "june", "first")
    (months / "may").rename(months / "archive")
    with pytest.raises(LedgerError, match="cannot be reached"):
        spend(months / "june", "second")
    assert not (june.folder / "ledger.jsonl").exists()
    assert not (months / "may").exists()
    run_cli("ledger", "adopt", months / "june", "--same-people-as", months / "archive")
    spend(months / "june", "second")
    assert open_ledger(Population(months / "archive")).runs() == ["first", "second"]


def test_folders_that_are_moved_together_still_find_each_other(months, tmp_path_factory):
    build_june(months)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "all"
    months.rename(elsewhere)
    spend(elsewhere / "june", "first")
    assert open_ledger(Population(elsewhere / "may")).runs() == ["first"]


def test_two_ledgers_are_never_made_one(months):
    run_cli("data", "build", months / "june.csv", "--out", months / "june", "--least-tokens", 5)
    spend(months / "june", "apart")
    with pytest.raises(DataError, match="two cannot be merged"):
        build_june(months, "--replace")
    with pytest.raises(LedgerError, match="does not share"):
        adopt_ledger(months / "june", months / "may")
    with pytest.raises(TaciturnError, match="sotu"):
        run_cli(
            "data",
            "build",
            "sotu",
            "--out",
            months / "speeches",
            "--same-people-as",
            months / "may",
        )


def test_a_copy_of_a_folder_that_shares_a_ledger_still_charges_it(months):
    """Only whole copies, of the ledger too, would spend apart, and those are refused."""
    build_june(months)
    shutil.copytree(months / "june", months / "copy")
    spend(months / "copy", "first")
    assert open_ledger(Population(months / "may")).runs() == ["first"]


# --- whom figures are of --------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path, vocabulary):
    """A run; then a folder in which two of those it trained on are held out, and one in which
    nobody knows.
    """
    people, strangers = made_up_users(50), made_up_users(12, seed=6)
    population = write_population(
        tmp_path / "people", people, made_up_users(12, seed=1), vocabulary, {}
    )
    train_run(tiny_recipe(population, run={"rounds": 1}), tmp_path / "run", quietly)
    protected = strangers | {user: people[user] for user in list(people)[:2]}
    for name, held_out, like in (
        ("strangers", strangers, population.folder),
        ("protected", protected, population.folder),
        ("unknown", strangers, None),
    ):
        write_population(
            tmp_path / name, made_up_users(9, 5), held_out, vocabulary, {}, same_people_as=like
        )
    return tmp_path


def test_people_whom_a_model_protects_are_not_measured_with_it(measured):
    tokens = HeldOutUsers(measured / "strangers").texts.tokens
    assert (
        FinishedRun(measured / "run").evaluate(measured / "strangers").scores.tokens.sum() == tokens
    )
    for attempt in (
        lambda: FinishedRun(measured / "run").evaluate(measured / "protected"),
        lambda: FinishedRun(measured / "run").compare(
            FinishedRun(measured / "run"), measured / "protected"
        ),
        lambda: run_cli("evaluate", measured / "run", "--data", measured / "protected"),
        lambda: run_cli(
            "compare", measured / "run", measured / "run", "--data", measured / "protected"
        ),
    ):
        with pytest.raises(DataError, match=r"whom .* trains on"):
            attempt()


def test_people_of_whom_nobody_knows_if_a_model_protects_them_are_not_measured_with_it(measured):
    with pytest.raises(DataError, match="`same_people_as="):
        FinishedRun(measured / "run").evaluate(measured / "unknown")


def test_a_second_run_is_not_compared_on_held_out_users_of_the_first_whom_it_trained_on(
    measured, vocabulary
):
    """Nobody named a folder: the first run's held-out users are the second's."""
    held_out = made_up_users(12, seed=1)
    write_population(
        measured / "others",
        held_out,
        made_up_users(12, 8),
        vocabulary,
        {},
        same_people_as=measured / "people",
    )
    others = {
        "participation": {"users": 12, "cohort": 6},
        "privacy": {"accountant": "rdp"},
    }  # which is quick
    second = tiny_recipe(Population(measured / "others"), **others, run={"rounds": 1})
    train_run(second, measured / "second", quietly)
    with pytest.raises(DataError, match=r"whom .* trains on"):
        FinishedRun(measured / "run").compare(FinishedRun(measured / "second"))


def started_in(folder):
    recipe = tiny_recipe(Population(folder), model={"warm_start": str(folder.parent / "run")})
    start = load_warm_start(recipe, Population(folder).vocabulary, open_ledger(Population(folder)))
    assert start is not None
    return start


def test_no_run_starts_from_a_model_that_protects_those_it_would_measure(measured, monkeypatch):
    """What `evaluate --data` refuses is not to be had as round 0 of a run."""
    assert started_in(measured / "people").lineage
    assert started_in(measured / "strangers").lineage
    for name, words in (("protected", r"whom .* trains on"), ("unknown", "`same_people_as=")):
        with pytest.raises(DataError, match=words):
            started_in(measured / name)
    monkeypatch.setattr("taciturn.runs.warm_start.check_strangers", lambda *_: None)  # the twin
    assert started_in(measured / "protected").lineage


def test_without_the_check_their_text_would_be_measured(measured, monkeypatch):
    """The twin that must fail."""
    monkeypatch.setattr("taciturn.runs.finished.check_strangers", lambda *_: None)
    assert len(FinishedRun(measured / "run").evaluate(measured / "protected").scores.tokens) > 0


def test_too_few_held_out_users_are_not_measured(measured, vocabulary):
    for count, is_enough in ((LEAST_HELD_OUT, True), (LEAST_HELD_OUT - 1, False)):
        held_out = made_up_users(count, seed=6) | {"user who wrote nothing": []}
        few = write_population(
            measured / f"few-{count}",
            made_up_users(9, 5),
            held_out,
            vocabulary,
            {},
            same_people_as=measured / "people",
        )
        if is_enough:
            FinishedRun(measured / "run").evaluate(few.folder)
            continue
        with pytest.raises(DataError, match="fewer than 10 held-out"):
            FinishedRun(measured / "run").evaluate(few.folder)
        with pytest.raises(DataError, match="fewer than 10 held-out"):
            train_run(
                tiny_recipe(few, participation={"users": 9, "cohort": 3}),
                measured / "next",
                quietly,
            )


def test_an_incomplete_list_of_held_out_users_is_noticed(measured):
    population = Population(measured / "protected")
    path = population.folder / population.manifest["text"] / "held_out_users.txt"
    path.write_text("\n".join(path.read_text().split()[:5]))
    with pytest.raises(DataError, match="incomplete"):
        FinishedRun(measured / "run").evaluate(measured / "protected")


@pytest.mark.parametrize(
    "spelled", [str, lambda path: path, lambda path: path.read_text().splitlines()]
)
def test_a_file_of_people_who_opted_out_is_read_and_not_taken_for_their_names(
    months, tmp_path, spelled
):
    (tmp_path / "left.txt").write_text("".join(f"user {number}\n" for number in range(280)))
    everyone = build_population(
        tmp_path / "may.csv", tmp_path / "all", vocabulary=500, least_tokens=5
    )
    without = spelled(tmp_path / "left.txt")
    rest = build_population(
        tmp_path / "may.csv", tmp_path / "rest", vocabulary=500, least_tokens=5, exclude=without
    )
    assert rest.manifest["about"]["opt_outs"] == 280
    assert 0 < len(rest) <= 20 < len(everyone)
