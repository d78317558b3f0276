"""Attempts to break a fleet of real devices: kill the server anywhere, two servers, strange records, lists, diaries and texts.

What is marked as failing is a hole: the test says how it should be.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from contextlib import suppress

import jax
import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices, fleet_recipe
from releases import Releases

from conftest import Cut, cut_at
from taciturn import trees
from taciturn.fleets import assemble, folders
from taciturn.fleets.devices import fields
from taciturn.fleets.devices import participation_record as diaries
from taciturn.fleets.devices.device import NotNow
from taciturn.fleets.devices.fleet import DeviceFleet
from taciturn.fleets.devices.participation_record import Diary, DiaryDamaged, Rest
from taciturn.fleets.devices.transport import Later, LinkError
from taciturn.fleets.secure_aggregation.identities import EnrolledKeys
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.privacy.account import Account
from taciturn.privacy.ledger import Ledger, LedgerError
from taciturn.privacy.participation_log import ParticipationLog
from taciturn.privacy.records import RecordError, Records
from taciturn.recipe import build
from taciturn.recipe.text import RecipeError
from taciturn.runs import folder as run_folder
from taciturn.runs.folder import RunError
from taciturn.runs.run import resume_run, train_run

TWO_ROUNDS = {"rounds": 2, "evaluate_every": 2, "save_every": 1}
LONG = {"rounds": 4, "evaluate_every": 4, "save_every": 4}
STEP = 23  # moments between those that are tried; with 1 it takes minutes
TIRELESS = Rest(0.0, 0, 99)


def quietly(done, rounds, row):
    pass


@pytest.fixture
def log_of(monkeypatch):
    """Every cohort that was recorded, and all who were in a total, by the fleet's folder."""
    asked, summed = [], []
    record, total = ParticipationLog.record, ServerRound.total
    monkeypatch.setattr(ParticipationLog, "record", lambda log, cohort: asked.append(cohort) or record(log, cohort))

    def noted(server):
        done = total(server)
        summed.append(done.devices)
        return done

    monkeypatch.setattr(ServerRound, "total", noted)
    return asked, summed


# The server is killed


@pytest.mark.usefixtures("not_optimised")
def test_killed_at_any_write_to_disk_nothing_is_uncounted_and_no_noise_meets_two_totals(
    tmp_path, vocabulary, monkeypatch
):
    """Before and after each moment at which something becomes durable. The devices go on: only the server dies."""
    fleet = FleetOfDevices(tmp_path, vocabulary, count=12, run={**TWO_ROUNDS, "seed": None})
    releases = Releases(monkeypatch, fleet.population.folder / "ledger.jsonl")
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
    releases = Releases(monkeypatch, fleet.population.folder / "ledger.jsonl")
    monkeypatch.setattr(Account, "charge", lambda account, round, record, log: None)
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    with pytest.raises(AssertionError):
        releases.check()


def test_everyone_in_a_total_is_in_the_cohort_of_its_row(tmp_path, vocabulary, log_of):
    def dies(number, kind, answer):
        return None if kind == fields.UNMASK and number == 3 else answer

    fleet = FleetOfDevices(tmp_path, vocabulary, faults=(dies,), run={"rounds": 3, "evaluate_every": 3})
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    asked, summed = log_of
    assert len(asked) == len(summed) == 3
    assert all(set(some) <= set(all.tolist()) and len(some) >= 6 for some, all in zip(summed, asked, strict=True))


@pytest.fixture
def without_locks(monkeypatch):
    """As on a file system that has none: a second process at a run is then noticed by the ledger."""
    monkeypatch.setattr(run_folder, "locked", lambda path, busy: contextlib.nullcontext())


@pytest.mark.usefixtures("without_locks")
def test_a_second_server_on_the_same_run_charges_nothing_and_releases_nothing(tmp_path, vocabulary, monkeypatch):
    """It comes in the middle of a round of the first, and does that round with others; the first then has a sum of its own."""
    fleet = FleetOfDevices(tmp_path, vocabulary, run={"rounds": 3, "evaluate_every": 3, "save_every": 1})
    releases, folder, second = Releases(monkeypatch, fleet.population.folder / "ledger.jsonl"), tmp_path / "run", []

    def watch(stage, done, all):
        if stage == fields.UNMASK and done == all and len(fleet.reports) == 2 and not second:
            second.append(1)
            with pytest.raises(Cut):
                resume_run(folder, cut_at(3), fleet.connected)

    first = fleet.connected._replace(watch=watch)
    with pytest.raises(LedgerError, match="another process"):
        train_run(fleet.recipe, folder, quietly, first)
    assert second
    releases.check()
    assert resume_run(folder, quietly, fleet.connected).guarantee.releases == 3
    releases.check()


