"""A fleet's clock: nights, time zones, timers, drop-outs, rounds that fail."""

import numpy as np
import pytest

from taciturn.fleets.simulation.availability import (
    Clock,
    Devices,
    Habits,
    TooFewDevices,
    simulate_rounds,
)


def share(devices, hour):
    return devices.is_available(hour).mean()


def test_devices_are_there_at_night_and_hardly_by_day():
    devices = Devices(5000, Habits())
    assert share(devices, 26.0) > 0.5  # two in the morning
    assert share(devices, 38.0) < 0.05  # two in the afternoon


def test_time_zones_shift_the_night():
    east = Devices(5000, Habits(time_zones=((8.0, 1.0),)))
    assert share(east, 18.0) > 0.5
    assert share(east, 26.0) < 0.1
    both = Devices(20_000, Habits(time_zones=((0.0, 0.5), (12.0, 0.5))))
    shares = [share(both, hour) for hour in np.arange(24.0, 48.0)]
    assert max(shares) < 2.5 * np.mean(shares)  # somebody is always awake


def test_a_device_keeps_its_plug_through_the_night():
    devices = Devices(5000, Habits(spread=0.1))
    assert np.array_equal(devices.is_available(24.5), devices.is_available(26.0))


@pytest.mark.parametrize("timer", [1.0, 30.0, 60.0])
def test_nobody_comes_back_before_the_timer_is_over(timer):
    came = simulate_rounds(Devices(3000, Habits()), 200, 20, timer)
    assert came.succeeded == 200
    assert came.reports >= 20
    if came.min_separation is not None:
        assert came.min_separation >= 0
    assert came.max_participations * timer <= came.hours + timer


def test_rounds_fail_when_too_many_drop_out_and_timers_are_spent_all_the_same():
    came = simulate_rounds(Devices(4000, Habits(drop_out=0.23)), 100, 100, 24.0)
    assert came.failed > 0
    steady = simulate_rounds(Devices(4000, Habits(drop_out=0.0)), 100, 100, 24.0)
    assert steady.failed == 0
    assert steady.hours < came.hours


def test_the_same_seed_gives_the_same_fleet():
    assert simulate_rounds(Devices(2000, Habits()), 50, 20, 10.0) == simulate_rounds(
        Devices(2000, Habits()), 50, 20, 10.0
    )


def test_those_who_waited_in_vain_are_told_to_come_back_at_different_times():
    clock, draw = Clock(Devices(4000, Habits()), 24.0), np.random.default_rng(0)
    clock.hour = 26.0
    pool = clock.gather(500)
    clock.upload(pool[:50], pool[:50], 50, draw)
    assert len(pool) > 400
    soon = clock.gather(1)
    assert len(soon) < len(pool) / 2  # not all at once, as they would without pace steering
    assert not set(soon) & set(pool[:50])


def test_a_fleet_that_is_too_small_says_so():
    clock = Clock(Devices(50, Habits()), 24.0, patience=48.0)
    with pytest.raises(TooFewDevices, match="smaller cohorts"):
        clock.gather(60)


def test_only_devices_that_may_take_part_are_waited_for():
    clock = Clock(Devices(2000, Habits()), 24.0)
    pool = clock.gather(20, lambda ids: ids[ids % 2 == 0])
    assert len(pool) >= 20
    assert not np.any(pool % 2)
