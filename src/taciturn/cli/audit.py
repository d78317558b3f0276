"""`taciturn audit`: what a run reveals, seen from outside, and whether it claims to reveal less."""

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
    releases show which of them did bounds how much smaller the noise is than claimed. The estimates
    of the first rounds show whether any part of the model has too little noise, or the same as
    another part. If so, or if the noise must be smaller, the exit status is 1; a correct mechanism
    is accused once in a thousand audits. docs/audit.md says what an audit cannot see.

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
    is_refuted = results.membership is not None and results.membership.is_refuted
    return content, int(is_refuted)


def _print_membership(membership: "MembershipResults") -> None:
    audit = membership.audit
    turns = "one turn" if membership.turns == 1 else f"up to {membership.turns} turns"
    delta = delta_text(membership.delta)
    print_table(
        ("of these turns", "μ", f"ε at δ = {delta}"),
        membership.rows(),
        f"Audit users: {audit.included} in, {audit.left_out} out, {turns} each",
        left=("of these turns",),
    )
    style = "bold red" if membership.is_refuted else "green"
    console.print(membership.verdict(), style=style)
    power = " ".join(membership.power())
    console.print(f"{power}\n")


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
