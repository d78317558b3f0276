"""A device's own record of when it took part: whoever opted out or rests is asked in vain, under
any name of a run.
"""

import json

import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices
from lying_server import LyingServer

from harness import Cut, quietly
from taciturn.fleets import fleet_folders
from taciturn.fleets.devices import fields
from taciturn.fleets.devices import own_participation as diaries
from taciturn.fleets.devices.device import NotEligible
from taciturn.fleets.devices.own_participation import (
    OwnParticipation,
    ParticipationLimits,
    ParticipationRecordDamaged,
)
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.fleets.wire.tls import device_request
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.runs.loop import train_run

TIRELESS = ParticipationLimits(0.0, 0, 99)


def test_devices_that_rest_by_their_own_records_are_not_asked_for_ever(
    tmp_path, vocabulary, monkeypatch
):
    """Their uploads count for them even where they failed at the server, whose log says that they
    may. They have to be missing when it counts who has come, or it tries without end.
    """
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        count=18,
        run={"rounds": 2, "evaluate_every": 2},
        fleet={"timer_hours": 24.0},
    )
    for number in range(18):
        OwnParticipation(tmp_path / f"device-{number}", TIRELESS).upload(
            round=5, model="5", run="run", row=5
        )
        fleet.start(number)
    tries, whole = [], CohortLog.fail

    def failed(log):
        tries.append(1)
        if len(tries) > 5:
            raise Cut
        whole(log)

    monkeypatch.setattr(CohortLog, "fail", failed)
    with pytest.raises(LinkError, match="0 devices are present that may take part, 9 are needed"):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert not tries


def test_whoever_opts_out_while_the_device_runs_has_opted_out(tmp_path):
    running = OwnParticipation(tmp_path, TIRELESS)
    fleet_folders.opt_out(tmp_path)
    assert "opted out" in (running.why_not(3) or "")


def test_no_upload_takes_an_opt_out_back(tmp_path):
    running = OwnParticipation(tmp_path, TIRELESS)
    fleet_folders.opt_out(tmp_path)
    running.upload(round=3, model="3", run="run", row=3)
    assert "opted out" in (OwnParticipation(tmp_path, TIRELESS).why_not(9) or "")


def test_an_opt_out_outlives_a_new_text_and_a_new_enrolment(tmp_path):
    fleet_folders.save_text(tmp_path, np.arange(5))
    fleet_folders.opt_out(tmp_path)
    assert not (tmp_path / "tokens.npy").exists()
    fleet_folders.save_text(tmp_path, np.arange(5))
    device_request(tmp_path)
    assert "opted out" in (OwnParticipation(tmp_path, TIRELESS).why_not(9) or "")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"uploads": []}'])
def test_with_a_damaged_record_nothing_is_sent_and_opting_out_works(tmp_path, damage):
    fleet_folders.save_text(tmp_path, np.arange(5))
    (tmp_path / "participation.json").write_text(damage)
    with pytest.raises(ParticipationRecordDamaged, match="is damaged"):
        OwnParticipation(tmp_path, TIRELESS)
    fleet_folders.opt_out(tmp_path)
    assert not (tmp_path / "tokens.npy").exists()
    assert "opted out" in (OwnParticipation(tmp_path, TIRELESS).why_not(9) or "")


def test_two_processes_on_one_folder_rest_for_each_other(tmp_path):
    one, other = (OwnParticipation(tmp_path, ParticipationLimits(24.0, 2, 2)) for _ in range(2))
    one.upload(round=0, model="0", run="run", row=0)
    assert "rests for 24 hours" in (other.why_not(1) or "")


def test_two_processes_on_one_folder_forget_nothing(tmp_path):
    one, other = (OwnParticipation(tmp_path, TIRELESS) for _ in range(2))
    one.upload(round=0, model="0", run="run", row=0)
    other.upload(round=4, model="4", run="another run", row=4)
    assert {upload["run"] for upload in OwnParticipation(tmp_path, TIRELESS).uploads} == {
        "run",
        "another run",
    }


