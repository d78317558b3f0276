"""Open finished models: whom they protect, what the ledger says, and what they are worth.

They are measured on held-out users, one model at a time or compared.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from taciturn.audit import audit_users, canaries
from taciturn.audit.results import AuditResults, audit_membership, find_canaries
from taciturn.audit.secret_sharer import REFERENCES
from taciturn.core import LanguageModel, Params
from taciturn.data.layout import Cut
from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.same_people import check_same_split, check_strangers
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.errors import TaciturnError
from taciturn.evaluation.accuracy import Scores, evaluate, evaluate_each, evaluate_steps
from taciturn.evaluation.intervals import Interval
from taciturn.export.formats import Export, Exported
from taciturn.export.options import check_options
from taciturn.export.word_model import LoadedModel, load_word_model
from taciturn.files import from_json
from taciturn.keyboard.predictor import Predictor
from taciturn.names import ExportFormat
from taciturn.people import open_ledger
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.privacy.ledger.guarantee import Guarantee
from taciturn.privacy.ledger.ledger import Ledger, Row
from taciturn.privacy.ledger.signed_rows import SignedRows
from taciturn.privacy.ledger.trust import parse_trust
from taciturn.progress import Progress, StageProgress, ignore_progress
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.release.gate import check_not_personal
from taciturn.release.model_file import ModelCard, ModelFileError, load_model, params_digest
from taciturn.release.privacy_statement import statement
from taciturn.runs.folder import RunError, recipe_of
from taciturn.runs.ngram_worth import measure_with_history
from taciturn.runs.page import Tested, write_report, write_report_elsewhere
from taciturn.runs.provenance import (
    folder_known_to,
    guarantee_in,
    guarantee_of,
    opening_of,
    origin_of,
    population_of,
    rows_of,
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A run's model on held-out users, with what the ledger says about it.

    Every figure has a `value` and a 95 % `margin` over users.
    """

    scores: Scores
    guarantee: Guarantee
    # Whether the population's text was replaced since the run.
    rebuilt: bool

    @property
    def accuracy_top1(self) -> Interval:
        """Return how often the most likely word is the right one."""
        return self.scores["accuracy_top1"]

    @property
    def perplexity(self) -> Interval:
        """Return among how many words the model hesitates, so to speak."""
        return self.scores["perplexity"]


