"""When devices can take part: idle, charging and on an unmetered network, mostly at night (Bonawitz
et al. 2019, Xu et al. 2023 §2.2).

A model of a fleet's clock. `fleets/simulation/check_in.py` trains on it; `simulate_rounds` runs it
without any training, and answers what a timer amounts to as a separation in rounds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from taciturn.progress import Progress, ignore_progress

# hours between two looks at the devices, and of a round
TICK, ROUND_HOURS = 5 / 60, 0.15
# of a fleet that is only simulated
OVER_SELECTION, MOST_HOURS = 1.3, 150 * 24


@dataclass(frozen=True)
class Habits:
    """How a population's devices behave; hours are local."""

    # (offset, share of users)
    time_zones: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    bedtime: float = 23.0
    night: float = 7.0
    # standard deviation of both over users
    spread: float = 1.5
    nights_plugged_in: float = 0.7
    # share of devices that are available at any moment outside the night
    by_day: float = 0.02
    # hours, while available
    check_in_every: float = 0.5
    # of those who are asked
    drop_out: float = 0.06


@dataclass(frozen=True)
class Rounds:
    """The result of a simulated training."""

    hours: float
    succeeded: int
    failed: int
    # the fewest rounds between two participations of a device; None: none came twice
    min_separation: int | None
    max_participations: int
    # of a successful round, on average
    reports: float


class Devices:
    def __init__(self, count: int, habits: Habits, seed: int = 0) -> None:
        self.count, self.habits, self.seed = count, habits, seed
        draw = np.random.default_rng([seed, 0])
        offsets, shares = zip(*habits.time_zones, strict=True)
        self._offset = draw.choice(np.array(offsets), count, p=np.array(shares) / sum(shares))
        self._bedtime = draw.normal(habits.bedtime, habits.spread, count)
        self._night = np.clip(draw.normal(habits.night, habits.spread, count), 1.0, 14.0)
        self._coins: tuple[int, np.ndarray] | None = None

    def available(self, hour: float) -> np.ndarray:
        """Return which devices are idle, charging and unmetered at an hour since the start."""
        local = hour + self._offset
        at_night = (local - self._bedtime) % 24 < self._night
        # a night is one night before and after midnight
        day = math.floor((hour - 12) / 24)
        if self._coins is None or self._coins[0] != day:
            self._coins = (
                day,
                np.random.default_rng([self.seed, 1, day + 10**6]).random(self.count),
            )
        by_day = (
            np.random.default_rng([self.seed, 2, round(hour / TICK)]).random(self.count)
            < self.habits.by_day
        )
        return np.where(at_night, self._coins[1] < self.habits.nights_plugged_in, by_day)

    def reporting(self, asked: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return those that do not drop out, in the order in which their reports arrive."""
        return generator.permutation(asked[generator.random(len(asked)) >= self.habits.drop_out])


class TooFewDevices(Exception):
    """No round can succeed any more, however long the fleet waits."""


class Clock:
    """The hour, and each device's state: until when its timer runs, whether it waits to be asked,
    when it was told to come back.
    """

    def __init__(self, devices: Devices, timer_hours: float, patience: float = 7 * 24) -> None:
        """Give up `patience` hours after the timers ended, if too few devices came together."""
        self.devices, self.hour = devices, 0.0
        self._habits, self._timer, self._patience, self._last_round = (
            devices.habits,
            timer_hours,
            patience,
            0.0,
        )
        self._resting_until = np.full(devices.count, -math.inf)
        self._away_until = np.full(devices.count, -math.inf)
        self._waiting = np.zeros(devices.count, bool)

    def gather(
        self, wanted: int, eligible: Callable[[np.ndarray], np.ndarray] = lambda ids: ids
    ) -> np.ndarray:
        """Wait until enough devices that may be asked have checked in, and return them."""
        while True:
            tick = round(self.hour / TICK)
            ready = self.devices.available(self.hour) & (self._resting_until <= self.hour)
            arriving = np.random.default_rng([self.devices.seed, 3, tick]).random(
                self.devices.count
            )
            checking_in = (arriving < TICK / self._habits.check_in_every) & (
                self._away_until <= self.hour
            )
            self._waiting = ready & (self._waiting | checking_in)
            pool = np.flatnonzero(self._waiting)
            if self.hour > self._last_round + self._timer + self._patience:
                since = (
                    f"{self._patience / 24:.0f} days after their timers of {self._timer:g} hours"
                    " ended, still no round has succeeded"
                )
                to_do = (
                    "take smaller cohorts, a shorter timer or separation, more users, or ask more"
                    " for each report"
                )
                raise TooFewDevices(f"{since} with {wanted} devices: {to_do}")
            if len(pool) >= wanted:
                pool = eligible(pool)
            if len(pool) >= wanted:
                return pool
            self.hour += TICK

    def upload(
        self, asked: np.ndarray, reports: np.ndarray, goal: int, generator: np.random.Generator
    ) -> None:
        """Run a round. A device starts its timer when it uploads, whatever becomes of the round."""
        self.hour += ROUND_HOURS
        if len(reports) >= goal:
            self._last_round = self.hour
        self._waiting[asked] = False
        self._resting_until[reports] = self.hour + self._timer
        # Devices that waited in vain are told when to return, so that about one round's worth
        # arrives in the time of a round.
        sent_away = np.flatnonzero(self._waiting)
        pace = ROUND_HOURS * len(sent_away) / len(asked)
        self._away_until[sent_away] = self.hour + generator.uniform(0, pace, len(sent_away))
        self._waiting[sent_away] = False

    def state(self) -> dict[str, np.ndarray]:
        times = np.array([self.hour, self._last_round])
        return {
            "times": times,
            "resting": self._resting_until,
            "away": self._away_until,
            "waiting": self._waiting,
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.hour, self._last_round = map(float, state["times"])
        self._resting_until, self._away_until, self._waiting = (
            state[name].copy() for name in ("resting", "away", "waiting")
        )


def simulate_rounds(
    devices: Devices,
    rounds: int,
    report_goal: int,
    timer_hours: float,
    progress: Progress = ignore_progress,
) -> Rounds:
    """Simulate rounds one after another, each as soon as enough devices have checked in; stop when
    that takes too long.
    """
    clock, draw = Clock(devices, timer_hours), np.random.default_rng([0, 4])
    wanted = math.ceil(OVER_SELECTION * report_goal)
    last, times = np.full(devices.count, -1), np.zeros(devices.count, int)
    row, failed, reported, closest = 0, 0, 0, None
    while row < rounds and clock.hour < MOST_HOURS:
        progress(row, rounds)
        try:
            asked = draw.choice(clock.gather(wanted), wanted, replace=False)
        except TooFewDevices:
            break
        reports = devices.reporting(asked, draw)
        clock.upload(asked, reports, report_goal, draw)
        if len(reports) < report_goal:
            failed += 1
            continue
        again = reports[last[reports] >= 0]
        if len(again):
            nearest = int(np.min(row - last[again])) - 1
            closest = nearest if closest is None else min(closest, nearest)
        last[reports] = row
        times[reports] += 1
        reported += len(reports)
        row += 1
    return Rounds(
        clock.hour, row, failed, closest, int(times.max(initial=0)), reported / max(row, 1)
    )
