"""Numbers of rounds, by which devices know what they answered to: they rise over attempts, crashes
and runs.
"""

import time

import jax
import numpy as np
import pytest
from fleet_of_devices import FleetOfDevices
from lying_server import VICTIM, LyingServer

from harness import Cut, cut_at, quietly
from taciturn.core import FailedRound
from taciturn.fleets.devices.fleet import DeviceFleet
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.runs.loop import resume_run, train_run


@pytest.fixture
def liar(tmp_path, vocabulary):
    return LyingServer(tmp_path, vocabulary)


def without_the_victim():
    return [one for one in range(9) if one != VICTIM]


def device_fleet(liar, folder, **more):
    folder.mkdir(exist_ok=True)
    return DeviceFleet(
        connected=liar.fleet.connected,
        terms=liar.terms,
        asked=9,
        deadline=60.0,
        patience=20.0,
        folder=folder,
        run_name=lambda: "run",
        **more,
    )


def test_a_sum_of_the_same_round_over_fewer_devices_fails(liar, tmp_path):
    server = device_fleet(liar, tmp_path / "rounds")
    server.sum_reports(None, liar.honest, np.arange(9), jax.random.key(0))
    for one in range(9):
        liar.fleet.start(one)
    with pytest.raises(FailedRound, match="give them once"):
        server.sum_reports(None, liar.honest, np.array(without_the_victim()), jax.random.key(1))
    assert len(liar.reports) == 9


def test_a_round_that_failed_goes_on_with_others_and_without_any_under_another_number(
    tmp_path, vocabulary, monkeypatch
):
    for count, reported_twice in ((18, 0), (12, 6), (9, 9)):
        left, folder = [9], tmp_path / str(count)
        folder.mkdir()

        def dies(number, kind, answer, left=left):
            left[0] -= kind == Stage.UNMASK.question
            return None if kind == Stage.UNMASK.question and left[0] >= 0 else answer

        fleet = FleetOfDevices(
            folder,
            vocabulary,
            count=count,
            faults=(dies,),
            run={"rounds": 1, "evaluate_every": 1},
            participation={"users": 40, "min_separation": 0},
        )
        finished = train_run(fleet.recipe, folder / "run", quietly, fleet.connected)
        assert finished.guarantee.releases == 1
        uploads = [fleet.link._devices[one].handler._record.uploads for one in range(count)]
        assert sum(map(len, uploads)) == 18
        assert sum(len(mine) == 2 for mine in uploads) in range(
            reported_twice, 10 if reported_twice else 1
        )
        assert all(len({upload["round"] for upload in mine}) == len(mine) for mine in uploads)


def test_numbers_of_rounds_rise_with_rows_attempts_and_runs_and_outlive_a_crash(liar, tmp_path):
    rows = [0]
    server = device_fleet(liar, tmp_path / "rounds", next_row=lambda: rows[0], rest_rounds=3)
    first = server._read_numbers(0)
    server._write_numbers(first._replace(asked={1: first.number, 2: first.number - 3}))
    assert device_fleet(liar, tmp_path / "rounds")._read_numbers(0) == first._replace(
        asked={1: first.number, 2: first.number - 3}
    )
    assert server._read_numbers(0).find_resting(3) == {1, 2}
    assert server._read_numbers(0).find_resting(0) == {1}
    assert server._read_numbers(2).number == first.number + 2
    assert server._read_numbers(2).find_resting(3) == {1}
    server._renumber()
    again = server._read_numbers(0)
    assert again.find_resting(3) == set()
    assert again.number > first.number + 3  # so many rounds lie between, at least
    assert server._read_numbers(5).number == again.number + 5
    server._write_numbers(again._replace(number=2**80))  # whatever the clock says
    server._renumber()
    assert server._read_numbers(0).number == 2**80 + 4
    time.sleep(0.001)
    assert device_fleet(liar, tmp_path / "later")._read_numbers(0).number > again.number + 5


def test_an_interrupted_run_resumes_after_another_run_of_the_same_devices(tmp_path, vocabulary):
    """To the devices it is older than what they answered to since, until it is given another
    number.
    """
    fleet = FleetOfDevices(
        tmp_path, vocabulary, count=9, run={"rounds": 2, "evaluate_every": 2, "save_every": 1}
    )
    with pytest.raises(Cut):
        train_run(fleet.recipe, tmp_path / "first", cut_at(1), fleet.connected)
    train_run(fleet.recipe, tmp_path / "second", quietly, fleet.connected)
    with pytest.raises(LinkError, match="0 devices are present that may take part"):
        resume_run(tmp_path / "first", quietly, fleet.connected)
    finished = resume_run(tmp_path / "first", quietly, fleet.connected)
    assert finished.guarantee.releases == 2
    for one in range(9):
        rounds = [upload["round"] for upload in fleet.link._devices[one].handler._record.uploads]
        assert rounds == sorted(set(rounds))
