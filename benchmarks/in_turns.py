"""Other people's programs beside ours, in turns: machines are shared, and a ratio means something only within the same minutes.

`python benchmarks/in_turns.py torch pfl fedjax` compares the paper round of `taciturn bench`; `make peers` makes the environments that the
others need.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

import jax

from taciturn import randomness
from taciturn.bench import round_speed
from taciturn.errors import TaciturnError
from taciturn.fleets import assemble
from taciturn.recipe import build
from taciturn.runs.speed import round_seconds

# Name → the environment under --peers that has what it needs, its program in this folder, and what readers know it by.
PEERS = {
    "torch": ("torch", "torch_round.py", "plain PyTorch, a process for each core"),
    "pfl": ("torch", "pfl_round.py", "pfl-research under torchrun"),
    "fedjax": ("fedjax", "fedjax_round.py", "FedJAX, static unroll"),
}
TURNS = 3
MOST_OF_OTHERS = 128  # users a round, who take them one after another
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The paper round on this machine: ours, and on other frameworks, in turns.")
    parser.add_argument("others", nargs="+", choices=PEERS, metavar="FRAMEWORK", help=" ".join(PEERS))
    parser.add_argument("--peers", type=Path, default=Path("local/peers"), help="where `make peers` put their environments")
    parser.add_argument("--users", type=int, help="users a round (default: 20 on a CPU, 1,000 on an accelerator)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each turn; the best counts")
    parser.add_argument("--precision", choices=("float32", "mixed"), help="(default: float32 on a CPU, mixed on an accelerator)")
    parser.add_argument("--write", action="store_true", help="put the comparison into benchmarks/README.md")
    given = parser.parse_args(arguments)
    device = jax.devices()[0]
    usual_users, usual_precision = (20, "float32") if device.platform == "cpu" else (1000, "mixed")
    users, precision = given.users or usual_users, given.precision or usual_precision
    with tempfile.TemporaryDirectory() as folder:
        population = round_speed.random_users(Path(folder) / "users", users)
        recipe = round_speed.paper_recipe(population, users, "lstm", precision)
        params = build.language_model(recipe.model, round_speed.WORDS).init(randomness.jax_key(bytes(32)))
        fleet = assemble.fleet(recipe, population, population.folder)

        def ours() -> float:
            return users / round_seconds(recipe, fleet, params, round_speed.WORDS, given.rounds)

        speeds = in_turns(ours, given.others, given.peers, min(users, MOST_OF_OTHERS), given.rounds, print)
    for name, each, ratio in compared(speeds):
        print(f"{name:<42}", *(f"{one:>10,.1f}" for one in each), f"  ours is {ratio}" if ratio else "  users/s")
    if given.write:
        title = f"{device.device_kind}, {date.today()}, {users:,} users a round ({precision}); the best of {given.rounds} in each turn"
        write_table(speeds, title, "cpu" if device.platform == "cpu" else device.device_kind)


def in_turns(
    ours: Callable[[], float], peers: Sequence[str], folder: Path, users: int, rounds: int, progress: Callable[[str], None]
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
        raise TaciturnError(f"{name} needs an environment of its own, and {python} is not there: run `make peers`, or name --peers FOLDER")
    return [str(python.absolute()), str(path), str(users), str(rounds)]


def _speed(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return float(done.stdout.split()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise TaciturnError(f"{Path(command[1]).name} ended with status {done.returncode} and no figure: {last}") from None


def write_table(speeds: dict[str, list[float]], title: str, machine: str) -> Path:
    """Into benchmarks/README.md, in place of the table that was measured on this kind of machine before."""
    page, (begin, end) = HERE / "README.md", MARKS
    begin = begin.format(machine)
    before, found, rest = page.read_text().partition(begin)
    if not found or end not in rest:
        raise TaciturnError(f"{page} has no place for this table: it is kept between “{begin}” and “{end}”")
    listed = [(name, ", ".join(f"{one:,.4g}" for one in each), ratio) for name, each, ratio in compared(speeds)]
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
    others = [(PEERS[name][2], each, str(Ratio.of(ours, each))) for name, each in speeds.items() if name != "taciturn"]
    return [("taciturn", ours, ""), *others]


if __name__ == "__main__":
    try:
        main()
    except TaciturnError as error:
        sys.exit(str(error))
