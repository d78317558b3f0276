"""A server that lies about who reported, in every way it can: to some devices, twice, with
signatures of others, of the gone, of another cell or round. Devices sign one list and unmask under
t signatures of it, so that nothing but the sum of a cell comes to light. Each attack has a twin, in
which the check that stops it is gone, and it succeeds.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices
from secure_rounds import TERMS, Cohort, put_together, stripped

from enrolling import public
from harness import quietly
from taciturn.fleets.devices.device import NotEligible
from taciturn.fleets.secure_aggregation import cells, device_side, protocol, server_cell
from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.messages import Survivors, UnmaskRequest
from taciturn.fleets.secure_aggregation.protocol import Refused, own_mask_key, pair_mask_key
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.runs.loop import train_run

FOUR_IN_TEN = replace(TERMS, dropouts=0.4, corrupt=0.0)  # drop out: six in ten have to agree


def told(cohort, lists):
    """All lists that devices sign if each is told of those it is named with, one after the other;
    and all signatures, by list.
    """
    signatures = defaultdict(dict)
    for device, given in lists.items():
        for devices in given:
            survivors = Survivors(cohort.cell._name, frozenset(devices))
            signatures[survivors][device] = cohort.devices[device].sign(survivors)
    return signatures


def unmasked(cohort, device, survivors, signatures):
    return cohort.devices[device].unmask(UnmaskRequest(survivors.cell, dict(signatures)))


def lists_that_single_out(cohort, one, victims):
    """Who is told of which survivors, so that each of those with whom one device has masks is dead
    to enough of the others.
    """
    others, needed = [device for device in cohort.ids if device != one], cohort.cell.threshold
    dead = {device: set() for device in others}
    for victim in victims:
        for device in sorted(set(others) - {victim}, key=lambda device: len(dead[device]))[:needed]:
            dead[device].add(victim)
    return {device: frozenset(cohort.ids) - dead[device] for device in others}


def single_out(cohort, each_signs_all=False):
    """What a server takes off the report of a device, of which it tells everybody that it reported
    and of its peers that they have gone.
    """
    one, *others = cohort.ids
    cohort.run(until=Stage.SHARE)
    deliveries = cohort.cell.deliveries()
    victims = others[: cohort.cell.threshold - 1]  # the fewest with whom the device agrees to mask
    few = deliveries[one]._replace(shares={peer: deliveries[one].shares[peer] for peer in victims})
    report = cohort.devices[one].mask(few, cohort.values[one])
    for device in others:
        cohort.devices[device].mask(deliveries[device], cohort.values[device])
    lists = lists_that_single_out(cohort, one, victims)
    more = {
        device: set(lists.values()) - {devices} if each_signs_all else ()
        for device, devices in lists.items()
    }
    signatures = told(
        cohort,
        {
            device: [*(one for one in more[device] if device in one), lists[device]]
            for device in others
        },
    )
    answers = {}
    for device, devices in lists.items():
        survivors = Survivors(cohort.cell._name, devices)
        answers[device] = unmasked(cohort, device, survivors, signatures[survivors])
    return taken_off(cohort, one, victims, report, answers)


def taken_off(cohort, one, victims, report, answers):
    name, own = cohort.cell._name, cohort.said[Stage.ADVERTISE][one]
    keys = {None: own_mask_key(put_together(cohort, one, "seeds", answers), name)}
    for victim in victims:
        keys[victim] = pair_mask_key(
            put_together(cohort, victim, "mask_keys", answers), own, victim, name
        )
    return stripped(cohort, one, report, keys)


def no_signatures_needed(monkeypatch):
    """As it was before there was a list to sign."""
    monkeypatch.setattr(
        device_side, "find_signers", lambda survivors, signatures, keys: survivors.devices
    )


def test_different_survivors_for_different_devices_open_nothing():
    with pytest.raises(
        Refused,
        match=(
            r"devices of the cell, this one among them, have signed the survivors .*, and 6 are"
            r" needed"
        ),
    ):
        single_out(Cohort(10, FOUR_IN_TEN))


def test_the_twin_that_asks_for_no_signatures_gives_one_devices_report_away(monkeypatch):
    no_signatures_needed(monkeypatch)
    cohort = Cohort(10, FOUR_IN_TEN)
    np.testing.assert_array_equal(single_out(cohort), cohort.values[cohort.ids[0]])


def test_no_device_signs_two_lists():
    with pytest.raises(Refused, match="too late to sign: that is done"):
        single_out(Cohort(20, FOUR_IN_TEN), each_signs_all=True)


def test_the_twin_that_signs_whatever_it_is_told_gives_one_devices_report_away(monkeypatch):
    monkeypatch.setattr(protocol, "expect", lambda now, asked: None)
    cohort = Cohort(20, FOUR_IN_TEN)
    np.testing.assert_array_equal(
        single_out(cohort, each_signs_all=True), cohort.values[cohort.ids[0]]
    )


@pytest.mark.parametrize("corrupt", [0, 2])
def test_different_lists_give_no_second_secret_of_a_device_whoever_is_corrupt(corrupt, monkeypatch):
    """Half of a cell is told that a device reported, half that it has gone; corrupt devices sign
    both, and give everything away.
    """

    def both_secrets(terms):
        cohort = Cohort(20, terms)
        one, bad = cohort.ids[9], cohort.ids[:corrupt]
        cohort.run(until=Stage.MASK)
        everyone = frozenset(cohort.ids)
        lists = {
            device: everyone if number % 2 else everyone - {one}
            for number, device in enumerate(cohort.ids)
            if device != one
        }
        signatures = told(
            cohort, {device: [devices] for device, devices in lists.items() if device not in bad}
        )
        for device in bad:
            for survivors, signed in signatures.items():
                signed[device] = cohort.keys[device].sign(survivors.signed_content())
        answers = {}
        for device, devices in lists.items():
            survivors = Survivors(cohort.cell._name, devices)
            if device not in bad:
                answers[device] = unmasked(cohort, device, survivors, signatures[survivors])
        return [
            put_together(cohort, one, kind, answers, bad) is not None
            for kind in ("seeds", "mask_keys")
        ]

    with pytest.raises(Refused, match="have signed the survivors"):
        both_secrets(TERMS)
    for side in (
        device_side,
        server_cell,
    ):  # the twin: of 20 devices 9 are enough, and 2 · 9 is no more than 20
        monkeypatch.setattr(side, "threshold", lambda **cohort: 9)
    assert both_secrets(TERMS) == [True, True]


@pytest.mark.parametrize("twin", [False, True])
def test_a_device_that_is_not_asked_to_sign_is_not_singled_out_either(twin, monkeypatch):
    """It has masks with as few as it agrees to; of those all are left out of the list that the
    others sign, and it is on it. Twin: of ten devices five are enough, and 2t is no more than n.
    """
    if twin:
        for side in (device_side, server_cell):
            monkeypatch.setattr(side, "threshold", lambda **cohort: 5)
    cohort = Cohort(10, FOUR_IN_TEN)
    cohort.run(until=Stage.SHARE)
    one, *others = cohort.ids
    deliveries, few = cohort.cell.deliveries(), others[: cohort.cell.threshold - 1]
    report = cohort.devices[one].mask(
        deliveries[one]._replace(shares={peer: deliveries[one].shares[peer] for peer in few}),
        cohort.values[one],
    )
    for device in others:
        cohort.devices[device].mask(deliveries[device], cohort.values[device])
    survivors = Survivors(cohort.cell._name, frozenset(cohort.ids) - {*few})
    signing = survivors.devices - {one}
    if not twin:
        with pytest.raises(
            Refused,
            match="5 devices of the cell, this one among them, have reported, and 6 are needed",
        ):
            told(cohort, {device: [survivors.devices] for device in signing})
        return
    signatures = told(cohort, {device: [survivors.devices] for device in signing})[survivors]
    answers = {device: unmasked(cohort, device, survivors, signatures) for device in signing}
    np.testing.assert_array_equal(taken_off(cohort, one, few, report, answers), cohort.values[one])


# Signatures that are none for these survivors


@pytest.fixture
def lied_to():
    """A device that was told of another list than the others, which lacks one of them; and what
    these have signed.
    """
    cohort = Cohort(10)
    cohort.run(until=Stage.MASK)
    one, other = cohort.ids[:2]
    everyone = frozenset(cohort.ids)
    honest = told(cohort, {device: [everyone] for device in cohort.ids if device != one})
    (theirs,) = honest.values()
    survivors = Survivors(cohort.cell._name, everyone - {other})
    cohort.devices[one].sign(survivors)
    return cohort, one, survivors, theirs


@pytest.mark.parametrize("twin", [False, True])
def test_signatures_of_another_list_do_not_count(lied_to, twin, monkeypatch):
    """Twin: what is signed does not say who survived."""
    cohort, one, survivors, theirs = lied_to
    if not twin:
        with pytest.raises(
            Refused, match="1 devices of the cell, this one among them, have signed"
        ):
            unmasked(cohort, one, survivors, theirs)
        return
    signed = Survivors.signed_content
    monkeypatch.setattr(
        Survivors,
        "signed_content",
        lambda survivors: signed(survivors._replace(devices=frozenset(cohort.ids))),
    )
    answer = unmasked(cohort, one, survivors, theirs)
    assert answer.mask_keys.keys() == {cohort.ids[1]}  # of a device that has reported


@pytest.mark.parametrize("twin", [False, True])
def test_signatures_under_the_name_of_another_device_do_not_count(lied_to, twin, monkeypatch):
    """One corrupt device signs for all. Twin: any enrolled device's signature will do."""
    cohort, one, survivors, _ = lied_to
    corrupt = cohort.keys[cohort.ids[2]]
    forged = dict.fromkeys(survivors.devices, corrupt.sign(survivors.signed_content()))
    if twin:
        verified = device_side.is_signed_by

        def by_anybody(key, **signed):
            return any(verified(public(one), **signed) for one in cohort.keys.values())

        monkeypatch.setattr(device_side, "is_signed_by", by_anybody)
        assert unmasked(cohort, one, survivors, forged).seeds
        return
    with pytest.raises(Refused, match="2 devices of the cell"):  # the corrupt one itself
        unmasked(cohort, one, survivors, forged)


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("where", ["dropped out", "in no round"])
def test_signatures_of_whoever_did_not_survive_do_not_count(where, twin, monkeypatch):
    """Corrupt devices that are not in the sum sign for a list under which honest ones were made out
    to be gone. Twin: all signatures count, and a device unmasks under a list that it and corrupt
    devices alone have signed.
    """
    cohort = Cohort(12)
    corrupt = cohort.ids[6:]
    if where == "in no round":
        cohort.start(TERMS)
        for one in corrupt:
            del cohort.devices[one]
    cohort.run({Stage.MASK: set(corrupt)} if where == "in no round" else None, until=Stage.SHARE)
    monkeypatch.setattr(cohort.cell, "threshold", 4)
    deliveries = cohort.cell.deliveries()
    one, *rest = cohort.ids[:6]
    for device in (one, *rest):
        cohort.devices[device]._threshold = 4
        cohort.devices[device].mask(deliveries[device], cohort.values[device])
    survivors = Survivors(
        cohort.cell._name, frozenset((one, *rest[:3]))
    )  # two honest devices are made out to be gone
    cohort.devices[one].sign(survivors)
    signatures = {
        device: cohort.keys[device].sign(survivors.signed_content()) for device in corrupt
    }
    if not twin:
        with pytest.raises(
            Refused, match="1 devices of the cell, this one among them, have signed"
        ):
            unmasked(cohort, one, survivors, signatures)
        return

    def anybody(survivors, signatures, keys):
        signed = survivors.signed_content()
        return {
            one
            for one, signature in signatures.items()
            if device_side.is_signed_by(public(cohort.keys[one]), signed, signature)
        }

    monkeypatch.setattr(device_side, "find_signers", anybody)
    assert unmasked(cohort, one, survivors, signatures).mask_keys.keys() >= set(rest[3:])


