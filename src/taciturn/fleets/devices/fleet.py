"""A fleet of real devices behind a link (Xu et al. 2023, §2.2 and §2.4).

Devices check in, more are asked than are needed, a secure sum is made, and late reports are
discarded.

**Guarantee:** `sum_reports` returns a sum of at least m reports, from which no single one can be
told (secure_aggregation/protocol.py), or `FailedRound`, after which nothing is kept. No sum and no
report is ever on disk, and a report that comes late is never looked at.

A device reports to a round once, and once on a model (own_participation.py). So an attempt that
failed after devices were asked for their reports is repeated with others, also after a crash before
the charge; where there are too few others, the round gets another number and a model that is moved
a little, and the devices' own limits decide who may take part again. A server that kept
the answers of the first attempt would then have two sums about almost one model: this one does not.
Numbers rise with the rows of the noise, and from run to run. A device that breaks
the protocol is excluded from the run's next attempts. Only the curator's record says which devices
took part, and only the private folder which were refused.
"""

import json
import os
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import FailedRound, Key, Message, Program, Report, UserIds
from taciturn.files import write_atomically
from taciturn.fleets.devices import fields
from taciturn.fleets.devices.transport import LOG, Link, LinkError
from taciturn.fleets.secure_aggregation.identities import Authority, EnrolledDevices
from taciturn.fleets.secure_aggregation.messages import Terms
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.fleets.simulation.availability import TooFewDevices
from taciturn.progress import StageProgress

# Seconds for stages without training, at most.
SHORT = 60.0
# Seconds between two queries for devices.
WAIT = 2.0
# By which a model is moved, at most, relative to itself.
MOVE = 2.0**-12
# Files in the private folder.
COUNTS = "counts.json"
NUMBERS = "numbers.json"
LEFT_OUT = "left-out.json"
REFUSED = "refused.log"
ENROLLED = "enrolled"


@dataclass(frozen=True, kw_only=True)
class ConnectedDevices:
    """The devices of a server, connected or not."""

    # On which devices have the numbers of their certificates.
    link: Link
    # At present: devices may be added or dismissed during training.
    enrolled: Callable[[], EnrolledDevices]
    # Who decides which devices are enrolled.
    authority: Authority
    watch: StageProgress = lambda stage, done, all: None


class _Counts(NamedTuple):
    """How many devices were asked for a report, and how many reports arrived in time."""

    asked: int
    reports: int


class _Numbers(NamedTuple):
    """The number by which devices know the round of a row of noise."""

    row: int
    number: int
    # The number under which each device was last asked for a report.
    asked: dict[int, int]
    # The last row whose round was numbered anew, as too few devices were left for it.
    renumbered_row: int | None = None

    def find_resting(self, apart: int) -> set[int]:
        """Return the devices that were asked too few rounds ago to take part in this one."""
        return {device for device, number in self.asked.items() if self.number - number <= apart}

    def forget(self, devices: Collection[int]) -> "_Numbers":
        """Return the same, as if these devices had never been asked."""
        asked = {}
        for device, number in self.asked.items():
            if device not in devices:
                asked[device] = number
        return self._replace(asked=asked)


