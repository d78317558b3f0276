"""Finished models: whom they protect, what the ledger says about them, and what they are worth on
held-out users, alone or compared.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taciturn.audit import audit_users, canaries
from taciturn.audit.results import AuditResults, audit_membership, find_canaries
from taciturn.audit.secret_sharer import REFERENCES
from taciturn.core import LanguageModel, Params
from taciturn.data.layout import Cut
from taciturn.data.population import HeldOutUsers, Population, check_strangers
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.errors import TaciturnError
from taciturn.evaluation.accuracy import Scores, evaluate, evaluate_each, evaluate_steps
from taciturn.evaluation.intervals import Interval
from taciturn.export.formats import Export, Exported
from taciturn.export.word_model import COUNTED_ON, LoadedModel, load_word_model
from taciturn.keyboard.predictor import Predictor
from taciturn.names import ExportFormat
from taciturn.people import open_ledger
from taciturn.privacy.ledger.ledger import Guarantee, Ledger, Row
from taciturn.progress import Progress, StageProgress, ignore_progress
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.release.gate import ExportRefused, check_not_personal, verified_guarantee
from taciturn.release.model_file import ModelCard, ModelFileError, load_model, params_digest
from taciturn.runs.folder import RunError, recipe_of
from taciturn.runs.page import Tested, whose_text, write_report


def population_of(folder: Path) -> Population:
    """Return the users that a run, or counted n-grams, came from."""
    if (folder / COUNTED_ON).exists():
        return Population(Path(json.loads((folder / COUNTED_ON).read_text())["population"]))
    if (folder / "guarantee.json").exists() and not (folder / "recipe.toml").exists():
        raise RunError(
            f"{folder} is an export, and its ledger is beside its run: name the run's folder"
        )
    return build.population(recipe_of(folder))


def guarantee_of(loaded: LoadedModel) -> Guarantee:
    """Return what its users' ledger says about exactly this model; refuse a model that the ledger
    does not know.
    """
    if loaded.card is None:
        raise ExportRefused(
            f"{loaded.path} does not say where it comes from: nothing is known about its privacy"
        )
    check_not_personal(loaded.card, loaded.path)
    if not loaded.is_of_users:
        raise ExportRefused(
            f"{loaded.path} is made of public text only: it protects nobody, so there is no"
            " guarantee to export it with"
        )
    return verified_guarantee(loaded.params, loaded.card, open_ledger(population_of(loaded.path)))


def opened_row(loaded: LoadedModel) -> Row:
    """Return what its run declared before the first round."""
    return open_ledger(population_of(loaded.path)).run_rows(guarantee_of(loaded).run)[0]


def learned_from(loaded: LoadedModel) -> str | None:
    """Say whose text it learned from; None where that is unknown."""
    if loaded.card is None:
        return None
    if loaded.is_personal:
        return "your own text"
    if not loaded.is_of_users:
        return "public text"
    if (loaded.path / "recipe.toml").exists():
        return whose_text(recipe_of(loaded.path), opened_row(loaded))
    return "people's text"


def folder_known_to(loaded: LoadedModel) -> Path:
    """Return the population of all on whom this model and its starts were trained; refuse if that
    is unknown.
    """
    population = population_of(loaded.path)
    ledger, opened = open_ledger(population), opened_row(loaded)
    while True:
        if opened["population"] != population.id:
            raise RunError(
                f"{population.folder} was built again since {opened['run']} was trained on it, so"
                " its users are no longer known"
            )
        if not opened["lineage"]:
            return population.folder
        # a run also records its start, as its own round 0
        earlier = ledger.rows[: ledger.rows.index(opened)]
        before = next((row for row in earlier if row.get("params") == opened["start"]), None)
        if before is None:
            raise RunError(
                f"{opened['run']} started from a model of other users than {population.folder}'s,"
                " and they are unknown here"
            )
        opened = ledger.run_rows(before["run"])[0]


class Evaluation(NamedTuple):
    """A run's model on held-out users, with what the ledger says about it. Every figure has a
    `value` and a 95 % `margin` over users.
    """

    scores: Scores
    guarantee: Guarantee
    # whether the population's text was replaced since the run
    rebuilt: bool

    @property
    def accuracy_top1(self) -> Interval:
        return self.scores["accuracy_top1"]

    @property
    def perplexity(self) -> Interval:
        return self.scores["perplexity"]


class FinishedRun:
    """A run that has ended: its guarantee, its accuracy, and its exports. Made by `train`, or
    opened by its folder.

    Example:
        run = tt.FinishedRun("runs/first")
        print(run.guarantee.epsilon, run.evaluate().accuracy_top1)
        print(run.predictor().suggest("see you ").words)
        run.export("model", to="onnx")
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def recipe(self) -> Recipe:
        """Return the recipe as trained, with its noise worked out."""
        return recipe_of(self.folder)

    @cached_property
    def model(self) -> LoadedModel:
        return load_word_model(self.folder)

    @property
    def params(self) -> Params:
        return self.model.params

    @property
    def guarantee(self) -> Guarantee:
        """Return what its users' ledger says about exactly this model. Raises where the two do not
        match.
        """
        return guarantee_of(self.model)

    def predictor(self, blocklist: Iterable[str] = ()) -> Predictor:
        """Answer a keyboard: `suggest("see you ")` gives the next words; those of `blocklist` are
        never among them.
        """
        return Predictor(self.model.model, self.model.vocabulary, blocklist)

    def export(
        self, out: str | Path, to: ExportFormat = "model", non_private: bool = False, **how: Any
    ) -> Exported:
        """Write the model as files that keyboards load, with its guarantee.

        Args:
            out: a new folder.
            to: "model", "onnx", "onnx-int8", "arpa", "combined" or "js".
            non_private: export a model without any guarantee.
            how: a `blocklist`, `words` to sample and `entries` to keep as n-grams, `progress`
                (export/formats.py).

        Returns:
            The files, the guarantee, and how well the file agrees with the model. Nothing is
            written before ledger and model agree.
        """
        export = Export(
            loaded=self.model,
            guarantee=self.guarantee,
            learned_from=learned_from(self.model),
            to=to,
            non_private=non_private,
            **how,
        )
        return export.write(Path(out))

    def evaluate(
        self, on: str | Path | None = None, progress: Progress = ignore_progress
    ) -> Evaluation:
        """Measure on the held-out users of the run's population, or of another one of the same
        words (`on`). They have no guarantee.
        """
        test = self._test(on)
        scores = evaluate(test.model, test.params, test.texts, test.cut, progress)
        return Evaluation(scores, test.guarantee, test.is_rebuilt and on is None)

    def report(
        self, beside: Sequence[str | Path] | None = None, progress: StageProgress = ignore_progress
    ) -> Path:
        """Write RUN/report.html: the guarantee, curves, and what the model is worth to which
        people, beside its start and n-grams.

        Args:
            beside: folders of n-grams to compare with; by default those that lie beside the run's
                folder and know the same words.
            progress: called with what is being measured, how much of it is done, and of how much.
        """
        test = self._test()
        ngrams = (
            _ngrams_beside(self.folder, test)
            if beside is None
            else [_ngrams(Path(one), test) for one in beside]
        )

        def scores(stage: str, params: Params) -> Scores:
            return evaluate_each(test.model, params, test.texts, test.cut, partial(progress, stage))

        def tested(one: LoadedModel) -> Tested:
            # an ARPA file does not describe itself
            privacy, name = (
                "none: ε = ∞" if one.is_of_users else "nobody's text" if one.card else "unknown",
                one.path.resolve().name,
            )
            return Tested(
                name,
                privacy,
                evaluate_steps(one.model, test.texts, test.cut, partial(progress, name)),
            )

        model, start = scores("this model", test.params), _start_of(self.recipe, test.opened)
        measured = (
            model,
            None if start is None else scores("its start", start),
            [tested(one) for one in ngrams],
        )
        return write_report(
            self.folder,
            test.guarantee,
            test.ledger,
            test.texts,
            test.vocabulary,
            *measured,
            test.is_rebuilt,
        )

    def _test(self, on: str | Path | None = None) -> "_Test":
        params, card = _model_to_measure(self.folder)
        recipe = self.recipe
        own = build.population(recipe)
        ledger = open_ledger(own)
        guarantee = verified_guarantee(params, card, ledger)
        population = Population(Path(on)) if on else own
        if population.vocabulary.words != card.vocabulary:
            raise RunError(
                f"{population.folder} has another vocabulary than {self.folder}; build it with"
                f" --vocabulary {self.folder}"
            )
        if not population.folder.samefile(own.folder):
            check_strangers(population.folder, folder_known_to(load_word_model(self.folder)))
        people = HeldOutUsers(population.folder)
        people.check_enough()
        model = build.language_model(recipe.model, len(card.vocabulary))
        cut = build.evaluation_cut(recipe, population.vocabulary)
        opened = ledger.run_rows(guarantee.run)[0]
        is_rebuilt = opened["population"] != own.id
        return _Test(
            model,
            params,
            people.texts,
            population.vocabulary,
            cut,
            guarantee,
            ledger,
            own.folder,
            opened,
            is_rebuilt,
        )

    def compare(
        self,
        other: "FinishedRun",
        on: str | Path | None = None,
        progress: StageProgress = ignore_progress,
    ) -> tuple[Evaluation, Evaluation]:
        """Measure both on the same held-out users: of the population `on`, or else of this
        run's.
        """
        if (
            _model_to_measure(self.folder)[1].vocabulary
            != _model_to_measure(other.folder)[1].vocabulary
        ):
            raise RunError(
                f"{self.folder} and {other.folder} know different words, so their figures cannot be"
                " compared"
            )
        on = on or self.recipe.data.population
        ours, theirs = (
            run.evaluate(on, progress=partial(progress, f"measuring {name}"))
            for run, name in ((self, "A"), (other, "B"))
        )
        if not np.array_equal(ours.scores.tokens, theirs.scores.tokens):
            raise RunError(
                f"{self.folder} and {other.folder} read text in different pieces ([data] layout),"
                " so they cannot be compared"
            )
        return ours, theirs

    def audit(
        self, references: int = REFERENCES, progress: Progress = ignore_progress
    ) -> AuditResults:
        """Audit the run from outside; refuse one that was trained with nothing to audit."""
        if not any((self.folder / one.FILE_NAME).exists() for one in (audit_users, canaries)):
            recipe_of(self.folder)
            to_do = (
                "(users of random directions), or with [canaries] text = a folder of public text"
                " (shared secrets), and audit that run"
            )
            raise RunError(
                f"{self.folder} has neither audit users nor canaries: train with --audit 1000"
                f" {to_do}"
            )
        evaluation = self.evaluate()
        canary_results = find_canaries(
            folder=self.folder,
            model=self.model.model,
            vocabulary=self.model.vocabulary,
            releases=self.guarantee.releases,
            references=references,
            progress=progress,
        )
        return AuditResults(
            run=str(self.folder),
            epsilon=evaluation.guarantee.epsilon,
            delta=evaluation.guarantee.delta,
            accuracy_top1=evaluation.accuracy_top1,
            membership=audit_membership(self.folder, self.recipe),
            canaries=canary_results,
        )