@pytest.mark.usefixtures("without_locks")
def test_a_second_server_that_ends_the_run_leaves_the_first_nothing_and_no_release_behind(tmp_path, vocabulary):
    fleet, folder = FleetOfDevices(tmp_path, vocabulary, run=TWO_ROUNDS), tmp_path / "run"

    def ended(done, rounds, row):
        if done == 1:
            resume_run(folder, quietly, fleet.connected)

    with pytest.raises((OSError, LedgerError)):
        train_run(fleet.recipe, folder, ended, fleet.connected)
    assert not list(folder.rglob("release-*"))
    assert json.loads((folder / "guarantee.json").read_text())


# Records


def records(run):
    return sorted((run / "private" / "releases").iterdir())


@pytest.fixture
def before_the_charge(tmp_path, vocabulary, monkeypatch):
    """A run whose server was killed when its third release was on disk, and not charged."""
    fleet = FleetOfDevices(tmp_path, vocabulary, count=20, run=LONG)
    with monkeypatch.context() as killed:
        whole = Account.charge
        killed.setattr(
            Account, "charge", lambda account, round, *rest: _cut_if(round == 2) or whole(account, round, *rest)
        )
        with pytest.raises(Cut):
            train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert [record.name for record in records(tmp_path / "run")] == ["release-0", "release-1", "release-2"]
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


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_record_that_is_not_the_one_that_was_charged_is_not_given_out_and_nobody_is_asked_again(
    before_the_charge, monkeypatch, damage
):
    fleet, run = before_the_charge
    releases = Releases(monkeypatch, fleet.population.folder / "ledger.jsonl")
    first, second, _ = records(run)
    DAMAGE[damage](second, first)
    before = {round: len(reports) for round, reports in fleet.reports.items()}
    with pytest.raises(RecordError, match="round 1"):
        resume_run(run, quietly, fleet.connected)
    assert releases.left.keys() == {("run", 0)}
    assert {round: len(reports) for round, reports in fleet.reports.items()} == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_record_that_was_not_charged_is_never_given_out_whatever_it_says(before_the_charge, monkeypatch, damage):
    fleet, run = before_the_charge
    releases = Releases(monkeypatch, fleet.population.folder / "ledger.jsonl")
    first, _, last = records(run)
    DAMAGE[damage](last, first)
    assert resume_run(run, quietly, fleet.connected).guarantee.releases == 4
    releases.check()
    assert len(releases.met) == 2  # the third and the fourth; the first two came from their records
    assert len(set().union(*releases.left.values())) == 4
    assert len(fleet.reports[2]) == 18


@pytest.mark.parametrize("same", [True, False])
def test_a_round_that_is_done_again_is_about_the_same_model(tmp_path, vocabulary, monkeypatch, same):
    """It follows from releases that were charged, and they are given out as they were. Twin: with another, the model is another."""
    fleet = FleetOfDevices(tmp_path, vocabulary, count=20, run=LONG)
    about, whole = [], DeviceFleet._secure_sum

    def killed(server, round, model, cohort, key):
        if round == 2:
            about.append(hashlib.sha256(model).hexdigest())
            _cut_if(len(about) == 1)
        return whole(server, round, model, cohort, key)

    monkeypatch.setattr(DeviceFleet, "_secure_sum", killed)
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    if not same:
        read = Records.read

        def doubled(*row):
            release, drawn = read(*row)
            return release._replace(estimate=jax.tree.map(lambda leaf: 2 * leaf, release.estimate)), drawn

        monkeypatch.setattr(Records, "read", doubled)
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 4
    assert len(about) == 2
    assert (about[0] == about[1]) == same


# Who is enrolled


