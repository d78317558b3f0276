"""People's own words, to try a keyboard on: only of people on whom a model was not trained.

A population does not keep the spelling of unknown words, and typing needs every letter. So the text is read again from its files.
"""

from collections.abc import Callable
from typing import NamedTuple

from taciturn.data.sources import Source
from taciturn.data.users import position, user_id
from taciturn.data.vocabulary import DataError
from taciturn.progress import Progress, unwatched

MOST_CHARACTERS = 20_000  # of one person: far more than a simulation types


class People(NamedTuple):
    messages: list[list[str]]  # of each person, in the order of the file
    trained_on: int  # people found and left out


def read_people(source: Source, trained_on: Callable[[str], bool], most: int, progress: Progress = unwatched) -> People:
    """Read at most `most` people, chosen by a hash of their ids."""
    found: dict[str, list[str]] = {}
    room: dict[str, int] = {}
    left_out: set[str] = set()
    for batch in source.batches(progress):
        for spelling, text in zip(batch.column("user").to_pylist(), batch.column("text").to_pylist(), strict=True):
            id = user_id(spelling)
            if not id or id in left_out:
                continue
            if id not in found:
                if trained_on(id):
                    left_out.add(id)
                    continue
                found[id], room[id] = [], MOST_CHARACTERS
            if room[id] > 0:
                found[id].append(text[: room[id]])
                room[id] -= len(text)
    if not found:
        met = f"all {len(left_out):,} people in it were trained on" if left_out else "there is no text in it"
        raise DataError(f"{', '.join(map(str, source.paths))}: there is nobody to simulate ({met}); name other text")
    chosen = sorted(found, key=lambda id: (position(id), id))[:most]
    return People([found[id] for id in chosen], len(left_out))
