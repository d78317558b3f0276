"""A fleet of devices: what the server gets is the sum of the reports and nothing else, whatever
breaks.
"""

import itertools
import json
import logging
import time
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices, fleet_recipe
from local_link import LocalLink

from enrolling import enrolled
from harness import Cut, cut_at, mostly_slow, quietly
from taciturn.fleets.devices import fields
from taciturn.fleets.devices import own_participation as diaries
from taciturn.fleets.devices.fleet import DeviceFleet
from taciturn.fleets.devices.own_participation import OwnParticipation, ParticipationLimits
from taciturn.fleets.devices.transport import ComeBackLater, LinkError
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.account import Account
from taciturn.privacy.ledger.releases import ReleaseError, Releases
from taciturn.recipe.text import RecipeError
from taciturn.release.model_file import load_model
from taciturn.runs.loop import resume_run, train_run


@pytest.fixture
def totals(monkeypatch):
    """What the curator was given, by round."""
    found = {}
    whole = DeviceFleet.sum_reports

    def noted(self, program, message, cohort, key):
        total = whole(self, program, message, cohort, key)
        found[int(message.public.round)] = np.asarray(total.update).astype(np.uint32)
        return total

    monkeypatch.setattr(DeviceFleet, "sum_reports", noted)
    return found


def assert_sums(fleet, totals):
    bits = int(np.log2(fleet.modulus))
    for round, total in totals.items():
        plain = sum(report.astype(np.uint64) for report in fleet.reports[round]) % 2**bits
        np.testing.assert_array_equal(total, plain)


def modulus(fleet) -> int:
    from taciturn.recipe import build

    return build.algorithm(fleet.recipe, len(fleet.vocabulary)).mechanism.modulus


def test_every_sum_is_the_plain_sum_of_the_reports_to_the_bit(tmp_path, vocabulary, totals):
    fleet = FleetOfDevices(tmp_path, vocabulary)
    fleet.modulus = modulus(fleet)
    finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases == 6 == len(totals)
    assert_sums(fleet, totals)
    assert all(len(reports) == 9 for reports in fleet.reports.values())  # 6 are needed, 9 are asked
    assert "one device" in (tmp_path / "run" / "guarantee.txt").read_text()
    assert not (tmp_path / "run" / "private").exists()


def test_a_sum_that_lost_a_report_would_be_noticed(tmp_path, vocabulary, totals):
    """The twin."""
    fleet = FleetOfDevices(tmp_path, vocabulary, run={"rounds": 1, "evaluate_every": 1})
    fleet.modulus = modulus(fleet)
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    fleet.reports[0].pop()
    with pytest.raises(AssertionError):
        assert_sums(fleet, totals)


