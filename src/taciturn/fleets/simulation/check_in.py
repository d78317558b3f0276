"""A simulated fleet that is not always there: devices check in, keep timers, and drop out.

The sum is that of a fleet whose users are always there; this decides whose reports are in it (Xu et
al. 2023, §2.2). The server asks more devices than it needs; between the report goal m and the cap
n_max reports are summed, and with fewer than m the round fails.
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
        *,
        fleet: Fleet,
        clock: Clock,
        report_goal: int,
        asked: int,
        most_reports: int,
        path: Path,
    ) -> None:
        """Open the fleet, with the devices' state if there is one.

        Args:
            fleet: Sums the reports.
            clock: Decides who is there.
            report_goal: m: with fewer reports a round fails.
            asked: How many devices a round asks.
            most_reports: n_max: no more reports are summed.
            path: Keeps the devices' state: a server that crashes does not reset their timers.
        """
        self._fleet = fleet
        self._clock = clock
        self._path = path
        self._goal = report_goal
        self._asked = asked
        self._most_reports = most_reports
        # The round in which the devices already took part.
        self._last: int | None = None
        # Reports that were sent, summed or not.
        self.uploads = 0
        if path.exists():
            saved = np.load(io.BytesIO(path.read_bytes()))
            self._last = int(saved["last"])
            self.uploads = int(saved["uploads"])
            clock.restore(saved)

    def stats(self) -> dict[str, float]:
        return {"uploads": self.uploads, "days": self._clock.hour / 24}

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return self._clock.gather(self._asked, eligible)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        reports = self._draw_reports(cohort, key)
        if len(reports) < self._goal:
            raise FailedRound(
                f"{len(reports)} of {len(cohort)} devices reported; {self._goal} are needed"
            )
        summed = np.sort(reports[: self._most_reports])
        return self._fleet.sum_reports(program, message, summed, key)

    def _draw_reports(self, cohort: UserIds, key: Key) -> UserIds:
        """Derive who reports from nothing but the key.

        A round that is summed again after a crash has the same total.
        """
        key_data = np.asarray(jax.random.key_data(key))
        words = key_data.ravel().tolist()
        round = words[0] << 32 | words[1]
        generator = np.random.default_rng(words)
        reports = self._clock.devices.draw_reporting(cohort, generator)
        if round != self._last:
            self._clock.upload(
                asked=cohort,
                reports=reports,
                goal=self._goal,
                generator=generator,
            )
            self.uploads += len(reports)
            self._save(round)
        return reports

    def _save(self, round: int) -> None:
        self._last = round
        state = {
            "last": np.uint64(round),
            "uploads": np.int64(self.uploads),
            **self._clock.state(),
        }
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **state)
        write_atomically(self._path, content.getvalue(), 0o600)
