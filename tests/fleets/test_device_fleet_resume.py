"""A server of devices that is killed, doubled or given up: nothing is uncounted, nobody trains
twice, and no noise meets two totals.
"""

import contextlib
import hashlib
import json
import os
import threading
from dataclasses import replace

import jax
import pytest
from fleet_of_devices import FleetOfDevices
from watched_releases import WatchedReleases

from harness import Cut, cut_at, mostly_slow, quietly
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.device import Device
from taciturn.fleets.devices.fleet import DeviceFleet
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.privacy.ledger.account import Account
from taciturn.privacy.ledger.ledger import Ledger, LedgerError
from taciturn.privacy.ledger.releases import ReleaseError, Releases
from taciturn.runs import folder as run_folder
from taciturn.runs.folder import RunError
from taciturn.runs.loop import resume_run, train_run

TWO_ROUNDS = {"rounds": 2, "evaluate_every": 2, "save_every": 1}
LONG = {"rounds": 4, "evaluate_every": 4, "save_every": 4}
STEP = 23  # moments between those that are tried; with 1 it takes minutes


@pytest.mark.slow
def test_killed_at_any_write_to_disk_nothing_is_uncounted_and_no_noise_meets_two_totals(
    tmp_path, vocabulary, monkeypatch
):
    """Before and after each moment at which something becomes durable. The devices go on: only the
    server dies.
    """
    fleet = FleetOfDevices(tmp_path, vocabulary, count=12, run={**TWO_ROUNDS, "seed": None})
    releases = WatchedReleases(monkeypatch, fleet.population.folder / "ledger.jsonl")
    whole, main, left, after = os.fsync, threading.main_thread(), [0], [False]

    def fsync(descriptor):
        left[0] -= threading.current_thread() is main
        now = left[0] == 0 and threading.current_thread() is main
        _cut_if(now and not after[0])
        whole(descriptor)
        _cut_if(now)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("first", "whole"):  # the first writes down what is written once for all runs
        left[0] = 10**9
        train_run(fleet.recipe, tmp_path / name, quietly, fleet.connected)
    writes = 10**9 - left[0]
    assert writes > 30
    for point in range(1, 2 * writes + 1, STEP):
        left[0], after[0] = (point + 1) // 2, point % 2 == 0
        folder = tmp_path / f"run-{point}"
        with pytest.raises(Cut):
            train_run(fleet.recipe, folder, quietly, fleet.connected)
        left[0] = 10**9
        try:
            finished = resume_run(folder, quietly, fleet.connected)
        except RunError:  # it had not begun, or had ended
            if (folder / "guarantee.json").exists():
                charged = Ledger(fleet.population.folder / "ledger.jsonl").run_rows(folder.name)
                assert sum(row["kind"] == "charge" for row in charged) == 2
            else:
                finished = train_run(fleet.recipe, folder, quietly, fleet.connected)
                assert finished.guarantee.releases == 2
        else:
            assert finished.guarantee.releases == 2
        releases.check()
        assert {round for run, round in releases.left if run == folder.name} == {0, 1}
        assert not (folder / "private").exists()


def test_a_release_that_was_not_charged_would_be_noticed(tmp_path, vocabulary, monkeypatch):
    """The twin."""
    fleet = FleetOfDevices(tmp_path, vocabulary, run={"rounds": 1, "evaluate_every": 1})
    releases = WatchedReleases(monkeypatch, fleet.population.folder / "ledger.jsonl")
    monkeypatch.setattr(Account, "charge", lambda account, round, record, log: None)
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    with pytest.raises(AssertionError):
        releases.check()


def test_everyone_in_a_total_is_in_the_cohort_of_its_row(tmp_path, vocabulary, log_of):
    def dies(number, kind, answer):
        return None if kind == Stage.UNMASK.question and number == 3 else answer

    fleet = FleetOfDevices(
        tmp_path, vocabulary, faults=(dies,), run={"rounds": 3, "evaluate_every": 3}
    )
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    asked, summed = log_of
    assert len(asked) == len(summed) == 3
    assert all(
        set(some) <= set(all.tolist()) and len(some) >= 6
        for some, all in zip(summed, asked, strict=True)
    )