def renumbered(fleet, order):
    """The same devices, on a list in another order."""
    fleet.private = [fleet.private[number] for number in order]
    fleet.texts = [fleet.texts[number] for number in order]
    fleet.keys = {number: fleet.keys[old] for number, old in enumerate(order)}
    fleet.enrolled = [fleet.enrolled[number] for number in order]
    for number in fleet.link.devices():
        fleet.link.remove(number)
    for number in range(len(order)):
        fleet.folder.joinpath(f"device-{number}", "diary.json").unlink(missing_ok=True)
        fleet.start(number)


def test_a_run_does_not_go_on_with_devices_under_other_numbers(tmp_path, vocabulary, log_of):
    """The log knows devices by their places on the list: a list in another order, or with a line taken out, makes it say nothing."""
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        count=18,
        run={"rounds": 2, "evaluate_every": 2, "save_every": 1},
        participation={"min_separation": 1},
    )
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", cut_at(1), fleet.connected)
    asked, _ = log_of
    first = {fleet.enrolled[number] for number in asked[0]}
    resting = [number for number in range(18) if number not in asked[0]]
    order = list(range(18))
    for one, other in zip(asked[0].tolist(), resting, strict=True):
        order[one], order[other] = other, one
    renumbered(fleet, order)
    refused = False
    try:
        resume_run(tmp_path / "run", quietly, fleet.connected)
    except Exception:
        refused = True
    assert refused or not first & {fleet.enrolled[number] for number in asked[1]}


def test_a_run_goes_on_with_devices_that_came_later(tmp_path, vocabulary, log_of):
    fleet = FleetOfDevices(tmp_path, vocabulary, count=12, run={"rounds": 2, "evaluate_every": 2, "save_every": 1})
    all_keys, all_enrolled = fleet.keys, fleet.enrolled
    fleet.keys, fleet.enrolled = {n: all_keys[n] for n in range(11)}, all_enrolled[:11]
    fleet.link.remove(11)
    for number in range(11):
        fleet.start(number)
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", cut_at(1), fleet.connected)
    fleet.keys, fleet.enrolled = all_keys, all_enrolled
    for number in range(12):
        fleet.start(number)
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 2


def test_delta_is_checked_against_the_devices_that_are_enrolled(tmp_path, vocabulary):
    """As it is against the users of a population."""
    fleet = FleetOfDevices(tmp_path, vocabulary, run={"rounds": 1, "evaluate_every": 1}, privacy={"delta": 0.01})
    many = [*fleet.enrolled, *(bytes([number]) * 32 for number in range(100))]
    assert fleet.recipe.delta * len(many) > 1
    with pytest.raises(RecipeError, match="δ"):
        train_run(fleet.recipe, tmp_path / "run", cut_at(0), fleet.connected._replace(enrolled=many))


@pytest.mark.parametrize("settings", [{}, {"most_reports": 9}, {"most_reports": 100_000}], ids=str)
def test_devices_refuse_cohorts_that_the_modulus_does_not_hold(population, vocabulary, settings):
    recipe = fleet_recipe(population, fleet=settings)
    params = jax.eval_shape(build.language_model(recipe.model, len(vocabulary)).init, jax.random.key(0))
    encoded = build.report_encoding(recipe, params)
    agreed = assemble.agreement(recipe, vocabulary, [b"key"])
    assert 2 * encoded.largest * agreed.most < encoded.modulus


# The device


def test_a_round_that_a_device_refused_is_none_that_it_reports_to(tmp_path, vocabulary):
    """It said yes to round 14 and no to round 12, in which it may not take part."""
    fleet = FleetOfDevices(tmp_path, vocabulary, count=9, participation={"min_separation": 2, "users": 60})
    device = fleet.link._devices[0].handler
    device._diary.upload(10, "run", 10)
    device("advertise", fields.joined(fields.new_name(), b"run", b"14", bytes(32)))
    with pytest.raises(NotNow):
        device("advertise", fields.joined(fields.new_name(), b"run", b"12", bytes(32)))
    message = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), device._like)
    message = message._replace(public=message.public._replace(clip_norm=np.float32(1), round=np.int32(12)))
    key = np.asarray(jax.random.key_data(jax.random.key(0))).astype("<u4").tobytes()
    with suppress(ValueError):
        device("report", fields.joined(b"whatever", fields.arrays_to_bytes(message), key))
    assert [upload["round"] for upload in device._diary.uploads] == [10]


