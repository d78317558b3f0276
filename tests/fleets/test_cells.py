"""Rounds of several cells: who is in which, how many of a cell may be corrupt, and what becomes of
the others when a cell fails.
"""

import functools
import logging
import math
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from cell_work import doubled, killed
from fleet_of_devices import FleetOfDevices
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from secure_rounds import TERMS, Cohort, plain_sum

from harness import quietly
from taciturn.core import FailedRound
from taciturn.fleets.secure_aggregation import cells, workers
from taciturn.fleets.secure_aggregation.cells import MOST, UNLIKELY, colluders, threshold
from taciturn.fleets.secure_aggregation.messages import (
    Roster,
    SealedShares,
    Survivors,
    UnmaskRequest,
)
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.release.privacy_statement import statement
from taciturn.runs.loop import train_run

SHARES = [(0.0, 0.0), (0.1, 0.05), (0.2, 0.1), (0.3, 0.0), (0.3, 0.05), (0.3, 0.1)]


# How many


@pytest.mark.parametrize("corrupt", [0.01, 0.05, 0.1, 0.2])
@pytest.mark.parametrize(
    ("cohort", "cell"),
    [(201, 100), (300, 150), (1000, 100), (1000, 200), (6500, 197), (10_000, 200)],
)
def test_more_colluders_in_any_cell_are_unlikely_and_a_smaller_bound_would_not_do(
    cohort, cell, corrupt
):
    bad, count = colluders(cohort, cell, corrupt), math.ceil(cohort / cell)
    of_scipy = stats.hypergeom(cohort, math.floor(corrupt * cohort + 1e-9), cell)
    assert count * of_scipy.sf(bad) <= 2.0**-UNLIKELY * (1 + 1e-6)
    assert count * of_scipy.sf(bad - 1) > 2.0**-UNLIKELY * (1 - 1e-6)


def test_five_percent_of_a_thousand_are_up_to_a_third_of_a_hundred(monkeypatch):
    assert colluders(1000, 100, 0.05) == 34
    monkeypatch.setattr(cells, "UNLIKELY", 40)
    assert colluders(1000, 100, 0.05) == 25
    assert colluders(1000, 1000, 0.05) == 50  # in one cell nothing is left to chance
    assert colluders(1000, 200, 0.0) == 0


def test_the_bound_agrees_with_simulation_where_it_can_be_seen(monkeypatch):
    """With a chance of 1/32 in place of 2⁻⁸⁰ the union bound is above what happens, and not by
    much.
    """
    monkeypatch.setattr(cells, "UNLIKELY", 5)
    bad, generator = colluders(1000, 200, 0.05), np.random.default_rng(0)
    worst = [
        np.bincount(generator.permutation(1000)[:50] % 5, minlength=5).max() for _ in range(4000)
    ]
    assert 2.0**-5 / 20 < np.mean(np.array(worst) > bad) < 2.0**-5
    assert np.mean(np.array(worst) > bad - 1) > 2.0**-5 / 2


@given(st.integers(2, MOST), st.floats(0, 0.99), st.floats(0, 0.99))
def test_in_a_single_cell_the_threshold_is_all_but_the_drop_outs(cohort, dropouts, corrupt):
    lost, bad = math.floor(dropouts * cohort + 1e-9), math.floor(corrupt * cohort + 1e-9)
    try:
        needed = threshold(cohort, cohort, dropouts, corrupt)
    except ValueError as why:
        assert "no secure sum" in str(why)  # noqa: PT017
        assert 2 * (cohort - lost) <= cohort + bad
        return
    assert needed == cohort - lost
    assert 2 * needed > cohort + bad


@pytest.mark.parametrize(("dropouts", "corrupt"), SHARES)
@pytest.mark.parametrize("cohort", [201, 350, 1000, 6500])
def test_in_several_cells_a_threshold_is_secret_and_mostly_met(cohort, dropouts, corrupt):
    size = cohort // math.ceil(cohort / MOST)
    needed, bad = threshold(cohort, size, dropouts, corrupt), colluders(cohort, size, corrupt)
    assert 2 * needed > size + bad
    missing = stats.hypergeom(cohort, math.floor(dropouts * cohort + 1e-9), size).sf(size - needed)
    assert missing < (
        0.4 if (dropouts, corrupt) == (0.3, 0.1) else 0.05
    )  # so much together leaves little room


