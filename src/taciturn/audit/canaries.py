"""Canaries: invented secrets, and synthetic users who share them.

They are those of Ramaswamy et al. 2020, §IV-A; the idea is Carlini et al.'s, 2019. A canary is five
words drawn at random. n_u synthetic users share it, with n_e copies each among their 200 sentences;
the others are public. A run trains on them like on anyone else, and audit/secret_sharer.py then
asks the model what it remembers.

Departs from the paper: a canary is drawn only from words. Punctuation that ends a sentence would
make two of it.
"""

import json
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

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
# Words of a canary, and how many of them an attacker knows.
LENGTH = 5
PREFIX = 2
# What a seed is used for: random numbers are never reused.
DRAWING_CANARIES = 0
DRAWING_TEXTS = 1


class Canary(NamedTuple):
    """A secret."""

    # Their ids.
    words: tuple[int, ...]
    # n_u, who share it.
    users: int
    # n_e, for each of them.
    copies: int

    @property
    def prefix(self) -> tuple[int, ...]:
        """Return what an attacker knows."""
        return self.words[:PREFIX]

    @property
    def continuation(self) -> tuple[int, ...]:
        """Return what an attacker looks for."""
        return self.words[PREFIX:]


class SyntheticUser(NamedTuple):
    """One of those who share a canary."""

    canary: Canary
    # Messages closed by END, like those of a population's users.
    tokens: np.ndarray


