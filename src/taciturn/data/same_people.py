"""Who is who under a ledger: among several builds, and at a keyboard.

**Guarantee.** People whom an earlier build under a ledger trained on are not held out by a later
one, and people who opted out stay out. Nobody is measured with a model that was trained on them.

**Assumes:** the same person has the same id in both texts, which no program can see. What it sees
is that ids come from another column, or that hardly any of the people are met again; then the build
is refused. The manifest and the lists of ids of the earlier build are whole: where they were lost,
runs from before are not measured, and who is held out follows only from the ids.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from taciturn.data.population import (
    COUNTS,
    NAMES,
    has_all_ids,
    hashed_id,
    id_rule,
    list_ids,
    load_manifest,
    open_salt,
    read_ids,
    read_manifest,
    read_named_ledger,
    remember_opt_outs,
)
from taciturn.data.sources import FILE_NAMES, FOLDER_NAMES
from taciturn.data.users import USER_COLUMNS, possible_ids
from taciturn.data.vocabulary import DataError

# Of the people of an earlier build, how many have to be met again. Of ids from another column next
# to none are, and of those who wrote last month many write this month too.
LEAST_SHARE = 0.1
# Where ids come from unless a column is named.
_USUAL_NAMES = (*USER_COLUMNS, FILE_NAMES, FOLDER_NAMES)


class EarlierBuild:
    """An earlier build under a ledger, and whom of its people a new one has met.

    Args:
        folder: of the population.
        about: what its manifest says of its text.
        trained_on: hashed ids of the users to train on.
        held_out: hashed ids of the held-out users.
        opted_out: hashed ids of those who opted out since, who may be gone from the text.
    """

    def __init__(
        self,
        folder: Path,
        *,
        about: Mapping[str, Any],
        trained_on: AbstractSet[str],
        held_out: AbstractSet[str],
        opted_out: AbstractSet[str],
    ) -> None:
        self.folder = folder
        self._about = about
        self._trained_on = trained_on
        self._awaited = (trained_on | held_out) - opted_out
        self._met = 0

    def check_columns(self, roles: Mapping[str, Sequence[str]]) -> list[str]:
        """Refuse ids from another column than before.

        Args:
            roles: the columns of the new text with the user, the text and the time.

        Returns:
            The other columns that changed, in words.
        """
        before = roles_of(self._about)
        if before is None:
            return []
        new_names = [name for name in roles["user"] if name not in before["user"]]
        if new_names:
            raise DataError(
                f"{self.folder} knows its people by {_name(before['user'])}, and this text by"
                f" {_name(new_names)}, so people whom its ledger protects might be held out, and"
                " people who opted out be back. Name the same text files or folders as then, or"
                " the column with the same ids by `columns.user` (rename it in the file, if it"
                " has another name there). If these are other people, name another `folder`"
            )
        return list(_describe_changes(before, roles))

    def meet(self, possible_hashes: AbstractSet[str]) -> None:
        """Count a user of the new text, by every hashed id that the user may have had."""
        self._met += not self._awaited.isdisjoint(possible_hashes)

    def check_may_hold_out(self, hashed_id: str) -> None:
        """Refuse to hold out a user who was trained on."""
        if hashed_id in self._trained_on:
            raise DataError(
                f"this text would hold out people whom {self.folder} was trained on: build it with"
                " the same `held_out` and the same ids as then"
            )

    def check_met(self) -> None:
        """Refuse a text of other people, or of the same people under other ids."""
        if self._met < LEAST_SHARE * len(self._awaited):
            raise DataError(
                f"fewer than a tenth of the people of {self.folder} are in this text, so their ids"
                " seem to be others now: people whom its ledger protects might be held out, and"
                " people who opted out be back. Give them the ids that they had, or name their"
                " earlier text too, beside this. If these are other people, name another `folder`"
            )

    def count_met(self) -> dict[str, int]:
        """Return how many of its people were met, of how many; private, like every count."""
        return {"people": len(self._awaited), "met": self._met}


def roles_of(about: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """Return the columns of a build's user, text and time; None where that is unknown.

    Earlier versions wrote down all columns in the order user, text, time, file after file.
    """
    if "roles" in about:
        return about["roles"]
    columns = about.get("columns")
    if not columns:
        return None
    first, *others = columns
    # A later file may have another of the usual names.
    users = [first, *(name for name in others if name in _USUAL_NAMES)]
    return {"user": users, "text": [], "time": []}


def _describe_changes(
    before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]
) -> Sequence[str]:
    """List the columns of text and time that are others than before."""
    changes = []
    for role in ("text", "time"):
        if before[role] and now[role] and not set(now[role]) <= set(before[role]):
            changes.append(f"the {role} is read from {_name(now[role])}, not {_name(before[role])}")
    return changes


def _name(columns: Sequence[str]) -> str:
    """Say where ids come from: a column, or the name of a file or folder."""
    listed = " and ".join(columns)
    return listed if listed.startswith("the name of") else f"the column {listed}"


def trained_on(folder: Path) -> Callable[[str], bool]:
    """Return what tells whether a population trains on a user, by any spelling of the id.

    Those who opted out of everything count as if it did.
    """
    return _find_among(_read_protected_ids(folder), folder)


def known_to(folder: Path) -> Callable[[str], bool]:
    """Return what tells whether a population knows a user, be it as one who is held out."""
    return _find_among(_read_protected_ids(folder) | read_ids(folder, "held_out"), folder)


def _find_among(hashed_ids: AbstractSet[str], folder: Path) -> Callable[[str], bool]:
    salt = open_salt(folder)
    rule = id_rule(folder)

    def is_among(spelling: str) -> bool:
        return any(hashed_id(salt, id) in hashed_ids for id in possible_ids(spelling, rule))

    return is_among


def _read_protected_ids(folder: Path) -> set[str]:
    """Return the hashed ids of users who are trained on or opted out."""
    return read_ids(folder, "train") | remember_opt_outs(folder, open_salt(folder))


def check_strangers(measured: Path, protected: Path) -> None:
    """Refuse to measure held-out users of one folder with a model of another.

    It is allowed where none of them was trained on there or opted out.
    """
    if load_manifest(measured)["salt"] != load_manifest(protected)["salt"]:
        raise DataError(
            f"{measured} and {protected} know people by different hashes, so whether held-out users"
            " of the one were trained on in the other cannot be told. Build"
            f" {measured} again, with `same_people_as={protected}`"
        )
    _check_columns_agree(measured, protected)
    protected_ids = _read_protected_ids(protected)
    if protected_ids & read_ids(measured, "held_out"):
        raise DataError(
            f"held-out users of {measured} include people whom {protected} trains on, or who opted"
            " out, who were promised protection, which held-out users do not have. Build both with"
            " the same `held_out`"
        )


def _check_columns_agree(measured: Path, protected: Path) -> None:
    """Refuse folders that know their people by different columns."""
    roles = roles_of(load_manifest(measured).get("about", {}))
    if roles is not None:
        earlier = _earlier_build(protected, opted_out=frozenset())
        earlier.check_columns({**roles, "text": [], "time": []})


def check_same_split(folder: Path, population: str, run: str) -> None:
    """Refuse to measure a run on people of whom it is unknown whether it was trained on them.

    Args:
        folder: of the run's population, which may have been built again since.
        population: the id of the population that the run was trained on.
        run: its name.
    """
    if not has_same_split(folder, population):
        raise DataError(
            f"{folder} was built again since {run} was trained on it, and nothing shows that its"
            " people have the ids that they had then: those who are held out now may have been"
            f" trained on. {run} can no longer be measured; train a new run"
        )


def has_same_split(folder: Path, population: str) -> bool:
    """Tell whether the people of an earlier population are on the same side in this folder."""
    manifest = load_manifest(folder)
    same = [manifest["id"], *manifest["about"].get("same_split_as", ())]
    return population in same


def earlier_builds(
    folder: Path, same_people_as: Path | None, opted_out: AbstractSet[str]
) -> list[EarlierBuild]:
    """Return the builds under a ledger whose people a new build is of.

    Args:
        folder: that is built, perhaps again.
        same_people_as: another folder of the same people.
        opted_out: hashed ids of all who opted out so far.
    """
    builds = []
    ledger = read_named_ledger(folder)
    is_built = COUNTS in read_manifest(folder)
    if ledger is not None and is_built:
        builds.append(_earlier_build(folder, opted_out))
    if same_people_as is not None:
        # Lists that are incomplete are refused: that folder can be built again, and this one waits.
        for split in NAMES:
            read_ids(same_people_as, split)
        builds.append(_earlier_build(same_people_as, opted_out))
    elif ledger is not None and not is_built and ledger.folder != ".":
        raise DataError(
            f"{folder} shares the ledger in {(folder / ledger.folder).resolve()}, but its first"
            " build was interrupted, or its manifest was lost: say again of which people its text"
            " is, with `same_people_as`"
        )
    return builds


def _earlier_build(folder: Path, opted_out: AbstractSet[str]) -> EarlierBuild:
    return EarlierBuild(
        folder,
        about=read_manifest(folder).get("about", {}),
        trained_on=list_ids(folder, "train"),
        held_out=list_ids(folder, "held_out"),
        opted_out=opted_out,
    )


def same_split_as(folder: Path) -> list[str]:
    """Return the ids of the populations that stood here, if all had the same split of people.

    Without a ledger there is no run, and nobody is promised the same side. Without whole lists of
    their ids nobody can tell.
    """
    manifest = read_manifest(folder)
    if read_named_ledger(folder) is None or COUNTS not in manifest:
        return []
    if not all(has_all_ids(folder, split) for split in NAMES):
        return []
    before = manifest["about"].get("same_split_as", [])
    return [*before, manifest["id"]]
