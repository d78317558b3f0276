"""Attempts to play devices against each other: a server that gives them different models, broken ones or another clip norm, asks a round
again with a device less, or calls the same run by another name. Devices are those that are shipped; the server is a liar's.
"""

import contextlib
import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices

from harness import Cut, cut_at, quietly
from taciturn.core import FailedRound, Message
from taciturn.fleets import assemble
from taciturn.fleets.devices import fields
from taciturn.fleets.devices import participation_record as diaries
from taciturn.fleets.devices.device import Device, NotNow
from taciturn.fleets.devices.fleet import DeviceFleet
from taciturn.fleets.devices.participation_record import Diary, Rest
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation.messages import Advert, MaskedReport, SealedShares, Unmasking
from taciturn.fleets.secure_aggregation.protocol import Refused
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.recipe import build
from taciturn.runs.run import resume_run, train_run

KEY = bytes(range(8))
VICTIM = 3


class Credulous:
    """A server that looks at no signature."""

    def verify(self, *signed):
        return True


class LyingServer:
    """Asks devices in its own way: each may get another message, and be told another hash of it."""

    def __init__(self, folder, vocabulary, **sections):
        self.fleet = FleetOfDevices(folder, vocabulary, count=9, **sections)
        self.agreement = assemble.agreement(self.fleet.recipe, vocabulary, self.fleet.enrolled)
        self.modulus = 1 << self.agreement.modulus_bits
        mechanism = build.algorithm(self.fleet.recipe, len(vocabulary)).mechanism
        params = build.language_model(self.fleet.recipe.model, len(vocabulary)).init(jax.random.key(7))
        self.honest = Message(params, mechanism.public(mechanism.init(params)))

    def filled(self, value):
        return self.honest._replace(params=jax.tree.map(lambda leaf: jnp.full_like(leaf, value), self.honest.params))

    def round(self, number, who=range(9), given=None, told=None, run=b"run", identity=None, name=None):
        """`given` and `told` are the messages by device: what it gets, and of what it is told the hash."""
        given = {one: fields.arrays_to_bytes((given or {}).get(one, self.honest)) for one in who}
        told = {one: fields.arrays_to_bytes(told[one]) if told else given[one] for one in who}
        name, round = name or fields.new_name(), str(number).encode()
        hashes = {one: fields.message_hash(run, round, message, KEY) for one, message in told.items()}
        server = ServerRound(self.agreement.terms(name, hashes[min(who)]), identity or self.fleet.connected.identity)
        ask = self.fleet.link.ask

        def take(taken, kind, contents):
            for one, answer in ask(kind, contents, 60).items():
                taken(one, answer)

        first = {one: fields.joined(name, run, round, hashes[one]) for one in who}
        take(lambda d, a: server.take_advert(d, Advert.from_bytes(a)), fields.ADVERTISE, first)
        rosters = {one: roster.to_bytes() for one, roster in server.rosters().items()}
        take(lambda d, a: server.take_shares(d, SealedShares.from_bytes(a)), fields.SHARE, rosters)
        deliveries = {one: fields.joined(sent.to_bytes(), given[one], KEY) for one, sent in server.deliveries().items()}
        take(lambda d, a: server.take_report(d, MaskedReport.from_bytes(a)), fields.REPORT, deliveries)
        requests = {one: request.to_bytes() for one, request in server.requests().items()}
        take(lambda d, a: server.take_answer(d, Unmasking.from_bytes(a)), fields.UNMASK, requests)
        return server.total()

    def device(self, number) -> Device:
        return self.fleet.link._devices[number].handler

    @property
    def reports(self):
        return [report for reports in self.fleet.reports.values() for report in reports]


@pytest.fixture
def liar(tmp_path, vocabulary):
    return LyingServer(tmp_path, vocabulary)


# Different models for different devices (Pasquini et al. 2022)


