"""`taciturn bench` and `doctor`: how fast this machine trains, whether it can, and what is missing
for what.
"""

import runpy
from datetime import date
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from taciturn.cli.output import bar, begin, console, print_table, say, stages
from taciturn.errors import TaciturnError
from taciturn.names import Precision

# users a round, who take them one after another
PEERS, MOST_OF_OTHERS = (
    ("torch", "pfl", "fedjax"),
    128,
)
# of a round, in the order of the table's columns
SHOWN = {
    "users_per_s": "{:,.1f}",
    "tokens_per_s": "{:,.0f}",
    "round_s": "{:.2f} s",
    "privacy_share": "{:.1%}",
    "peak_gib": "{:.1f} GiB",
}
SIGNS = {"ok": ("✓", "green"), "missing": ("–", "yellow"), "broken": ("✗", "bold red")}


def bench(
    users: Annotated[
        int | None,
        Option(min=2, help="users a round (default: 20 on a CPU, 1,000 on an accelerator)"),
    ] = None,
    rounds: Annotated[int, Option(min=1, help="rounds of each kind; the best counts")] = 3,
    precision: Annotated[
        Precision | None, Option(help="(default: float32 on a CPU, mixed on an accelerator)")
    ] = None,
    against: Annotated[
        str, Option(help="frameworks to run in turns with ours: torch,pfl,fedjax or some of them")
    ] = "",
    peers: Annotated[Path, Option(help="where `make peers` put their environments")] = Path(
        "local/peers"
    ),
    write: Annotated[
        bool, Option("--write", help="put the comparison into benchmarks/README.md")
    ] = False,
) -> dict[str, Any]:
    """Measure how fast this machine trains. It times the papers' rounds: LSTM 1.35M and CIFG 2.4M,
    1,600 tokens a user.

    Users are made of random words; nothing of yours is touched.

    Before --against, install the other frameworks: make peers

    Example: taciturn bench --against torch,pfl,fedjax
    """
    import jax

    from taciturn.bench.round_speed import measure

    others = [name.strip() for name in against.split(",") if name.strip()]
    if unknown := [name for name in others if name not in PEERS]:
        raise TaciturnError(
            f"--against takes {', '.join(PEERS)}, not {unknown[0]!r}: name some of them"
        )
    if write and not others:
        raise TaciturnError(
            "--write needs a comparison to write: name a framework, for example --against"
            " torch,pfl,fedjax"
        )
    # What runs other frameworks in turns with ours is part of the repository, not of the package.
    path = Path(__file__).parents[3] / "benchmarks" / "in_turns.py"
    if others and not path.exists():
        raise TaciturnError(
            "the other frameworks' programs are in benchmarks/ of the repository: run taciturn from"
            " a clone of it"
        )
    program = runpy.run_path(str(path)) if others else {}
    usual_users, usual_precision = (
        (20, "float32") if jax.devices()[0].platform == "cpu" else (1000, "mixed")
    )
    used, device = precision or usual_precision, jax.devices()[0].device_kind
    seen, parts = count(), 3 + (program["TURNS"] * (1 + len(others)) if others else 0)
    with bar("benchmark", "parts") as show:
        asked, progress = users or usual_users, lambda name: show(next(seen), parts, name)
        given = {
            "peers": others,
            "folder": peers,
            "users": min(asked, MOST_OF_OTHERS),
            "rounds": rounds,
            "progress": progress,
        }
        compare = partial(program["in_turns"], **given) if others else None
        speeds = measure(asked, rounds, used, progress, compare)
        show(parts, parts, "")
    if write:
        title = (
            f"{device}, {date.today()}, {asked:,} users a round ({used}); the best of {rounds} in"
            " each turn"
        )
        program["write_table"](speeds["in_turns"], title, "cpu" if usual_users == 20 else device)
    measured = ("LSTM 1.35M", speeds["paper_round"]), ("CIFG 2.4M", speeds["gboard_round"])
    rows = [
        (name, *(spec.format(one[column]) for column, spec in SHOWN.items()))
        for name, one in measured
    ]
    columns = "", "users/s", "tokens/s", "round", "privacy", "memory"
    print_table(columns, rows, f"{device}, {asked:,} users a round, {used}")
    console.print("LSTM 1.35M is the paper round. privacy: its share of a round.")
    if others:
        rows = [
            (name, *(f"{one:,.1f}" for one in each), ratio)
            for name, each, ratio in program["compared"](speeds["in_turns"])
        ]
        print_table(
            (
                "users/s of the paper round, turn by turn",
                *map(str, range(1, program["TURNS"] + 1)),
                "ours is",
            ),
            rows,
        )
    return speeds


def doctor() -> tuple[list[dict[str, Any]], int]:
    """Check whether this machine can train. It says what is missing for which command, takes
    seconds, and changes nothing.

    Versions, packages, memory, disk and devices; and the test that every run makes before its first
    sum: whether what a user reports has the same bits beside any others. If something that training
    needs is broken, the exit status is 1.

    Example: taciturn doctor --json
    """
    begin("examining this machine")
    from taciturn.bench.health import examine

    with stages() as show:
        found = examine(partial(show, "examining"))
    for one in found:
        sign, style = SIGNS[one.state]
        say(
            f"{sign} {one.name:<12} {one.said}",
            style=None if one.state == "ok" else style,
            markup=False,
        )
        if one.to_do:
            say(f"  {'':<12} {one.to_do}", markup=False)
    broken = [one.name for one in found if one.state == "broken"]
    say(
        (
            f"\nBroken: {', '.join(broken)}. Training needs it."
            if broken
            else "\nThis machine can train."
        ),
        style="bold",
    )
    return [one._asdict() for one in found], int(bool(broken))
