"""Older rows and an older head that are written back into the same files fit each other, and would
let the same text be spent twice. They are refused by when the files changed, whatever the clock
says. The twin: what a crash leaves, and what nobody touched, is accepted.
"""

import json
import os
import shutil

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from harness import Cut, made_up_users
from taciturn.data.population import Population, write_population
from taciturn.people import adopt_ledger, open_ledger
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger import hash_chain
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.hash_chain import SECOND, ChainedFile
from taciturn.privacy.ledger.ledger import FILE_NAME, LedgerError

HEAD = "ledger.head"
RELEASE = PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0))
DAY = 24 * 3600 * SECOND


@pytest.fixture
def people(tmp_path, vocabulary, monkeypatch):
    if hash_chain._slack(tmp_path) > 0:  # the tests are quicker than such a disk can tell
        monkeypatch.setattr(hash_chain, "_slack", lambda path: 0)
    write_population(tmp_path / "people", made_up_users(20), made_up_users(12, 1), vocabulary, {})
    return tmp_path / "people"


def account(folder, name) -> Account:
    terms = RunTerms(
        name=name,
        recipe="recipe",
        population="text",
        adjacency="add or remove one user",
        randomness="operating system",
        accountant="pld",
        budget=Budget(delta=1e-6),
        rounds=9,
    )
    return Account(ledger=open_ledger(Population(folder)), terms=terms, release=RELEASE)


def spend(folder, name, releases=3) -> Account:
    made = account(folder, name)
    made.open()
    for round in range(releases):
        made.charge(round, "record")
    return made


def charges(folder) -> int:
    return sum(row["kind"] == "charge" for row in open_ledger(Population(folder)).rows)


def saved(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (FILE_NAME, HEAD)}


def write_back(folder, contents) -> None:
    """As `cp saved/* folder/` does: into the files that are there."""
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def with_changed(contents, later) -> dict[str, bytes]:
    """The same files, saved when the clock was so many nanoseconds ahead."""
    head = json.loads(contents[HEAD])
    head["changed"] += later
    return {**contents, HEAD: json.dumps(head).encode()}


@pytest.mark.parametrize(("before", "after"), [(5, 4), (3, 4)])
@pytest.mark.parametrize("clock_was_ahead", [0, SECOND, -SECOND, 30 * SECOND, DAY])
def test_older_rows_and_head_written_back_in_place_are_refused(
    people, before, after, clock_was_ahead
):
    spend(people, "first", before)
    older = saved(people)
    spend(people, "second", after)
    assert charges(people) == before + after
    write_back(people, with_changed(older, clock_was_ahead))
    for _ in range(2):
        with pytest.raises(LedgerError, match="copied or put back"):
            open_ledger(Population(people))


@pytest.mark.parametrize("clock_was_ahead", [0, DAY])
def test_by_a_minute_of_slack_and_one_way_they_were_accepted(people, monkeypatch, clock_was_ahead):
    """The twin that must fail: the comparison as it was."""

    def compare_as_before(self, file, head, is_at_rest):
        status = os.fstat(file.fileno())
        is_later = status.st_ctime_ns > head.changed + 60 * SECOND
        return status.st_ino != head.file or (is_at_rest and is_later)

    monkeypatch.setattr(ChainedFile, "_is_another_file", compare_as_before)
    spend(people, "first")
    older = saved(people)
    spend(people, "second")
    write_back(people, with_changed(older, clock_was_ahead))
    assert charges(people) == 3


def test_the_very_same_bytes_written_back_are_refused_too(people):
    """Nothing is lost by it, and nothing tells that nothing is lost: its owner has to say so."""
    spend(people, "first")
    write_back(people, saved(people))
    with pytest.raises(LedgerError, match="taciturn ledger adopt"):
        open_ledger(Population(people))
    adopt_ledger(people)
    spend(people, "second")


def test_a_process_with_the_ledger_open_notices_too(people):
    first = spend(people, "first")
    older = saved(people)
    first.charge(3, "record")
    write_back(people, older)
    with pytest.raises(LedgerError, match="became shorter"):
        first.charge(4, "record")


# --- saved while a run charged: the head is one row behind ----------------------------------------


@pytest.mark.parametrize("ahead", [-61 * SECOND, 61 * SECOND, DAY])
def test_a_head_saved_before_its_last_row_and_written_back_later_is_refused(people, ahead):
    """A backup copies `ledger.head`, the run charges, the backup copies `ledger.jsonl`."""
    run = spend(people, "first")
    head = saved(people)[HEAD]
    run.charge(3, "record")
    older = {FILE_NAME: saved(people)[FILE_NAME], HEAD: head}
    spend(people, "second")
    write_back(people, with_changed(older, ahead))
    with pytest.raises(LedgerError, match="copied or put back"):
        open_ledger(Population(people))


