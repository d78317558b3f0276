"""README's table: what its commands gave, and nothing typed."""

import json

from lib import front_page, typing_tables


def test_rows_of_the_front_page_come_out_of_results_byte_for_byte():
    assert front_page.README.read_text() == front_page.write_front_page(), (
        "README's rows are not what the results say: make papers"
    )


def test_another_result_would_be_another_front_page(monkeypatch):
    """The twin: a figure that were typed would not move."""
    before = front_page.write_front_page()
    typing = typing_tables.load_results("keyboard", "front-page")
    moved = json.loads(json.dumps(typing))
    moved["models"]["promised-4-1"]["accuracy_top1"][0] += 0.03

    def load_moved(paper: str, name: str) -> object:
        return moved

    monkeypatch.setattr(front_page, "load_results", load_moved)
    after = front_page.write_front_page()
    changed = [
        line for line in after.splitlines() if line.startswith("| d |") and line not in before
    ]
    assert len(changed) == 1


def test_every_row_of_ours_with_an_epsilon_has_its_delta():
    rows = [line for line in front_page.write_front_page().splitlines() if line.startswith("| d |")]
    assert len(rows) == 1
    assert "(4.00, 1.3e-8)" in rows[0]
