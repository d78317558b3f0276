"""Canaries: invented secrets, and synthetic users who share them (Ramaswamy et al. 2020, §IV-A; the
idea is Carlini et al.'s, 2019).

A canary is five words drawn at random. n_u synthetic users share it, with n_e copies each among
their 200 sentences; the others are public. A run trains on them like on anyone else, and
audit/secret_sharer.py then asks the model what it remembers.

Departs from the paper: a canary is drawn from words alone. Punctuation that ends a sentence would
make two of it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taciturn import randomness
from taciturn.core import END, PADDING, Fleet
from taciturn.data.layout import Layout, sentence_bounds
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import DataError, Vocabulary, is_word
from taciturn.files import write_atomically
from taciturn.fleets.simulation.in_process import SimulatedFleet, with_room
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers, choose_by_coins
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import CanarySection
from taciturn.training import TrainState

FILE_NAME = "canaries.json"
# words of a canary, and how many of them an attacker knows
LENGTH, PREFIX = 5, 2
# what a seed is used for: random numbers are never reused
DRAWING_CANARIES, DRAWING_TEXTS = 0, 1


class Canary(NamedTuple):
    # ids
    words: tuple[int, ...]
    # n_u, who share it
    users: int
    # n_e, for each of them
    copies: int

    @property
    def prefix(self) -> tuple[int, ...]:
        return self.words[:PREFIX]

    @property
    def continuation(self) -> tuple[int, ...]:
        # the secret
        return self.words[PREFIX:]


class SyntheticUser(NamedTuple):
    canary: Canary
    # messages closed by END, like those of a population's users
    tokens: np.ndarray


def canary_words(vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids that canaries and their references are made of: no special tokens, no
    punctuation.
    """
    words = np.array(
        [place for place, word in enumerate(vocabulary.words) if is_word(word)], np.int32
    )
    if not len(words):
        raise DataError("this vocabulary has no word to make a canary of")
    return words


def make_canaries(
    vocabulary: Vocabulary, seed: int, kinds: CanarySection = CanarySection()
) -> list[Canary]:
    """Draw canaries of every n_u with every n_e: 27, with 189 users, as the paper has them."""
    cells = [cell for cell in product(kinds.users, kinds.copies) for _ in range(kinds.per_cell)]
    drawn = np.random.default_rng([seed, DRAWING_CANARIES]).choice(
        canary_words(vocabulary), (len(cells), LENGTH)
    )
    return [Canary(tuple(words), *cell) for words, cell in zip(drawn.tolist(), cells, strict=True)]


def synthetic_users(
    canaries: Sequence[Canary], corpus: PublicCorpus, seed: int, sentences: int = 200
) -> list[SyntheticUser]:
    """Make the users who share the canaries. Every sentence is a message of its own, and a user's
    are in random order.
    """
    if any(canary.copies > sentences for canary in canaries):
        raise ValueError(
            f"a canary cannot have more copies than a user has sentences ({sentences})"
        )
    generator = np.random.default_rng([seed, DRAWING_TEXTS])
    needed = sum(canary.users * (sentences - canary.copies) for canary in canaries)
    public = iter(_public_sentences(corpus, needed, generator))
    users = []
    for canary in canaries:
        secret = np.array([*canary.words, END], np.int32)
        for _ in range(canary.users):
            said = [secret] * canary.copies + [
                next(public) for _ in range(sentences - canary.copies)
            ]
            users.append(
                SyntheticUser(
                    canary,
                    np.concatenate([said[place] for place in generator.permutation(sentences)]),
                )
            )
    return users


