"""A device's own record of when it took part, in its own file.

Whatever a server forgets or claims, the device rests.

**Guarantee:** a report is on record, synced, before it leaves, and uses up its round for good: the
device reports only to rounds above it, whatever is retried and whatever crashes. Names of attempts
rise too, and are on record before the device sends anything: it answers none twice. So is the
highest list of dismissed devices that it was shown: it accepts no lower one, and no other of that
number. Hours since the last report, rounds between two, and the number of reports are counted over
all runs and servers. So are models: whatever a round is called, the device reports on a model once.

**Assumes:** the folder is not restored from an older copy, and the device's clock goes forward. The
server numbers rounds: how many of them lie between two reports is its claim. The device itself
counts hours and reports.

An opt-out is for good. The file is read each time, under a lock: another process on the same
folder, or its owner's `--opt-out`, may have written to it.
"""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from taciturn.errors import TaciturnError
from taciturn.files import lock_file, write_atomically
from taciturn.fleets.devices import fields

FILE_NAME = "participation.json"
LOCK = "participation.lock"
# Seconds by which a server's clock may be ahead.
AHEAD = 24 * 3600.0


class ParticipationLimits(NamedTuple):
    """How often a device may take part, all runs together."""

    # Since its last report.
    hours: float
    # MinS, rounds strictly between two.
    min_separation: int
    # MaxP, in its lifetime.
    max_participations: int


class ParticipationRecordDamaged(TaciturnError):
    """The device cannot know when it took part, and so no longer does."""


@dataclass(frozen=True, kw_only=True)
class _Record:
    """What is in the file."""

    # The highest name of an attempt that the device answered, in hexadecimal.
    name: str = ""
    # The highest list of dismissed devices that it was shown.
    list_number: int = -1
    list_digest: str = ""
    # Of each report: its round, when it left and the digest of the model that it is about, and for
    # the owner run, row and text.
    uploads: list[dict[str, Any]] = field(default_factory=list)
    has_opted_out: bool = False

    @classmethod
    def from_json(cls, content: str) -> Self:
        """Read a record; ValueError, KeyError or TypeError if it is damaged."""
        values = json.loads(content)
        number, digest = values["list"]
        return cls(
            name=str(values["name"]),
            list_number=int(number),
            list_digest=digest,
            uploads=list(values["uploads"]),
            has_opted_out=bool(values["opted_out"]),
        )

    def to_json(self) -> str:
        """Write the record."""
        return json.dumps(
            {
                "name": self.name,
                "list": [self.list_number, self.list_digest],
                "uploads": self.uploads,
                "opted_out": self.has_opted_out,
            }
        )


