"""AOSP's `.combined` word lists, from which dicttool makes the dictionaries of HeliBoard, OpenBoard
and other Android keyboards.

    dictionary=main:en,locale=en,description=…,date=…,version=…
     word=the,f=232
      bigram=same,f=233

f is a logarithm of a probability: 255 for certainty, and one less for each factor of 1.15. Nothing
longer than bigrams is held.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from taciturn.core import BEGIN, END
from taciturn.files import write_atomically
from taciturn.models.ngram import NGram, split_keys

# 0 means: never suggest
LEAST, MOST, STEP = 1, 255, math.log(1.15)
# letters of a word; dicttool drops longer ones, and fails if they have followers
LONGEST = 47
# after which a chain of words has forgotten its start
ROUNDS = 50


def write_combined(
    path: Path,
    model: NGram,
    words: Sequence[str],
    language: str,
    description: str,
    version: int,
    date: int,
    bigrams_per_word: int = 3,
) -> None:
    """Write a list. `date` is in seconds since 1970; keyboards prefer a dictionary with a higher
    version, and some want more than 18.
    """
    if len(words) != model.vocabulary:
        raise ValueError(
            f"the model has {model.vocabulary} words and the list {len(words)}: they do not belong"
            " together"
        )
    locale = language.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z]{2,8}(_[A-Za-z0-9]{1,8})*", locale):
        raise ValueError(f"{language!r} is not the name of a language, such as en or pt-BR")
    # A header cannot hold these characters, nor an empty description.
    plain = re.sub(r"[\s,=:]+", " ", description).strip() or "-"
    lines = [
        f"dictionary=main:{locale.lower()},locale={locale},description={plain},date={date},version={version}"
    ]
    held = [
        len(word) <= LONGEST and any(map(str.isalpha, word)) and not re.search(r"[\s,]", word)
        for word in words
    ]
    # words that this format can hold
    listed = np.array(held) & (np.arange(len(words)) > END)
    frequency = _f(_frequencies(model))
    followers = _followers(model, listed, bigrams_per_word)
    for place in sorted(
        np.flatnonzero(listed).tolist(), key=lambda place: (-frequency[place], place)
    ):
        lines.append(f" word={words[place]},f={frequency[place]}")
        lines += [f"  bigram={words[other]},f={f}" for other, f in followers.get(place, ())]
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def read_combined(path: Path) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the probabilities of words, and of words after a word, as such a list holds them."""
    words: dict[str, float] = {}
    followers: dict[str, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        kind, word, f = re.fullmatch(r" +(word|bigram)=([^,]*),f=(\d+)", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        probability = math.exp((int(f) - MOST) * STEP)
        if kind == "word":
            words[word], followers[word] = probability, {}
        else:
            followers[next(reversed(words))][word] = probability
    return words, followers


def _frequencies(model: NGram) -> np.ndarray:
    """Return the frequency of each word in long text (Kneser and Ney's unigrams count the contexts
    it was seen in).
    """
    unigrams = np.exp(model.levels[0].probability, dtype=np.float64)
    if model.order == 1:
        return unigrams
    weights, (contexts, words) = (
        np.exp(model.levels[0].backoff),
        split_keys(model.levels[1].keys, model.vocabulary),
    )
    more = (
        np.exp(model.levels[1].probability, dtype=np.float64) - weights[contexts] * unigrams[words]
    )
    frequencies = unigrams
    for _ in range(ROUNDS):
        before = frequencies.copy()
        # after a message comes the next one
        before[BEGIN], before[END] = before[END], 0.0
        frequencies = unigrams * (before @ weights) + np.bincount(
            words, before[contexts] * more, len(unigrams)
        )
        frequencies /= frequencies.sum()
    return frequencies


def _followers(model: NGram, listed: np.ndarray, most: int) -> dict[int, list[tuple[int, int]]]:
    """Return the likeliest words after each word, and their f."""
    followers: dict[int, list[tuple[int, int]]] = {}
    if model.order == 1:
        return followers
    contexts, words = split_keys(model.levels[1].keys, model.vocabulary)
    probability = model.levels[1].probability
    rows = np.flatnonzero(listed[contexts] & listed[words])
    rows = rows[np.lexsort((-probability[rows], contexts[rows]))]
    for context, word, f in zip(
        contexts[rows], words[rows], _f(np.exp(probability[rows])), strict=True
    ):
        chosen = followers.setdefault(int(context), [])
        if len(chosen) < most:
            chosen.append((int(word), int(f)))
    return followers


def _f(probability: np.ndarray) -> np.ndarray:
    smallest = math.exp((LEAST - MOST) * STEP)
    return np.rint(MOST + np.log(np.maximum(probability, smallest)) / STEP).astype(int)
