"""Other people's programs beside ours, in turns: machines are shared, and a ratio means something
only within the same minutes.

`taciturn bench --against torch,pfl,fedjax` runs this; `make peers` makes the environments that the
others need.
"""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from taciturn.errors import TaciturnError

# Name → the environment under --peers that has what it needs, its program in this folder, and what
# readers know it by.
PEERS = {
    "torch": ("torch", "torch_round.py", "plain PyTorch, a process for each core"),
    "pfl": ("torch", "pfl_round.py", "pfl-research under torchrun"),
    "fedjax": ("fedjax", "fedjax_round.py", "FedJAX, static unroll"),
}
TURNS = 3
HERE = Path(__file__).parent
MARKS = "<!-- in turns, {} -->", "<!-- end -->"


class Ratio(NamedTuple):
    """How many times as fast ours was, in the same turn."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        each = [one / other for one, other in zip(ours, theirs, strict=True)]
        return cls(min(each), median(each), max(each))

    def __str__(self) -> str:
        return f"{self.median:.2f} × ({self.least:.2f} to {self.most:.2f})"


def in_turns(
    ours: Callable[[], float],
    peers: Sequence[str],
    folder: Path,
    users: int,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, list[float]]:
    """users/s of the paper round, best round of each turn: ours, and each of the others'."""
    commands = {name: _command(name, folder, users, rounds) for name in peers}
    speeds: dict[str, list[float]] = {name: [] for name in ("taciturn", *peers)}
    for turn in range(1, TURNS + 1):
        progress(f"turn {turn} of {TURNS}: taciturn")
        speeds["taciturn"].append(ours())
        for name, command in commands.items():
            progress(f"turn {turn} of {TURNS}: {name}")
            speeds[name].append(_speed(command))
    return speeds


def _command(name: str, folder: Path, users: int, rounds: int) -> list[str]:
    environment, program, _ = PEERS[name]
    python, path = folder / environment / "bin" / "python", HERE / program
    if not python.exists():
        raise TaciturnError(
            f"{name} needs an environment of its own, and {python} is not there: run `make peers`,"
            " or name --peers FOLDER"
        )
    return [str(python.absolute()), str(path), str(users), str(rounds)]


def _speed(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return float(done.stdout.split()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise TaciturnError(
            f"{Path(command[1]).name} ended with status {done.returncode} and no figure: {last}"
        ) from None


def write_table(speeds: dict[str, list[float]], title: str, machine: str) -> Path:
    """Into benchmarks/README.md, in place of the table that was measured on this kind of machine
    before.
    """
    page, (begin, end) = HERE / "README.md", MARKS
    begin = begin.format(machine)
    before, found, rest = page.read_text().partition(begin)
    if not found or end not in rest:
        raise TaciturnError(
            f"{page} has no place for this table: it is kept between “{begin}” and “{end}”"
        )
    listed = [
        (name, ", ".join(f"{one:,.4g}" for one in each), ratio)
        for name, each, ratio in compared(speeds)
    ]
    rows = [
        f"| **taciturn**, whole rounds | **{listed[0][1]}** | |",
        *(f"| {name} | {each} | {ratio} |" for name, each, ratio in listed[1:]),
    ]
    content = "\n".join([begin, title, "", "| | users/s | ours is |", "|---|---|---|", *rows, end])
    page.write_text(before + content + rest.partition(end)[2])
    return page


def compared(speeds: dict[str, list[float]]) -> list[tuple[str, list[float], str]]:
    """Return for each its name, its speeds, and how many times as fast ours was."""
    ours = speeds["taciturn"]
    others = [
        (PEERS[name][2], each, str(Ratio.of(ours, each)))
        for name, each in speeds.items()
        if name != "taciturn"
    ]
    return [("taciturn", ours, ""), *others]
