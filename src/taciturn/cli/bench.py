"""`taciturn bench`: how fast this machine trains."""

from dataclasses import asdict
from datetime import date
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from taciturn.cli.output import bar, console, print_table
from taciturn.errors import TaciturnError
from taciturn.names import Precision

if TYPE_CHECKING:
    from taciturn.bench.round_speed import Speeds

SHOWN = {  # of a round, in the order of the table's columns
    "users_per_s": "{:,.1f}", "tokens_per_s": "{:,.0f}", "round_s": "{:.2f} s", "privacy_share": "{:.1%}", "matrix_share": "{:.0%}",
    "peak_gib": "{:.1f} GiB",
}  # fmt: skip


def bench(
    users: Annotated[int | None, Option(min=2, help="a round (default: 20 on a CPU, 1,000 on an accelerator)")] = None,
    rounds: Annotated[int, Option(min=1, help="of each kind, of which the best counts")] = 3,
    precision: Annotated[Precision | None, Option(help="(default: float32 on a CPU, mixed on an accelerator)")] = None,
    against: Annotated[str, Option(help="others to run in turns with ours: torch,pfl,fedjax or some of them")] = "",
    peers: Annotated[Path, Option(help="where `make peers` put their environments")] = Path("local/peers"),
    write: Annotated[bool, Option("--write", help="put the comparison into benchmarks/README.md")] = False,
) -> dict[str, Any]:
    """Measure how fast this machine trains: the paper round (LSTM 1.35M, 1,600 tokens a user), Gboard's CIFG 2.4M, noise, accounting.

    Users are made of random words; nothing of yours is touched. Ceilings (copies, matrix products) are measured in the same run.

    Before --against, install the others' programs: make peers

    Example: taciturn bench --against torch,pfl,fedjax
    """
    import jax

    from taciturn.bench.against import PEERS, TURNS, write_table
    from taciturn.bench.round_speed import measure

    others = [name.strip() for name in against.split(",") if name.strip()]
    if unknown := [name for name in others if name not in PEERS]:
        raise TaciturnError(f"--against takes {', '.join(PEERS)}, not {unknown[0]!r}: name some of them")
    if write and not others:
        raise TaciturnError("--write needs a comparison to write: say with whom, for example --against torch,pfl,fedjax")
    usual_users, usual_precision = (20, "float32") if jax.devices()[0].platform == "cpu" else (1000, "mixed")
    seen, parts = count(), 5 + (TURNS * (1 + len(others)) if others else 0)
    with bar("benchmark", "parts") as show:
        speeds = measure(
            users or usual_users, rounds, precision or usual_precision, lambda name: show(next(seen), parts, name), others, peers
        )
        show(parts, parts, "")
    if write:
        title = f"{speeds.device}, {date.today()}, {speeds.users:,} users a round ({speeds.precision}); the best of {rounds} in each turn"
        write_table(speeds.in_turns, title, "cpu" if usual_users == 20 else speeds.device)
    _print(speeds)
    return asdict(speeds)


def _print(speeds: "Speeds") -> None:
    title = f"{speeds.device}, {speeds.users:,} users a round, {speeds.precision}"
    measured = ("LSTM 1.35M", speeds.paper_round), ("CIFG 2.4M", speeds.gboard_round)
    rows = [(name, *(spec.format(getattr(one, column)) for column, spec in SHOWN.items())) for name, one in measured]
    print_table(("", "users/s", "tokens/s", "round", "privacy", "matrix rate", "memory"), rows, title)
    console.print(
        "LSTM 1.35M is the paper round. privacy: its share of a round; matrix rate: share of what products alone reach here.\n"
        f"BLT noise for 2.4M parameters {speeds.blt_release_ms:.2f} ms; ε of 5,000 rounds {speeds.accounting_ms:.0f} ms; evaluation "
        f"{speeds.evaluation_tokens_per_s:,.0f} tokens/s; copies {speeds.copy_gb_per_s:,.0f} GB/s, products "
        f"{speeds.matrix_gflop_per_s:,.0f} GFLOP/s."
    )
    if speeds.in_turns:
        _print_turns(speeds.in_turns)


def _print_turns(turns: dict[str, list[float]]) -> None:
    from taciturn.bench.against import PEERS, Ratio

    rows = []
    for name, speeds in turns.items():
        words = ("taciturn", "") if name == "taciturn" else (PEERS[name][2], str(Ratio.of(turns["taciturn"], speeds)))
        rows.append((words[0], *(f"{one:,.1f}" for one in speeds), words[1]))
    print_table(("users/s of the paper round, turn by turn", *map(str, range(1, len(turns["taciturn"]) + 1)), "ours is"), rows)
