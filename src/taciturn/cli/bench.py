"""`taciturn bench` and `doctor`: how fast this machine trains, whether it can, and what is missing for what."""

from dataclasses import asdict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from taciturn.cli.output import bar, begin, console, print_table, say, stages
from taciturn.names import Precision

if TYPE_CHECKING:
    from taciturn.bench.round_speed import Speeds

PARTS = 5  # that are measured one after another
SHOWN = {  # of a round, in the order of the table's columns
    "users_per_s": "{:,.1f}", "tokens_per_s": "{:,.0f}", "round_s": "{:.2f} s", "privacy_share": "{:.1%}", "matrix_share": "{:.0%}",
    "peak_gib": "{:.1f} GiB",
}  # fmt: skip
SIGNS = {"ok": ("✓", "green"), "missing": ("–", "yellow"), "broken": ("✗", "bold red")}


def bench(
    users: Annotated[int | None, Option(min=2, help="users a round (default: 20 on a CPU, 1,000 on an accelerator)")] = None,
    rounds: Annotated[int, Option(min=1, help="rounds of each kind; the best counts")] = 3,
    precision: Annotated[Precision | None, Option(help="(default: float32 on a CPU, mixed on an accelerator)")] = None,
) -> dict[str, Any]:
    """Measure how fast this machine trains. It times the papers' rounds (LSTM 1.35M, 1,600 tokens a user; CIFG 2.4M), noise and accounting.

    Users are made of random words; nothing of yours is touched. Ceilings (copies, matrix products) are measured in the same run.

    Example: taciturn bench --users 100
    """
    import jax

    from taciturn.bench.round_speed import measure

    usual_users, usual_precision = (20, "float32") if jax.devices()[0].platform == "cpu" else (1000, "mixed")
    seen = count()
    with bar("benchmark", "parts") as show:
        speeds = measure(users or usual_users, rounds, precision or usual_precision, lambda name: show(next(seen), PARTS, name))
        show(PARTS, PARTS, "")
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


def doctor() -> tuple[list[dict[str, Any]], int]:
    """Check whether this machine can train. It says what is missing for which command, takes seconds, and changes nothing.

    Versions, packages, memory, disk and devices; and the test that every run makes before its first sum: whether what a user reports has
    the same bits beside any others. If something that training needs is broken, the exit status is 1.

    Example: taciturn doctor --json
    """
    begin("examining this machine")
    from taciturn.bench.health import examined

    with stages() as show:
        found = examined(partial(show, "examining"))
    for one in found:
        sign, style = SIGNS[one.state]
        say(f"{sign} {one.name:<12} {one.said}", style=None if one.state == "ok" else style, markup=False)
        if one.to_do:
            say(f"  {'':<12} {one.to_do}", markup=False)
    broken = [one.name for one in found if one.state == "broken"]
    say(f"\nBroken: {', '.join(broken)}. Training needs it." if broken else "\nThis machine can train.", style="bold")
    return [one._asdict() for one in found], int(bool(broken))
