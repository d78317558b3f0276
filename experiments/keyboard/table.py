"""Several models under the same people's fingers, each also beside the first of them.

    python experiments/keyboard/table.py local/people blogs.parquet results/typing-blogs.json
        kneser-ney+history=local/ngrams/kn+history …

Those type whose text is in the file and whom nothing was learned from: the population, on which all
the models were trained, says who was trained on and who opted out. Every model is `name=path`;
`+history` lets it learn from what each person typed before. Only figures come out, each with
half its 95 % interval over people; the changes from the first model are relative and paired.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from taciturn.data.population import trained_on
from taciturn.data.sources import Source
from taciturn.evaluation.intervals import Interval
from taciturn.export.word_model import load_word_model
from taciturn.keyboard.typing_simulation import Typing, enough_words, simulate
from taciturn.keyboard.user_history import WithHistory
from taciturn.runs.simulate_typing import read_people

# At most: people, and words of each.
PEOPLE = 1000
WORDS = 400
WITH_HISTORY = "+history"
SHOWN = (
    "accuracy_top1",
    "accuracy_top3",
    "keystroke_saving",
    "recall_top1",
    "recall_top3",
    "picked_rate",
    "trigger_rate",
    "word_modified_ratio",
    "words_per_minute",
)
COMPARED = (
    "accuracy_top1",
    "accuracy_top3",
    "keystroke_saving",
    "picked_rate",
    "recall_top1",
    "recall_top3",
)


def type_with(messages: list[list[str]], path: str) -> Typing:
    """Type everybody's messages with the model at a path."""
    loaded = load_word_model(_path_of(path))
    model = loaded.model
    if path.endswith(WITH_HISTORY):
        model = WithHistory(model)
    return simulate(model, loaded.vocabulary, messages)


def _path_of(model: str) -> Path:
    return Path(model.removesuffix(WITH_HISTORY))


def read_messages(population: Path, text: Path, model: str) -> list[list[str]]:
    """Return what those type whom the population does not train on, in words that the model has."""
    people = read_people(Source(paths=[text]), trained_on(population), PEOPLE)
    vocabulary = load_word_model(_path_of(model)).vocabulary
    messages = []
    for typed in people.messages:
        kept = enough_words(typed, vocabulary, WORDS)
        if kept:
            messages.append(kept)
    return messages


def as_pair(interval: Interval) -> list[float]:
    return [float(f"{interval.value:.5g}"), float(f"{interval.margin:.5g}")]


def figures(typings: dict[str, Typing]) -> dict[str, Any]:
    """Return what was measured of each model, and the changes from the first."""
    (first, baseline), *others = typings.items()
    models = {}
    for name, typing in typings.items():
        models[name] = {metric: as_pair(typing[metric]) for metric in SHOWN}
    changes = {}
    for name, typing in others:
        by_metric = {metric: typing.change_from(baseline, metric) for metric in COMPARED}
        changes[name] = {metric: as_pair(change) for metric, change in by_metric.items()}
    return {
        "words": int(baseline.tokens.sum()),
        "models": models,
        "from": first,
        "changes": changes,
    }


def print_models(models: dict[str, dict[str, list[float]]]) -> None:
    for name, metrics in models.items():
        shown = []
        for metric, (value, margin) in metrics.items():
            shown.append(f"{metric} {value:.4g} ± {margin:.2g}")
        print(f"{name}: {', '.join(shown)}")


def main(population: str, text: str, out: str, *models: str) -> None:
    paths = dict(model.rsplit("=", 1) for model in models)
    first = next(iter(paths.values()))
    messages = read_messages(Path(population), Path(text), first)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        typings = pool.map(type_with, repeat(messages), paths.values())
        by_name = dict(zip(paths, typings, strict=True))
    content = {"people": len(messages), **figures(by_name)}
    Path(out).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print_models(content["models"])


if __name__ == "__main__":
    main(*sys.argv[1:])
