"""Servers that lie about who is in a round: devices go by what the enrolment authority has signed,
and by nothing else.
"""

import os
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleet_of_devices import FleetOfDevices
from lying_server import VICTIM, LyingServer
from secure_rounds import TERMS, Cohort, enter_round

from enrolling import AUTHORITY, NONE_DISMISSED, SIGNING_AUTHORITY, certificate, public
from harness import quietly
from taciturn.core import FailedRound
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.device import NotEligible
from taciturn.fleets.devices.own_participation import OwnParticipation
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation import device_side
from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.identities import (
    Authority,
    Certificate,
    DismissedDevices,
    SigningAuthority,
)
from taciturn.fleets.secure_aggregation.messages import Roster, Survivors
from taciturn.fleets.secure_aggregation.protocol import Refused
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.runs.loop import resume_run, train_run

STRANGER = SigningAuthority(
    SIGNING_AUTHORITY.fleet, Ed25519PrivateKey.generate()
)  # a server that plays the authority, without its key
ELSEWHERE = SigningAuthority(
    b"another fleet...", SIGNING_AUTHORITY.key
)  # the same authority, for another fleet


def advert_of(key, signed, terms=TERMS):
    """By whoever has the key, whatever its certificate is."""
    device = DeviceRound.__new__(DeviceRound)
    device.__dict__ |= Cohort(1).devices.popitem()[1].__dict__ | {
        "_key": key,
        "_certificate": signed,
        "_terms": terms,
    }
    return device.advertise()


def shown(make, dismissed=NONE_DISMISSED, count=6):
    """What a device does when the server shows it a cell in which one has the certificate that
    `make` gives it, which signs everything
    right: the peers that it shares its secrets with.
    """
    cohort = Cohort(count)
    terms = replace(TERMS, dismissed=dismissed.digest())
    one, *others = cohort.ids
    device = enter_round(terms, cohort.keys[one], certificate(one, cohort.keys[one]), dismissed)
    adverts = [
        device.advertise(),
        *(
            advert_of(cohort.keys[peer], certificate(peer, cohort.keys[peer]), terms)
            for peer in others[1:]
        ),
    ]
    number, key = others[0], cohort.keys[others[0]]
    made = make(number, key, cohort)
    signed, key = (made, key) if isinstance(made, Certificate) else made
    liar = advert_of(key, signed, terms)
    roster = Roster(
        tuple(sorted((liar, *adverts[1:]), key=lambda advert: advert.device)),
        {a.device: a.digest() for a in (liar, *adverts)},
    )
    return liar.device, device.share(Roster.from_bytes(roster.to_bytes())).shares.keys()


def dismissed(*numbers):
    return SIGNING_AUTHORITY.dismiss(1, numbers)


LIES = {
    "a device that is made up": (
        lambda number, key, _: certificate(number, key, STRANGER),
        "not signed by the authority",
    ),
    "a device that signs for itself": (
        lambda number, key, _: certificate(
            number, key, SigningAuthority(SIGNING_AUTHORITY.fleet, key)
        ),
        "not signed by",
    ),
    "a certificate that has run out": (
        lambda number, key, _: certificate(number, key, days=(-9, -1)),
        "has expired",
    ),
    "a certificate that has not begun": (
        lambda number, key, _: certificate(number, key, days=(1, 9)),
        "has not begun",
    ),
    "another fleet's certificate": (
        lambda number, key, _: certificate(number, key, ELSEWHERE),
        "is of another fleet",
    ),
    "one certificate under two numbers": (
        lambda number, key, all: certificate(all.ids[2], key)._replace(device=number),
        "not signed by",
    ),
    "one key under two numbers": (
        lambda number, _, cohort: (certificate(number, own(cohort, 2)), own(cohort, 2)),
        "have one key",
    ),
    "the key of this device": (
        lambda number, _, cohort: (certificate(number, own(cohort, 0)), own(cohort, 0)),
        "have one key",
    ),
}


def own(cohort, place):
    return cohort.keys[cohort.ids[place]]


@pytest.mark.parametrize("lie", LIES)
def test_a_cell_with_a_device_that_the_authority_does_not_stand_for_is_refused(lie):
    make, sentence = LIES[lie]
    with pytest.raises(Refused, match=sentence):
        shown(make)


def test_the_twin_of_all_those_lies_is_shared_with():
    number, peers = shown(lambda number, key, _: certificate(number, key))
    assert number in peers
    assert len(peers) == 5


@pytest.mark.parametrize("lie", LIES)
def test_a_device_that_does_not_look_shares_its_secrets_with_the_liar(lie, monkeypatch):
    """The twin: each lie succeeds where the members of a cell are not checked."""
    monkeypatch.setattr(DeviceRound, "_check_members", lambda device, roster: None)
    number, peers = shown(LIES[lie][0])
    assert number in peers