def _public_sentences(
    corpus: PublicCorpus, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Draw uniformly from all sentences of the corpus, with replacement; each is closed by END."""
    ends = corpus.vocabulary.sentence_ends
    counts = [len(sentence_bounds(document, ends)) for document in corpus.documents]
    if not sum(counts):
        raise DataError(f"{corpus.source} has no sentence")
    times = np.bincount(generator.integers(sum(counts), size=count), minlength=sum(counts))
    found: list[np.ndarray] = []
    for document, taken in zip(
        corpus.documents, np.split(times, np.cumsum(counts)[:-1]), strict=True
    ):
        if taken.any():
            sentences = np.split(document.astype(np.int32), sentence_bounds(document, ends)[:-1])
            for number in np.flatnonzero(taken):
                said = sentences[number]
                found += [said if said[-1] == END else np.append(said, np.int32(END))] * taken[
                    number
                ]
    return [found[place] for place in generator.permutation(count)]


def expected_sightings(
    users: Iterable[SyntheticUser], rate: float, rounds: int, layout: Layout | None = None
) -> dict[Canary, float]:
    """Return how often a training sees each canary if a user joins a share `rate` of the rounds
    (Table 3): rate × rounds × n_u × n_e where texts are read whole. A device reads what its
    `layout` has room for; only copies in that part count.
    """
    copies: Counter[Canary] = Counter()
    for user in users:
        copies[user.canary] += copies_read(user, layout)
    return {canary: rate * rounds * read for canary, read in copies.items()}


def copies_read(user: SyntheticUser, layout: Layout | None = None) -> int:
    """Count the copies of the canary that a device reads in one pass over its text."""
    read = user.tokens
    if layout is not None:
        targets = layout.cut.pieces(user.tokens, layout.steps * layout.batch_size)[:, 1:]
        read = targets[targets != PADDING]
    if len(read) < LENGTH:
        return 0
    windows = np.lib.stride_tricks.sliding_window_view(read, LENGTH)
    return int(np.count_nonzero(np.all(windows == user.canary.words, axis=1)))


def save_canaries(path: Path, seen: Mapping[Canary, float], vocabulary: Vocabulary) -> None:
    """Save canaries with their words spelled out, for people and other vocabularies, and how often
    each is seen (`expected_sightings`).
    """
    rows = [
        one._asdict() | {"words": [vocabulary.words[word] for word in one.words], "seen": often}
        for one, often in seen.items()
    ]
    write_atomically(path, json.dumps(rows, ensure_ascii=False, indent=1).encode())


def load_canaries(path: Path, vocabulary: Vocabulary) -> dict[Canary, float]:
    """Return each canary, and how often it is seen in a round."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [(row["words"], row["users"], row["copies"], row["seen"]) for row in content]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not a list of canaries, or is damaged") from None
    foreign = {word for words, *_ in rows for word in words} - set(vocabulary.ids)
    if foreign:
        raise DataError(
            f"{path} has canaries of another vocabulary: {min(foreign)!r} is not in this one"
        )
    return {
        Canary(tuple(vocabulary.ids[word] for word in words), users, copies): seen
        for words, users, copies, seen in rows
    }


class PlantedCanaries:
    """The canaries of a recipe, beside a run's fleet and outside its claim; a `RunObserver`.
    RUN/canaries.json says what was planted.
    """

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary, root: bytes) -> None:
        section, self._vocabulary = recipe.canaries, vocabulary
        # or the recipe plants nothing
        assert section.text
        corpus = PublicCorpus.load(Path(section.text))
        corpus.check_words(vocabulary, "[canaries] text")
        seed = int.from_bytes(randomness.derive(root, "canaries", 0)[:8], "big")
        self._users = synthetic_users(
            make_canaries(vocabulary, seed, section), corpus, seed, section.sentences
        )
        self.texts = Texts.of([user.tokens for user in self._users], len(vocabulary))
        self.most_at_once, self._rate = len(self._users), section.rate
        self._layout, self._weight_cap = (
            build.layout(recipe, vocabulary),
            recipe.participation.weight_cap,
        )
        self.source = (
            f"the text of {len(self._users)} synthetic users, who took part beside the people"
            f" ({corpus.source})"
        )

    def beside(self, fleet: Fleet, most_reports: int) -> Fleet:
        expected = self._rate * len(self._users)
        synthetic = SimulatedFleet(
            self, self._layout, weight_cap=self._weight_cap, cohort=with_room(expected)
        )
        return WithSyntheticUsers(
            fleet,
            synthetic=synthetic,
            choose=choose_by_coins(len(self._users), self._rate),
            most_reports=most_reports,
        )

    def begin(self, round: int) -> None: ...

    def observe(self, before: TrainState, after: TrainState) -> None: ...

    def save(self, folder: Path, mode: int) -> None:
        """Save what was planted, once: it does not change, and is not a secret."""
        if not (folder / FILE_NAME).exists():
            seen = expected_sightings(self._users, self._rate, 1, self._layout)
            save_canaries(folder / FILE_NAME, seen, self._vocabulary)
