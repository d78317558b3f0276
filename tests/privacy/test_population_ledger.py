"""A ledger that was deleted, truncated, replaced by an older one or copied is refused, with what to
do. The twin: one that a crash left at any moment is not.
"""

import json
import os
import shutil

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from harness import Cut, copied_ledger, made_up_users
from taciturn.data.population import NamedLedger, Population, write_population
from taciturn.data.vocabulary import DataError
from taciturn.people import adopt_ledger, open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger import hash_chain
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.adopt import adopt
from taciturn.privacy.ledger.hash_chain import ChainedFile
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger, LedgerError

RELEASE = PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0))
HEAD = "ledger.head"


def terms(name, randomness="operating system") -> RunTerms:
    return RunTerms(
        name=name,
        recipe="recipe",
        population="text",
        adjacency="add or remove one user",
        randomness=randomness,
        accountant="pld",
        budget=Budget(delta=1e-6),
        rounds=5,
    )


def spend(folder, name, releases=3) -> Account:
    account = Account(ledger=open_ledger(Population(folder)), terms=terms(name), release=RELEASE)
    account.open()
    for _ in range(releases):
        account.charge(len(account.charges), "record")
    return account


def put_back(folder, older, *names) -> None:
    for name in names:
        shutil.copy(older / name, folder / name)


@pytest.fixture
def people(tmp_path, vocabulary):
    """A population with releases, and a backup from before the last run."""
    write_population(tmp_path / "people", made_up_users(20), made_up_users(12, 1), vocabulary, {})
    spend(tmp_path / "people", "first")
    shutil.copytree(tmp_path / "people", tmp_path / "backup")
    spend(tmp_path / "people", "second")
    return tmp_path / "people"


def cut_off_at_a_lines_end(people, backup):
    lines = (people / FILE_NAME).read_bytes().splitlines(keepends=True)
    (people / FILE_NAME).write_bytes(b"".join(lines[:-2]))


def remove_all_but_the_manifest(people, backup):
    shutil.rmtree(people / "private")
    (people / "private").mkdir()
    (people / FILE_NAME).unlink()
    (people / HEAD).unlink()


def keep_the_first_row_alone(people, backup):
    (people / FILE_NAME).write_bytes((people / FILE_NAME).read_bytes().splitlines(keepends=True)[0])
    (people / HEAD).unlink()


