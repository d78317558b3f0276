"""A mutation: the source with one promise broken on purpose, and the tests that have to notice."""

from typing import NamedTuple


class DoesNotFit(Exception):
    """The source is not any more what an edit was written for."""


class Edit(NamedTuple):
    file: str  # under src/taciturn
    old: str
    new: str

    def rewritten(self, text: str) -> str:
        """The file after the edit. `old` has to be there, and once, or something else would be broken."""
        places = text.count(self.old)
        if places != 1:
            raise DoesNotFit(f"{self.file} has {places} places, not one, that read: {self.old!r}")
        return text.replace(self.old, self.new)


class Mutation(NamedTuple):
    name: str  # what is broken
    harm: str  # what that would cost people
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]  # tests, the fastest there are
    statistical: bool = False  # whether they measure a distribution, rather than compare with what must come out
