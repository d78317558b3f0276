"""A simulated fleet that is not always there: devices check in when they can, keep their own
timers, and drop out (Xu et al. 2023, §2.2).

The sum is that of a fleet whose users are always there; this decides whose reports are in it. The
server asks more devices than it needs; between the report goal m and the cap n_max reports are
summed, and with fewer than m the round fails.
"""

import io
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from taciturn.core import FailedRound, Fleet, Key, Message, Program, Report, UserIds
from taciturn.files import write_atomically
from taciturn.fleets.simulation.availability import Clock


class CheckInFleet:
    everyone_reports = False

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        report_goal: int,
        asked: int,
        most_reports: int,
        path: Path,
    ) -> None:
        """`path` keeps the devices' state: a server that crashes does not reset their timers."""
        self._fleet, self._clock, self._path = fleet, clock, path
        self._goal, self._asked, self._most_reports = report_goal, asked, most_reports
        # round in which the devices already took part
        self._last: int | None = None
        # reports that were sent, summed or not
        self.uploads = 0
        if path.exists():
            saved = np.load(io.BytesIO(path.read_bytes()))
            self._last, self.uploads = int(saved["last"]), int(saved["uploads"])
            clock.restore(saved)

    def stats(self) -> dict[str, float]:
        return {"uploads": self.uploads, "days": self._clock.hour / 24}

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return self._clock.gather(self._asked, eligible)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        reports = self._reports(cohort, key)
        if len(reports) < self._goal:
            raise FailedRound(
                f"{len(reports)} of {len(cohort)} devices reported; {self._goal} are needed"
            )
        return self._fleet.sum_reports(
            program, message, np.sort(reports[: self._most_reports]), key
        )

    def _reports(self, cohort: UserIds, key: Key) -> UserIds:
        """Derive who reports from the key alone, so that a round summed again after a crash has the
        same total.
        """
        words = np.asarray(jax.random.key_data(key)).ravel().tolist()
        name, generator = words[0] << 32 | words[1], np.random.default_rng(words)
        reports = self._clock.devices.reporting(cohort, generator)
        if name != self._last:
            self._clock.upload(cohort, reports, self._goal, generator)
            self.uploads += len(reports)
            self._save(name)
        return reports

    def _save(self, last: int) -> None:
        self._last, content = last, io.BytesIO()
        state = {"last": np.uint64(last), "uploads": np.int64(self.uploads), **self._clock.state()}
        np.savez(content, allow_pickle=False, **state)
        write_atomically(self._path, content.getvalue(), 0o600)
