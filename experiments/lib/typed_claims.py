"""Claims about people who type, judged by what keyboard/table.py measured of them.

Changes from the first model of a table are paired, on the same people, and have intervals of their
own. Of two other models only their changes from that first one are known: the interval of the
change between them is the sum of both, which is wider than it would have to be.
"""

import math
from collections.abc import Sequence
from itertools import product

from lib.results import Result
from lib.typing_tables import SHOWN
from lib.verdicts import Difference, Part, Verdict, judge_more

HISTORY = "with history"
PUBLIC = "public"
NGRAMS = ("Katz", "Kneser–Ney")
PAPERS_NGRAM = "Katz, with history"
# People type with one model of each kind: intervals are over people.
TYPED_WITH = 1

# A value and half its interval, by metric.
Measures = dict[str, list[float]]


def is_ngram(name: str) -> bool:
    return name.startswith(NGRAMS)


def ngrams_with_history(typing: Result) -> list[str]:
    """Return the n-grams that the papers compare with: those that learn from what was typed."""
    return [name for name in typing["models"] if is_ngram(name) and HISTORY in name]


def change(typing: Result, model: str, metric: str, baseline: str) -> Difference:
    """Return the relative change of a metric from a baseline to a model."""
    is_paired = all(metric in changes for changes in typing["changes"].values())
    if not is_paired or _compared_with(typing, model) != _compared_with(typing, baseline):
        return _change_apart(typing, model, metric, baseline)
    from_first = _from_first(typing, model, metric)
    of_baseline = _from_first(typing, baseline, metric)
    ratio = (1 + from_first.value) / (1 + of_baseline.value)
    margin = from_first.margin / (1 + from_first.value)
    margin += of_baseline.margin / (1 + of_baseline.value)
    return Difference(value=ratio - 1, margin=ratio * margin, seeds=TYPED_WITH)


def _from_first(typing: Result, model: str, metric: str) -> Difference:
    if model == _compared_with(typing, model):
        return Difference(value=0.0, margin=0.0, seeds=TYPED_WITH)
    value, margin = typing["changes"][model][metric]
    return Difference(value=value, margin=margin, seeds=TYPED_WITH)


def _compared_with(typing: Result, model: str) -> str:
    """Return the model that a model's changes are from: the first, or the first with history, where
    both are there.
    """
    first = typing["from"]
    like = f"{first}, {HISTORY}"
    return like if model.endswith(HISTORY) and like in typing["models"] else first


def _change_apart(typing: Result, model: str, metric: str, baseline: str) -> Difference:
    """Return the relative change between two whose changes are from different models, or are not
    known.
    """
    models = typing["models"]
    return change_apart(models[model][metric], models[baseline][metric])


def change_apart(measured: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Return a relative change as if other people had typed with each of two models, which makes
    the interval wider than it would have to be.
    """
    value, margin = measured
    base, base_margin = baseline
    ratio = value / base
    return Difference(
        value=ratio - 1,
        margin=ratio * math.hypot(margin / value, base_margin / base),
        seeds=TYPED_WITH,
    )


def best_ngram(typing: Result, metric: str, has_history: bool) -> str | None:
    """Return the n-gram that is best in a metric, of those with history or without."""
    names = [
        name for name in typing["models"] if is_ngram(name) and (HISTORY in name) == has_history
    ]
    return max(names, key=lambda name: typing["models"][name][metric][0], default=None)


def show_change(difference: Difference) -> str:
    """Show a relative change in %."""
    text = f"{100 * difference.value:+.1f} ± {100 * difference.margin:.1f} %"
    return text.replace("-", "−")


def judge_ahead(typing: Result, model: str, metrics: Sequence[str], baseline: str) -> list[Part]:
    """Judge in each metric whether a model is ahead of a baseline."""
    parts = []
    for metric in metrics:
        ahead = change(typing, model, metric, baseline)
        claim = f"{model} is ahead of {baseline}: {SHOWN[metric]}"
        parts.append(Part(claim, show_change(ahead), judge_more(ahead)))
    return parts


def describe(typing: Result, elsewhere: Result | None, model: str, metrics: Sequence[str]) -> str:
    """Say in short how far a model is from the best n-gram, by the first metric, and from the kind
    that the papers compare with, with the public text and without.
    """
    models = typing["models"]
    ngrams = {name: models[name] for name in ngrams_with_history(typing)}
    ngrams |= public_ngrams(typing, elsewhere)
    best = max(ngrams, key=lambda name: ngrams[name][metrics[0]][0])
    shown = []
    # Ours starts from public text: beside those that have read none of it, one that has.
    katz = [name for name in ngrams if name.startswith("Katz") and PUBLIC in name]
    for name in dict.fromkeys((best, *katz, PAPERS_NGRAM)):
        if name not in ngrams:
            continue
        changes = []
        for metric in metrics:
            change = 100 * (models[model][metric][0] / ngrams[name][metric][0] - 1)
            changes.append(f"{change:+.1f}".replace("-", "−"))
        shown.append(f"{' / '.join(changes)} % over {name}")
    return "; ".join(shown)


def public_ngrams(typing: Result, elsewhere: Result | None) -> dict[str, Measures]:
    """Return what was measured of n-grams with history that have read the public text, in another
    table, if the same people typed the same words there.
    """
    text = (typing["people"], typing["words"])
    if elsewhere is None or text != (elsewhere["people"], elsewhere["words"]):
        return {}
    models = elsewhere["models"]
    return {name: models[name] for name in ngrams_with_history(elsewhere) if PUBLIC in name}


def judge_public_ngrams(
    typing: Result, elsewhere: Result | None, models: Sequence[str], metrics: Sequence[str]
) -> list[Part]:
    """Judge whether models are ahead of n-grams that have read the public text that they start
    from; none, where these are in the same table and judged among the others.
    """
    if any(PUBLIC in name for name in ngrams_with_history(typing)):
        return []
    parts = []
    for baseline, found in public_ngrams(typing, elsewhere).items():
        for model, metric in product(models, metrics):
            measured = typing["models"][model][metric]
            ahead = change_apart(measured, found[metric])
            claim = f"{model} is ahead of {baseline}: {SHOWN[metric]}"
            parts.append(Part(claim, show_change(ahead), judge_more(ahead)))
    claim = "ahead of n-grams that have read the public text, too"
    return parts or [Part(claim, "not measured yet", Verdict.NOT_RUN)]