def test_given_the_reports_a_simulated_fleet_comes_to_the_same_model(
    tmp_path, vocabulary, totals, monkeypatch
):
    fleet = FleetOfDevices(tmp_path, vocabulary)
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)

    class Replayed(DeviceFleet):
        """Adds the same reports in this process, in the plain."""

        def _secure_sum(self, *, row, model, cohort, key):
            return (sum(fleet.reports[row]) % modulus(fleet)).astype(np.uint32)

    monkeypatch.setattr("taciturn.fleets.assemble.DeviceFleet", Replayed)
    (tmp_path / "again").mkdir()
    again = FleetOfDevices(tmp_path / "again", vocabulary)
    train_run(again.recipe, tmp_path / "again" / "run", quietly, again.connected)
    one, other = (jax.tree.leaves(load_model(tmp_path / name)[0]) for name in ("run", "again/run"))
    assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "stage",
    [Stage.ADVERTISE.question, Stage.SHARE.question, Stage.MASK.question, Stage.UNMASK.question],
)
def test_a_third_of_the_devices_may_die_at_any_stage(tmp_path, vocabulary, totals, stage, caplog):
    dead = set()

    def dies(number, kind, answer):
        if kind == stage and (number in dead or len(dead) < 2):
            dead.add(number)
            return None
        return answer

    fleet = FleetOfDevices(
        tmp_path, vocabulary, faults=(dies,), run={"rounds": 2, "evaluate_every": 2}
    )
    fleet.modulus = modulus(fleet)
    rows = []
    with caplog.at_level(logging.WARNING, "taciturn.fleet"):
        finished = train_run(
            fleet.recipe, tmp_path / "run", lambda done, all, row: rows.append(row), fleet.connected
        )
    assert finished.guarantee.releases == 2
    assert (
        rows[1]["epsilon"] > 0 == rows[1]["round"]
    )  # told with every round, measured only now and then
    assert rows[-1]["dropped_out"] == 18 - rows[-1]["uploads"]
    assert rows[-1]["dropped_out"] in (
        {0} if stage == Stage.UNMASK.question else {2, 3, 4}
    )  # who is dead may not be asked again
    assert f"“{stage}”: no answer from" in caplog.text
    if stage == Stage.MASK.question:  # two of nine died each time, after they had trained
        assert all(len(reports) == 9 for reports in fleet.reports.values())
    else:
        assert_sums(fleet, totals)


def test_when_too_many_die_the_round_fails_is_not_charged_and_is_tried_again(
    tmp_path, vocabulary, totals
):
    tries = []

    def dies(number, kind, answer):
        if kind == Stage.UNMASK.question and len(tries) < 9:
            tries.append(number)
            return None
        return answer

    fleet, rows = (
        FleetOfDevices(
            tmp_path, vocabulary, faults=(dies,), run={"rounds": 1, "evaluate_every": 1}
        ),
        [],
    )
    finished = train_run(
        fleet.recipe, tmp_path / "run", lambda done, all, row: rows.append(row), fleet.connected
    )
    assert len(tries) == 9
    assert rows[-1]["failed_rounds"] == 1
    assert finished.guarantee.releases == 1
    assert len(totals) == 1


GARBAGE = {
    "random bytes": lambda answer: np.random.default_rng(0).bytes(len(answer)),
    "too short": lambda answer: answer[:-1],
    "too long": lambda answer: answer + b"\0",
    "nothing": lambda answer: b"",
    "too much": lambda answer: bytes(2**20 + 1),
}


@pytest.mark.parametrize(
    "stage",
    [Stage.ADVERTISE.question, Stage.SHARE.question, Stage.MASK.question, Stage.UNMASK.question],
)
@pytest.mark.parametrize("kind", mostly_slow(GARBAGE, *list(GARBAGE)[:2]))
def test_whatever_one_device_sends_the_others_continue(
    tmp_path, vocabulary, totals, kind, stage, caplog
):
    def wrong(number, asked, answer):
        return GARBAGE[kind](answer) if asked == stage and number % 6 == 0 else answer

    fleet = FleetOfDevices(
        tmp_path, vocabulary, faults=(wrong,), run={"rounds": 1, "evaluate_every": 1}
    )
    with caplog.at_level(logging.WARNING, "taciturn.fleet"):
        finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases == 1
    assert np.all(np.isfinite(jax.tree.leaves(finished.params)[0]))


def test_an_answer_to_another_round_is_left_out(tmp_path, vocabulary, caplog):
    """A replay: what a device said in the first round, said again in the second."""
    first = {}

    def replays(number, kind, answer):
        if kind == fields.CHECK_IN:
            return answer
        return first.setdefault((number, kind), answer) if number % 6 == 0 else answer

    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=9, faults=(replays,), run={"rounds": 2, "evaluate_every": 2}
    )
    with caplog.at_level(logging.WARNING, "taciturn.fleet"):
        finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases == 2
    assert "malformed answers" in caplog.text


