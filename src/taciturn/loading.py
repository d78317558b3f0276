"""A file, whatever it is, as a model to type with: a run, an export, a pretrained model, counted n-grams, or anyone's ARPA file."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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


@dataclass(frozen=True)
class Loaded:
    """What was read from a file. Its model is made of these parameters and no others, so what the ledger knows is what is used."""

    path: Path
    vocabulary: Vocabulary
    params: Params
    card: ModelCard | None  # an ARPA file has none: nobody knows what it was counted on

    @property
    def is_of_users(self) -> bool:
        """Whether users' text went into it, as far as it says."""
        return self.card is not None and self.card.run is not None

    @cached_property
    def model(self) -> WordModel:
        if self.card is None or self.card.architecture["kind"] == "ngram":
            return NGram.of(self.params, len(self.vocabulary))
        settings = Model(**self.card.architecture)
        model = build.language_model(settings, len(self.vocabulary))
        restarts = self.vocabulary.sentence_ends if self.card.sentences else ()
        if settings.kind == "transformer":
            return Windowed(model, self.params, restarts)
        return Recurrent(settings.kind, step_weights(model, self.params), restarts)


def load_word_model(path: Path) -> Loaded:
    if path.suffix == ".arpa":
        ngram, words = read_arpa(path)
        return Loaded(path, Vocabulary(tuple(words), source=path.name), ngram.params(), None)
    params, card = load_model(path)
    return Loaded(path, Vocabulary.of(card.vocabulary, card.text), params, card)


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
