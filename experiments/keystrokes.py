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

from lib.results import Result, round_figures
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
SIDES = ("general", "users")


def measure_typing(folder: Path) -> Result:
    """Return perplexities and shares of keystrokes, by the side of the text."""
    loaded = load_word_model(folder)
    assert loaded.card is not None
    model = build.language_model(ModelSection(**loaded.card.architecture), len(loaded.vocabulary))
    params = jax.device_put(loaded.params)
    predictor = Predictor(loaded.model, loaded.vocabulary)
    texts = {
        "general": PublicCorpus.load(TEXTS / "general-test").documents,
        "users": HeldOutUsers(TEXTS / "people").texts,
    }
    messages = json.loads((TEXTS / "messages.json").read_text())
    perplexities = {}
    saved = {}
    for side in SIDES:
        perplexity = evaluate(model, params, texts[side])["perplexity"]
        perplexities[side] = [perplexity.value, perplexity.margin]
        saved[side] = keystroke_saving(model, params, predictor, messages[side])
    return {"perplexity": perplexities, "saved": saved}


def keystroke_saving(
    model: LanguageModel, params: Params, predictor: Predictor, sentences: list[str]
) -> float:
    """Return the share of keystrokes that are saved (formula 5).

    Each sentence is typed from its beginning, with a strip of three, and every word is picked as
    soon as it is on it.
    """
    vocabulary = predictor.vocabulary
    split = [vocabulary.split(sentence) for sentence in sentences]
    longest = max(map(len, split))
    score = jax.jit(lambda rows: jax.nn.log_softmax(losses.logits(model, params, rows)))
    letters = 0
    typed = 0
    for start in range(0, len(split), BATCH):
        batch = split[start : start + BATCH]
        scores = np.asarray(score(_rows_of(batch, longest, vocabulary)))
        for row_scores, words in zip(scores, batch, strict=False):
            for word_scores, word in zip(row_scores[: len(words)], words, strict=True):
                letters += len(word)
                typed += _count_keystrokes(predictor, word_scores, word)
    return 1 - typed / letters


def _rows_of(sentences: list[list[str]], longest: int, vocabulary: Vocabulary) -> np.ndarray:
    """Return what comes before each word of each sentence, as a batch of ids."""
    rows = np.full((BATCH, longest), PADDING, np.int32)
    for row, words in zip(rows, sentences, strict=False):
        before = [vocabulary.ids.get(word, UNKNOWN) for word in words[:-1]]
        row[: len(words)] = [BEGIN, *before]
    return rows


def _count_keystrokes(predictor: Predictor, scores: np.ndarray, word: str) -> int:
    """Return how many letters are typed before a word can be picked; all, if it never can."""
    if not is_word(word):
        return len(word)
    place = predictor.vocabulary.ids.get(word, UNKNOWN)
    for letters in range(len(word)):
        rank = predictor.rank(scores, place, word[:letters])
        if rank is not None and rank < PLACES:
            return letters
    return len(word)


if __name__ == "__main__":
    model_folder, out = map(Path, sys.argv[1:])
    text = json.dumps(round_figures(measure_typing(model_folder)), indent=1)
    out.write_text(text + "\n")
