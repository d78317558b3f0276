"""`taciturn audit`: what a run gives away, seen from outside, and whether that is more than it claims."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from taciturn.terminal import console, stages

if TYPE_CHECKING:
    from taciturn.auditing import Attacked, Page, Remembered


def audit(
    run: Annotated[
        Path, typer.Argument(help="folder of a run that was trained with --audit N, with [canaries], or both")
    ],
    references: Annotated[
        int, typer.Option(min=100, help="random continuations to compare each canary with")
    ] = 2_000_000,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Look at a run from outside: a lower bound on ε, membership inference, and planted secrets. Writes RUN/audit.png and RUN/audit.json.

    Audit users (train --audit N) wrote random words and were put into one round each by a fair coin. From how well their being in can be
    told follows a bound that ε must be above, with 95 % confidence (Mahloujifar et al. 2024: for Gaussian noise, which is what is claimed.
    Beside it stand the bound of Steinke et al. 2023, and an estimate without any confidence). Were it above what is claimed for them, the
    mechanism would be broken: the exit status is then 1. That it is below proves nothing. Membership inference: how well the last model
    alone tells who was in, by its loss on what they wrote, as it is or compared with the loss of the model that the run began with.

    A canary is five random words that synthetic users shared in the training (Ramaswamy et al. 2020, Table 4). Rank: how many of the random
    continuations of its first two words the model finds as likely as the real one, or likelier; 1 means it knows it by heart. Beam search:
    how many canaries are among the five best continuations that the model itself finds. A guarantee is about what one user alone had;
    what many share is no secret.

    An example: taciturn train recipe.toml --audit 1000 --set canaries.text=speeches --run runs/watched; taciturn audit runs/watched
    """
    from taciturn.auditing import page
    from taciturn.files import write_atomically
    from taciturn.release.report import plot_audit

    with stages() as show:
        found = page(run, references, lambda done, all: show("looking for canaries", done, all))
    content = json.dumps(_json(run, found), indent=1)
    write_atomically(run / "audit.json", content.encode())
    if found.attacked:
        bounds = {name: one.epsilon_fdp for name, one in found.attacked.audits.items()}
        plot_audit(run / "audit.png", found.attacked.curves, bounds, found.attacked.claimed, run.name)
    if json_:
        print(content)
    else:
        _print(run, found)
    if found.attacked and found.attacked.breaks_the_claim:
        raise typer.Exit(1)


def _print(run: Path, found: "Page") -> None:
    from taciturn.privacy.figures import delta_text, epsilon_text

    claimed = f"ε = {epsilon_text(found.guarantee.epsilon)} at δ = {delta_text(found.guarantee.delta)}"
    console.print(
        f"{run}: claimed for every person {claimed}. AccuracyTop1 {found.scores['accuracy_top1']:.2%}: a model that has learned nothing "
        "remembers nothing.\n",
        highlight=False,
    )
    if found.attacked:
        _print_attacked(run, found.attacked)
    if found.remembered:
        _print_remembered(found.remembered)


def _print_attacked(run: Path, attacked: "Attacked") -> None:
    from taciturn.audit_users import ALL_MODELS
    from taciturn.privacy.figures import delta_text

    scored, first = attacked.scored, attacked.audits[ALL_MODELS]
    table = Table(
        title=f"Audit users: {first.included} in, {first.left_out} out, at δ = {delta_text(scored.delta)}",
        title_justify="left",
    )
    for name in ("who attacks sees", "ε at least (95 %)", "by (ε, δ) alone", "estimate", "AUC", "found at 1 % false"):
        table.add_column(name, justify="left" if name == "who attacks sees" else "right")
    for name, one in attacked.audits.items():
        estimates = f"{one.epsilon:.2f}", _number(one.epsilon_gaussian)
        table.add_row(name, f"{one.epsilon_fdp:.2f}", *estimates, f"{one.area:.3f}", f"{one.true_positives:.1%}")
    console.print(table)
    part = (
        "one release"
        if scored.claim.weight == 1
        else f"one release, with {scored.claim.weight:.2g} of the weight of a person's report"
    )
    if not math.isfinite(attacked.claimed):
        words, style = "Nothing is claimed for these users: the run has no noise.", "yellow"
    elif attacked.breaks_the_claim:
        words = (
            f"BROKEN: for {part} ε = {attacked.claimed:.2f} is claimed, and it is above {attacked.bound:.2f} with 95 % confidence. The "
            "noise or the bound on reports is not what the ledger says: trust no model of this run."
        )
        style = "bold red"
    else:
        words = (
            f"Claimed for {part}: ε = {attacked.claimed:.2f}. The audit found {attacked.bound:.2f}, which does not contradict it, and does "
            "not prove it."
        )
        style = "green"
    console.print(words, style=style, highlight=False)
    console.print(f"The curves behind it: {run / 'audit.png'}\n", highlight=False)


def _print_remembered(remembered: "Remembered") -> None:
    from taciturn.auditing import rank_text

    references = remembered.findings[0].references
    table = Table(title="Canaries: what the model knows of shared secrets", title_justify="left")
    for name in ("users", "copies", "times seen", f"rank among {rank_text(references)}", "by beam search"):
        table.add_column(name, justify="right")
    for users, copies, findings in remembered.kinds():
        ranks = ", ".join(rank_text(one.rank) for one in findings)
        by_beam = f"{sum(one.place is not None for one in findings)} / {len(findings)}"
        seen = sum(remembered.seen[one.canary] for one in findings) / len(findings)
        table.add_row(str(users), str(copies), f"{seen:,.0f}", ranks, by_beam)
    console.print(table)
    console.print(
        "Synthetic users come more often than people do, and are not covered by the claim. Times seen: to be expected.",
        highlight=False,
    )


def _json(run: Path, found: "Page") -> dict[str, Any]:
    content: dict[str, Any] = {
        "run": str(run),
        "epsilon": _infinity(found.guarantee.epsilon),
        "delta": found.guarantee.delta,
        "accuracy_top1": found.scores["accuracy_top1"].value,
    }
    if found.attacked:
        attacked = found.attacked
        content["audit"] = {
            "claimed_epsilon": _infinity(attacked.claimed),
            "delta": attacked.scored.delta,
            "weight": attacked.scored.claim.weight,
            "breaks_the_claim": attacked.breaks_the_claim,
            "attacks": {
                name: {field: _infinity(value) for field, value in one._asdict().items()}
                for name, one in attacked.audits.items()
            },
        }
    if found.remembered:
        content["canaries"] = [
            {
                "users": one.canary.users,
                "copies": one.canary.copies,
                "rank": one.rank,
                "references": one.references,
                "exposure": one.exposure,
                "seen": found.remembered.seen[one.canary],
                "beam_search": one.place,
            }
            for one in found.remembered.findings
        ]
    return content


def _infinity(value: float) -> float | str:
    """JSON knows none."""
    return value if math.isfinite(value) else "infinity"


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "∞"
