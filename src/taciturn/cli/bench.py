"""`taciturn bench` and `doctor`: how fast this machine trains, and whether it can.

What is missing, and for which command, `doctor` says.
"""

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from taciturn.cli.output import begin, console, print_table, say
from taciturn.cli.progress_display import bar, stages
from taciturn.names import Precision

if TYPE_CHECKING:
    from taciturn.bench.health import Finding

# What is measured, one after another: users are made, and two rounds run.
PARTS = 3
# Of a round, in the order of the table's columns.
SHOWN = {
    "users_per_s": "{:,.1f}",
    "tokens_per_s": "{:,.0f}",
    "round_s": "{:.2f} s",
    "privacy_share": "{:.1%}",
    "peak_gib": "{:.1f} GiB",
}
# How `doctor` marks what it found.
MARKS = {"ok": ("✓", None), "missing": ("–", "yellow"), "broken": ("✗", "bold red")}


def bench(
    users: Annotated[
        int | None,
        Option(min=2, help="users a round (default: 20 on a CPU, 1,000 on an accelerator)"),
    ] = None,
    rounds: Annotated[int, Option(min=1, help="rounds of each kind; the best counts")] = 3,
    precision: Annotated[
        Precision | None, Option(help="(default: float32 on a CPU, mixed on an accelerator)")
    ] = None,
) -> dict[str, Any]:
    """Measure how fast this machine trains. It times the papers' rounds: LSTM 1.35M and CIFG 2.4M,
    1,600 tokens a user.

    Users are made of random words; nothing of yours is touched.

    benchmarks/in_turns.py of the repository compares with other frameworks.

    Example: taciturn bench --users 100
    """
    from taciturn.bench.round_speed import measure, usual_settings

    usual_users, usual_precision = usual_settings()
    part = count()
    with bar("benchmark", "parts") as show:
        speeds = measure(
            users=users or usual_users,
            rounds=rounds,
            precision=precision or usual_precision,
            progress=lambda name: show(next(part), PARTS, name),
        )
        show(PARTS, PARTS, "")
    rows = [
        _format_row("LSTM 1.35M", speeds["paper_round"]),
        _format_row("CIFG 2.4M", speeds["gboard_round"]),
    ]
    print_table(
        ("", "users/s", "tokens/s", "round", "privacy", "memory"),
        rows,
        f"{speeds['device']}, {speeds['users']:,} users a round, {speeds['precision']}",
    )
    console.print("LSTM 1.35M is the paper round. privacy: its share of a round.")
    return speeds


def _format_row(name: str, speed: dict[str, float]) -> list[str]:
    figures = [form.format(speed[column]) for column, form in SHOWN.items()]
    return [name, *figures]


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
        findings = examine(partial(show, "examining"))
    for finding in findings:
        _print_finding(finding)
    broken = [finding.name for finding in findings if finding.state == "broken"]
    verdict = "This machine can train."
    if broken:
        verdict = f"Broken: {', '.join(broken)}. Training needs it."
    say(f"\n{verdict}", style="bold")
    return [finding._asdict() for finding in findings], int(bool(broken))


def _print_finding(finding: "Finding") -> None:
    mark, style = MARKS[finding.state]
    say(f"{mark} {finding.name:<12} {finding.said}", style=style, markup=False)
    if finding.to_do:
        say(f"  {'':<12} {finding.to_do}", markup=False)
