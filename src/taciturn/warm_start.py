"""Where a model starts from: public text, or an earlier run whose cost then counts as its own."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax

from taciturn import build
from taciturn.algorithms.pretraining import pretrain
from taciturn.config import Model, Recipe, RecipeError
from taciturn.core import Params
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import Vocabulary
from taciturn.models.losses import cross_entropy
from taciturn.release.checkpoint import ModelCard, load_model, save_model


class WarmStart(NamedTuple):
    params: Params
    card: ModelCard


def pretrained(
    corpus: PublicCorpus, settings: Model, epochs: int, out: Path, progress: Callable[[int, int], None], seed: int = 0
) -> Params:
    """Train on public text and write model.safetensors to `out`."""
    model = build.language_model(settings, len(corpus.vocabulary))
    params = model.init(jax.random.key(seed))
    for done, steps, params in pretrain(partial(cross_entropy, model), params, corpus, epochs, seed):  # noqa: B020
        progress(done, steps)
    out.mkdir(parents=True, exist_ok=True)
    architecture = settings.model_dump(mode="json", exclude={"warm_start"})
    card = ModelCard(architecture, corpus.vocabulary.words, public_sources=(corpus.source,))
    save_model(out / "model.safetensors", params, card)
    return params


def load_warm_start(recipe: Recipe, vocabulary: Vocabulary) -> WarmStart | None:
    """The model a recipe starts from, if it names one; refused where it does not fit."""
    if recipe.model.warm_start is None:
        return None
    params, card = load_model(Path(recipe.model.warm_start))
    ours = recipe.model.model_dump(mode="json", exclude={"warm_start", "dropout"})
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
    return WarmStart(params, card)
