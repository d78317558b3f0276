"""What two trees made is compared name by name, and what only one of them made is a difference."""

import json

import pytest
from compare import compare_digests
from make_bytes import drop_columns, forget_times, sort_header

BEFORE = {"ledger.jsonl": "a1", "model": "b2"}


def test_equal_bytes_are_equal():
    comparison = compare_digests("runs", BEFORE, dict(BEFORE))
    assert comparison.is_equal
    assert comparison.equal == 2


@pytest.mark.parametrize(
    ("now", "field", "name"),
    [
        ({"ledger.jsonl": "a1", "model": "b3"}, "different", "model"),
        ({"ledger.jsonl": "a1"}, "only_before", "model"),
        (BEFORE | {"report": "c3"}, "only_now", "report"),
    ],
)
def test_whatever_differs_is_named(now, field, name):
    """The twins that must fail."""
    comparison = compare_digests("runs", BEFORE, now)
    assert not comparison.is_equal
    assert getattr(comparison, field) == [name]


def test_only_times_and_places_are_forgotten(tmp_path):
    ledger = tmp_path / "metrics.jsonl"
    ledger.write_text(f'{{"seconds": 1.5, "loss": 2.5, "folder": "{tmp_path}"}}')
    forgotten = json.loads(forget_times(ledger, tmp_path))
    assert forgotten == {"seconds": 0, "loss": 2.5, "folder": "HERE"}
    assert drop_columns("round,seconds,loss\n1,9.5,2.5") == "round,loss\n1,2.5"


def test_the_header_of_a_model_is_read_in_any_order():
    def model(header: str, numbers: bytes) -> bytes:
        return len(header).to_bytes(8, "little") + header.encode() + numbers

    one = model('{"a": 1, "b": 2}', b"\x00\x01")
    assert sort_header(one) == sort_header(model('{"b": 2, "a": 1}', b"\x00\x01"))
    assert sort_header(one) != sort_header(model('{"a": 1, "b": 2}', b"\x00\x02"))
