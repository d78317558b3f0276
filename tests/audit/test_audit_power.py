"""The figures of docs/audit.md are those that benchmarks/audit_power.py measured."""

import json
from pathlib import Path

import audit_power

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def read_results():
    return json.loads(audit_power.RESULTS.read_text())


def test_the_page_shows_what_was_measured():
    results = read_results()
    assert audit_power.write_tables(results) in PAGE.read_text()
    hidden = results["users"][1]
    missed = hidden["audits"] - hidden["accused"]["1.5"]
    assert f"missed it in {missed:,} of {hidden['audits']:,} audits" in PAGE.read_text()
    # The twin: a figure that is not the result's is noticed.
    results["false_alarms"]["accused"] += 1
    assert audit_power.write_tables(results) not in PAGE.read_text()


def test_sound_mechanisms_were_accused_no_more_often_than_is_promised():
    results = read_results()
    assert all(row["accused"]["1.0"] <= 0.01 * row["audits"] for row in results["users"])
    assert results["noise"][0] == {"noise": "as claimed", "audits": 40, "accused": 0}
    loose = results["false_alarms"]
    assert 0 < loose["accused"] <= loose["level"] * loose["audits"]


def test_a_row_is_measured_again_as_it_was():
    kind = audit_power.KINDS[1]
    again = audit_power.measure_noise(kind, audits=2)
    assert again == {"noise": kind.name, "audits": 2, "accused": 2}
    users = audit_power.USERS[1]._replace(audits=20)
    measured = audit_power.measure_users(users)
    assert measured["accused"]["1.0"] == 0
    assert measured["caught"] == read_results()["users"][1]["caught"]
