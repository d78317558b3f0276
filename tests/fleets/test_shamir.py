"""Secret sharing: enough shares give the secret, fewer say nothing, against Python's whole
numbers.
"""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from taciturn.fleets.secure_aggregation import shamir
from taciturn.fleets.secure_aggregation.shamir import PRIME, SHARE_BYTES, reconstruct, share

SECRETS = st.binary(min_size=32, max_size=32)


def numbered(shares):
    return dict(enumerate(shares, 1))


def through(points: dict[int, int], place: int) -> int:
    """Lagrange's polynomial, written down once more and differently: Neville's scheme."""
    places, values = list(points), list(points.values())
    for step in range(1, len(places)):
        for one in range(len(places) - step):
            left, right = places[one], places[one + step]
            above = (place - right) * values[one] - (place - left) * values[one + 1]
            values[one] = above * pow(left - right, -1, PRIME) % PRIME
    return values[0] % PRIME


@settings(max_examples=50)
@given(SECRETS, st.integers(1, 12), st.integers(0, 8), st.randoms(use_true_random=False))
def test_any_shares_that_are_enough_give_the_secret(secret, threshold, more, coins):
    shares = numbered(share(secret, threshold, threshold + more))
    for _ in range(3):
        chosen = dict(coins.sample(sorted(shares.items()), threshold))
        assert reconstruct(chosen) == secret
        assert through(
            {one: int.from_bytes(value, "big") for one, value in chosen.items()}, 0
        ) == int.from_bytes(secret, "big")


@settings(max_examples=30)
@given(SECRETS, SECRETS, st.integers(2, 8))
def test_one_share_too_few_goes_with_every_secret(secret, other, threshold):
    """For any other secret there is a last share that makes it: those in hand rule nothing out."""
    shares = {
        one: int.from_bytes(value, "big")
        for one, value in numbered(share(secret, threshold, threshold)).items()
    }
    known = {one: shares[one] for one in list(shares)[:-1]}
    last = through({**known, 0: int.from_bytes(other, "big")}, threshold)
    forged = {**known, threshold: last}
    assert (
        reconstruct({one: value.to_bytes(SHARE_BYTES, "big") for one, value in forged.items()})
        == other
    )


def test_shares_of_one_secret_are_uniform_and_those_of_a_constant_polynomial_are_not():
    secret = bytes(31) + b"\x07"
    shares = [share(secret, 3, 4)[2] for _ in range(4000)]
    constant = [share(secret, 1, 4)[2] for _ in range(4000)]  # the twin: a threshold of 1
    for place in (1, 16, -1):
        assert (
            stats.chisquare(np.bincount([one[place] for one in shares], minlength=256)).pvalue
            > 1e-6
        )
        assert (
            stats.chisquare(np.bincount([one[place] for one in constant], minlength=256)).pvalue
            < 1e-6
        )


def test_the_field_has_a_prime_number_of_elements():
    odd, coins = PRIME - 1, random.Random(0)
    twos = (odd & -odd).bit_length() - 1
    for _ in range(40):  # Miller and Rabin
        power = pow(coins.randrange(2, PRIME - 1), odd >> twos, PRIME)
        assert power == 1 or any(pow(power, 2**step, PRIME) == PRIME - 1 for step in range(twos))
    assert PRIME > 2**256


def test_a_share_under_another_number_gives_another_secret_which_the_points_determine():
    secret = bytes(range(32))
    shares = numbered(share(secret, 3, 5))
    moved = {1: shares[1], 2: shares[2], 4: shares[3]}
    comes_to = through({one: int.from_bytes(value, "big") for one, value in moved.items()}, 0)
    assert reconstruct(moved) == comes_to.to_bytes(32, "big") != secret
    assert reconstruct({1: shares[1], 2: shares[2], 4: shares[4]}) == secret  # the twin


@pytest.mark.parametrize("wrong", [b"", bytes(32), PRIME.to_bytes(33, "big"), b"\xff" * 33])
def test_what_is_not_a_share_is_refused(wrong):
    with pytest.raises(ValueError, match="not a share"):
        reconstruct({1: wrong, 2: bytes(33), 3: bytes(33)})


def test_shares_are_numbered_from_1():
    with pytest.raises(ValueError, match="numbered from 1"):
        reconstruct({0: bytes(33)})


def test_wrong_secrets_and_thresholds_are_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        share(b"short", 2, 3)
    for threshold in (0, 4):
        with pytest.raises(ValueError, match="is impossible"):
            share(bytes(range(32)), threshold, 3)


def test_a_value_that_is_not_a_secret_is_refused():
    """The field is a little larger than the secrets: what shares come to may lie in between."""
    with pytest.raises(ValueError, match="belong together"):
        reconstruct({1: (2**256).to_bytes(shamir.SHARE_BYTES, "big")})
