"""How Python reads, measured: what a reader must hold in mind, line by line and name by name."""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
CLOSING = ")]},"
# Of a constructor, by position: the rest is named.
MOST_POSITIONS = 3
# Comments that linters and type checkers read where they hang.
FOR_TOOLS = ("# noqa", "# type:", "# pyright:", "# pragma:")
# Participles that do not end in -ed, and words that do and are none.
IRREGULAR = set(
    """
    begun bound broken built chosen cut done drawn found given gone grown held hidden kept known
    left lost made met paid put said seen sent shown spent split spoken taken thrown told worn
    written
    """.split()  # noqa: SIM905
)
NO_PARTICIPLES = {"bed", "embed", "feed", "need", "seed", "speed", "split", "put", "cut", "bound"}


class Measured(NamedTuple):
    """A function, and how densely it is written."""

    place: str
    lines: int
    nodes: int

    @property
    def density(self) -> float:
        return self.nodes / self.lines


def lines_of_code(text: str) -> set[int]:
    """Return the numbers of the lines that hold more than a comment or a closing bracket."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE and token.string not in CLOSING:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def body_without_docstring(function: Function) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function) else function.body


def measure(text: str, name: str) -> list[Measured]:
    """Measure the syntax nodes a line of code of every function, its docstring aside."""
    code = lines_of_code(text)
    measured = []
    for function in functions(ast.parse(text)):
        body = body_without_docstring(function)
        if not body:
            continue
        last = body[-1].end_lineno or body[-1].lineno
        lines = sum(number in code for number in range(body[0].lineno, last + 1))
        nodes = sum(1 for statement in body for _ in ast.walk(statement))
        measured.append(Measured(f"{name} {function.name}", lines=lines, nodes=nodes))
    return measured


def length(function: Function) -> int:
    """Return the lines of a function from its first statement to its last."""
    body = body_without_docstring(function)
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def is_several_at_once(node: ast.Assign) -> bool:
    """Whether a statement binds several unrelated values; an exchange of two names is related."""
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    if len(target.elts) != len(node.value.elts):
        return False
    names = sorted(ast.unparse(name) for name in target.elts)
    return names != sorted(ast.unparse(value) for value in node.value.elts)


def is_packed_constructor(node: ast.Call) -> bool:
    """Whether a class is called with a tuple whose fields cannot be seen where it is called."""
    name = ast.unparse(node.func).rpartition(".")[2]
    is_class = name[:1].isupper() and not name.isupper()
    return is_class and any(isinstance(argument, ast.Starred) for argument in node.args)


def counts_positions(node: ast.Call, classes: set[str]) -> bool:
    """Whether a class of ours is called with so many arguments that a reader counts positions."""
    name = ast.unparse(node.func).rpartition(".")[2]
    return name in classes and len(node.args) > MOST_POSITIONS


def hanging_comments(text: str) -> list[int]:
    """Return the numbers of the lines that end in a comment; those that tools read may."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return [
        token.start[0]
        for token in comments
        if token.line[: token.start[1]].strip() and not token.string.startswith(FOR_TOOLS)
    ]


def is_bare_participle(name: str) -> bool:
    word = name.strip("_")
    if "_" in word or word in NO_PARTICIPLES:
        return False
    return word.endswith("ed") or word in IRREGULAR


def are_a_letter_apart(one: str, other: str) -> bool:
    """Whether one name becomes the other by adding, leaving out or changing a letter."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    short, long = sorted((one, other), key=len)
    if len(short) == len(long):
        return sum(a != b for a, b in zip(short, long, strict=True)) == 1
    return any(long[:place] + long[place + 1 :] == short for place in range(len(long)))


def letters_apart(modules: list[Path]) -> list[tuple[str, str]]:
    """Return pairs of module names that a reader would confuse."""
    names = sorted({path.stem for path in modules} - {"__init__", "__main__"})
    return [pair for pair in combinations(names, 2) if are_a_letter_apart(*pair)]


def shadows(modules: list[Path]) -> list[str]:
    """Return the names of modules that the standard library has too."""
    return sorted({path.stem for path in modules} & set(sys.stdlib_module_names))
