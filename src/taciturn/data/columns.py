"""The columns of a table that hold users' text, a batch of their rows, and the record of what was
left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from taciturn.data.places import Place
from taciturn.data.vocabulary import DataError

# bytes of a line, a field or a text; anything longer is not a message
LONGEST = 2**24
# Names that are looked for where none is given.
USUAL = {
    "user": ("user_id", "user", "author", "username", "sender"),
    "text": ("text", "body", "message", "content"),
    "time": ("ts", "time", "timestamp", "created_utc", "date"),
}


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; a name that is None is looked for among the usual ones."""

    user: str | None = None
    text: str | None = None
    time: str | None = None
    # a row with a true value in one of these is left out
    sensitive: tuple[str, ...] = ()

    def among(self, names: list[str], path: Place, with_user: bool) -> "Columns":
        """Return these columns with every name resolved against those of a file."""
        found = {}
        for role, usual in USUAL.items():
            named = getattr(self, role)
            found[role] = chosen = named or next((name for name in usual if name in names), None)
            if named is None and (
                (role == "user" and not with_user) or (role == "time" and chosen is None)
            ):
                found[role] = None
            elif chosen and names.count(chosen) > 1:
                raise DataError(f"{path} has two columns named {chosen}; rename one of them")
            elif chosen not in names:
                # Without a header line, what stands in its place may be somebody's text: it is not
                # repeated.
                known = any(name in names for all in USUAL.values() for name in all) or any(
                    getattr(self, one) in names for one in USUAL
                )
                listed = (
                    f"its columns are {', '.join(names)}"
                    if known
                    else f"its {len(names)} columns have none of the usual names"
                )
                raise DataError(
                    f"{path} has no column {named or usual[0]}; {listed}: name the one with the"
                    f" {role} by --{role}-column"
                )
        if missing := next((name for name in self.sensitive if name not in names), None):
            raise DataError(
                f"{path} has no column {missing}; its columns are {', '.join(names)}: name one by"
                " --sensitive-column"
            )
        return Columns(**found, sensitive=self.sensitive)

    @property
    def wanted(self) -> list[str]:
        names = [self.user, self.text, self.time, *self.sensitive]
        return list(dict.fromkeys(name for name in names if name is not None))


@dataclass
class LeftOut:
    """What was left out, why, how often, and where first."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, count: int = 1, where: str = "") -> None:
        if count:
            self.counts[reason] = self.counts.get(reason, 0) + count
            if where:
                self.first.setdefault(reason, where)


class Batch(NamedTuple):
    columns: Columns
    # by the names of columns
    strings: dict[str, pa.Array]
    # where a row stands in its file
    place: Callable[[int], str]
