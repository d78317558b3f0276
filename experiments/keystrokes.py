"""Perplexity and keystroke saving as Popov et al. 2018 measure them, on general text and on users'.

    python experiments/keystrokes.py local/popov/start experiments/popov2018/results/start.json

measures a model that no list trains. The text is what popov2018/prepare.py wrote to local/popov:
general text, held-out users, and sentences of both to type.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from lib.results import Result, rounded
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

TEXTS = Path("local/popov")
BATCH = 10
SIDES = "general", "users"


def measured(folder: Path) -> Result:
    """Return perplexities and shares of keystrokes, by the side of the text."""
    loaded = load_word_model(folder)
    assert loaded.card is not None
    model = build.language_model(ModelSection(**loaded.card.architecture), len(loaded.vocabulary))
    params, predictor = jax.device_put(loaded.params), Predictor(loaded.model, loaded.vocabulary)
    texts = (
        PublicCorpus.load(TEXTS / "general-test").documents,
        HeldOutUsers(TEXTS / "people").texts,
    )
    messages = json.loads((TEXTS / "messages.json").read_text())
    found = {
        side: evaluate(model, params, text)["perplexity"]
        for side, text in zip(SIDES, texts, strict=True)
    }
    return {
        "perplexity": {side: [one.value, one.margin] for side, one in found.items()},
        "saved": {
            side: keystroke_saving(model, params, predictor, messages[side]) for side in SIDES
        },
    }


def keystroke_saving(
    model: LanguageModel, params: Params, predictor: Predictor, sentences: list[str]
) -> float:
    """Each sentence from its beginning, a strip of three, every word picked as soon as it is on it
    (formula 5).
    """
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
            typed += sum(
                _typed(predictor, row, word, vocabulary)
                for row, word in zip(said[: len(words)], words, strict=True)
            )
    return 1 - typed / letters


def _typed(predictor: Predictor, scores: np.ndarray, word: str, vocabulary: Vocabulary) -> int:
    place = vocabulary.ids.get(word, UNKNOWN)
    if not is_word(word):
        return len(word)
    ranks = (predictor.rank(scores, place, word[:letters]) for letters in range(len(word)))
    return next(
        (letters for letters, rank in enumerate(ranks) if rank is not None and rank < PLACES),
        len(word),
    )


if __name__ == "__main__":
    model, out = map(Path, sys.argv[1:])
    out.write_text(json.dumps(rounded(measured(model)), indent=1) + "\n")
