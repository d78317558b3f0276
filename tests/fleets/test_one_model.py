"""A device reports on a model once: the difference of two sums about one model, of which one lacks
a device, is what that device reported.
"""

import json

import jax
import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices
from lying_server import VICTIM, LyingServer

from harness import quietly
from taciturn.core import FailedRound
from taciturn.fleets.devices import fields
from taciturn.fleets.devices import own_participation as records
from taciturn.fleets.devices.own_participation import OwnParticipation, ParticipationLimits
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.runs.loop import train_run

OTHERS = [device for device in range(9) if device != VICTIM]
TIRELESS = ParticipationLimits(hours=1e-9, min_separation=0, max_participations=99)


@pytest.fixture
def liar(tmp_path, vocabulary):
    liar = LyingServer(tmp_path, vocabulary)
    # The first layer begins with a zero.
    leaves, structure = jax.tree.flatten(liar.honest.params)
    first = np.array(leaves[0])
    first.flat[0] = 0.0
    params = jax.tree.unflatten(structure, [first, *leaves[1:]])
    liar.honest = liar.honest._replace(params=params)
    return liar


def with_negative_zeros(message):
    def change(leaf):
        leaf = np.array(leaf)
        leaf[leaf == 0] = -0.0
        return leaf

    return message._replace(params=jax.tree.map(change, message.params))


def with_another_last_bit(message):
    leaves, structure = jax.tree.flatten(message.params)
    last = np.array(leaves[-1])
    last.flat[-1] = np.nextafter(last.flat[-1], np.float32(9))
    params = jax.tree.unflatten(structure, [*leaves[:-1], last])
    return message._replace(params=params)


def subtract(liar, nine, eight):
    return (nine.values.astype(np.int64) - eight.values.astype(np.int64)) % liar.modulus


def restart_all(liar):
    for device in range(9):
        liar.fleet.start(device)


@pytest.mark.parametrize("again", ["as it was", "restarted", "another run", "zeros"])
def test_two_sums_about_one_model_are_refused(liar, again):
    liar.round(5)
    run = b"run"
    if again == "restarted":
        restart_all(liar)
    if again == "another run":
        run = b"another run"
    if again == "zeros":
        before = fields.arrays_to_bytes(liar.honest)
        liar.honest = with_negative_zeros(liar.honest)
        assert fields.arrays_to_bytes(liar.honest) != before
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(500, OTHERS, run=run)
    # They did not even train.
    assert len(liar.reports) == 9
    assert "already reported on this model" in liar.device(0)._record.why_not_model(
        fields.model_digest(liar.honest.params)
    )
    liar.change_model()
    liar.round(600, OTHERS, run=run)


def test_the_twin_without_models_on_record_gives_a_report_away(liar, monkeypatch):
    monkeypatch.setattr(records, "_why_not_model", lambda record, digest: None)
    nine = liar.round(5)
    eight = liar.round(500, OTHERS, run=b"another run")
    difference = subtract(liar, nine, eight)
    (victims_report,) = [
        report for report in liar.reports[:9] if np.array_equal(report % liar.modulus, difference)
    ]
    assert victims_report.any()


def test_the_refusal_stops_no_model_that_was_changed_in_its_last_bit(liar):
    """What docs/fleet.md says that it does not do."""
    liar.round(5)
    liar.honest = with_another_last_bit(liar.honest)
    liar.round(500, OTHERS)
    assert len(liar.reports) == 17


def test_a_model_counts_as_reported_on_once_a_report_may_have_left(liar):
    """The devices are killed after the record and before the report."""
    liar.fleet.link._faults = (
        lambda number, kind, answer: None if kind == Stage.MASK.question else answer,
    )
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(5)
    liar.fleet.link._faults = ()
    restart_all(liar)
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(500)
    assert all(len(liar.device(one)._record.uploads) == 1 for one in range(9))


def test_a_model_that_could_not_be_recorded_was_not_reported_on(liar, monkeypatch):
    write = records.write_atomically

    def full(path, content, mode):
        if json.loads(content)["uploads"]:
            raise OSError(28, "No space left on device")
        write(path, content, mode)

    monkeypatch.setattr(records, "write_atomically", full)
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(5)
    monkeypatch.setattr(records, "write_atomically", write)
    restart_all(liar)
    assert liar.round(500).values.any()


def test_a_model_is_looked_for_and_recorded_under_one_lock(tmp_path):
    """Two processes on one folder: the second sees what the first has just written."""
    one = OwnParticipation(tmp_path, TIRELESS)
    other = OwnParticipation(tmp_path, TIRELESS)
    assert other.why_not_model("m") is None
    assert one.upload(round=1, model="m", run="run", row=0) is None
    assert "once on each" in (other.upload(round=2, model="m", run="run", row=1) or "")
    assert other.upload(round=2, model="n", run="run", row=1) is None
    assert [upload["model"] for upload in one.uploads] == ["m", "n"]


def test_records_of_older_versions_name_no_models_and_are_read(tmp_path):
    record = OwnParticipation(tmp_path, TIRELESS)
    record.upload(round=1, model="m", run="run", row=0)
    path = tmp_path / records.FILE_NAME
    content = json.loads(path.read_text())
    del content["uploads"][0]["model"]
    path.write_text(json.dumps(content))
    assert record.why_not_model("m") is None
    assert "once to each" in record.why_not(1)


def asked_models(fleet):
    """Return the digests of the models in the devices' records, by round."""
    models = {}
    for number in range(len(fleet.keys)):
        for upload in fleet.link._devices[number].handler._record.uploads:
            models.setdefault(upload["round"], set()).add(upload["model"])
    return models


@pytest.mark.parametrize(("count", "models"), [(18, 1), (9, 2)])
def test_a_round_that_failed_is_repeated_on_its_model_by_others_or_on_one_beside_it(
    tmp_path, vocabulary, count, models
):
    """Where others are left, they train on the same model, and who reported is not asked. Where
    they are not, nobody is asked about one model twice, and the round is done all the same.
    """
    left = [9]

    def dies(number, kind, answer):
        left[0] -= kind == Stage.UNMASK.question
        return None if kind == Stage.UNMASK.question and left[0] >= 0 else answer

    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        count=count,
        faults=(dies,),
        run={"rounds": 1, "evaluate_every": 1},
        participation={"users": 40, "min_separation": 0},
    )
    finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases == 1
    asked = asked_models(fleet)
    assert len(set.union(*asked.values())) == models
    for number in range(count):
        uploads = fleet.link._devices[number].handler._record.uploads
        mine = [upload["model"] for upload in uploads]
        assert len(set(mine)) == len(mine)


def test_a_second_training_from_the_same_start_finds_its_devices_willing(tmp_path, vocabulary):
    """A recipe with a seed begins with the same model again."""
    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=9, run={"rounds": 2, "evaluate_every": 2, "seed": 5}
    )
    for name in ("first", "second"):
        finished = train_run(fleet.recipe, tmp_path / name, quietly, fleet.connected)
        assert finished.guarantee.releases == 2
    for number in range(9):
        uploads = fleet.link._devices[number].handler._record.uploads
        mine = [upload["model"] for upload in uploads]
        assert len(set(mine)) == len(mine) == 4
