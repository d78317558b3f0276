"""The tests themselves: each asserts something, says what an error has to say, and has a name that
can be read.
"""

import ast
import importlib.util
from pathlib import Path

import harness

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))
LONGEST_NAME, LONGEST_FILE = 85, 1000
# Functions that assert on behalf of whoever calls them, besides those of NumPy.
ASSERTING = {"check", "parsed", "raises"}
# Raised by tests or the interpreter, without words: a cut of the power, an end of the process, a
# twin's failed assertion.
OWN = {"AssertionError", "Cut", "KeyboardInterrupt", "SystemExit", "typer.Exit"}
TREES = {str(file.relative_to(TESTS)): ast.parse(file.read_text()) for file in FILES}


def all_tests() -> list[tuple[str, ast.FunctionDef]]:
    return [
        (file, node)
        for file, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def asserts(test: ast.AST) -> bool:
    names = [called(node) for node in ast.walk(test) if isinstance(node, ast.Call)]
    if any(name in ASSERTING or name.startswith("assert_") for name in names):
        return True
    return any(isinstance(node, ast.Assert) for node in ast.walk(test))


def wordless(tree: ast.AST) -> list[int]:
    """Lines of `pytest.raises` that any error of its kind would pass."""
    found = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and called(node) == "raises"
            and not any(k.arg == "match" for k in node.keywords)
        ):
            kinds = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
            if not {ast.unparse(kind) for kind in kinds} <= OWN:
                found.append(node.lineno)
    return found


def test_every_test_asserts_something():
    assert [(file, test.name) for file, test in all_tests() if not asserts(test)] == []


def test_every_error_that_is_expected_is_told_by_its_words():
    assert [(file, line) for file, tree in TREES.items() for line in wordless(tree)] == []


def test_names_and_files_are_not_too_long():
    assert [(file, test.name) for file, test in all_tests() if len(test.name) > LONGEST_NAME] == []
    assert [
        file for file in TREES if len((TESTS / file).read_text().splitlines()) > LONGEST_FILE
    ] == []


def test_no_two_files_have_one_name():
    """Pytest imports them by it."""
    assert len({file.name for file in FILES}) == len(FILES)


def test_a_test_that_asserts_nothing_and_an_error_without_words_are_noticed():
    """The twins that must fail."""
    assert not asserts(ast.parse("def test_it():\n    server().close()"))
    assert asserts(ast.parse("def test_it():\n    np.testing.assert_array_equal(1, 1)"))
    assert wordless(ast.parse("with pytest.raises(ValueError):\n    it()")) == [1]
    assert wordless(ast.parse("with pytest.raises((Cut, ValueError)):\n    it()")) == [1]
    assert wordless(ast.parse("with pytest.raises(ValueError, match='words'):\n    it()")) == []
    assert wordless(ast.parse("with pytest.raises(Cut):\n    it()")) == []


def test_modules_that_are_traced_anew_exist():
    """A patch of a module that has moved would leave compiled programs as they were."""
    for name in harness.TRACED:
        assert importlib.util.find_spec(name), name
