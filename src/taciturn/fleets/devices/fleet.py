"""A fleet of real devices behind a link (Xu et al. 2023, §2.2 and §2.4): check-in, over-selection, a secure sum, late reports discarded.

**Guarantee:** what `sum_reports` returns is a sum of at least m reports that no single one can be told from
(secure_aggregation/protocol.py), or
`FailedRound`, after which nothing is kept. No sum and no report is ever on disk, and no report that comes late is ever looked at.

A device reports to a round once (participation_record.py). So an attempt that failed after devices were asked for their
reports goes on with others, also
where it failed because the server was killed before its sum was charged; where there are too few others, the round gets another number, and
it is the devices' own limits that say who may take part again. Numbers rise with the rows of the noise, and from run to run. A device that
breaks the protocol is left out of the run's next attempts.

Which devices took part is known to the curator's log and to nobody else: messages about single ones go to a file in the private folder.
"""

import json
import os
import random
import time
from collections.abc import Callable, Mapping
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
from taciturn.fleets.secure_aggregation.identities import Authority, Enrolled, Trust
from taciturn.fleets.secure_aggregation.messages import Terms
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.fleets.simulation.availability import TooFewDevices
from taciturn.progress import StageProgress

SHORT = 60.0  # seconds for stages in which nobody trains, at most
COUNTS, NUMBERS, LEFT_OUT = "counts.json", "numbers.json", "left-out.json"
WAIT = 2.0  # seconds between two calls for devices


class Connected(NamedTuple):
    """The devices of a server, connected or not."""

    link: Link  # on which devices have the numbers of their certificates
    enrolled: Callable[[], Enrolled]  # those of now: more may come, and some be dismissed, while it trains
    authority: Authority  # that says so
    watch: StageProgress = lambda stage, done, all: None


