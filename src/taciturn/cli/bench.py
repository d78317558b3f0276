"""`taciturn bench`: how fast this machine trains."""

from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from taciturn.cli.output import bar, console, table
from taciturn.names import Precision

if TYPE_CHECKING:
    from taciturn.bench.round_speed import Speeds


def bench(
    users: Annotated[int | None, Option(min=2, help="a round (default: 20 on a CPU, 1,000 on an accelerator)")] = None,
    rounds: Annotated[int, Option(min=1, help="of each kind, of which the best counts")] = 3,
    precision: Annotated[Precision | None, Option(help="(default: float32 on a CPU, mixed on an accelerator)")] = None,
    against: Annotated[Literal["torch"] | None, Option(help="also run a plain PyTorch program, for a ratio from the same run")] = None,
    torch_python: Annotated[str, Option(help="a Python that has PyTorch (default: this one)")] = "",
) -> dict[str, Any]:
    """Measure how fast this machine trains: the paper round (LSTM 1.35M, 1,600 tokens a user), Gboard's CIFG 2.4M, noise, accounting.

    Users are made of random words; nothing of yours is touched. Ceilings (copies, matrix products) are measured in the same run.

    Example: taciturn bench --users 100 --against torch --torch-python ../torch/bin/python
    """
    import jax

    from taciturn.bench.round_speed import measure

    usual_users, usual_precision = (20, "float32") if jax.devices()[0].platform == "cpu" else (1000, "mixed")
    torch, seen = torch_python if against else None, count()
    with bar("benchmark", "parts") as show:
        parts = 7 if torch is not None else 5
        speeds = measure(users or usual_users, rounds, precision or usual_precision, torch, lambda name: show(next(seen), parts, name))
        show(parts, parts, "")
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
    if speeds.torch_users_per_s is not None:
        ratio = speeds.users_per_s / speeds.torch_users_per_s
        console.print(f"Plain PyTorch: {speeds.torch_users_per_s:.1f} users/s; ours is {ratio:.2f} times as fast.")