class _Test(NamedTuple):
    """A run's model, and what it is measured on."""

    model: LanguageModel
    params: Params
    texts: Texts
    vocabulary: Vocabulary
    cut: Cut
    guarantee: Guarantee
    ledger: Ledger
    # of the population that the run was trained on
    own: Path
    # what the run declared
    opened: Row
    # whether the population's text was replaced since
    is_rebuilt: bool


def _start_of(recipe: Recipe, opened: Row) -> Params | None:
    """Return what a run started from, if the file is still there and unchanged."""
    with suppress(ModelFileError):
        params = load_model(Path(recipe.model.warm_start))[0] if recipe.model.warm_start else None
        return params if params and params_digest(params) == opened.get("start") else None


def _ngrams_beside(folder: Path, test: _Test) -> list[LoadedModel]:
    """Load the n-grams in folders beside the run's that can be compared with it."""
    found = []
    for path in sorted(folder.resolve().parent.glob("*/model.safetensors")):
        # a run is not n-grams, and large
        if not (path.parent / "recipe.toml").exists():
            with suppress(TaciturnError):
                found.append(_ngrams(path.parent, test))
    return found


def _ngrams(path: Path, test: _Test) -> LoadedModel:
    loaded = load_word_model(path)
    if loaded.kind is not None:
        raise RunError(
            f"{path} is not an n-gram model; to compare two runs: taciturn compare {path} RUN"
        )
    if loaded.vocabulary.words != test.vocabulary.words:
        raise RunError(
            f"{path} knows other words than the run, so their figures cannot be compared; count it"
            " on text with the same words"
        )
    if loaded.is_of_users:
        counted_on = population_of(path).folder
        if not counted_on.samefile(test.own):
            check_strangers(test.own, counted_on)
    return loaded


def _model_to_measure(folder: Path) -> tuple[Params, ModelCard]:
    """Load a run's model; refuse a personal one, whose figures belong to its owner."""
    params, card = load_model(folder)
    check_not_personal(card, folder)
    return params, card
