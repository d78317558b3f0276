"""Load what a run starts from: a model of public text, or the model of an earlier run.

The cost of an earlier run then counts as its own.
"""

from dataclasses import dataclass
from pathlib import Path

from dp_accounting import DpEvent

from taciturn.core import Params
from taciturn.data.population import Population
from taciturn.data.same_people import check_same_split, check_strangers, has_same_split
from taciturn.data.vocabulary import Vocabulary
from taciturn.export.word_model import is_of_users
from taciturn.people import open_ledger
from taciturn.privacy.ledger.early_end import promised_cost
from taciturn.privacy.ledger.guarantee import is_noise_known
from taciturn.privacy.ledger.ledger import Ledger, Row
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError
from taciturn.release.gate import check_not_personal
from taciturn.release.model_file import ModelCard, load_model, params_digest
from taciturn.runs.folder import RunError
from taciturn.runs.provenance import population_of


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Parameters to start from, and what they have cost already."""

    params: Params
    card: ModelCard
    # What the parameters cost, by the ledger of their run; empty for public text.
    lineage: tuple[DpEvent, ...] = ()
    adjacency: str | None = None
    # Between the samplers of those costs and the ideal, in total variation.
    distance: float = 0.0
    # Whom those costs protect; empty for public text.
    unit: str = ""
    # Whether anyone can remove the noise that hides them.
    seeded: bool = False


def load_warm_start(recipe: Recipe, vocabulary: Vocabulary, ledger: Ledger) -> WarmStart | None:
    """Load the model that a recipe starts from, if it names one.

    A model that does not fit, or whose history is unknown, is refused.
    """
    if recipe.model.warm_start is None:
        return None
    path = Path(recipe.model.warm_start)
    params, card = load_model(path)
    check_not_personal(card, path)
    differences = describe_differences(recipe.model, card)
    if differences:
        raise RecipeError(
            f"[model] warm_start is another model: {differences}. Set [model] as it is, or start"
            " from another model"
        )
    if card.vocabulary != vocabulary.words:
        raise RecipeError(
            "[model] warm_start knows other words than the population; build both with the same"
            " vocabulary"
        )
    books = [ledger]
    # On a fleet of devices nobody trains here, and a population of nobody is false.
    earlier = _population_of_run(path)
    if earlier is not None:
        books.append(open_ledger(earlier))
    start = _look_up_history(params, card, books)
    _check_not_nameless(path, start, books)
    # A run measures its model on held-out users, from round 0 on: none of them may be someone
    # whom this model protects.
    if start.lineage:
        opening = _opening_of_maker(params_digest(params), books)
        _check_nobody_would_be_measured(Path(recipe.data.population), earlier, opening)
    return start


def _check_nobody_would_be_measured(people: Path, earlier: Population | None, opening: Row) -> None:
    """Refuse to start where people are held out whom the start may have been trained on.

    Args:
        people: the folder of those who are held out.
        earlier: whom the start was trained on; None where its folder does not say.
        opening: what its run declared.
    """
    if earlier is None:
        if not has_same_split(people, opening["population"]):
            raise RecipeError(
                f"[model] warm_start was made by run {opening['run']}, on people other than those"
                f" of {people} now, and its folder does not say whom; name that run's folder"
            )
        return
    if not people.samefile(earlier.folder):
        check_strangers(people, earlier.folder)
    check_same_split(earlier.folder, opening["population"], opening["run"])


def _population_of_run(folder: Path) -> Population | None:
    """Return the users on whom a start was trained, where it is a run's folder."""
    if not (folder / "recipe.toml").exists():
        return None
    purpose = f"[model] warm_start: what {folder} has cost its people is counted here too"
    try:
        return population_of(folder, purpose)
    except RunError as error:
        raise RecipeError(str(error)) from None


def _check_not_nameless(path: Path, start: WarmStart, books: list[Ledger]) -> None:
    """Refuse a model that names no run, lies in the folder of one, and is in no ledger."""
    digest = params_digest(start.params)
    if is_nameless(path, start.card) and not any(book.model_row(digest) for book in books):
        raise RecipeError(
            f"[model] warm_start: {path} lies in the folder of a run on users, and no ledger here"
            " knows its parameters, so they are not taken for public text; name the folder of that"
            " run as it was, where its ledger is in reach"
        )


def is_nameless(path: Path, card: ModelCard) -> bool:
    """Tell whether a model that names no run lies in the folder of one."""
    # Of the start that comes with the package it is neither.
    folder = path.parent if path.is_file() else path
    return card.run is None and is_of_users(folder)


def describe_differences(model: ModelSection, card: ModelCard) -> str:
    """Say how the existing model differs from the requested one; empty where it does not."""
    requested = model.model_dump(mode="json", exclude={"warm_start", "dropout", "variational"})
    sentences = []
    for name, wanted in requested.items():
        there = card.architecture.get(name)
        if there != wanted:
            sentences.append(f"its {name} is {_describe(there)}, not {_describe(wanted)}")
    return "; ".join(sentences)


def _describe(setting: object) -> object:
    return "the default" if setting is None else setting


def _look_up_history(params: Params, card: ModelCard, books: list[Ledger]) -> WarmStart:
    """Look up what these parameters cost, and under which terms.

    Ledgers are asked by the parameters themselves, never by what the file states; a file that says
    it is made of public text, and that no ledger knows, is believed.
    """
    digest = params_digest(params)
    for book in books:
        row = _row_with_cost(digest, book)
        if row is not None:
            opened = book.run_rows(row["run"])[0]
            unit = opened.get("unit", "one user")
            return WarmStart(
                params=params,
                card=card,
                lineage=tuple(promised_cost(book, row["run"], row["hash"])),
                adjacency=opened["adjacency"],
                distance=book.distance(row["run"]),
                unit=unit,
                seeded=is_noise_known(opened["randomness"], unit),
            )
    is_known = any(book.model_row(digest) for book in books)
    if card.run is not None and not is_known:
        raise RecipeError(
            f"[model] warm_start is a model of run {card.run}, and no ledger knows its parameters"
            " here: that run's ledger is out of reach, or the model was changed. Name the folder of"
            " that run, whose people are where its recipe says"
        )
    return WarmStart(params=params, card=card)


def _opening_of_maker(digest: str, books: list[Ledger]) -> Row:
    """Return what the run declared that made these parameters, which one of the books knows."""
    found = [(book, row) for book in books if (row := _row_with_cost(digest, book)) is not None]
    book, row = found[0]
    return book.run_rows(row["run"])[0]


def _row_with_cost(digest: str, book: Ledger) -> Row | None:
    """Return the last row of these parameters by the run that made them, if they cost anything.

    Runs that only began with them record them too: whether one of those was seeded says nothing
    about them.
    """
    rows = [
        row
        for row in book.rows
        if row["kind"] == "model" and row["params"] == digest and book.cost(row["run"], row["hash"])
    ]
    of_maker = [row for row in rows if row["run"] == rows[0]["run"]]
    return of_maker[-1] if of_maker else None
