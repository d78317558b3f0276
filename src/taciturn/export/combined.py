"""AOSP's `.combined` word lists, which HeliBoard, OpenBoard and other Android keyboards use.

dicttool makes their dictionaries from them:

    dictionary=main:en,locale=en,description=…,date=…,version=…
     word=the,f=232
      bigram=same,f=233

f is a logarithm of a probability: 255 for certainty, and one less for each factor of 1.15. Nothing
longer than bigrams is held.

Keyboards compare the f of a bigram with the f of words that do not follow, and do not lower these
as a back-off model does. So the f of a bigram is its probability divided by the weight of all that
does not follow: then the order is the model's.
"""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taciturn.core import BEGIN, END, UNKNOWN
from taciturn.export.aosp_dictionary import from_level
from taciturn.files import write_atomically
from taciturn.models.ngram import NGram, split_keys

# f = 0 would mean: never suggest.
LEAST = 1
MOST = 255
STEP = math.log(1.15)
# The letters of a word: dicttool drops longer ones, and fails if they have followers.
LONGEST = 47
# Words after which a chain of words has forgotten its start.
ROUNDS = 50

# The words on a keyboard's strip; the first followers of a word are kept whatever their f.
STRIP = 3

LINE = re.compile(r" +(word|bigram)=([^,]*),f=(\d+)")


class ListedFollower(NamedTuple):
    """A word after another, and how likely it is there."""

    word: str
    f: int


class ListedWord(NamedTuple):
    """A word of a list, how frequent it is, and the likeliest words after it."""

    word: str
    f: int
    followers: list[ListedFollower]


def write_combined(
    path: Path,
    model: NGram,
    words: Sequence[str],
    *,
    language: str,
    description: str,
    version: int,
    date: int,
    more: Sequence[ListedWord] = (),
) -> None:
    """Write a list.

    Args:
        path: of the file.
        model: n-grams of these words.
        words: of the list.
        language: of the words, such as en or pt-BR.
        description: for the people who choose among dictionaries.
        version: keyboards prefer a dictionary with a higher one, and some want more than 18.
        date: in seconds since 1970.
        more: words that the model does not have.
    """
    header = make_header(
        language=language,
        description=_put_plainly(description),
        version=version,
        date=date,
    )
    lines = [",".join(f"{key}={value}" for key, value in header.items())]
    for listed in list_words(model, words, more):
        lines.append(f" word={listed.word},f={listed.f}")
        for follower in listed.followers:
            lines.append(f"  bigram={follower.word},f={follower.f}")
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def make_header(*, language: str, description: str, version: int, date: int) -> dict[str, str]:
    """Return what a keyboard wants to know of a list of words.

    Args:
        language: of the words, such as en or pt-BR.
        description: for the people who choose among dictionaries.
        version: keyboards prefer a dictionary with a higher one.
        date: in seconds since 1970.
    """
    locale = language.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z]{2,8}(_[A-Za-z0-9]{1,8})*", locale):
        raise ValueError(f"{language!r} is not the name of a language, such as en or pt-BR")
    return {
        "dictionary": f"main:{locale.lower()}",
        "locale": locale,
        "description": description,
        "date": str(date),
        "version": str(version),
    }


def _put_plainly(description: str) -> str:
    """Return a description as a line can hold it: without these characters, and not empty."""
    # A colon joins two halves of a sentence, which would read on as one.
    halves = re.sub(r":\s+", " - ", description)
    return re.sub(r"[\s,=:]+", " ", halves).strip() or "-"


def list_words(
    model: NGram, words: Sequence[str], more: Iterable[ListedWord] = ()
) -> list[ListedWord]:
    """Return the words of a list, the most frequent first, and those that may follow each.

    Args:
        model: n-grams of these words.
        words: of the list.
        more: words that the model does not have.
    """
    if len(words) != model.vocabulary:
        raise ValueError(
            f"the model has {model.vocabulary} words and the list {len(words)}: they do not belong"
            " together"
        )
    is_listed = _find_listed(words)
    frequency = to_f(_word_frequencies(model))
    followers = _find_followers(model, words, is_listed, frequency)
    listed = [
        ListedWord(
            word=words[place],
            f=int(frequency[place]),
            followers=followers.get(place, []),
        )
        for place in np.flatnonzero(is_listed).tolist()
    ]
    return sorted([*listed, *more], key=lambda word: -word.f)


