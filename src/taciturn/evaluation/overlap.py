"""Find what people wrote that stands in public text as well, word for word.

A model that has read the public text knows it already, so figures measured on these people are too
good. Sequences of 13 tokens are compared, as Brown et al. 2020 do, by hashes of 64 bits. A sequence
does not cross the end of a message; unknown words count as equal, so that rather too much is found
than too little.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from taciturn.core import END
from taciturn.data.token_shards import Texts
from taciturn.progress import Progress, ignore_progress

LENGTH = 13
# Odd, so that no bit of a sequence's first words is lost.
BASE = np.uint64(0x9E3779B97F4A7C15)
# Of the words' random numbers, so that a hash is the same everywhere.
SEED = 13
# Public tokens that are hashed at a time.
AT_A_TIME = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How much of what people wrote stands in public text."""

    # Sequences of all people together.
    sequences: int
    # Those of them that stand in the public text.
    found: int
    # For each of the people, whether one of theirs does.
    is_found: np.ndarray

    @property
    def share(self) -> float:
        """Return the share of the people's sequences that stand in the public text."""
        return self.found / max(self.sequences, 1)

    @property
    def people(self) -> int:
        """Return how many people have a sequence that stands in the public text."""
        return int(np.count_nonzero(self.is_found))


def find_overlap(
    people: Iterable[np.ndarray],
    public: Sequence[Texts],
    vocabulary: int,
    progress: Progress = ignore_progress,
) -> Overlap:
    """Look for sequences of 13 tokens that people and public text have in common.

    Args:
        people: a text of each.
        public: documents, of one corpus or several.
        vocabulary: the number of words, which are the same for all.
        progress: called with public documents that were read, and how many there are.
    """
    numbers = _draw_numbers(vocabulary)
    hashes = [_hash_sequences(text, numbers) for text in people]
    wanted = np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))
    is_public = np.zeros(len(wanted), bool)
    documents_read = 0
    for documents in public:
        for joined in _join_documents(documents):
            _mark(is_public, wanted, _hash_sequences(joined.tokens, numbers))
            documents_read += joined.documents
            progress(documents_read, sum(map(len, public)))
    counts = []
    for theirs in hashes:
        places = np.searchsorted(wanted, theirs)
        counts.append(np.count_nonzero(is_public[places]))
    return Overlap(
        sequences=sum(map(len, hashes)),
        found=int(sum(counts)),
        is_found=np.array(counts, int) > 0,
    )


def _draw_numbers(vocabulary: int) -> np.ndarray:
    """Return a random number of 64 bits for each word."""
    generator = np.random.default_rng(SEED)
    return generator.integers(2**64, size=vocabulary, dtype=np.uint64)


def _hash_sequences(tokens: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the hashes of all sequences of 13 tokens within messages."""
    count = len(tokens) - LENGTH + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    values = numbers[tokens]
    hashes = np.zeros(count, np.uint64)
    for first in range(LENGTH):
        hashes *= BASE
        hashes += values[first : first + count]
    ends_before = np.cumsum(np.append(0, tokens == END))
    has_no_end = ends_before[LENGTH:] == ends_before[:count]
    return hashes[has_no_end]


class _Joined(NamedTuple):
    """Documents as one text, each closed by END."""

    tokens: np.ndarray
    documents: int


def _join_documents(documents: Texts) -> Iterator[_Joined]:
    """Yield many documents at a time."""
    waiting: list[np.ndarray] = []
    tokens = 0
    for document in documents:
        waiting.append(np.append(document, END))
        tokens += len(document)
        if tokens >= AT_A_TIME:
            yield _Joined(np.concatenate(waiting), len(waiting))
            waiting = []
            tokens = 0
    if waiting:
        yield _Joined(np.concatenate(waiting), len(waiting))


def _mark(is_there: np.ndarray, wanted: np.ndarray, hashes: np.ndarray) -> None:
    """Mark those of the sorted hashes wanted that are among others."""
    if not len(wanted):
        return
    places = np.searchsorted(wanted, hashes)
    places = np.minimum(places, len(wanted) - 1)
    is_there[places[wanted[places] == hashes]] = True
