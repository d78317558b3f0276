"""Every exception is a sentence for the person at the keyboard, but for the few that somebody in
the program catches.
"""

import ast
import builtins
import re
from collections import Counter
from pathlib import Path

from taciturn.cli.command_classes import name_flags

MODULES = sorted((Path(__file__).parents[2] / "src" / "taciturn").rglob("*.py"))

CAUGHT = {
    "FailedRound": "the curator: a round with too few reports is tried again, or given up",
    "TooFewDevices": "the training: the run ends here, and says so",
    "Refused": "the secure sum: the message counts as none, and a private log says why",
    "Unneeded": "the secure sum: the message counts as none, and nothing is wrong with it",
    "NoEntry": "the front end: the request is answered with its reason",
    "RefusedByServer": "a device: it tries again, later and later",
    "ComeBackLater": "the device's end of the wire: it goes away, and comes back",
    "NotEligible": "the device's end of the wire: the answer is empty, and its own log says why",
}


def exceptions(paths: list[Path]) -> list[tuple[str, set[str]]]:
    """Every exception class that is defined there, with the names of all that it derives from."""
    found = [
        node
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    bases = {node.name: [ast.unparse(base).split(".")[-1] for base in node.bases] for node in found}

    def above(name: str) -> set[str]:
        return {one for base in bases.get(name, []) if base != name for one in (base, *above(base))}

    def is_exception(name: str) -> bool:
        one = getattr(builtins, name, None)
        return isinstance(one, type) and issubclass(one, BaseException)

    return [
        (node.name, above(node.name)) for node in found if any(map(is_exception, above(node.name)))
    ]


def test_an_error_is_a_sentence_for_a_person_or_somebody_catches_it():
    found = exceptions(MODULES)
    assert len(found) > 20
    others = {name for name, above in found if "TaciturnError" not in above} - {"TaciturnError"}
    assert others == set(CAUGHT)


def test_no_two_errors_have_one_name():
    counts = Counter(name for name, _ in exceptions(MODULES))
    assert [name for name, count in counts.items() if count > 1] == []


def test_an_error_that_is_neither_would_be_noticed(tmp_path):
    """The twin that must fail."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "class Base(KeyError): ...\nclass Wrong(Base): ...\nclass Fine(NamedTuple): ...\n"
    )
    assert [name for name, above in exceptions([wrong]) if "TaciturnError" not in above] == [
        "Base",
        "Wrong",
    ]


# A command in full, of ours or of another program, may be given as advice.
COMMAND = re.compile(r"(taciturn|ray|zstd) [^,;:)]*|`[a-z]+ --[^`]*`")
FLAG = re.compile(r"--[a-z][a-z-]*")
# Strings outside of the command line that are no errors for the caller of a function.
OTHER_FLAGS = {
    "--system": "an argument of busctl",
    "--while-command": "why a device does not take part, in its own log",
    "--save": "an option of Redis",
    "--appendonly": "an option of Redis",
}


def strings(tree: ast.AST) -> list[str]:
    """Return every string that is computed with, or printed, in one piece."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        # A string that stands alone is a docstring.
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            found += strings(node)
    return found


def flags(text: str) -> list[str]:
    return [
        flag
        for string in strings(ast.parse(text))
        for flag in FLAG.findall(COMMAND.sub("", string))
    ]


def test_the_library_names_arguments_and_only_the_command_line_names_flags():
    library = [path for path in MODULES if "cli" not in path.parts]
    named = {flag for path in library for flag in flags(path.read_text())}
    assert named == set(OTHER_FLAGS)


# Commands that a function of the API does too. An error of the library names the function, and the
# command line writes the command (`COMMANDS` in cli/command_classes.py). Others, such as those of
# ledgers and fleets, are the only way, and stand in full.
BESIDE_A_FUNCTION = re.compile(
    r"taciturn (data build|train|resume|evaluate|compare|report|export|audit run)\b"
)
# Where commands are the subject: settings in files that commands read, and what each command needs.
ABOUT_COMMANDS = {"recipe/sections.py", "bench/health.py"}
# Pages and logs, which are read in no program.
NO_ERRORS = {
    "runs/page.py": ("For the n-grams that keyboards", "This run can be audited and was not yet"),
    "runs/loop.py": ("the run is finished; only its page could not be written",),
}


def commands(text: str) -> list[str]:
    """Return the strings that name a command where a function would do."""
    return [string for string in strings(ast.parse(text)) if BESIDE_A_FUNCTION.search(string)]


def test_the_library_names_its_functions_and_only_the_command_line_names_commands():
    package = MODULES[0].parents[0]
    named = []
    for path in MODULES:
        place = path.relative_to(package).as_posix()
        if place.startswith("cli/") or place in ABOUT_COMMANDS:
            continue
        meant = NO_ERRORS.get(place, ())
        named += [
            f"{place}: {one}" for one in commands(path.read_text()) if not one.startswith(meant)
        ]
    assert named == []


def test_a_command_in_an_error_of_the_library_would_be_noticed():
    """The twin that must fail."""
    assert commands('raise RunError(f"resume it:" f" taciturn train --resume --run {folder}")')
    assert commands("raise RunError(f\"resume it: `tt.resume('{folder}')`\")") == []
    assert commands('raise LedgerError("close it: taciturn ledger close FOLDER RUN")') == []


def test_every_function_that_an_error_advises_becomes_a_command():
    """Or else a call would be shown to those who are not in Python."""
    calls = []
    for path in MODULES:
        if "cli" not in path.parts:
            for string in strings(ast.parse(path.read_text())):
                calls += re.findall(r"`tt\.[^`]*\([^`]+`", string)
    assert len(calls) > 5
    assert [call for call in calls if name_flags(call, "train").startswith(("`", "--"))] == []


def test_a_flag_in_an_error_of_the_library_would_be_noticed():
    """The twin that must fail."""
    assert flags('raise DataError(f"{folder} is a file:" " name another --out")') == ["--out"]
    assert flags('"""Like `build --out`."""\nf"resume it: taciturn train --run {folder}"') == []
