"""A device's own record of when it took part, in a file of its own: whatever a server forgets or claims, the device rests.

It outlives restarts of the device, of the server, and runs: the timer counts hours since the last upload to anybody. Within a run the
device also counts rounds and participations itself, as the recipe that it was given says. A round counts from the moment before the
report is sent, whatever becomes of it. Whoever opts out takes part in nothing any more, from that moment on and for good.

The file is read each time, under a lock: another process on the same folder, or its owner's `--opt-out`, may have written to it.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
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


class DiaryDamaged(ValueError):
    """The device cannot know when it took part, and so does not."""


class Diary:
    def __init__(self, folder: Path, rest: Rest) -> None:
        self._folder, self._rest = folder, rest
        self._read()

    @property
    def uploads(self) -> list[dict]:
        """run, round and time of each."""
        return self._read()["uploads"]

    def why_not(self, run: str, round: int | None = None) -> str | None:
        """Why this device does not take part now, if it does not. A round that failed is tried again, and counts once."""
        with locked(self._folder):
            return self._why_not(self._read(), run, round)

    def upload(self, run: str, round: int) -> str | None:
        """To be called before a report leaves, which it does not if this says why not. On disk when this returns."""
        with locked(self._folder):
            content = self._read()
            why_not = self._why_not(content, run, round)
            if why_not is None:
                content["uploads"].append({"run": run, "round": round, "at": _now()})
                self._write(content)
            return why_not

    @property
    def rests_for(self) -> float:
        """Seconds until its own timer lets it take part again; none if it does already."""
        uploads = self.uploads
        return max(0.0, uploads[-1]["at"] + 3600 * self._rest.hours - _now()) if uploads else 0.0

    def _why_not(self, content: dict, run: str, round: int | None) -> str | None:
        uploads = content["uploads"]
        if content["opted_out"]:
            return "its owner has opted out"
        if uploads and _now() - uploads[-1]["at"] < 3600 * self._rest.hours:
            return f"it rests for {self._rest.hours:g} hours after an upload"
        mine = {upload["round"] for upload in uploads if upload["run"] == run}
        if round is None or round == max(mine, default=None):
            return None
        if len(mine) >= self._rest.max_participations:
            return f"it took part {len(mine)} times in this run, as often as it may"
        if mine and round - max(mine) <= self._rest.min_separation:
            return f"{self._rest.min_separation} rounds have to lie between this round and its last, and do not"
        return None

    def _read(self) -> dict:
        path = self._folder / FILE_NAME
        if not path.exists():
            return {"uploads": [], "opted_out": False}
        try:
            content = json.loads(path.read_text())
            return {"uploads": list(content["uploads"]), "opted_out": bool(content["opted_out"])}
        except (ValueError, KeyError, TypeError):
            raise DiaryDamaged(
                f"{path} is damaged: this device cannot know when it took part, and takes part no more"
            ) from None

    def _write(self, content: dict) -> None:
        write_atomically(self._folder / FILE_NAME, json.dumps(content).encode(), 0o600)


def opt_out(folder: Path) -> None:
    """Whatever the diary says, or does not say any more."""
    with locked(folder):
        try:
            uploads = json.loads((folder / FILE_NAME).read_text())["uploads"]
        except (OSError, ValueError, KeyError, TypeError):
            uploads = []
        write_atomically(folder / FILE_NAME, json.dumps({"uploads": uploads, "opted_out": True}).encode(), 0o600)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with open(folder / "diary.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _now() -> float:
    return datetime.now(UTC).timestamp()
