"""Adopt a ledger that was copied, moved to another disk or restored.

A person says that it is the one to use from now on.

**Guarantee:** a ledger whose original is still where it was is adopted only if it has every row of
the original, which is retired first: only one of the two continues, whatever crashes there are.
Rows that are known to be missing are never adopted away.

**Assumes:** the person. An original that lies elsewhere by now is not found, and an older copy
whose original is gone looks like the newest; an anchor outside the folder
(privacy/ledger/anchor.py) notices both.
"""

from pathlib import Path
from typing import BinaryIO, NamedTuple

from taciturn.privacy.ledger.hash_chain import Head, LedgerError
from taciturn.privacy.ledger.ledger import Ledger


class Adoption(NamedTuple):
    """A ledger to use from now on."""

    ledger: Ledger
    # The original that was retired for it, if one was found.
    retired: Path | None


def adopt(path: Path, known_id: str | None = None) -> Adoption:
    """Adopt a ledger, and retire its original where there is one.

    Args:
        path: the ledger's file.
        known_id: the id that it must have.

    Raises:
        LedgerError: if rows are missing, or the population is.
    """
    claimed = _ClaimedLedger(path, known_id)
    claimed.check_not_retired()
    original_path = claimed.original
    if original_path and _has_population(original_path) and not _has_population(path):
        raise LedgerError(
            f"{path} is a copy of a population's ledger, without the population: copy all of"
            f" {original_path.parent}"
        )
    original = _ClaimedLedger(original_path) if original_path else None
    was_retired = original is not None and original.retire(claimed)
    claimed.is_decided = True
    claimed.append({"kind": "adopt"})
    return Adoption(
        ledger=Ledger(path, known_id),
        retired=original.path if original and was_retired else None,
    )


def _has_population(path: Path) -> bool:
    return path.with_name("manifest.json").exists()


class _ClaimedLedger(Ledger):
    """A ledger in any file; that no known row is missing is checked as ever."""

    # Until then no head is saved, or a copy that is refused would pass for the original.
    is_decided = False

    def _check_standing(self, file: BinaryIO, saved: Head | None, torn: bool) -> None:
        pass

    def _save_head(self, file: BinaryIO, at_rest: bool = True) -> None:
        if self.is_decided:
            super()._save_head(file, at_rest)

    @property
    def original(self) -> Path | None:
        """Return where it was written last, if that is still a file, and another one than this."""
        saved = self._read_head()
        place = Path(saved.place) if saved else self.path
        return place if place.exists() and not place.samefile(self.path) else None

    def retire(self, newer: "_ClaimedLedger") -> bool:
        """Retire this in favour of a copy with all its rows; tell whether it is the original.

        No anchor is informed, as the history continues there.
        """
        retirement = {"kind": "retired", "by": str(newer.path)}
        with self._lock() as file:
            self._catch_up(file)
            # A crash may have come before the other was adopted.
            is_retired = retirement.items() <= self.rows[-1].items()
            rows = self.rows[:-1] if is_retired else self.rows
            # It may be other people's by now.
            if self.id != newer.id:
                return False
            if rows != newer.rows[: len(rows)]:
                raise LedgerError(
                    f"{self.path} has rows that {newer.path} lacks, so spending would be forgotten."
                    " Use that one, or copy it here first."
                )
            self.is_decided = True
            if not is_retired:
                self._write(file, retirement)
            return True
