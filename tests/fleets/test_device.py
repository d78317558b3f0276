"""A device and a server that may lie: it trains on what all were told, within its bound, and once
for each round.
"""

import contextlib
import json
import os
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices, fleet_recipe
from lying_server import KEY, VICTIM, LyingServer

from enrolling import AUTHORITY, SIGNING_AUTHORITY
from harness import WORDS, quietly, tiny_recipe
from taciturn import trees
from taciturn.core import FailedRound, Message
from taciturn.fleets import assemble
from taciturn.fleets.devices import fields
from taciturn.fleets.devices import own_participation as diaries
from taciturn.fleets.devices.device import Device, NotEligible
from taciturn.fleets.devices.own_participation import OwnParticipation
from taciturn.fleets.secure_aggregation import server_side
from taciturn.fleets.secure_aggregation.protocol import Refused
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.recipe import build
from taciturn.runs.loop import train_run


def test_a_device_does_not_report_to_a_round_that_it_refused(tmp_path, vocabulary):
    """It said yes to round 14 and no to round 12, in which it may not take part."""
    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=9, participation={"min_separation": 2, "users": 60}
    )
    device = fleet.link._devices[0].handler
    device._record.upload(round=10, model="10", run="run", row=10)
    device(
        Stage.ADVERTISE.question,
        fields.pack_fields(fields.new_name(), b"run", b"14", bytes(32), *fleet.signed(0)),
    )
    with pytest.raises(NotEligible, match="2 rounds must lie between"):
        device(
            Stage.ADVERTISE.question,
            fields.pack_fields(fields.new_name(), b"run", b"12", bytes(32), *fleet.signed(0)),
        )
    message = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), device._like)
    message = message._replace(
        public=message.public._replace(clip_norm=np.float32(1), round=np.int32(12))
    )
    key = np.asarray(jax.random.key_data(jax.random.key(0))).astype("<u4").tobytes()
    with suppress(ValueError):
        device(
            Stage.MASK.question,
            fields.pack_fields(b"whatever", key, fields.arrays_to_bytes(message)),
        )
    assert [upload["round"] for upload in device._record.uploads] == [10]


def test_a_report_is_masked_once_and_a_second_question_for_it_is_refused(tmp_path, vocabulary):
    seen = []

    def keeps(number, kind, answer):
        if kind == Stage.MASK.question and number == 2:
            seen.append(answer)
        return answer

    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=9, faults=(keeps,), run={"rounds": 1, "evaluate_every": 1}
    )
    contents, ask = {}, fleet.link.ask

    def twice(kind, questions, *args, **named):
        answers = ask(kind, questions, *args, **named)
        if kind == Stage.MASK.question:
            contents.update(questions)
            assert ask(kind, questions, 10) == {}
        return answers

    fleet.link.ask = twice
    finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases == 1
    assert len(seen) == 1
    assert contents


