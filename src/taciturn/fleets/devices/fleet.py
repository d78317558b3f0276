"""A fleet of real devices behind a link (Xu et al. 2023, §2.2 and §2.4): check-in, over-selection,
a secure sum, late reports discarded.

**Guarantee:** `sum_reports` returns a sum of at least m reports, from which no single one can be
told (secure_aggregation/protocol.py), or `FailedRound`, after which nothing is kept. No sum and no
report is ever on disk, and a report that comes late is never looked at.

A device reports to a round once (participation_record.py). So an attempt that failed after devices
were asked for their reports is repeated with others, also after a crash before the charge; where
there are too few others, the round gets another number, and the devices' own limits decide who may
take part again. Numbers rise with the rows of the noise, and from run to run. A device that breaks
the protocol is excluded from the run's next attempts. Only the curator's record says which devices
took part, and only the private folder which were refused.
"""

import json
import os
import random
import time
from collections.abc import Callable, Mapping
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
from taciturn.fleets.simulation.availability import TooFewDevices
from taciturn.progress import StageProgress

# seconds for stages without training, at most
SHORT = 60.0
COUNTS, NUMBERS, LEFT_OUT = "counts.json", "numbers.json", "left-out.json"
# seconds between two queries for devices
WAIT = 2.0


@dataclass(frozen=True, kw_only=True)
class ConnectedDevices:
    """The devices of a server, connected or not."""

    # on which devices have the numbers of their certificates
    link: Link
    # at present: devices may be added or dismissed during training
    enrolled: Callable[[], EnrolledDevices]
    # that decides so
    authority: Authority
    watch: StageProgress = lambda stage, done, all: None


