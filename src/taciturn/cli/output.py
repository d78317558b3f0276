"""What the commands print with: one console, progress bars, tables, and figures in words."""

import functools
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn

import click
import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from typer.core import TyperCommand

from taciturn.files import to_json
from taciturn.privacy.accounting.rounding_up import epsilon_text
from taciturn.progress import StageProgress

if TYPE_CHECKING:
    from taciturn.evaluation.intervals import Interval, Sums
    from taciturn.runs.loop import TrainedRun

# a pipe has no width to wrap at
console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
# one line, however wide the terminal
say = functools.partial(console.print, soft_wrap=True)
QUIET = click.Option(
    ["--quiet"], is_flag=True, help="print nothing but errors, and what --json prints"
)
JSON = click.Option(
    ["--json", "json_"], is_flag=True, help="print what was found as JSON, and nothing else"
)
LINE_SECONDS = 10.0
# all other metrics are shares
SPECS = {
    "loss": ".2f",
    "perplexity": ".2f",
    "words_per_minute": ".1f",
}


class Commands(typer.Typer):
    """Commands that all take --quiet and --json. Each prints what it does, and returns what it
    found, for JSON; with an exit status beside it where that is not 0. One that runs until it is
    stopped returns nothing, and takes --quiet alone.
    """

    def command(
        self, name: str | None = None, *, endless: bool = False, **settings: Any
    ) -> Callable[[Callable], Callable]:
        return super().command(name, cls=_Endless if endless else _Telling, **settings)


class _Telling(TyperCommand):
    added = (QUIET, JSON)

    def __init__(self, name: str, params: list[click.Parameter], **settings: Any) -> None:
        super().__init__(name, params=[*params, *self.added], **settings)

    def invoke(self, ctx: click.Context) -> None:
        quiet, as_json = ctx.params.pop("quiet"), ctx.params.pop("json_", False)
        before, console.quiet = console.quiet, quiet or as_json
        try:
            found = super().invoke(ctx)
        finally:
            console.quiet = before
        content, status = found if isinstance(found, tuple) else (found, 0)
        if as_json:
            print(to_json(content, ensure_ascii=False))
        if status:
            raise typer.Exit(status)


class _Endless(_Telling):
    added = (QUIET,)


def group(name: str, help: str, example: str) -> Commands:
    """Make a group of commands, which prints its help when it is called alone."""
    return Commands(name=name, help=f"{help}\n\nExample: {example}", no_args_is_help=True)


