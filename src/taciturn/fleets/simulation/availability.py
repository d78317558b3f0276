"""When devices can take part: idle, charging and on an unmetered network, mostly at night.

A model of a fleet's clock (Bonawitz et al. 2019, Xu et al. 2023 §2.2). `check_in.py` trains on it;
`simulate_rounds` runs it without any training, and answers what a timer amounts to as a separation
in rounds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from taciturn.progress import Progress, ignore_progress

# The hours between two looks at the devices.
TICK = 5 / 60
# The hours of a round.
ROUND_HOURS = 0.15
# Of a fleet that is only simulated: how many more devices are asked than reports are needed.
OVER_SELECTION = 1.3
# A fleet that is only simulated ends after this number of hours.
MOST_HOURS = 150 * 24

# The last round of a device that has not taken part.
NEVER = -1

# What a device's coins are tossed for; each has its own stream of random numbers.
HABIT_COINS = 0
NIGHT_COINS = 1
DAY_COINS = 2
CHECK_IN_COINS = 3
ROUND_COINS = 4


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a population's devices behave; hours are local."""

    # Pairs of an offset in hours and a share of users.
    time_zones: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    bedtime: float = 23.0
    # How long a night is.
    night: float = 7.0
    # The standard deviation of bedtime and night over users.
    spread: float = 1.5
    # The share of devices that are plugged in in a night.
    nights_plugged_in: float = 0.7
    # The share of devices that are available at any moment outside the night.
    by_day: float = 0.02
    # The mean hours between two check-ins of an available device.
    check_in_every: float = 0.5
    # The share of devices that are asked and do not report.
    drop_out: float = 0.06


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The result of a simulated training."""

    hours: float
    succeeded: int
    failed: int
    # The fewest rounds between two participations of a device; None if none came twice.
    min_separation: int | None
    max_participations: int
    # The mean of a successful round.
    reports: float


class Devices:
    def __init__(self, count: int, habits: Habits, seed: int = 0) -> None:
        self.count = count
        self.habits = habits
        self.seed = seed
        # The coins of the last night that was asked about.
        self._night_number: int | None = None
        self._night_coins = np.zeros(0)
        self._draw_habits()

    def _draw_habits(self) -> None:
        habits = self.habits
        generator = np.random.default_rng([self.seed, HABIT_COINS])
        offsets, shares = zip(*habits.time_zones, strict=True)
        self._offset = generator.choice(
            np.array(offsets),
            size=self.count,
            p=np.array(shares) / sum(shares),
        )
        self._bedtime = generator.normal(
            loc=habits.bedtime,
            scale=habits.spread,
            size=self.count,
        )
        night = generator.normal(
            loc=habits.night,
            scale=habits.spread,
            size=self.count,
        )
        self._night = np.clip(night, 1.0, 14.0)

    def is_available(self, hour: float) -> np.ndarray:
        """Return of each device whether it is idle, charging and unmetered.

        Args:
            hour: Hours since the start.
        """
        local_hour = hour + self._offset
        is_night = (local_hour - self._bedtime) % 24 < self._night
        is_plugged_in = self._coins_of_night(hour) < self.habits.nights_plugged_in
        coins_by_day = self.toss_coins(DAY_COINS, round(hour / TICK))
        is_available_by_day = coins_by_day < self.habits.by_day
        return np.where(is_night, is_plugged_in, is_available_by_day)

    def _coins_of_night(self, hour: float) -> np.ndarray:
        # A night is one night before and after midnight.
        night = math.floor((hour - 12) / 24)
        if night != self._night_number:
            # A seed is not negative.
            self._night_coins = self.toss_coins(NIGHT_COINS, night + 10**6)
            self._night_number = night
        return self._night_coins

    def toss_coins(self, purpose: int, number: int) -> np.ndarray:
        """Return a uniform number for each device, always the same for a purpose and a number."""
        return np.random.default_rng([self.seed, purpose, number]).random(self.count)

    def draw_reporting(self, asked: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return those that do not drop out, in the order in which their reports arrive."""
        stays = generator.random(len(asked)) >= self.habits.drop_out
        return generator.permutation(asked[stays])


class TooFewDevices(Exception):
    """No round can succeed any more, however long the fleet waits."""