def test_a_report_is_masked_once_and_a_second_question_for_it_is_refused(tmp_path, vocabulary):
    seen = []

    def keeps(number, kind, answer):
        if kind == fields.REPORT and number == 2:
            seen.append(answer)
        return answer

    fleet = FleetOfDevices(tmp_path, vocabulary, count=9, faults=(keeps,), run={"rounds": 1, "evaluate_every": 1})
    contents, ask = {}, fleet.link.ask

    def twice(kind, questions, *args, **named):
        answers = ask(kind, questions, *args, **named)
        if kind == fields.REPORT:
            contents.update(questions)
            assert ask(kind, questions, 10) == {}
        return answers

    fleet.link.ask = twice
    finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases == 1
    assert len(seen) == 1
    assert contents


def test_devices_that_rest_by_their_own_diaries_are_not_asked_for_ever(tmp_path, vocabulary, monkeypatch):
    """Their uploads count for them even where they failed at the server, whose log says that they may. They have to be missing when it
    counts who has come, or it tries without end."""
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        count=18,
        run={"rounds": 2, "evaluate_every": 2},
        fleet={"patience": 0.5, "timer_hours": 24.0},
    )
    for number in range(18):
        Diary(tmp_path / f"device-{number}", TIRELESS).upload(5, "run", 5)
        fleet.start(number)
    tries, whole = [], ParticipationLog.fail

    def failed(log):
        tries.append(1)
        if len(tries) > 5:
            raise Cut
        whole(log)

    monkeypatch.setattr(ParticipationLog, "fail", failed)
    with pytest.raises(LinkError, match="0 devices are there that may take part, 9 are needed"):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert not tries


@pytest.mark.parametrize(
    "tokens", [[], [0, 0, 0], [4], [-1, 10**6, 4], [3] * 1000], ids=["none", "padding", "one", "no words", "long"]
)
@pytest.mark.parametrize("weight_cap", [None, 40.0])
def test_whatever_a_text_is_its_report_is_bounded(tmp_path, vocabulary, population, tokens, weight_cap):
    users = {"weight_cap": weight_cap, "total_weight": 40.0} if weight_cap else {}
    recipe = fleet_recipe(population, participation=users)
    device = assemble.device(recipe, vocabulary, np.array(tokens, np.int32), 0, EnrolledKeys({}), [b"key"], tmp_path)
    params = build.language_model(recipe.model, len(vocabulary)).init(jax.random.key(0))
    encoded = build.report_encoding(recipe, params)
    for broken in (1.0, np.nan, np.inf):
        message = device._like._replace(params=trees.scale(params, np.float32(broken)))
        message = message._replace(public=message.public._replace(clip_norm=np.float32(0.5), round=np.int32(0)))
        values = np.asarray(device._program(message, device._user, jax.random.key(1)).update).astype(np.int64)
        centred = np.where(values >= encoded.modulus // 2, values - encoded.modulus, values)
        assert np.sum(centred**2) <= encoded.limit
        assert np.max(np.abs(centred)) <= encoded.largest
        if not tokens or not np.isfinite(broken):
            assert not np.any(centred)


# The diary


def test_whoever_opts_out_while_the_device_runs_has_opted_out(tmp_path):
    running = Diary(tmp_path, TIRELESS)
    folders.opt_out(tmp_path)
    assert "opted out" in (running.why_not(3) or "")


def test_no_upload_takes_an_opt_out_back(tmp_path):
    running = Diary(tmp_path, TIRELESS)
    folders.opt_out(tmp_path)
    running.upload(3, "run", 3)
    assert "opted out" in (Diary(tmp_path, TIRELESS).why_not(9) or "")


def test_an_opt_out_outlives_a_new_text_and_a_new_enrolment(tmp_path):
    folders.save_text(tmp_path, np.arange(5))
    folders.opt_out(tmp_path)
    assert not (tmp_path / "tokens.npy").exists()
    folders.save_text(tmp_path, np.arange(5))
    folders.device_key(tmp_path)
    assert "opted out" in (Diary(tmp_path, TIRELESS).why_not(9) or "")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"uploads": []}'])
