"""Several models under the same people's fingers, each also beside the first of them.

    python experiments/keyboard/table.py local/people blogs.parquet results/typing-blogs.json
        kneser-ney+history=local/ngrams/kn+history …

Those type whose text is in the file and whom nothing was learned from: the population, on which all
the models were trained, says who was trained on and who opted out. Every model is `name=path`;
`+history` lets it learn from what each person typed before. What comes out are figures alone, each
with half its 95 % interval over people; the changes from the first model are relative and paired.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
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

PEOPLE, WORDS = 1000, 400
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


def typed(messages: list[list[str]], path: str) -> Typing:
    loaded = load_word_model(Path(path.removesuffix("+history")))
    model = WithHistory(loaded.model) if path.endswith("+history") else loaded.model
    return simulate(model, loaded.vocabulary, messages)


def held_out(population: Path, text: Path, model: str) -> list[list[str]]:
    """What those type whom the population does not train on, in words that the model has."""
    found = read_people(Source(paths=[text]), trained_on(population), PEOPLE)
    words = load_word_model(Path(model.removesuffix("+history"))).vocabulary
    return [kept for one in found.messages if (kept := enough_words(one, words, WORDS))]


def pair(interval: Interval) -> list[float]:
    return [float(f"{one:.5g}") for one in (interval.value, interval.margin)]


def figures(typings: dict[str, Typing]) -> dict[str, Any]:
    (first, baseline), *others = typings.items()
    return {
        "words": int(baseline.tokens.sum()),
        "models": {
            name: {metric: pair(one[metric]) for metric in SHOWN} for name, one in typings.items()
        },
        "from": first,
        "changes": {
            name: {metric: pair(one.change_from(baseline, metric)) for metric in COMPARED}
            for name, one in others
        },
    }


def main(population: str, text: str, out: str, *models: str) -> None:
    names, paths = zip(*(model.rsplit("=", 1) for model in models), strict=True)
    messages = held_out(Path(population), Path(text), paths[0])
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        typings = dict(zip(names, pool.map(typed, [messages] * len(paths), paths), strict=True))
    content = {"people": len(messages), **figures(typings)}
    Path(out).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    for name, one in content["models"].items():
        print(
            f"{name}: "
            + ", ".join(
                f"{metric} {value:.4g} ± {margin:.2g}" for metric, (value, margin) in one.items()
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