def test_a_device_that_nobody_enrolled_is_left_out(tmp_path, vocabulary, caplog):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    fleet = FleetOfDevices(tmp_path, vocabulary, count=9, run={"rounds": 1, "evaluate_every": 1})
    fleet.start(3, key=Ed25519PrivateKey.generate())
    with caplog.at_level(logging.WARNING, "taciturn.fleet"):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert (
        "“advertise”: no answer from 1 of 9 devices" in caplog.text
    )  # it is given a certificate that is not its own
    assert len(fleet.reports[0]) == 8


def test_a_device_with_another_recipe_does_not_come(tmp_path, vocabulary):
    fleet = FleetOfDevices(tmp_path, vocabulary, count=9, run={"rounds": 1, "evaluate_every": 1})
    fleet.start(3, recipe=fleet.recipe.with_settings("local", learning_rate=0.4))
    with pytest.raises(LinkError, match="8 devices are present that may take part, 9 are needed"):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)


def test_who_took_part_is_said_in_no_log_outside_the_private_folder(tmp_path, vocabulary, caplog):
    def wrong(number, asked, answer):
        return b"garbage" if number == 7 and asked == Stage.ADVERTISE.question else answer

    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=10, faults=(wrong,), run={"rounds": 3, "evaluate_every": 3}
    )
    with caplog.at_level(logging.INFO, "taciturn.fleet"), pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", cut_at(2), fleet.connected)
    assert "device 7" not in caplog.text
    log = tmp_path / "run" / "private" / "rounds" / "refused.log"
    assert "device 7" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    public = [path for path in (tmp_path / "run").iterdir() if path.is_file()]
    assert not any(b"device 7" in path.read_bytes() for path in public)


@pytest.mark.parametrize("round", mostly_slow(range(1, 6), 2))
def test_a_killed_server_resumes_and_no_device_trains_twice_for_what_was_summed(
    tmp_path, vocabulary, totals, round
):
    fleet = FleetOfDevices(tmp_path, vocabulary)
    fleet.modulus = modulus(fleet)
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", cut_at(round), fleet.connected)
    before = {one: len(reports) for one, reports in fleet.reports.items()}
    rows = []
    finished = resume_run(
        tmp_path / "run", lambda done, all, row: rows.append(row), fleet.connected
    )
    # What was charged and not saved is given out again from its record, byte for byte.
    assert finished.guarantee.releases == 6
    assert rows[-1]["uploads"] == sum(map(len, fleet.reports.values()))
    assert all(len(fleet.reports[one]) == count for one, count in before.items())
    assert_sums(fleet, totals)


@pytest.mark.slow
def test_a_server_that_is_killed_twenty_times_in_one_training_comes_to_its_end(
    tmp_path, vocabulary, totals, monkeypatch
):
    """At whatever question it is: what was charged is used, what was not is asked of others."""
    fleet = FleetOfDevices(
        tmp_path, vocabulary, run={"rounds": 8, "evaluate_every": 8, "save_every": 1}
    )
    fleet.modulus = modulus(fleet)
    ask, left, generator = LocalLink.ask, [3], np.random.default_rng(0)

    def killed(self, *args, **settings):
        left[0] -= 1
        if left[0] == 0:
            raise Cut
        return ask(self, *args, **settings)

    monkeypatch.setattr(LocalLink, "ask", killed)

    def gone_on():
        if (tmp_path / "run").exists():
            return resume_run(tmp_path / "run", quietly, fleet.connected)
        return train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)

    for _ in range(20):
        with pytest.raises(Cut):
            gone_on()
        left[0] = int(generator.integers(1, 6))
    left[0] = 10**9
    finished = gone_on()
    assert finished.guarantee.releases == 8
    assert_last_sums(fleet, totals)


def assert_last_sums(fleet, totals):
    """A round that was cut off was asked again: its total is of the last reports, as many as were
    in it.
    """
    for round, total in totals.items():
        reports = fleet.reports[round]
        sums = [
            sum(one.astype(np.uint64) for one in reports[-count:]) % fleet.modulus
            for count in range(6, 10)
        ]
        assert any(np.array_equal(total, one) for one in sums)


