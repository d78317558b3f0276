"""A file, whatever it is, as a model to type with: a run, a pretrained model, counted n-grams, or anyone's ARPA file."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from taciturn import build
from taciturn.baselines import COUNTED_ON
from taciturn.core import Params, WordModel
from taciturn.data.population import Population, trained_on
from taciturn.data.vocabulary import Vocabulary
from taciturn.models.ngram import NGram
from taciturn.models.stepping import Recurrent, Stacked, Windowed, step_weights
from taciturn.privacy.ledger import Guarantee, Row
from taciturn.release.arpa import read_arpa
from taciturn.release.checkpoint import ModelCard, load_model
from taciturn.release.export import ExportRefused, check_not_personal, verified_guarantee
from taciturn.run_folder import RunError, recipe_of
from taciturn.sections import Model


@dataclass(frozen=True)
class Loaded:
    """What was read from a file. Its model is made of these parameters and no others, so what the ledger knows is what is used."""

    path: Path
    vocabulary: Vocabulary
    params: Params
    card: ModelCard | None  # an ARPA file has none: nobody knows what it was counted on

    @property
    def is_personal(self) -> bool:
        """Whether it is somebody's own, of whom nothing is known here but that they may type with it."""
        return self.card is not None and self.card.personal

    @property
    def is_of_users(self) -> bool:
        """Whether users' text went into it: it says so, or lies in a folder that does."""
        named = self.card is not None and self.card.run is not None
        return named or (self.path / COUNTED_ON).exists() or (self.path / "recipe.toml").exists()

    @cached_property
    def model(self) -> WordModel:
        if self.card is None or self.card.architecture["kind"] == "ngram":
            return NGram.of(self.params, len(self.vocabulary))
        settings = Model(**self.card.architecture)
        model = build.language_model(settings, len(self.vocabulary))
        restarts = self.vocabulary.sentence_ends if self.card.sentences else ()
        if settings.kind == "transformer":
            return Windowed(model, self.params, restarts)
        if settings.kind == "deep-lstm":
            return Stacked(model, self.params, restarts)
        return Recurrent(settings.kind, step_weights(model, self.params), restarts)


def load_word_model(path: Path) -> Loaded:
    if (path / "model.arpa").exists():
        path = path / "model.arpa"
    if path.suffix == ".arpa":
        ngram, words = read_arpa(path)
        return Loaded(path, Vocabulary(tuple(words), source=path.name), ngram.params(), None)
    params, card = load_model(path)
    return Loaded(path, Vocabulary.of(card.vocabulary, card.text), params, card)


def population_of(folder: Path) -> Population:
    """The users that a run, or counted n-grams, came from."""
    if (folder / COUNTED_ON).exists():
        return Population(Path(json.loads((folder / COUNTED_ON).read_text())["population"]))
    if (folder / "guarantee.json").exists() and not (folder / "recipe.toml").exists():
        raise RunError(
            f"{folder} is an export, and the ledger to ask about it is beside its run: name the run's folder"
        )
    return build.population(recipe_of(folder))


def guarantee_of(loaded: Loaded) -> Guarantee:
    """What the ledger of its users says of exactly this model; refused where there is none."""
    if loaded.card is None:
        raise ExportRefused(f"{loaded.path} does not say where it comes from: nothing is known of its privacy")
    check_not_personal(loaded.card, loaded.path)
    if not loaded.is_of_users:
        raise ExportRefused(
            f"{loaded.path} is made of public text alone: there is no guarantee to export it with, and nobody to protect"
        )
    return verified_guarantee(loaded.params, loaded.card, build.open_ledger(population_of(loaded.path)))


def opened_row(loaded: Loaded) -> Row:
    """What its run declared before the first round."""
    run = guarantee_of(loaded).run
    return build.open_ledger(population_of(loaded.path)).run_rows(run)[0]


def learned_from(loaded: Loaded) -> str | None:
    """Whose text, in words that go on after «learned from»; None where nothing is known."""
    if loaded.card is None:
        return None
    if loaded.is_personal:
        return "your own text"
    if not loaded.is_of_users:
        return "public text"
    if (loaded.path / "recipe.toml").exists():
        recipe, opened = recipe_of(loaded.path), opened_row(loaded)
        if recipe.fingerprint == opened["recipe"]:  # or else the number is not the one that was declared
            simulated = opened.get("unit", "").startswith("one simulated")
            return f"the text of about {recipe.participation.users:,} {'simulated users' if simulated else 'people'}"
    return "people's text"


def people_known_to(loaded: Loaded) -> Callable[[str], bool]:
    """Whether a user, by id, was trained on by this model or by one that it started from, or opted out. Refused where that cannot be
    told any more."""
    return trained_on(folder_known_to(loaded))


def folder_known_to(loaded: Loaded) -> Path:
    """The population that has all whom this model was trained on, and those that it started from."""
    population = population_of(loaded.path)
    ledger, opened = build.open_ledger(population), opened_row(loaded)
    while True:
        if opened["population"] != population.id:
            raise RunError(
                f"{population.folder} was built again since {opened['run']} was trained on it: who was trained on is not known any more"
            )
        if not opened["lineage"]:
            return population.folder
        earlier = ledger.rows[: ledger.rows.index(opened)]  # a run records what it started from as its own round 0, too
        before = next((row for row in earlier if row.get("params") == opened["start"]), None)
        if before is None:
            raise RunError(
                f"{opened['run']} started from a model of other users than {population.folder}'s: who they were is not known here"
            )
        opened = ledger.run_rows(before["run"])[0]
