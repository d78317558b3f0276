"""`taciturn bench`: how fast this machine trains."""

from dataclasses import asdict
from datetime import date
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from taciturn.cli.output import bar, console, table
from taciturn.names import Precision

if TYPE_CHECKING:
    from taciturn.bench.round_speed import Speeds


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

    from taciturn.bench.against import PEERS, TURNS, BenchError, write_table
    from taciturn.bench.round_speed import measure

    others = [name.strip() for name in against.split(",") if name.strip()]
    if unknown := [name for name in others if name not in PEERS]:
        raise BenchError(f"--against takes {', '.join(PEERS)}, not {unknown[0]!r}: name some of them")
    if write and not others:
        raise BenchError("--write needs a comparison to write: say with whom, for example --against torch,pfl,fedjax")
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
    shown = table("", "users/s", "tokens/s", "round", "privacy", "matrix rate", "memory", title=title)
    for name, one in (("LSTM 1.35M", speeds.paper_round), ("CIFG 2.4M", speeds.gboard_round)):
        rates = (f"{one.users_per_s:,.1f}", f"{one.tokens_per_s:,.0f}", f"{one.round_s:.2f} s")
        shares = (f"{one.privacy_share:.1%}", f"{one.matrix_share:.0%}")
        shown.add_row(name, *rates, *shares, f"{one.peak_gib:.1f} GiB")
    console.print(shown)
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

    shown = table("users/s of the paper round, turn by turn", *(f"{turn + 1}" for turn in range(len(turns["taciturn"]))), "ours is")
    for name, speeds in turns.items():
        least, middle, most = Ratio.of(turns["taciturn"], speeds)
        ratio = "" if name == "taciturn" else f"{middle:.2f} × ({least:.2f} to {most:.2f})"
        shown.add_row("taciturn" if name == "taciturn" else PEERS[name][2], *(f"{one:,.1f}" for one in speeds), ratio)
    console.print(shown)
