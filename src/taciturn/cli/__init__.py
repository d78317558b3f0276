"""The command line: every command and group of `taciturn`, and how it ends."""

import os
import sys
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from typer import Option, core

import taciturn as tt
from taciturn.cli import (
    audit,
    bench,
    data,
    demo,
    evaluate,
    export,
    fleet,
    keyboard,
    ledger,
    personalise,
    plan,
    pretrain,
    train,
    tune,
)
from taciturn.cli.output import Commands, console
from taciturn.errors import TaciturnError, in_words

core.HAS_RICH = (
    # or help in plain text has its brackets escaped, for a renderer that it does not use
    False
)

# or errors speak of a «valid integer range»
click.IntRange.name, click.FloatRange.name = (
    "integer",
    "number",
)

plain: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"max_content_width": 100},
}
app = Commands(no_args_is_help=True, suggest_commands=False, **plain)
for command in (
    demo.demo,
    plan.plan,
    tune.tune,
    pretrain.pretrain,
    train.train,
    evaluate.evaluate,
    evaluate.compare,
    evaluate.report,
    export.export,
    personalise.personalise,
    bench.bench,
    bench.doctor,
):
    app.command()(command)
for group in (
    data.data_app,
    fleet.fleet_app,
    keyboard.keyboard_app,
    audit.audit_app,
    ledger.ledger_app,
):
    app.add_typer(group)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(tt.__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, Option("--version", help="print the version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Train language models that learn from everyone and repeat no one, with user-level
    differential privacy.

    Example: taciturn demo
    """


def main() -> None:
    """Errors that a person can act on are a sentence, not a traceback."""
    # Every core a device of JAX, which reads this when it is loaded; loading it here would make
    # help wait.
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(len(os.sched_getaffinity(0))))
    try:
        app()
    except (TaciturnError, OSError) as error:
        words = in_words(error) if isinstance(error, OSError) else error
        Console(stderr=True).print(
            f"taciturn: {words}", style="red", highlight=False, markup=False, soft_wrap=True
        )
        sys.exit(2)