HARMS = {
    "ledger deleted": lambda people, backup: (people / FILE_NAME).unlink(),
    "ledger and head deleted": lambda people, backup: [
        (people / name).unlink() for name in (FILE_NAME, HEAD)
    ],
    "ledger emptied": lambda people, backup: (people / FILE_NAME).write_text(""),
    "ledger, head and private deleted": remove_all_but_the_manifest,
    "private deleted": lambda people, backup: shutil.rmtree(people / "private"),
    "head deleted": lambda people, backup: (people / HEAD).unlink(),
    "head damaged": lambda people, backup: (people / HEAD).write_text("{"),
    "rows cut off": cut_off_at_a_lines_end,
    "all rows but the first cut off, head deleted": keep_the_first_row_alone,
    "older ledger put back": lambda people, backup: put_back(people, backup, FILE_NAME),
    "older ledger and head put back": lambda people, backup: put_back(
        people, backup, FILE_NAME, HEAD
    ),
    "older head put back": lambda people, backup: put_back(people, backup, HEAD),
    "older folder in its place": lambda people, backup: (
        shutil.rmtree(people),
        backup.rename(people),
    ),
    "another ledger": lambda people, backup: (
        (people / FILE_NAME).unlink(),
        (people / HEAD).unlink(),
        Ledger(people / FILE_NAME),
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_ledger_that_lost_something_is_refused_with_instructions(
    people, tmp_path, harm, monkeypatch
):
    monkeypatch.setattr(hash_chain, "_slack", lambda path: 0)  # all of it happens within a second
    HARMS[harm](people, tmp_path / "backup")
    was_there = (people / FILE_NAME).exists()
    for _ in range(2):
        with pytest.raises((LedgerError, DataError), match=r"[Rr]estore|adopt"):
            open_ledger(Population(people))
        assert (people / FILE_NAME).exists() == was_there  # nothing is made anew


@pytest.mark.parametrize(
    "harm",
    [
        "rows cut off",
        "older ledger put back",
        "older head put back",
        "older ledger and head put back",
        "older folder in its place",
    ],
)
def test_without_a_head_file_no_loss_is_noticed(people, tmp_path, harm, monkeypatch):
    """The twin that must fail: a ledger that checks only the chain, as before."""
    HARMS[harm](people, tmp_path / "backup")
    monkeypatch.setattr(ChainedFile, "_check_rows", lambda *_: None)
    monkeypatch.setattr(ChainedFile, "_check_standing", lambda *_, **__: None)
    assert "first" in open_ledger(Population(people)).runs()


@pytest.mark.parametrize("harm", ["ledger and head deleted", "another ledger"])
def test_without_an_id_in_the_manifest_a_lost_ledger_is_made_anew(people, harm, monkeypatch):
    """The twin that must fail."""
    HARMS[harm](people, None)
    monkeypatch.setattr(Population, "ledger", None)
    assert open_ledger(Population(people)).runs() == []


def test_the_id_of_the_ledger_does_not_change_the_identity_of_the_text(people):
    before = Population(people)
    spend(people, "third")
    assert Population(people).id == before.id
    assert Population(people).manifest["ledger"] == {"id": open_ledger(before).id, "folder": "."}


def test_the_head_is_on_disk_when_a_charge_returns(people):
    account = spend(people, "third")
    for _ in range(3):
        account.charge(len(account.charges), "record")
        known = json.loads((people / HEAD).read_text())
        assert (known["head"], known["rows"]) == (account.head, len(account.ledger.rows))


@pytest.mark.parametrize(
    "moment", ["before the row", "half a row", "a row without its end", "before the head"]
)
@pytest.mark.parametrize("crashes", [1, 3])
def test_a_crash_between_any_two_writes_costs_at_most_one_charge(
    people, monkeypatch, moment, crashes
):
    monkeypatch.setattr(hash_chain, "_slack", lambda path: 0)
    for _ in range(crashes):
        account, before = (
            Account(ledger=open_ledger(Population(people)), terms=terms("second"), release=RELEASE),
            people / FILE_NAME,
        )
        account.reopen(None)
        size = before.stat().st_size
        with monkeypatch.context() as patch:
            if moment == "before the head":
                patch.setattr(hash_chain, "write_atomically", _cut)
            else:
                kept = {"before the row": 0.0, "half a row": 0.5, "a row without its end": 1.0}[
                    moment
                ]
                patch.setattr(ChainedFile, "_flush", _cut_after(kept))
            with pytest.raises(Cut):
                account.charge(len(account.charges), "record")
        added = before.stat().st_size - size
        assert (added == 0) == (moment == "before the row")
    ledger = open_ledger(Population(people))
    whole = moment in ("a row without its end", "before the head")
    assert ledger.guarantee("second").releases == 3 + crashes * whole
    spend(people, "third")


def _cut(*_):
    raise Cut


def _cut_after(kept):
    def flush(self, file, data):
        file.write(data[: int(kept * (len(data) - 1))])
        file.flush()
        raise Cut

    return flush


def test_a_new_ledger_with_an_incomplete_first_row_is_made_again(tmp_path, monkeypatch):
    for kept in (0.0, 0.5, 1.0):
        path = tmp_path / f"{kept}.jsonl"
        with monkeypatch.context() as patch:
            patch.setattr(ChainedFile, "_flush", _cut_after(kept))
            with pytest.raises(Cut):
                Ledger(path)
        assert [row["kind"] for row in Ledger(path).rows] == ["ledger"]
        assert Ledger(path).id


def test_a_full_disk_releases_nothing_and_the_ledger_continues_when_there_is_room(
    people, monkeypatch
):
    monkeypatch.setattr(hash_chain, "_slack", lambda path: 0)
    account = spend(people, "third")
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(OSError, match="No space"):
            account.charge(len(account.charges), "record")
    again = Account(ledger=open_ledger(Population(people)), terms=terms("third"), release=RELEASE)
    again.reopen(account.head)
    again.charge(len(again.charges), "record")
    assert (
        again.guarantee().releases == 3 + 1 + 1
    )  # what could not be synced may be there, so it counts


# --- copies ---------------------------------------------------------------------------------------


def test_a_copied_population_is_refused_until_one_copy_is_adopted(people, tmp_path):
    shutil.copytree(people, tmp_path / "copy")
    with pytest.raises(LedgerError, match="copied or put back"):
        spend(tmp_path / "copy", "third")
    spend(people, "third")  # the original does not know of it
    with pytest.raises(
        LedgerError, match=r"rows that .* lacks"
    ):  # a copy that is behind would forget what was spent
        adopt_ledger(tmp_path / "copy")
    with pytest.raises(
        LedgerError, match="copied or put back"
    ):  # and to be refused does not make it the original
        spend(tmp_path / "copy", "fourth")
    shutil.copytree(people, tmp_path / "newer")
    book, retired = adopt_ledger(tmp_path / "newer")
    assert (book.runs(), retired) == (["first", "second", "third"], (people / FILE_NAME).resolve())
    spend(tmp_path / "newer", "fourth")
    for attempt in (lambda: spend(people, "fourth"), lambda: adopt_ledger(people)):
        with pytest.raises(LedgerError, match=r"retired, as the one at .*newer"):
            attempt()


def test_a_run_in_the_original_stops_when_a_copy_is_adopted(people, tmp_path):
    account = spend(people, "third")
    shutil.copytree(people, tmp_path / "copy")
    adopt_ledger(tmp_path / "copy")
    with pytest.raises(LedgerError, match="retired"):
        account.charge(len(account.charges), "record")


def test_a_folder_that_is_renamed_or_named_by_a_link_is_the_same(people, tmp_path):
    people.rename(tmp_path / "renamed")
    spend(tmp_path / "renamed", "third")
    os.symlink(tmp_path / "renamed", tmp_path / "link")
    spend(tmp_path / "link", "fourth")
    assert open_ledger(Population(tmp_path / "renamed")).runs() == [
        "first",
        "second",
        "third",
        "fourth",
    ]


def test_a_restored_backup_continues_after_it_is_adopted(people, tmp_path):
    shutil.copytree(people, tmp_path / "saved")
    shutil.rmtree(people)
    shutil.copytree(tmp_path / "saved", people)  # what `place` names is this very file
    with pytest.raises(LedgerError, match="adopt"):
        spend(people, "third")
    assert adopt_ledger(people)[1] is None
    spend(people, "third")


def test_an_interrupted_adoption_can_be_repeated(people, tmp_path, monkeypatch):
    shutil.copytree(people, tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", _cut)
        with pytest.raises(Cut):
            adopt_ledger(tmp_path / "copy")
    for folder in (people, tmp_path / "copy"):  # at no moment can both be used
        with pytest.raises(LedgerError, match=r"was copied or put back|is retired"):
            spend(folder, "third")
    adopt_ledger(tmp_path / "copy")
    spend(tmp_path / "copy", "third")


def test_a_copy_that_lacks_known_rows_is_not_adopted(people, tmp_path):
    cut_off_at_a_lines_end(people, None)
    with pytest.raises(LedgerError, match="rows were removed"):
        adopt_ledger(people)


def test_a_ledger_from_before_head_files_is_adopted_as_it_is(people):
    (people / HEAD).unlink()
    assert adopt_ledger(people)[0].runs() == ["first", "second"]
    spend(people, "third")


def test_without_the_inode_two_copies_could_both_spend(people, tmp_path):
    """The twin that must fail: the copy passes for the original."""
    shutil.copytree(people, tmp_path / "copy")
    copied_ledger(people / FILE_NAME, tmp_path / "copy" / FILE_NAME)
    spend(tmp_path / "copy", "third")
    assert "third" not in open_ledger(Population(people)).runs()


# --- fresh bytes ----------------------------------------------------------------------------------


def test_a_manifest_and_a_private_folder_of_two_ledgers_are_refused(people):
    (people / "private" / "ledger.json").write_text(json.dumps({"id": "another", "folder": "."}))
    with pytest.raises(DataError, match="name two ledgers"):
        open_ledger(Population(people))
    (people / "private" / "ledger.json").unlink()  # the twin: one of them is enough
    assert Population(people).ledger == NamedLedger(open_ledger(Population(people)).id)


def test_adopting_accepts_only_the_ledger_of_these_users(people):
    other = Ledger(people / "other.jsonl")
    with pytest.raises(LedgerError, match="not the ledger of these users"):
        adopt(other.path, open_ledger(Population(people)).id)
