"""A device's own record of when it took part, in a file of its own: whatever a server forgets or claims, the device rests.

It outlives restarts of the device, of the server, and runs: the timer counts hours since the last upload to anybody. Within a run the
device also counts rounds and participations itself, as the recipe that it was given says. A round counts from the moment before the
report is sent, whatever becomes of it. Whoever opts out takes part in nothing any more.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from taciturn.files import write_atomically

FILE_NAME = "diary.json"


class Rest(NamedTuple):
    """How often a device may take part."""

    hours: float  # since its last upload
    min_separation: int  # MinS, rounds strictly between two
    max_participations: int  # MaxP, in a run


class Diary:
    def __init__(self, folder: Path, rest: Rest) -> None:
        self._path, self._rest = folder / FILE_NAME, rest
        self._uploads: list[dict] = []  # run, round, at
        self.opted_out = False
        if self._path.exists():
            saved = json.loads(self._path.read_text())
            self._uploads, self.opted_out = saved["uploads"], saved["opted_out"]

    def why_not(self, run: str, round: int | None = None) -> str | None:
        """Why this device does not take part now, if it does not. Until it knows the round, the timer decides: a round that failed is
        tried again, and counts once."""
        if self.opted_out:
            return "its owner has opted out"
        if self._uploads and _now() - self._uploads[-1]["at"] < 3600 * self._rest.hours:
            return f"it rests for {self._rest.hours:g} hours after an upload"
        mine = {upload["round"] for upload in self._uploads if upload["run"] == run}
        if round is None or round == max(mine, default=None):
            return None
        if len(mine) >= self._rest.max_participations:
            return f"it took part {len(mine)} times in this run, as often as it may"
        if mine and round - max(mine) <= self._rest.min_separation:
            return f"{self._rest.min_separation} rounds have to lie between this round and its last, and do not"
        return None

    def upload(self, run: str, round: int) -> None:
        """To be called before a report leaves. On disk when this returns."""
        self._uploads.append({"run": run, "round": round, "at": _now()})
        self._save()

    def opt_out(self) -> None:
        self.opted_out = True
        self._save()

    def _save(self) -> None:
        content = {"uploads": self._uploads, "opted_out": self.opted_out}
        write_atomically(self._path, json.dumps(content).encode(), 0o600)


def _now() -> float:
    return datetime.now(UTC).timestamp()
