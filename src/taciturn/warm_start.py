"""Where a model starts from: public text, or an earlier run whose cost then counts as its own."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
from dp_accounting import DpEvent

from taciturn import build
from taciturn.algorithms.pretraining import pretrain
from taciturn.config import Recipe
from taciturn.core import Params
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import Vocabulary
from taciturn.models.losses import cross_entropy
from taciturn.privacy.ledger import Ledger
from taciturn.recipe_text import RecipeError, load_recipe
from taciturn.release.checkpoint import ModelCard, load_model, params_digest, save_model
from taciturn.sections import Model

FAST, SLOW = 1.2e-2, 3e-3  # Adam's rate: words of unit length bear the first, at which others' weights run away


class WarmStart(NamedTuple):
    params: Params
    card: ModelCard
    lineage: tuple[DpEvent, ...]  # what the parameters cost, as the ledger of their run says; nothing for public text
    adjacency: str | None = None
    seeded: bool = False  # whether some of that was a simulation, whose noise anyone can take off


def pretrained(
    corpus: PublicCorpus, settings: Model, epochs: int, out: Path, progress: Callable[[int, int], None], seed: int = 0
) -> Params:
    """Train on public text and write model.safetensors to `out`."""
    try:
        model = build.language_model(settings, len(corpus.vocabulary))
        params = model.init(jax.random.key(seed))
        peak_rate = FAST if model.unit_norm else SLOW
        for done, steps, trained in pretrain(
            partial(cross_entropy, model), params, corpus, epochs, seed, peak_rate=peak_rate
        ):
            params = trained
            progress(done, steps)
    except ValueError as error:  # a width that does not fit the heads, a text too short
        raise RecipeError(str(error)) from None
    out.mkdir(parents=True, exist_ok=True)
    architecture = settings.model_dump(mode="json", exclude={"warm_start"})
    card = ModelCard(architecture, corpus.vocabulary.words, corpus.vocabulary.about, public_sources=(corpus.source,))
    save_model(out / "model.safetensors", params, card)
    return params


def load_warm_start(recipe: Recipe, vocabulary: Vocabulary, ledger: Ledger) -> WarmStart | None:
    """The model a recipe starts from, if it names one; refused where it does not fit or its history is unknown."""
    if recipe.model.warm_start is None:
        return None
    path = Path(recipe.model.warm_start)
    params, card = load_model(path)
    ours = recipe.model.model_dump(mode="json", exclude={"warm_start", "dropout", "variational"})
    theirs = card.architecture
    differing = [
        f"{name} is {theirs.get(name)}, not {value}" for name, value in ours.items() if theirs.get(name) != value
    ]
    if differing:
        raise RecipeError(f"[model] warm_start is another model: its {'; its '.join(differing)}")
    if card.vocabulary != vocabulary.words:
        raise RecipeError(
            "[model] warm_start knows other words than the population; build both with the same vocabulary"
        )
    return _with_history(path, WarmStart(params, card, ()), ledger)


def _with_history(path: Path, start: WarmStart, ledger: Ledger) -> WarmStart:
    """What these parameters cost, and under which terms. The ledgers are asked by the parameters themselves, never by what the file
    says of itself; a file that says it is made of public text, and that no ledger knows, is believed."""
    books = [ledger]
    if (path / "recipe.toml").exists():
        books.append(build.open_ledger(build.population(load_recipe(path / "recipe.toml"))))
    for book in books:
        row = book.model_row(params_digest(start.params))
        if row is not None:
            opened = book.run_rows(row["run"])[0]
            return start._replace(
                lineage=tuple(book.cost(row["run"], row["hash"])),
                adjacency=opened["adjacency"],
                seeded=opened["randomness"] != "operating system",
            )
    if start.card.run is not None:
        raise RecipeError(
            f"[model] warm_start says it comes from run {start.card.run}, but no ledger knows its parameters; name the folder of that run"
        )
    return start