@pytest.mark.parametrize(
    "tokens",
    [[], [0, 0, 0], [4], [-1, 10**6, 4], [3] * 1000],
    ids=["none", "padding", "one", "no words", "long"],
)
@pytest.mark.parametrize("weight_cap", [None, 40.0])
def test_whatever_a_text_is_its_report_is_bounded(
    tmp_path, vocabulary, population, tokens, weight_cap
):
    users = {"weight_cap": weight_cap, "total_weight": 40.0} if weight_cap else {}
    recipe = fleet_recipe(population, participation=users)
    device = assemble.build_device(
        recipe, vocabulary, np.array(tokens, np.int32), SIGNING_AUTHORITY.key, AUTHORITY, tmp_path
    )
    params = build.language_model(recipe.model, len(vocabulary)).init(jax.random.key(0))
    encoded = build.report_encoding(recipe, params)
    for broken in (1.0, np.nan, np.inf):
        message = device._like._replace(params=trees.scale(params, np.float32(broken)))
        message = message._replace(
            public=message.public._replace(clip_norm=np.float32(0.5), round=np.int32(0))
        )
        values = np.asarray(
            device._program(message, device._user, jax.random.key(1)).update
        ).astype(np.int64)
        centred = np.where(values >= encoded.modulus // 2, values - encoded.modulus, values)
        assert np.sum(centred**2) <= encoded.limit
        assert np.max(np.abs(centred)) <= encoded.largest
        if not tokens or not np.isfinite(broken):
            assert not np.any(centred)


@pytest.fixture
def liar(tmp_path, vocabulary):
    return LyingServer(tmp_path, vocabulary)


def all_but_the_victim(message):
    return {one: message for one in range(9) if one != VICTIM}


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_devices_that_are_told_of_different_models_refuse_each_other_before_they_train(
    liar, value, monkeypatch
):
    with pytest.raises((Refused, FailedRound), match="not signed by device 3 for this round"):
        liar.round(1, given=all_but_the_victim(liar.filled(value)))
    monkeypatch.setattr(
        server_side, "is_signed_by", lambda key, **signed: True
    )  # and where the server takes any signature
    with pytest.raises(FailedRound, match="0 devices have shared"):
        liar.round(2, given=all_but_the_victim(liar.filled(value)))
    assert not liar.reports


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_a_device_trains_on_no_other_model_than_all_were_told_of(liar, value):
    with pytest.raises(FailedRound, match="1 devices have reported"):
        liar.round(
            1,
            given=all_but_the_victim(liar.filled(value)),
            told=dict.fromkeys(range(9), liar.honest),
        )
    assert len(liar.reports) == 1  # the victim's, which stays behind its masks
    assert [len(liar.device(one)._record.uploads) for one in range(9)] == [
        one == VICTIM for one in range(9)
    ]


def test_the_twin_without_the_hash_gives_the_victims_report_away(liar, monkeypatch):
    monkeypatch.setattr(fields, "message_hash", lambda **parts: bytes(32))
    monkeypatch.setattr(Device, "_check_message", lambda device, message: None)
    total = liar.round(1, given=all_but_the_victim(liar.filled(np.nan)))
    (report,) = [report for report in liar.reports if report.any()]
    assert len(total.devices) == 9
    np.testing.assert_array_equal(total.values, report)


@pytest.mark.parametrize("other", [{"run": b"another run"}, {"number": 2}, {"key": bytes(8)}])
def test_the_hash_is_of_run_and_round_and_key_too(liar, other):
    about = {"run": b"run", "number": 1, "key": KEY} | other
    message = fields.arrays_to_bytes(liar.honest)
    wrong = fields.message_hash(
        run=about["run"], round=str(about["number"]).encode(), model=message, key=about["key"]
    )
    device = liar.device(0)
    device(
        Stage.ADVERTISE.question,
        fields.pack_fields(fields.new_name(), b"run", b"1", wrong, *liar.fleet.signed(0)),
    )
    with pytest.raises(
        ValueError, match="not the one that the devices of this round have agreed to"
    ):
        device(Stage.MASK.question, fields.pack_fields(b"", KEY, message))
    assert not liar.reports


def test_an_honest_round_has_its_sum(liar):
    total = liar.round(1)
    np.testing.assert_array_equal(
        total.values, sum(report.astype(np.uint64) for report in liar.reports) % liar.modulus
    )


def broken(liar, what):
    params, public = liar.honest
    leaves, structure = jax.tree.flatten(params)
    return {
        "a parameter is NaN": Message(
            structure.unflatten([leaves[0].at[0].set(jnp.nan), *leaves[1:]]), public
        ),
        "a parameter is infinite": Message(
            structure.unflatten([*leaves[:-1], leaves[-1].at[0].set(-jnp.inf)]), public
        ),
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
    assert not any(liar.device(one)._record.uploads for one in range(9))


@pytest.mark.parametrize("what", BROKEN[::2])
def test_the_twin_without_the_check_trains_on_it(liar, what, monkeypatch):
    monkeypatch.setattr(Device, "_check_message", lambda device, message: None)
    liar.round(1, given=dict.fromkeys(range(9), broken(liar, what)))
    assert len(liar.reports) == 9


def without_the_victim():
    return [one for one in range(9) if one != VICTIM]


def old_diary(monkeypatch):
    """As it was: the last round may come again, and every run has limits of its own."""

    def why_not(diary, content, round):
        return None

    monkeypatch.setattr(OwnParticipation, "_why_not_round", why_not)
    monkeypatch.setattr(diaries, "_why_not_model", lambda record, digest: None)


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
    liar.change_model()
    liar.round(6, run=run)  # twin: a later one is none of these
    assert len(liar.reports) == 18


def test_the_twin_with_the_old_record_gives_a_report_away(liar, monkeypatch):
    old_diary(monkeypatch)
    nine, eight = liar.round(5), liar.round(5, without_the_victim())
    difference = (nine.values.astype(np.int64) - eight.values.astype(np.int64)) % liar.modulus
    assert any(np.array_equal(difference, report) for report in liar.reports)


def test_a_report_that_may_have_left_is_used_up_even_if_lost_with_its_device_killed(liar):
    liar.fleet.link._faults = (
        lambda number, kind, answer: None if kind == Stage.MASK.question else answer,
    )
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(5)
    liar.fleet.link._faults = ()
    for one in range(9):
        liar.fleet.start(one)
    with pytest.raises(FailedRound, match="0 devices have advertised"):
        liar.round(5)


def test_no_report_leaves_before_it_is_on_record(liar, monkeypatch):
    """A full disk, then a device that is cut off while it writes: what was not written did not
    leave.
    """
    whole = diaries.write_atomically

    def full(path, content, mode):
        if json.loads(content)["uploads"]:
            raise OSError(28, "No space left on device")
        whole(path, content, mode)

    monkeypatch.setattr(diaries, "write_atomically", full)
    with pytest.raises(FailedRound, match="0 devices have reported"):
        liar.round(5)
    monkeypatch.setattr(diaries, "write_atomically", whole)
    assert not any(liar.device(one)._record.uploads for one in range(9))
    for one in range(9):  # and who has not reported signs no list that says so
        with pytest.raises(ValueError, match="not in a round"):
            liar.device(one)(Stage.SIGN.question, b"")
    synced, fsync = [], os.fsync

    def noted(descriptor):
        fsync(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", noted)
    before = []
    liar.fleet.link._faults = (
        lambda number, kind, answer: before.append((kind, list(synced))) or answer,
    )
    liar.round(6, [one for one in range(9) if one > 1])
    first = next(files for kind, files in before if kind == Stage.MASK.question)
    assert (
        sum("participation.json" in file for file in first) >= 7 + 1
    )  # everybody's entry, and a report


@pytest.mark.parametrize("moment", range(4))
@pytest.mark.parametrize("after", [False, True])
def test_a_device_that_is_killed_between_any_two_writes_reports_to_a_round_once_at_most(
    liar, monkeypatch, moment, after
):
    """At each moment at which something of its diary becomes durable, in its advert and in its
    report.
    """
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
        if kind == Stage.MASK.question and number == VICTIM:
            sent.append(answer)
        return answer

    monkeypatch.setattr(os, "fsync", killed)
    liar.fleet.link._faults = (noted,)
    liar.round(5)
    assert left[0] < 0
    assert not sent  # it was killed before it was done
    liar.fleet.start(VICTIM)
    recorded = bool(liar.device(VICTIM)._record.uploads)
    assert recorded == (moment == 3)
    question = fields.pack_fields(
        fields.new_name(), b"run", b"5", bytes(32), *liar.fleet.signed(VICTIM)
    )
    with (
        pytest.raises(NotEligible, match="reports once to each")
        if recorded
        else contextlib.nullcontext()
    ):
        liar.device(VICTIM)(Stage.ADVERTISE.question, question)


def test_a_name_that_was_seen_before_is_refused(liar):
    device, low, high = liar.device(0), bytes(15) + b"\1", bytes(15) + b"\2"
    question = [
        fields.pack_fields(name, b"run", b"1", bytes(32), *liar.fleet.signed(0))
        for name in (low, high)
    ]
    device(Stage.ADVERTISE.question, question[1])
    for again in (
        *question,
        fields.pack_fields(bytes(16), b"run", b"9", bytes(32), *liar.fleet.signed(0)),
    ):
        with pytest.raises(NotEligible, match="names of attempts rise"):
            device(Stage.ADVERTISE.question, again)
    liar.fleet.start(0)
    with pytest.raises(NotEligible, match="names of attempts rise"):
        liar.device(0)(Stage.ADVERTISE.question, question[1])
    with pytest.raises(ValueError, match="16 bytes"):
        liar.device(0)(
            Stage.ADVERTISE.question,
            fields.pack_fields(b"short", b"run", b"9", bytes(32), *liar.fleet.signed(0)),
        )
    names = [fields.new_name() for _ in range(50)]
    assert [name[:8] for name in names] == sorted(name[:8] for name in names)
    assert len(set(names)) == 50


def test_no_server_whose_clock_is_wrong_locks_devices_out_of_all_later_rounds(liar):
    """They would answer to none but later ones."""
    day, now = 24 * 3600, fields.latest_time(fields.new_name(), 0)
    far = int(1e6 * (now + day + 60)).to_bytes(8, "big")
    device = liar.device(0)
    for name, round in (
        (far + bytes(8), 1),
        (fields.new_name(), int.from_bytes(far, "big") << fields.ROUND_BITS),
    ):
        with pytest.raises(NotEligible, match="dated in the future"):
            device(
                Stage.ADVERTISE.question,
                fields.pack_fields(
                    name, b"run", str(round).encode(), bytes(32), *liar.fleet.signed(0)
                ),
            )
    near = int(1e6 * (now + day - 60)).to_bytes(8, "big")
    device(
        Stage.ADVERTISE.question,
        fields.pack_fields(near + bytes(8), b"run", b"1", bytes(32), *liar.fleet.signed(0)),
    )


def test_devices_of_two_recipes_in_one_process_each_go_by_their_own_clip_norm(population):
    """What they share once it is compiled is named by the mechanism: by the model alone, the second
    would check the first's.
    """
    norms = []
    for clip_norm in (0.5, 0.25, 0.5):
        recipe = tiny_recipe(population, privacy={"clip_norm": clip_norm})
        algorithm, model = build.algorithm(recipe, WORDS), build.language_model(recipe.model, WORDS)
        messages = assemble._compile_messages(algorithm.mechanism, model)
        norms.append(float(jax.tree.leaves(messages.public_part(0))[0]))
    assert norms == [0.5, 0.25, 0.5]
