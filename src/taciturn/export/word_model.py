"""Open any model to type with.

That is a run, a pretrained model, counted n-grams, an ARPA file, or a keyboard's dictionary.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from taciturn.core import Params, WordModel
from taciturn.data.vocabulary import Vocabulary
from taciturn.export.aosp_dictionary_reader import read_dictionary
from taciturn.export.aosp_suggestions import suggest_from
from taciturn.export.arpa import read_arpa
from taciturn.models.ngram import NGram
from taciturn.models.registry import ModelKind, model_kind
from taciturn.models.suggestion_dictionary import SuggestionDictionary
from taciturn.privacy.ledger.signed_rows import SIGNATURE
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection
from taciturn.release.model_file import ModelCard, ModelFileError, load_model

# A file beside counted n-grams that names the population, as a run's recipe does.
COUNTED_ON = "counted_on.json"


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """What was read from a file.

    Its model uses exactly these parameters, so what the ledger knows is what runs.
    """

    path: Path
    vocabulary: Vocabulary
    params: Params
    # An ARPA file and a dictionary have none: what they were counted on is unknown.
    card: ModelCard | None
    # A keyboard's dictionary, which has no parameters.
    dictionary: SuggestionDictionary | None = None

    @property
    def is_personal(self) -> bool:
        """Tell whether it is one person's own, which only they may type with."""
        return self.card is not None and self.card.personal

    @property
    def is_of_users(self) -> bool:
        """Tell whether users' text went into it: its card says so, or its folder does."""
        if self.card is not None and self.card.run is not None:
            return True
        return is_of_users(self.path)

    @cached_property
    def model(self) -> WordModel:
        """Return the model, ready to type with."""
        if self.dictionary is not None:
            return self.dictionary
        if self.card is None or self.kind is None:
            return NGram.of(self.params, len(self.vocabulary))
        section = ModelSection(**self.card.architecture)
        model = build.language_model(section, len(self.vocabulary))
        sentence_ends = self.vocabulary.sentence_ends if self.card.sentences else ()
        return self.kind.stepper(model, self.params, sentence_ends)

    @property
    def kind(self) -> ModelKind | None:
        """Return the kind of a neural model; None for n-grams."""
        if self.card is None or self.card.architecture["kind"] == "ngram":
            return None
        try:
            return model_kind(self.card.architecture["kind"])
        except ValueError as error:
            raise ModelFileError(f"{self.path}: {error}") from None


def is_of_users(folder: Path) -> bool:
    """Tell whether a folder is of a model of users, whatever the model's card says."""
    return any((folder / name).exists() for name in (COUNTED_ON, "recipe.toml", SIGNATURE))


def load_word_model(path: Path) -> LoadedModel:
    """Read a model and its words from a folder, an ARPA file, or a keyboard's dictionary."""
    if (path / "model.arpa").exists():
        path = path / "model.arpa"
    if path.suffix == ".arpa":
        return _load_arpa(path)
    if path.suffix == ".dict":
        return _load_dictionary(path)
    params, card = load_model(path)
    vocabulary = Vocabulary.of(card.vocabulary, card.text)
    return LoadedModel(path=path, vocabulary=vocabulary, params=params, card=card)


def _load_arpa(path: Path) -> LoadedModel:
    ngram, words = read_arpa(path)
    vocabulary = Vocabulary(words=tuple(words), source=path.name)
    return LoadedModel(path=path, vocabulary=vocabulary, params=ngram.params(), card=None)


def _load_dictionary(path: Path) -> LoadedModel:
    vocabulary, dictionary = suggest_from(read_dictionary(path), source=path.name)
    return LoadedModel(
        path=path, vocabulary=vocabulary, params={}, card=None, dictionary=dictionary
    )
