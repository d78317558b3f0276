"""Other people's programs beside ours, in turns.

Machines are shared, and a ratio means something only within the same minutes.

    make peers                                        # environments that the others need
    python benchmarks/in_turns.py torch,pfl,fedjax    # all of them beside ours
    python benchmarks/in_turns.py fedjax --write      # and the table of README.md
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

from taciturn.errors import TaciturnError
from taciturn.names import Precision

TURNS = 3
# The others take users one after another: more of them say nothing more.
MOST_USERS_OF_OTHERS = 128
HERE = Path(__file__).parent
TABLE_BEGINS = "<!-- in turns, {} -->"
TABLE_ENDS = "<!-- end -->"

# users/s of the paper round in each turn, by name
Speeds = dict[str, list[float]]


class Peer(NamedTuple):
    """Another framework, and how its paper round is run."""

    # The environment under --peers-folder that has what it needs.
    environment: str
    # In this folder.
    program: str
    # What readers know it by.
    title: str


PEERS = {
    "torch": Peer("torch", "torch_round.py", "plain PyTorch, a process for each core"),
    "pfl": Peer("torch", "pfl_round.py", "pfl-research under torchrun"),
    "fedjax": Peer("fedjax", "fedjax_round.py", "FedJAX, static unroll"),
}


class Ratio(NamedTuple):
    """How many times as fast ours was, in the same turn."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        each = [our_speed / speed for our_speed, speed in zip(ours, theirs, strict=True)]
        return cls(least=min(each), median=median(each), most=max(each))

    def __str__(self) -> str:
        return f"{self.median:.2f} × ({self.least:.2f} to {self.most:.2f})"


class Comparison(NamedTuple):
    """A row of the table: who, how fast in each turn, and how many times as fast ours was."""

    title: str
    speeds: list[float]
    ratio: str


def run_in_turns(
    ours: Callable[[], float], commands: dict[str, list[str]], progress: Callable[[str], None]
) -> Speeds:
    """Measure the paper round in users/s, ours and then each of the others', in every turn."""
    speeds: Speeds = {name: [] for name in ("taciturn", *commands)}
    for turn in range(1, TURNS + 1):
        progress(f"turn {turn} of {TURNS}: taciturn")
        speeds["taciturn"].append(ours())
        for name, command in commands.items():
            progress(f"turn {turn} of {TURNS}: {name}")
            speeds[name].append(run_peer(command))
    return speeds


def peer_command(name: str, folder: Path, users: int, rounds: int) -> list[str]:
    """Return what runs another framework's round; refuse if its environment is not there."""
    peer = PEERS[name]
    python = folder / peer.environment / "bin" / "python"
    if not python.exists():
        raise TaciturnError(
            f"{name} needs an environment of its own, and {python} is not there: run `make peers`,"
            " or name --peers-folder FOLDER"
        )
    return [str(python.absolute()), str(HERE / peer.program), str(users), str(rounds)]


def run_peer(command: list[str]) -> float:
    """Run another framework's round, and return the figure that it prints last."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return float(done.stdout.split()[-1])
    except (IndexError, ValueError):
        program = Path(command[1]).name
        complaints = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise TaciturnError(
            f"{program} ended with status {done.returncode} and no figure: {complaints[-1]}"
        ) from None


def compare(speeds: Speeds) -> list[Comparison]:
    """Set each of the others beside ours, which comes first."""
    ours = speeds["taciturn"]
    comparisons = [Comparison(title="taciturn", speeds=ours, ratio="")]
    for name, theirs in speeds.items():
        if name != "taciturn":
            ratio = Ratio.of(ours, theirs)
            comparison = Comparison(title=PEERS[name].title, speeds=theirs, ratio=str(ratio))
            comparisons.append(comparison)
    return comparisons


def write_table(speeds: Speeds, title: str, machine: str) -> Path:
    """Write README.md's table of this kind of machine anew, in place of the one before."""
    page = HERE / "README.md"
    begin = TABLE_BEGINS.format(machine)
    before, mark, rest = page.read_text().partition(begin)
    if not mark or TABLE_ENDS not in rest:
        raise TaciturnError(
            f"{page} has no place for this table: it is kept between “{begin}” and “{TABLE_ENDS}”"
        )
    ours, *others = compare(speeds)
    lines = [
        begin,
        title,
        "",
        "| | users/s | ours is |",
        "|---|---|---|",
        f"| **taciturn**, whole rounds | **{_list_speeds(ours)}** | |",
    ]
    for peer in others:
        lines.append(f"| {peer.title} | {_list_speeds(peer)} | {peer.ratio} |")
    lines.append(TABLE_ENDS)
    _, _, after = rest.partition(TABLE_ENDS)
    page.write_text(before + "\n".join(lines) + after)
    return page


def _list_speeds(comparison: Comparison) -> str:
    return ", ".join(f"{speed:,.4g}" for speed in comparison.speeds)


@contextmanager
def our_round(users: int, rounds: int, precision: Precision) -> Iterator[Callable[[], float]]:
    """Make users, and give a function that measures our paper round on them in users/s."""
    import jax

    from taciturn.bench.round_speed import WORDS, paper_recipe, random_users
    from taciturn.fleets import assemble
    from taciturn.recipe import build
    from taciturn.runs.timing import round_seconds

    with tempfile.TemporaryDirectory() as folder:
        population = random_users(Path(folder) / "users", users)
        recipe = paper_recipe(population, users=users, model="lstm", precision=precision)
        params = build.language_model(recipe.model, WORDS).init(jax.random.key(0))
        fleet = assemble.fleet(recipe, population, population.folder)
        yield lambda: users / round_seconds(recipe, fleet, params, WORDS, rounds)


def parse_peers(text: str) -> list[str]:
    """Return the names of frameworks in a list with commas; refuse those that are unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise TaciturnError(f"there is {', '.join(PEERS)}, not {name!r}: name some of them")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Run the paper round of other frameworks in turns with ours."
    )
    parser.add_argument("peers", help=f"some of {','.join(PEERS)}")
    parser.add_argument("--users", type=int, help="users a round (20 on a CPU, 1,000 on a GPU)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds in each turn; the best counts"
    )
    parser.add_argument("--precision", choices=["float32", "mixed"], help="ours")
    parser.add_argument(
        "--peers-folder",
        type=Path,
        default=Path("local/peers"),
        help="where `make peers` put their environments",
    )
    parser.add_argument("--write", action="store_true", help="write the table of README.md anew")
    options = parser.parse_args()

    import jax

    from taciturn.bench.round_speed import usual_settings

    usual_users, usual_precision = usual_settings()
    users = options.users or usual_users
    precision = options.precision or usual_precision
    commands = {
        name: peer_command(
            name=name,
            folder=options.peers_folder,
            users=min(users, MOST_USERS_OF_OTHERS),
            rounds=options.rounds,
        )
        for name in parse_peers(options.peers)
    }
    with our_round(users, options.rounds, precision) as ours:
        speeds = run_in_turns(ours, commands, progress=lambda part: print(part, file=sys.stderr))
    for row in compare(speeds):
        print(f"{row.title:<40} {_list_speeds(row):>24}   {row.ratio}")
    if options.write:
        device = jax.devices()[0].device_kind
        title = (
            f"{device}, {date.today()}, {users:,} users a round ({precision}); the best of"
            f" {options.rounds} in each turn"
        )
        is_cpu = jax.devices()[0].platform == "cpu"
        write_table(speeds, title, machine="cpu" if is_cpu else device)


if __name__ == "__main__":
    try:
        main()
    except TaciturnError as error:
        sys.exit(f"in_turns.py: {error}")
