"""Adopt a ledger that was copied, moved to another disk or restored, when a person says that it is
the one to use from now on.

**Guarantee:** a ledger whose original is still where it was is adopted only if it has every row of
the original, which is retired first: only one of the two continues, whatever crashes there are.
Rows that are known to be missing are never adopted away.

**Assumes:** the person. An original that lies elsewhere by now is not found, and an older copy
whose original is gone looks like the newest; an anchor outside the folder (privacy/ledger/anchor.py)
notices both.
"""

from pathlib import Path
from typing import BinaryIO

from taciturn.privacy.ledger.hash_chain import Head, LedgerError
from taciturn.privacy.ledger.ledger import Ledger


def adopt(path: Path, known: str | None = None) -> tuple[Ledger, Path | None]:
    """Return the ledger, to use from now on, and the original that was retired for it, if one was
    found.
    """
    claimed = _Claimed(path, known)
    claimed.check_not_retired()
    if (
        claimed.original
        and claimed.original.with_name("manifest.json").exists()
        and not path.with_name("manifest.json").exists()
    ):
        raise LedgerError(
            f"{path} is a copy of a population's ledger, without the population: copy all of"
            f" {claimed.original.parent}"
        )
    original = _Claimed(claimed.original) if claimed.original else None
    was_retired = original is not None and original.retire(claimed)
    claimed.decided = True
    claimed.append({"kind": "adopt"})
    return Ledger(path, known), original.path if original and was_retired else None


class _Claimed(Ledger):
    """A ledger in any file; that no known row is missing is checked as ever."""

    decided = (
        # until then no head is saved, or a copy that is refused would pass for the original
        False
    )

    def _check_standing(self, file: BinaryIO, known: Head | None, torn: bool) -> None:
        pass

    def _save_head(self, file: BinaryIO, at_rest: bool = True) -> None:
        if self.decided:
            super()._save_head(file, at_rest)

    @property
    def original(self) -> Path | None:
        """Return where it was written last, if that is still a file, and another one than this."""
        known = self._read_head()
        place = Path(known.place) if known else self.path
        return place if place.exists() and not place.samefile(self.path) else None

    def retire(self, newer: "_Claimed") -> bool:
        """Retire this in favour of a copy with all its rows; no anchor is informed, as the history
        continues there.
        """
        row = {"kind": "retired", "by": str(newer.path)}
        with self._lock() as file:
            self._catch_up(file)
            # a crash came before the other was adopted
            is_retired = row.items() <= self.rows[-1].items()
            rows = self.rows[:-1] if is_retired else self.rows
            if self.id != newer.id:
                # other people's by now
                return False
            if rows != newer.rows[: len(rows)]:
                forgotten = "so spending would be forgotten. Use that one, or copy it here first."
                raise LedgerError(f"{self.path} has rows that {newer.path} lacks, {forgotten}")
            self.decided = True
            if not is_retired:
                self._write(file, row)
            return True