@pytest.mark.parametrize("reordered", [True, False])
def test_a_cohort_drawn_before_a_crash_is_not_asked_of_a_list_in_another_order(
    tmp_path, vocabulary, monkeypatch, reordered
):
    """Its numbers would be other people's, whatever the log says of them. Twin: with the list as it
    was the run goes on.
    """
    fleet = FleetOfDevices(
        tmp_path, vocabulary, run={"rounds": 2, "evaluate_every": 2, "save_every": 1}
    )
    whole, calls = DeviceFleet._secure_sum, []

    def killed(server, **asked):
        calls.append(1)
        if len(calls) == 2:
            raise Cut
        return whole(server, **asked)

    monkeypatch.setattr(DeviceFleet, "_secure_sum", killed)
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    if reordered:
        with pytest.raises(LinkError, match="reordered or edited since this run began"):
            resume_run(
                tmp_path / "run",
                quietly,
                replace(fleet.connected, enrolled=lambda: enrolled(fleet.keys[::-1])),
            )
        assert len(calls) == 2  # nobody was asked
    else:
        assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 2


@pytest.mark.parametrize("count", mostly_slow([20, 9], 9))
@pytest.mark.parametrize(("where", "name"), [(Releases, "write"), (Account, "charge")])
def test_killed_between_a_sum_and_its_charge_the_round_is_done_by_others_and_charged_once(
    tmp_path, vocabulary, totals, monkeypatch, count, where, name
):
    """The reports in the sum are used up: its devices are not asked for them again, but under
    another number where there are no others (nine devices).
    """
    settings = {"rounds": 2, "evaluate_every": 2, "seed": None}
    fleet, run = FleetOfDevices(tmp_path, vocabulary, count=count, run=settings), tmp_path / "run"

    def killed(self, row, *rest, whole=getattr(where, name)):
        if row == 1:
            raise Cut
        return whole(self, row, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed)
        with pytest.raises(Cut):
            train_run(fleet.recipe, run, quietly, fleet.connected)
    assert len(fleet.reports[1]) == 9
    assert not files_with(run, totals[1], modulus(fleet))
    ask, asked = fleet.link.ask, []
    fleet.link.ask = lambda kind, *args, **settings: (
        asked.append(kind) or ask(kind, *args, **settings)
    )
    rows = []
    finished = resume_run(run, lambda done, rounds, row: rows.append(row), fleet.connected)
    assert asked[0] == fields.CHECK_IN  # and nobody of the cohort before
    assert finished.guarantee.releases == 2
    assert rows[-1]["failed_rounds"] == 1
    assert [len(fleet.reports[round]) for round in (0, 1)] == [9, 18]
    diaries = [fleet.link._devices[one].handler._record.uploads for one in range(count)]
    assert all(len({upload["round"] for upload in diary}) == len(diary) for diary in diaries)
    twice = [sum(upload["row"] == 1 for upload in diary) == 2 for diary in diaries]
    assert sum(twice) == (9 if count == 9 else 0)


def test_failed_attempts_leave_devices_resting_and_the_next_round_goes_on_all_the_same(
    tmp_path, vocabulary, monkeypatch
):
    """Killed after its sum, a round is done by others; then most rest by their own diaries, which
    the log does not know of.
    """
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        count=27,
        run={"rounds": 3, "evaluate_every": 3, "seed": None},
        participation={"min_separation": 1, "users": 60},
    )
    whole, kills = Releases.write, [0, 1]

    def killed(self, row, *rest):
        if row in kills:
            kills.remove(row)
            raise Cut
        return whole(self, row, *rest)

    monkeypatch.setattr(Releases, "write", killed)
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    with pytest.raises(Cut):
        resume_run(tmp_path / "run", quietly, fleet.connected)
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 3
    for one in range(27):
        rounds = [upload["round"] for upload in fleet.link._devices[one].handler._record.uploads]
        assert all(later - before > 1 for before, later in itertools.pairwise(rounds))