@pytest.fixture
def without_locks(monkeypatch):
    """As on a file system that has none: a second process at a run is then noticed by the
    ledger.
    """
    monkeypatch.setattr(run_folder, "lock_file", lambda path, busy: contextlib.nullcontext())


@pytest.mark.usefixtures("without_locks")
def test_a_second_server_on_the_same_run_charges_nothing_and_releases_nothing(
    tmp_path, vocabulary, monkeypatch
):
    """It comes in the middle of a round of the first, and does that round with others; the first
    then has a sum of its own.
    """
    fleet = FleetOfDevices(
        tmp_path, vocabulary, run={"rounds": 3, "evaluate_every": 3, "save_every": 1}
    )
    releases, folder, second = (
        WatchedReleases(monkeypatch, fleet.population.folder / "ledger.jsonl"),
        tmp_path / "run",
        [],
    )

    def watch(stage, done, all):
        if (
            stage == Stage.UNMASK.question
            and done == all
            and len(fleet.reports) == 2
            and not second
        ):
            second.append(1)
            with pytest.raises(Cut):
                resume_run(folder, cut_at(3), fleet.connected)

    first = replace(fleet.connected, watch=watch)
    with pytest.raises(LedgerError, match="another process"):
        train_run(fleet.recipe, folder, quietly, first)
    assert second
    releases.check()
    assert resume_run(folder, quietly, fleet.connected).guarantee.releases == 3
    releases.check()


@pytest.mark.usefixtures("without_locks")
def test_a_second_server_that_ends_the_run_leaves_the_first_nothing_and_no_release_behind(
    tmp_path, vocabulary
):
    fleet, folder = FleetOfDevices(tmp_path, vocabulary, run=TWO_ROUNDS), tmp_path / "run"

    def ended(done, rounds, row):
        if done == 1:
            resume_run(folder, quietly, fleet.connected)

    with pytest.raises((OSError, LedgerError), match=r"No such file|another process|already has"):
        train_run(fleet.recipe, folder, ended, fleet.connected)
    assert not list(folder.rglob("release-*"))
    assert json.loads((folder / "guarantee.json").read_text())


def records(run):
    return sorted((run / "private" / "releases").iterdir())


@pytest.fixture
def before_the_charge(tmp_path, vocabulary, monkeypatch):
    """A run whose server was killed when its third release was on disk, and not charged."""
    fleet = FleetOfDevices(tmp_path, vocabulary, count=20, run=LONG)
    with monkeypatch.context() as killed:
        whole = Account.charge
        killed.setattr(
            Account,
            "charge",
            lambda account, round, *rest: _cut_if(round == 2) or whole(account, round, *rest),
        )
        with pytest.raises(Cut):
            train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert [record.name for record in records(tmp_path / "run")] == [
        "release-0",
        "release-1",
        "release-2",
    ]
    return fleet, tmp_path / "run"


def _cut_if(now):
    if now:
        raise Cut


DAMAGE = {
    "gone": lambda record, other: record.unlink(),
    "cut short": lambda record, other: record.write_bytes(record.read_bytes()[:400]),
    "cut very short": lambda record, other: record.write_bytes(record.read_bytes()[:3]),
    "altered": lambda record, other: record.write_bytes(record.read_bytes()[:-4] + b"\x11" * 4),
    "another row's": lambda record, other: record.write_bytes(other.read_bytes()),
}