class FinishedRun:
    """A run that has ended: its guarantee, its accuracy, and its exports.

    `train` makes it, or it is opened by its folder, or by that of an export `to="model"`. Where its
    people are not in reach, its guarantee is as its maker states (`guarantee.standing`), and what
    needs the people says so.

    Example:
        run = tt.FinishedRun("runs/first")
        print(run.guarantee.epsilon, run.evaluate().accuracy_top1)
        print(run.predictor().suggest("see you ").words)
        run.export("model", to="onnx")
    """

    def __init__(
        self, folder: str | Path, trust: str | Path | Sequence[str | Path] | None = None
    ) -> None:
        """Open a run.

        Args:
            folder: of the run.
            trust: the fingerprint of its ledger's key, a head or a file of the ledger, known from
                the ledger's owner: a run of another ledger is refused.
        """
        self.folder = Path(folder)
        self._trust = parse_trust(trust)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}{_quote_figures(self.folder)})"

    @property
    def recipe(self) -> Recipe:
        """Return the recipe as trained, with its noise worked out."""
        return recipe_of(self.folder)

    @cached_property
    def model(self) -> LoadedModel:
        """Return the model, with what its file says about it."""
        loaded = load_word_model(self.folder)
        # Who names a ledger types with no run of another, either.
        if self._trust:
            guarantee_of(loaded, self._trust)
        return loaded

    @property
    def params(self) -> Params:
        """Return the parameters of the model."""
        return self.model.params

    @property
    def guarantee(self) -> Guarantee:
        """Return what its users' ledger says about exactly this model.

        Where the ledger is not in reach, it is what the run's maker states.

        Raises:
            ExportRefused: the two do not match.
        """
        return guarantee_of(self.model, self._trust)

    def predictor(self, blocklist: Iterable[str] = ()) -> Predictor:
        """Return what answers a keyboard: `suggest("see you ")` gives the next words.

        Those of `blocklist` are never among them.
        """
        return Predictor(self.model.model, self.model.vocabulary, blocklist=blocklist)

    def export(
        self, out: str | Path, to: ExportFormat = "model", non_private: bool = False, **how: Any
    ) -> Exported:
        """Write the model as files that keyboards load, with its guarantee.

        Args:
            out: a new folder.
            to: "model", "onnx", "onnx-int8", "arpa", "combined", "dict", "phone" or "js".
            non_private: export a model without any guarantee.
            how: a `blocklist`, `words` to sample and `entries` to keep as n-grams, `progress`
                (export/formats.py).

        Returns:
            The files, the guarantee, and how well the file agrees with the model. Nothing is
            written before ledger and model agree.
        """
        check_options(to, how)
        export = Export(
            loaded=self.model,
            guarantee=self.guarantee,
            learned_from=origin_of(self.model),
            to=to,
            non_private=non_private,
            **how,
        )
        return export.write(Path(out))

    def evaluate(
        self, on: str | Path | None = None, progress: Progress = ignore_progress
    ) -> Evaluation:
        """Measure on held-out users, who have no guarantee.

        Args:
            on: another population of the same words; by default the run's own.
            progress: called with how much is done, and of how much.
        """
        test = self._open_test(on)
        scores = evaluate(test.model, test.params, test.texts, test.cut, progress)
        is_rebuilt = test.is_rebuilt and on is None
        return Evaluation(scores=scores, guarantee=test.guarantee, rebuilt=is_rebuilt)

    def report(
        self, beside: Sequence[str | Path] | None = None, progress: StageProgress = ignore_progress
    ) -> Path:
        """Write RUN/report.html, and return its path.

        It shows the guarantee, curves, and what the model is worth to which people, beside its
        start and n-grams: without each person's history and, where n-grams are there, with it.
        Where the people are not in reach, RUN/report-elsewhere.html shows what the folder holds.

        Args:
            beside: folders of n-grams to compare with; by default those that lie beside the run's
                folder and know the same words.
            progress: called with what is being measured, how much of it is done, and of how much.
        """
        if isinstance(rows_of(self.folder), SignedRows):
            return self._report_without_people()
        test = self._open_test()
        if beside is None:
            ngrams = _load_ngrams_beside(self.folder, test)
        else:
            ngrams = [_load_ngrams(Path(folder), test) for folder in beside]
        model_scores = test.score(test.params, partial(progress, "this model"))
        start_scores = None
        start = _load_start(self.recipe, test.opening)
        if start is not None:
            start_scores = test.score(start, partial(progress, "its start"))
        model_with_history = None
        if ngrams:
            show = partial(progress, "this model, with history")
            model_with_history = measure_with_history(self.model.model, test.texts, show)
        return write_report(
            self.folder,
            guarantee=test.guarantee,
            ledger=test.ledger,
            texts=test.texts,
            vocabulary=test.vocabulary,
            model=model_scores,
            start=start_scores,
            model_with_history=model_with_history,
            beside=[_test_ngrams(loaded, test, progress) for loaded in ngrams],
            rebuilt=test.is_rebuilt,
        )

    def _report_without_people(self) -> Path:
        """Write a page of what the folder holds, by the guarantee that was worked out here."""
        guarantee = self.guarantee
        # A model without a card has no guarantee.
        assert self.model.card is not None
        return write_report_elsewhere(
            self.folder,
            guarantee=guarantee,
            learned_from=origin_of(self.model) or "",
            statement=statement(guarantee, self.model.card.public_text),
        )

    def _open_test(self, on: str | Path | None = None) -> "_Test":
        """Open the model, and what it is measured on; refuse people who know it already."""
        params, card = _load_model_to_measure(self.folder)
        recipe = self.recipe
        own = self._open_people()
        ledger = open_ledger(own)
        guarantee = guarantee_in(ledger, self.folder, params, card, self._trust)
        population = Population(Path(on)) if on else own
        if population.vocabulary.words != card.vocabulary:
            raise RunError(
                f"{population.folder} has another vocabulary than {self.folder}; build it with"
                f" `vocabulary={self.folder}`"
            )
        opening = ledger.run_rows(guarantee.run)[0]
        if population.folder.samefile(own.folder):
            check_same_split(own.folder, opening["population"], guarantee.run)
        else:
            check_strangers(population.folder, folder_known_to(load_word_model(self.folder)))
        people = HeldOutUsers(population.folder)
        people.check_enough()
        return _Test(
            model=build.language_model(recipe.model, len(card.vocabulary)),
            params=params,
            texts=people.texts,
            vocabulary=population.vocabulary,
            cut=build.evaluation_cut(recipe, population.vocabulary),
            guarantee=guarantee,
            ledger=ledger,
            own=own.folder,
            opening=opening,
            is_rebuilt=opening["population"] != own.id,
        )

    def _open_people(self) -> Population:
        return population_of(
            self.folder, f"{self.folder} is measured only beside the people it was trained on"
        )

    def compare(
        self,
        other: "FinishedRun",
        on: str | Path | None = None,
        progress: StageProgress = ignore_progress,
    ) -> tuple[Evaluation, Evaluation]:
        """Measure both runs on the same held-out users.

        Args:
            other: the run to compare with.
            on: the population of the users; by default this run's.
            progress: called with what is being measured, how much of it is done, and of how much.
        """
        _, own_card = _load_model_to_measure(self.folder)
        _, other_card = _load_model_to_measure(other.folder)
        if own_card.vocabulary != other_card.vocabulary:
            raise RunError(
                f"{self.folder} and {other.folder} know different words, so their figures cannot be"
                " compared"
            )
        on = on or self._open_people().folder
        ours = self.evaluate(on, partial(progress, "measuring A"))
        theirs = other.evaluate(on, partial(progress, "measuring B"))
        if not np.array_equal(ours.scores.tokens, theirs.scores.tokens):
            raise RunError(
                f"{self.folder} and {other.folder} read text in different pieces ([data] layout),"
                " so they cannot be compared"
            )
        return ours, theirs

    def audit(
        self, references: int = REFERENCES, progress: Progress = ignore_progress
    ) -> AuditResults:
        """Audit the run from outside; refuse one that was trained with nothing to audit.

        Args:
            references: random continuations to compare each canary with.
            progress: called with canaries looked for, and of how many.
        """
        if not any((self.folder / kind.FILE_NAME).exists() for kind in (audit_users, canaries)):
            # A folder that is not a run is refused first.
            recipe_of(self.folder)
            raise RunError(
                f"{self.folder} has neither audit users nor canaries: train with `audit.users=1000`"
                " (users of random directions), or with [canaries] text = a folder of public text"
                " (shared secrets), and audit that run"
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


@dataclass(frozen=True, kw_only=True)
class _Test:
    """A run's model, and what it is measured on."""

    model: LanguageModel
    params: Params
    texts: Texts
    vocabulary: Vocabulary
    cut: Cut
    guarantee: Guarantee
    ledger: Ledger
    # Of the population that the run was trained on.
    own: Path
    # What the run declared.
    opening: Row
    # Whether the population's text was replaced since.
    is_rebuilt: bool

    def score(self, params: Params, progress: Progress) -> Scores:
        """Return the scores of these parameters, a column for each of the people."""
        return evaluate_each(self.model, params, self.texts, self.cut, progress)


def _quote_figures(folder: Path) -> str:
    """Return the ε and δ in a run's guarantee.json, which nobody has compared with the ledger."""
    try:
        stated = from_json((folder / "guarantee.json").read_text("utf-8"))
        # Else its figures describe a method, and promise nothing.
        if stated["private"] is not True:
            return ""
        figures = pair_text(float(stated["epsilon"]), float(stated["delta"]))
    # JSON that is nested too deep is a RecursionError.
    except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return ""
    return f", guarantee.json: {figures}"


def _load_start(recipe: Recipe, opening: Row) -> Params | None:
    """Return what a run started from, if the file is still there and unchanged."""
    if not recipe.model.warm_start:
        return None
    try:
        params, _ = load_model(Path(recipe.model.warm_start))
    except ModelFileError:
        return None
    return params if params and params_digest(params) == opening.get("start") else None


def _load_ngrams_beside(folder: Path, test: _Test) -> list[LoadedModel]:
    """Load the n-grams in folders beside the run's that can be compared with it."""
    ngrams = []
    for path in sorted(folder.resolve().parent.glob("*/model.safetensors")):
        # A run is not an n-gram model, and large.
        if (path.parent / "recipe.toml").exists():
            continue
        with suppress(TaciturnError):
            ngrams.append(_load_ngrams(path.parent, test))
    return ngrams


def _test_ngrams(loaded: LoadedModel, test: _Test, progress: StageProgress) -> Tested:
    """Measure n-grams on the same people as the run."""
    name = loaded.path.resolve().name
    scores = evaluate_steps(loaded.model, test.texts, test.cut, partial(progress, name))
    show = partial(progress, f"{name}, with history")
    return Tested(
        name=name,
        privacy=_privacy_of_ngrams(loaded),
        scores=scores,
        with_history=measure_with_history(loaded.model, test.texts, show),
    )


def _privacy_of_ngrams(loaded: LoadedModel) -> str:
    if loaded.is_of_users:
        has_read_public_text = loaded.card is not None and loaded.card.public_sources
        return "none: ε = ∞; public text, too" if has_read_public_text else "none: ε = ∞"
    # An ARPA file does not describe itself.
    return "nobody's text" if loaded.card else "unknown"


def _load_ngrams(path: Path, test: _Test) -> LoadedModel:
    """Load n-grams; refuse what cannot be compared with the run."""
    loaded = load_word_model(path)
    if loaded.kind is not None:
        raise RunError(
            f"{path} is not an n-gram model; to compare two runs:"
            f" `tt.FinishedRun({str(path)!r}).compare(tt.FinishedRun(RUN))`"
        )
    if loaded.vocabulary.words != test.vocabulary.words:
        raise RunError(
            f"{path} knows other words than the run, so their figures cannot be compared; count it"
            " on text with the same words"
        )
    if loaded.is_of_users:
        counted_on = population_of(path, f"only its ledger knows on whom {path} was counted").folder
        opening = opening_of(loaded)
        if not counted_on.samefile(test.own):
            check_strangers(test.own, counted_on)
        check_same_split(counted_on, opening["population"], opening["run"])
    return loaded


def _load_model_to_measure(folder: Path) -> tuple[Params, ModelCard]:
    """Load a run's model; refuse a personal one, whose figures belong to its owner."""
    params, card = load_model(folder)
    check_not_personal(card, folder)
    return params, card