def files_with(folder, total, modulus):
    """Those that hold a total without noise, however it is written."""
    centred = (total.astype(np.int64) + modulus // 2) % modulus - modulus // 2
    written = [
        values.astype(kind).tobytes()
        for values in (total, centred)
        for kind in ("<i4", "<i8", "<f4", "<f8")
    ]
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [
        path.name for path, content in contents.items() if any(one in content for one in written)
    ]


@pytest.mark.parametrize("written_down", [False, True])
def test_no_total_without_noise_is_ever_on_disk(tmp_path, vocabulary, monkeypatch, written_down):
    """Twin: a fleet that writes its sums down is noticed."""
    fleet = FleetOfDevices(tmp_path, vocabulary, run={"rounds": 2, "evaluate_every": 2})
    run, found, whole, charge = tmp_path / "run", [], DeviceFleet.sum_reports, Account.charge
    sums = []

    def noted(self, *question):
        total = whole(self, *question)
        sums.append(np.asarray(total.update).astype(np.uint32))
        if written_down:
            np.save(run / "private" / "total.npy", sums[-1])
        return total

    def looks(self, *row):
        charge(self, *row)
        found.extend(files_with(run, sums[-1], modulus(fleet)))

    monkeypatch.setattr(DeviceFleet, "sum_reports", noted)
    monkeypatch.setattr(Account, "charge", looks)
    train_run(fleet.recipe, run, quietly, fleet.connected)
    assert len(sums) == 2
    assert found == (["total.npy"] * 2 if written_down else [])


def test_whoever_was_asked_for_a_report_that_never_left_may_be_asked_again(tmp_path, vocabulary):
    """The link broke when reports were asked for. Of thirty devices nine are here: they say that
    they have not reported, and go on.
    """
    fleet = FleetOfDevices(tmp_path, vocabulary, count=30, run={"rounds": 1, "evaluate_every": 1})
    for number in range(9, 30):
        fleet.link.remove(number)
    ask, broken = fleet.link.ask, [True]

    def breaks(kind, contents, *args, **settings):
        if kind == Stage.MASK.question and broken:
            broken.clear()
            return {}
        return ask(kind, contents, *args, **settings)

    fleet.link.ask = breaks
    assert (
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected).guarantee.releases == 1
    )
    assert not broken
    assert len(fleet.reports[0]) == 9


def test_a_release_whose_record_is_lost_is_not_made_again(tmp_path, vocabulary):
    fleet = FleetOfDevices(tmp_path, vocabulary, count=16, run={"save_every": 6})
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", cut_at(2), fleet.connected)
    (tmp_path / "run" / "private" / "releases" / "release-0").unlink()
    with pytest.raises(ReleaseError, match="its record is gone"):
        resume_run(tmp_path / "run", quietly, fleet.connected)
    assert fleet.reports.keys() == {0, 1}
    assert all(len(reports) == 9 for reports in fleet.reports.values())  # nobody was asked again


def test_a_full_disk_at_the_ledger_stops_the_run_and_releases_nothing(
    tmp_path, vocabulary, monkeypatch
):
    fleet = FleetOfDevices(tmp_path, vocabulary, count=20)
    whole, mean, released = Account.charge, Curator.private_mean, []

    def full(self, round, record, log=""):
        if round == 2:
            raise OSError(28, "No space left on device")
        whole(self, round, record, log)

    def given_out(self, *question):
        given = mean(self, *question)
        released.append(given)
        return given

    monkeypatch.setattr(Account, "charge", full)
    monkeypatch.setattr(Curator, "private_mean", given_out)
    with pytest.raises(OSError, match="No space"):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert len(released) == 2
    monkeypatch.setattr(Account, "charge", whole)
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 6


