"""The table of README.md: several models under the same people's fingers, each also beside the first of them.

    python experiments/keyboard/table.py messages.parquet kneser-ney+history=local/ngrams/kn+history private=local/runs/private …

Every row is one model; `+history` lets it learn from what each person typed before. The last columns are relative changes from the
first model, with 95 % intervals over people, paired.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from taciturn.data.columns import Columns
from taciturn.data.sources import Source
from taciturn.export.word_model import load_word_model
from taciturn.keyboard.people import read_people
from taciturn.keyboard.typing_simulation import Typing, enough_words, simulate
from taciturn.keyboard.user_history import WithHistory
from taciturn.runs.finished import people_known_to

PEOPLE, WORDS = 1000, 400
SHOWN = {
    "accuracy_top1": "Top1, all tokens",
    "accuracy_top3": "Top3, all tokens",
    "keystroke_saving": "keystrokes saved",
    "recall_top1": "Top1 recall, words",
    "recall_top3": "Top3 recall, words",
    "picked_rate": "picked rate",
    "trigger_rate": "trigger rate",
    "word_modified_ratio": "modified",
    "words_per_minute": "words a minute",
}
COMPARED = ("accuracy_top1", "accuracy_top3", "keystroke_saving", "picked_rate")


def typed(messages: list[list[str]], path: str) -> Typing:
    loaded = load_word_model(Path(path.removesuffix("+history")))
    model = WithHistory(loaded.model) if path.endswith("+history") else loaded.model
    return simulate(model, loaded.vocabulary, messages)


def people_for_all(text: str, paths: Sequence[str]) -> list[list[str]]:
    """Those whom none of the models was trained on."""
    loaded = [load_word_model(Path(path.removesuffix("+history"))) for path in paths]
    known = [people_known_to(one) for one in loaded if one.is_of_users]
    found = read_people(Source([Path(text)], Columns(None, None)), lambda id: any(one(id) for one in known), PEOPLE)
    messages = [enough_words(one, loaded[0].vocabulary, WORDS) for one in found.messages]
    return [one for one in messages if one]


def cell(metric: str, typing: Typing) -> str:
    one = typing[metric]
    return f"{one:.1f}" if metric == "words_per_minute" else f"{100 * one.value:.2f} ± {100 * one.margin:.2f}"


def main(text: str, *models: str) -> None:
    names, paths = zip(*(model.split("=", 1) for model in models), strict=True)
    messages = people_for_all(text, paths)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        results = list(pool.map(typed, [messages] * len(paths), paths))
    print(f"{len(messages):,} people, {int(results[0].tokens.sum()):,} words and signs\n")
    print("| model |", " | ".join(SHOWN.values()), "|\n|---|", "---|" * len(SHOWN))
    for name, result in zip(names, results, strict=True):
        print(f"| {name} |", " | ".join(cell(metric, result) for metric in SHOWN), "|")
    print(f"\nRelative change from {names[0]}:\n\n| model |", " | ".join(SHOWN[one] for one in COMPARED), "|")
    print("|---|", "---|" * len(COMPARED))
    for name, result in zip(names[1:], results[1:], strict=True):
        changes = [result.change_from(results[0], metric) for metric in COMPARED]
        print(f"| {name} |", " | ".join(f"{100 * one.value:+.1f} % ± {100 * one.margin:.1f}" for one in changes), "|")


if __name__ == "__main__":
    main(*sys.argv[1:])