def test_shares_that_are_none_and_too_many_are_refused():
    for dropouts, corrupt in ((-0.1, 0), (0, 1.0), (float("nan"), 0), (0, float("nan"))):
        with pytest.raises(ValueError, match="between 0 and 1"):
            threshold(50, 50, dropouts, corrupt)
    with pytest.raises(ValueError, match="make no secure sum: allow for fewer"):
        threshold(1000, 200, 0.4, 0.1)


# Who


@given(st.integers(1, 1000), st.binary(max_size=4))
def test_everybody_is_in_one_cell_and_cells_are_of_one_size(cohort, name):
    digests = [number.to_bytes(2, "big") for number in range(cohort)]
    found = cells.cells(name, digests)
    assert sorted(digest for cell in found for digest in cell) == digests
    sizes = {len(cell) for cell in found}
    assert max(sizes) <= MOST
    assert max(sizes) - min(sizes) <= 1
    assert len(found) == 1 or min(sizes) >= MOST // 2


def test_who_is_with_whom_is_another_for_every_cohort_and_each_is_as_likely(monkeypatch):
    monkeypatch.setattr(cells, "MOST", 5)
    digests = [bytes([one]) for one in range(10)]
    drawn = (cells.cells(str(number).encode(), digests) for number in range(2000))
    with_three = Counter(
        digest[0] for found in drawn for cell in found if digests[3] in cell for digest in cell
    )
    assert with_three.pop(3) == 2000
    assert stats.chisquare(list(with_three.values())).pvalue > 1e-6


def test_the_name_of_a_cell_is_of_all_adverts_and_of_its_own():
    assert (
        len(
            {
                cells.cell_name(*of)
                for of in ((b"a", [b"x"]), (b"b", [b"x"]), (b"a", [b"y"]), (b"a", [b"x", b"y"]))
            }
        )
        == 4
    )


# A round


@pytest.fixture
def small_cells(monkeypatch):
    monkeypatch.setattr(cells, "MOST", 10)


def through(cohort, lost=None, garbled=None):
    """A whole round in bytes. `lost` are those whose answers do not come from a stage on, `garbled`
    those whose are changed.
    """
    server, gone = cohort.server, set()
    asked = dict.fromkeys(cohort.ids, b"")
    for stage in (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.SIGN, Stage.UNMASK):
        late = (lost or {}).get(stage, set())
        gone |= late() if callable(late) else late  # whoever it is may depend on the cells
        answers = {
            one: said(cohort, stage, one, content + server.shared)
            for one, content in asked.items()
            if one not in gone
        }
        wrong = (garbled or {}).get(stage, set())
        refused = server.take(
            {one: b"garbage" if one in wrong else answer for one, answer in answers.items()}
        )
        assert refused.keys() == wrong & answers.keys()
        if stage != Stage.UNMASK:
            asked = server.questions()
    return server.total()


def said(cohort, stage, one, content):
    device = cohort.devices[one]
    if stage == Stage.MASK:
        return device.mask(SealedShares.from_bytes(content), cohort.values[one]).to_bytes()
    if stage == Stage.SIGN:
        return device.sign(Survivors.from_bytes(content))
    if stage == Stage.UNMASK:
        return device.unmask(UnmaskRequest.from_bytes(content)).to_bytes()
    return (
        device.advertise() if stage == Stage.ADVERTISE else device.share(Roster.from_bytes(content))
    ).to_bytes()


def cells_of(cohort):
    return [set(cell.adverts) for cell in cohort.server._cells]