def test_a_device_keeps_its_own_timer_whatever_the_server_forgets(tmp_path):
    diary = OwnParticipation(
        tmp_path, ParticipationLimits(hours=24.0, min_separation=2, max_participations=2)
    )
    assert diary.why_not(0) is None
    diary.upload(round=0, model="0", run="run", row=0)
    for one in (
        diary,
        OwnParticipation(tmp_path, ParticipationLimits(24.0, 2, 2)),
    ):  # a restart changes nothing
        assert "rests for 24 hours" in one.why_not(5)
    rested = OwnParticipation(tmp_path, ParticipationLimits(0.0, 2, 2))
    assert "2 rounds must lie between" in rested.why_not(2)
    assert rested.why_not(3) is None
    assert "reports once to each" in rested.why_not(0)  # whatever became of it
    rested.upload(round=3, model="3", run="another run", row=0)
    assert "2 times" in rested.why_not(9)
    diaries.opt_out(tmp_path)
    assert "opted out" in OwnParticipation(tmp_path, ParticipationLimits(0.0, 2, 2)).why_not(20)
    assert json.loads((tmp_path / "participation.json").read_text())["opted_out"]


def test_a_round_that_keeps_failing_is_given_up_and_the_run_goes_on_when_devices_are_well(
    tmp_path, vocabulary, clock
):
    broken = [True]

    def dies(number, kind, answer):
        return None if kind == Stage.SHARE.question and broken else answer

    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        faults=(dies,),
        run={"rounds": 1, "evaluate_every": 1},
        fleet={"patience": 200.0},
    )
    with pytest.raises(
        LinkError, match=r"no round has succeeded for .* 8 rounds have failed.*--resume"
    ):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert clock.pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    broken.clear()
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 1


@pytest.mark.parametrize(("count", "sent_away"), [(18, 0), (30, 12)])
def test_whoever_is_not_needed_is_told_when_to_come_back(
    tmp_path, vocabulary, caplog, count, sent_away
):
    """Nine take part and nine wait for the next round; more would only wait. They are told when the
    round is charged, and no sooner: what goes wrong then costs nobody's report.
    """
    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=count, run={"rounds": 2, "evaluate_every": 2}
    )
    told, kinds, ask = {}, [], fleet.link.ask
    ledger = fleet.population.folder / "ledger.jsonl"

    def noted(kind, contents, *args, **settings):
        kinds.append(kind)
        if kind == fields.COME_BACK:
            assert '"charge"' in ledger.read_text()
            told.update(
                {one: fields.SECONDS.unpack(content)[0] for one, content in contents.items()}
            )
        if kinds.count(fields.CHECK_IN) == 2:
            raise Cut
        return ask(kind, contents, *args, **settings)

    fleet.link.ask = noted
    with caplog.at_level(logging.INFO, "taciturn.fleet"), pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert len(told) == sent_away
    assert ("they will come back later" in caplog.text) == bool(sent_away)
    assert "no answer to" not in caplog.text
    took_part = {
        number for number in range(count) if fleet.link._devices[number].handler._record.uploads
    }
    assert len(took_part) == 9
    assert not told.keys() & took_part
    assert all(fleet.link._devices[one].back_at > 0 for one in told)


def test_a_device_that_rests_goes_away_on_its_own_and_tells_nobody_for_how_long(
    tmp_path, vocabulary
):
    fleet = FleetOfDevices(tmp_path, vocabulary, count=10, fleet={"timer_hours": 2.0})
    device = fleet.link._devices[4].handler
    question = fields.pack_fields(device._terms.fingerprint, b"3")
    assert fleet.link.ask(fields.CHECK_IN, {4: question}, 10) == {4: fields.READY}
    device._record.upload(round=0, model="0", run="another run", row=0)
    assert fleet.link.ask(fields.CHECK_IN, {4: question}, 10) == {4: b""}
    assert 4 not in fleet.link.devices()
    assert 7100 < fleet.link._devices[4].back_at - time.monotonic() <= 7200


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, float("inf"), 10.0**300])
def test_no_server_sends_a_device_away_for_good(seconds):
    assert 0 <= ComeBackLater(seconds).seconds <= 24 * 3600


