"""An anchor outside the folder notices what no file inside can; while it cannot be reached, nothing
is released.
"""

import json
import shlex
import shutil
import sys

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from harness import Cut, copied_ledger, cut_off_rows
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.ledger import anchor as anchors
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.adopt import adopt
from taciturn.privacy.ledger.anchor import Anchor, AnchorError, AnchorUnreachable
from taciturn.privacy.ledger.hash_chain import ChainedFile
from taciturn.privacy.ledger.ledger import Ledger, LedgerError

RELEASE = PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0))
# Remembers the newest head in a file, as a server elsewhere would; agrees as the contract says.
REMEMBERS = """
import pathlib, sys
memory, previous, new = pathlib.Path(sys.argv[1]), *sys.argv[2:]
known = memory.read_text() if memory.exists() else ""
if known not in ("", previous, new):
    sys.exit(f"another head is known: {known}")
memory.write_text(new)
"""


@pytest.fixture(params=["file", "command"])
def anchor(request, tmp_path) -> Anchor:
    (tmp_path / "elsewhere").mkdir()
    memory = tmp_path / "elsewhere" / "people.head"
    if request.param == "file":
        return Anchor(file=memory)
    (tmp_path / "remembers.py").write_text(REMEMBERS)
    return Anchor(command=shlex.join([sys.executable, str(tmp_path / "remembers.py"), str(memory)]))


@pytest.fixture
def path(tmp_path, anchor):
    (tmp_path / "people").mkdir()
    path = tmp_path / "people" / "ledger.jsonl"
    Ledger(path).set_anchor(anchor)
    return path


def run(path, name="run", reopen=False) -> Account:
    terms = RunTerms(
        name=name,
        recipe="recipe",
        population="text",
        adjacency="add or remove one user",
        randomness="operating system",
        accountant="pld",
        budget=Budget(delta=1e-6),
        rounds=50,
    )
    account = Account(ledger=Ledger(path), terms=terms, release=RELEASE)
    account.reopen(None) if reopen else account.open()
    return account


def remembered(tmp_path) -> str:
    return (tmp_path / "elsewhere" / "people.head").read_text()


def test_the_anchor_knows_a_charge_before_it_returns(path, tmp_path):
    account = run(path)
    for _ in range(3):
        account.charge(len(account.charges), "record")
        assert remembered(tmp_path) == account.head == Ledger(path).head


@pytest.mark.parametrize("rows", [1, 3])
def test_the_anchor_notices_a_ledger_restored_together_with_its_head(path, rows):
    """No file in the folder can show it."""
    account = run(path)
    for _ in range(5):
        account.charge(len(account.charges), "record")
    cut_off_rows(path, rows)
    with pytest.raises(AnchorError, match=r"which is not the ledger's last|another head is known"):
        run(path, "next")
    assert "next" not in Ledger(path).runs()


def test_without_an_anchor_a_restored_ledger_is_not_noticed(tmp_path):
    """The twin that must fail."""
    account = run(tmp_path / "ledger.jsonl")
    for _ in range(5):
        account.charge(len(account.charges), "record")
    cut_off_rows(tmp_path / "ledger.jsonl", 3)
    run(tmp_path / "ledger.jsonl", "next")
    assert "next" in Ledger(tmp_path / "ledger.jsonl").runs()


def test_one_of_two_copies_that_pass_for_the_original_is_stopped(path, tmp_path):
    account = run(path)
    (tmp_path / "copy").mkdir()
    copied_ledger(path, tmp_path / "copy" / "ledger.jsonl")
    other = run(tmp_path / "copy" / "ledger.jsonl", reopen=True)
    with pytest.raises(AnchorError, match=r"which is not the ledger's last|another head is known"):
        account.charge(len(account.charges), "record")
    other.charge(len(other.charges), "record")


def test_nothing_is_released_while_the_anchor_cannot_be_reached(path, tmp_path):
    account = run(path)
    charged = Ledger(path).guarantee("run").releases
    (tmp_path / "elsewhere").rename(tmp_path / "unplugged")
    for _ in range(3):
        with pytest.raises(AnchorError, match=r"did not agree|cannot be read"):
            account.charge(len(account.charges), "record")
    assert Ledger(path).guarantee("run").releases == charged  # and nothing was counted in vain
    (tmp_path / "unplugged").rename(tmp_path / "elsewhere")
    account.charge(len(account.charges), "record")