@pytest.mark.parametrize("damage", mostly_slow(DAMAGE, "altered", "gone"))
def test_a_record_other_than_the_charged_one_is_not_given_out_and_nobody_is_asked_again(
    before_the_charge, monkeypatch, damage
):
    fleet, run = before_the_charge
    releases = WatchedReleases(monkeypatch, fleet.population.folder / "ledger.jsonl")
    first, second, _ = records(run)
    DAMAGE[damage](second, first)
    before = {round: len(reports) for round, reports in fleet.reports.items()}
    with pytest.raises(ReleaseError, match="round 1"):
        resume_run(run, quietly, fleet.connected)
    assert releases.left.keys() == {("run", 0)}
    assert {round: len(reports) for round, reports in fleet.reports.items()} == before


@pytest.mark.parametrize("damage", mostly_slow(DAMAGE, "altered", "gone"))
def test_a_record_that_was_not_charged_is_never_given_out_whatever_it_says(
    before_the_charge, monkeypatch, damage
):
    fleet, run = before_the_charge
    releases = WatchedReleases(monkeypatch, fleet.population.folder / "ledger.jsonl")
    first, _, last = records(run)
    DAMAGE[damage](last, first)
    assert resume_run(run, quietly, fleet.connected).guarantee.releases == 4
    releases.check()
    assert len(releases.met) == 2  # the third and the fourth; the first two came from their records
    assert len(set().union(*releases.left.values())) == 4
    assert len(fleet.reports[2]) == 18


@pytest.mark.parametrize("same", [True, False])
def test_a_round_that_is_done_again_is_about_the_same_model(
    tmp_path, vocabulary, monkeypatch, same
):
    """It follows from releases that were charged, and they are given out as they were. Twin: with
    another, the model is another.
    """
    fleet = FleetOfDevices(tmp_path, vocabulary, count=20, run=LONG)
    about, whole = [], DeviceFleet._secure_sum

    def killed(server, *, row, model, cohort, key):
        if row == 2:
            about.append(hashlib.sha256(model).hexdigest())
            _cut_if(len(about) == 1)
        return whole(server, row=row, model=model, cohort=cohort, key=key)

    monkeypatch.setattr(DeviceFleet, "_secure_sum", killed)
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    if not same:
        read = Releases.read

        def doubled(*row):
            release, drawn = read(*row)
            return release._replace(
                estimate=jax.tree.map(lambda leaf: 2 * leaf, release.estimate)
            ), drawn

        monkeypatch.setattr(Releases, "read", doubled)
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 4
    assert len(about) == 2
    assert (about[0] == about[1]) == same


@pytest.fixture
def releases_of(monkeypatch):
    return lambda fleet: WatchedReleases(monkeypatch, fleet.population.folder / "ledger.jsonl")


def device_of(fleet, number) -> Device:
    return fleet.link._devices[number].handler


def charges(fleet):
    rows = Ledger(fleet.population.folder / "ledger.jsonl").rows
    return [row["round"] for row in rows if row["kind"] == "charge"]


def trained(fleet):
    return {round: len(reports) for round, reports in fleet.reports.items()}


def intercepted(fleet, before):
    """`before` sees every question that the server asks."""
    ask = fleet.link.ask

    def asks(kind, contents, *args, **settings):
        before(kind, contents)
        return ask(kind, contents, *args, **settings)

    fleet.link.ask = asks