@pytest.mark.parametrize("bits", [16, 26, 32])
def test_the_sums_of_cells_come_to_the_plain_sum_to_the_bit(small_cells, bits):
    cohort = Cohort(34, replace(TERMS, modulus_bits=bits, corrupt=0.0))
    left = []

    def one_of(cell):
        """No cell loses more than it can bear."""
        left.append(min(cells_of(cohort)[cell]))
        return {left[-1]}

    gone = {
        stage: functools.partial(one_of, cell)
        for cell, stage in enumerate((Stage.SHARE, Stage.MASK, Stage.SIGN, Stage.UNMASK))
    }
    total = through(cohort, {Stage.ADVERTISE: {cohort.ids[0]}, **gone})
    assert sorted(map(len, cells_of(cohort))) == [8, 8, 8, 9]
    ids = sorted(set(cohort.ids) - {cohort.ids[0], *left[:2]})
    assert total.devices == ids
    assert total.values.dtype == np.uint32
    np.testing.assert_array_equal(total.values, plain_sum(cohort.values, ids, bits))
    with pytest.raises(AssertionError):  # the twin: a sum that lost a report
        np.testing.assert_array_equal(total.values, plain_sum(cohort.values, ids[1:], bits))


@pytest.mark.parametrize("stage", [Stage.SHARE, Stage.MASK, Stage.SIGN, Stage.UNMASK])
def test_a_cell_that_fails_loses_its_devices_and_not_the_round(small_cells, stage):
    cohort = Cohort(30, replace(TERMS, corrupt=0.0, least=20))
    broken, take = [], cohort.server.take

    def breaks(answers):
        if cohort.server._stage == stage:
            broken.extend(sorted(cells_of(cohort)[1]))
            answers = {one: answer for one, answer in answers.items() if one not in broken[:6]}
        return take(answers)

    cohort.server.take = breaks
    total = through(cohort)
    assert set(total.devices) == set(cohort.ids) - set(broken)
    assert len(total.devices) == 20
    assert len(cohort.server.failed_cells) == 1
    np.testing.assert_array_equal(total.values, cohort.plain(total.devices))


def test_a_round_with_too_few_reports_left_fails(small_cells):
    cohort = Cohort(30, replace(TERMS, corrupt=0.0, least=21))
    take = cohort.server.take

    def breaks(answers):
        lost = sorted(cells_of(cohort)[1])[:6] if cohort.server._stage == Stage.MASK else ()
        return take({one: answer for one, answer in answers.items() if one not in lost})

    cohort.server.take = breaks
    with pytest.raises(
        FailedRound,
        match=(
            r"20 devices are in cells that continue, and 21 are needed: 4 devices of a cell have"
            r" reported"
        ),
    ):
        through(cohort)


@pytest.mark.parametrize(
    ("stage", "done"),
    [
        (Stage.ADVERTISE, "advertised"),
        (Stage.SHARE, "shared their secrets"),
        (Stage.MASK, "reported"),
    ],
)
def test_too_few_devices_are_a_failed_round(stage, done):
    cohort = Cohort(8, replace(TERMS, least=7))
    with pytest.raises(FailedRound, match=f"6 devices have {done}, and 7 are needed"):
        through(cohort, {stage: set(cohort.ids[:2])})


@pytest.mark.parametrize(
    "stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.SIGN, Stage.UNMASK]
)
def test_garbage_is_as_if_it_had_not_come(small_cells, stage):
    cohort = Cohort(30, replace(TERMS, corrupt=0.0))
    wrong = cohort.ids[4]
    total = through(cohort, garbled={stage: {wrong}})
    assert (wrong in total.devices) == (stage in (Stage.SIGN, Stage.UNMASK))
    np.testing.assert_array_equal(total.values, cohort.plain(total.devices))


@pytest.mark.parametrize("wrong", ["of something else", "of an earlier round"])
def test_a_signature_of_other_survivors_is_found_by_the_server_and_spoils_nothing(wrong):
    """Or a corrupt device could make all others refuse."""
    cohort = Cohort(10)
    cohort.run(until=Stage.SIGN)
    (one, *others), old = cohort.ids, cohort.said[Stage.SIGN]
    cohort.start(replace(TERMS, round=b"round 2"))
    cohort.run(until=Stage.MASK)
    sent = {
        device: cohort.devices[device].sign(survivors)
        for device, survivors in cohort.cell.survivors().items()
    }
    cohort.server._stage = Stage.SIGN
    sent[one] = (
        old[one] if wrong == "of an earlier round" else cohort.keys[one].sign(b"something else")
    )
    assert cohort.server.take(sent) == {one: "it has not signed who reported"}
    assert cohort.server.questions().keys() == {*others}