@pytest.mark.parametrize("twin", [False, True])
def test_signatures_of_another_round_do_not_count(twin, monkeypatch):
    """The same devices survived an earlier round, and have signed so. Twin: what is signed does not
    say of which cell and round.
    """
    if twin:
        signed = Survivors.signed_content
        monkeypatch.setattr(
            Survivors,
            "signed_content",
            lambda survivors: signed(survivors._replace(cell=bytes(32))),
        )
    cohort = Cohort(10)
    gone = cohort.ids[9]
    cohort.run({Stage.MASK: {gone}}, until=Stage.SIGN)
    old = cohort.said[Stage.SIGN]
    cohort.start(replace(TERMS, round=b"round 2"))
    cohort.run(until=Stage.MASK)
    one = cohort.ids[0]
    survivors = Survivors(
        cohort.cell._name, frozenset(cohort.ids) - {gone}
    )  # which has reported this time
    cohort.devices[one].sign(survivors)
    if twin:
        assert unmasked(cohort, one, survivors, old).mask_keys.keys() == {gone}
        return
    with pytest.raises(Refused, match="1 devices of the cell, this one among them, have signed"):
        unmasked(cohort, one, survivors, old)


@pytest.mark.parametrize("twin", [False, True])
def test_what_belongs_to_another_cell_is_not_signed(twin, monkeypatch):
    """A list of a cell's devices under the name of another cell. Twin: devices do not look at the
    name, and have signed for both.
    """
    monkeypatch.setattr(cells, "MOST", 6)
    cohort = Cohort(12)
    for one in cohort.ids:
        cohort.server.take_advert(one, cohort.devices[one].advertise())
    for device, roster in cohort.server.rosters().items():
        cell = next(cell for cell in cohort.server._cells if device in cell.adverts)
        cell.take_shares(device, cohort.devices[device].share(roster))
    first, second = cohort.server._cells
    for cell in (first, second):
        for device, delivery in cell.deliveries().items():
            cell.take_report(device, cohort.devices[device].mask(delivery, cohort.values[device]))
    one = min(first.adverts)
    elsewhere = Survivors(second._name, frozenset(first.adverts))
    if twin:
        monkeypatch.setattr(protocol, "check_cell", lambda own, theirs: None)
        assert cohort.devices[one].sign(elsewhere)
        return
    with pytest.raises(Refused, match="another cell"):
        cohort.devices[one].sign(elsewhere)
    assert cohort.devices[one].sign(first.survivors()[one])


