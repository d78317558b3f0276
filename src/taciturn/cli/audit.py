"""`taciturn audit`: what a run reveals, seen from outside, and whether it claims to reveal less."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import taciturn as tt
from taciturn.cli.command_classes import group
from taciturn.cli.output import console, print_table
from taciturn.cli.progress_display import stages
from taciturn.files import to_json
from taciturn.privacy.accounting.rounding_up import delta_text, pair_text

if TYPE_CHECKING:
    from taciturn.audit.one_run import Audit
    from taciturn.audit.results import CanaryKind, CanaryResults, MembershipResults

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
        results = tt.FinishedRun(run).audit(references, partial(show, "looking for canaries"))
    content = results.to_json()
    write_atomically(run / "audit.json", to_json(content, indent=1).encode())
    claimed = pair_text(results.epsilon, results.delta)
    console.print(
        f"{run}: claimed for every person {claimed}. AccuracyTop1 {results.accuracy_top1:.2%}: a"
        " model that learned nothing reveals nothing.\n"
    )
    if results.membership:
        _print_membership(results.membership)
    if results.canaries:
        _print_canaries(results.canaries)
    is_refuted = results.membership is not None and results.membership.audit.is_refuted
    return content, int(is_refuted)


def _print_membership(membership: "MembershipResults") -> None:
    audit = membership.audit
    turns = "one turn" if membership.turns == 1 else f"up to {membership.turns} turns"
    title = (
        f"Audit users: {audit.included} in, {audit.left_out} out, {turns} each, at δ ="
        f" {delta_text(membership.delta)}"
    )
    # What is claimed is rounded up, and what is certain is rounded down.
    rows = [
        (
            "claimed",
            _two_digits(audit.mu, math.ceil),
            _two_digits(membership.claimed_epsilon, math.ceil),
        ),
        (
            "found",
            _two_digits(audit.times * audit.mu, round),
            _two_digits(membership.epsilon, round),
        ),
        (
            "found, at least (99.9 % confidence)",
            _two_digits(audit.times_at_least * audit.mu, math.floor),
            _two_digits(membership.epsilon_at_least, math.floor),
        ),
    ]
    print_table(("of these turns", "μ", "ε"), rows, title, left=("of these turns",))
    if audit.is_refuted:
        console.print(_describe_refutation(audit), style="bold red")
    else:
        console.print(
            "Nothing contradicts the claim. That proves nothing about what an audit cannot see.",
            style="green",
        )
    console.print(f"{_describe_power(membership)}\n")


def _describe_refutation(audit: "Audit") -> str:
    times_less = _two_digits(audit.times_at_least, math.floor)
    return (
        f"BROKEN: there is at least {times_less} times less noise than is claimed, or reports are"
        f" as much longer. Found: noise {audit.spread:.2f} and reports {audit.signal:.2f} times"
        " what is claimed. Trust no model of this run."
    )


def _describe_power(membership: "MembershipResults") -> str:
    """Say what this audit could have noticed."""
    from taciturn.audit.one_run import LIKELY

    caught = []
    for likely, factor in zip(LIKELY, membership.audit.caught, strict=True):
        if math.isfinite(factor):
            times = _two_digits(factor, math.ceil)
            caught.append(f"{times} times too small with a probability of {likely:.0%}")
    words = "It would not have caught noise that is missing altogether: take more audit users."
    if caught:
        words = f"It would have caught noise that is {', '.join(caught)}."
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

    rows = [_describe_canaries(kind) for kind in canaries.kinds()]
    references = canaries.findings[0].references
    columns = (
        "users",
        "copies",
        "times seen",
        f"rank among {rank_text(references)}",
        "by beam search",
    )
    print_table(columns, rows, "Canaries: what the model knows of shared secrets")
    console.print(
        "Synthetic users come more often than people do, and are not covered by the claim. Times"
        " seen is an expected value."
    )


def _describe_canaries(kind: "CanaryKind") -> tuple[str, ...]:
    """Return the row of canaries with the same numbers of users and of copies."""
    from taciturn.audit.results import rank_text

    findings = kind.findings
    ranks = ", ".join(rank_text(finding.rank) for finding in findings)
    found_by_beam = sum(finding.place is not None for finding in findings)
    seen = sum(finding.seen for finding in findings) / len(findings)
    return (
        str(kind.users),
        str(kind.copies),
        f"{seen:,.0f}",
        ranks,
        f"{found_by_beam} / {len(findings)}",
    )