def test_a_missing_anchor_file_does_not_count_as_agreement(path, tmp_path, anchor):
    run(path)
    if anchor.file:
        anchor.file.unlink()  # a disk that is not mounted: the folder is there, and empty
        with pytest.raises(AnchorUnreachable, match="cannot be read"):
            run(path, "next")


def test_a_crash_between_a_row_and_the_anchor_is_repaired(path, monkeypatch, tmp_path):
    for _ in range(3):
        account = run(path, f"run {_}")
        with monkeypatch.context() as patch:
            asked = []

            def cut(self, previous, new, asked=asked):
                asked.append(new)
                if len(asked) == 2:
                    raise Cut

            patch.setattr(Anchor, "agree", cut)
            with pytest.raises(Cut):
                account.charge(len(account.charges), "record")
        assert remembered(tmp_path) != Ledger(path).head
    run(path, "next").charge(0, "record")
    assert remembered(tmp_path) == Ledger(path).head


def test_a_torn_row_does_not_make_the_anchor_contradict(path, monkeypatch, tmp_path):
    account = run(path)

    def torn(self, file, data):
        file.write(data[:20])
        file.flush()
        raise Cut

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(ChainedFile, "_flush", torn)
            with pytest.raises(Cut):
                account.charge(len(account.charges), "record")
        account = run(path, reopen=True)
    assert remembered(tmp_path) == Ledger(path).head


def test_a_lost_anchor_can_be_replaced_and_one_that_contradicts_cannot(path, tmp_path):
    run(path)
    (tmp_path / "elsewhere" / "people.head").write_text("another head")
    with pytest.raises(AnchorError, match="another head"):
        Ledger(path).set_anchor(Anchor(file=tmp_path / "new.head"))
    shutil.rmtree(tmp_path / "elsewhere")
    if Ledger(path).anchor.file:
        Ledger(path).set_anchor(Anchor(file=tmp_path / "new.head"))
        run(path, "next").charge(0, "record")
        assert (tmp_path / "new.head").read_text() == Ledger(path).head


def test_a_file_with_other_content_is_refused_as_an_anchor(tmp_path):
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(AnchorError, match="something else"):
        Ledger(tmp_path / "ledger.jsonl").set_anchor(Anchor(file=tmp_path / "precious"))
    assert (tmp_path / "precious").read_text() == "mine"
    assert Ledger(tmp_path / "ledger.jsonl").anchor is None


def test_an_older_copy_whose_original_is_gone_is_not_adopted_against_the_anchor(path, tmp_path):
    account = run(path)
    shutil.copytree(path.parent, tmp_path / "older")
    account.charge(len(account.charges), "record")
    shutil.rmtree(path.parent)
    with pytest.raises(AnchorError, match=r"which is not the ledger's last|another head is known"):
        adopt(tmp_path / "older" / "ledger.jsonl")
    with pytest.raises(LedgerError, match="was copied or put back"):
        run(tmp_path / "older" / "ledger.jsonl", "next")


def test_the_newest_copy_is_adopted_and_the_anchor_follows_it(path, tmp_path):
    run(path).charge(0, "record")
    shutil.copytree(path.parent, tmp_path / "copy")
    adopt(tmp_path / "copy" / "ledger.jsonl")
    run(tmp_path / "copy" / "ledger.jsonl", "next").charge(0, "record")
    assert remembered(tmp_path) == Ledger(tmp_path / "copy" / "ledger.jsonl").head


def test_a_command_that_is_missing_or_does_not_answer_stops_every_release(tmp_path, monkeypatch):
    monkeypatch.setattr(anchors, "SECONDS", 0.2)
    for command in (f"{sys.executable} -c 'import time; time.sleep(5)'", "no-such-command"):
        with pytest.raises(AnchorUnreachable, match="cannot be asked"):
            Ledger(tmp_path / "ledger.jsonl").set_anchor(Anchor(command=command))
    with pytest.raises(AnchorError, match="exit status 1"):
        Ledger(tmp_path / "ledger.jsonl").set_anchor(Anchor(command="false"))
    assert len(json.loads((tmp_path / "ledger.head").read_text())["head"]) == 64