@pytest.mark.parametrize("twin", [False, True])
def test_no_smaller_sum_than_of_t_reports_is_opened_even_if_all_agree(twin, monkeypatch):
    """A server tells everybody the same small list. Twin: devices sign lists of any length, and two
    reports come to light as a sum.
    """
    cohort = Cohort(10)
    cohort.run(until=Stage.MASK)
    two = frozenset(cohort.ids[:2])
    if not twin:
        for device in two:
            with pytest.raises(
                Refused,
                match="2 devices of the cell, this one among them, have reported, and 7 are needed",
            ):
                cohort.devices[device].sign(Survivors(cohort.cell._name, two))
        return
    monkeypatch.setattr(DeviceRound, "_check_enough", lambda device, devices, done: None)
    signatures = told(cohort, {device: [two] for device in two})
    ((survivors, theirs),) = signatures.items()
    assert all(unmasked(cohort, device, survivors, theirs).seeds.keys() == two for device in two)


def test_the_smallest_sum_has_more_than_half_of_the_honest_devices():
    """t − c of them at least, by 2t > n + c, in every cell of every round that is allowed."""
    for cohort in (2, 3, 5, 10, 57, 100, 200, 201, 399, 1000, 6500):
        for dropouts, corrupt in ((0.0, 0.0), (0.1, 0.05), (0.3, 0.05), (0.3, 0.1), (0.2, 0.2)):
            size = cohort // -(-cohort // cells.MOST)
            bad = cells.colluders(cohort, size, corrupt)
            try:
                needed = cells.threshold(cohort, size, dropouts, corrupt)
            except ValueError:
                continue
            assert 2 * needed > size + bad
            assert 2 * (needed - bad) > size - bad


# On a device, over a restart


@pytest.mark.parametrize("restarted", [False, True])
def test_a_device_signs_one_list_in_a_round_over_a_crash_too(tmp_path, vocabulary, restarted):
    """Its part in a round is in its memory alone, and it answers to the round's name no second
    time. Twin: while it runs, it signs.
    """
    questions = {}
    fleet = FleetOfDevices(tmp_path, vocabulary, count=9, run={"rounds": 1, "evaluate_every": 1})
    ask = fleet.link.ask

    def noted(kind, contents, *args, **settings):
        questions[kind] = contents.get(0, b"") + settings.get("shared", b"")
        if kind == Stage.SIGN.question and restarted:
            fleet.start(0)
        answers = ask(kind, contents, *args, **settings)
        assert kind != Stage.SIGN.question or (0 in answers) != restarted
        return answers

    fleet.link.ask = noted
    train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    device = fleet.link._devices[0].handler
    with pytest.raises(
        (ValueError, Refused), match="is not in a round" if restarted else "too late to sign"
    ):
        device(Stage.SIGN.question, questions[Stage.SIGN.question])
    with pytest.raises(NotEligible, match="names of attempts rise"):
        device(Stage.ADVERTISE.question, questions[Stage.ADVERTISE.question])
