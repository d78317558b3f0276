"""Where a run starts: from a model of public text, or from an earlier run, whose cost then counts
as its own.
"""

from pathlib import Path
from typing import NamedTuple

from dp_accounting import DpEvent

from taciturn.core import Params
from taciturn.data.population import check_strangers
from taciturn.data.vocabulary import Vocabulary
from taciturn.people import open_ledger
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError, load_recipe
from taciturn.release.gate import check_not_personal
from taciturn.release.model_file import ModelCard, load_model, params_digest


class WarmStart(NamedTuple):
    params: Params
    card: ModelCard
    # what the parameters cost, by the ledger of their run; empty for public text
    lineage: tuple[DpEvent, ...]
    adjacency: str | None = None
    # of those costs' samplers from the ideal
    distance: float = 0.0
    # whether some of that was a simulation, whose noise anyone can remove
    seeded: bool = False


def load_warm_start(recipe: Recipe, vocabulary: Vocabulary, ledger: Ledger) -> WarmStart | None:
    """Load the model a recipe starts from, if it names one; refuse one that does not fit or whose
    history is unknown.
    """
    if recipe.model.warm_start is None:
        return None
    path = Path(recipe.model.warm_start)
    params, card = load_model(path)
    check_not_personal(card, path)
    differing = differences(recipe.model, card)
    if differing:
        raise RecipeError(
            f"[model] warm_start is another model: {differing}. Set [model] as it is, or start from"
            " another model"
        )
    if card.vocabulary != vocabulary.words:
        raise RecipeError(
            "[model] warm_start knows other words than the population; build both with the same"
            " vocabulary"
        )
    own = (
        [build.population(load_recipe(path / "recipe.toml"))]
        if (path / "recipe.toml").exists()
        else []
    )
    start, now = (
        _with_history(WarmStart(params, card, ()), [ledger, *map(open_ledger, own)]),
        Path(recipe.data.population),
    )
    for before in own:
        # A run measures its model on held-out users, from round 0 on: none of them may be someone
        # whom this model protects.
        if start.lineage and not now.samefile(before.folder):
            check_strangers(now, before.folder)
    return start


def differences(model: ModelSection, card: ModelCard) -> str:
    """Say how the existing model differs from the requested one; empty where it does not."""
    ours, theirs = (
        model.model_dump(mode="json", exclude={"warm_start", "dropout", "variational"}),
        card.architecture,
    )
    differing = {
        name: (theirs.get(name), value) for name, value in ours.items() if theirs.get(name) != value
    }
    shown = {
        name: ["the default" if one is None else one for one in both]
        for name, both in differing.items()
    }
    return "; ".join(
        f"its {name} is {there}, not {wanted}" for name, (there, wanted) in shown.items()
    )


def _with_history(start: WarmStart, books: list[Ledger]) -> WarmStart:
    """Look up what these parameters cost, and under which terms. Ledgers are asked by the
    parameters themselves, never by what the file states; a file that says it is made of public
    text, and that no ledger knows, is believed.
    """
    is_known = False
    for book in books:
        row = book.model_row(params_digest(start.params))
        if row is None:
            continue
        is_known, lineage = True, tuple(book.cost(row["run"], row["hash"]))
        # Without any it is what a run began with: whether that run was seeded says nothing about
        # it.
        if lineage:
            opened = book.run_rows(row["run"])[0]
            seeded = opened["randomness"] != "operating system"
            return start._replace(
                lineage=lineage,
                distance=book.distance(row["run"]),
                adjacency=opened["adjacency"],
                seeded=seeded,
            )
    if start.card.run is not None and not is_known:
        raise RecipeError(
            f"[model] warm_start says run {start.card.run}, but no ledger knows its parameters;"
            " name that run's folder"
        )
    return start
