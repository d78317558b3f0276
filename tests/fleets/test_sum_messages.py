"""Messages of a secure sum: every one comes back from its bytes, and bytes that are none are a
ValueError and nothing else.
"""

import dataclasses
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.fleets.secure_aggregation import messages
from taciturn.fleets.secure_aggregation.identities import Certificate
from taciturn.fleets.secure_aggregation.messages import (
    SEALED_BYTES,
    SIGNATURE_BYTES,
    Advert,
    MaskedReport,
    Roster,
    SealedShares,
    Survivors,
    Terms,
    Unmasking,
    UnmaskRequest,
)
from taciturn.fleets.secure_aggregation.shamir import SHARE_BYTES

HASHES = st.binary(min_size=32, max_size=32)
IDS = st.integers(0, 2**64 - 1)
NAMES = st.binary(min_size=1, max_size=255)
PORTIONS = st.floats(0, 1, exclude_max=True)


def tables(size):
    return st.dictionaries(IDS, st.binary(min_size=size, max_size=size), max_size=5)


SIGNATURES = st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES)
CERTIFICATES = st.builds(
    Certificate, st.binary(min_size=16, max_size=16), IDS, HASHES, IDS, IDS, IDS, SIGNATURES
)
ADVERTS = st.builds(
    Advert,
    certificate=CERTIFICATES,
    mask_key=HASHES,
    share_key=HASHES,
    commitment=HASHES,
    signature=SIGNATURES,
)
ROSTERS = st.builds(
    lambda adverts, digests: Roster(tuple(sorted(adverts, key=lambda one: one.device)), digests),
    st.lists(ADVERTS, max_size=4, unique_by=lambda advert: advert.device),
    st.dictionaries(IDS, HASHES, max_size=5),
)
MESSAGES = st.one_of(
    ADVERTS,
    ROSTERS,
    st.builds(SealedShares, HASHES, tables(SEALED_BYTES)),
    st.builds(MaskedReport, HASHES, st.binary(max_size=100)),
    st.builds(Survivors, HASHES, st.frozensets(IDS, max_size=5)),
    st.builds(UnmaskRequest, HASHES, tables(SIGNATURE_BYTES)),
    st.builds(Unmasking, HASHES, tables(SHARE_BYTES), tables(SHARE_BYTES)),
)
KINDS = st.sampled_from(
    [kind for kind in messages.KINDS if kind is not Terms]
)  # which nobody sends


def parsed(kind, content):
    """None for what is none. Whatever is one has exactly these bytes: no message can be written in
    two ways.
    """
    try:
        message = kind.from_bytes(content)
    except ValueError as why:
        assert str(why)  # noqa: PT017
        return None
    assert message.to_bytes() == content
    return message


@given(MESSAGES)
def test_every_message_comes_back(message):
    assert type(message).from_bytes(message.to_bytes()) == message


@settings(max_examples=500)
@given(KINDS, st.binary(max_size=300))
def test_garbage_is_a_sentence(kind, content):
    parsed(kind, content)
    parsed(
        kind, bytes([messages.VERSION, messages.KINDS[kind]]) + content
    )  # with the right beginning it gets further


@settings(max_examples=500)
@given(MESSAGES, st.data())
def test_a_message_that_was_changed_cut_off_or_lengthened_is_another_or_none(message, data):
    content = message.to_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    assert parsed(type(message), bytes(changed)) != message
    assert parsed(type(message), content[:place]) != message
    assert parsed(type(message), content + data.draw(st.binary(min_size=1, max_size=9))) != message


@given(MESSAGES, KINDS)
def test_no_message_passes_for_one_of_another_kind(message, kind):
    assert kind is type(message) or parsed(kind, message.to_bytes()) is None


@pytest.mark.parametrize("kind", [Roster, SealedShares, Survivors, UnmaskRequest, Unmasking])
def test_a_message_that_claims_to_be_huge_takes_no_memory(kind):
    content = (
        bytes([messages.VERSION, messages.KINDS[kind]])
        + (b"" if kind is Roster else bytes(32))
        + b"\xff" * 40
    )
    tracemalloc.start()
    with pytest.raises(ValueError, match="cannot have"):
        kind.from_bytes(content)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_a_report_that_is_longer_than_any_is_not_copied():
    content = bytes([messages.VERSION, messages.KINDS[MaskedReport]]) + bytes(
        4 * messages.MOST_LENGTH + 33
    )
    tracemalloc.start()
    with pytest.raises(ValueError, match="is too long"):
        MaskedReport.from_bytes(content)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_rows_that_are_out_of_order_or_there_twice_are_refused():
    row, head = (
        (5).to_bytes(8, "big"),
        bytes([messages.VERSION, messages.KINDS[Survivors]]) + bytes(32),
    )
    assert Survivors.from_bytes(head + b"\0\0\0\1" + row).devices == {5}
    for rows in (row + row, row + (4).to_bytes(8, "big")):
        with pytest.raises(ValueError, match="in order"):
            Survivors.from_bytes(head + b"\0\0\0\2" + rows)


def test_terms_that_make_no_round_are_refused():
    good = Terms(
        round=b"round",
        message=bytes(32),
        dismissed=bytes(32),
        fingerprint=b"recipe",
        modulus_bits=20,
        length=10,
        dropouts=0.3,
        corrupt=0.1,
        least=2,
        most=10,
    )
    good.check()
    for wrong in (
        {"modulus_bits": 0},
        {"modulus_bits": 33},
        {"length": 0},
        {"length": 1 << 27},
        {"dropouts": float("nan")},
        {"corrupt": 1.0},
        {"least": 1},
        {"least": 11},
        {"most": 1 << 17},
        {"round": b""},
        {"message": b""},
        {"message": bytes(31)},
        {"dismissed": b""},
    ):
        with pytest.raises(ValueError, match=r"."):
            dataclasses.replace(good, **wrong).check()


def test_messages_that_hold_secrets_do_not_show_them():
    share = bytes(range(33))
    for message in (Unmasking(bytes(32), {7: share}, {8: share}), MaskedReport(bytes(32), share)):
        assert "\\x0" not in f"{message} {message!r}"


def advert_of(device):
    certificate = Certificate(
        fleet=bytes(16),
        device=device,
        key=bytes(32),
        begins=0,
        ends=0,
        after=0,
        signature=bytes(64),
    )
    return Advert(
        certificate=certificate,
        mask_key=bytes(32),
        share_key=bytes(32),
        commitment=bytes(32),
        signature=bytes(64),
    )


def test_the_parts_of_a_roster_are_the_roster():
    adverts = tuple(advert_of(device) for device in (3, 9))
    roster = Roster(adverts, {3: bytes(32), 9: bytes([1] * 32)})
    own, shared = roster.parts()
    assert Roster.from_bytes(own + shared) == roster
    assert shared == roster._replace(adverts=()).parts()[1]  # the same whoever it is for