class Clock:
    """The hour, and what each device does at that hour.

    A device's timer may still run; it may wait to be asked, or have been told when to come back.
    """

    def __init__(self, devices: Devices, timer_hours: float, patience: float = 7 * 24) -> None:
        """Give up `patience` hours after the timers ended, if too few devices came together."""
        self.devices = devices
        self.hour = 0.0
        self._timer = timer_hours
        self._patience = patience
        # The hour at which a round last succeeded.
        self._last_round = 0.0
        self._resting_until = np.full(devices.count, -math.inf)
        self._away_until = np.full(devices.count, -math.inf)
        self._waiting = np.zeros(devices.count, bool)

    def gather(
        self, wanted: int, eligible: Callable[[np.ndarray], np.ndarray] = lambda ids: ids
    ) -> np.ndarray:
        """Wait until enough devices that may be asked have checked in, and return them.

        Args:
            wanted: How many devices are enough.
            eligible: Returns those of them that may be asked.

        Raises:
            TooFewDevices: They did not come together for too long.
        """
        while True:
            self._let_devices_check_in()
            pool = np.flatnonzero(self._waiting)
            self._check_patience(wanted)
            if len(pool) >= wanted:
                pool = eligible(pool)
            if len(pool) >= wanted:
                return pool
            self.hour += TICK

    def _let_devices_check_in(self) -> None:
        is_rested = self._resting_until <= self.hour
        is_ready = self.devices.is_available(self.hour) & is_rested
        coins = self.devices.toss_coins(CHECK_IN_COINS, round(self.hour / TICK))
        arrives = coins < TICK / self.devices.habits.check_in_every
        checks_in = arrives & (self._away_until <= self.hour)
        self._waiting = is_ready & (self._waiting | checks_in)

    def _check_patience(self, wanted: int) -> None:
        if self.hour > self._last_round + self._timer + self._patience:
            raise TooFewDevices(
                f"{self._patience / 24:.0f} days after their timers of {self._timer:g} hours"
                f" ended, still no round has succeeded with {wanted} devices: take smaller cohorts,"
                " a shorter timer or separation, more users, or ask more for each report"
            )

    def upload(
        self, asked: np.ndarray, reports: np.ndarray, goal: int, generator: np.random.Generator
    ) -> None:
        """Run a round. A device starts its timer when it uploads, whatever becomes of the round.

        Args:
            asked: The devices that were asked.
            reports: Those of them that report.
            goal: With fewer reports the round fails.
            generator: Draws when devices that waited in vain return.
        """
        self.hour += ROUND_HOURS
        if len(reports) >= goal:
            self._last_round = self.hour
        self._waiting[asked] = False
        self._resting_until[reports] = self.hour + self._timer
        self._send_away(len(asked), generator)

    def _send_away(self, asked: int, generator: np.random.Generator) -> None:
        """Tell devices that waited in vain when to return.

        About one round's worth of them arrives in the time of a round.
        """
        waiting = np.flatnonzero(self._waiting)
        longest = ROUND_HOURS * len(waiting) / asked
        hours_away = generator.uniform(0, longest, size=len(waiting))
        self._away_until[waiting] = self.hour + hours_away
        self._waiting[waiting] = False

    def state(self) -> dict[str, np.ndarray]:
        return {
            "times": np.array([self.hour, self._last_round]),
            "resting": self._resting_until,
            "away": self._away_until,
            "waiting": self._waiting,
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        hour, last_round = state["times"]
        self.hour = float(hour)
        self._last_round = float(last_round)
        self._resting_until = state["resting"].copy()
        self._away_until = state["away"].copy()
        self._waiting = state["waiting"].copy()


class _Participations:
    """In which rounds simulated devices took part."""

    def __init__(self, devices: int) -> None:
        self._last_round = np.full(devices, NEVER)
        self._times = np.zeros(devices, int)
        self.min_separation: int | None = None
        self.reports = 0

    @property
    def most_of_a_device(self) -> int:
        return int(self._times.max(initial=0))

    def add(self, round: int, reports: np.ndarray) -> None:
        """Count the devices that reported in a round."""
        last_round = int(np.max(self._last_round[reports], initial=NEVER))
        if last_round != NEVER:
            self._note_separation(round - last_round - 1)
        self._last_round[reports] = round
        self._times[reports] += 1
        self.reports += len(reports)

    def _note_separation(self, rounds: int) -> None:
        if self.min_separation is None or rounds < self.min_separation:
            self.min_separation = rounds


def simulate_rounds(
    devices: Devices,
    rounds: int,
    report_goal: int,
    timer_hours: float,
    progress: Progress = ignore_progress,
) -> Rounds:
    """Simulate rounds one after another, each as soon as enough devices have checked in.

    Stop early when that takes too long.
    """
    clock = Clock(devices, timer_hours)
    generator = np.random.default_rng([0, ROUND_COINS])
    wanted = math.ceil(OVER_SELECTION * report_goal)
    participations = _Participations(devices.count)
    succeeded = 0
    failed = 0
    while succeeded < rounds and clock.hour < MOST_HOURS:
        progress(succeeded, rounds)
        try:
            pool = clock.gather(wanted)
        except TooFewDevices:
            break
        asked = generator.choice(pool, wanted, replace=False)
        reports = devices.draw_reporting(asked, generator)
        clock.upload(asked=asked, reports=reports, goal=report_goal, generator=generator)
        if len(reports) < report_goal:
            failed += 1
        else:
            participations.add(succeeded, reports)
            succeeded += 1
    return Rounds(
        hours=clock.hour,
        succeeded=succeeded,
        failed=failed,
        min_separation=participations.min_separation,
        max_participations=participations.most_of_a_device,
        reports=participations.reports / max(succeeded, 1),
    )
