"""Devices that break the protocol of a secure sum: who they are is found out and noted in private,
and they are left out from then on.
"""

import json
import logging

import pytest
from fleet_of_devices import FleetOfDevices
from secure_rounds import Cohort

from harness import mostly_slow, quietly
from taciturn.core import FailedRound
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation import masks, shamir
from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.server_cell import blame_for_secrets, blame_for_shares
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.runs.loop import resume_run, train_run


def lying_about_its_seed(advertise):
    """The commitment is to another seed than the one whose shares are sent."""

    def lying(device):
        right, device._seed = device._seed, masks.new_secret()
        advert = advertise(device)
        device._seed = right
        return advert

    return lying


# What the server can tell from shares


def report_and_sign(cohort):
    for one, delivery in cohort.cell.deliveries().items():
        cohort.cell.take_report(one, cohort.devices[one].mask(delivery, cohort.values[one]))
    for one, survivors in cohort.cell.survivors().items():
        cohort.cell.take_signature(one, cohort.devices[one].sign(survivors))


def one_liar(cohort, liar, stage, changed, gone=None):
    """A whole round, in which what the liar sends in a stage is changed."""
    cohort.run(gone, until=Stage.ADVERTISE if stage == Stage.SHARE else Stage.SIGN)
    if stage == Stage.SHARE:
        for one, roster in cohort.server.rosters().items():
            said = cohort.devices[one].share(roster)
            cohort.cell.take_shares(one, changed(said) if one == liar else said)
        report_and_sign(cohort)
    for one, request in cohort.cell.requests().items():
        said = cohort.devices[one].unmask(request)
        cohort.cell.take_answer(
            one, changed(said) if one == liar and stage == Stage.UNMASK else said
        )


@pytest.mark.parametrize("count", [6, 10, 30])
def test_a_seed_that_is_not_what_was_committed_to_is_its_owners_fault(count):
    cohort = Cohort(count)
    liar = cohort.ids[3]
    one = cohort.devices[liar]
    one.advertise = lambda: lying_about_its_seed(DeviceRound.advertise)(one)
    cohort.run()
    with pytest.raises(FailedRound, match="do not fit together"):
        cohort.total()
    assert cohort.cell.offenders.keys() == {liar}


@pytest.mark.parametrize("garbled", [1, 2, 4])
def test_nor_does_it_help_to_send_some_shares_that_fit_nothing(garbled, monkeypatch):
    """So that the shares do not even fit together."""
    cohort = Cohort(10)
    liar, whole = cohort.ids[3], shamir.share
    one = cohort.devices[liar]
    one.advertise = lambda: lying_about_its_seed(DeviceRound.advertise)(one)
    cohort.run(until=Stage.ADVERTISE)
    for device, roster in cohort.server.rosters().items():
        with monkeypatch.context() as cut:
            if device == liar:
                cut.setattr(
                    shamir,
                    "share",
                    lambda secret, **sizes: (
                        [bytes(33)] * garbled + whole(secret, **sizes)[garbled:]
                    ),
                )
            cohort.cell.take_shares(device, cohort.devices[device].share(roster))
    report_and_sign(cohort)
    for device, request in cohort.cell.requests().items():
        cohort.cell.take_answer(device, cohort.devices[device].unmask(request))
    with pytest.raises(FailedRound, match="do not fit together"):
        cohort.total()
    assert cohort.cell.offenders.keys() == {liar}


@pytest.mark.parametrize("to", [2, 5, 9])
def test_shares_that_do_not_open_are_the_fault_of_who_sealed_them(to):
    cohort = Cohort(10)
    liar = cohort.ids[2]

    def garbage(sealed):
        unreadable = list(sealed.shares)[:to]
        return sealed._replace(shares=sealed.shares | dict.fromkeys(unreadable, bytes(94)))

    one_liar(cohort, liar, Stage.SHARE, garbage)
    try:
        cohort.total()
    except FailedRound:
        assert to > 3
    assert cohort.cell.offenders.keys() == {liar}


@pytest.mark.parametrize("wrong", [bytes(33), None], ids=["wrong", "missing"])
def test_shares_of_all_others_that_are_wrong_or_missing_are_the_fault_of_who_held_them(wrong):
    """The sum is right nevertheless."""
    cohort = Cohort(10)
    liar = cohort.ids[0]  # among those that are tried first

    def garbage(answer):
        return answer._replace(seeds=dict.fromkeys(answer.seeds, wrong) if wrong else {})

    one_liar(cohort, liar, Stage.UNMASK, garbage)
    assert (cohort.total().values == cohort.plain(cohort.ids)).all()
    assert cohort.cell.offenders.keys() == {liar}


@pytest.mark.parametrize("count", mostly_slow([10, 60], 10))
def test_one_who_is_wrong_about_one_other_spoils_nothing_and_frames_nobody(count):
    """Also where one share more came in than it takes."""
    cohort = Cohort(count)
    liar, framed, *others = cohort.ids
    cohort.run(until=Stage.SIGN)
    requests = cohort.cell.requests()
    needed = cohort.cell.threshold
    for one in (liar, *others[: needed + 1], framed):
        answer = cohort.devices[one].unmask(requests[one])
        if one == liar:
            answer = answer._replace(seeds=answer.seeds | {framed: bytes(33)})
        cohort.cell.take_answer(one, answer)
    assert (cohort.total().values == cohort.plain(cohort.ids)).all()
    assert not cohort.cell.offenders
    assert cohort.cell._unfit == {(liar, framed)}


