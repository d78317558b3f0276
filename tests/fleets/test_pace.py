"""The pace of a fleet: devices that are sent away, rest or stay away, and whoever watches
meanwhile.
"""

import json
import logging
import math
import struct
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices
from local_link import LocalLink

from enrolling import enrolled
from harness import quietly
from taciturn.fleets.devices import fields
from taciturn.fleets.devices import own_participation as diaries
from taciturn.fleets.devices.device import Device, NotEligible
from taciturn.fleets.devices.fleet import DeviceFleet
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.recipe import build
from taciturn.recipe.text import RecipeError
from taciturn.runs.loop import train_run

ONE_ROUND = {"rounds": 1, "evaluate_every": 1}


TWO_ROUNDS = {"rounds": 2, "evaluate_every": 2, "save_every": 1}


def device_of(fleet, number) -> Device:
    return fleet.link._devices[number].handler


def charges(fleet):
    rows = Ledger(fleet.population.folder / "ledger.jsonl").rows
    return [row["round"] for row in rows if row["kind"] == "charge"]


def test_whoever_watches_sees_what_the_ledger_on_disk_says_and_changes_nothing_in_it(
    tmp_path, vocabulary
):
    fleet, shown = FleetOfDevices(tmp_path, vocabulary, count=9), []
    path = fleet.population.folder / "ledger.jsonl"

    def watch(done, rounds, row):
        ledger = Ledger(path)
        assert row["epsilon"] == ledger.guarantee("run").epsilon
        assert len(charges(fleet)) == done
        shown.append(row["epsilon"])

    train_run(fleet.recipe, tmp_path / "run", watch, fleet.connected)
    assert shown[0] == 0 < shown[1]
    assert shown == sorted(shown)
    assert not any(math.isinf(epsilon) for epsilon in shown)
    kinds = Counter(json.loads(line)["kind"] for line in path.read_text().splitlines())
    assert kinds["charge"] == 6
    assert kinds["open"] == kinds["ledger"] == 1


class Named(int):
    """The number of a device, which cannot be missed where it is written."""

    def __repr__(self):
        return f"device-765-{int(self)}"

    __str__ = __repr__


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_no_log_and_no_public_file_names_a_device_that_took_part_or_was_sent_away(
    tmp_path, vocabulary, caplog, level, monkeypatch
):
    """Devices have numbers that cannot be missed. Twin: at DEBUG, where it may be said, they are
    found.
    """

    def loses(number, kind, answer):
        return None if kind == Stage.UNMASK.question and number % 9 == 0 else answer

    fleet = FleetOfDevices(tmp_path, vocabulary, count=24, run=TWO_ROUNDS)
    fleet.enrolled = enrolled([*fleet.keys, fleet.keys[0]])
    link = LocalLink(
        {Named(number): fleet.link._devices[number].handler for number in range(24)}, (loses,)
    )
    monkeypatch.setattr(
        LocalLink, "devices", lambda link: [*map(Named, link._devices), Named(24)]
    )  # the last has just gone
    run = tmp_path / "run"
    with caplog.at_level(level, "taciturn.fleet"):
        train_run(fleet.recipe, run, quietly, replace(fleet.connected, link=link))
    assert "they will come back later" in caplog.text
    assert "no answer from 1 of 25 devices" in caplog.text
    assert ("device-765" in caplog.text) == (level == logging.DEBUG)
    public = [
        path.read_text()
        for path in run.iterdir()
        if path.suffix in (".jsonl", ".csv", ".txt", ".json", ".toml")
    ]
    assert public
    assert not any(
        "device-765" in text or fleet.enrolled.certificates[0].key.hex() in text for text in public
    )


