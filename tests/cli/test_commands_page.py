"""docs/commands.md lists every command there is."""

import typer
from commands_reference import PAGE, commands, with_reference

from taciturn.cli import app


def test_the_list_of_commands_is_in_step_with_the_commands():
    page = PAGE.read_text()
    assert page == with_reference(page), "write it again: python tests/cli/commands_reference.py"


def test_a_command_that_is_not_listed_would_be_noticed():
    """The twin that must fail."""
    page = PAGE.read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `taciturn ledger adopt`")]
    assert with_reference(page.replace(row, "")) != page.replace(row, "")


def test_every_command_at_every_depth_is_listed():
    def count(command) -> int:
        below = getattr(command, "commands", {})
        return sum(count(inner) for inner in below.values()) if below else 1

    listed = list(commands())
    assert len(listed) == count(typer.main.get_command(app)) > 30
