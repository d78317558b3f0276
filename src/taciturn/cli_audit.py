"""`taciturn audit`: what a model remembers of secrets that were planted in its training."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from taciturn.terminal import console, stages


def audit(
    run: Annotated[Path, typer.Argument(help="folder of a run with [canaries]")],
    references: Annotated[
        int, typer.Option(min=100, help="random continuations to compare each canary with")
    ] = 2_000_000,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Look for planted secrets in a run's model (Ramaswamy et al. 2020, Table 4).

    A canary is five random words that synthetic users shared in the training. Rank: how many of the random continuations of its first two
    words the model finds as likely as the real one, or likelier; 1 means it knows it by heart. Beam search: how many canaries are among
    the five best continuations that the model itself finds. A guarantee is about what one user alone had; what many share is no secret.

    An example: taciturn train recipe.toml --set canaries.text=speeches --run runs/planted; taciturn audit runs/planted
    """
    from taciturn.auditing import rank_text, remembered
    from taciturn.release.privacy_statement import epsilon_text

    with stages() as show:
        found = remembered(run, references, lambda done, all: show("looking for canaries", done, all))
    if json_:
        rows = [
            {
                "users": one.canary.users,
                "copies": one.canary.copies,
                "rank": one.rank,
                "references": one.references,
                "exposure": one.exposure,
                "seen": found.seen[one.canary],
                "beam_search": one.place,
            }
            for one in found.findings
        ]
        epsilon = found.guarantee.epsilon if found.guarantee.is_private else "infinity"
        accuracy = found.scores["accuracy_top1"].value
        print(json.dumps({"run": str(run), "epsilon": epsilon, "accuracy_top1": accuracy, "canaries": rows}))
        return
    table = Table(title=f"{run}: what it remembers", title_justify="left")
    for name in ("users", "copies", "times seen", f"rank among {rank_text(references)}", "by beam search"):
        table.add_column(name, justify="right")
    for users, copies, findings in found.kinds():
        ranks = ", ".join(rank_text(one.rank) for one in findings)
        by_beam = f"{sum(one.place is not None for one in findings)} / {len(findings)}"
        seen = sum(found.seen[one.canary] for one in findings) / len(findings)
        table.add_row(str(users), str(copies), f"{seen:,.0f}", ranks, by_beam)
    console.print(table)
    console.print(
        f"ε = {epsilon_text(found.guarantee.epsilon)} for people (synthetic users come more often and are not counted there). AccuracyTop1 "
        f"{found.scores['accuracy_top1']:.2%}: a model that has learned nothing remembers nothing. Times seen: to be expected.",
        highlight=False,
    )