def test_with_a_damaged_diary_nothing_is_sent_and_opting_out_works(tmp_path, damage):
    folders.save_text(tmp_path, np.arange(5))
    (tmp_path / "diary.json").write_text(damage)
    with pytest.raises(DiaryDamaged):
        Diary(tmp_path, TIRELESS)
    folders.opt_out(tmp_path)
    assert not (tmp_path / "tokens.npy").exists()
    assert "opted out" in (Diary(tmp_path, TIRELESS).why_not(9) or "")


def test_two_processes_on_one_folder_rest_for_each_other(tmp_path):
    one, other = (Diary(tmp_path, Rest(24.0, 2, 2)) for _ in range(2))
    one.upload(0, "run", 0)
    assert "rests for 24 hours" in (other.why_not(1) or "")


def test_two_processes_on_one_folder_forget_nothing(tmp_path):
    one, other = (Diary(tmp_path, TIRELESS) for _ in range(2))
    one.upload(0, "run", 0)
    other.upload(4, "another run", 4)
    assert {upload["run"] for upload in Diary(tmp_path, TIRELESS).uploads} == {"run", "another run"}


def test_a_clock_that_goes_backwards_shortens_no_rest(tmp_path, monkeypatch):
    now = [1e9]
    monkeypatch.setattr(diaries, "_now", lambda: now[0])
    diary = Diary(tmp_path, Rest(24.0, 0, 99))
    diary.upload(0, "run", 0)
    for moment in (1e9 - 10**6, 0.0, 1e9 + 23 * 3600):
        now[0] = moment
        assert "rests" in (diary.why_not(5) or "")
    now[0] = 1e9 + 25 * 3600
    assert diary.why_not(5) is None


# What is left on disk


@pytest.fixture
def asked_over_flower(tmp_path):
    """Two devices on the wire, of which one was asked three times, and then went to rest; the folder that stays at the server."""
    from taciturn.fleets.flower.authority import device_key
    from taciturn.fleets.flower.device import run_device
    from taciturn.fleets.flower.server import flower_server

    def handler(kind, content):
        if content == b"3":
            raise Later(600)
        return b"yes"

    stop, folder = threading.Event(), tmp_path / "wire"
    with flower_server(folder, "127.0.0.1", 0, insecure=True) as server:
        for number in range(2):
            device = tmp_path / f"device-{number}"
            server.enrol(device_key(device))
            arguments = server.address, device, handler, None, True, stop
            threading.Thread(target=run_device, args=arguments, daemon=True).start()
        until = time.monotonic() + 60
        while len(server.link.devices()) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        one = server.link.devices()[0]
        for question in range(3):
            assert server.link.ask("only-asked-of-one", {one: b"%d" % question}, 30) == {one: b"yes"}
        server.link.ask("only-asked-of-one", {one: b"3"}, 30)
        while one in server.link.devices() and time.monotonic() < until:
            time.sleep(0.1)
        stop.set()
    return folder


def test_the_seed_of_a_simulation_is_given_to_no_device(tmp_path, population):
    """Of which all noise is made: whoever has it can take the noise off the model. Other hosts are not told it either."""
    recipe = fleet_recipe(population)
    assert recipe.run.seed is not None
    folders.new_fleet(tmp_path / "fleet", recipe)
    assert folders.fleet_recipe(tmp_path / "fleet" / "for-devices").run.seed is None


def test_when_the_server_has_ended_nothing_on_its_disk_says_whom_it_asked(asked_over_flower):
    left = [path for path in asked_over_flower.rglob("*") if path.is_file()]
    assert not [path.name for path in left if b"only-asked-of-one" in path.read_bytes()]


def test_when_the_server_has_ended_nothing_on_its_disk_says_who_went_to_rest(asked_over_flower):
    """Whoever rests after a round took part in it. Twin: numbers and keys are there, by which devices are known again."""
    with sqlite3.connect(asked_over_flower / "devices.sqlite") as connection:
        rows = connection.execute("SELECT * FROM node")
        columns = [column for column, *_ in rows.description]
        nodes = [dict(zip(columns, row, strict=True)) for row in rows]
    of_each = {"node_id", "public_key", "registered_at"}
    assert len({tuple(str(node[name]) for name in columns if name not in of_each) for node in nodes}) == 1
    assert len({node["node_id"] for node in nodes}) == len({node["public_key"] for node in nodes}) == 2