def all_but_the_victim(message):
    return {one: message for one in range(9) if one != VICTIM}


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_devices_that_are_told_of_different_models_refuse_each_other_before_they_train(liar, value):
    with pytest.raises((Refused, FailedRound)):
        liar.round(1, given=all_but_the_victim(liar.filled(value)))
    with pytest.raises(FailedRound, match="0 devices have shared"):  # and where the server takes any signature
        liar.round(2, given=all_but_the_victim(liar.filled(value)), identity=Credulous())
    assert not liar.reports


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_a_device_trains_on_no_other_model_than_all_were_told_of(liar, value):
    with pytest.raises(FailedRound, match="1 devices have reported"):
        liar.round(1, given=all_but_the_victim(liar.filled(value)), told=dict.fromkeys(range(9), liar.honest))
    assert len(liar.reports) == 1  # the victim's, which stays behind its masks
    assert [len(liar.device(one)._diary.uploads) for one in range(9)] == [one == VICTIM for one in range(9)]


def test_the_twin_without_the_hash_gives_the_victims_report_away(liar, monkeypatch):
    monkeypatch.setattr(fields, "message_hash", lambda *parts: bytes(32))
    monkeypatch.setattr(Device, "_check", lambda device, message: None)
    total = liar.round(1, given=all_but_the_victim(liar.filled(np.nan)))
    (report,) = [report for report in liar.reports if report.any()]
    assert len(total.devices) == 9
    np.testing.assert_array_equal(total.values, report)


@pytest.mark.parametrize("other", [{"run": b"another run"}, {"number": 2}, {"key": bytes(8)}])
def test_the_hash_is_of_run_and_round_and_key_too(liar, other):
    about = {"run": b"run", "number": 1, "key": KEY} | other
    message = fields.arrays_to_bytes(liar.honest)
    wrong = fields.message_hash(about["run"], str(about["number"]).encode(), message, about["key"])
    device = liar.device(0)
    device(fields.ADVERTISE, fields.joined(fields.new_name(), b"run", b"1", wrong))
    with pytest.raises(ValueError, match="another one than the devices of this round have agreed to"):
        device(fields.REPORT, fields.joined(b"", message, KEY))
    assert not liar.reports


def test_an_honest_round_has_its_sum(liar):
    total = liar.round(1)
    np.testing.assert_array_equal(total.values, sum(report.astype(np.uint64) for report in liar.reports) % liar.modulus)


# Models and clip norms that no honest server sends


def broken(liar, what):
    params, public = liar.honest
    leaves, structure = jax.tree.flatten(params)
    return {
        "a parameter is NaN": Message(structure.unflatten([leaves[0].at[0].set(jnp.nan), *leaves[1:]]), public),
        "a parameter is infinite": Message(structure.unflatten([*leaves[:-1], leaves[-1].at[0].set(-jnp.inf)]), public),
        "the clip norm is a thousand times the recipe's": Message(
            params, public._replace(clip_norm=public.clip_norm * 1000)
        ),
        "the clip norm is a bit more than the recipe's": Message(
            params, public._replace(clip_norm=jnp.nextafter(public.clip_norm, jnp.float32(1)))
        ),
        "the clip norm is NaN": Message(params, public._replace(clip_norm=jnp.float32(jnp.nan))),
    }[what]


BROKEN = [
    "a parameter is NaN",
    "a parameter is infinite",
    "the clip norm is a thousand times the recipe's",
    "the clip norm is a bit more than the recipe's",
    "the clip norm is NaN",
]


@pytest.mark.parametrize("what", BROKEN)
def test_what_no_honest_server_sends_is_trained_on_by_nobody(liar, what):
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(1, given=dict.fromkeys(range(9), broken(liar, what)))
    assert not liar.reports
    assert not any(liar.device(one)._diary.uploads for one in range(9))


@pytest.mark.parametrize("what", BROKEN[::2])
def test_the_twin_without_the_check_trains_on_it(liar, what, monkeypatch):
    monkeypatch.setattr(Device, "_check", lambda device, message: None)
    liar.round(1, given=dict.fromkeys(range(9), broken(liar, what)))
    assert len(liar.reports) == 9


# A round is asked again


def without_the_victim():
    return [one for one in range(9) if one != VICTIM]