def finite(value: float | None) -> float | None:
    """Refuse «nan» and «inf», which pass for numbers within any range."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(
            f"{value} is not a number that can be used here; give one such as 0.5"
        )
    return value


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    left: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> None:
    """Print figures; words go into columns without a name, or those of `left`. `styles` are those
    of the rows.
    """
    made = Table(title=title, title_justify="left")
    for name in columns:
        made.add_column(
            name, justify="left" if not name or name in left else "right", no_wrap=not name
        )
    for row, style in zip_longest(rows, styles):
        made.add_row(*row, style=style)
    console.print(made)


def print_metrics(
    names: Mapping[str, str], measured: "Sequence[Sums]", *more: Sequence[str]
) -> None:
    """Print the metrics of one model, or of two with the relative change, in bold where its
    interval excludes zero; then `more` rows.
    """
    columns, styles = ["", "value ± 95 %"], []
    rows = [
        [name, *(f"{one[metric]:{SPECS.get(metric, '.2%')}}" for one in measured)]
        for metric, name in names.items()
    ]
    if len(measured) == 2:
        columns = ["", "A ± 95 %", "B ± 95 %", "B over A, relative"]
        changes = [measured[1].change_from(measured[0], metric) for metric in names]
        rows = [[*row, change_text(change)] for row, change in zip(rows, changes, strict=True)]
        styles = ["bold" if abs(change.value) > change.margin else "dim" for change in changes]
    print_table(columns, [*rows, *more], styles=styles)


def change_text(change: "Interval") -> str:
    margin = f" ± {100 * change.margin:.2f}" if math.isfinite(change.margin) else ""
    return f"{100 * change.value:+.2f} %{margin}" if math.isfinite(change.value) else ""


def print_finished(finished: "TrainedRun", gain: "Interval | None" = None) -> dict[str, Any]:
    """Print why a run stopped early, its guarantee, how good its model is (where known, with its
    gain), and what to do next.
    """
    if finished.stopped:
        console.print(f"Stopped: {finished.stopped}.\n", style="yellow")
    say((finished.folder / "guarantee.txt").read_text())
    if finished.recipe.privacy.noise_multiplier is not None:
        console.print(f"Noise multiplier {finished.recipe.privacy.noise_multiplier:g}")
    if finished.clip_estimate is not None:
        fixed = f"--set privacy.clipping=flat --set privacy.clip_norm={finished.clip_estimate:.3g}"
        console.print(
            f"The clip norm ended at {finished.clip_estimate:.3g}. To spend nothing on finding it"
            f" next time: {fixed}"
        )
    accuracy, perplexity = finished.scores["accuracy_top1"], finished.scores["perplexity"]
    console.print(
        f"AccuracyTop1 {accuracy:.2%}, perplexity {perplexity:.1f} (95 % intervals over held-out"
        " users)"
    )
    if gain:
        before = finished.before["accuracy_top1"].value
        console.print(
            f"{100 * gain.value:+.2f} ± {100 * gain.margin:.2f} points of AccuracyTop1 over where"
            f" it started, {before:.2%}"
        )
    if (finished.folder / "report.html").exists():
        say(f"On one page: {finished.folder / 'report.html'}")
    page = finished.model.kind and finished.model.kind.javascript_cell
    say(
        f"Next: taciturn {'keyboard open' if page else 'export --to arpa --out FOLDER'}"
        f" {finished.folder}"
    )
    guarantee = finished.guarantee
    cost = {
        "run": str(finished.folder),
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "rho": guarantee.rho,
    }
    return cost | {
        "accuracy_top1": vars(accuracy),
        "perplexity": vars(perplexity),
        "stopped": finished.stopped,
    }


def leave_interrupted(words: str) -> NoReturn:
    """End after Ctrl-C, without waiting for a computation in another thread, which may not survive
    the interpreter's end.
    """
    console.print(f"\nStopped. {words}")
    sys.stdout.flush()
    os._exit(130)


def begin(words: str) -> None:
    """Print a first line at once; the imports before the next one take seconds."""
    say(f"{words} …", markup=False, style="dim")


def _lines(unit: str, wait: float) -> Iterator[Callable[..., None]]:
    """Print progress as lines, for pipes: at once what begins (`all` is None) and a bar's last,
    others after `wait` and every 10 s.
    """
    began: dict[str, list[tuple[float, int]]] = {}
    due, known, line, ended = time.monotonic() + wait, 0.0, "", threading.Event()

    def say_line(now: float, more: str) -> None:
        nonlocal due
        due = now + LINE_SECONDS
        say(f"{line}{more}", markup=False)

    def show(stage: str, done: int, all: int | None, note: str = "") -> None:
        nonlocal known, line
        now = known = time.monotonic()
        calls = began.setdefault(stage, [])
        # the time left is judged from the second, as before it all is compiled
        calls += [(now, done)] if all and len(calls) < 2 else []
        since, before = calls[-1] if calls else (now, done)
        left = (
            timedelta(seconds=round((now - since) * (all - done) / (done - before)))
            if all and all > done > before
            else None
        )
        line = (
            f"{stage}:"
            f" {'  '.join(filter(None, (f'{done:,} of {all:,} {unit}'.strip() if all else '', note)))}"
        )
        if now >= due or all is None or (done == all and unit):
            say_line(now, f"  {left} left" if left else "")

    def keep_saying() -> None:
        while not ended.wait(1):
            now = time.monotonic()
            if (
                line and now >= due and now - known >= LINE_SECONDS
                # else the next call has more to say
            ):
                say_line(now, f"  (for {timedelta(seconds=round(now - known))} now)")

    threading.Thread(target=keep_saying, daemon=True).start()
    try:
        yield show
    finally:
        ended.set()


@contextmanager
def stages(unit: str = "", stay: bool = False) -> Iterator[Callable[..., None]]:
    """Show a bar with the time left for each stage of a job, or lines where there is no terminal;
    yields show(stage, done, all, note).
    """
    if not console.is_terminal:
        yield from _lines(unit, 0 if stay else 2)
        return
    begin = (SpinnerColumn(), TextColumn("{task.description:<14}"), BarColumn(bar_width=30))
    counted = MofNCompleteColumn() if unit else TaskProgressColumn()
    end = (counted, TextColumn(unit), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*begin, *end, console=console, transient=not stay) as view:
        task = functools.cache(functools.partial(view.add_task, total=None, note=""))
        try:
            yield lambda stage, done, all, note="": view.update(
                task(stage), completed=done, total=all, note=note
            )
        except BaseException:
            # what was refused leaves no dead bar behind
            view.live.transient = True
            raise


@contextmanager
def bar(title: str, unit: str) -> Iterator[Callable[..., None]]:
    """Show one bar, which stays; yields show(done, all, note)."""
    if threading.current_thread() is threading.main_thread():
        # a job that is ended says how to resume it, as after Ctrl-C
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with stages(unit, stay=True) as show:
        yield functools.partial(show, title)


@contextmanager
def training_bar(title: str) -> Iterator[Callable[..., None]]:
    with bar(title, "rounds") as show:
        show(0, None, "compiling, and measuring the start")
        measured = "Top1 {:.2%}, ε {} at round {}".format
        yield lambda done, all, row: show(
            done,
            all,
            (
                measured(row["accuracy_top1"], epsilon_text(row["epsilon"]), row["round"])
                if done
                else "compiling a round"
            ),
        )


# what devices do in a stage of a round
DOING = {
    "advertise": "making keys",
    "share": "sharing secrets",
    "report": "training",
    "sign": "signing the list",
    "unmask": "unmasking",
}


@contextmanager
def fleet_view(address: str, enrolled: int) -> Iterator[tuple[StageProgress, Callable[..., None]]]:
    """Show the rounds, and each stage that devices are in; yields watch(stage, done, all) and
    progress(done, all, row).
    """
    console.print(f"{enrolled} devices are enrolled; the server listens on {address}")
    with stages(stay=True) as show:
        show("rounds", 0, None, "measuring the start")
        finished = 0

        def watch(stage: str, done: int, all: int) -> None:
            compiles = stage == "report" and not finished
            show(
                DOING.get(stage, stage),
                done,
                all,
                "devices; each compiles the model first" if compiles else "devices",
            )

        def progress(done: int, all: int, row: dict[str, Any]) -> None:
            nonlocal finished
            finished = done
            note = (
                f"ε {epsilon_text(row['epsilon'])}  {row['uploads']:,} reports,"
                f" {row['dropped_out']:,} lost"
            )
            note += f", {row['failed_rounds']} failed" if row["failed_rounds"] else ""
            show("rounds", done, all, f"{note}  Top1 {row['accuracy_top1']:.2%}")

        yield watch, progress


@contextmanager
def logged_lines(as_json: bool = False) -> Iterator[None]:
    """Print the fleet's log. No line names a device: those that do are at DEBUG, and not shown."""
    log, handler = (
        logging.getLogger("taciturn.fleet"),
        RichHandler(console=console, show_path=False),
    )
    if as_json:
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonLine())
    handler.setLevel(logging.INFO)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Warnings(logging.Handler):
    """Print what a library logs as a sentence of this command, above progress that is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"taciturn: {record.getMessage()}", file=sys.stderr)


_WARNINGS = _Warnings(logging.WARNING)


def print_warnings(log: logging.Logger) -> None:
    """Print the warnings of this log from now on."""
    log.addHandler(_WARNINGS)


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps(
            {"time": at, "level": record.levelname.lower(), "message": record.getMessage()},
            ensure_ascii=False,
        )
