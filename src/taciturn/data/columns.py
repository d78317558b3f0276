"""Which columns of a table hold users' text, a batch of their rows, and what was left out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from taciturn.data.places import Place
from taciturn.data.users import USER_COLUMNS
from taciturn.data.vocabulary import DataError

# The bytes of a line, a field or a text; anything longer is not a message.
LONGEST = 2**24
# Names that are looked for where none is given.
USUAL = {
    "user": USER_COLUMNS,
    "text": ("text", "body", "message", "content"),
    "time": ("ts", "time", "timestamp", "created_utc", "date"),
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns hold what; a name that is None is looked for among the usual ones."""

    user: str | None = None
    text: str | None = None
    time: str | None = None
    # A row with a true value in one of these is left out.
    sensitive: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return the columns to read, each once."""
        names = [self.user, self.text, self.time, *self.sensitive]
        return list(dict.fromkeys(name for name in names if name is not None))

    def resolve(self, names: list[str], path: Place, with_user: bool) -> "Columns":
        """Return these columns with every name resolved against those of a file.

        Args:
            names: of the file's columns.
            path: of the file.
            with_user: whether rows need a user, which those of public text do not.

        Raises:
            DataError: the file lacks a column, or has two of its name, or one column would be
                both the user and the text.
        """
        has_user = with_user or self.user is not None
        resolved = Columns(
            user=self._resolve("user", names, path) if has_user else None,
            text=self._resolve("text", names, path),
            time=self._resolve("time", names, path),
            sensitive=self.sensitive,
        )
        resolved._check_distinct(path)
        for name in self.sensitive:
            if name not in names:
                raise DataError(
                    f"{path} has no column {name}; its columns are {', '.join(names)}: name one by"
                    " `columns.sensitive`"
                )
        return resolved

    def _resolve(self, role: str, names: list[str], path: Place) -> str | None:
        """Return the name of the column with a role; None only for the time, which is optional."""
        named = getattr(self, role)
        usual = (name for name in USUAL[role] if name in names)
        chosen = named or next(usual, None)
        if chosen is None and named is None and role == "time":
            return None
        if chosen not in names:
            raise self._missing(role, names, path)
        if names.count(chosen) > 1:
            raise DataError(f"{path} has two columns named {chosen}; rename one of them")
        return chosen

    def _check_distinct(self, path: Place) -> None:
        """Refuse one column for user and text: each message would be a person to protect."""
        if self.user is not None and self.user == self.text:
            raise DataError(
                f"{path}: the column {self.user} cannot be both the user and the text; name the one"
                " with the user by `columns.user`, and the one with the text by `columns.text`"
            )

    def _missing(self, role: str, names: list[str], path: Place) -> DataError:
        """Return the error that a file lacks the column with a role."""
        # Without a header line, what stands in its place may be somebody's text, which no error
        # may repeat.
        if self._has_familiar_name(names):
            listed = f"its columns are {', '.join(names)}"
        else:
            listed = f"its {len(names)} columns have none of the usual names"
        missing = getattr(self, role) or USUAL[role][0]
        return DataError(
            f"{path} has no column {missing}; {listed}: name the one with the {role} by"
            f" `columns.{role}`"
        )

    def _has_familiar_name(self, names: list[str]) -> bool:
        """Tell whether a name is a usual one, or one of those given."""
        familiar = {self.user, self.text, self.time}.union(*USUAL.values())
        return not familiar.isdisjoint(names)


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
    """Rows of a file, column by column."""

    columns: Columns
    # By the names of columns.
    strings: dict[str, pa.Array]
    # Where a row stands in its file.
    place: Callable[[int], str]
