"""What n-grams are worth to held-out people, and how much of their text stands in public text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from taciturn.core import WordModel
from taciturn.data.layout import Unrolls
from taciturn.data.population import LEAST_HELD_OUT
from taciturn.data.token_shards import Texts
from taciturn.evaluation.accuracy import Scores, evaluate_steps
from taciturn.evaluation.overlap import LENGTH, Overlap, find_overlap
from taciturn.keyboard.user_history import LearningReader, WithHistory
from taciturn.models.ngram import NGram
from taciturn.progress import Progress, StageProgress, ignore_progress

# Of each held-out person, at most: as many words as simulated people type.
MEASURED_TOKENS = 400
# With history, on the page of a run: models that read word by word are slow.
PEOPLE_WITH_HISTORY = 100
SHOWN = ("accuracy_top1", "accuracy_top3")


class FittedShare(NamedTuple):
    """The share of people's counts beside the public text's, and on whom it was fitted."""

    value: float
    # People to learn from who were held back to fit it, and those who were counted for that.
    held_back: int
    counted: int

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What n-grams are worth to some of the held-out people."""

    people: int
    without_history: Scores
    # The n-grams also learn what each person wrote before.
    with_history: Scores

    def to_json(self) -> dict[str, Any]:
        return {
            "people": self.people,
            "no_history": _figures_of(self.without_history),
            "history": _figures_of(self.with_history),
        }


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What was counted, and what it is worth."""

    # None where nothing public was counted.
    people_share: FittedShare | None = None
    public_sources: tuple[str, ...] = ()
    # None where too few people are held out to publish their averages.
    worth: Worth | None = None
    # How much of the held-out people's text stands in the public text.
    overlap: Overlap | None = None
    # The same without the people who have a part in that.
    worth_without_overlap: Worth | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what the command prints as JSON."""
        content: dict[str, Any] = {}
        if self.people_share is not None:
            content["people_share"] = self.people_share.to_json()
            content["public_text"] = list(self.public_sources)
        if self.worth is not None:
            content["held_out"] = self.worth.to_json()
        if self.overlap is not None:
            content["overlap"] = {
                "length": LENGTH,
                "share": self.overlap.share,
                "people": self.overlap.people,
            }
        if self.worth_without_overlap is not None:
            content["held_out_without_overlap"] = self.worth_without_overlap.to_json()
        return content


def _figures_of(scores: Scores) -> dict[str, Any]:
    return {metric: vars(scores[metric]) for metric in SHOWN}


def measure_baseline(
    model: NGram,
    texts: Texts,
    public: Sequence[Texts] = (),
    progress: StageProgress = ignore_progress,
) -> Baseline:
    """Measure n-grams on the beginnings of held-out people's texts, 400 tokens of each.

    Args:
        model: the n-grams.
        texts: of the held-out people.
        public: the public text that was counted, to find what of theirs stands in it.
        progress: called with what is done, how much of it, and of how much.
    """
    beginnings = _beginnings(texts)
    if len(beginnings) < LEAST_HELD_OUT:
        return Baseline()
    without = _measure_each(model, beginnings, partial(progress, "measuring"), history=False)
    within = _measure_each(model, beginnings, partial(progress, "with history"), history=True)
    everybody = np.arange(len(beginnings))
    baseline = Baseline(worth=_pool(without, within, everybody))
    if not public:
        return baseline
    overlap = find_overlap(
        beginnings,
        public,
        model.vocabulary,
        progress=partial(progress, "in public text"),
    )
    others = everybody[~overlap.is_found]
    return replace(
        baseline,
        overlap=overlap,
        worth_without_overlap=_pool(without, within, others),
    )


def measure_with_history(
    model: WordModel, texts: Texts, progress: Progress = ignore_progress
) -> Scores | None:
    """Measure a model that also learns what each person wrote before, on the first held-out people.

    Args:
        model: any, without history.
        texts: of the held-out people, who are in the order of a hash of their ids.
        progress: called with people who are done, and how many there are.

    Returns:
        A column for each of the people; None where they are too few to publish their averages.
    """
    beginnings = _beginnings(texts)[:PEOPLE_WITH_HISTORY]
    if len(beginnings) < LEAST_HELD_OUT:
        return None
    return _measure_each(model, beginnings, progress, history=True)


def _beginnings(texts: Texts) -> list[np.ndarray]:
    """Return the first tokens of all who wrote anything."""
    return [text[:MEASURED_TOKENS] for text in texts if len(text)]


def _measure_each(
    model: WordModel, texts: Sequence[np.ndarray], progress: Progress, *, history: bool
) -> Scores:
    """Return scores with a column for each of the people, whose histories are apart."""
    whole = Unrolls(MEASURED_TOKENS)
    columns = []
    for number, text in enumerate(texts, 1):
        reader = LearningReader(WithHistory(model)) if history else model
        own = Texts.of([text], model.vocabulary)
        columns.append(evaluate_steps(reader, own, whole))
        progress(number, len(texts))
    return Scores.join(columns)


def _pool(without: Scores, within: Scores, users: np.ndarray) -> Worth | None:
    """Return what is published of some people; nothing of fewer than may be measured."""
    if len(users) < LEAST_HELD_OUT:
        return None
    return Worth(
        people=len(users),
        without_history=without.pool(users),
        with_history=within.pool(users),
    )
