"""A file, whatever it is, as a model to type with: a run, an export, a pretrained model, counted n-grams, or anyone's ARPA file."""

import json
from pathlib import Path
from typing import NamedTuple

from taciturn import build
from taciturn.baselines import COUNTED_ON
from taciturn.config import Model
from taciturn.core import Params, WordModel
from taciturn.data.population import Population
from taciturn.data.vocabulary import Vocabulary
from taciturn.models.ngram import NGram
from taciturn.models.stepping import Recurrent, Windowed, step_weights
from taciturn.privacy.ledger import Guarantee
from taciturn.release.arpa import read_arpa
from taciturn.release.checkpoint import ModelCard, load_model
from taciturn.release.export import verified_guarantee
from taciturn.run import RunError, recipe_of


class Loaded(NamedTuple):
    path: Path
    model: WordModel
    vocabulary: Vocabulary
    params: Params
    card: ModelCard | None  # an ARPA file has none: nobody knows what it was counted on


def load_word_model(path: Path) -> Loaded:
    if path.suffix == ".arpa":
        model, words = read_arpa(path)
        vocabulary = Vocabulary(tuple(words), source=str(path.name))
        return Loaded(path, model, vocabulary, model.params(), None)
    params, card = load_model(path)
    vocabulary = Vocabulary.of(card.vocabulary, card.text)
    return Loaded(path, _word_model(params, card, vocabulary), vocabulary, params, card)


def _word_model(params: Params, card: ModelCard, vocabulary: Vocabulary) -> WordModel:
    if card.architecture["kind"] == "ngram":
        return NGram.of(params, len(vocabulary))
    settings = Model(**card.architecture)
    model = build.language_model(settings, len(vocabulary))
    restarts = vocabulary.sentence_ends if card.sentences else ()
    if settings.kind == "transformer":
        return Windowed(model, params, restarts)
    return Recurrent(settings.kind, step_weights(model, params), restarts)


def population_of(folder: Path) -> Population:
    """The users that a run, or counted n-grams, came from."""
    if (folder / COUNTED_ON).exists():
        return Population(Path(json.loads((folder / COUNTED_ON).read_text())["population"]))
    return build.population(recipe_of(folder))


def guarantee_of(loaded: Loaded) -> Guarantee:
    """What the ledger of its users says of exactly this model; refused where there is none."""
    if loaded.card is None:
        raise RunError(f"{loaded.path} does not say where it comes from, so nothing is known of its privacy")
    return verified_guarantee(loaded.params, loaded.card, build.open_ledger(population_of(loaded.path)))