@pytest.mark.parametrize("ends", [Cut, LinkError])
def test_a_server_that_ends_while_it_sends_devices_away_has_charged_its_sum(
    tmp_path, vocabulary, releases_of, ends
):
    fleet, run = FleetOfDevices(tmp_path, vocabulary, count=20, run=TWO_ROUNDS), tmp_path / "run"
    ask, releases = fleet.link.ask, releases_of(fleet)

    def killed(kind, contents):
        if kind == fields.COME_BACK:
            raise ends("while devices are sent away")

    intercepted(fleet, killed)
    with pytest.raises(ends, match="while devices are sent away"):
        train_run(fleet.recipe, run, quietly, fleet.connected)
    assert charges(fleet) == [0]
    assert trained(fleet) == {0: 9}
    fleet.link.ask = ask
    assert resume_run(run, quietly, fleet.connected).guarantee.releases == 2
    assert trained(fleet) == {0: 9, 1: 9}
    assert charges(fleet) == [0, 1]
    releases.check()


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_that_was_given_up_goes_on_as_itself(
    tmp_path, vocabulary, releases_of, monkeypatch, lost
):
    """Two rounds are charged and not yet saved when devices stop coming, and again when they do not
    come back. To the devices it is the same run afterwards, none of them trains again for what was
    summed, and nothing is charged again, even if records are lost then.
    """
    broken, names = [], set()

    def vanish(number, kind, answer):
        return None if broken and kind == Stage.MASK.question else answer

    fleet = FleetOfDevices(tmp_path, vocabulary, count=16, faults=(vanish,), run=LONG)
    releases = releases_of(fleet)
    ledger = fleet.population.folder / "ledger.jsonl"

    def named(kind, contents):
        if kind == Stage.ADVERTISE.question:
            names.update(
                fields.unpack_fields(content, 5)[1].decode() for content in contents.values()
            )
            declared = [json.loads(line) for line in ledger.read_text().splitlines()]
            (opened,) = (row["hash"] for row in declared if row["kind"] == "open")
            assert names == {f"run {opened[:16]}"}  # and so never before there is a run

    intercepted(fleet, named)

    def break_down(done, rounds, row):
        if done == 2:
            broken.append(1)

    run = tmp_path / "run"
    with pytest.raises(LinkError, match=r"rounds have failed.*--resume"):
        train_run(fleet.recipe, run, break_down, fleet.connected)
    assert charges(fleet) == [0, 1]
    assert (run / "private" / "root").exists()
    assert not (run / "guarantee.json").exists()
    before = trained(fleet)
    for record in (run / "private" / "releases").iterdir() if lost else ():
        record.unlink()
    with pytest.raises(LinkError, match="--resume"):
        resume_run(run, quietly, fleet.connected)
    broken.clear()
    finished = resume_run(run, quietly, fleet.connected)
    assert finished.guarantee.releases == len(charges(fleet)) == 4
    assert all(trained(fleet)[round] == before[round] for round in (0, 1))
    releases.check()
    uploads = [
        upload for number in range(16) for upload in device_of(fleet, number)._record.uploads
    ]
    assert {upload["run"] for upload in uploads} == names
    assert not (run / "private").exists()


@pytest.mark.parametrize("damage", ["{", '{"asked": 9}'])
def test_a_figure_that_is_damaged_ends_no_run(tmp_path, vocabulary, damage):
    fleet = FleetOfDevices(tmp_path, vocabulary, run=TWO_ROUNDS)
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", cut_at(1), fleet.connected)
    (tmp_path / "run" / "private" / "rounds" / "counts.json").write_text(damage)
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 2


@pytest.mark.parametrize("lost", [False, True])
def test_killed_after_a_charge_its_release_is_given_out_although_nobody_comes(
    tmp_path, vocabulary, releases_of, monkeypatch, lost
):
    """From its record. Twin: without it the run does not go on, whoever comes, and nothing is
    charged again.
    """
    run, whole = tmp_path / "run", Account.charge
    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=20, run={"rounds": 1, "evaluate_every": 1, "save_every": 1}
    )
    releases = releases_of(fleet)

    def killed(account, *row):
        whole(account, *row)
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Account, "charge", killed)
        with pytest.raises(Cut):
            train_run(fleet.recipe, run, quietly, fleet.connected)
    assert charges(fleet) == [0]
    assert not releases.left
    if lost:
        (run / "private" / "releases" / "release-0").unlink()
        with pytest.raises(ReleaseError, match="cannot continue"):
            resume_run(run, quietly, fleet.connected)
        assert not releases.left
    else:
        for number in list(fleet.link.devices()):
            fleet.link.remove(number)
        assert resume_run(run, quietly, fleet.connected).guarantee.releases == 1
        releases.check()
    assert charges(fleet) == [0]
    assert trained(fleet) == {0: 9}
