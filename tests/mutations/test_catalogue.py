"""The catalogue of mutations fits the source, the tests and its page; nothing is broken or run here
(`make mutations` does that).
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from catalogue import HERE, MUTATIONS, SUBJECTS, DoesNotFit, Edit, mutations

REPOSITORY = Path(__file__).resolve().parents[2]
each_mutation = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)


@cache
def source(file: str) -> str:
    return (REPOSITORY / "src" / "taciturn" / file).read_text()


@cache
def functions(file: str) -> dict[str, bool]:
    """The tests of a file, and whether they may have parameters."""
    nodes = ast.parse((REPOSITORY / file).read_text()).body
    return {
        node.name: bool(node.decorator_list) for node in nodes if isinstance(node, ast.FunctionDef)
    }


@each_mutation
def test_every_edit_fits_the_source_and_leaves_a_program(mutation):
    files = {edit.file: source(edit.file) for edit in mutation.edits}
    for edit in mutation.edits:
        assert edit.new != edit.old
        files[edit.file] = edit.rewritten(files[edit.file])
    for text in files.values():
        ast.parse(text)


@each_mutation
def test_every_test_that_is_named_exists(mutation):
    assert mutation.caught_by
    for test in mutation.caught_by:
        file, name = test.split("::")
        name, _, parameters = name.partition("[")
        assert name in functions(file)
        assert functions(file)[name] or not parameters


def test_the_page_is_about_these_mutations():
    rows = [
        line
        for line in (REPOSITORY / "docs" / "mutations.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    said = [tuple(row.removeprefix("| ").split(" | ")[:2]) for row in rows[1:]]
    assert said == [(one.name, one.harm) for one in MUTATIONS]
    named = [
        found for row in rows for found in re.findall(r"`(test_\w+)[^`]*`\]\(\.\./([^)]+)\)", row)
    ]
    assert len(named) >= len(MUTATIONS)
    assert [(test, file) for test, file in named if test not in functions(file)] == []


def test_no_two_mutations_have_one_name():
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("old", ["gone", "twice"])
def test_an_edit_that_no_longer_fits_is_refused(old):
    """The twin that must fail."""
    assert Edit("file.py", "once", "new").rewritten("once, twice, twice") == "new, twice, twice"
    with pytest.raises(DoesNotFit, match="not one"):
        Edit("file.py", old, "new").rewritten("once, twice, twice")


def test_every_file_of_mutations_is_read():
    assert {file.stem for file in HERE.glob("*.toml")} == set(SUBJECTS)


@pytest.mark.parametrize(
    "changed",
    [
        ("harm = ", "damage = "),
        ("[[mutation]]", "[[mutations]]"),
        ('caught_by = ["a"]', "caught_by = 1"),
        ("old = ", "before = "),
    ],
)
def test_an_incomplete_mutation_is_refused(tmp_path, changed):
    """The twin that must fail."""
    whole = """
        [[mutation]]
        name = "no clip"
        harm = "much"
        caught_by = ["a"]
        edits = [{ file = "b", old = "c", new = "" }]
        """
    (tmp_path / "one.toml").write_text(whole)
    assert mutations(tmp_path / "one.toml")[0].edits == (Edit("b", "c", ""),)
    (tmp_path / "one.toml").write_text(whole.replace(*changed))
    with pytest.raises(DoesNotFit, match=r"one\.toml is no list of mutations"):
        mutations(tmp_path / "one.toml")
