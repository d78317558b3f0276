"""Several models under the same people's fingers, without and with each person's history.

    python experiments/keyboard/table.py local/people blogs.parquet results/typing-blogs.json
        --public local/public "Kneser–Ney, people's and public text"=local/ngrams/kneser-ney …

Those type whose text is in the file and whom nothing was learned from: the population, on which all
the models were trained, says who was trained on and who opted out. Every model is `name=path` and
is typed with twice: as it is, and learning from what each person typed before. Like is compared
with like: without history with the first model without, with history with the first model with. A
phone's dictionary (.dict) suggests next words only and has no history: name it with --quick. All
figures come a second time without the people whose text stands in the public text (--public). The
result says which command made it, of which commit; a folder outside this one is named without where
it lies.

What everybody typed with a model is kept in --keep, so that the same command with more models types
only with these. Only averages come out, each with half its 95 % interval over people; changes are
relative and paired.
"""

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from taciturn.core import END
from taciturn.data.population import Population
from taciturn.data.public import PublicCorpus
from taciturn.data.sources import Source
from taciturn.data.vocabulary import Vocabulary
from taciturn.evaluation.intervals import Interval
from taciturn.evaluation.overlap import LENGTH, Overlap, find_overlap
from taciturn.export.word_model import load_word_model
from taciturn.keyboard.typing_simulation import Typing, enough_words, simulate_each
from taciturn.keyboard.user_history import WithHistory
from taciturn.runs.simulate_typing import read_people

HERE = Path(__file__).parent
# At most: people, and words of each.
PEOPLE = 1000
WORDS = 400
WITH_HISTORY = ", with history"
COMPARED = (
    "accuracy_top1",
    "accuracy_top3",
    "keystroke_saving",
    "picked_rate",
    "recall_top1",
    "recall_top3",
)


@dataclass(frozen=True)
class Row:
    """A model, with or without people's history."""

    name: str
    path: Path
    has_history: bool

    @property
    def title(self) -> str:
        return f"{self.name}{WITH_HISTORY}" if self.has_history else self.name


def read_messages(population: Path, text: Path, vocabulary: Vocabulary) -> list[list[str]]:
    """Return what those type whom the population does not train on."""
    people = read_people(Source(paths=[text]), [population], PEOPLE)
    messages = []
    for typed in people.messages:
        kept = enough_words(typed, vocabulary, WORDS)
        if kept:
            messages.append(kept)
    return messages


def type_with(row: Row, messages: list[list[str]], keep: Path, quick: bool) -> Typing:
    """Return what everybody types with a model, a column for each; read it if it was kept."""
    kept = keep / f"{_digest(row, messages, quick)}.npz"
    if kept.exists():
        with np.load(kept) as columns:
            return Typing(**columns)
    loaded = load_word_model(row.path)
    model = WithHistory(loaded.model) if row.has_history else loaded.model
    typing = simulate_each(model, loaded.vocabulary, messages, next_words_only=quick)
    columns = {field.name: getattr(typing, field.name) for field in fields(typing)}
    unfinished = kept.with_suffix(".partial.npz")
    np.savez(unfinished, **columns)
    unfinished.replace(kept)
    print(f"{row.title}: {_describe(typing)}", flush=True)
    return typing


def _digest(row: Row, messages: list[list[str]], quick: bool) -> str:
    """Identify a model, what is typed, and how."""
    digest = hashlib.sha256(json.dumps([messages, row.has_history, quick]).encode())
    path = row.path / "model.safetensors" if row.path.is_dir() else row.path
    with path.open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _describe(typing: Typing) -> str:
    everybody = typing.pool(np.arange(len(typing.tokens)))
    return ", ".join(f"{metric} {everybody[metric]:.4f}" for metric in COMPARED)


def find_shares(paths: dict[str, Path]) -> dict[str, float]:
    """Return the share of people's counts in each model that interpolates them with public text."""
    shares = {}
    for name, path in paths.items():
        card = load_word_model(path).card
        if card is not None and "people_share" in card.architecture:
            shares[name] = card.architecture["people_share"]
    return shares