def old_diary(monkeypatch):
    """As it was: the last round may come again, and every run has limits of its own."""

    def why_not(diary, content, round):
        return None

    monkeypatch.setattr(Diary, "_why_not", why_not)


@pytest.mark.parametrize("run", [b"run", b"another name"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_round_that_was_reported_to_is_used_up(liar, run, restarted):
    liar.round(5)
    if restarted:
        for one in range(9):
            liar.fleet.start(one)
    for number in (5, 4, 0):
        with pytest.raises(FailedRound, match="0 devices have advertised"):
            liar.round(number, without_the_victim(), run=run)
    assert len(liar.reports) == 9
    liar.round(6, run=run)  # twin: a later one is none of these
    assert len(liar.reports) == 18


def test_the_twin_with_the_old_diary_gives_a_report_away(liar, monkeypatch):
    old_diary(monkeypatch)
    nine, eight = liar.round(5), liar.round(5, without_the_victim())
    difference = (nine.values.astype(np.int64) - eight.values.astype(np.int64)) % liar.modulus
    assert any(np.array_equal(difference, report) for report in liar.reports)


def test_a_report_that_may_have_left_is_used_up_also_where_it_was_lost_and_its_device_was_killed(liar):
    liar.fleet.link._faults = (lambda number, kind, answer: None if kind == fields.REPORT else answer,)
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(5)
    liar.fleet.link._faults = ()
    for one in range(9):
        liar.fleet.start(one)
    with pytest.raises(FailedRound, match="0 devices have advertised"):
        liar.round(5)


def test_no_report_leaves_before_it_is_on_record(liar, monkeypatch):
    """A full disk, then a device that is cut off while it writes: what was not written did not leave."""
    whole = diaries.write_atomically

    def full(path, content, mode):
        if json.loads(content)["uploads"]:
            raise OSError(28, "No space left on device")
        whole(path, content, mode)

    monkeypatch.setattr(diaries, "write_atomically", full)
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(5)
    monkeypatch.setattr(diaries, "write_atomically", whole)
    assert not any(liar.device(one)._diary.uploads for one in range(9))
    synced, fsync = [], os.fsync

    def noted(descriptor):
        fsync(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", noted)
    before = []
    liar.fleet.link._faults = (lambda number, kind, answer: before.append((kind, list(synced))) or answer,)
    liar.round(6, [one for one in range(9) if one > 1])
    first = next(files for kind, files in before if kind == fields.REPORT)
    assert sum("diary.json" in file for file in first) >= 7 + 1  # everybody's entry, and a report


@pytest.mark.parametrize("moment", range(4))
@pytest.mark.parametrize("after", [False, True])
def test_a_device_that_is_killed_between_any_two_writes_reports_to_a_round_once_at_most(
    liar, monkeypatch, moment, after
):
    """At each moment at which something of its diary becomes durable, in its advert and in its report."""
    left, fsync, sent = [moment], os.fsync, []

    def killed(descriptor):
        victim = f"device-{VICTIM}" in os.readlink(f"/proc/self/fd/{descriptor}")
        left[0] -= victim
        if victim and left[0] == -1 and not after:
            raise OSError("killed")
        fsync(descriptor)
        if victim and left[0] == -1:
            raise OSError("killed")

    def noted(number, kind, answer):
        if kind == fields.REPORT and number == VICTIM:
            sent.append(answer)
        return answer

    monkeypatch.setattr(os, "fsync", killed)
    liar.fleet.link._faults = (noted,)
    liar.round(5)
    assert left[0] < 0
    assert not sent  # it was killed before it was done
    liar.fleet.start(VICTIM)
    recorded = bool(liar.device(VICTIM)._diary.uploads)
    assert recorded == (moment == 3)
    question = fields.joined(fields.new_name(), b"run", b"5", bytes(32))
    with pytest.raises(NotNow, match="reports to each once") if recorded else contextlib.nullcontext():
        liar.device(VICTIM)(fields.ADVERTISE, question)


def test_a_name_that_was_seen_before_is_refused(liar):
    device, low, high = liar.device(0), bytes(15) + b"\1", bytes(15) + b"\2"
    question = [fields.joined(name, b"run", b"1", bytes(32)) for name in (low, high)]
    device(fields.ADVERTISE, question[1])
    for again in (*question, fields.joined(bytes(16), b"run", b"9", bytes(32))):
        with pytest.raises(NotNow, match="names of attempts rise"):
            device(fields.ADVERTISE, again)
    liar.fleet.start(0)
    with pytest.raises(NotNow, match="names of attempts rise"):
        liar.device(0)(fields.ADVERTISE, question[1])
    with pytest.raises(ValueError, match="16 bytes"):
        liar.device(0)(fields.ADVERTISE, fields.joined(b"short", b"run", b"9", bytes(32)))
    names = [fields.new_name() for _ in range(50)]
    assert [name[:8] for name in names] == sorted(name[:8] for name in names)
    assert len(set(names)) == 50


def test_no_server_whose_clock_is_wrong_locks_devices_out_of_all_later_rounds(liar):
    """They would answer to none but later ones."""
    day, now = 24 * 3600, fields.latest(fields.new_name(), 0)
    far = int(1e6 * (now + day + 60)).to_bytes(8, "big")
    device = liar.device(0)
    for name, round in ((far + bytes(8), 1), (fields.new_name(), int.from_bytes(far, "big") << fields.ROUND_BITS)):
        with pytest.raises(NotNow, match="of a time that is not yet"):
            device(fields.ADVERTISE, fields.joined(name, b"run", str(round).encode(), bytes(32)))
    near = int(1e6 * (now + day - 60)).to_bytes(8, "big")
    device(fields.ADVERTISE, fields.joined(near + bytes(8), b"run", b"1", bytes(32)))


# Another name for the same run


@pytest.mark.parametrize("run", [b"run", b"another name"])
def test_separation_timer_and_cap_count_over_all_runs(liar, run, monkeypatch):
    start = diaries._now()
    now = [start]
    monkeypatch.setattr(diaries, "_now", lambda: now[0])

    def limited(*limits):
        for one in range(9):
            liar.device(one)._diary._rest = Rest(*limits)

    limited(24.0, 100, 3)
    liar.round(1000)
    for number, hours, why in ((2000, 23, "rests for 24 hours"), (1100, 25, "100 rounds"), (7, 25, "this round or a")):
        now[0] = start + 3600 * hours
        with pytest.raises(NotNow, match=why):
            liar.device(0)(fields.ADVERTISE, fields.joined(fields.new_name(), run, str(number).encode(), bytes(32)))
    liar.round(1101, run=run)
    limited(24.0, 0, 2)
    now[0] += 10**6
    with pytest.raises(NotNow, match="2 times, as often as it may in all runs"):
        liar.device(0)(fields.ADVERTISE, fields.joined(fields.new_name(), run, b"99999", bytes(32)))
    limited(24.0, 0, 3)  # twin
    liar.round(99999, run=run)


def test_a_second_run_with_devices_that_gave_all_they_may_finds_none(tmp_path, vocabulary):
    one_round = {"rounds": 1, "evaluate_every": 1}
    limits = {"lifetime_participations": 2, "patience": 0.5}
    fleet = FleetOfDevices(tmp_path, vocabulary, count=9, run=one_round, fleet=limits)
    for run in ("first", "second"):
        assert train_run(fleet.recipe, tmp_path / run, quietly, fleet.connected).guarantee.releases == 1
    with pytest.raises(LinkError, match=r"0 devices are there that may take part.*fleet.lifetime_participations"):
        train_run(fleet.recipe, tmp_path / "third", quietly, fleet.connected)


def test_the_cap_is_the_recipes_unless_it_says_another(tmp_path, vocabulary):
    for lifetime, expected in ((None, 4), (2, 2), (9, 9)):
        (tmp_path / str(lifetime)).mkdir()
        sections = {"participation": {"max_participations": 4}, "fleet": {"lifetime_participations": lifetime}}
        fleet = FleetOfDevices(tmp_path / str(lifetime), vocabulary, count=1, **sections)
        assert fleet.link._devices[0].handler._diary._rest.max_participations == expected


# The server's own retries


class Patience:
    deadline, patience = 60.0, 20.0


def device_fleet(liar, folder, **more):
    folder.mkdir(exist_ok=True)
    return DeviceFleet(liar.fleet.connected, liar.agreement, 9, Patience, folder, lambda: "run", **more)


def test_a_sum_of_the_same_round_over_fewer_devices_fails(liar, tmp_path):
    server = device_fleet(liar, tmp_path / "rounds")
    server.sum_reports(None, liar.honest, np.arange(9), jax.random.key(0))
    for one in range(9):
        liar.fleet.start(one)
    with pytest.raises(FailedRound):
        server.sum_reports(None, liar.honest, np.array(without_the_victim()), jax.random.key(1))
    assert len(liar.reports) == 9


def test_where_others_are_left_a_round_that_failed_goes_on_with_them_and_else_under_another_number(
    tmp_path, vocabulary, monkeypatch
):
    monkeypatch.setattr("taciturn.fleets.devices.fleet.WAIT", 0.01)
    for count, reported_twice in ((18, 0), (12, 6), (9, 9)):
        left, folder = [9], tmp_path / str(count)
        folder.mkdir()

        def dies(number, kind, answer, left=left):
            left[0] -= kind == fields.UNMASK
            return None if kind == fields.UNMASK and left[0] >= 0 else answer

        fleet = FleetOfDevices(
            folder,
            vocabulary,
            count=count,
            faults=(dies,),
            run={"rounds": 1, "evaluate_every": 1},
            participation={"users": 40, "min_separation": 0},
        )
        finished = train_run(fleet.recipe, folder / "run", quietly, fleet.connected)
        assert finished.guarantee.releases == 1
        uploads = [fleet.link._devices[one].handler._diary.uploads for one in range(count)]
        assert sum(map(len, uploads)) == 18
        assert sum(len(mine) == 2 for mine in uploads) in range(reported_twice, 10 if reported_twice else 1)
        assert all(len({upload["round"] for upload in mine}) == len(mine) for mine in uploads)


def test_numbers_of_rounds_rise_with_rows_attempts_and_runs_and_outlive_a_crash(liar, tmp_path):
    rows = [0]
    server = device_fleet(liar, tmp_path / "rounds", row=lambda: rows[0], apart=3)
    first = server._numbers(0)
    server._keep(first._replace(asked={1: first.number, 2: first.number - 3}))
    assert device_fleet(liar, tmp_path / "rounds")._numbers(0) == first._replace(
        asked={1: first.number, 2: first.number - 3}
    )
    assert server._numbers(0).resting(3) == {1, 2}
    assert server._numbers(0).resting(0) == {1}
    assert server._numbers(2).number == first.number + 2
    assert server._numbers(2).resting(3) == {1}
    server._renumber()
    again = server._numbers(0)
    assert again.resting(3) == set()
    assert again.number > first.number + 3  # so many rounds lie between, at least
    assert server._numbers(5).number == again.number + 5
    server._keep(again._replace(number=2**80))  # whatever the clock says
    server._renumber()
    assert server._numbers(0).number == 2**80 + 4
    time.sleep(0.001)
    assert device_fleet(liar, tmp_path / "later")._numbers(0).number > again.number + 5


def test_a_run_that_was_cut_off_goes_on_after_another_run_of_the_same_devices(tmp_path, vocabulary):
    """To the devices it is older than what they answered to since, until it is given another number."""
    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=9, run={"rounds": 2, "evaluate_every": 2, "save_every": 1}, fleet={"patience": 0.5}
    )
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "first", cut_at(1), fleet.connected)
    train_run(fleet.recipe, tmp_path / "second", quietly, fleet.connected)
    with pytest.raises(LinkError, match="0 devices are there that may take part"):
        resume_run(tmp_path / "first", quietly, fleet.connected)
    finished = resume_run(tmp_path / "first", quietly, fleet.connected)
    assert finished.guarantee.releases == 2
    for one in range(9):
        rounds = [upload["round"] for upload in fleet.link._devices[one].handler._diary.uploads]
        assert rounds == sorted(set(rounds))
