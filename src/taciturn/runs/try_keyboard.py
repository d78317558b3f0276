"""Try models at a keyboard: with simulated people, and with those who open the page.

Simulated people type what people wrote on whom a model was not trained. A population does not know
how unknown words are spelled, and typing needs every letter, so their text is read again from its
files.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from taciturn.data.population import trained_on
from taciturn.data.sources import Source
from taciturn.data.state_of_the_union import held_out_messages
from taciturn.data.users import position, user_id
from taciturn.data.vocabulary import DataError
from taciturn.export.formats import page_script
from taciturn.export.word_model import load_word_model
from taciturn.keyboard.server import KeyboardServer, page_files
from taciturn.keyboard.typing_simulation import Typing, enough_words, simulate
from taciturn.keyboard.user_history import WithHistory
from taciturn.privacy.ledger.ledger import Guarantee
from taciturn.progress import Progress, StageProgress, ignore_progress
from taciturn.release.model_file import ModelCard
from taciturn.release.privacy_statement import personal_statement, statement
from taciturn.runs.finished import folder_known_to, guarantee_of, learned_from
from taciturn.runs.folder import RunError

# of one person: far more than is ever typed in a simulation
MOST_CHARACTERS = 20_000


class People(NamedTuple):
    # of each person, in the order of the file
    messages: list[list[str]]
    # people who were met and left out
    trained_on: int


def read_people(
    source: Source,
    trained_on: Callable[[str], bool],
    most: int,
    progress: Progress = ignore_progress,
) -> People:
    """Read at most so many people; which ones follows from a hash of their ids."""
    found: dict[str, list[str]] = {}
    room, left_out, is_left_out = (
        defaultdict[str, int](lambda: MOST_CHARACTERS),
        set[str](),
        cache(trained_on),
    )
    for batch in source.batches(progress):
        for spelling, text in zip(
            batch.column("user").to_pylist(), batch.column("text").to_pylist(), strict=True
        ):
            id = user_id(spelling)
            if id and is_left_out(id):
                left_out.add(id)
            elif id and room[id] > 0:
                found.setdefault(id, []).append(text[: room[id]])
                room[id] -= len(text)
    if not found:
        met = (
            f"all {len(left_out):,} people in it were trained on"
            if left_out
            else "there is no text in it"
        )
        raise DataError(f"{', '.join(map(str, source.paths))}: nobody to try a keyboard on ({met})")
    chosen = sorted(found, key=lambda id: (position(id), id))[:most]
    return People([found[id] for id in chosen], len(left_out))


class TypingResults(NamedTuple):
    typings: list[Typing]
    people: int
    # and punctuation marks, that they typed
    words: int
    # people left out of the files; None where it is unknown on whom a model was trained
    trained_on: int | None


def simulate_typing(
    paths: Sequence[Path],
    source: Source | None,
    history: bool,
    most_people: int,
    most_words: int,
    progress: StageProgress = ignore_progress,
) -> TypingResults:
    """Simulate the same people typing with each model; with `history` the last also learns from
    each. No source: the demo's users.
    """
    loaded = [load_word_model(path) for path in paths]
    vocabulary = loaded[0].vocabulary
    if any(set(one.vocabulary.words) != set(vocabulary.words) for one in loaded):
        to_do = (
            "make both with one list: --vocabulary POPULATION, for `data build` and `data public`"
        )
        raise RunError(
            f"{paths[0]} and {paths[1]} know different words, so their figures cannot be compared;"
            f" {to_do}"
        )
    known = [
        trained_on(folder_known_to(one))
        for one in loaded
        if one.is_of_users and not one.is_personal
    ]
    if source is None:
        found = People(held_out_messages(vocabulary)[:most_people], 0)
    else:
        found = read_people(
            source,
            lambda id: any(is_known(id) for is_known in known),
            most_people,
            partial(progress, "reading"),
        )
    messages = list(
        filter(None, (enough_words(one, vocabulary, most_words) for one in found.messages))
    )
    typings = []
    for number, one in enumerate(loaded):
        model = WithHistory(one.model) if history and number == len(loaded) - 1 else one.model
        stage = f"typing {'AB'[number]}" if len(loaded) > 1 else "typing"
        typings.append(
            simulate(
                model,
                one.vocabulary,
                messages,
                lambda done, all, stage=stage: progress(stage, done, all),
            )
        )
    is_known = all(one.card is not None and not one.is_personal for one in loaded)
    return TypingResults(
        typings, len(messages), int(typings[0].tokens.sum()), found.trained_on if is_known else None
    )


def keyboard_server(
    paths: Sequence[Path], blocked: Sequence[str], port: int, progress: Progress = ignore_progress
) -> KeyboardServer:
    """Serve the page with one model or two, each with its guarantee; a personal model is shown to
    its owner only.
    """
    scripts, names, personal = [], [path.resolve().name for path in paths], False
    if len(set(names)) < len(names):
        names = [f"{name} {letter}" for name, letter in zip(names, "AB", strict=False)]
    for path, name in zip(paths, names, strict=True):
        progress(len(scripts), len(paths))
        loaded = load_word_model(path)
        personal |= loaded.is_personal
        guarantee = guarantee_of(loaded) if loaded.is_of_users and not loaded.is_personal else None
        scripts.append(
            page_script(
                loaded,
                guarantee,
                learned_from(loaded),
                _statement(loaded.card, guarantee),
                name,
                blocked,
            )
        )
    return KeyboardServer(page_files(scripts), port, secret=personal)


def _statement(card: ModelCard | None, guarantee: Guarantee | None) -> str:
    if card is None:
        return "The origin of this model is unknown."
    if card.personal:
        return personal_statement(card.run, card.ledger_head)
    if guarantee is None:
        return f"Made of public text only: {'; '.join(card.public_text)}."
    return statement(guarantee, card.public_text)