def canary_words(vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids that canaries and their references are made of.

    They are neither special tokens nor punctuation.
    """
    places = [place for place, word in enumerate(vocabulary.words) if is_word(word)]
    if not places:
        raise DataError("this vocabulary has no word to make a canary of")
    return np.array(places, np.int32)


def make_canaries(
    vocabulary: Vocabulary, seed: int, kinds: CanarySection = CanarySection()
) -> list[Canary]:
    """Draw canaries of every n_u with every n_e: 27, with 189 users, as the paper has them."""
    generator = np.random.default_rng([seed, DRAWING_CANARIES])
    cells = _list_cells(kinds)
    drawn = generator.choice(canary_words(vocabulary), (len(cells), LENGTH))
    canaries = []
    for words, (users, copies) in zip(drawn.tolist(), cells, strict=True):
        canary = Canary(
            words=tuple(words),
            users=users,
            copies=copies,
        )
        canaries.append(canary)
    return canaries


def _list_cells(kinds: CanarySection) -> list[tuple[int, int]]:
    """Return (n_u, n_e) of each canary."""
    cells: list[tuple[int, int]] = []
    for cell in product(kinds.users, kinds.copies):
        cells += [cell] * kinds.per_cell
    return cells


def synthetic_users(
    canaries: Sequence[Canary], corpus: PublicCorpus, seed: int, sentences: int = 200
) -> list[SyntheticUser]:
    """Make the users who share the canaries.

    Every sentence is a message of its own, and a user's are in random order.

    Args:
        canaries: each is shared by its number of users.
        corpus: whose sentences are their other text.
        seed: of all that is drawn.
        sentences: of each user.

    Raises:
        ValueError: a canary has more copies than a user has sentences.
    """
    if any(canary.copies > sentences for canary in canaries):
        raise ValueError(
            f"a canary cannot have more copies than a user has sentences ({sentences})"
        )
    generator = np.random.default_rng([seed, DRAWING_TEXTS])
    needed = sum(canary.users * (sentences - canary.copies) for canary in canaries)
    public = iter(_draw_sentences(corpus, needed, generator))
    users = []
    for canary in canaries:
        for _ in range(canary.users):
            others = list(islice(public, sentences - canary.copies))
            tokens = _mix_sentences(canary, others, generator)
            users.append(SyntheticUser(canary, tokens))
    return users


def _mix_sentences(
    canary: Canary, others: list[np.ndarray], generator: np.random.Generator
) -> np.ndarray:
    """Return the copies of a canary and other sentences, in random order."""
    secret = np.array([*canary.words, END], np.int32)
    sentences = [secret] * canary.copies + others
    order = generator.permutation(len(sentences))
    return np.concatenate([sentences[place] for place in order])


def _draw_sentences(
    corpus: PublicCorpus, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Draw uniformly from all sentences of the corpus, with replacement; each is closed by END."""
    ends = corpus.vocabulary.sentence_ends
    counts = [len(sentence_bounds(document, ends)) for document in corpus.documents]
    if not sum(counts):
        raise DataError(f"{corpus.source} has no sentence")
    times = _draw_times(counts, count, generator)
    sentences: list[np.ndarray] = []
    for document, document_times in zip(corpus.documents, times, strict=True):
        if document_times.any():
            sentences += _repeat_sentences(document, document_times, ends)
    return [sentences[place] for place in generator.permutation(count)]


def _draw_times(counts: list[int], count: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Return how often each sentence of each document is drawn; they have `counts` sentences."""
    total = sum(counts)
    drawn = generator.integers(total, size=count)
    times = np.bincount(drawn, minlength=total)
    return np.split(times, np.cumsum(counts)[:-1])


def _repeat_sentences(
    document: np.ndarray, times: np.ndarray, ends: tuple[int, ...]
) -> list[np.ndarray]:
    """Return each sentence of a document as many times as it was drawn."""
    bounds = sentence_bounds(document, ends)
    sentences = np.split(document.astype(np.int32), bounds[:-1])
    repeated: list[np.ndarray] = []
    for sentence, count in zip(sentences, times.tolist(), strict=True):
        if count:
            repeated += [_close_sentence(sentence)] * count
    return repeated


def _close_sentence(sentence: np.ndarray) -> np.ndarray:
    return sentence if sentence[-1] == END else np.append(sentence, np.int32(END))


def expected_sightings(
    users: Iterable[SyntheticUser], rate: float, rounds: int, layout: Layout | None = None
) -> dict[Canary, float]:
    """Return how often a training is expected to see each canary (Table 3).

    It is rate × rounds × n_u × n_e where texts are read whole.

    Args:
        users: who share them.
        rate: the share of the rounds that a user joins.
        rounds: of the training.
        layout: what a device has room for; only copies in that part count.
    """
    copies: Counter[Canary] = Counter()
    for user in users:
        copies[user.canary] += count_copies_read(user, layout)
    return {canary: rate * rounds * read for canary, read in copies.items()}


def count_copies_read(user: SyntheticUser, layout: Layout | None = None) -> int:
    """Count the copies of the canary that a device reads in one pass over its text."""
    read = user.tokens if layout is None else _read_tokens(user.tokens, layout)
    if len(read) < LENGTH:
        return 0
    windows = np.lib.stride_tricks.sliding_window_view(read, LENGTH)
    is_canary = np.all(windows == user.canary.words, axis=1)
    return int(np.count_nonzero(is_canary))


def _read_tokens(tokens: np.ndarray, layout: Layout) -> np.ndarray:
    """Return the part of a text that a device has room for."""
    pieces = layout.cut.pieces(tokens, layout.steps * layout.batch_size)
    targets = pieces[:, 1:]
    return targets[targets != PADDING]


def save_canaries(path: Path, seen: Mapping[Canary, float], vocabulary: Vocabulary) -> None:
    """Save canaries, and how often each is seen (`expected_sightings`).

    Their words are spelled out, for people and other vocabularies.
    """
    rows = []
    for canary, times in seen.items():
        row = {
            "words": [vocabulary.words[word] for word in canary.words],
            "users": canary.users,
            "copies": canary.copies,
            "seen": times,
        }
        rows.append(row)
    content = json.dumps(
        rows,
        ensure_ascii=False,
        indent=1,
    )
    write_atomically(path, content.encode())


class _SavedCanary(NamedTuple):
    """A row of a file of canaries."""

    words: list[str]
    users: int
    copies: int
    # How often it is seen in a round.
    seen: float

    def to_canary(self, vocabulary: Vocabulary) -> Canary:
        return Canary(
            words=tuple(vocabulary.ids[word] for word in self.words),
            users=self.users,
            copies=self.copies,
        )


def load_canaries(path: Path, vocabulary: Vocabulary) -> dict[Canary, float]:
    """Return each canary, and how often it is seen in a round; refuse those of other words."""
    saved = _read_saved_canaries(path)
    named = {word for canary in saved for word in canary.words}
    foreign = named - set(vocabulary.ids)
    if foreign:
        raise DataError(
            f"{path} has canaries of another vocabulary: {min(foreign)!r} is not in this one"
        )
    return {saved_canary.to_canary(vocabulary): saved_canary.seen for saved_canary in saved}


def _read_saved_canaries(path: Path) -> list[_SavedCanary]:
    try:
        saved = [_read_row(row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path} is not a list of canaries, or is damaged") from None
    if not saved:
        raise DataError(f"{path} has no canaries")
    return saved


def _read_row(row: dict[str, Any]) -> _SavedCanary:
    """Return the canary of a row.

    Raises:
        TypeError: a value has another type than a canary's.
    """
    saved_canary = _SavedCanary(
        words=list(row["words"]),
        users=operator.index(row["users"]),
        copies=operator.index(row["copies"]),
        seen=float(row["seen"]),
    )
    are_words = all(isinstance(word, str) for word in saved_canary.words)
    if not are_words or len(saved_canary.words) != LENGTH:
        raise TypeError
    return saved_canary


def _draw_seed(root: bytes) -> int:
    return int.from_bytes(randomness.derive(root, "canaries", 0)[:8], "big")


class PlantedCanaries:
    """The canaries of a recipe, beside a run's fleet and outside its claim; a `RunObserver`.

    RUN/canaries.json says what was planted.
    """

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary, root: bytes) -> None:
        """Make the users who share them.

        Args:
            recipe: says what is planted.
            vocabulary: of the run.
            root: of all random numbers of the run.
        """
        section = recipe.canaries
        # The recipe plants nothing otherwise.
        assert section.text
        corpus = PublicCorpus.load(Path(section.text))
        corpus.check_words(vocabulary, "[canaries] text")
        seed = _draw_seed(root)
        canaries = make_canaries(vocabulary, seed, section)
        self._users = synthetic_users(
            canaries,
            corpus,
            seed=seed,
            sentences=section.sentences,
        )
        self._vocabulary = vocabulary
        self._rate = section.rate
        self._layout = build.layout(recipe, vocabulary)
        self._weight_cap = recipe.participation.weight_cap
        self.texts = Texts.of([user.tokens for user in self._users], len(vocabulary))
        self.most_at_once = len(self._users)
        self.source = (
            f"the text of {len(self._users)} synthetic users, who took part beside the people"
            f" ({corpus.source})"
        )

    def beside(self, fleet: Fleet, most_reports: int) -> Fleet:
        expected = self._rate * len(self._users)
        synthetic = SimulatedFleet(
            self,
            self._layout,
            weight_cap=self._weight_cap,
            cohort=with_room(expected),
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
            seen = expected_sightings(self._users, self._rate, rounds=1, layout=self._layout)
            save_canaries(folder / FILE_NAME, seen, self._vocabulary)
