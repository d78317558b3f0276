"""Simulate people typing with a model on which they were not trained.

They type what people wrote. A population does not know how unknown words are spelled, and typing
needs every letter, so their text is read again from its files.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from taciturn.data.population import trained_on
from taciturn.data.sources import Source
from taciturn.data.state_of_the_union import held_out_messages
from taciturn.data.users import position, user_id
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.export.word_model import LoadedModel, load_word_model
from taciturn.keyboard.typing_simulation import Typing, enough_words, simulate
from taciturn.keyboard.user_history import WithHistory
from taciturn.progress import Progress, StageProgress, ignore_progress
from taciturn.runs.finished import folder_known_to
from taciturn.runs.folder import RunError

# Of one person: far more than is ever typed in a simulation.
MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class People:
    """People who type in a simulation."""

    # Of each person, in the order of the file.
    messages: list[list[str]]
    # How many people were met and left out.
    left_out: int


@dataclass(frozen=True, kw_only=True)
class TypingResults:
    """What people typed with each model."""

    typings: list[Typing]
    people: int
    # And punctuation marks, that they typed.
    words: int
    # People left out of the files; None where it is unknown on whom a model was trained.
    left_out: int | None


def simulate_typing(
    paths: Sequence[Path],
    source: Source | None,
    history: bool,
    most_people: int,
    most_words: int,
    progress: StageProgress = ignore_progress,
) -> TypingResults:
    """Simulate the same people typing with each model.

    Args:
        paths: of one model or two.
        source: what people wrote; None for the users of the demo.
        history: whether the last model also learns from each person.
        most_people: how many people type, at most.
        most_words: of each person.
        progress: called with what is done, how much of it, and of how much.
    """
    models = [load_word_model(path) for path in paths]
    vocabulary = models[0].vocabulary
    _check_same_words(paths, models)
    is_trained_on = _people_known_to(models)
    if source is None:
        people = People(held_out_messages(vocabulary)[:most_people], left_out=0)
    else:
        people = read_people(source, is_trained_on, most_people, partial(progress, "reading"))
    typed = _limit_words(people.messages, vocabulary, most_words)
    word_models = [loaded.model for loaded in models]
    if history:
        word_models[-1] = WithHistory(word_models[-1])
    typings = []
    for loaded, word_model, stage in zip(models, word_models, _name_stages(models), strict=True):
        show = partial(progress, stage)
        typings.append(simulate(word_model, loaded.vocabulary, typed, show))
    is_origin_known = all(_is_origin_known(loaded) for loaded in models)
    return TypingResults(
        typings=typings,
        people=len(typed),
        words=int(typings[0].tokens.sum()),
        left_out=people.left_out if is_origin_known else None,
    )


def _is_origin_known(loaded: LoadedModel) -> bool:
    return loaded.card is not None and not loaded.is_personal


def _name_stages(models: Sequence[LoadedModel]) -> list[str]:
    if len(models) == 1:
        return ["typing"]
    return ["typing A", "typing B"]


def _check_same_words(paths: Sequence[Path], models: Sequence[LoadedModel]) -> None:
    words = set(models[0].vocabulary.words)
    if any(set(loaded.vocabulary.words) != words for loaded in models):
        raise RunError(
            f"{paths[0]} and {paths[1]} know different words, so their figures cannot be compared;"
            " make both with one list: `vocabulary=POPULATION`, for `data build` and `data public`"
        )


def _people_known_to(models: Sequence[LoadedModel]) -> Callable[[str], bool]:
    """Return a predicate of user ids: whether any of the models was trained on that user."""
    checks = [
        trained_on(folder_known_to(loaded))
        for loaded in models
        if loaded.is_of_users and not loaded.is_personal
    ]
    return lambda id: any(is_trained_on(id) for is_trained_on in checks)


def _limit_words(
    messages: Sequence[Sequence[str]], vocabulary: Vocabulary, most_words: int
) -> list[list[str]]:
    """Return what each person types: messages up to a number of words; skip who has none."""
    limited = [enough_words(theirs, vocabulary, most_words) for theirs in messages]
    return [theirs for theirs in limited if theirs]


def read_people(
    source: Source,
    is_trained_on: Callable[[str], bool],
    most: int,
    progress: Progress = ignore_progress,
) -> People:
    """Read at most this number of people; which ones follows from a hash of their ids."""
    messages: dict[str, list[str]] = {}
    room: dict[str, int] = defaultdict(lambda: MOST_CHARACTERS)
    left_out: set[str] = set()
    is_left_out = cache(is_trained_on)
    for id, text in _read_messages(source, progress):
        if is_left_out(id):
            left_out.add(id)
        elif room[id] > 0:
            messages.setdefault(id, []).append(text[: room[id]])
            room[id] -= len(text)
    if not messages:
        raise _nobody_to_type(source, left_out)
    by_hash = sorted(messages, key=_hash_of)
    chosen = [messages[id] for id in by_hash[:most]]
    return People(chosen, left_out=len(left_out))


def _nobody_to_type(source: Source, left_out: set[str]) -> DataError:
    why = "there is no text in it"
    if left_out:
        why = f"all {len(left_out):,} people in it were trained on"
    names = ", ".join(str(path) for path in source.paths)
    return DataError(f"{names}: nobody to try a keyboard on ({why})")


def _hash_of(id: str) -> tuple[int, str]:
    return position(id), id


def _read_messages(source: Source, progress: Progress) -> Iterator[tuple[str, str]]:
    """Yield the id of each message's user, and the message; skip those without an id."""
    for batch in source.batches(progress):
        spellings = batch.column("user").to_pylist()
        texts = batch.column("text").to_pylist()
        for spelling, text in zip(spellings, texts, strict=True):
            id = user_id(spelling)
            if id:
                yield id, text