def find_public(messages: list[list[str]], vocabulary: Vocabulary, public: list[Path]) -> Overlap:
    """Look for what people type in the public text."""
    texts = []
    for typed in messages:
        tokens = [token for text in typed for token in (*vocabulary.encode(text), END)]
        texts.append(np.array(tokens))
    corpora = [PublicCorpus.load(folder) for folder in public]
    for folder, corpus in zip(public, corpora, strict=True):
        corpus.check_words(vocabulary, str(folder))
    return find_overlap(texts, [corpus.documents for corpus in corpora], len(vocabulary))


def as_pair(interval: Interval) -> list[float]:
    return [float(f"{interval.value:.5g}"), float(f"{interval.margin:.5g}")]


def figures(typings: dict[str, Typing], people: np.ndarray, shown: Sequence[str]) -> dict[str, Any]:
    """Return what was measured of each model, and the changes from the first of its kind."""
    pooled = {title: typing.pool(people) for title, typing in typings.items()}
    first = next(iter(pooled))
    models = {}
    changes = {}
    for title, typing in pooled.items():
        models[title] = {metric: as_pair(typing[metric]) for metric in shown}
        like = first + WITH_HISTORY if title.endswith(WITH_HISTORY) else first
        if title != like:
            by_metric = {metric: typing.change_from(pooled[like], metric) for metric in COMPARED}
            changes[title] = {metric: as_pair(change) for metric, change in by_metric.items()}
    return {
        "people": len(people),
        "words": int(pooled[first].tokens.sum()),
        "models": models,
        "from": first,
        "changes": changes,
    }


def describe_overlap(
    overlap: Overlap, typings: dict[str, Typing], shown: Sequence[str]
) -> dict[str, Any]:
    """Return how much stands in the public text, and all figures without those people."""
    others = np.flatnonzero(~overlap.is_found)
    return {
        "length": LENGTH,
        "share": float(f"{overlap.share:.5g}"),
        "people": overlap.people,
        "without": figures(typings, others, shown),
    }


def find_commit() -> str:
    """Return the commit of the code that ran."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def describe_command(arguments: Sequence[str]) -> str:
    """Return the command with these arguments; of files elsewhere only the names."""
    shown = []
    for argument in arguments:
        name, is_model, path = argument.rpartition("=")
        if Path(path).is_absolute():
            path = Path(path).name
        shown.append(f"{name}{is_model}{path}")
    return f"python experiments/keyboard/table.py {shlex.join(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("population", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", help="name=path")
    parser.add_argument("--public", type=Path, nargs="+", default=[])
    parser.add_argument("--keep", type=Path, default=Path("local/typed"))
    parser.add_argument("--quick", action="store_true", help="next words only")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    paths = {}
    for model in given.models:
        name, _, path = model.rpartition("=")
        paths[name] = Path(path)
    rows = []
    for (name, path), has_history in product(paths.items(), (False, True)):
        if not (has_history and path.suffix == ".dict"):
            rows.append(Row(name, path, has_history))
    vocabulary = Population(given.population).vocabulary
    messages = read_messages(given.population, given.text, vocabulary)
    given.keep.mkdir(parents=True, exist_ok=True)
    type_all = partial(type_with, messages=messages, keep=given.keep, quick=given.quick)
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        typed = list(pool.map(type_all, rows))
    typings = {row.title: typing for row, typing in zip(rows, typed, strict=True)}
    shown = [metric for metric in Typing.metrics if not given.quick or metric in COMPARED]
    content = {
        "commit": find_commit(),
        "command": describe_command(sys.argv[1:]),
        "people_share": find_shares(paths),
        **figures(typings, np.arange(len(messages)), shown),
    }
    if given.public:
        overlap = find_public(messages, vocabulary, given.public)
        content["overlap"] = describe_overlap(overlap, typings, shown)
    given.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
