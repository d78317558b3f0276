"""Folders of people that were copied, restored or moved, and which of them goes on."""

import os
from pathlib import Path

from taciturn.build import ledger_path, open_ledger
from taciturn.data.population import NamedLedger, Population
from taciturn.privacy.adopting import adopt
from taciturn.privacy.chain import LedgerError
from taciturn.privacy.ledger import Ledger


def adopt_ledger(folder: Path, same_people_as: Path | None = None) -> tuple[Ledger, Path | None]:
    """The ledger of a folder that goes on, by a person's word, though it was copied, restored or moved; and the original that was
    retired for it. With another folder of the same people, which was moved: the ledger that is there."""
    population = Population(folder)
    if same_people_as:
        theirs, own = open_ledger(Population(same_people_as)), population.ledger
        if own is None or own.id != theirs.id:
            raise LedgerError(f"{folder} does not share the ledger of {same_people_as}: nothing is changed")
        population.pin_ledger(NamedLedger(own.id, os.path.relpath(theirs.path.parent, folder.resolve())))
        return theirs, None
    named = population.ledger
    adopted, retired = adopt(ledger_path(population), named.id if named else None)
    if named is None:
        population.pin_ledger(NamedLedger(adopted.id))
    return adopted, retired