def _find_listed(words: Sequence[str]) -> np.ndarray:
    """Return, for each word, whether a list has it; special tokens are not in it."""
    is_special = np.arange(len(words)) <= END
    return np.array([can_hold(word) for word in words]) & ~is_special


def can_hold(word: str) -> bool:
    """Tell whether a line of this format can hold the word."""
    has_letters = any(character.isalpha() for character in word)
    return len(word) <= LONGEST and has_letters and not re.search(r"[\s,]", word)


def read_combined(path: Path) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the probabilities of words, and of words after a word, as such a list holds them."""
    words: dict[str, float] = {}
    followers: dict[str, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        match = LINE.fullmatch(line)
        assert match is not None, line
        kind, word, f = match.groups()
        probability = math.exp((int(f) - MOST) * STEP)
        if kind == "word":
            words[word] = probability
            followers[word] = {}
        else:
            word_before = next(reversed(words))
            followers[word_before][word] = probability
    return words, followers


def _word_frequencies(model: NGram) -> np.ndarray:
    """Return the frequency of each word in long text.

    Kneser and Ney's unigrams count the contexts that a word was seen in, so they do not say it.
    """
    words = model.levels[0]
    unigrams = np.exp(words.probability, dtype=np.float64)
    if model.order == 1:
        return unigrams
    pairs = model.levels[1]
    firsts, seconds = split_keys(pairs.keys, model.vocabulary)
    bigrams = np.exp(pairs.probability, dtype=np.float64)
    weights = np.exp(words.backoff)
    # What a stored bigram has beyond the unigram that would stand in for it.
    more = bigrams - weights[firsts] * unigrams[seconds]
    frequencies = unigrams
    for _ in range(ROUNDS):
        before = frequencies.copy()
        # After a message comes the next one.
        before[BEGIN] = before[END]
        before[END] = 0.0
        from_bigrams = np.bincount(seconds, before[firsts] * more, len(unigrams))
        frequencies = unigrams * (before @ weights) + from_bigrams
        frequencies /= frequencies.sum()
    return frequencies


def _find_followers(
    model: NGram, words: Sequence[str], is_listed: np.ndarray, frequency: np.ndarray
) -> dict[int, list[ListedFollower]]:
    """Return the words after each word that are likelier there than elsewhere, likeliest first."""
    followers: dict[int, list[ListedFollower]] = {}
    if model.order == 1:
        return followers
    pairs = model.levels[1]
    firsts, seconds = split_keys(pairs.keys, model.vocabulary)
    f_after = to_f(np.exp(score_followers(model, firsts, pairs.probability)))
    listed = np.flatnonzero(is_listed[firsts] & is_listed[seconds])
    likeliest_first = np.lexsort((-pairs.probability[listed], firsts[listed]))
    for pair in listed[likeliest_first]:
        after_first = followers.setdefault(int(firsts[pair]), [])
        second = int(seconds[pair])
        f = int(f_after[pair])
        if len(after_first) < STRIP or _is_raised(int(frequency[second]), f):
            after_first.append(ListedFollower(word=words[second], f=f))
    return followers


def score_followers(model: NGram, firsts: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the scores of words after others as a keyboard compares them: at most certainty.

    Args:
        model: of the words.
        firsts: the words before.
        scores: the logarithms of the probabilities of the words after them.
    """
    return np.minimum(scores - model.levels[0].backoff[firsts], 0.0)


def _is_raised(f: int, f_after: int) -> bool:
    """Tell whether a dictionary, which has sixteen levels, can tell a follower from other words."""
    return f_after >= (f + from_level(f, 0)) / 2


def share_of_unknown_words(model: NGram) -> float:
    """Return how often a word comes that the model does not have."""
    return float(_word_frequencies(model)[UNKNOWN])


def to_f(probability: np.ndarray) -> np.ndarray:
    """Return the f of probabilities."""
    smallest = math.exp((LEAST - MOST) * STEP)
    return np.rint(MOST + np.log(np.maximum(probability, smallest)) / STEP).astype(int)