class OwnParticipation:
    """A device's own participation, in a folder of its own."""

    def __init__(self, folder: Path, limits: ParticipationLimits) -> None:
        """Open the record, or start one.

        Raises:
            ParticipationRecordDamaged: what is there cannot be read.
        """
        self._folder = folder
        self._limits = limits
        self._read()

    @property
    def uploads(self) -> list[dict]:
        """Return round and time of each upload.

        For its owner there are also the run and the noise row that the server named.
        """
        return self._read().uploads

    @property
    def rest_seconds(self) -> float:
        """Return the seconds until its own timer lets it take part again; 0 if it may now."""
        uploads = self.uploads
        if not uploads:
            return 0.0
        ends = uploads[-1]["at"] + 3600 * self._limits.hours
        return max(0.0, ends - _now())

    def why_not(self, round: int) -> str | None:
        """Say why this device does not take part in a round; None if it does."""
        with lock_file(self._folder / LOCK):
            return self._why_not_round(self._read(), round)

    def enter(self, *, name: bytes, round: int, list_number: int, list_digest: str) -> str | None:
        """Record an attempt before anything is sent in it, or say why not.

        Args:
            name: of the attempt.
            round: the number of the round.
            list_number: of the list of dismissed devices.
            list_digest: the hash of that list.
        """
        with lock_file(self._folder / LOCK):
            record = self._read()
            is_older = list_number < record.list_number
            is_another = list_number == record.list_number and list_digest != record.list_digest
            if is_older or is_another:
                return (
                    f"this list of dismissed devices has number {list_number}, and this device was"
                    f" shown another of number {record.list_number}"
                )
            why_not = self._why_not_attempt(record, name, round)
            entered = replace(
                record,
                list_number=list_number,
                list_digest=list_digest,
                name=record.name if why_not else name.hex(),
            )
            if entered != record:
                self._write(entered)
            return why_not

    def why_not_model(self, digest: str) -> str | None:
        """Say why this device does not report on a model; None if it does."""
        with lock_file(self._folder / LOCK):
            return _why_not_model(self._read(), digest)

    def upload(self, *, round: int, model: str, run: str, row: int, text: str = "") -> str | None:
        """Record a report before it leaves, or say why it must not.

        Args:
            round: the number of the round, which the report uses up.
            model: the digest of the model that it is about, which the report uses up too.
            run: the name of the run.
            row: of the noise.
            text: the name of what the report was made of.
        """
        with lock_file(self._folder / LOCK):
            record = self._read()
            why_not = self._why_not_round(record, round) or _why_not_model(record, model)
            if why_not is None:
                upload = {
                    "round": round,
                    "model": model,
                    "run": run,
                    "row": row,
                    "at": _now(),
                    "text": text,
                }
                uploads = [*record.uploads, upload]
                self._write(replace(record, uploads=uploads))
            return why_not

    def _why_not_attempt(self, record: _Record, name: bytes, round: int) -> str | None:
        # The device would answer no other server until then.
        if fields.latest_time(name, round) > _now() + AHEAD:
            return (
                "this attempt is dated in the future: the server's clock is wrong, or this device's"
            )
        if name.hex() <= record.name:
            return "names of attempts rise, and it was already asked under this one or a later one"
        return self._why_not_round(record, round)

    def _why_not_round(self, record: _Record, round: int) -> str | None:
        if record.has_opted_out:
            return "its owner has opted out"
        uploads = record.uploads
        has_reported = bool(uploads)
        last = uploads[-1] if uploads else {}
        # An upload that says nothing is a damaged record, under which the device fails.
        if has_reported and _now() - last["at"] < 3600 * self._limits.hours:
            return f"it rests for {self._limits.hours:g} hours after an upload"
        if len(uploads) >= self._limits.max_participations:
            return (
                f"it took part {len(uploads)} times, as often as it may in all runs"
                " (fleet.lifetime_participations)"
            )
        if has_reported and round <= last["round"]:
            return "it already reported to this round or a later one, and reports once to each"
        if has_reported and round - last["round"] <= self._limits.min_separation:
            return (
                f"{self._limits.min_separation} rounds must lie between this round and its last,"
                " and do not"
            )
        return None

    def _read(self) -> _Record:
        path = self._folder / FILE_NAME
        if not path.exists():
            return _Record()
        try:
            return _Record.from_json(path.read_text())
        except (ValueError, KeyError, TypeError):
            raise ParticipationRecordDamaged(
                f"{path} is damaged: this device cannot know when it took part, so it no longer"
                " does"
            ) from None

    def _write(self, record: _Record) -> None:
        _write_record(self._folder, record)


def _why_not_model(record: _Record, digest: str) -> str | None:
    # Records of older versions name no models.
    if any(upload.get("model") == digest for upload in record.uploads):
        return (
            "it already reported on this model, and reports once on each: two sums about one model,"
            " of which one lacks a device, give away what that device reported"
        )
    return None


def read_used_text(folder: Path) -> str | None:
    """Return the name of the text that the last report was made of."""
    no_limits = ParticipationLimits(
        hours=0,
        min_separation=0,
        max_participations=0,
    )
    uploads = OwnParticipation(folder, no_limits).uploads
    return uploads[-1].get("text") if uploads else None


def opt_out(folder: Path) -> None:
    """Record the opt-out, even where the record is damaged or lost."""
    with lock_file(folder / LOCK):
        try:
            values = json.loads((folder / FILE_NAME).read_text())
            record = _Record(
                name=values["name"],
                uploads=values["uploads"],
                has_opted_out=True,
            )
        except (OSError, ValueError, KeyError, TypeError):
            record = _Record(has_opted_out=True)
        _write_record(folder, record)


def _write_record(folder: Path, record: _Record) -> None:
    write_atomically(folder / FILE_NAME, record.to_json().encode(), 0o600)


def _now() -> float:
    return datetime.now(UTC).timestamp()
