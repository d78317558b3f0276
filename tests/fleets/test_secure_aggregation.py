"""A secure sum is the sum, bit for bit, whoever drops out when; and devices refuse what would give
a report away. Each refusal has a twin: the same request without its fault is answered.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from secure_rounds import STAGES, TERMS, Cohort

from taciturn.core import FailedRound
from taciturn.fleets.secure_aggregation import masks
from taciturn.fleets.secure_aggregation.bit_packing import unpack
from taciturn.fleets.secure_aggregation.messages import (
    MaskedReport,
    Roster,
    SealedShares,
    Unmasking,
)
from taciturn.fleets.secure_aggregation.protocol import Refused, own_mask_key
from taciturn.fleets.secure_aggregation.stages import Stage


@pytest.mark.parametrize("bits", [1, 8, 16, 17, 26, 32])
def test_the_sum_is_the_sum_bit_for_bit(bits):
    cohort = Cohort(7, replace(TERMS, modulus_bits=bits), seed=bits)
    cohort.run()
    total = cohort.total()
    assert total.devices == cohort.ids
    assert total.values.dtype == np.uint32
    np.testing.assert_array_equal(total.values, cohort.plain(cohort.ids))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stage", STAGES)
def test_three_in_ten_may_die_at_any_stage(stage, seed):
    cohort = Cohort(20, seed=seed)
    gone = cohort.gone(0.3, seed)
    cohort.run({stage: gone})
    total = cohort.total()
    reported = set(cohort.ids) - (
        gone if stage not in (Stage.SIGN, Stage.UNMASK) else set()
    )  # who dies after reporting is in the sum
    assert set(total.devices) == reported
    np.testing.assert_array_equal(total.values, cohort.plain(reported))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(0, 2**32), st.data())
def test_whoever_dies_when_the_sum_is_right_or_there_is_none(count, seed, data):
    cohort = Cohort(count, replace(TERMS, length=5), seed=seed)
    gone = {stage: data.draw(st.sets(st.sampled_from(cohort.ids), max_size=2)) for stage in STAGES}
    try:
        cohort.run(gone)
        total = cohort.total()
    except (FailedRound, Refused):  # a device refuses where too few are left
        there = set(cohort.ids) - gone[Stage.ADVERTISE]
        lost = gone[Stage.SHARE] | gone[Stage.MASK] | gone[Stage.SIGN] | gone[Stage.UNMASK]
        assert len(there) < 2 or len(there & lost) > int(0.3 * len(there) + 1e-9)
        return
    reported = set(cohort.ids) - gone[Stage.ADVERTISE] - gone[Stage.SHARE] - gone[Stage.MASK]
    assert set(total.devices) == reported
    np.testing.assert_array_equal(total.values, cohort.plain(reported))


def test_more_drop_outs_than_stated_are_a_failed_round():
    cohort = Cohort(20)
    cohort.run({Stage.UNMASK: cohort.gone(0.3)})
    cohort.total()
    cohort.start(TERMS)
    cohort.run({Stage.UNMASK: cohort.gone(0.4)})
    with pytest.raises(
        FailedRound, match="12 devices of a cell answered for one of its members, and 14 are needed"
    ):
        cohort.total()


@pytest.mark.parametrize("stage", STAGES[1:4])
def test_too_few_devices_are_a_failed_cell(stage):
    cohort = Cohort(8)
    cohort.run({stage: cohort.gone(0.4)}, until=stage)
    after = {
        Stage.SHARE: cohort.cell.deliveries,
        Stage.MASK: cohort.cell.survivors,
        Stage.SIGN: cohort.cell.requests,
    }
    with pytest.raises(FailedRound, match=r"5 devices of a cell have .*, and 6 are needed"):
        after[stage]()


def test_answers_may_still_come_after_there_were_too_few():
    cohort = Cohort(10)
    cohort.run({Stage.UNMASK: set(cohort.ids[:5])})
    with pytest.raises(FailedRound, match="are needed to remove a mask"):
        cohort.total()
    for one in cohort.ids[:5]:
        cohort.cell.take_answer(one, cohort.devices[one].unmask(cohort.heard[Stage.UNMASK][one]))
    np.testing.assert_array_equal(cohort.total().values, cohort.plain(cohort.ids))


def test_a_device_whose_shares_are_wrong_spoils_nothing():
    cohort = Cohort(10)
    cohort.run(until=Stage.SIGN)
    requests = cohort.cell.requests()
    for number, (one, request) in enumerate(requests.items()):
        answer = cohort.devices[one].unmask(request)
        if number == 4:
            answer = answer._replace(seeds={peer: bytes(33) for peer in answer.seeds})
        cohort.cell.take_answer(one, answer)
    np.testing.assert_array_equal(cohort.total().values, cohort.plain(cohort.ids))


def test_shares_that_all_are_wrong_are_a_failed_round_and_no_wrong_sum():
    cohort = Cohort(5)
    cohort.run(until=Stage.SIGN)
    for one, request in cohort.cell.requests().items():
        answer = cohort.devices[one].unmask(request)
        cohort.cell.take_answer(
            one, answer._replace(seeds={peer: bytes(33) for peer in answer.seeds})
        )
    with pytest.raises(FailedRound, match="do not fit together"):
        cohort.total()


def masked(cohort, one):
    return unpack(
        cohort.said[Stage.MASK][one].packed, cohort.terms.length, cohort.terms.modulus_bits
    )


def looks_uniform(values, bits):
    return stats.chisquare(np.bincount(values, minlength=2**bits)).pvalue > 1e-6


def without(values, keys_plus, keys_minus, bits):
    words = values.astype(masks.words(bits))
    masks.add_masks(words, keys_minus, keys_plus)
    return (words & words.dtype.type(2**bits - 1)).astype(np.uint32)


@pytest.mark.parametrize("bits", [3, 8])
def test_a_masked_report_is_uniform_and_each_kind_of_mask_is_enough_alone(bits):
    cohort = Cohort(4, replace(TERMS, modulus_bits=bits, length=40_000))
    one = cohort.ids[1]
    cohort.values[one][:] = 5
    cohort.run(until=Stage.SHARE)
    device = cohort.devices[one]
    own = own_mask_key(device._seed, device._cell)
    pairs = {peer: common.mask_key for peer, common in device._others.items()}
    cohort.said[Stage.MASK] = {one: device.mask(cohort.cell.deliveries()[one], cohort.values[one])}
    report = masked(cohort, one)
    plus = [key for peer, key in pairs.items() if one < peer]
    minus = [key for peer, key in pairs.items() if one > peer]
    assert looks_uniform(report, bits)
    assert looks_uniform(without(report, [own], [], bits), bits)
    assert looks_uniform(without(report, plus, minus, bits), bits)
    bare = without(report, [own, *plus], minus, bits)  # the twin: without its masks
    np.testing.assert_array_equal(bare, cohort.values[one])
    assert not looks_uniform(bare, bits)


def test_two_rounds_with_the_same_values_have_nothing_in_common():
    cohort = Cohort(3, replace(TERMS, length=2000, modulus_bits=8))
    cohort.run(until=Stage.MASK)
    first = {one: masked(cohort, one) for one in cohort.ids}
    cohort.start(replace(cohort.terms, round=b"round 2"))
    cohort.run(until=Stage.MASK)
    for one in cohort.ids:
        assert looks_uniform((first[one] - masked(cohort, one)) % 256, 8)


def test_masks_cost_two_bytes_of_stream_where_that_is_enough():
    assert masks.words(16) == np.uint16
    assert masks.words(17) == np.uint32


@pytest.fixture
def sharing():
    cohort = Cohort(10)
    cohort.run(until=Stage.ADVERTISE)
    one = cohort.ids[3]
    return cohort, cohort.devices[one], cohort.server.rosters()[one]


def test_a_cell_from_which_somebody_is_left_out_is_refused(sharing):
    _, device, roster = sharing
    with pytest.raises(Refused, match="not the devices of its cell"):
        device.share(roster._replace(adverts=roster.adverts[1:]))
    assert len(device.share(roster).shares) == 9


def test_a_list_without_the_device_itself_is_refused(sharing):
    cohort, device, roster = sharing
    own = next(
        advert.digest()
        for advert in cohort.said[Stage.ADVERTISE].values()
        if advert not in roster.adverts
    )
    with pytest.raises(Refused, match="advert of this device"):
        device.share(
            roster._replace(
                digests={row: digest for row, digest in roster.digests.items() if digest != own}
            )
        )
    device.share(roster)


def test_keys_that_the_peer_did_not_sign_are_refused(sharing):
    _, device, roster = sharing
    forged = roster.adverts[0]._replace(mask_key=masks.public_key(masks.new_secret()))
    with pytest.raises(Refused, match="not signed by it for this round"):
        device.share(with_advert(roster, forged))
    device.share(roster)


def with_advert(roster, advert):
    """The first of the adverts replaced, in the list of all as well."""
    first = roster.adverts[0].device
    digests = {row: digest for row, digest in roster.digests.items() if row != first} | {
        advert.device: advert.digest()
    }
    return roster._replace(digests=digests, adverts=(advert, *roster.adverts[1:]))


def test_keys_signed_for_another_round_or_recipe_are_refused(sharing):
    cohort, device, roster = sharing
    peer = roster.adverts[0].device
    for other in (
        {"round": b"round 2"},
        {"fingerprint": b"another"},
        {"modulus_bits": 19},
        {"corrupt": 0.0},
    ):
        advert = cohort.member(peer, replace(TERMS, **other)).advertise()
        with pytest.raises(Refused, match="not signed by it for this round"):
            device.share(with_advert(roster, advert))
    fresh = cohort.member(peer).advertise()  # the twin: the same for this round
    device.share(with_advert(roster, fresh))


def test_a_cohort_smaller_or_larger_than_the_terms_say_is_refused():
    for count, least, most in ((5, 6, 9), (10, 6, 9), (7, 6, 9)):
        cohort = Cohort(count, replace(TERMS, least=least, most=most))
        digests = {number: device.advertise().digest() for number, device in cohort.devices.items()}
        with pytest.raises(
            Refused,
            match="not the devices" if count == 7 else f"{count} devices are not between 6 and 9",
        ):
            cohort.devices[cohort.ids[0]].share(
                Roster((), digests)
            )  # a cohort of the right size gets to the next check


@pytest.fixture
def delivered():
    cohort = Cohort(10)
    cohort.run(until=Stage.SHARE)
    one = cohort.ids[3]
    return cohort, cohort.devices[one], cohort.cell.deliveries()[one], cohort.values[one]


def test_shares_from_too_few_are_refused(delivered):
    _, device, delivery, values = delivered
    few = dict(list(delivery.shares.items())[:5])
    with pytest.raises(
        Refused,
        match=(
            "6 devices of the cell, this one among them, have shared their secrets, and 7 are"
            " needed"
        ),
    ):
        device.mask(delivery._replace(shares=few), values)
    device.mask(delivery, values)


def test_shares_from_a_stranger_are_refused(delivered):
    cohort, device, delivery, values = delivered
    for stranger in (1, cohort.ids[3]):
        with pytest.raises(Refused, match="which is not in this cell"):
            device.mask(delivery._replace(shares={**delivery.shares, stranger: bytes(94)}), values)
    device.mask(delivery, values)


def test_a_delivery_of_another_round_is_refused(delivered):
    _, device, delivery, values = delivered
    with pytest.raises(Refused, match="another round"):
        device.mask(SealedShares(bytes(32), delivery.shares), values)
    device.mask(delivery, values)


def test_values_that_are_no_report_are_an_error_and_use_no_mask(delivered):
    _, device, delivery, values = delivered
    for wrong in (
        values.astype(np.int64),
        values[:-1],
        values.astype(np.float32) * np.nan,
        values | 2**20,
    ):
        with pytest.raises(ValueError, match="report"):
            device.mask(delivery, wrong)
    device.mask(delivery, values)


ONE, GONE = 3, 5  # places in the cohort: of the device that is asked, and of one that has gone


def eight_of_ten(until, question):
    cohort = Cohort(10)
    cohort.run({Stage.MASK: {cohort.ids[0], cohort.ids[GONE]}}, until=until)
    one = cohort.ids[ONE]
    return cohort, cohort.devices[one], question(cohort.cell)[one]


@pytest.fixture
def reported():
    return eight_of_ten(Stage.MASK, lambda cell: cell.survivors())


FAULTS = {
    "this device has reported, and is not listed so": lambda ids, alive: alive - {ids[ONE]},
    "6 devices of the cell, this one among them, have reported, and 7 are needed": (
        lambda ids, alive: alive - {*ids[1:3]}
    ),
    "device 77 shared no secret with this one": lambda ids, alive: alive | {77},
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_lists_that_would_give_a_report_away_are_not_signed(reported, sentence):
    cohort, device, survivors = reported
    with pytest.raises(Refused, match=sentence):
        device.sign(survivors._replace(devices=FAULTS[sentence](cohort.ids, survivors.devices)))
    assert device.sign(survivors)


def test_lists_of_another_round_are_not_signed(reported):
    _, device, survivors = reported
    with pytest.raises(Refused, match="belongs to another round"):
        device.sign(survivors._replace(cell=bytes(32)))
    assert device.sign(survivors)


@pytest.fixture
def asked():
    return eight_of_ten(Stage.SIGN, lambda cell: cell.requests())


def test_a_device_answers_for_each_of_its_cell_with_one_of_its_secrets(asked):
    cohort, device, request = asked
    answer = device.unmask(request)
    assert answer.mask_keys.keys() == {cohort.ids[0], cohort.ids[5]}
    assert answer.seeds.keys() == set(cohort.ids) - answer.mask_keys.keys()


def test_signatures_of_another_round_are_refused(asked):
    _, device, request = asked
    with pytest.raises(Refused, match="belongs to another round"):
        device.unmask(request._replace(cell=bytes(32)))
    assert device.unmask(request).seeds


def test_there_is_no_second_answer(asked):
    _, device, request = asked
    device.unmask(request)
    with pytest.raises(Refused, match="too late to unmask"):
        device.unmask(request)


def test_stages_come_in_their_order_and_once(sharing):
    cohort, device, roster = sharing
    with pytest.raises(Refused, match="too early to mask: share comes first"):
        device.mask(SealedShares(bytes(32), {}), cohort.values[cohort.ids[3]])
    with pytest.raises(Refused, match="too late to advertise"):
        device.advertise()
    device.share(roster)
    with pytest.raises(Refused, match="too late to share"):
        device.share(roster)


def test_the_server_takes_an_advert_from_who_signed_it_and_once():
    cohort = Cohort(4)
    first, second, *_ = cohort.ids
    advert = cohort.devices[first].advertise()
    with pytest.raises(Refused, match="not signed by device"):
        cohort.server.take_advert(second, advert)
    with pytest.raises(Refused, match="not signed by device"):
        cohort.server.take_advert(first, advert._replace(share_key=bytes(range(32))))
    pretending = advert._replace(signature=cohort.keys[second].sign(advert.signed_content(TERMS)))
    with pytest.raises(Refused, match="not signed by device"):
        cohort.server.take_advert(second, pretending)
    cohort.server.take_advert(first, advert)
    with pytest.raises(Refused, match="already heard"):
        cohort.server.take_advert(first, advert)


def test_the_server_takes_no_more_devices_than_a_sum_has_room_for():
    cohort = Cohort(3, replace(TERMS, most=2))
    adverts = {one: device.advertise() for one, device in cohort.devices.items()}
    for one in cohort.ids[:2]:
        cohort.server.take_advert(one, adverts[one])
    with pytest.raises(Refused, match="2 devices are already there"):
        cohort.server.take_advert(cohort.ids[2], adverts[cohort.ids[2]])


def test_the_server_takes_reports_of_the_right_length_from_those_who_shared():
    cohort = Cohort(10)
    cohort.run({Stage.SHARE: {cohort.ids[9]}}, until=Stage.SHARE)
    deliveries = cohort.cell.deliveries()
    one = cohort.ids[0]
    report = cohort.devices[one].mask(deliveries[one], cohort.values[one])
    for wrong in (report.packed[:-1], report.packed + b"\0", b"", bytes(10**6)):
        with pytest.raises(ValueError, match=r"numbers of .* bits take"):
            cohort.cell.take_report(one, report._replace(packed=wrong))
    with pytest.raises(Refused, match="dropped out"):
        cohort.cell.take_report(cohort.ids[9], report)
    with pytest.raises(Refused, match="another round"):
        cohort.cell.take_report(one, MaskedReport(bytes(32), report.packed))
    cohort.cell.take_report(one, report)
    with pytest.raises(Refused, match="already heard"):
        cohort.cell.take_report(one, report)


def test_the_server_takes_shares_for_all_of_a_cell_and_answers_to_what_it_asked():
    cohort = Cohort(5)
    cohort.run(until=Stage.ADVERTISE)
    rosters = cohort.server.rosters()
    one, other = cohort.ids[:2]
    sealed = cohort.devices[one].share(rosters[one])
    with pytest.raises(Refused, match="a share for each of the others"):
        cohort.cell.take_shares(one, sealed._replace(shares={other: sealed.shares[other]}))
    cohort.cell.take_shares(one, sealed)
    with pytest.raises(Refused, match="too early to unmask"):
        cohort.cell.take_answer(one, Unmasking(cohort.cell._name, {}, {}))

    cohort.start(TERMS)
    cohort.run(until=Stage.SIGN)
    answer = cohort.devices[one].unmask(cohort.cell.requests()[one])
    for wrong, why in (
        (answer._replace(mask_keys={other: bytes(33)}), "answers a question that it was not asked"),
        (
            answer._replace(seeds={**answer.seeds, 77: bytes(33)}),
            "answers a question that it was not asked",
        ),
        (
            answer._replace(seeds={other: b"\xff" * 33}),
            "not a share of a secret|answers a question that it was not asked",
        ),
        (answer._replace(cell=bytes(32)), "belongs to another round"),
    ):
        with pytest.raises(ValueError, match=why):
            cohort.cell.take_answer(one, wrong)
    cohort.cell.take_answer(one, answer)


def test_no_secret_is_printed():
    cohort = Cohort(4)
    cohort.run(until=Stage.SHARE)
    device = cohort.devices[cohort.ids[0]]
    for shown in (repr(device), str(vars(device)), f"{device._seed}", repr(device._others)):
        assert repr(bytes(device._seed))[2:12] not in shown
        assert all(
            repr(bytes(peer.mask_key))[2:12] not in shown for peer in device._others.values()
        )
    assert "<secret>" in str(vars(device))