def test_two_who_answer_wrongly_spoil_nothing_and_are_both_found():
    cohort = Cohort(10)
    liars = set(cohort.ids[2:7:4])
    cohort.run(until=Stage.SIGN)
    for one, request in cohort.cell.requests().items():
        answer = cohort.devices[one].unmask(request)
        if one in liars:
            answer = answer._replace(seeds=dict.fromkeys(answer.seeds, bytes(33)))
        cohort.cell.take_answer(one, answer)
    assert (cohort.total().values == cohort.plain(cohort.ids)).all()
    assert cohort.cell.offenders.keys() == liars


@pytest.mark.parametrize("stage", [Stage.SHARE, Stage.MASK, Stage.UNMASK])
def test_nobody_is_blamed_for_dropping_out_or_for_being_honest(stage):
    for share in (0.0, 0.3):
        cohort = Cohort(10)
        cohort.run({stage: cohort.gone(share)})
        cohort.total()
        assert not cohort.cell.offenders
    cohort = Cohort(10)
    cohort.run({stage: cohort.gone(0.5)} if stage == Stage.UNMASK else None)
    if stage == Stage.UNMASK:
        with pytest.raises(FailedRound, match="are needed to remove a mask"):
            cohort.total()
    assert not cohort.cell.offenders


def test_fewer_than_may_work_together_frame_nobody():
    """One share that does not fit is the fault of one of two, and nobody knows of whom."""
    assert blame_for_shares([], 2) == []
    assert blame_for_shares([(1, 2)], 2) == []
    assert blame_for_shares([(1, 9), (2, 9)], 3) == []
    assert blame_for_shares([(1, 9), (2, 9), (3, 9), (1, 8)], 3) == [9]
    assert blame_for_shares([(9, 1), (9, 2), (9, 3), (8, 1), (8, 2), (8, 3)], 3) in ([8, 9], [9, 8])
    honest = range(10, 20)
    both = [(one, liar) for one in honest for liar in (1, 2)]
    assert set(blame_for_shares(both, 2)) == {
        1,
        2,
    }  # though each of the honest ones has two such shares
    assert blame_for_secrets([3], range(9)) == [3]
    assert blame_for_secrets([3, 4, 5], range(9)) == [3, 4, 5]
    assert blame_for_secrets(range(4), range(9)) == []


# What the fleet does about it


@pytest.fixture
def with_a_liar(tmp_path, vocabulary, monkeypatch):
    """Device 2 commits to another seed than it has, whenever it is asked."""
    honest = DeviceRound.advertise
    lying = lying_about_its_seed(honest)
    monkeypatch.setattr(
        DeviceRound, "advertise", lambda one: (lying if one._device == 2 else honest)(one)
    )

    def made(count, **sections):
        sections = {"run": {"rounds": 3, "evaluate_every": 3}} | sections
        fleet, asked = FleetOfDevices(tmp_path, vocabulary, count=count, **sections), []
        ask = fleet.link.ask

        def noted(kind, contents, *args, **settings):
            asked.append((kind, set(contents)))
            return ask(kind, contents, *args, **settings)

        fleet.link.ask = noted
        return fleet, asked

    return made


def test_a_device_that_breaks_the_protocol_is_left_out_after_the_first_time(
    with_a_liar, tmp_path, caplog
):
    fleet, asked = with_a_liar(10)
    with caplog.at_level(logging.INFO, "taciturn.fleet"):
        finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases == 3
    adverts = [who for kind, who in asked if kind == Stage.ADVERTISE.question]
    assert sum(2 in who for who in adverts) <= 1
    assert len(adverts) <= 4
    assert "device 2" not in caplog.text
    public = [path for path in (tmp_path / "run").iterdir() if path.is_file()]
    assert not any(b"device 2:" in path.read_bytes() for path in public)


def test_it_stays_left_out_after_a_crash_and_who_it_is_stands_in_private_notes_alone(
    with_a_liar, tmp_path
):
    """There are just as many as are asked: without it the run waits for more, and is told how many
    broke the protocol and not who.
    """
    fleet, asked = with_a_liar(9)
    run = tmp_path / "run"
    told = (
        r"8 devices are present that may take part, 9 are needed.*; 1 devices broke the protocol"
        r" and are left out"
    )
    with pytest.raises(LinkError, match=told):
        train_run(fleet.recipe, run, quietly, fleet.connected)
    with pytest.raises(LinkError, match=told):
        resume_run(run, quietly, fleet.connected)
    assert sum(kind == Stage.ADVERTISE.question for kind, _ in asked) == 1
    notes = run / "private" / "rounds"
    assert "unmask: device 2: " in (notes / "refused.log").read_text()
    assert json.loads((notes / "left-out.json").read_text()) == [2]
    assert all(path.stat().st_mode & 0o077 == 0 for path in notes.iterdir())


def test_the_twin_that_blames_nobody_asks_it_every_time(with_a_liar, tmp_path, monkeypatch):
    monkeypatch.setattr(ServerRound, "offenders", {})
    fleet, asked = with_a_liar(9)
    with pytest.raises(LinkError, match="rounds have failed"):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert sum(kind == Stage.ADVERTISE.question and 2 in who for kind, who in asked) > 1


def test_whoever_is_one_too_many_has_broken_nothing(tmp_path, vocabulary):
    fleet = FleetOfDevices(
        tmp_path,
        vocabulary,
        count=9,
        run={"rounds": 3, "evaluate_every": 3},
        fleet={"most_reports": 8},
    )
    finished = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    assert finished.guarantee.releases == 3
