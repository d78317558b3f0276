"""Tables 1 and 2 (Popov et al. 2018): perplexity and keystroke saving of models, on general text and on users'.

    python experiments/popov2018/measure.py --general GENERAL_TEST --people POPULATION --messages messages.json NAME=FOLDER …

GENERAL_TEST is a folder of `taciturn data public`, POPULATION one of `data build`, whose held-out users are read; messages.json holds
two lists of sentences, `general` and `users`, to type. Prints a row for each model, and the same as JSON.
"""

import argparse
import json
import math
from pathlib import Path

import jax
import numpy as np

from taciturn.core import BEGIN, PADDING, UNKNOWN, LanguageModel, Params
from taciturn.data.population import HeldOutUsers
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import Vocabulary, is_word
from taciturn.evaluation.accuracy import evaluate
from taciturn.export.word_model import load_word_model
from taciturn.keyboard.predictor import PLACES, Predictor
from taciturn.models import losses
from taciturn.recipe import build
from taciturn.recipe.sections import ModelSection

BATCH = 10


def keystroke_saving(model: LanguageModel, params: Params, predictor: Predictor, sentences: list[str]) -> float:
    """Each sentence from its beginning, a strip of three, every word picked as soon as it is on it (formula 5)."""
    vocabulary = predictor.vocabulary
    split = [vocabulary.split(sentence) for sentence in sentences]
    longest = max(map(len, split))
    score = jax.jit(lambda rows: jax.nn.log_softmax(losses.logits(model, params, rows)))
    letters = typed = 0
    for start in range(0, len(split), BATCH):
        some = split[start : start + BATCH]
        rows = np.full((BATCH, longest), PADDING, np.int32)
        for row, words in zip(rows, some, strict=False):
            row[: len(words)] = [BEGIN, *(vocabulary.ids.get(word, UNKNOWN) for word in words[:-1])]
        scores = np.asarray(score(rows))
        for said, words in zip(scores, some, strict=False):
            letters += sum(map(len, words))
            typed += sum(_typed(predictor, row, word, vocabulary) for row, word in zip(said[: len(words)], words, strict=True))
    return 1 - typed / letters


def _typed(predictor: Predictor, scores: np.ndarray, word: str, vocabulary: Vocabulary) -> int:
    place = vocabulary.ids.get(word, UNKNOWN)
    if not is_word(word):
        return len(word)
    ranks = (predictor.rank(scores, place, word[:letters]) for letters in range(len(word)))
    return next((letters for letters, rank in enumerate(ranks) if rank is not None and rank < PLACES), len(word))


def average_perplexity(general: float, users: float) -> float:
    """The geometric mean over tokens; the paper's tests have 170,000 of general text and 200,000 of users'."""
    return math.exp((170 * math.log(general) + 200 * math.log(users)) / 370)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--general", type=Path, required=True)
    parser.add_argument("--people", type=Path, required=True)
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    general, people = PublicCorpus.load(arguments.general), HeldOutUsers(arguments.people)
    messages = json.loads(arguments.messages.read_text())
    found = {}
    print("| model | general perplexity | keystrokes saved | users' perplexity | keystrokes saved | average perplexity |")
    print("|---|---|---|---|---|---|")
    for name, folder in (one.split("=", 1) for one in arguments.models):
        loaded = load_word_model(Path(folder))
        assert loaded.card is not None
        model = build.language_model(ModelSection(**loaded.card.architecture), len(loaded.vocabulary))
        params, predictor = jax.device_put(loaded.params), Predictor(loaded.model, loaded.vocabulary)
        perplexities = [evaluate(model, params, texts)["perplexity"].value for texts in (general.documents, people.texts)]
        saved = [keystroke_saving(model, params, predictor, messages[side]) for side in ("general", "users")]
        average = average_perplexity(*perplexities)
        found[name] = dict(
            zip(("general", "general_saving", "users", "users_saving", "average"),
                (perplexities[0], saved[0], perplexities[1], saved[1], average), strict=True)
        )  # fmt: skip
        cells = [f"{perplexities[0]:.1f}", f"{saved[0]:.2%}", f"{perplexities[1]:.1f}", f"{saved[1]:.2%}", f"{average:.1f}"]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
