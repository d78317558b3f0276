"""The ledger of a population: opened, never made anew where one was lost, and adopted by a folder that was copied, restored or moved."""

import os
from pathlib import Path

from taciturn.data.population import NamedLedger, Population
from taciturn.privacy.adopting import adopt
from taciturn.privacy.chain import LedgerError
from taciturn.privacy.ledger import FILE_NAME, Ledger


def open_ledger(population: Population) -> Ledger:
    """The ledger of these users. One that was lost is not made anew: nobody knows any more what was spent."""
    path, named = ledger_path(population), population.ledger
    if named is None:
        ledger = Ledger(path)
        population.pin_ledger(NamedLedger(ledger.id))
        return ledger
    if not path.parent.is_dir():
        raise LedgerError(
            f"{population.folder} shares the ledger in {path.parent}, which cannot be reached. Bring it back; or, if it was moved, say "
            f"where to: taciturn ledger adopt {population.folder} --same-people-as FOLDER"
        )
    return Ledger(path, named.id)


def ledger_path(population: Population) -> Path:
    """Where it is, in this folder or in that of the same people."""
    named = population.ledger
    return (population.folder / named.folder if named else population.folder).resolve() / FILE_NAME


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
