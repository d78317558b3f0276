"""`taciturn ledger`: what was ever released about a population's users, and what may be."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.commands import group
from taciturn.cli.output import begin, console, print_table, say
from taciturn.errors import TaciturnError
from taciturn.files import to_json
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text, pair_text, rho_text

if TYPE_CHECKING:
    from taciturn.privacy.ledger.ledger import Ledger

Folder = Annotated[
    Path,
    Argument(help="folder of a population; or a ledger that was made from Python, or its folder"),
]
RunName = Annotated[str, Argument(help="name of a run, as `taciturn ledger show FOLDER` lists it")]
FIGURES = ("run", "releases", "epsilon", "delta", "rho")
NEIGHBOURS = {
    "add or remove one user": "one user more",
    "replace one user by another": "one user replaced",
}

ledger_app = group(
    "ledger", "Show and limit what is released about a population.", "taciturn ledger show people"
)


def _made_from_python(place: Path) -> Path | None:
    """Return the file of a ledger that has no population's folder around it. Its head is beside it,
    unlike with a run's copy of rows.
    """
    file = (place / "ledger.jsonl" if place.is_dir() else place).resolve()
    # Either names the ledger of these people, which one that is opened by itself is not held
    # against.
    is_of_people = any(
        (file.parent / name).exists() for name in ("manifest.json", "private/ledger.json")
    )
    return file if file.with_suffix(".head").exists() and not is_of_people else None


def _opened(place: Path) -> "Ledger":
    from taciturn.data.population import Population
    from taciturn.people import open_ledger
    from taciturn.privacy.ledger.ledger import Ledger

    own = _made_from_python(place)
    return Ledger(own) if own else open_ledger(Population(place))


@ledger_app.command()
def show(
    population: Folder,
    delta: Annotated[
        float | None, Option(help="δ of the totals (default: the runs' smallest)")
    ] = None,
) -> dict[str, Any]:
    """Show what was ever released about a population's users. It lists runs, releases, ε, ρ, and
    the total of all runs.

    Example: taciturn ledger show people --delta 1e-10
    """
    if delta is not None and not 0 < delta < 1:
        raise TaciturnError(f"--delta must lie between 0 and 1, not {delta:g}")
    begin(f"reading {population}")
    book = _opened(population)
    guarantees = [book.guarantee(run) for run in book.runs()]
    found: dict[str, Any] = {
        "runs": [{name: getattr(one, name) for name in FIGURES} for one in guarantees]
    }

    def row(
        name: str, releases: str, epsilon: float, delta: float, rho: float, adjacency: str
    ) -> tuple[str, ...]:
        return (
            name,
            releases,
            epsilon_text(epsilon),
            delta_text(delta),
            rho_text(rho),
            NEIGHBOURS.get(adjacency, adjacency),
        )

    rows = []
    for one in guarantees:
        name = one.run if one.randomness == "operating system" else f"{one.run} (simulation)"
        rows.append(row(name, str(one.releases), one.epsilon, one.delta, one.rho, one.adjacency))
    if guarantees:
        delta = delta or min(one.delta for one in guarantees)
        epsilon, rho = book.total(delta)
        found["total"] = {"epsilon": epsilon, "rho": rho, "delta": delta}
        rows += [
            row("together", "", total[1], delta, total[2], total[0]) for total in book.totals(delta)
        ]
        rows.append(row("all together", "", epsilon, delta, rho, "zero out one user"))
    columns = "run", "releases", "ε", "δ", "ρ", "neighbours differ by"
    print_table(
        columns,
        rows,
        f"{population}: what was released about these users",
        left=("run", "neighbours differ by"),
    )
    # Explain the totals, and what there is beside them: a budget, an anchor.
    torn = sum(row["kind"] == "torn" for row in book.rows)
    lines = [
        (
            "ρ does not count the sampling of users, ε does. Several runs are added up in RDP,"
            " which stays valid when later runs are chosen after seeing earlier ones; under the"
            " adjacency of the last row all runs add up, whatever they state themselves."
        ),
        f"The ledger has {len(book.rows)} rows, each of which fits the one before it; the last is"
        f" {book.head[:16]}…"
        + (
            f" {torn} were left incomplete by a crash, before anything was released."
            if torn
            else ""
        ),
    ]
    if book.budget:
        waiting = [run for run in book.runs() if not book.is_closed(run)]
        still = (
            f" Not closed, and counted with all they may still release: {', '.join(waiting)}."
            if waiting
            else ""
        )
        lines.append(
            "Budget for all runs together:"
            f" {pair_text(book.budget.epsilon, book.budget.delta)}.{still}"
        )
    if book.anchor:
        lines.append(f"Anchored in {book.anchor}.")
    console.print("\n".join(lines))
    found["made_from_python"] = _made_from_python(population) is not None
    if found["made_from_python"]:
        console.print(
            "Made from Python: whether its runs are about the same people, and whether other"
            " ledgers know of them, is unknown."
        )
    return found


@ledger_app.command()
def export(
    population: Folder, file: Annotated[Path, Argument(help="JSON file to write")]
) -> dict[str, str]:
    """Write what every run cost, for others to recompute ε. The file has events of dp-accounting.

    Example: taciturn ledger export people costs.json
    """
    from taciturn.privacy.ledger.ledger_export import events_for_others

    events = to_json(events_for_others(_opened(population)), indent=1, ensure_ascii=False)
    file.write_text(events + "\n", encoding="utf-8")
    say(f"{file}: what every run cost, as events of dp-accounting")
    return {"file": str(file)}


@ledger_app.command()
def budget(
    population: Folder,
    epsilon: Annotated[float, Option(help="what all runs together may cost, in whatever order")],
    delta: Annotated[
        float | None,
        Option(help="δ of it (default: that of the last budget, or the runs' smallest, or 1e-10)"),
    ] = None,
) -> dict[str, float]:
    """Set a budget for all runs on these people together. It can only be lowered later.

    Set it before the first run. Each run then reserves the most that it may cost (all its rounds
    and some more, correlated noise in full), and does not start if all runs together could exceed
    the budget; when it ends, it returns what it did not spend. Runs without privacy do not start.

    Example: taciturn ledger budget people --epsilon 4 --delta 1e-10
    """
    from taciturn.privacy.ledger.population_budget import PopulationBudget

    book = _opened(population)
    known = (
        [book.budget.delta]
        if book.budget
        else [book.run_rows(run)[0]["delta"] for run in book.runs()]
    )
    fixed = PopulationBudget(
        epsilon=epsilon, delta=min(known, default=1e-10) if delta is None else delta
    )
    book.set_budget(fixed)
    console.print(
        f"From now on all runs together may cost at most {pair_text(fixed.epsilon, fixed.delta)}."
    )
    return asdict(fixed)


@ledger_app.command()
def close(population: Folder, run: RunName) -> dict[str, str]:
    """Close an interrupted run for good. What it reserved of the budget and did not spend is given
    back.

    Example: taciturn ledger close people first
    """
    _opened(population).close(run)
    console.print(f"{run} is closed: it cannot be resumed.")
    return {"closed": run}


@ledger_app.command()
def adopt(
    population: Folder,
    same_people_as: Annotated[
        Path | None,
        Option(help="where the folder of the same people is now, whose ledger this one shares"),
    ] = None,
) -> dict[str, Any]:
    """Adopt a folder that was copied, restored or moved. It is then the one to use.

    Its ledger must have every known row. If the original is still in its place, it is retired, and
    refused from then on.

    Example: taciturn ledger adopt restored/people
    """
    from taciturn.people import adopt_ledger
    from taciturn.privacy.ledger.adopt import adopt

    own = _made_from_python(population) if same_people_as is None else None
    book, retired = adopt(own) if own else adopt_ledger(population, same_people_as)
    there = (
        f"{retired} is retired"
        if retired
        else "no other copy was found; if there is one, delete it"
    )
    say(f"{book.path} is adopted (rows: {len(book.rows)}, runs: {len(book.runs())}); {there}.")
    return {
        "ledger": str(book.path),
        "rows": len(book.rows),
        "retired": str(retired) if retired else None,
    }


@ledger_app.command()
def anchor(
    population: Folder,
    file: Annotated[
        Path | None, Option(help="a file on another disk, which is created and updated")
    ] = None,
    command: Annotated[
        str | None,
        Option(
            help="a command that gets the last head and the new one, and agrees with exit status 0"
        ),
    ] = None,
) -> dict[str, str]:
    """Keep the ledger's newest head outside of its folder too. An older copy that was restored is
    then noticed.

    The head is compared before every release. If the anchor cannot be reached, or knows another
    head, nothing is released.

    Example: taciturn ledger anchor people --file /mnt/other/people.head
    """
    from taciturn.privacy.ledger.anchor import Anchor

    if (file is None) == (command is None):
        raise TaciturnError("name one anchor: --file PATH or --command COMMAND, not both")
    book = _opened(population)
    if file and file.resolve().is_relative_to(book.path.parent):
        raise TaciturnError(
            f"{file} lies in the population's folder, and would be put back with it: name a file"
            " elsewhere"
        )
    book.set_anchor(Anchor(file=file.resolve() if file else None, command=command))
    say(f"Anchored in {book.anchor}.")
    return {"anchor": str(book.anchor)}
