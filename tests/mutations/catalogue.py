"""All mutations: what is broken, what that would cost people, and which test notices. They are
data, in the files beside this one.
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

HERE = Path(__file__).parent
SUBJECTS = (  # in the order of docs/mutations.md
    *("reports", "noise", "participation", "records", "times", "devices"),
    *("figures", "integers", "audits", "ledgers", "people", "ngrams"),
)


class DoesNotFit(Exception):
    """The source is not any more what an edit was written for, or a file of mutations not what can
    be read as such.
    """


class Edit(NamedTuple):
    file: str  # under src/taciturn
    old: str
    new: str

    def rewritten(self, text: str) -> str:
        """The file after the edit. `old` has to be there, and once, or something else would be
        broken.
        """
        places = text.count(self.old)
        if places != 1:
            raise DoesNotFit(f"{self.file} has {places} places, not one, that read: {self.old!r}")
        return text.replace(self.old, self.new)


class Mutation(NamedTuple):
    """The source with one promise broken on purpose, and the tests that have to notice."""

    name: str  # what is broken
    harm: str  # what that would cost people
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]  # tests, the fastest there are
    statistical: bool = (
        False  # whether they measure a distribution, rather than compare with what must come out
    )


def mutations(file: Path) -> tuple[Mutation, ...]:
    """Those of one file: a table `[[mutation]]` each."""
    content = tomllib.loads(file.read_text())
    try:
        return TypeAdapter(dict[str, tuple[Mutation, ...]]).validate_python(content)["mutation"]
    except (ValidationError, KeyError) as error:
        raise DoesNotFit(f"{file.name} is no list of mutations: {error}") from error


MUTATIONS = tuple(one for subject in SUBJECTS for one in mutations(HERE / f"{subject}.toml"))