def test_a_device_with_other_words_does_not_come(tmp_path, vocabulary):
    fleet = FleetOfDevices(tmp_path, vocabulary, count=10, run={"rounds": 1, "evaluate_every": 1})
    fleet.vocabulary = replace(
        vocabulary, words=(*vocabulary.words[:-2], *vocabulary.words[:-3:-1])
    )  # two changed places
    fleet.start(4)
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert not (tmp_path / "device-4" / "participation.json").exists()


def test_a_run_in_a_folder_of_the_same_name_is_another_run_to_a_device(tmp_path, vocabulary):
    names = set()
    for server in ("one", "other"):
        (tmp_path / server).mkdir()
        fleet = FleetOfDevices(
            tmp_path / server, vocabulary, count=9, run={"rounds": 1, "evaluate_every": 1}
        )
        train_run(fleet.recipe, tmp_path / server / "run", quietly, fleet.connected)
        names |= {upload["run"] for upload in fleet.link._devices[0].handler._record.uploads}
    assert len(names) == 2
    assert {name.split()[0] for name in names} == {"run"}


def test_whoever_opts_out_is_asked_in_no_round(tmp_path, vocabulary):
    fleet = FleetOfDevices(tmp_path, vocabulary, count=10, run={"rounds": 3, "evaluate_every": 3})
    diaries.opt_out(tmp_path / "device-4")
    fleet.start(4)
    trained = []
    fleet.link._devices[4].handler._program = lambda *args: trained.append(1)
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert not trained


def test_devices_without_a_server_or_a_secure_sum_are_refused(tmp_path, population):
    with pytest.raises(RecipeError, match='encoding = "modular"'):
        fleet_recipe(population, privacy={"encoding": "integer"})
    with pytest.raises(RecipeError, match="taciturn fleet serve"):
        train_run(fleet_recipe(population), tmp_path / "run", quietly)
    assert not (tmp_path / "run").exists()


def test_a_message_is_exactly_what_was_written_or_refused():
    like = {"a": np.zeros((2, 3), np.float32), "b": np.int32(0)}
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.int32(-7)}
    content = fields.arrays_to_bytes(arrays)
    found = fields.arrays_from_bytes(content, like)
    assert np.array_equal(found["a"], arrays["a"])
    assert found["b"] == -7
    for wrong in (content[:-1], content + b"\0", b""):
        with pytest.raises(ValueError, match="bytes where"):
            fields.arrays_from_bytes(wrong, like)
    assert fields.unpack_fields(fields.pack_fields(b"", b"xy"), 2) == [b"", b"xy"]
    for wrong in (b"\xff" * 8, fields.pack_fields(b"a"), fields.pack_fields(b"a", b"b", b"c"), b""):
        with pytest.raises(ValueError, match="a message"):
            fields.unpack_fields(wrong, 2)


def test_a_fleet_that_is_printed_does_not_say_who_took_part(tmp_path):
    """Its twin is made as the class was before: a dataclass that shows its fields."""
    settings = {
        "connected": None,
        "terms": None,
        "asked": 2,
        "deadline": 1.0,
        "patience": 1.0,
        "folder": tmp_path,
        "run_name": lambda: "run",
    }
    made = DeviceFleet(**settings)
    made._summed = np.array([4711])
    assert "4711" not in f"{made} {made!r} {[made]}"
    shown = dataclass(eq=False)(type("Shown", (DeviceFleet,), {}))(**settings)
    shown._summed = np.array([4711])
    assert "4711" in repr(shown)