# It knows who took part, which no log may say.
@dataclass(eq=False, repr=False, kw_only=True)
class DeviceFleet:
    """The server's side of a fleet of devices, as the curator sees it (core.Fleet)."""

    connected: ConnectedDevices
    terms: Terms
    # Devices in a round.
    asked: int
    # Seconds for a report.
    deadline: float
    # Seconds to wait for enough devices.
    patience: float
    # A private one: which device was asked for a report last, and when.
    folder: Path
    # Returns a name that no other run has.
    run_name: Callable[[], str]
    # Returns the row of the noise in the next round.
    next_row: Callable[[], int] = lambda: 0
    # For which a device rests after one (MinS).
    rest_rounds: int = 0
    everyone_reports = False
    # That the last round took.
    _round_seconds: float = SHORT
    # Since when the next sum is awaited.
    _waiting_since: float | None = None
    # Rounds in a row that have failed.
    _failed: int = 0
    # The last cohort, until surplus devices were sent away.
    _summed: UserIds | None = None

    def stats(self) -> dict[str, float]:
        """Count the reports that arrived in time, and the devices that were asked and sent none.

        Failed rounds count too.
        """
        counts = self._read_counts()
        return {"uploads": counts.reports, "dropped_out": counts.asked - counts.reports}

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        """Return those who are connected, rested and allowed.

        Waits until there are enough, and longer after each failed round.

        Args:
            eligible: returns those of some users whom the claim allows to take part.

        Raises:
            TooFewDevices: too few of those enrolled may still take part.
            LinkError: too few were there for as long as the recipe's patience.
        """
        enrolled = self._check_list()
        everyone = np.arange(len(enrolled.certificates))
        allowed = set(eligible(everyone).tolist()) - enrolled.dismissed.devices
        if len(allowed) < self.asked:
            raise TooFewDevices(
                f"{self.asked} devices are asked in a round, and {len(allowed)} of the"
                f" {len(everyone)} that are enrolled may still take part: the others did so as"
                " often as they may, or too few rounds ago, or were dismissed"
            )
        # Not before: the sum is charged by now, so nothing that happens here can lose it.
        if self._summed is not None:
            self._steer(self._summed)
            self._summed = None
        self._renumber_if_few_rested(allowed)
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if self._failed:
            doublings = min(self._failed - 1, 10)
            time.sleep(min(SHORT, WAIT * 2**doublings))
        return self._wait_for_devices(eligible, self._waiting_since)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """Return the sum of the cohort's reports; devices have the program from their own recipe.

        Raises:
            FailedRound: too few devices reported; the next cohort is another.
        """
        del program
        key_words = np.asarray(jax.random.key_data(key)).astype("<u4")
        # A cohort drawn before a crash is asked by number, whether present or not.
        self._check_list()
        began = time.monotonic()
        try:
            values = self._secure_sum(
                row=message.public.row,
                model=fields.arrays_to_bytes(self._message_of(message)),
                cohort=cohort,
                key=key_words.tobytes(),
            )
        except FailedRound as reason:
            self._failed += 1
            LOG.warning(
                "the round has failed, nothing is released, and it is tried again: %s", reason
            )
            raise
        self._round_seconds = time.monotonic() - began
        self._waiting_since = None
        self._failed = 0
        self._summed = cohort
        # The curator reads residues as signed integers.
        update = values.astype(np.uint32).view(np.int32)
        return Report(jnp.asarray(update), jnp.int32(0))

    # Who is there.

    def _check_list(self) -> EnrolledDevices:
        """Refuse a list whose numbers changed during the run: the participation record uses them.

        More devices may be added.
        """
        enrolled = self.connected.enrolled()
        path = self.folder / ENROLLED
        keys = b"".join(certificate.key for certificate in enrolled.certificates)
        if path.exists() and not keys.startswith(path.read_bytes()):
            raise LinkError(
                "the list of enrolled devices was reordered or edited since this run began, where"
                " only appending is allowed: who took part can no longer be checked. Restore the"
                " old list"
            )
        self.folder.mkdir(
            exist_ok=True,
            mode=0o700,
        )
        write_atomically(path, keys, 0o600)
        return enrolled

    def _find_present(self) -> set[int]:
        """Return the devices that are connected and may take part."""
        certificates, dismissed = self.connected.enrolled()
        present = set()
        for device in self.connected.link.devices():
            # A front end may already know of more devices.
            is_enrolled = 0 <= device < len(certificates)
            if is_enrolled and certificates[device].has_time_left:
                present.add(device)
        return present - dismissed.devices - self._read_left_out()

    def _wait_for_devices(self, eligible: Callable[[UserIds], UserIds], since: float) -> UserIds:
        """Ask who is ready, again and again, until enough are."""
        while True:
            ready = eligible(self._check_in())
            self.connected.watch("checked in", len(ready), self.asked)
            is_enough = len(ready) >= self.asked
            if self._failed or not is_enough:
                self._check_patience(time.monotonic() - since, len(ready))
            if is_enough:
                return ready
            time.sleep(WAIT)

    def _check_in(self) -> UserIds:
        """Ask the devices that are present whether they are ready; return those that are."""
        numbers = self._read_numbers(self.next_row())
        number = str(numbers.number).encode()
        question = fields.pack_fields(self.terms.fingerprint, number)
        present = sorted(self._find_present())
        answers = self.connected.link.ask(
            fields.CHECK_IN,
            dict.fromkeys(present, question),
            seconds=min(SHORT, self.deadline),
        )
        ready = set()
        for device, answer in answers.items():
            if answer == fields.READY:
                ready.add(device)
        # They say that their reports have not left.
        unreported = ready & numbers.find_resting(self.rest_rounds)
        if unreported:
            self._write_numbers(numbers.forget(unreported))
        return np.array(sorted(ready), np.int64)

    def _check_patience(self, waited: float, ready: int) -> None:
        """End the run if no round has succeeded for too long."""
        if waited <= self.patience:
            return
        # A resumed run may ask devices again that this one or another run asked.
        self._renumber()
        failed = f", and {self._failed} rounds have failed" if self._failed else ""
        left_out = len(self._read_left_out())
        if left_out:
            failed += f"; {left_out} devices broke the protocol and are left out of this run"
        raise LinkError(
            f"no round has succeeded for {waited:.0f} seconds (fleet.patience): {ready} devices"
            f" are present that may take part, {self.asked} are needed{failed}. Enrol or start"
            " more devices, or let them rest less (fleet.timer_hours,"
            " participation.min_separation) or report more often (fleet.lifetime_participations);"
            " then resume with `taciturn fleet serve … --resume`"
        )

    def _steer(self, cohort: UserIds) -> None:
        """Keep as many waiting devices as a round asks, and tell the others when to return.

        They return spread over as many rounds as it takes to ask them all.
        """
        link = self.connected.link
        connected = set(link.devices())
        waiting = sorted(connected.difference(cohort.tolist()))
        too_many = max(0, len(waiting) - self.asked)
        pace = self._round_seconds * too_many / self.asked
        sent_away = {}
        for device in random.sample(waiting, too_many):
            seconds = random.uniform(0, pace)
            sent_away[device] = fields.SECONDS.pack(seconds)
        if sent_away:
            LOG.info(
                "%d more devices are here than can take part; they will come back later",
                too_many,
            )
            link.ask(
                fields.COME_BACK,
                sent_away,
                seconds=min(SHORT, self.deadline),
            )

    # A round.

    def _secure_sum(self, *, row: int, model: bytes, cohort: UserIds, key: bytes) -> np.ndarray:
        """Take the cohort through the stages of a secure sum, and return it."""
        numbers = self._read_numbers(row)
        if not numbers.find_resting(0).isdisjoint(cohort.tolist()):
            raise FailedRound(
                "its devices were already asked for their reports, and give them once"
            )
        enrolled = self.connected.enrolled()
        dismissed = enrolled.dismissed
        name = fields.new_name()
        run = self.run_name().encode()
        number = str(numbers.number).encode()
        message_hash = fields.message_hash(
            run=run,
            round=number,
            model=model,
            key=key,
        )
        terms = self.terms.for_round(
            name,
            message_hash=message_hash,
            dismissed_hash=dismissed.digest(),
        )
        server = ServerRound(terms, self.connected.authority, dismissed)
        self._invite(
            server=server,
            invitation=fields.pack_fields(name, run, number, message_hash),
            enrolled=enrolled,
            cohort=cohort,
        )
        self._run_stage(server, Stage.SHARE, server.questions(), shared=server.shared)
        self._ask_for_reports(
            server,
            numbers,
            model=model,
            key=key,
        )
        self._count_reports(
            asked=len(cohort),
            reports=server.reports,
        )
        self._run_stage(server, Stage.SIGN, server.questions())
        self._run_stage(server, Stage.UNMASK, server.questions())
        self._leave_out(Stage.UNMASK, server.offenders)
        failed = server.failed_cells
        if failed:
            LOG.warning(
                "%d cells failed, and the round continues without their devices: %s",
                len(failed),
                failed[0],
            )
        return server.total().values

    def _invite(
        self, *, server: ServerRound, invitation: bytes, enrolled: EnrolledDevices, cohort: UserIds
    ) -> None:
        """Ask those of the cohort who are present to advertise, each with its certificate."""
        questions = {}
        for device in sorted(self._find_present().intersection(cohort.tolist())):
            certificate = enrolled.certificates[device].to_bytes()
            questions[device] = invitation + fields.pack_fields(certificate)
        shared = fields.pack_fields(enrolled.dismissed.to_bytes())
        self._run_stage(server, Stage.ADVERTISE, questions, shared=shared)

    def _ask_for_reports(
        self, server: ServerRound, numbers: _Numbers, *, model: bytes, key: bytes
    ) -> None:
        """Send devices what they train on, each with the shares that are for it."""
        questions = {
            device: fields.pack_fields(delivery, key)
            for device, delivery in server.questions().items()
        }
        # On disk before they are asked: after any crash it is known which devices may have sent a
        # report.
        asked = numbers.asked | dict.fromkeys(questions, numbers.number)
        self._write_numbers(numbers._replace(asked=asked))
        self._run_stage(server, Stage.MASK, questions, shared=fields.pack_fields(model))

    def _run_stage(
        self,
        server: ServerRound,
        stage: Stage,
        questions: Mapping[int, bytes],
        shared: bytes = b"",
    ) -> None:
        """Ask, pass the answers to the server's round, and leave out whose answer was refused."""
        kind = stage.question
        # Devices train before they mask their reports.
        is_training = stage == Stage.MASK
        answers = self.connected.link.ask(
            kind,
            questions,
            seconds=self.deadline if is_training else min(SHORT, self.deadline),
            progress=partial(self.connected.watch, kind),
            shared=shared,
        )
        refused = server.take(answers)
        if refused:
            LOG.warning(
                "stage %s: discarded %d of %d malformed answers", kind, len(refused), len(answers)
            )
            self._leave_out(stage, refused)
        self.connected.watch(kind, len(answers) - len(refused), len(questions))

    def _leave_out(self, stage: Stage, offenders: Mapping[int, str]) -> None:
        """Exclude devices from the next attempt on; who and why is only in the private folder."""
        if not offenders:
            return
        with open(self.folder / REFUSED, "a", opener=_open_private) as log:
            for device, why in sorted(offenders.items()):
                log.write(f"{stage.question}: device {device}: {why}\n")
        self._write(LEFT_OUT, sorted(self._read_left_out() | offenders.keys()))

    # What is in the private folder.

    def _read_left_out(self) -> set[int]:
        """Return the devices that broke the protocol in this run."""
        path = self.folder / LEFT_OUT
        return set(json.loads(path.read_text())) if path.exists() else set()

    def _read_counts(self) -> _Counts:
        """Return the counts so far: none if the file is not there yet, or damaged.

        Only a figure depends on it.
        """
        try:
            counts = json.loads((self.folder / COUNTS).read_text())
            return _Counts(
                asked=int(counts["asked"]),
                reports=int(counts["reports"]),
            )
        except (OSError, ValueError, TypeError, KeyError):
            return _Counts(
                asked=0,
                reports=0,
            )

    def _count_reports(self, *, asked: int, reports: int) -> None:
        """Add a round to the counts."""
        before = self._read_counts()
        counts = {"asked": before.asked + asked, "reports": before.reports + reports}
        self._write(COUNTS, counts)

    def _read_numbers(self, row: int) -> _Numbers:
        """Return the number of a row's round, which rises with the rows."""
        path = self.folder / NUMBERS
        if not path.exists():
            return _Numbers(
                row=row,
                number=fields.first_round(),
                asked={},
            )
        last = json.loads(path.read_text())
        number = last["number"] + row - last["row"]
        asked = dict(last["asked"])
        return _Numbers(
            row=row,
            number=number,
            asked=asked,
            # Older versions did not know it.
            renumbered_row=last.get("renumbered_row"),
        )

    def _write_numbers(self, numbers: _Numbers) -> None:
        asked = sorted(numbers.asked.items())
        content = {
            "row": numbers.row,
            "number": numbers.number,
            "asked": asked,
            "renumbered_row": numbers.renumbered_row,
        }
        self._write(NUMBERS, content)

    def _renumber_if_few_rested(self, allowed: set[int]) -> None:
        numbers = self._read_numbers(self.next_row())
        resting = numbers.find_resting(self.rest_rounds)
        rested = allowed - resting - self._read_left_out()
        if resting and len(rested) < self.asked:
            self._renumber()

    def _renumber(self) -> None:
        """Number the round as if all devices had rested.

        Failed attempts may have left too few devices that do not rest.
        """
        numbers = self._read_numbers(self.next_row())
        rested = numbers.number + self.rest_rounds + 1
        number = max(rested, fields.first_round())
        self._write_numbers(numbers._replace(number=number, renumbered_row=numbers.row))

    def _message_of(self, message: Message) -> Message:
        """Return what devices train on: the message, or a little beside it where it was used up."""
        row = message.public.row
        is_used_up = self._read_numbers(row).renumbered_row == row
        # They may have reported on it in another run that began with it.
        may_be_refused = self._failed > 1
        if not (is_used_up or may_be_refused):
            return message
        factor = 1 + MOVE * random.uniform(0.5, 1)
        params = jax.tree.map(lambda leaf: leaf * factor, message.params)
        return message._replace(params=params)

    def _write(self, name: str, content: object) -> None:
        write_atomically(self.folder / name, json.dumps(content).encode(), 0o600)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
