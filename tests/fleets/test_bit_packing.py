"""Numbers of b bits: packed and back, against Python's own whole numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taciturn.fleets.secure_aggregation.bit_packing import BLOCK, count_bytes, pack, unpack


@given(
    st.integers(1, 32).flatmap(
        lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1)))
    )
)
def test_numbers_stand_side_by_side_in_one_long_number(case):
    bits, numbers = case
    packed = pack(np.array(numbers, np.uint32), bits)
    long = sum(number << bits * place for place, number in enumerate(numbers))
    assert packed == long.to_bytes(count_bytes(len(numbers), bits), "little")
    np.testing.assert_array_equal(unpack(packed, len(numbers), bits), np.array(numbers, np.uint32))


@pytest.mark.parametrize("bits", range(1, 33))
@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, 2 * BLOCK + 17])
def test_long_rows_come_back(bits, length):
    values = np.random.default_rng(bits).integers(0, 2**bits, length).astype(np.uint32)
    packed = pack(values, bits)
    assert len(packed) == count_bytes(length, bits)
    np.testing.assert_array_equal(unpack(packed, length, bits), values)


def test_a_report_takes_its_bits_and_no_more():
    assert count_bytes(2_400_000, 26) / 2_400_000 <= 3.25 <= 3.3


def test_a_number_that_does_not_fit_is_refused_not_truncated():
    assert unpack(pack(np.array([7], np.uint32), 3), 1, 3) == [7]
    with pytest.raises(ValueError, match="8 does not fit into 3 bits"):
        pack(np.array([8], np.uint32), 3)
    for wrong in (np.array([1.0]), np.array([[1]], np.uint32), np.array([-1])):
        with pytest.raises(ValueError, match="a row of uint32"):
            pack(wrong, 3)


def test_there_is_one_way_to_write_a_row():
    assert unpack(b"\x05", 1, 3) == [5]
    with pytest.raises(ValueError, match="bits set after the last"):
        unpack(b"\x0d", 1, 3)
    with pytest.raises(ValueError, match="not 2"):
        unpack(b"\x05\0", 1, 3)
    for bits in (0, 33):
        with pytest.raises(ValueError, match="bits"):
            unpack(b"", 0, bits)
