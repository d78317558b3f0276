"""A run's account charges in order and permanently, and every process that opens it draws fresh
bytes.
"""

import fcntl

import pytest
from dp_accounting import NonPrivateDpEvent

from curators import account_of, averaging
from harness import copied_ledger
from taciturn.privacy.accounting.accountant import epsilon
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.ledger.account import Account
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger, LedgerError


def begun(path, releases=0, **declared) -> Account:
    account = account_of(averaging(), path, **declared)
    account.open()
    for round in range(releases):
        account.charge(round, "record")
    return account


def test_a_cheap_row_appended_later_does_not_lower_epsilon(tmp_path):
    book = begun(tmp_path / FILE_NAME, releases=3)
    before = book.guarantee().epsilon
    cheap = {"kind": "charge", "run": "run", "round": 9, "record": ""}
    Ledger(tmp_path / FILE_NAME).append(
        {**cheap, "cost": {"event": "gaussian", "noise_multiplier": 1e6}}
    )
    try:
        after = Ledger(tmp_path / FILE_NAME).guarantee("run").epsilon
    except LedgerError:
        return
    assert after >= before


def test_a_run_is_not_resumed_from_another_warm_start(tmp_path):
    begun(tmp_path / FILE_NAME)
    elsewhere = account_of(averaging(), tmp_path / FILE_NAME, lineage=(NonPrivateDpEvent(),))
    with pytest.raises(
        LedgerError, match="the cost of a release of run 'run' is not the one it was opened with"
    ):
        elsewhere.reopen(None)
    account_of(averaging(), tmp_path / FILE_NAME).reopen(None)  # the twin: as it was opened


def test_a_run_cannot_be_opened_twice(tmp_path):
    begun(tmp_path / FILE_NAME)
    with pytest.raises(LedgerError, match="already has a run"):
        begun(tmp_path / FILE_NAME)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        ("cheaper", "row 2, does not fit"),
        ("removed", "row 3, does not fit"),
        ("shorter", "rows were removed"),
    ],
)
def test_a_ledger_changed_by_hand_releases_nothing(tmp_path, harm, why):
    path = tmp_path / FILE_NAME
    book = begun(path, releases=2)
    head = book.head
    lines = path.read_text().splitlines(keepends=True)
    if harm == "cheaper":
        lines[1] = lines[1].replace('"noise_multiplier": 1.0', '"noise_multiplier": 9.0')
    elif harm == "removed":
        del lines[2]
    else:
        del lines[-1]
    path.write_text("".join(lines))
    with pytest.raises(LedgerError, match=why):
        account_of(averaging(), path).reopen(head)


def test_the_cost_of_a_non_private_start_stays_on_record(tmp_path):
    book = begun(tmp_path / FILE_NAME, releases=1, lineage=(NonPrivateDpEvent(),))
    assert not book.guarantee().is_private


def test_a_ledger_is_locked_while_it_is_written(tmp_path):
    book = begun(tmp_path / FILE_NAME).ledger

    def is_free() -> bool:
        with open(book.path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    free = []
    book.append({"kind": "note"}, lambda rows: free.append(is_free()))
    assert free == [False]
    assert is_free()  # the twin: and only then


def test_rounds_are_charged_once_and_in_order_and_two_cost_twice_the_rho(tmp_path):
    account = begun(tmp_path / FILE_NAME)
    for wrong in (1, -1):
        with pytest.raises(LedgerError, match="not the next"):
            account.charge(wrong, "record")
    account.charge(0, "record")
    once = account.guarantee()
    with pytest.raises(LedgerError, match="not the next"):
        account.charge(0, "record")
    account.charge(1, "record")
    twice = account.guarantee()
    assert twice.epsilon == epsilon(repeat(account.release, 2), 1e-5, "rdp") > once.epsilon
    assert twice.rho == pytest.approx(2 * once.rho)


def test_every_opening_and_resumption_draws_fresh_bytes(tmp_path):
    account = begun(tmp_path / FILE_NAME, releases=3)
    nonces = [account.nonce]
    for _ in range(3):
        again = account_of(averaging(), tmp_path / FILE_NAME)
        again.reopen(account.head)
        nonces.append(again.nonce)
    assert {len(nonce) for nonce in nonces} == {32}
    assert len(set(nonces)) == 4
    assert again.charges == account.charges  # and nothing that was charged is counted otherwise


def test_two_copies_of_a_run_do_not_resume_with_the_same_bytes(tmp_path):
    account = begun(tmp_path / FILE_NAME, releases=3)
    copied_ledger(tmp_path / FILE_NAME, tmp_path / "copy.jsonl")
    nonces = {account.nonce}
    for path in (tmp_path / FILE_NAME, tmp_path / "copy.jsonl"):
        again = account_of(averaging(), path)
        again.reopen(account.head)
        nonces.add(again.nonce)
    assert len(nonces) == 3


def test_a_simulation_draws_no_fresh_bytes_and_stays_repeatable(tmp_path):
    for name in ("one", "other"):
        account = begun(tmp_path / f"{name}.jsonl", randomness="seeded simulation")
        account.reopen(None)
        assert account.nonce == b""
        assert [row["kind"] for row in account.rows] == ["open", "resume"]


def test_a_run_that_was_not_opened_has_no_nonce(tmp_path):
    with pytest.raises(LedgerError, match="open it first"):
        _ = account_of(averaging(), tmp_path / FILE_NAME).nonce