@pytest.mark.parametrize("field", Certificate._fields)
def test_no_field_of_a_certificate_can_be_changed(field):
    """Nor any bit of it: 144 bytes are one certificate."""

    def altered(number, key, _):
        good = certificate(number, key)
        value = getattr(good, field)
        other = (
            value - 1
            if field == "after" and value
            else value + 1
            if isinstance(value, int)
            else bytes([value[0] ^ 1]) + value[1:]
        )
        return good._replace(**{field: other})

    with pytest.raises(Refused, match=r"not signed by|another fleet|is older than"):
        shown(altered)


def test_no_bit_of_a_certificate_or_a_list_can_be_changed():
    key = Ed25519PrivateKey.generate()
    good, listed = certificate(3, key).to_bytes(), SIGNING_AUTHORITY.dismiss(4, (7, 9)).to_bytes()
    assert AUTHORITY.why_not_device(Certificate.from_bytes(good), NONE_DISMISSED) is None
    assert AUTHORITY.why_not_list(DismissedDevices.from_bytes(listed)) is None
    for bit in range(8 * len(good)):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        assert AUTHORITY.why_not_device(Certificate.from_bytes(bytes(changed)), NONE_DISMISSED)
    for bit in range(8 * len(listed)):
        changed = bytearray(listed)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            read = DismissedDevices.from_bytes(bytes(changed))
        except ValueError:
            continue
        assert AUTHORITY.why_not_list(read)


@pytest.mark.parametrize(
    "one",
    [
        certificate(3, SIGNING_AUTHORITY.key),
        SIGNING_AUTHORITY.dismiss(4, (7, 9)),
        SIGNING_AUTHORITY.dismiss(4, ()),
    ],
    ids=["one", "two", "none"],
)
def test_bytes_that_are_no_certificate_and_no_list_are_refused(one):
    kind, good = type(one), one.to_bytes()
    assert kind.from_bytes(good).to_bytes() == good
    for bad in (b"", good[:-1], good + b"\0", os.urandom(40), b"\xff" * 200):
        with pytest.raises(ValueError, match=r"certificate|list"):
            kind.from_bytes(bad)


def test_a_dismissed_device_is_in_no_cell():
    """Twin: of a list that does not name it, it is."""
    numbers = Cohort(6).ids
    with pytest.raises(Refused, match="was dismissed"):
        shown(lambda number, key, _: certificate(number, key), dismissed(numbers[1]))
    number, peers = shown(lambda number, key, _: certificate(number, key), dismissed(5))
    assert number in peers


def test_a_list_that_is_older_than_a_certificate_of_the_cell_is_refused():
    """Whoever was enrolled or renewed later brings the number of a later list along. Twin: a list
    as new as that.
    """
    with pytest.raises(Refused, match="is older than the certificate of device"):
        shown(lambda number, key, _: certificate(number, key, after=1))
    assert shown(lambda number, key, _: certificate(number, key, after=1), dismissed(5))


def test_devices_under_different_lists_are_in_different_rounds():
    """The list is in the terms: who was shown another one does not count as having signed these."""
    cohort, other = Cohort(5), dismissed(5)
    one, *rest = cohort.ids
    terms = replace(TERMS, dismissed=other.digest())
    cohort.devices[one] = enter_round(
        terms, cohort.keys[one], certificate(one, cohort.keys[one]), other
    )
    with pytest.raises(Refused, match="not signed by device"):
        cohort.run()
    with pytest.raises(ValueError, match="name another list"):
        enter_round(TERMS, cohort.keys[one], certificate(one, cohort.keys[one]), other)
    assert rest


@pytest.mark.parametrize(
    "lie", ["another's certificate", "another's list", "a list of nobody's", "another fleet's list"]
)
def test_a_device_joins_only_with_its_own_certificate_and_a_list_of_its_authority(lie):
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    lists = {
        "another's list": STRANGER.dismiss(0, ()),
        "a list of nobody's": NONE_DISMISSED._replace(signature=bytes(64)),
        "another fleet's list": ELSEWHERE.dismiss(0, ()),
    }
    shown_list = lists.get(lie, NONE_DISMISSED)
    signed = certificate(1, other if lie == "another's certificate" else key)
    with pytest.raises(
        Refused,
        match="is of another device"
        if lie == "another's certificate"
        else "list of dismissed devices is not signed",
    ):
        enter_round(replace(TERMS, dismissed=shown_list.digest()), key, signed, shown_list)
    assert enter_round(TERMS, key, certificate(1, key))


@pytest.fixture
def liar(tmp_path, vocabulary):
    return LyingServer(tmp_path, vocabulary)