# it knows who took part, which no log may say
@dataclass(eq=False, repr=False, kw_only=True)
class DeviceFleet:
    connected: ConnectedDevices
    terms: Terms
    # devices in a round
    asked: int
    # seconds for a report
    deadline: float
    # seconds to wait for enough devices
    patience: float
    # a private one: which device was asked for a report last, and when
    folder: Path
    # a name that no other run has
    run_name: Callable[[], str]
    # of the noise in the next round
    next_row: Callable[[], int] = lambda: 0
    # rounds for which a device rests after one (MinS)
    rest_rounds: int = 0
    everyone_reports = False
    # that the last one took
    _round_seconds: float = SHORT
    # for the next sum
    _waiting_since: float | None = None
    # rounds in a row
    _failed: int = 0
    # the last cohort, until surplus devices were sent away
    _summed: UserIds | None = None

    def stats(self) -> dict[str, float]:
        """Count the reports that arrived in time, also in failed rounds, and the devices that were
        asked for one and sent none.
        """
        asked, reports = self._counted()
        return {"uploads": reports, "dropped_out": asked - reports}

    def _counted(self) -> tuple[int, int]:
        try:
            counts = json.loads((self.folder / COUNTS).read_text())
            return int(counts["asked"]), int(counts["reports"])
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            # not yet, or damaged: only a figure depends on it
        ):
            return 0, 0

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        """Return those who are connected, rested and allowed; wait until there are enough, and
        longer after each failed round.
        """
        certificates, dismissed = self._check_list()
        allowed = set(eligible(np.arange(len(certificates))).tolist()) - dismissed.devices
        if (left := len(allowed)) < self.asked:
            few = (
                f"{self.asked} devices are asked in a round, and {left} of the {len(certificates)}"
                " that are enrolled may still take part"
            )
            raise TooFewDevices(
                f"{few}: the others did so as often as they may, or too few rounds ago, or were"
                " dismissed"
            )
        if (
            self._summed is not None
            # not before: the sum is charged by now, so nothing that happens here can lose it
        ):
            self._steer(self._summed)
            self._summed = None
        resting = self._numbers(self.next_row()).resting(self.rest_rounds)
        if resting and len(allowed - resting - self._left_out()) < self.asked:
            self._renumber()
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if self._failed:
            time.sleep(min(SHORT, WAIT * 2 ** min(self._failed - 1, 10)))
        while True:
            ready = eligible(self._checked_in())
            self.connected.watch("checked in", len(ready), self.asked)
            if self._failed or len(ready) < self.asked:
                self._raise_if_waited_too_long(time.monotonic() - self._waiting_since, len(ready))
            if len(ready) >= self.asked:
                return ready
            time.sleep(WAIT)

    def _raise_if_waited_too_long(self, waited: float, ready: int) -> None:
        if waited > self.patience:
            # a resumed run may ask devices again that this one or another run asked
            self._renumber()
            failed = f", and {self._failed} rounds have failed" if self._failed else ""
            if left_out := len(self._left_out()):
                failed += f"; {left_out} devices broke the protocol and are left out of this run"
            since = (
                f"no round has succeeded for {waited:.0f} seconds (fleet.patience): {ready} devices"
                " are present that may take part"
            )
            rest = (
                "let them rest less (fleet.timer_hours, participation.min_separation) or report"
                " more often"
            )
            more = f"Enrol or start more devices, or {rest} (fleet.lifetime_participations)"
            to_do = f"{more}; then resume with `taciturn fleet serve … --resume`"
            raise LinkError(f"{since}, {self.asked} are needed{failed}. {to_do}")

    def _check_list(self) -> EnrolledDevices:
        """Refuse a list whose numbers changed during the run: the participation record uses them.
        More devices may be added.
        """
        enrolled, path = self.connected.enrolled(), self.folder / "enrolled"
        now = b"".join(one.key for one in enrolled.certificates)
        if path.exists() and not now.startswith(path.read_bytes()):
            edited = (
                "the list of enrolled devices was reordered or edited since this run began, where"
                " only appending is allowed"
            )
            raise LinkError(
                f"{edited}: who took part can no longer be checked. Restore the old list"
            )
        self.folder.mkdir(exist_ok=True, mode=0o700)
        write_atomically(path, now, 0o600)
        return enrolled

    def _present(self) -> set[int]:
        """Return the devices that are connected and may take part."""
        certificates, dismissed = self.connected.enrolled()
        # a front end may already know of more
        here = {one for one in self.connected.link.devices() if 0 <= one < len(certificates)}
        return (
            {one for one in here if certificates[one].lasts} - dismissed.devices - self._left_out()
        )

    def _checked_in(self) -> UserIds:
        numbers = self._numbers(self.next_row())
        content = fields.pack_fields(self.terms.fingerprint, str(numbers.number).encode())
        answers = self.connected.link.ask(
            fields.CHECK_IN,
            dict.fromkeys(sorted(self._present()), content),
            min(SHORT, self.deadline),
        )
        ready = {one for one, answer in answers.items() if answer == fields.READY}
        # they say that their reports have not left
        if lost := ready & numbers.resting(self.rest_rounds):
            asked = {
                device: number for device, number in numbers.asked.items() if device not in lost
            }
            self._keep(numbers._replace(asked=asked))
        return np.array(sorted(ready), np.int64)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        # devices have it from their own recipe
        del program
        key_bytes = np.asarray(jax.random.key_data(key)).astype("<u4").tobytes()
        # a cohort drawn before a crash is asked by number, whether present or not
        self._check_list()
        began = time.monotonic()
        try:
            values = self._secure_sum(
                int(message.public.round), fields.arrays_to_bytes(message), cohort, key_bytes
            )
        except FailedRound as reason:
            self._failed += 1
            LOG.warning(
                "the round has failed, nothing is released, and it is tried again: %s", reason
            )
            raise
        self._waiting_since, self._failed, self._round_seconds = None, 0, time.monotonic() - began
        self._summed = cohort
        return Report(jnp.asarray(values.astype(np.uint32).view(np.int32)), jnp.int32(0))

    def _numbers(self, row: int) -> "_Numbers":
        path = self.folder / NUMBERS
        if not path.exists():
            return _Numbers(row, fields.first_round(), {})
        last = json.loads(path.read_text())
        return _Numbers(row, last["number"] + row - last["row"], dict(last["asked"]))

    def _keep(self, numbers: "_Numbers") -> None:
        self._write(
            NUMBERS,
            {"row": numbers.row, "number": numbers.number, "asked": sorted(numbers.asked.items())},
        )

    def _write(self, name: str, content: object) -> None:
        write_atomically(self.folder / name, json.dumps(content).encode(), 0o600)

    def _renumber(self) -> None:
        """Number the round as if all devices had rested, where failed attempts left too few devices
        that do not rest.
        """
        numbers = self._numbers(self.next_row())
        self._keep(
            numbers._replace(
                number=max(numbers.number + self.rest_rounds + 1, fields.first_round())
            )
        )

    def _steer(self, cohort: UserIds) -> None:
        """Keep as many waiting devices as a round asks, and tell the others when to return, a
        round's worth at a time.
        """
        waiting = sorted(set(self.connected.link.devices()) - set(cohort.tolist()))
        too_many = max(0, len(waiting) - self.asked)
        pace = self._round_seconds * too_many / self.asked
        sent_away = {
            device: fields.SECONDS.pack(random.uniform(0, pace))
            for device in random.sample(waiting, too_many)
        }
        if sent_away:
            LOG.info(
                "%d more devices are here than can take part; they are told to come back later",
                too_many,
            )
            self.connected.link.ask(fields.COME_BACK, sent_away, min(SHORT, self.deadline))

    def _secure_sum(self, row: int, model: bytes, cohort: UserIds, key: bytes) -> np.ndarray:
        numbers = self._numbers(row)
        if not numbers.resting(0).isdisjoint(cohort.tolist()):
            raise FailedRound(
                "its devices were already asked for their reports, and give them once"
            )
        certificates, dismissed = self.connected.enrolled()
        name, run, number = (
            fields.new_name(),
            self.run_name().encode(),
            str(numbers.number).encode(),
        )
        about = fields.message_hash(run, number, model, key)
        terms = self.terms.for_round(name, message_hash=about, dismissed_hash=dismissed.digest())
        server = ServerRound(terms, self.connected.authority, dismissed)
        stage = partial(self._stage, server)
        asked = fields.pack_fields(name, run, number, about)
        present = sorted(self._present().intersection(cohort.tolist()))
        theirs = {
            device: asked + fields.pack_fields(certificates[device].to_bytes())
            for device in present
        }
        stage(fields.ADVERTISE, theirs, fields.pack_fields(dismissed.to_bytes()))
        stage(fields.SHARE, server.questions(), server.shared)
        deliveries = {
            device: fields.pack_fields(delivery, key)
            for device, delivery in server.questions().items()
        }
        # On disk before they are asked: after any crash it is known which devices may have sent a
        # report.
        self._keep(
            numbers._replace(asked=numbers.asked | dict.fromkeys(deliveries, numbers.number))
        )
        stage(fields.REPORT, deliveries, fields.pack_fields(model))
        before, reports = self._counted()
        self._write(COUNTS, {"asked": before + len(cohort), "reports": reports + server.reports})
        stage(fields.SIGN, server.questions())
        stage(fields.UNMASK, server.questions())
        self._leave_out(fields.UNMASK, server.broke)
        if failed := server.failed_cells:
            LOG.warning(
                "%d cells failed, and the round continues without their devices: %s",
                len(failed),
                failed[0],
            )
        return server.total().values

    def _stage(
        self, server: ServerRound, kind: str, questions: Mapping[int, bytes], shared: bytes = b""
    ) -> None:
        """Ask, and pass the answers to the server's round."""
        seconds = self.deadline if kind == fields.REPORT else min(SHORT, self.deadline)
        answers = self.connected.link.ask(
            kind, questions, seconds, progress=partial(self.connected.watch, kind), shared=shared
        )
        refused = server.take(answers)
        if refused:
            LOG.warning(
                "stage %s: discarded %d of %d malformed answers", kind, len(refused), len(answers)
            )
            self._leave_out(kind, refused)
        self.connected.watch(kind, len(answers) - len(refused), len(questions))

    def _left_out(self) -> set[int]:
        """Return the devices that broke the protocol in this run."""
        path = self.folder / LEFT_OUT
        return set(json.loads(path.read_text())) if path.exists() else set()

    def _leave_out(self, kind: str, broke: Mapping[int, str]) -> None:
        """Exclude devices from the next attempt on; who and why is only in the private folder."""
        if broke:
            with open(
                self.folder / "refused.log",
                "a",
                opener=lambda path, flags: os.open(path, flags, 0o600),
            ) as log:
                log.writelines(
                    f"{kind}: device {device}: {why}\n" for device, why in sorted(broke.items())
                )
            self._write(LEFT_OUT, sorted(self._left_out() | broke.keys()))


class _Numbers(NamedTuple):
    """The number by which devices know the round of a row, and the number under which each of them
    was last asked for a report.
    """

    row: int
    number: int
    asked: dict[int, int]

    def resting(self, apart: int) -> set[int]:
        """Return the devices that were asked too few rounds ago to take part in this one."""
        return {device for device, number in self.asked.items() if self.number - number <= apart}
