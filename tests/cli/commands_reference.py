"""The list of all commands in docs/commands.md, made from the commands themselves.

python tests/cli/commands_reference.py        writes it
"""

from collections.abc import Iterator
from pathlib import Path

import click
import typer

from taciturn.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
HEADING = "## All of them"
BELOW = "## Recipes"


def reference() -> str:
    """Return the section: every command, and what its help says first."""
    rows = [f"| `{' '.join(words)}` | {first_sentence(command)} |" for words, command in commands()]
    said = "Made by `tests/cli/commands_reference.py`; a test keeps it in step."
    return "\n".join([HEADING, "", said, "", "| command | what it does |", "|---|---|", *rows, ""])


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that does something, with its words."""
    waiting = [(("taciturn",), typer.main.get_command(app))]
    while waiting:
        words, command = waiting.pop(0)
        below = getattr(command, "commands", {})
        if not below:
            yield words, command
        waiting[:0] = [((*words, name), inner) for name, inner in below.items()]


def first_sentence(command: click.Command) -> str:
    paragraph = (command.help or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


def with_reference(page: str) -> str:
    """Return the page with its list of commands made anew."""
    before, _, rest = page.partition(f"{HEADING}\n")
    after = rest[rest.index(BELOW) :]
    return f"{before}{reference()}\n{after}"


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text()))