def test_a_server_cannot_go_back_to_an_older_list(liar):
    """By which a dismissed device of its own would be in the round again. Over a restart of the
    device, too.
    """
    newer = SIGNING_AUTHORITY.dismiss(2, ())
    liar.round(1, dismissed=newer)
    older = [
        *(SIGNING_AUTHORITY.dismiss(number, ()) for number in (0, 1)),
        SIGNING_AUTHORITY.dismiss(2, (77,)),
    ]
    for number, old_list in enumerate(older, 2):
        with pytest.raises(FailedRound, match="0 devices have advertised"):
            liar.round(number, dismissed=old_list)
    liar.fleet.start(VICTIM)
    question = [fields.new_name(), b"run", b"9", bytes(32), liar.fleet.signed(VICTIM)[0]]
    with pytest.raises(
        NotEligible, match="number 0, and this device was shown another of number 2"
    ):
        liar.device(VICTIM)(
            Stage.ADVERTISE.question, fields.pack_fields(*question, NONE_DISMISSED.to_bytes())
        )
    liar.device(VICTIM)(Stage.ADVERTISE.question, fields.pack_fields(*question, newer.to_bytes()))


def test_the_twin_that_forgets_which_list_it_has_seen_goes_back(liar, monkeypatch):
    read = OwnParticipation._read

    def forgetful(record):
        return replace(read(record), list_number=-1, list_digest="")

    monkeypatch.setattr(OwnParticipation, "_read", forgetful)
    liar.round(1, dismissed=SIGNING_AUTHORITY.dismiss(2, ()))
    liar.change_model()
    assert liar.round(2).values.any()


def test_a_list_is_kept_by_devices_that_rest_too(liar):
    """What they were shown they have seen, whether they take part or not."""
    liar.round(5)
    device, later = liar.device(0), SIGNING_AUTHORITY.dismiss(3, ())
    about = fields.new_name(), b"run", b"5", bytes(32), liar.fleet.signed(0)[0]
    with pytest.raises(NotEligible, match="reports once to each"):
        device(Stage.ADVERTISE.question, fields.pack_fields(*about, later.to_bytes()))
    assert device._record._read().list_number == 3


@pytest.mark.parametrize("twin", [False, True])
def test_a_server_that_makes_up_all_others_gets_no_report(liar, monkeypatch, twin):
    """Eight of nine devices are the server's own, with certificates of its own: the sum less theirs
    is one person's report. Twin: where that person's device takes any certificate, too, that is
    what the server has.
    """
    fooled = STRANGER.authority  # whoever goes by it checks nothing
    for name in ("why_not_device", "why_not_list"):
        check = getattr(Authority, name)
        monkeypatch.setattr(
            Authority,
            name,
            lambda authority, *given, check=check: (
                None if authority == fooled else check(authority, *given)
            ),
        )
    certificates = [STRANGER.certify(*one[1:-1]) for one in liar.fleet.enrolled.certificates]
    certificates[VICTIM] = liar.fleet.enrolled.certificates[VICTIM]
    for number in range(9):
        if twin or number != VICTIM:
            liar.device(number)._authority = fooled
    total = liar.round(1, certificates=certificates, authority=fooled)
    assert (VICTIM in total.devices) == twin
    assert len(liar.reports) == 8 + twin


@pytest.mark.parametrize("hours", [0.5, 1.5])
def test_a_device_whose_certificate_ends_within_the_hour_is_not_asked_and_not_to_blame(
    tmp_path, vocabulary, hours
):
    """Or one whose clock is a little ahead would refuse the whole cell. Twin: an hour later it is
    asked. Renewed, it is asked again.
    """
    fleet = FleetOfDevices(tmp_path, vocabulary, count=9, run={"rounds": 2, "evaluate_every": 2})
    good = fleet.enrolled

    def ending(hours):
        fleet.enrolled = good._replace(
            certificates=[
                certificate(0, fleet.keys[0], days=(-1, hours / 24)),
                *good.certificates[1:],
            ]
        )

    ending(hours)
    if hours > 1:
        assert (
            train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected).guarantee.releases
            == 2
        )
        return
    with pytest.raises(LinkError, match="8 devices are present that may take part, 9 are needed"):
        train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected)
    fleet.enrolled = good
    assert resume_run(tmp_path / "run", quietly, fleet.connected).guarantee.releases == 2


def test_a_device_looks_at_signatures_of_its_cell_alone():
    """Whoever is not in it has no key there, whatever else it is certified for."""
    cohort = Cohort(5)
    cohort.run(until=Stage.ADVERTISE)
    survivors = Survivors(bytes(32), frozenset(cohort.ids))
    signatures = {one: cohort.keys[one].sign(survivors.signed_content()) for one in cohort.ids}
    keys = {one: public(cohort.keys[one]) for one in cohort.ids[:3]}
    assert device_side.find_signers(survivors, signatures=signatures, keys=keys) == set(
        cohort.ids[:3]
    )
