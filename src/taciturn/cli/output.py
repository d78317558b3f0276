"""What the commands print with: one console, progress bars, tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
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

from taciturn.progress import StageProgress

console = Console()
BLOCKS = " ▏▎▍▌▋▊▉█"


@contextmanager
def bar(title: str, unit: str) -> Iterator[Any]:
    """A progress bar; yields show(done, all, note)."""
    columns = (
        SpinnerColumn(),
        TextColumn(f"{title:<14}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task(title, total=None, note="")
        try:
            yield lambda done, all, note: progress.update(task, completed=done, total=all, note=note)
        except BaseException:
            progress.live.transient = True  # what was refused leaves no dead bar behind
            raise


@contextmanager
def training_bar(title: str) -> Iterator[Any]:
    from taciturn.privacy.figures import epsilon_text

    with bar(title, "rounds") as show:
        show(0, None, "working out the noise, compiling")
        yield lambda done, all, row: show(
            done, all, f"Top1 {row['accuracy_top1']:.2%}  ε {epsilon_text(row['epsilon'])}  (round {row['round']})"
        )


@contextmanager
def fleet_view(address: str, enrolled: int) -> Iterator[tuple[StageProgress, Callable[..., None]]]:
    """Rounds above, the stage that devices are in below; yields watch(stage, done, all) and progress(done, all, row)."""
    from taciturn.privacy.figures import epsilon_text

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<11}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console.print(f"{enrolled} devices are enrolled; the server listens on {address}", highlight=False)
    with Progress(*columns, console=console) as view:
        rounds, devices = view.add_task("rounds", total=None, note=""), view.add_task("devices", total=None, note="")

        def watch(stage: str, done: int, all: int) -> None:
            view.update(devices, description=stage, completed=done, total=all, note="devices")

        def progress(done: int, all: int, row: dict[str, Any]) -> None:
            note = f"ε {epsilon_text(row['epsilon'])}  {row['uploads']:,} reports, {row['dropped_out']:,} drop-outs"
            note += f", {row['failed_rounds']} failed" if row["failed_rounds"] else ""
            note += f"  Top1 {row['accuracy_top1']:.2%} (round {row['round']})"
            view.update(rounds, completed=done, total=all, note=note)

        yield watch, progress


@contextmanager
def stages() -> Iterator[StageProgress]:
    """A bar for each stage of a job; yields show(stage, done, all)."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, all: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage)
            progress.update(tasks[stage], completed=done, total=all)

        yield show


def histogram_line(share: float, width: int = 40) -> str:
    """A bar of `share` of the width, to an eighth of a character.

    >>> histogram_line(0.5, 3)
    '█▌'
    """
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + BLOCKS[eighths % 8].strip()
