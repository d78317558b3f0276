"""The command line: every command and group of `taciturn`, and how it ends."""

import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from typer import Option

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
from taciturn.cli.command_classes import Commands
from taciturn.cli.output import console
from taciturn.errors import TaciturnError, describe_os_error

app = Commands(
    no_args_is_help=True,
    suggest_commands=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
)
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


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
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
    """Run a command; an error that a person can act on is a sentence, not a traceback."""
    # Each core is a device of JAX, which reads this when it is loaded; loading it here would make
    # help wait.
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores))
    try:
        app()
    except OSError as error:
        _refuse(describe_os_error(error))
    except TaciturnError as error:
        _refuse(str(error))


def _refuse(words: str) -> NoReturn:
    """Print what is wrong, and end."""
    errors = Console(stderr=True)
    errors.print(f"taciturn: {words}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)