def crash_before_the_head(people, monkeypatch, run) -> None:
    def cut(*_):
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(hash_chain, "write_atomically", cut)
        with pytest.raises(Cut):
            run.charge(len(run.charges), "record")


def test_a_head_that_a_crash_left_behind_is_accepted_and_renewed(people, monkeypatch):
    """The twin. When it is renewed, the file is marked as changed: the next crash looks no older
    than it is.
    """
    run = spend(people, "first")
    for crashes in range(1, 3):
        crash_before_the_head(people, monkeypatch, run)
        before = (people / FILE_NAME).stat().st_ctime_ns
        assert charges(people) == 3 + crashes
        status = (people / FILE_NAME).stat()
        assert status.st_ctime_ns > before
        assert json.loads((people / HEAD).read_text())["changed"] == status.st_ctime_ns
        run = account(people, "first")
        run.reopen(None)


def test_a_head_from_the_middle_of_a_repair_is_renewed(people):
    """While a torn line is removed, the head does not say when the file changed. A crash there must
    not leave a ledger that would be accepted in whatever state it is put back.
    """
    spend(people, "first")
    head = json.loads((people / HEAD).read_text())
    (people / HEAD).write_text(json.dumps({**head, "changed": None}))
    assert charges(people) == 3
    assert json.loads((people / HEAD).read_text())["changed"] is not None


# --- others of their kind -------------------------------------------------------------------------


def test_a_hard_link_of_the_ledger_beside_a_copied_head_is_refused(people, tmp_path):
    spend(people, "first")
    ignored = shutil.ignore_patterns(FILE_NAME)
    shutil.copytree(people, tmp_path / "copy", ignore=ignored)
    os.link(people / FILE_NAME, tmp_path / "copy" / FILE_NAME)
    with pytest.raises(LedgerError, match="copied or put back"):
        open_ledger(Population(tmp_path / "copy"))


@pytest.mark.parametrize("restored", [FILE_NAME, HEAD])
def test_one_file_written_back_and_the_other_not_is_refused(people, restored):
    run = spend(people, "first")
    older = saved(people)
    run.charge(3, "record")
    run.charge(4, "record")
    write_back(people, {restored: older[restored]})
    with pytest.raises(LedgerError, match=r"rows were removed|is older than"):
        open_ledger(Population(people))


def test_a_folder_that_only_moved_is_accepted_wherever_the_clock_stands(people, tmp_path):
    """The twin: nothing was written, so nothing differs."""
    spend(people, "first")
    people.rename(tmp_path / "moved")
    assert charges(tmp_path / "moved") == 3
    spend(tmp_path / "moved", "second")


# --- what file systems can tell -------------------------------------------------------------------

MOUNTED = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /mnt/stick rw - vfat /dev/sdb1 rw
24 22 0:6 / /mnt/server rw shared:2 - nfs4 server:/people rw
25 22 0:7 / /mnt/two\\040words rw - fuse.sshfs me@there:/ rw
26 22 0:8 / /mnt/hidden rw - ext4 /dev/sdc1 rw
27 22 0:9 / /mnt/hidden rw - cifs //there/people rw
28 24 0:10 / /mnt/server/local rw - xfs /dev/sdd1 rw
29 22 0:11 / /mnt/host rw - fakeowner /run/host_mark/Users rw
30 22 0:12 / /mnt/\udce9 rw - ext4 /dev/sde1 rw
"""


@pytest.mark.parametrize(
    ("place", "seconds"),
    [
        ("/home/me/people", 0),
        ("/mnt/stick/people", 2),
        ("/mnt/server/people", 60),
        ("/mnt/two words/people", 60),
        ("/mnt/hidden/people", 60),
        ("/mnt/server/local/people", 0),
        ("/mnt/sticks/people", 0),
        ("/mnt/host/people", 60),
        ("/mnt/\udce9/people", 0),
    ],
)
def test_a_disk_has_two_seconds_of_slack_at_most_and_a_server_a_minute(
    tmp_path, monkeypatch, place, seconds
):
    # A name need not be text.
    (tmp_path / "mountinfo").write_bytes(os.fsencode(MOUNTED))
    monkeypatch.setattr(hash_chain, "MOUNTS", tmp_path / "mountinfo")
    assert hash_chain._slack(hash_chain.Path(place) / FILE_NAME) == seconds * SECOND


def test_where_nothing_tells_what_the_disk_is_it_has_two_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(hash_chain, "MOUNTS", tmp_path / "missing")
    assert hash_chain._slack(tmp_path / FILE_NAME) == 2 * SECOND
