"""What all commands have in common: plain help, --quiet and --json, what they return and refuse."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from taciturn.cli.output import console
from taciturn.errors import TaciturnError
from taciturn.files import to_json

QUIET = click.Option(
    ["--quiet"], is_flag=True, help="print nothing but errors, and what --json prints"
)
JSON = click.Option(
    ["--json", "json_"], is_flag=True, help="print what was found as JSON, and nothing else"
)
# An argument as errors of the library name it: `held_out`, `replace=True`, `tt.resume()`.
ARGUMENT = re.compile(r"`(?P<name>[a-z_]+(\.[a-z_]+)?(\(\))?)(=(?P<value>[^`]*))?`")
# Calls that errors of the library advise, and the commands that do the same.
COMMANDS = {
    "tt.build_population(TEXT, FOLDER)": "taciturn data build TEXT --out FOLDER",
    "tt.build_population(TEXT, FOLDER, vocabulary=WORDS)": (
        "taciturn data build TEXT --out FOLDER --vocabulary WORDS"
    ),
    "tt.train(RECIPE)": "taciturn train RECIPE",
    "tt.train(PEOPLE, epsilon=EPSILON)": "taciturn train PEOPLE --epsilon EPSILON",
    "tt.resume(RUN)": "taciturn train --resume --run RUN",
    "tt.FinishedRun(RUN).report()": "taciturn report RUN",
    "tt.FinishedRun(RUN).export(FOLDER, to=FORMAT)": "taciturn export RUN --to FORMAT --out FOLDER",
    "tt.FinishedRun(RUN).compare(tt.FinishedRun(OTHER))": "taciturn compare RUN OTHER",
}
# What stands for an argument in them.
PLACE = re.compile(r"\b[A-Z]+\b")
# How options are called whose argument has another name.
FLAGS = {
    "folder": "--out",
    "settings": "--set",
    "tries": "--try",
    "target": "--grow-to-rho",
    "audit.users": "--audit",
    "columns.user": "--user-column",
    "columns.text": "--text-column",
    "columns.time": "--time-column",
    "columns.sensitive": "--sensitive-column",
    "tt.train": "`taciturn train`",
    "tt.resume": "--resume",
    "tt.resume()": "add --resume",
}
# The same, by the command that has others.
FLAGS_OF = {
    "train": {"folder": "--run"},
    "serve": {"folder": "--run"},
}


def _find_call(call: str) -> re.Pattern[str]:
    """Return what finds a call between backticks, whatever its arguments are."""
    with_places = PLACE.sub(lambda place: f"(?P<{place[0]}>[^`]+?)", re.escape(call))
    return re.compile(f"`{with_places}`")


# Those with more arguments first: what stands for an argument finds several of them too.
CALLS = {call: _find_call(call) for call in sorted(COMMANDS, key=len, reverse=True)}


class Commands(typer.Typer):
    """Commands that all take --quiet and --json.

    Each prints what it does, and returns what it found, for JSON; with an exit status beside it
    where that is not 0. One that runs until it is stopped returns nothing, and takes only --quiet.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(
        self, name: str | None = None, *, endless: bool = False, **settings: Any
    ) -> Callable[[Callable], Callable]:
        return super().command(name, cls=_EndlessCommand if endless else _Command, **settings)


def group(name: str, help: str, example: str) -> Commands:
    """Make a group of commands, which prints its help when it is called by itself."""
    return Commands(name=name, help=f"{help}\n\nExample: {example}", no_args_is_help=True)


class _PlainHelp(click.Command):
    """A command whose help is plain text.

    Typer escapes the brackets in its own, for rich to remove, which takes no part here.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = []
        options = []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperArgument):
                arguments.append(_describe_argument(parameter, ctx))
            elif isinstance(parameter, click.Option):
                record = click.Option.get_help_record(parameter, ctx)
                # A hidden option has none.
                if record is not None:
                    options.append(record)
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _describe_argument(argument: TyperArgument, ctx: click.Context) -> tuple[str, str]:
    """Return how an argument is written, and what it is for."""
    required = "  [required]" if argument.required else ""
    return argument.make_metavar(ctx), f"{argument.help or ''}{required}"


class _Group(_PlainHelp, TyperGroup):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class _Command(_PlainHelp, TyperCommand):
    common_options: tuple[click.Option, ...] = (QUIET, JSON)

    def __init__(self, name: str, params: list[click.Parameter], **settings: Any) -> None:
        for parameter in params:
            _name_range(parameter.type)
        super().__init__(name, params=[*params, *self.common_options], **settings)

    def invoke(self, ctx: click.Context) -> None:
        is_quiet = ctx.params.pop("quiet")
        as_json = ctx.params.pop("json_", False)
        was_quiet = console.quiet
        console.quiet = is_quiet or as_json
        try:
            result = super().invoke(ctx)
        except TaciturnError as error:
            error.args = (name_flags(str(error), self.name),)
            raise
        finally:
            console.quiet = was_quiet
        content = result
        status = 0
        if isinstance(result, tuple):
            content, status = result
        if as_json:
            print(to_json(content, ensure_ascii=False))
        if status:
            raise typer.Exit(status)


class _EndlessCommand(_Command):
    common_options = (QUIET,)


def _name_range(type: click.ParamType) -> None:
    """Call a range what it is a range of, or errors speak of a «valid integer range»."""
    if isinstance(type, click.IntRange):
        type.name = "integer"
    elif isinstance(type, click.FloatRange):
        type.name = "number"


def name_flags(sentence: str, command: str | None) -> str:
    """Write flags and commands where an error of the library names arguments and functions.

    >>> name_flags("put new text into it with `replace=True`, or name another `folder`", "build")
    'put new text into it with --replace, or name another --out'
    >>> name_flags("resume it: `tt.resume('runs/first')`", "train")
    'resume it: taciturn train --resume --run runs/first'
    >>> name_flags("use it: `tt.train('people', epsilon=4)`", "build")
    'use it: taciturn train people --epsilon 4'
    """
    flags = {**FLAGS, **FLAGS_OF.get(command or "", {})}
    for call, pattern in CALLS.items():
        sentence = pattern.sub(partial(_write_command, COMMANDS[call]), sentence)

    def write_flag(argument: re.Match[str]) -> str:
        name = argument["name"]
        value = argument["value"]
        flag = flags.get(name, "--" + name.replace("_", "-"))
        return flag if value in (None, "True") else f"{flag} {value}"

    return ARGUMENT.sub(write_flag, sentence)


def _write_command(command: str, call: re.Match[str]) -> str:
    """Write a command with the arguments of a call."""
    return PLACE.sub(lambda place: call[place[0]].strip("'\""), command)


def finite(value: float | None) -> float | None:
    """Refuse «nan» and «inf», which pass for numbers within any range."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(
            f"{value} is not a number that can be used here; give one such as 0.5"
        )
    return value