def test_a_clock_that_goes_backwards_shortens_no_rest(tmp_path, monkeypatch):
    now = [1e9]
    monkeypatch.setattr(diaries, "_now", lambda: now[0])
    diary = OwnParticipation(tmp_path, ParticipationLimits(24.0, 0, 99))
    diary.upload(round=0, model="0", run="run", row=0)
    for moment in (1e9 - 10**6, 0.0, 1e9 + 23 * 3600):
        now[0] = moment
        assert "rests" in (diary.why_not(5) or "")
    now[0] = 1e9 + 25 * 3600
    assert diary.why_not(5) is None


@pytest.fixture
def liar(tmp_path, vocabulary):
    return LyingServer(tmp_path, vocabulary)


@pytest.mark.parametrize("run", [b"run", b"another name"])
def test_separation_timer_and_cap_count_over_all_runs(liar, run, monkeypatch):
    start = diaries._now()
    now = [start]
    monkeypatch.setattr(diaries, "_now", lambda: now[0])

    def limited(*limits):
        for one in range(9):
            liar.device(one)._record._limits = ParticipationLimits(*limits)

    limited(24.0, 100, 3)
    liar.round(1000)
    for number, hours, why in (
        (2000, 23, "rests for 24 hours"),
        (1100, 25, "100 rounds"),
        (7, 25, "this round or a"),
    ):
        now[0] = start + 3600 * hours
        with pytest.raises(NotEligible, match=why):
            liar.device(0)(
                Stage.ADVERTISE.question,
                fields.pack_fields(
                    fields.new_name(), run, str(number).encode(), bytes(32), *liar.fleet.signed(0)
                ),
            )
    liar.change_model()
    liar.round(1101, run=run)
    limited(24.0, 0, 2)
    now[0] += 10**6
    with pytest.raises(NotEligible, match="2 times, as often as it may in all runs"):
        liar.device(0)(
            Stage.ADVERTISE.question,
            fields.pack_fields(fields.new_name(), run, b"99999", bytes(32), *liar.fleet.signed(0)),
        )
    limited(24.0, 0, 3)  # twin
    liar.change_model()
    liar.round(99999, run=run)


def test_a_second_run_with_devices_that_gave_all_they_may_finds_none(tmp_path, vocabulary):
    one_round = {"rounds": 1, "evaluate_every": 1}
    limits = {"lifetime_participations": 2}
    fleet = FleetOfDevices(tmp_path, vocabulary, count=9, run=one_round, fleet=limits)
    for run in ("first", "second"):
        assert (
            train_run(fleet.recipe, tmp_path / run, quietly, fleet.connected).guarantee.releases
            == 1
        )
    with pytest.raises(
        LinkError, match=r"0 devices are present that may take part.*fleet.lifetime_participations"
    ):
        train_run(fleet.recipe, tmp_path / "third", quietly, fleet.connected)


def test_the_cap_is_the_recipes_unless_it_says_another(tmp_path, vocabulary):
    for lifetime, expected in ((None, 4), (2, 2), (9, 9)):
        (tmp_path / str(lifetime)).mkdir()
        sections = {
            "participation": {"max_participations": 4},
            "fleet": {"lifetime_participations": lifetime},
        }
        fleet = FleetOfDevices(tmp_path / str(lifetime), vocabulary, count=1, **sections)
        assert fleet.link._devices[0].handler._record._limits.max_participations == expected


@pytest.mark.parametrize("last", [{}, None, 0, ""], ids=str)
def test_an_upload_that_says_nothing_is_not_taken_for_none(tmp_path, last):
    """A record whose last upload is empty is damaged: the device fails, and reports nothing. The
    twin has no upload at all, and may take part.
    """
    record = {"name": "", "list": [-1, ""], "uploads": [last], "opted_out": False}
    (tmp_path / "participation.json").write_text(json.dumps(record))
    damaged = OwnParticipation(tmp_path, ParticipationLimits(24.0, 3, 10))
    with pytest.raises((KeyError, TypeError), match=r"at|subscript|integers"):
        damaged.why_not(6)
    with pytest.raises((KeyError, TypeError), match=r"at|subscript|integers"):
        damaged.upload(round=6, model="6", run="run", row=0)
    (tmp_path / "participation.json").write_text(json.dumps(record | {"uploads": []}))
    assert damaged.upload(round=6, model="6", run="run", row=0) is None
