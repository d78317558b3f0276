"""`taciturn audit`: what a run reveals, seen from outside, and whether that is more than it
claims.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import taciturn as tt
from taciturn.cli.commands import group
from taciturn.cli.output import console, print_table
from taciturn.cli.progress_display import stages
from taciturn.files import to_json
from taciturn.privacy.accounting.rounding_up import delta_text, pair_text

if TYPE_CHECKING:
    from taciturn.audit.results import CanaryResults, MembershipResults

audit_app = group(
    "audit",
    "Test from outside whether models reveal more than is claimed.",
    "taciturn audit run runs/watched",
)


@audit_app.command("run")
def audit(
    run: Annotated[
        Path,
        Argument(help="folder of a run that was trained with --audit N, with [canaries], or both"),
    ],
    references: Annotated[
        int, Option(min=100, help="random continuations to compare each canary with")
    ] = 2_000_000,
) -> "tuple[dict[str, Any], int]":
    """Audit a run from outside. Is it as private as claimed, and did it memorise planted secrets?
    Writes RUN/audit.json.

    Audit users (train --audit N) each sent a random direction, or not, by a fair coin. How well the
    releases show which of them did bounds how much smaller the noise is than claimed. If it must be
    smaller, the exit status is 1; a correct mechanism is accused once in a thousand audits.
    docs/audit.md says what an audit cannot see.

    A canary is five random words that synthetic users shared (Ramaswamy et al. 2020, Table 4).
    Rank: how many random continuations of its first two words the model finds as likely as the real
    one, or likelier. Beam search: how many canaries are among its five best.

    Example: taciturn train recipe.toml --audit 1000 --set canaries.text=speeches --run
    runs/watched; taciturn audit run runs/watched
    """
    from taciturn.files import write_atomically

    with stages() as show:
        found = tt.FinishedRun(run).audit(
            references, lambda done, all: show("looking for canaries", done, all)
        )
    content = found.to_json()
    write_atomically(run / "audit.json", to_json(content, indent=1).encode())
    claimed, top1 = (
        pair_text(found.epsilon, found.delta),
        found.accuracy_top1,
    )
    console.print(
        f"{run}: claimed for every person {claimed}. AccuracyTop1 {top1:.2%}: a model that learned"
        " nothing reveals nothing.\n"
    )
    if found.membership:
        _print_membership(found.membership)
    if found.canaries:
        _print_canaries(found.canaries)
    return content, int(bool(found.membership and found.membership.audit.refuted))


def _print_membership(membership: "MembershipResults") -> None:
    audit = membership.audit
    turns = "one turn" if membership.turns == 1 else f"up to {membership.turns} turns"
    title = (
        f"Audit users: {audit.included} in, {audit.left_out} out, {turns} each, at δ ="
        f" {delta_text(membership.delta)}"
    )
    least = "found, at least (99.9 % confidence)"
    figures = (
        ("claimed", 1.0, membership.claimed_epsilon, math.ceil),
        ("found", audit.times, membership.epsilon, round),
        (least, audit.times_at_least, membership.epsilon_at_least, math.floor),
    )
    rows = (
        (name, _two_digits(times * audit.mu, rounded), _two_digits(epsilon, rounded))
        for name, times, epsilon, rounded in figures
    )
    print_table(("of these turns", "μ", "ε"), rows, title, left=("of these turns",))
    if audit.refuted:
        less = (
            f"{_two_digits(audit.times_at_least, math.floor)} times less noise than is claimed, or"
            " reports are as much longer"
        )
        found = f"noise {audit.spread:.2f} and reports {audit.signal:.2f} times what is claimed"
        console.print(
            f"BROKEN: there is at least {less}. Found: {found}. Trust no model of this run.",
            style="bold red",
        )
    else:
        console.print(
            "Nothing contradicts the claim. That proves nothing about what an audit cannot see.",
            style="green",
        )
    console.print(f"{_power(membership)}\n")


def _power(membership: "MembershipResults") -> str:
    """Say what this audit could have noticed."""
    from taciturn.audit.one_run import LIKELY

    pairs = [
        (likely, factor)
        for likely, factor in zip(LIKELY, membership.audit.caught, strict=True)
        if math.isfinite(factor)
    ]
    caught = [
        f"{_two_digits(factor, math.ceil)} times too small with a probability of {likely:.0%}"
        for likely, factor in pairs
    ]
    words = "It would not have caught noise that is missing altogether: take more audit users."
    words = f"It would have caught noise that is {', '.join(caught)}." if caught else words
    if membership.whole is None:
        return words
    share = math.floor(100 * min(1.0, membership.audit.mu / membership.whole))
    return (
        f"{words} These turns test {share} % of the μ that is claimed for a person's whole part in"
        " the run."
    )


def _two_digits(value: float, rounded: Callable[[float], int]) -> str:
    """Round to two digits, towards the less favourable side."""
    return f"{rounded(100 * value) / 100:.2f}"


def _print_canaries(canaries: "CanaryResults") -> None:
    from taciturn.audit.results import rank_text

    rows = []
    for users, copies, findings in canaries.kinds():
        ranks = ", ".join(rank_text(one.rank) for one in findings)
        by_beam = f"{sum(one.place is not None for one in findings)} / {len(findings)}"
        seen = sum(one.seen for one in findings) / len(findings)
        rows.append((str(users), str(copies), f"{seen:,.0f}", ranks, by_beam))
    columns = (
        "users",
        "copies",
        "times seen",
        f"rank among {rank_text(canaries.findings[0].references)}",
        "by beam search",
    )
    print_table(columns, rows, "Canaries: what the model knows of shared secrets")
    console.print(
        "Synthetic users come more often than people do, and are not covered by the claim. Times"
        " seen is an expected value."
    )
