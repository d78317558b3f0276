"""Progress of a job: bars in a terminal, lines in a pipe."""

import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from taciturn.cli.output import console, say
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.runs.display import describe_round

# Between two lines in a pipe.
LINE_SECONDS = 10.0
# What devices do in a stage of a round.
DOING = {
    Stage.ADVERTISE.question: "making keys",
    Stage.SHARE.question: "sharing secrets",
    Stage.MASK.question: "training",
    Stage.SIGN.question: "signing the list",
    Stage.UNMASK.question: "unmasking",
}


class ShowStage(Protocol):
    """Shows how much of a stage is done; `all` is None where that is unknown."""

    def __call__(self, stage: str, done: int, all: int | None, note: str = "") -> None: ...


@contextmanager
def stages(unit: str = "", stay: bool = False) -> Iterator[ShowStage]:
    """Show a bar with the time left for each stage of a job, or lines where there is no terminal.

    Args:
        unit: of what is counted; without one, shares are shown.
        stay: leave the bars there when the job is done.
    """
    if not console.is_terminal:
        with LineProgress(unit, wait=0.0 if stay else 2.0) as lines:
            yield lines.update
        return
    with _make_view(unit, stay) as view:
        try:
            yield _Bars(view).update
        except BaseException:
            # What was refused leaves no dead bar behind.
            view.live.transient = True
            raise


def _make_view(unit: str, stay: bool) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn() if unit else TaskProgressColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=not stay,
    )


class _Bars:
    """A bar for each stage, in a terminal."""

    def __init__(self, view: Progress) -> None:
        self._view = view
        self._tasks: dict[str, TaskID] = {}

    def update(self, stage: str, done: int, all: int | None, note: str = "") -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._view.add_task(stage, total=None, note="")
        self._view.update(self._tasks[stage], completed=done, total=all, note=note)


class _Beginning(NamedTuple):
    """How far a stage was at an early call."""

    at: float
    done: int


class LineProgress:
    """Progress as lines, for pipes.

    What begins (`all` is None) and what ends is printed at once; anything else after a while, and
    then every ten seconds, by a thread where nothing new is known for so long.
    """

    def __init__(self, unit: str, wait: float) -> None:
        """`wait` seconds pass before the first line."""
        self._unit = unit
        # Of each stage, its first two calls: the time left is judged from the second, as before it
        # everything is compiled.
        self._beginnings: dict[str, list[_Beginning]] = {}
        self._due = time.monotonic() + wait
        self._updated = 0.0
        self._line = ""
        self._ended = threading.Event()

    def __enter__(self) -> "LineProgress":
        threading.Thread(target=self._keep_beating, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()

    def update(self, stage: str, done: int, all: int | None, note: str = "") -> None:
        """Take note of how far a stage is, and print it if a line is due."""
        now = time.monotonic()
        self._updated = now
        self._line = f"{stage}: {self._describe(done, all, note)}"
        # Also where no line is due: it takes note of a stage's first calls.
        left = self._time_left(stage, done, all, now)
        begins = all is None
        ends = done == all and self._unit != ""
        is_due = now >= self._due
        if is_due or begins or ends:
            self._print(now, f"  {left} left" if left else "")

    def _describe(self, done: int, all: int | None, note: str) -> str:
        count = f"{done:,} of {all:,} {self._unit}".strip() if all else ""
        parts = [part for part in (count, note) if part]
        return "  ".join(parts)

    def _time_left(self, stage: str, done: int, all: int | None, now: float) -> timedelta | None:
        beginnings = self._beginnings.setdefault(stage, [])
        if not all:
            return None
        if len(beginnings) < 2:
            beginnings.append(_Beginning(now, done))
        since = beginnings[-1]
        if not all > done > since.done:
            return None
        took = now - since.at
        seconds = took * (all - done) / (done - since.done)
        return timedelta(seconds=round(seconds))

    def _keep_beating(self) -> None:
        while not self._ended.wait(1):
            self._beat()

    def _beat(self) -> None:
        """Print the last line again if nothing new came for long; else the next call has more."""
        now = time.monotonic()
        silent = now - self._updated
        if self._line and now >= self._due and silent >= LINE_SECONDS:
            self._print(now, f"  (for {timedelta(seconds=round(silent))} now)")

    def _print(self, now: float, more: str) -> None:
        self._due = now + LINE_SECONDS
        say(f"{self._line}{more}", markup=False)


@contextmanager
def bar(title: str, unit: str) -> Iterator[Callable[..., None]]:
    """Show one bar, which stays; yields show(done, all, note)."""
    if threading.current_thread() is threading.main_thread():
        # A job that is ended says how to resume it, as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with stages(unit, stay=True) as show:
        yield functools.partial(show, title)


@contextmanager
def training_bar(title: str) -> Iterator[Callable[[int, int, dict[str, Any]], None]]:
    """Show the rounds of a training; yields show(done, all, row)."""
    with bar(title, "rounds") as show:
        show(0, None, "compiling, and measuring the start")
        yield functools.partial(_show_rounds, show)


def _show_rounds(show: Callable[..., None], done: int, all: int, row: dict[str, Any]) -> None:
    show(done, all, describe_round(done, row))


class FleetView:
    """The rounds of a fleet, and each stage that its devices are in."""

    def __init__(self, show: ShowStage) -> None:
        self._show = show
        self._finished_rounds = 0

    def watch(self, stage: str, done: int, all: int) -> None:
        """Show how many devices are through a stage."""
        compiles = stage == Stage.MASK.question and not self._finished_rounds
        note = "devices; each compiles the model first" if compiles else "devices"
        self._show(DOING.get(stage, stage), done, all, note)

    def progress(self, done: int, all: int, row: dict[str, Any]) -> None:
        """Show the rounds that are finished."""
        self._finished_rounds = done
        spent = pair_text(row["epsilon"], row["delta"])
        note = f"{spent}  {row['uploads']:,} reports, {row['dropped_out']:,} lost"
        if row["failed_rounds"]:
            note += f", {row['failed_rounds']} failed"
        self._show("rounds", done, all, f"{note}  Top1 {row['accuracy_top1']:.2%}")


@contextmanager
def fleet_view(address: str, enrolled: int) -> Iterator[FleetView]:
    """Show the rounds of a fleet, and each stage that its devices are in."""
    console.print(f"{enrolled} devices are enrolled; the server listens on {address}")
    with stages(stay=True) as show:
        show("rounds", 0, None, "measuring the start")
        yield FleetView(show)
