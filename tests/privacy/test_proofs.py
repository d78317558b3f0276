"""docs/proofs.md and docs/errata.md name tests that exist, and proofs number their statements."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "proofs.md").read_text()
NAMES = re.compile(r"`(test_\w+)`")


def named() -> set[str]:
    files = (REPOSITORY / "tests").rglob("test_*.py")
    return {
        name
        for file in files
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }


def test_every_test_that_a_proof_names_exists():
    assert set(NAMES.findall(PAGE)) - named() == set()
    assert len(NAMES.findall(PAGE)) > 30
    assert (
        set(NAMES.findall("*Checked by* `test_that_was_never_written`.")) - named()
    )  # the twin that must fail


def test_every_error_of_the_papers_names_a_test_that_exists():
    rows = [
        line
        for line in (REPOSITORY / "docs" / "errata.md").read_text().splitlines()
        if " et al. " in line and line.startswith("|")
    ]
    assert len(rows) == 6
    for row in rows:
        assert set(NAMES.findall(row)) <= named()
        assert NAMES.findall(row)


def test_every_statement_has_a_number_and_says_what_checks_it():
    numbers = [int(number) for number in re.findall(r"^\*\*(\d+)\.", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    before_integers = PAGE[: PAGE.index("## Integer noise")]
    statements = re.split(r"^\*\*\d+\.", before_integers, flags=re.MULTILINE)[1:]
    assert all("*Checked" in statement for statement in statements)