class DeviceFleet:
    everyone_reports = False

    def __init__(
        self,
        connected: Connected,
        agreement: Terms,
        asked: int,
        deadline: float,
        patience: float,
        folder: Path,
        run: Callable[[], str],
        row: Callable[[], int] = lambda: 0,
        apart: int = 0,
    ) -> None:
        """`deadline` is in seconds for a report, `patience` until so many are there. `folder` keeps who was asked for a report last,
        and when. `run` is a name that no other run has, `row` that of the noise which the next round takes, `apart` for how many rounds a
        device rests after one (MinS)."""
        self._row, self._apart = row, apart
        self._link, self._enrolled, self._authority = connected.link, connected.enrolled, connected.authority
        self._agreement, self._watch = agreement, connected.watch
        self._asked, self._deadline, self._patience, self._folder, self._run = asked, deadline, patience, folder, run
        self._round_seconds = min(SHORT, deadline)  # how long the last one took
        self._waiting_since: float | None = None  # for the next sum
        self._failed = 0  # rounds in a row
        self._summed: UserIds | None = None  # the cohort since which nobody was sent away

    def stats(self) -> dict[str, float]:
        """Reports that came in time, in all of the run's rounds, failed ones too; and devices that were asked for one, and sent none."""
        counted = self._counted()
        return {"uploads": counted["reports"], "dropped_out": counted["asked"] - counted["reports"]}

    def _counted(self) -> dict[str, int]:
        try:
            counts = json.loads((self._folder / COUNTS).read_text())
            return {"asked": int(counts["asked"]), "reports": int(counts["reports"])}
        except (OSError, ValueError, TypeError, KeyError):  # not yet, or damaged: nothing but a figure depends on it
            return {"asked": 0, "reports": 0}

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        """Those who are connected, rested and allowed; waits until they are enough, and longer each time that a round has failed."""
        certificates, dismissed = self._check_list()
        allowed = set(eligible(np.arange(len(certificates))).tolist()) - dismissed.devices
        if (left := len(allowed)) < self._asked:
            raise TooFewDevices(
                f"{self._asked} devices are asked in a round, and {left} of the {len(certificates)} that are enrolled may still take part: "
                "the others did so as often as they may, or too few rounds ago, or were dismissed"
            )
        if self._summed is not None:  # not before: the sum is charged by now, and whatever happens here it is not lost
            self._steer(self._summed)
            self._summed = None
        resting = self._numbers(self._row()).resting(self._apart)
        if resting and len(allowed - resting - self._left_out()) < self._asked:
            self._renumber()
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if self._failed:
            time.sleep(min(SHORT, WAIT * 2 ** min(self._failed - 1, 10)))
        while True:
            ready = eligible(self._checked_in())
            self._watch("checked in", len(ready), self._asked)
            if self._failed or len(ready) < self._asked:
                self._raise_if_waited_too_long(time.monotonic() - self._waiting_since, len(ready))
            if len(ready) >= self._asked:
                return ready
            time.sleep(WAIT)

    def _raise_if_waited_too_long(self, waited: float, ready: int) -> None:
        if waited > self._patience:
            self._renumber()  # whoever goes on may ask again whom it asked before, and whom another run asked meanwhile
            failed = f", and {self._failed} rounds have failed" if self._failed else ""
            if left_out := len(self._left_out()):
                failed += f"; {left_out} devices broke the protocol and are left out of this run"
            raise LinkError(
                f"no round has come about for {waited:.0f} seconds (fleet.patience): {ready} devices are there that may take part, "
                f"{self._asked} are needed{failed}. Enrol or start more devices, or let them rest less (fleet.timer_hours, "
                "participation.min_separation) or report more often in their lives (fleet.lifetime_participations); then go on with "
                "`taciturn fleet serve … --resume`"
            )

    def _check_list(self) -> Enrolled:
        """The log knows devices by their numbers: those must not change during a run. More may come."""
        enrolled, path = self._enrolled(), self._folder / "enrolled"
        now = b"".join(one.key for one in enrolled.certificates)
        if path.exists() and not now.startswith(path.read_bytes()):
            raise LinkError(
                "the list of enrolled devices was reordered or edited since this run began, where only appending is allowed: who took part "
                "can no longer be checked. Restore the old list"
            )
        self._folder.mkdir(exist_ok=True, mode=0o700)
        write_atomically(path, now, 0o600)
        return enrolled

    def _present(self) -> set[int]:
        """Who is connected and may take part."""
        certificates, dismissed = self._enrolled()
        here = {one for one in self._link.devices() if 0 <= one < len(certificates)}  # a front end may know of more already
        return {one for one in here if certificates[one].lasts} - dismissed.devices - self._left_out()

    def _checked_in(self) -> UserIds:
        numbers = self._numbers(self._row())
        content = fields.pack_fields(self._agreement.fingerprint, str(numbers.number).encode())
        answers = self._link.ask(fields.CHECK_IN, dict.fromkeys(sorted(self._present()), content), min(SHORT, self._deadline))
        ready = {one for one, answer in answers.items() if answer == fields.READY}
        if lost := ready & numbers.resting(self._apart):  # they say that their reports have not left
            asked = {device: number for device, number in numbers.asked.items() if device not in lost}
            self._keep(numbers._replace(asked=asked))
        return np.array(sorted(ready), np.int64)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        del program  # devices have it from their own recipe
        key_bytes = np.asarray(jax.random.key_data(key)).astype("<u4").tobytes()
        self._check_list()  # a cohort that was drawn before a crash is asked by its numbers, without looking who is there
        began = time.monotonic()
        try:
            values = self._secure_sum(int(message.public.round), fields.arrays_to_bytes(message), cohort, key_bytes)
        except FailedRound as reason:
            self._failed += 1
            LOG.warning("the round has failed, nothing is released, and it is tried again: %s", reason)
            raise
        self._waiting_since, self._failed, self._round_seconds = None, 0, time.monotonic() - began
        self._summed = cohort
        return Report(jnp.asarray(values.astype(np.uint32).view(np.int32)), jnp.int32(0))

    def _numbers(self, row: int) -> "_Numbers":
        path = self._folder / NUMBERS
        if not path.exists():
            return _Numbers(row, fields.first_round(), {})
        last = json.loads(path.read_text())
        return _Numbers(row, last["number"] + row - last["row"], dict(last["asked"]))

    def _keep(self, numbers: "_Numbers") -> None:
        content = {"row": numbers.row, "number": numbers.number, "asked": sorted(numbers.asked.items())}
        write_atomically(self._folder / NUMBERS, json.dumps(content).encode(), 0o600)

    def _renumber(self) -> None:
        """Where too few are left who do not rest, from attempts that failed too, the round gets a number as if all had."""
        numbers = self._numbers(self._row())
        self._keep(numbers._replace(number=max(numbers.number + self._apart + 1, fields.first_round())))

    def _steer(self, cohort: UserIds) -> None:
        """Steer the pace: keep as many waiting devices as a round asks, and tell the others when to return, a round's worth at a time."""
        waiting = sorted(set(self._link.devices()) - set(cohort.tolist()))
        too_many = max(0, len(waiting) - self._asked)
        pace = self._round_seconds * too_many / self._asked
        sent_away = {device: fields.seconds_to_bytes(random.uniform(0, pace)) for device in random.sample(waiting, too_many)}
        if sent_away:
            LOG.info("%d devices more are here than can take part, and are told to come back later", too_many)
            self._link.ask(fields.COME_BACK, sent_away, min(SHORT, self._deadline))

    def _secure_sum(self, row: int, model: bytes, cohort: UserIds, key: bytes) -> np.ndarray:
        numbers = self._numbers(row)
        if not numbers.resting(0).isdisjoint(cohort.tolist()):
            raise FailedRound("its devices were asked for their reports before, and give them once")
        certificates, dismissed = self._enrolled()
        name, run, number = fields.new_name(), self._run().encode(), str(numbers.number).encode()
        about = fields.message_hash(run, number, model, key)
        terms = self._agreement._replace(round=name, message=about, dismissed=dismissed.digest())
        server = ServerRound(terms, Trust(self._authority, dismissed))
        stage = partial(self._stage, server)
        asked = fields.pack_fields(name, run, number, about)
        present = sorted(self._present().intersection(cohort.tolist()))
        theirs = {device: asked + fields.pack_fields(certificates[device].to_bytes()) for device in present}
        stage(fields.ADVERTISE, theirs, fields.pack_fields(dismissed.to_bytes()))
        stage(fields.SHARE, server.questions(), server.shared)
        deliveries = {device: fields.pack_fields(delivery, key) for device, delivery in server.questions().items()}
        # On disk before they are asked: who may have sent a report is known after any crash.
        self._keep(numbers._replace(asked=numbers.asked | dict.fromkeys(deliveries, numbers.number)))
        stage(fields.REPORT, deliveries, fields.pack_fields(model))
        before = self._counted()
        counts = {"asked": before["asked"] + len(cohort), "reports": before["reports"] + server.reports}
        write_atomically(self._folder / COUNTS, json.dumps(counts).encode(), 0o600)
        stage(fields.SIGN, server.questions())
        stage(fields.UNMASK, server.questions())
        self._leave_out(fields.UNMASK, server.broke)
        if failed := server.failed_cells:
            LOG.warning("%d cells failed, and the round continues without their devices: %s", len(failed), failed[0])
        return server.total().values

    def _stage(self, server: ServerRound, kind: str, questions: Mapping[int, bytes], shared: bytes = b"") -> None:
        """Ask, and let the server take what comes."""
        seconds = self._deadline if kind == fields.REPORT else min(SHORT, self._deadline)
        answers = self._link.ask(kind, questions, seconds, progress=lambda done, all: self._watch(kind, done, all), shared=shared)
        refused = server.take(answers)
        if refused:
            LOG.warning("stage %s: discarded %d of %d malformed answers", kind, len(refused), len(answers))
            self._leave_out(kind, refused)
        self._watch(kind, len(answers) - len(refused), len(questions))

    def _left_out(self) -> set[int]:
        """Devices that broke the protocol in this run."""
        path = self._folder / LEFT_OUT
        return set(json.loads(path.read_text())) if path.exists() else set()

    def _leave_out(self, kind: str, broke: Mapping[int, str]) -> None:
        """From the next attempt on. Who, and why, is said in the private folder alone."""
        if broke:
            with open(self._folder / "refused.log", "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
                log.writelines(f"{kind}: device {device}: {why}\n" for device, why in sorted(broke.items()))
            left_out = sorted(self._left_out() | broke.keys())
            write_atomically(self._folder / LEFT_OUT, json.dumps(left_out).encode(), 0o600)


class _Numbers(NamedTuple):
    """By what number devices know the round of a row, and under which each of them was asked for a report last."""

    row: int
    number: int
    asked: dict[int, int]

    def resting(self, apart: int) -> set[int]:
        """Who was asked too few rounds ago to take part in this one."""
        return {device for device, number in self.asked.items() if self.number - number <= apart}
