"""What a training shows while it works: nothing, one line of text, or what a subclass makes of it.

Imports nothing that loads JAX, so that the command line starts at once.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.progress import ignore_progress

if TYPE_CHECKING:
    from taciturn.runs.train import PlannedTraining

# Called with each step that begins.
Announce = Callable[[str], None]
# Called with steps done, of how many, and how well it goes.
PretrainingProgress = Callable[[int, int, str], None]
# Called with rounds done, rounds in all, and the last metrics.
Progress = Callable[[int, int, dict[str, Any]], None]


class Display:
    """What a training shows, stage by stage; this one shows nothing.

    Example:
        class Steps(Display):
            @contextmanager
            def planning(self):
                yield print
    """

    @contextmanager
    def pretraining(self, out: Path, about: str) -> Iterator[PretrainingProgress]:
        """Yield what is called while public text is learned.

        Args:
            out: where its model goes.
            about: what is learned and how long it takes, in a sentence to show first.
        """
        yield ignore_progress

    @contextmanager
    def planning(self) -> Iterator[Announce]:
        """Yield what is called with each step while a recipe is worked out."""
        yield ignore_progress

    def explain(self, planned: "PlannedTraining") -> None:
        """Show the recipe that was worked out; nothing is spent yet."""

    @contextmanager
    def training(self, folder: Path) -> Iterator[Progress]:
        """Yield what is called after every round of the run in this folder."""
        yield ignore_progress


class RoundsOnly(Display):
    """Calls a function of the caller after every round, and shows nothing else."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def training(self, folder: Path) -> Iterator[Progress]:
        yield self._progress


class LineDisplay(Display):
    """One line, written again and again, and the plan as text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # Of the line that is there.
        self._width = 0

    @contextmanager
    def pretraining(self, out: Path, about: str) -> Iterator[PretrainingProgress]:
        def show(done: int, all: int, pace: str) -> None:
            self._show(f"learning public text: step {done:,} of {all:,}, {pace}")

        self._stream.write(f"{about}\n")
        with self._line():
            self._show("learning public text: compiling")
            yield show

    @contextmanager
    def planning(self) -> Iterator[Announce]:
        with self._line():
            self._show("choosing a recipe")
            yield lambda step: self._show(f"choosing a recipe: {step}")

    def explain(self, planned: "PlannedTraining") -> None:
        lines = [*planned.lines, planned.doubt] if planned.doubt else planned.lines
        self._stream.write("".join(f"{line}\n" for line in lines))

    @contextmanager
    def training(self, folder: Path) -> Iterator[Progress]:
        def show(done: int, all: int, row: dict[str, Any]) -> None:
            self._show(f"{folder.name}: {done:,} of {all:,} rounds, {describe_round(done, row)}")

        with self._line():
            self._show(f"{folder}: compiling, and measuring the start")
            yield show

    @contextmanager
    def _line(self) -> Iterator[None]:
        """Leave the last line where it is, whatever ends the stage."""
        try:
            yield
        finally:
            self._stream.write("\n")
            self._width = 0

    def _show(self, line: str) -> None:
        # Of a line that is too long its end stays: what was spent, and at which δ.
        line = line[1 - shutil.get_terminal_size().columns :]
        # A shorter line covers the one before it.
        self._stream.write(f"\r{line:<{self._width}}")
        self._stream.flush()
        self._width = len(line)


def describe_round(done: int, row: dict[str, Any]) -> str:
    """Describe what is known after a round: the last measurement, and what was spent."""
    if not done:
        return "compiling a round"
    spent = pair_text(row["epsilon"], row["delta"])
    return f"Top1 {row['accuracy_top1']:.2%}, {spent} after round {row['round']}"


def choose_display(progress: Progress | Display | None) -> Display:
    """Return what a caller asks for.

    Without a wish that is a line, in a terminal or a notebook; elsewhere nothing.
    """
    if isinstance(progress, Display):
        return progress
    if progress is not None:
        return RoundsOnly(progress)
    is_read = sys.stderr.isatty() or "ipykernel" in sys.modules
    return LineDisplay(sys.stderr) if is_read else Display()
