"""When devices can take part: idle, charging and on an unmetered network, mostly at night (Bonawitz et al. 2019, Xu et al. 2023 §2.2).

A model of a fleet's clock, without any training: devices check in when they are available and their own timer is over, the server takes
more than it needs, some drop out, and a round that gets too few reports fails. It answers what a timer comes to as a separation in rounds.
"""

import math
from dataclasses import dataclass

import numpy as np

TICK = 5 / 60  # hours


@dataclass(frozen=True)
class Habits:
    """How a population's devices behave; hours are local."""

    time_zones: tuple[tuple[float, float], ...] = ((0.0, 1.0),)  # (offset, share of users)
    bedtime: float = 23.0
    night: float = 7.0
    spread: float = 1.5  # standard deviation of both over users
    nights_plugged_in: float = 0.7
    by_day: float = 0.02  # share of devices that are available at any moment outside the night
    check_in_every: float = 0.5  # hours, while available
    drop_out: float = 0.06  # of those who are asked


@dataclass(frozen=True)
class Rounds:
    """What came of a simulated training."""

    hours: float
    succeeded: int
    failed: int
    min_separation: int | None  # the fewest rounds between two participations of a device; None: nobody came twice
    max_participations: int
    reports: float  # of a successful round, on average


class Devices:
    def __init__(self, count: int, habits: Habits, seed: int = 0) -> None:
        draw = np.random.default_rng([seed, 0])
        offsets, shares = zip(*habits.time_zones, strict=True)
        self.count, self._habits, self._seed = count, habits, seed
        self._offset = draw.choice(np.array(offsets), count, p=np.array(shares) / sum(shares))
        self._bedtime = draw.normal(habits.bedtime, habits.spread, count)
        self._night = np.clip(draw.normal(habits.night, habits.spread, count), 1.0, 14.0)
        self._coins: tuple[int, np.ndarray] | None = None

    def available(self, hour: float) -> np.ndarray:
        """Which devices are idle, charging and unmetered at an hour since the start."""
        local = hour + self._offset
        at_night = (local - self._bedtime) % 24 < self._night
        day = math.floor((hour - 12) / 24)  # a night is one night before and after midnight
        if self._coins is None or self._coins[0] != day:
            self._coins = (day, np.random.default_rng([self._seed, 1, day + 10**6]).random(self.count))
        by_day = np.random.default_rng([self._seed, 2, round(hour / TICK)]).random(self.count) < self._habits.by_day
        return np.where(at_night, self._coins[1] < self._habits.nights_plugged_in, by_day)


def simulate_rounds(
    devices: Devices,
    habits: Habits,
    rounds: int,
    report_goal: int,
    timer_hours: float,
    over_selection: float = 1.3,
    round_hours: float = 0.15,
    patience: float = 7 * 24,
    most_hours: float = 150 * 24,
    seed: int = 0,
) -> Rounds:
    """Rounds one after another, each as soon as enough devices have checked in; given up when that takes `patience` hours too long."""
    draw = np.random.default_rng([seed, 3])
    wanted = math.ceil(over_selection * report_goal)
    resting_until = np.full(devices.count, -math.inf)
    last, times = np.full(devices.count, -1), np.zeros(devices.count, int)
    waiting = np.zeros(devices.count, bool)
    hour, row, failed, reported, closest = 0.0, 0, 0, 0, None
    last_success = 0.0
    while row < rounds and hour < min(most_hours, last_success + timer_hours + patience):
        available = devices.available(hour)
        ready = available & (resting_until <= hour)
        waiting = (waiting & ready) | (ready & (draw.random(devices.count) < TICK / habits.check_in_every))
        pool = np.flatnonzero(waiting)
        if len(pool) < wanted:
            hour += TICK
            continue
        asked = draw.choice(pool, wanted, replace=False)
        reports = asked[draw.random(wanted) >= habits.drop_out]
        hour += round_hours
        resting_until[reports] = (
            hour + timer_hours
        )  # a device starts its timer when it uploads, whatever becomes of the round
        waiting[asked] = False
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
        row, last_success = row + 1, hour
    return Rounds(hour, row, failed, closest, int(times.max(initial=0)), reported / max(row, 1))
