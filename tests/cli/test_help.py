"""Every command explains itself, has one name, and is called by it wherever it is spoken of."""

import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from taciturn.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/README.md")]
TACITURN = typer.main.get_command(app)


def tree(command, path=()):
    """Every command and group with the words that it is called by."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from tree(below, (*path, name))


COMMANDS = dict(tree(TACITURN))


def check(line):
    """Refuse a line that names a command, or an option of it, that does not exist."""
    command = TACITURN
    words = shlex.split(line, comments=True)[1:]
    while isinstance(command, click.Group) and words:
        assert words[0] in command.commands, f"there is no `{words[0]}` in: {line}"
        command = command.commands[words.pop(0)]
    known = {"--help", *(option for one in command.params for option in one.opts)}
    for word in words:
        assert not word.startswith("--") or word.split("=")[0] in known, (
            f"{line}: there is no option {word}"
        )


def spoken_of(text):
    """Commands in a page: lines of its examples, and what stands in backticks."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines = re.split(r";|&&|\n", block.replace("\\\n", " "))
        yield from (line.strip() for line in lines if line.strip().startswith("taciturn "))
    yield from re.findall(r"`(taciturn [^`]+)`", text)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "taciturn")
def test_help_teaches_by_an_example(path):
    shown = CliRunner().invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    said = " ".join(shown.output.split())
    assert re.search(rf"Example: .*{' '.join(('taciturn', *path))}\b", said)
    assert len(said) > 200
    assert not path or f"  {path[-1]} " in CliRunner().invoke(app, [*path[:-1], "--help"]).output
    for line in re.search(r"Example: (.*)", COMMANDS[path].help)[1].split("; "):
        check(line)


@pytest.mark.parametrize(
    "path", [path for path, command in COMMANDS.items() if isinstance(command, click.Group)]
)
def test_lists_of_commands_have_whole_sentences(path):
    shown = CliRunner().invoke(app, [*path, "--help"]).output.partition("Commands:")[2]
    assert shown.strip()
    assert "..." not in shown


def test_a_command_has_one_name_and_no_two_have_the_same():
    callbacks = Counter(
        command.callback for command in COMMANDS.values() if not isinstance(command, click.Group)
    )
    assert set(callbacks.values()) == {1}
    groups = [group.typer_instance for group in app.registered_groups]
    for one in (app, *groups):
        named = [command.name or command.callback.__name__ for command in one.registered_commands]
        names = Counter(
            [*named, *(group.typer_instance.info.name for group in one.registered_groups)]
        )
        assert set(names.values()) == {1}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_the_documentation_exist(page):
    for line in spoken_of(page.read_text()):
        check(line)


def test_commands_that_the_program_speaks_of_exist():
    found = [
        re.findall(r"(?:`|[:;] )taciturn ([a-z]+)(?: ([a-z-]+))?", path.read_text())
        for path in (ROOT / "src").rglob("*.py")
    ]
    assert sum(map(len, found)) > 50
    for name, next_word in {one for some in found for one in some}:
        assert name in TACITURN.commands
        below = getattr(TACITURN.commands[name], "commands", {next_word: None})
        assert not next_word or next_word in below, f"taciturn {name} {next_word}"


@pytest.mark.parametrize(
    "line", ["taciturn serve people", "taciturn ledger people", "taciturn bench --python x"]
)
def test_a_command_of_another_name_would_be_noticed(line):
    """The twin that must fail."""
    with pytest.raises(AssertionError, match="there is no"):
        check(line)


@pytest.mark.parametrize(
    ("room", "libraries"),
    [
        ("cli", ("jax", "numpy", "pyarrow", "dp_accounting")),
        ("people", ("jax",)),
        ("core", ("jax",)),
    ],
)
def test_a_command_waits_for_no_library_that_it_does_not_need(room, libraries):
    """Half a second is what help, and the first line of a ledger, may take; JAX alone takes
    longer.
    """
    loaded = (
        f"import sys, taciturn.{room}; print([name for name in {libraries} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
