"""A seal differs wherever a total does."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taciturn.privacy.seals import fingerprint

SECRET = bytes(32)
TREE = {"high": jnp.arange(300, dtype=jnp.int32), "low": jnp.linspace(-1, 1, 77), "round": jnp.int32(5)}


@settings(max_examples=80, deadline=None)
@given(
    leaf=st.sampled_from(["high", "low", "round"]),
    place=st.integers(0, 299),
    bit=st.integers(0, 31),
)
def test_one_bit_anywhere_changes_the_fingerprint(leaf, place, bit):
    words = np.array(TREE[leaf]).view(np.uint32).ravel().copy()
    words[place % len(words)] ^= np.uint32(1) << np.uint32(bit)
    changed = words.view(np.asarray(TREE[leaf]).dtype).reshape(np.shape(TREE[leaf]))
    assert fingerprint(SECRET, {**TREE, leaf: changed}) != fingerprint(SECRET, TREE)


def test_it_is_the_same_for_the_same_and_depends_on_the_secret():
    assert fingerprint(SECRET, TREE) == fingerprint(SECRET, {name: jnp.array(leaf) for name, leaf in TREE.items()})
    assert len({fingerprint(bytes([n]) * 32, TREE) for n in range(20)}) == 20
    assert len(fingerprint(SECRET, TREE)) == 16


def test_the_same_numbers_in_other_places_are_another_total():
    one = jnp.array([1, 2, 3], jnp.int32)
    assert fingerprint(SECRET, [one, one[::-1]]) != fingerprint(SECRET, [one[::-1], one])
    assert fingerprint(SECRET, [one]) != fingerprint(SECRET, [one[::-1]])
    assert fingerprint(SECRET, [one, one]) != fingerprint(SECRET, [one])


def test_zero_and_minus_zero_are_not_the_same_bits():
    assert fingerprint(SECRET, [jnp.array([0.0])]) != fingerprint(SECRET, [jnp.array([-0.0])])


def test_numbers_of_another_width_are_refused():
    with pytest.raises(TypeError, match="4-byte"):
        fingerprint(SECRET, [np.zeros(3, np.int8)])
