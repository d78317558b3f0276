"""A device's own record of when it took part, in its own file: whatever a server forgets or claims,
the device rests.

**Guarantee:** a report is on record, synced, before it leaves, and uses up its round for good: the
device reports only to rounds above it, whatever is retried and whatever crashes. Names of attempts
rise too, and are on record before the device sends
anything: it answers none twice. So is the highest list of dismissed devices that it was shown: it
accepts no lower one, and no other of that number. Hours since the last report, rounds between two,
and the number of reports are counted over all runs and servers.

**Assumes:** the folder is not restored from an older copy, and the device's clock goes forward. The
server numbers rounds: how many of them lie between two reports is its claim. The device itself
counts hours and reports.

An opt-out is for good. The file is read each time, under a lock: another process on the same
folder, or its owner's `--opt-out`, may have written to it.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from taciturn.errors import TaciturnError
from taciturn.files import lock_file, write_atomically
from taciturn.fleets.devices import fields

FILE_NAME, LOCK = "participation.json", "participation.lock"
# seconds by which a server's clock may be ahead
AHEAD = 24 * 3600.0
NOTHING = {"name": "", "list": [-1, ""], "uploads": [], "opted_out": False}


class ParticipationLimits(NamedTuple):
    """How often a device may take part, all runs together."""

    # since its last report
    hours: float
    # MinS, rounds strictly between two
    min_separation: int
    # MaxP, in its lifetime
    max_participations: int


class ParticipationRecordDamaged(TaciturnError):
    """The device cannot know when it took part, and so no longer does."""


class OwnParticipation:
    def __init__(self, folder: Path, limits: ParticipationLimits) -> None:
        self._folder, self._limits = folder, limits
        self._read()

    @property
    def uploads(self) -> list[dict]:
        """Return round and time of each upload, and for its owner the run and the noise row that
        the server named.
        """
        return self._read()["uploads"]

    def why_not(self, round: int) -> str | None:
        """Say why this device does not take part in a round; None if it does."""
        with lock_file(self._folder / LOCK):
            return self._why_not(self._read(), round)

    def enter(self, name: bytes, round: int, number: int, digest: str) -> str | None:
        """Record an attempt before anything is sent in it, or say why not; `number` and `digest`
        are of the list of dismissed devices.
        """
        with lock_file(self._folder / LOCK):
            content = self._read()
            seen, which = content["list"]
            if number < seen or (number == seen and digest != which):
                return (
                    f"this list of dismissed devices has number {number}, and this device was shown"
                    f" another of number {seen}"
                )
            if (
                fields.latest(name, round) > _now() + AHEAD
                # it would answer no other server until then
            ):
                why_not = (
                    "this attempt is dated in the future: the server's clock is wrong, or this"
                    " device's"
                )
            elif name.hex() <= content["name"]:
                why_not = (
                    "names of attempts rise, and it was already asked under this one or a later one"
                )
            else:
                why_not = self._why_not(content, round)
            known = {
                **content,
                "list": [number, digest],
                "name": content["name"] if why_not else name.hex(),
            }
            if known != content:
                self._write(known)
            return why_not

    def upload(self, round: int, run: str, row: int, text: str = "") -> str | None:
        """Record a report before it leaves, or say why it must not; `text` names what it was made
        of.
        """
        with lock_file(self._folder / LOCK):
            content = self._read()
            why_not = self._why_not(content, round)
            if why_not is None:
                content["uploads"].append(
                    {"round": round, "run": run, "row": row, "at": _now(), "text": text}
                )
                self._write(content)
            return why_not

    @property
    def rests_for(self) -> float:
        """Return the seconds until its own timer lets it take part again; 0 if it may now."""
        uploads = self.uploads
        return max(0.0, uploads[-1]["at"] + 3600 * self._limits.hours - _now()) if uploads else 0.0

    def _why_not(self, content: dict, round: int) -> str | None:
        uploads = content["uploads"]
        if content["opted_out"]:
            return "its owner has opted out"
        if uploads and _now() - uploads[-1]["at"] < 3600 * self._limits.hours:
            return f"it rests for {self._limits.hours:g} hours after an upload"
        if len(uploads) >= self._limits.max_participations:
            return (
                f"it took part {len(uploads)} times, as often as it may in all runs"
                " (fleet.lifetime_participations)"
            )
        if uploads and round <= uploads[-1]["round"]:
            return "it already reported to this round or a later one, and reports once to each"
        if uploads and round - uploads[-1]["round"] <= self._limits.min_separation:
            return (
                f"{self._limits.min_separation} rounds must lie between this round and its last,"
                " and do not"
            )
        return None

    def _read(self) -> dict:
        path = self._folder / FILE_NAME
        if not path.exists():
            return {**NOTHING, "uploads": []}
        try:
            content = json.loads(path.read_text())
            (number, digest), uploads, opted_out = (
                content["list"],
                list(content["uploads"]),
                bool(content["opted_out"]),
            )
            return {
                "name": str(content["name"]),
                "list": [int(number), digest],
                "uploads": uploads,
                "opted_out": opted_out,
            }
        except (ValueError, KeyError, TypeError):
            sentence = (
                f"{path} is damaged: this device cannot know when it took part, so it no longer"
                " does"
            )
            raise ParticipationRecordDamaged(sentence) from None

    def _write(self, content: dict) -> None:
        write_atomically(self._folder / FILE_NAME, json.dumps(content).encode(), 0o600)


def used_text(folder: Path) -> str | None:
    """Return the name of the text that the last report was made of."""
    uploads = OwnParticipation(folder, ParticipationLimits(0, 0, 0)).uploads
    return uploads[-1].get("text") if uploads else None


def opt_out(folder: Path) -> None:
    """Record the opt-out, even where the record is damaged or lost."""
    with lock_file(folder / LOCK):
        try:
            content = json.loads((folder / FILE_NAME).read_text())
            known = {**NOTHING, "name": content["name"], "uploads": content["uploads"]}
        except (OSError, ValueError, KeyError, TypeError):
            known = NOTHING
        write_atomically(
            folder / FILE_NAME, json.dumps({**known, "opted_out": True}).encode(), 0o600
        )


def _now() -> float:
    return datetime.now(UTC).timestamp()
