"""`taciturn ledger`: what was ever released about a population's users, and what may be."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from taciturn.cli.command_classes import group
from taciturn.cli.output import begin, console, print_table, say
from taciturn.errors import TaciturnError
from taciturn.files import to_json
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text, pair_text, rho_text

if TYPE_CHECKING:
    from taciturn.privacy.ledger.guarantee import Guarantee
    from taciturn.privacy.ledger.ledger import Ledger

Folder = Annotated[
    Path,
    Argument(help="folder of a population; or a ledger that was made from Python, or its folder"),
]
RunName = Annotated[str, Argument(help="name of a run, as `taciturn ledger show FOLDER` lists it")]
NEIGHBOURS = {
    "add or remove one user": "one user more",
    "replace one user by another": "one user replaced",
}

ledger_app = group(
    "ledger", "Show and limit what is released about a population.", "taciturn ledger show people"
)


def _find_made_from_python(place: Path) -> Path | None:
    """Return the file of a ledger that has no population's folder around it.

    Its head is beside it, unlike with a run's copy of rows.
    """
    file = (place / "ledger.jsonl" if place.is_dir() else place).resolve()
    # Either names the ledger of these people; a ledger that is opened by itself is not compared
    # with it.
    is_of_people = any(
        (file.parent / name).exists() for name in ("manifest.json", "private/ledger.json")
    )
    has_head = file.with_suffix(".head").exists()
    return file if has_head and not is_of_people else None


def _open(place: Path) -> "Ledger":
    """Open the ledger of a population, or one that was made from Python."""
    from taciturn.data.population import Population
    from taciturn.people import open_ledger
    from taciturn.privacy.ledger.ledger import Ledger

    file = _find_made_from_python(place)
    if file:
        return Ledger(file)
    _check_not_a_run(place)
    return open_ledger(Population(place))


def _check_not_a_run(place: Path) -> None:
    """Refuse a run and its ledger.jsonl: there are only its own rows in it."""
    from taciturn.privacy.ledger.signed_rows import has_signature
    from taciturn.runs.provenance import population_of

    run = place.parent if place.is_file() else place
    if not (run / "recipe.toml").exists() and not has_signature(run):
        return
    what = f"{run} is a run, and its ledger.jsonl has only the rows of that run"
    people = population_of(run, what).folder
    raise TaciturnError(f"{what}: name the folder of its people, {people}")


@ledger_app.command()
def show(
    population: Folder,
    delta: Annotated[
        float | None,
        Option(help="δ of the totals (default: 1/users² of the largest population of the ledger)"),
    ] = None,
) -> dict[str, Any]:
    """Show what was ever released about a population's users. It lists runs, releases, ε, ρ, and
    the total of all runs. A run on people whose noise came from a seed counts as ε = ∞.

    Example: taciturn ledger show people --delta 1e-10
    """
    if delta is not None and not 0 < delta < 1:
        raise TaciturnError(f"--delta must lie between 0 and 1, not {delta:g}")
    from taciturn.privacy.ledger.ledger import UsualDelta
    from taciturn.privacy.ledger.ledger_key import fingerprint_of, list_keys

    begin(f"reading {population}")
    book = _open(population)
    guarantees = [book.guarantee(run) for run in book.runs()]
    content: dict[str, Any] = {"runs": [_figures_of(guarantee) for guarantee in guarantees]}
    rows = [_describe_run(guarantee) for guarantee in guarantees]
    is_from_python = _find_made_from_python(population) is not None
    together = ""
    if guarantees:
        usual = book.usual_delta(0 if is_from_python else _count_people(population))
        at = usual if delta is None else UsualDelta(delta, "as asked for")
        epsilon, rho = book.total(at.delta)
        content["total"] = {
            "epsilon": epsilon,
            "rho": rho,
            "delta": at.delta,
            "delta_is": at.source,
        }
        rows += _describe_totals(book, at.delta)
        together = f"All runs on these people together: {pair_text(epsilon, at.delta)}"
        together = f"{together} (δ: {at.source})."
    print_table(
        ("run", "releases", "ε", "δ", "ρ", "neighbours differ by"),
        rows,
        f"{population}: what was released about these users",
        left=("run", "neighbours differ by"),
    )
    if together:
        console.print(together)
    console.print("\n".join(_explain(book)))
    content["keys"] = [fingerprint_of(key) for key in list_keys(book.run_rows(None))]
    content["made_from_python"] = is_from_python
    if is_from_python:
        console.print(
            "Made from Python: whether its runs are about the same people, and whether other"
            " ledgers know of them, is unknown."
        )
    return content


def _figures_of(guarantee: "Guarantee") -> dict[str, Any]:
    """Return what programs read of a run: what it counts, and whether its noise is known."""
    return {
        "run": guarantee.run,
        "releases": guarantee.releases,
        "epsilon": guarantee.counted_spending.epsilon,
        "delta": guarantee.delta,
        "rho": guarantee.counted_spending.rho,
        "randomness": guarantee.randomness,
        "noise_is_known": guarantee.is_noise_known,
        "resumptions": guarantee.resumptions,
    }


def _count_people(folder: Path) -> int:
    from taciturn.data.population import Population

    return len(Population(folder))


def _describe_run(guarantee: "Guarantee") -> list[str]:
    """Return the row of a run."""
    name = guarantee.run
    if guarantee.is_noise_known:
        name = f"{name} (noise from a seed)"
    elif guarantee.is_simulated:
        name = f"{name} (simulation)"
    counted = guarantee.counted_spending
    costs = _describe_costs(counted.epsilon, guarantee.delta, counted.rho)
    return [name, str(guarantee.releases), *costs, _name_neighbours(guarantee.adjacency)]


def _describe_totals(book: "Ledger", delta: float) -> list[list[str]]:
    """Return the rows of all runs together: under each adjacency, and under one for all."""
    rows = []
    for adjacency, epsilon, rho in book.totals(delta):
        costs = _describe_costs(epsilon, delta, rho)
        rows.append(["together", "", *costs, _name_neighbours(adjacency)])
    epsilon, rho = book.total(delta)
    rows.append(["all together", "", *_describe_costs(epsilon, delta, rho), "zero out one user"])
    return rows


def _describe_costs(epsilon: float, delta: float, rho: float) -> list[str]:
    return [epsilon_text(epsilon), delta_text(delta), rho_text(rho)]


def _name_neighbours(adjacency: str) -> str:
    return NEIGHBOURS.get(adjacency, adjacency)


def _explain(book: "Ledger") -> Iterator[str]:
    """Explain the totals, and what there is beside them: a budget, keys, an anchor."""
    from taciturn.privacy.ledger.ledger_key import fingerprint_of

    yield (
        "ρ does not count the sampling of users, ε does. Several runs are added up in RDP,"
        " which stays valid when later runs are chosen after seeing earlier ones; under the"
        " adjacency of the last row all runs add up, whatever they state themselves. ε of a run is"
        " that of the releases it made; what a run promises is in its guarantee.txt."
    )
    seeded = sum(book.is_noise_known(run) for run in book.runs())
    if seeded:
        yield (
            f"{seeded} of {len(book.runs())} runs took noise from a seed. Anyone who knows the seed"
            " can remove it, so such a run counts as ε = ∞, whatever its own statement says of the"
            " mechanism."
        )
    rows = (
        f"The ledger has {len(book.rows)} rows, each of which fits the one before it; the last is"
        f" {book.head[:16]}…"
    )
    torn = sum(row["kind"] == "torn" for row in book.rows)
    if torn:
        rows += f" {torn} were left incomplete by a crash, before anything was released."
    yield rows
    if book.budget:
        budget = pair_text(book.budget.epsilon, book.budget.delta)
        words = f"Budget for all runs together: {budget}."
        waiting = [run for run in book.runs() if not book.is_closed(run)]
        if waiting:
            words += (
                f" Not closed, and counted with all they may still release: {', '.join(waiting)}."
            )
        yield words
    for number, row in enumerate(book.rows, start=1):
        if row["kind"] == "key":
            fingerprint = fingerprint_of(bytes.fromhex(row["public"]))
            yield (
                f"From row {number} on, its runs are signed by the key with the fingerprint"
                f" {fingerprint} (`--trust` takes it)."
            )
    if book.anchor:
        yield f"Anchored in {book.anchor}."


@ledger_app.command()
def export(
    population: Folder, file: Annotated[Path, Argument(help="JSON file to write")]
) -> dict[str, str]:
    """Write what every run cost, for others to recompute ε. The file has events of dp-accounting.

    Example: taciturn ledger export people costs.json
    """
    from taciturn.privacy.ledger.ledger_export import events_for_others

    events = to_json(events_for_others(_open(population)), indent=1, ensure_ascii=False)
    file.write_text(events + "\n", encoding="utf-8")
    say(f"{file}: what every run cost, as events of dp-accounting")
    return {"file": str(file)}


@ledger_app.command()
def budget(
    population: Folder,
    epsilon: Annotated[float, Option(help="what all runs together may cost, in whatever order")],
    delta: Annotated[
        float | None,
        Option(help="δ of it (default: that of the last budget, or 1/users²)"),
    ] = None,
) -> dict[str, float]:
    """Set a budget for all runs on these people together. It can only be lowered later.

    Set it before the first run. Each run then reserves the most that it may cost (all its rounds
    and some more, correlated noise in full), and does not start if all runs together could exceed
    the budget; when it ends, it returns what it did not spend. Runs without privacy do not start,
    nor do runs whose noise comes from a seed.

    Example: taciturn ledger budget people --epsilon 4 --delta 1e-10
    """
    from taciturn.privacy.ledger.population_budget import PopulationBudget

    book = _open(population)
    if delta is None:
        delta = _usual_delta(book, population)
    fixed = PopulationBudget(epsilon=epsilon, delta=delta)
    book.set_budget(fixed)
    console.print(
        f"From now on all runs together may cost at most {pair_text(fixed.epsilon, fixed.delta)}."
    )
    return asdict(fixed)


def _usual_delta(book: "Ledger", folder: Path) -> float:
    """Return the δ of the last budget, or that of the totals."""
    if book.budget:
        return book.budget.delta
    is_from_python = _find_made_from_python(folder) is not None
    return book.usual_delta(0 if is_from_python else _count_people(folder)).delta


@ledger_app.command()
def close(population: Folder, run: RunName) -> dict[str, str]:
    """Close an interrupted run for good. What it reserved of the budget and did not spend is given
    back.

    Example: taciturn ledger close people first
    """
    _open(population).close(run)
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

    file = _find_made_from_python(population) if same_people_as is None else None
    book, retired = adopt(file) if file else adopt_ledger(population, same_people_as)
    other = "no other copy was found; if there is one, delete it"
    if retired:
        other = f"{retired} is retired"
    say(f"{book.path} is adopted (rows: {len(book.rows)}, runs: {len(book.runs())}); {other}.")
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
    book = _open(population)
    if file and file.resolve().is_relative_to(book.path.parent):
        raise TaciturnError(
            f"{file} lies in the population's folder, and would be put back with it: name a file"
            " elsewhere"
        )
    anchor = Anchor(file=file.resolve() if file else None, command=command)
    book.set_anchor(anchor)
    say(f"Anchored in {book.anchor}.")
    return {"anchor": str(book.anchor)}