def test_messages_and_thresholds_go_by_the_cell_and_not_by_the_cohort(small_cells):
    cohort = Cohort(60, replace(TERMS, corrupt=0.0))
    through(cohort)
    assert {cell.threshold for cell in cohort.server._cells} == {6}
    assert {len(device._peers) for device in cohort.devices.values()} == {9}


@pytest.mark.parametrize("broken", [False, True])
def test_a_fleet_of_several_cells_trains_on_the_sum_of_all(
    tmp_path, vocabulary, monkeypatch, caplog, broken
):
    """And where one of three cells fails, on that of the others: 12 reports of 18 are enough
    here.
    """
    monkeypatch.setattr(cells, "MOST", 6)
    totals, total = [], ServerRound.total

    def noted(server):
        totals.append((total(server), server))
        return totals[-1][0]

    monkeypatch.setattr(ServerRound, "total", noted)
    sections = {
        "participation": {"cohort": 12, "users": 80},
        "run": {"rounds": 1, "evaluate_every": 1},
    }
    fleet = FleetOfDevices(tmp_path, vocabulary, count=18, **sections)
    ask = fleet.link.ask

    def loses(kind, contents, *args, **settings):
        answers = ask(kind, contents, *args, **settings)
        if broken and kind == Stage.UNMASK.question:
            lost = min(contents.values())  # a cell is asked with the same signatures
            answers = {one: answer for one, answer in answers.items() if contents[one] != lost}
        return answers

    fleet.link.ask = loses
    with caplog.at_level(logging.WARNING, "taciturn.fleet"):
        guarantee = train_run(fleet.recipe, tmp_path / "run", quietly, fleet.connected).guarantee
    assert guarantee.releases == 1
    said = [
        " ".join(statement(one, ()).split())
        for one in (guarantee, replace(guarantee, unit="one user"))
    ]
    assert [f"sum of each cell of a round (at most {MOST} devices)" in one for one in said] == [
        True,
        False,
    ]
    ((summed, server),) = totals
    assert [len(cell.adverts) for cell in server._cells] == [6, 6, 6]
    assert len(summed.devices) == (12 if broken else 18)
    assert (
        "1 cells failed, and the round continues without their devices" in caplog.text
    ) == broken
    plain = (
        sum(report.astype(np.uint64) for report in fleet.reports[0]) % 2**server._terms.modulus_bits
    )
    assert np.array_equal(summed.values, plain) != broken


# Processes


def test_several_cells_are_worked_on_in_processes_of_their_own_and_one_is_not(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    found = workers.for_each(doubled, [1, 2, 3], [10, 20, 30])
    assert [value for _, value in found] == [12, 24, 36]
    assert os.getpid() not in {process for process, _ in found}
    assert workers.for_each(doubled, [1], [10]) == [(os.getpid(), 12)]
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert workers.for_each(doubled, [1, 2], [10, 20]) == [(os.getpid(), 12), (os.getpid(), 24)]


def test_what_a_process_was_at_when_it_was_killed_is_done_here(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert workers.for_each(killed, [1, 2, 3], [os.getpid()] * 3) == [1, 2, 3]
    assert [value for _, value in workers.for_each(doubled, [1, 2], [10, 20])] == [
        12,
        24,
    ]  # and others are started


SERVER = """
import os, signal
from taciturn.fleets.secure_aggregation import workers
if __name__ == "__main__":
    os.cpu_count = lambda: 2
    groups = set(workers.for_each(os.getpgid, [0, 0]))
    print(*groups, *workers._workers()._processes, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_killed_leaves_no_worker_behind(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    done = subprocess.run(
        [sys.executable, tmp_path / "server.py"], capture_output=True, text=True, timeout=60
    )
    _, *processes = map(int, done.stdout.split())
    assert processes
    deadline = time.monotonic() + 20
    while (
        left := [one for one in processes if os.path.exists(f"/proc/{one}/exe")]
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
