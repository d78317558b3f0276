"""The house reads aloud: in place of limits of lines, limits of what a reader must hold in mind.

jax-privacy has 8.9 syntax nodes a line of code in functions of eight lines and more, equinox 8.3,
httpx 6.7; 15.5 was ours when nobody outside could have carried this on.
"""

import ast
import statistics
from pathlib import Path

import pytest
from reading import (
    are_a_letter_apart,
    counts_positions,
    functions,
    hanging_comments,
    is_bare_participle,
    is_packed_constructor,
    is_several_at_once,
    length,
    letters_apart,
    measure,
    shadows,
)

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "src" / "taciturn").rglob("*.py"))
TEXTS = {str(path.relative_to(ROOT / "src" / "taciturn")): path.read_text() for path in MODULES}
TREES = {name: ast.parse(text) for name, text in TEXTS.items()}

MEDIAN, NINE_TENTHS, DENSEST = 9, 13, 20
LONGEST = 60
SEVERAL_AT_ONCE = 0.01
# Denser or longer than the limits, each with the reason.
DENSE: dict[str, str] = {}
LONG: dict[str, str] = {}
# Modules whose names differ by a letter and are never imported side by side, each with the reason.
ALIKE: dict[tuple[str, str], str] = {}


def measured():
    each = [one for name, text in TEXTS.items() for one in measure(text, name)]
    return [one for one in each if one.lines >= 8]


def test_functions_are_not_dense():
    densities = sorted(one.density for one in measured())
    assert statistics.median(densities) <= MEDIAN
    assert densities[int(0.9 * len(densities))] <= NINE_TENTHS
    dense = {one.place for one in measured() if one.density > DENSEST}
    assert dense == set(DENSE)


def test_functions_are_not_long():
    long = {
        f"{name} {function.name}"
        for name, tree in TREES.items()
        for function in functions(tree)
        if length(function) > LONGEST
    }
    assert long == set(LONG)


def test_a_statement_binds_one_thing():
    assignments = [
        node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Assign)
    ]
    several = [node for node in assignments if is_several_at_once(node)]
    assert len(several) <= SEVERAL_AT_ONCE * len(assignments)


def test_no_constructor_is_called_with_packed_arguments():
    packed = [
        f"{name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_packed_constructor(node)
    ]
    assert packed == []


def test_constructors_with_many_arguments_name_them():
    classes = {
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    positional = [
        f"{name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and counts_positions(node, classes)
    ]
    assert positional == []


def test_comments_stand_above_what_they_explain():
    hanging = {name: hanging_comments(text) for name, text in TEXTS.items()}
    assert {name: lines for name, lines in hanging.items() if lines} == {}


def test_no_lambda_is_bound_to_a_name():
    bound = [
        f"{name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)
    ]
    assert bound == []


def test_no_function_is_named_by_a_bare_participle():
    named = [
        f"{name}:{function.lineno} {function.name}"
        for name, tree in TREES.items()
        for function in functions(tree)
        if is_bare_participle(function.name)
    ]
    assert named == []


def test_modules_are_told_apart_by_their_names():
    assert set(letters_apart(MODULES)) == set(ALIKE)
    assert shadows(MODULES) == []


@pytest.mark.parametrize("name", ["checked", "_said", "made", "_fixed"])
def test_bare_participles_are_noticed(name):
    """The twins that must fail."""
    assert is_bare_participle(name)
    assert not is_bare_participle("check_" + name.strip("_"))
    assert not is_bare_participle("embed")


def test_dense_lines_are_noticed():
    """The twin that must fail: the same work on one line and on three."""
    dense = "def f(a):\n    return [g(h(b) + k(c)) for b, c in zip(a.one, a.other, strict=True)]\n"
    plain = (
        "def f(a):\n"
        '    """Twelve words that are not counted, however many lines they take."""\n'
        "    results = []\n"
        "    for b, c in zip(a.one, a.other, strict=True):\n"
        "        # nor is this\n"
        "        results.append(g(h(b) + k(c)))\n"
        "    return results\n"
    )
    (in_one_line,) = measure(dense, "dense.py")
    (line_by_line,) = measure(plain, "plain.py")
    assert in_one_line.lines == 1
    assert line_by_line.lines == 4
    assert in_one_line.density > 2 * line_by_line.density


@pytest.mark.parametrize(
    ("statement", "several"),
    [
        ("a, b = x, y", True),
        ("a, b, c = 1, two(), three", True),
        ("a, b = b, a", False),
        ("a, b = split(x)", False),
        ("a = x, y", False),
    ],
)
def test_several_values_bound_at_once_are_noticed(statement, several):
    """The twins that must fail."""
    (node,) = ast.parse(statement).body
    assert isinstance(node, ast.Assign)
    assert is_several_at_once(node) == several


@pytest.mark.parametrize(
    ("call", "packed"),
    [
        ("Terms(*agreed, 3)", True),
        ("messages.Terms(1, *shares)", True),
        ("Terms(name=1)", False),
        ("pack(*fields)", False),
        ("LIMIT(*fields)", False),
    ],
)
def test_packed_constructors_are_noticed(call, packed):
    """The twins that must fail."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert is_packed_constructor(node) == packed


@pytest.mark.parametrize(
    ("call", "counts"),
    [
        ("Terms(1, 2, 3, 4)", True),
        ("messages.Terms(1, 2, 3, 4)", True),
        ("Terms(1, 2, 3, fourth=4)", False),
        ("date(2026, 1, 2, 3)", False),
    ],
)
def test_positions_that_must_be_counted_are_noticed(call, counts):
    """The twins that must fail."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert counts_positions(node, {"Terms"}) == counts


def test_hanging_comments_are_noticed():
    """The twin that must fail."""
    text = "# above\na = 1\nb = 2  # beside\nc = '# none'  # noqa: E501\n"
    assert hanging_comments(text) == [3]


def test_names_that_are_nearly_alike_are_noticed(tmp_path):
    """The twins that must fail."""
    assert are_a_letter_apart("population", "populations")
    assert are_a_letter_apart("wide", "wire")
    assert not are_a_letter_apart("people", "population")
    assert letters_apart([tmp_path / "population.py", tmp_path / "populations.py"]) != []
    assert shadows([tmp_path / "typing.py", tmp_path / "taps.py"]) == ["typing"]


def test_long_functions_are_noticed():
    """The twin that must fail."""
    lines = "".join(f"    a{number} = {number}\n" for number in range(61))
    (long,) = functions(ast.parse(f"def f():\n{lines}"))
    assert length(long) == 61