@pytest.mark.parametrize(
    "after", [Stage.ADVERTISE.question, Stage.SHARE.question, Stage.MASK.question]
)
@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_a_device_that_is_sent_away_in_mid_round_spoils_no_sum(
    tmp_path, vocabulary, monkeypatch, after, seconds
):
    """Away, it is as if it had dropped out there. Twin: back at once, it goes on where it was."""
    fleet, sums, asked = FleetOfDevices(tmp_path, vocabulary, count=9, run=ONE_ROUND), [], []
    whole, ask = DeviceFleet._secure_sum, fleet.link.ask

    def noted(server, **asked_for):
        sums.append(whole(server, **asked_for))
        return sums[-1]

    def sends_away(kind, contents, *args, **settings):
        answers = ask(kind, contents, *args, **settings)
        asked.append(kind)
        if kind == after:
            assert ask(fields.COME_BACK, {3: fields.SECONDS.pack(seconds)}, 30) == {3: b""}
        return answers

    monkeypatch.setattr(DeviceFleet, "_secure_sum", noted)
    fleet.link.ask = sends_away
    assert (
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected).guarantee.releases == 1
    )
    in_time = not seconds or after == Stage.MASK.question
    assert len(fleet.reports[0]) == 8 + in_time
    params = jax.eval_shape(
        build.language_model(fleet.recipe.model, len(vocabulary)).init, jax.random.key(0)
    )
    modulus = build.report_encoding(fleet.recipe, params).modulus
    assert np.array_equal(
        sums[0], sum(report.astype(np.uint64) for report in fleet.reports[0]) % modulus
    )
    assert bool(device_of(fleet, 3)._record.uploads) == in_time


def test_whatever_a_server_says_when_it_sends_a_device_away_the_device_keeps_its_limits(
    tmp_path, vocabulary
):
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        count=9,
        fleet={"timer_hours": 1e-9},
        participation={"min_separation": 3, "users": 60},
    )
    device = device_of(fleet, 2)
    question = fields.pack_fields(device._terms.fingerprint, b"9")
    device._record.upload(round=7, model="7", run="run", row=7)
    times = (math.nan, math.inf, -math.inf, -1.0, -0.0, 5e-324, 1e-300, 0.0)
    contents = [
        *(struct.pack(">d", seconds) for seconds in times),
        b"",
        b"1" * 7,
        b"1" * 9,
        b"\xff" * 4096,
    ]
    for content in contents:
        answers = fleet.link.ask(fields.COME_BACK, {2: content}, 30)
        assert answers == ({2: b""} if len(content) == 8 else {})
        fleet.link._devices[2].back_at = 0.0  # whenever it is back
        assert fleet.link.ask(fields.CHECK_IN, {2: question}, 30) == {2: fields.NOT_NOW}
        with pytest.raises(NotEligible, match="3 rounds must lie between"):
            device(
                Stage.ADVERTISE.question,
                fields.pack_fields(fields.new_name(), b"run", b"9", bytes(32), *fleet.signed(2)),
            )
    later = fields.pack_fields(device._terms.fingerprint, b"11")
    assert fleet.link.ask(fields.CHECK_IN, {2: later}, 30) == {
        2: fields.READY
    }  # it still takes part when it may
    diaries.opt_out(tmp_path / "device-2")
    fleet.link.ask(fields.COME_BACK, {2: contents[-5]}, 30)
    assert fleet.link.ask(fields.CHECK_IN, {2: later}, 30) == {2: fields.NOT_NOW}


@pytest.mark.parametrize("run", [ONE_ROUND, TWO_ROUNDS])
def test_devices_rest_from_rounds_that_there_are(tmp_path, vocabulary, run):
    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=9, run=run, participation={"min_separation": 1}
    )
    if run is ONE_ROUND:
        assert (
            train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected).guarantee.releases
            == 1
        )
    else:
        with pytest.raises(RecipeError, match="9 devices are too few, 18 are needed"):
            train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)


def test_a_run_for_which_nobody_is_left_ends_with_what_it_has(tmp_path, vocabulary):
    """Too many have taken part as often as they may: no waiting helps, and secrets are not kept for
    it.
    """
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        run={"rounds": 4, "evaluate_every": 4},
        participation={"max_participations": 3},
    )
    finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert "may still take part" in finished.stopped
    assert finished.guarantee.releases == 3
    assert (tmp_path / "run" / "guarantee.json").exists()
    assert not (tmp_path / "run" / "private").exists()
