"""Attempts to get at one device's report, by a server, a peer or both, and to spoil a sum without
anyone noticing. Those of a server that lies about who reported are in test_survivors.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from secure_rounds import TERMS, Cohort, carried, put_together, stripped

from enrolling import AUTHORITY, NONE_DISMISSED, certificate
from taciturn.core import FailedRound
from taciturn.fleets.secure_aggregation import cells, device_side, masks, protocol, server_side
from taciturn.fleets.secure_aggregation.bit_packing import unpack
from taciturn.fleets.secure_aggregation.masks import Secret
from taciturn.fleets.secure_aggregation.messages import Roster, SealedShares
from taciturn.fleets.secure_aggregation.protocol import Refused, own_mask_key, pair_mask_key
from taciturn.fleets.secure_aggregation.stages import Stage


def test_a_report_that_arrives_after_its_device_was_given_up_stays_hidden_by_its_own_mask():
    """Bonawitz et al. 2017, §4: "the server may learn u's mask key, and then y_u arrives after
    all". The twin has no mask of its own.
    """
    cohort = Cohort(10)
    late = cohort.ids[4]
    cohort.run({Stage.MASK: {late}})
    report = cohort.devices[late].mask(
        cohort.heard[Stage.MASK][late], cohort.values[late]
    )  # on its way all the time
    np.testing.assert_array_equal(cohort.total().values, cohort.plain(set(cohort.ids) - {late}))

    answers = cohort.said[Stage.UNMASK]
    secret = put_together(cohort, late, "mask_keys", answers)
    assert (
        masks.public_key(secret) == cohort.said[Stage.ADVERTISE][late].mask_key
    )  # the server really has it
    name = cohort.cell._name
    adverts = cohort.said[Stage.ADVERTISE]
    pairs = {
        peer: pair_mask_key(secret, adverts[peer], late, name)
        for peer in cohort.ids
        if peer != late
    }
    bare = stripped(cohort, late, report, pairs)
    assert (bare == cohort.values[late]).mean() < 0.1
    assert put_together(cohort, late, "seeds", answers) is None
    with pytest.raises(Refused, match="too late"):
        cohort.cell.take_report(late, report)


UNKEYED = Secret(b"no mask")


def without_the_unkeyed(add_masks):
    return lambda total, plus, minus: add_masks(
        total, [key for key in plus if key is not UNKEYED], minus
    )


def test_the_twin_without_a_mask_of_its_own_is_broken(monkeypatch):
    monkeypatch.setattr(protocol, "own_mask_key", lambda seed, cohort: UNKEYED)
    monkeypatch.setattr(masks, "add_masks", without_the_unkeyed(masks.add_masks))
    cohort = Cohort(10)
    late = cohort.ids[4]
    cohort.run({Stage.MASK: {late}})
    report = cohort.devices[late].mask(cohort.heard[Stage.MASK][late], cohort.values[late])
    secret = put_together(cohort, late, "mask_keys", cohort.said[Stage.UNMASK])
    adverts, name = cohort.said[Stage.ADVERTISE], cohort.cell._name
    pairs = {
        peer: pair_mask_key(secret, adverts[peer], late, name)
        for peer in cohort.ids
        if peer != late
    }
    np.testing.assert_array_equal(stripped(cohort, late, report, pairs), cohort.values[late])


@pytest.fixture
def small_cells(monkeypatch):
    """Cells of five or six devices."""
    monkeypatch.setattr(cells, "MOST", 6)


def roster_of(adverts, one, own=None):
    """What a device would have to be shown if these were all adverts of the round: its cell, as far
    as there are adverts of it.
    """
    known = {advert.digest(): advert for advert in adverts}
    made_up = {1000 + number: digest for number, digest in enumerate(own or ())}
    everyone = Roster((), {advert.device: digest for digest, advert in known.items()} | made_up)
    mine = next(advert.digest() for advert in adverts if advert.device == one)
    cell = next(
        cell
        for cell in cells.cells(everyone.cohort(TERMS), everyone.digests.values())
        if mine in cell
    )
    others = (known[digest] for digest in cell if digest in known and digest != mine)
    return everyone._replace(adverts=tuple(sorted(others, key=lambda advert: advert.device)))


def test_a_server_cannot_choose_who_is_in_a_cell_with_whom(small_cells):
    cohort = Cohort(20)
    cohort.run(until=Stage.ADVERTISE)
    one = cohort.ids[0]
    roster = cohort.server.rosters()[one]
    strangers = [
        a
        for a in cohort.said[Stage.ADVERTISE].values()
        if a not in roster.adverts and a.device != one
    ]
    colluding = tuple(sorted((strangers[0], *roster.adverts[1:]), key=lambda advert: advert.device))
    with pytest.raises(Refused, match="not the devices of its cell"):
        cohort.devices[one].share(roster._replace(adverts=colluding))
    cohort.devices[one].share(roster)


def test_the_twin_that_takes_whomever_it_is_shown_is_in_a_cell_of_the_servers_choice(
    small_cells, monkeypatch
):
    cohort = Cohort(20)
    cohort.run(until=Stage.ADVERTISE)
    one, *chosen = cohort.ids[:5]
    adverts = cohort.said[Stage.ADVERTISE]
    everyone = Roster(
        tuple(adverts[peer] for peer in chosen),
        {device: advert.digest() for device, advert in adverts.items()},
    )
    with pytest.raises(Refused, match="not the devices of its cell"):
        cohort.devices[one].share(everyone)
    wanted = sorted(adverts[peer].digest() for peer in (one, *chosen))
    monkeypatch.setattr(device_side, "cells", lambda cohort, digests: [wanted])
    assert cohort.devices[one].share(everyone).shares.keys() == set(chosen)


def test_adverts_that_nobody_stands_behind_do_not_fill_a_cell(small_cells):
    """A server pads the list with digests of nothing, to steer who is in a cell: a device wants to
    see all of its adverts.
    """
    cohort = Cohort(10)
    cohort.run(until=Stage.ADVERTISE)
    one = cohort.ids[0]
    padded = roster_of(
        cohort.said[Stage.ADVERTISE].values(), one, (bytes([number]) * 32 for number in range(250))
    )
    assert len(padded.adverts) < 4
    with pytest.raises(Refused, match="not the devices of its cell"):
        cohort.devices[one].share(padded)
    cohort.devices[one].share(roster_of(cohort.said[Stage.ADVERTISE].values(), one))  # the twin


def test_one_corrupt_device_cannot_be_many():
    """With several adverts each, in rows of other devices, few corrupt ones would fill a cell that
    a server finds by trying.
    """
    cohort = Cohort(8)
    cohort.run(until=Stage.ADVERTISE)
    one, corrupt, *others = cohort.ids
    many = [cohort.member(corrupt).advertise() for _ in others]
    said = cohort.said[Stage.ADVERTISE]
    rows = dict(zip(others, (advert.digest() for advert in many), strict=True))
    rows |= {one: said[one].digest(), corrupt: said[corrupt].digest()}
    roster = Roster((said[corrupt], *many), rows)
    with pytest.raises(Refused, match="it would be there twice"):
        cohort.devices[one].share(roster)
    with pytest.raises(ValueError, match="names one twice"):
        Roster.from_bytes(roster.to_bytes())
    cohort.devices[one].share(cohort.server.rosters()[one])


def test_the_twin_that_does_not_look_at_rows_shares_with_one_that_is_there_twice(
    small_cells, monkeypatch
):
    """In another cell it has another advert: the list is longer than its devices are many, and
    bounds on the corrupt mean nothing.
    """
    cohort = Cohort(20)
    cohort.run(until=Stage.ADVERTISE)
    victim, corrupt = cohort.ids[:2]
    said, found = cohort.said[Stage.ADVERTISE], None
    while found is None:  # a server may try as often as it likes
        again = cohort.member(corrupt).advertise()
        listed = {device: advert.digest() for device, advert in said.items()} | {
            500: again.digest()
        }
        cell = next(
            one
            for one in cells.cells(Roster((), listed).cohort(TERMS), listed.values())
            if listed[victim] in one
        )
        if again.digest() in cell and listed[corrupt] not in cell:
            known = {advert.digest(): advert for advert in (*said.values(), again)}
            others = sorted(
                (known[digest] for digest in cell if digest != listed[victim]),
                key=lambda one: one.device,
            )
            found = Roster(tuple(others), listed)
    with pytest.raises(Refused, match="it would be there twice"):
        cohort.devices[victim].share(found)
    # Without that check: as if whatever row an advert stands in were its own.
    monkeypatch.setattr(device_side, "_is_in_its_row", lambda roster, advert: True)
    assert corrupt in cohort.devices[victim].share(found).shares


def test_a_device_is_not_made_its_own_peer():
    cohort = Cohort(5)
    cohort.run(until=Stage.ADVERTISE)
    one, another = cohort.ids[:2]
    again = cohort.member(one).advertise()  # as if from an earlier attempt
    said = cohort.said[Stage.ADVERTISE]
    digests = {device: advert.digest() for device, advert in said.items()} | {
        another: again.digest()
    }
    adverts = tuple(
        sorted(
            (again, *(said[device] for device in cohort.ids if device not in (one, another))),
            key=lambda one: one.device,
        )
    )
    with pytest.raises(Refused, match="it would be there twice"):
        cohort.devices[one].share(Roster(adverts, digests))


def test_devices_that_were_shown_different_cohorts_have_no_secrets_in_common():
    """A server that shows each device another list gets garbage: neither shares nor masks of the
    two fit.
    """
    cohort = Cohort(4)
    cohort.run(until=Stage.ADVERTISE)
    first, second, third, fourth = cohort.ids
    fresh = cohort.member(fourth).advertise()
    adverts = cohort.said[Stage.ADVERTISE]

    def roster_for(one, everyone):
        digests = {device: advert.digest() for device, advert in everyone.items()}
        return Roster(
            tuple(advert for device, advert in sorted(everyone.items()) if device != one), digests
        )

    other = {**adverts, fourth: fresh}
    sealed = cohort.devices[first].share(roster_for(first, adverts))
    cohort.devices[second].share(roster_for(second, other))
    name = cohort.devices[second]._cell
    delivery = SealedShares(
        name, {first: sealed.shares[second], third: bytes(94), fourth: bytes(94)}
    )
    with pytest.raises(
        Refused, match="1 devices of the cell, this one among them, have shared their secrets"
    ):
        cohort.devices[second].mask(delivery, cohort.values[second])


def test_keys_that_make_a_known_secret_are_refused_on_both_sides():
    """Points of low order: whoever agrees on a secret with them agrees on zero."""
    cohort = Cohort(4)
    bad = cohort.ids[3]
    for weak in ("mask_key", "share_key"):
        cohort.start(TERMS)
        cohort.run({Stage.ADVERTISE: {bad}}, until=Stage.ADVERTISE)
        unsigned = cohort.devices[bad].advertise()._replace(**{weak: bytes(32)}, signature=b"")
        advert = unsigned._replace(signature=cohort.keys[bad].sign(unsigned.signed_content(TERMS)))
        with pytest.raises(ValueError, match="makes no secret"):
            cohort.server.take_advert(bad, advert)
        cohort.server._adverts[bad] = advert  # a server that lets it pass
        for one, roster in cohort.server.rosters().items():
            if one != bad:
                with pytest.raises(ValueError, match="makes no secret"):
                    cohort.devices[one].share(roster)


def test_a_peer_that_copies_anothers_keys_learns_nothing_from_it():
    """It can neither read what is meant for the other nor share a mask with it that it could
    compute.
    """
    cohort = Cohort(4)
    victim, thief, *_ = cohort.ids
    for one in cohort.ids:
        advert = cohort.devices[one].advertise()
        if one == thief:
            stolen = cohort.server._adverts[victim]._replace(
                certificate=certificate(thief, cohort.keys[thief]), signature=b""
            )
            advert = stolen._replace(
                signature=cohort.keys[thief].sign(stolen.signed_content(TERMS))
            )
        cohort.server.take_advert(one, carried(advert))
    rosters = cohort.server.rosters()
    sealed = {one: cohort.devices[one].share(rosters[one]) for one in cohort.ids if one != thief}
    other = cohort.ids[2]
    for_victim, for_thief = sealed[other].shares[victim], sealed[other].shares[thief]
    device = cohort.devices[victim]
    key = device._others[other].share_key
    name = cohort.cell._name
    ends = protocol.ends_of
    assert device_side._open(key, ends=ends(name, other, victim), content=for_victim)
    assert device_side._open(key, ends=ends(name, other, victim), content=for_thief) is None
    common = cohort.devices[other]._others
    assert common[thief].mask_key != common[victim].mask_key


def test_shares_that_were_changed_swapped_or_come_from_another_round_are_not_held():
    cohort = Cohort(10)
    cohort.run(until=Stage.SHARE)
    old = cohort.cell.deliveries()[cohort.ids[0]]
    cohort.start(replace(TERMS, round=b"round 2"))
    cohort.run(until=Stage.SHARE)
    one, first, second, third, fourth, *_ = cohort.ids
    delivery = cohort.cell.deliveries()[one]
    sealed = delivery.shares
    swapped = {first: sealed[second], second: sealed[first]}
    changed = {
        third: old.shares[third],
        fourth: sealed[fourth][:-1] + bytes([sealed[fourth][-1] ^ 1]),
    }
    with pytest.raises(
        Refused,
        match=(
            "6 devices of the cell, this one among them, have shared their secrets, and 7 are"
            " needed"
        ),
    ):
        cohort.devices[one].mask(
            delivery._replace(shares=sealed | swapped | changed), cohort.values[one]
        )
    cohort.devices[one].mask(delivery._replace(shares=sealed | changed), cohort.values[one])
    assert cohort.devices[one]._held.keys() == set(cohort.ids) - {third, fourth}


def test_a_peer_whose_shares_are_garbage_and_who_goes_is_a_failed_round_and_no_wrong_sum():
    cohort = Cohort(10)
    bad = cohort.ids[2]
    cohort.run(until=Stage.ADVERTISE)
    for one, roster in cohort.server.rosters().items():
        sealed = cohort.devices[one].share(roster)
        if one == bad:
            sealed = sealed._replace(shares={peer: bytes(94) for peer in sealed.shares})
        cohort.cell.take_shares(one, sealed)
    for one, delivery in cohort.cell.deliveries().items():
        if one != bad:
            cohort.cell.take_report(one, cohort.devices[one].mask(delivery, cohort.values[one]))
    for one, survivors in cohort.cell.survivors().items():
        cohort.cell.take_signature(one, cohort.devices[one].sign(survivors))
    for one, request in cohort.cell.requests().items():
        cohort.cell.take_answer(one, cohort.devices[one].unmask(request))
    with pytest.raises(FailedRound, match="0 devices of a cell answered for one of its members"):
        cohort.cell.total()


def test_a_replay_of_a_whole_earlier_round_is_refused_at_every_stage():
    cohort = Cohort(5)
    cohort.run()
    said, heard = cohort.said, cohort.heard
    cohort.start(replace(TERMS, round=b"round 2"))
    one = cohort.ids[0]
    with pytest.raises(Refused, match="not signed by device"):
        cohort.server.take_advert(one, said[Stage.ADVERTISE][one])
    cohort.run(until=Stage.ADVERTISE)
    with pytest.raises(Refused, match="advert of this device"):
        cohort.devices[one].share(heard[Stage.SHARE][one])
    cohort.server.rosters()
    with pytest.raises(Refused, match="another round"):
        cohort.cell.take_shares(one, said[Stage.SHARE][one])

    cohort.start(replace(TERMS, round=b"round 3"))
    cohort.run(until=Stage.SHARE)
    with pytest.raises(Refused, match="another round"):
        cohort.devices[one].mask(heard[Stage.MASK][one], cohort.values[one])
    cohort.heard[Stage.MASK] = cohort.cell.deliveries()
    with pytest.raises(Refused, match="another round"):
        cohort.cell.take_report(one, said[Stage.MASK][one])
    for device in cohort.ids:
        cohort.cell.take_report(
            device,
            cohort.devices[device].mask(cohort.heard[Stage.MASK][device], cohort.values[device]),
        )
    with pytest.raises(Refused, match="another round"):
        cohort.devices[one].sign(heard[Stage.SIGN][one])
    for device, survivors in cohort.cell.survivors().items():
        cohort.cell.take_signature(device, cohort.devices[device].sign(survivors))
    with pytest.raises(Refused, match="another round"):
        cohort.devices[one].unmask(heard[Stage.UNMASK][one])
    cohort.cell.requests()
    with pytest.raises(Refused, match="another round"):
        cohort.cell.take_answer(one, said[Stage.UNMASK][one])


def test_what_the_server_sees_before_unmasking_is_the_same_whatever_is_reported():
    """Sums of masked reports of some of the devices are as uniform as single ones: only all
    together come to something.
    """
    cohort = Cohort(6, replace(TERMS, length=30_000, modulus_bits=4))
    for values in cohort.values.values():
        values[:] = 1
    cohort.run(until=Stage.MASK)
    reports = {
        one: unpack(report.packed, 30_000, 4) for one, report in cohort.said[Stage.MASK].items()
    }
    for some in (cohort.ids[:1], cohort.ids[:3], cohort.ids[1:], cohort.ids):
        counts = np.bincount(sum(reports[one] for one in some) % 16, minlength=16)
        assert abs(counts - 30_000 / 16).max() < 300  # seven standard deviations


# Adverts that are shown again, and terms that differ in the message


def shown_old_adverts():
    """Of an attempt under the same name the server knows the mask keys of three, which it said had
    gone. It shows their adverts again to devices that were not in it, and makes up what they would
    have shared. What it can take off one of these devices' reports by that.
    """
    cohort = Cohort(16)
    first, second = cohort.ids[:9], cohort.ids[9:]
    known, fresh = set(first[:3]), second[:6]
    for one in first:
        cohort.server.take_advert(one, cohort.devices[one].advertise())
    old = {one: cohort.server._adverts[one] for one in known}
    keys = {
        one: cohort.devices[one]._mask_secret for one in known
    }  # from shares that the others gave for them
    server = server_side.ServerRound(TERMS, AUTHORITY, NONE_DISMISSED)
    for one in fresh:
        server.take_advert(one, cohort.devices[one].advertise())
    server._adverts |= old
    rosters = server.rosters()
    cell = server._cells[0]
    for one, roster in rosters.items():
        if one in known:
            cell._sealed[one] = dict.fromkeys(rosters.keys() - {one}, bytes(94))
        else:
            cell.take_shares(one, cohort.devices[one].share(roster))
    victim = fresh[0]
    shown = cell.deliveries()[victim].shares
    few = SealedShares(
        cell._name,
        {peer: shown[peer] for peer in sorted(shown, key=lambda one: one not in known)[:6]},
    )
    report = cohort.devices[victim].mask(few, cohort.values[victim])
    assert unpack(report.packed, TERMS.length, TERMS.modulus_bits).any()
    return sum(
        masks.public_key(keys[one]) == old[one].mask_key for one in known & few.shares.keys()
    )


def test_a_peer_that_is_not_there_now_is_none(monkeypatch):
    """An old advert has the right signature and no device behind it that could share a secret in
    this cohort.
    """
    with pytest.raises(
        Refused,
        match=(
            "4 devices of the cell, this one among them, have shared their secrets, and 7 are"
            " needed"
        ),
    ):
        shown_old_adverts()
    monkeypatch.setattr(
        device_side,
        "_open",
        lambda key, **sealed: device_side._Shares(Secret(bytes(33)), Secret(bytes(33))),
    )  # the twin
    assert shown_old_adverts() == 3  # half of the masks that the report has


@pytest.mark.parametrize("credulous", [False, True])
def test_devices_that_agreed_to_different_messages_have_no_sum(credulous, monkeypatch):
    """They refuse each other's keys; and if they did not look, they would be in other cohorts.
    Twin: with one message there is a sum.
    """
    if credulous:
        monkeypatch.setattr(device_side, "is_signed_by", lambda key, **signed: True)
        monkeypatch.setattr(server_side, "is_signed_by", lambda key, **signed: True)
    cohort, other = Cohort(10), replace(TERMS, message=bytes([7] * 32))
    for one in cohort.ids[5:]:
        cohort.devices[one] = cohort.member(one, other)
    with pytest.raises(Refused, match="belongs to another round" if credulous else "not signed"):
        cohort.run()
    cohort.start(TERMS)
    cohort.run()
    np.testing.assert_array_equal(cohort.total().values, cohort.plain(cohort.ids))


@pytest.mark.parametrize("same", [False, True])
def test_every_key_of_a_round_depends_on_the_message(same):
    """Twin: with the same message they are the same."""
    cohort = Cohort(4)
    cohort.run(until=Stage.ADVERTISE)
    roster = cohort.server.rosters()[cohort.ids[0]]
    names = [
        roster.cohort(replace(TERMS, message=message))
        for message in (bytes(32), bytes(31 + same) + b"\1"[same:])
    ]
    secret, (first, second, *_) = masks.new_secret(), cohort.ids
    advert = cohort.said[Stage.ADVERTISE][second]
    for keys in (
        [own_mask_key(secret, name) for name in names],
        [pair_mask_key(secret, advert, first, name) for name in names],
        [masks.agree_on_key(secret, advert.share_key, b"shares" + name) for name in names],
    ):
        assert (keys[0] == keys[1]) == same
