"""A claim about participation is enforced before anything is summed, and survives crashes."""

import functools
import resource
import signal

import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st

import curators
from curators import averaging, few_people, simulated
from harness import Cut, cut_off_rows, from_numpy
from taciturn.core import FailedRound
from taciturn.data.layout import Layout, Unrolls
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.cohort_log import CohortLog, ParticipationBreach
from taciturn.privacy.ledger.ledger import Ledger, LedgerError
from taciturn.privacy.noise import int64
from taciturn.privacy.noise.correlated import Bands, Buffers, banded_toeplitz, blt
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import gaussian
from taciturn.privacy.participation import (
    CyclicPoisson,
    MinSeparation,
    PoissonSampling,
    WrongNumberOfUsers,
)

ZERO = {"x": jnp.zeros(10_000)}
CLAIM = MinSeparation(size=3, min_separation=2, max_participations=3, rounds=9)
KEY = bytes(range(32))


def log(folder, min_separation=2, max_participations=3, key=KEY):
    return CohortLog(
        path=folder / "participation.log",
        min_separation=min_separation,
        max_participations=max_participations,
        key=key,
    )


def test_no_user_takes_part_too_soon_or_too_often(tmp_path):
    book = log(tmp_path)
    book.record(np.array([1, 2]))
    for row in (1, 2):
        with pytest.raises(ParticipationBreach, match="less than 2 rounds ago"):
            book.record(np.array([2, 9 + row]))
        book.record(np.array([10 * row]))
    book.record(np.array([1, 2]))  # two rounds in between
    book.record(np.array([5]))
    book.record(np.array([6]))
    book.record(np.array([1]))
    for row in (7, 8, 9, 10):
        book.record(np.array([100 + row]))
    with pytest.raises(ParticipationBreach, match="3 times already"):
        book.record(np.array([1]))  # a fourth time
    assert 1 not in book.eligible(np.arange(10))
    assert 2 in book.eligible(np.arange(10))
    assert book.observed_limits == (2, 3)
    assert log(tmp_path).observed_limits == (2, 3)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([0, 1, 2, 4, 2**31 - 2, 2**31, 2**40, np.int16(1), np.int32(2**31 - 1)]),
    st.integers(0, 3),
    st.lists(st.tuples(st.sets(st.integers(0, 5), max_size=3), st.booleans()), max_size=14),
)
@example(2**40, 3, [({0}, False), ({0}, False)])  # longer than its type
@example(
    np.int16(1), 1, [({0}, False), ({1}, False), ({0}, False)]
)  # of a type in which «never» is a row long ago
def test_who_may_take_part_next_is_what_the_claim_says(tmp_path_factory, separation, most, rounds):
    """By definition: in no row within the separation, and in fewer rows than the most, whatever
    failed between.
    """
    folder, cohorts = tmp_path_factory.mktemp("log"), []
    book = log(folder, separation, most)

    def allowed() -> list[int]:
        taken = {
            user: [row for row, cohort in enumerate(cohorts) if user in cohort] for user in range(6)
        }
        return [
            user
            for user, rows in taken.items()
            if len(rows) < most and all(len(cohorts) - row - 1 >= separation for row in rows)
        ]

    for cohort, fails in rounds:
        assert book.eligible(np.arange(6)).tolist() == allowed()
        if cohort <= set(allowed()):
            book.record(np.array(sorted(cohort), np.int64))
            cohorts.append(cohort)
            if fails:
                book.fail()
                cohorts.pop()
        else:
            with pytest.raises(ParticipationBreach, match="nothing was summed"):
                book.record(np.array(sorted(cohort), np.int64))
    assert (
        book.eligible(np.arange(6)).tolist()
        == log(folder, separation, most).eligible(np.arange(6)).tolist()
        == allowed()
    )


def test_a_user_cannot_be_twice_in_one_cohort(tmp_path):
    with pytest.raises(ParticipationBreach, match="twice"):
        log(tmp_path).record(np.array([1, 1]))


def written(folder, rows=4):
    book = log(folder)
    for row in range(rows):
        book.record(np.array([row, 10 + row]))
    return folder / "participation.log"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 200))
def test_an_incomplete_log_keeps_its_complete_entries(tmp_path_factory, bytes_kept):
    folder = tmp_path_factory.mktemp("log")
    path = written(folder)
    path.write_bytes(path.read_bytes()[:bytes_kept])
    again = log(folder)
    assert again.rows == min(bytes_kept // 40, 4)
    for row in range(again.rows):
        assert again.cohort(row).tolist() == [row, 10 + row]
    again.record(np.array([50, 51]))
    assert log(folder).rows == again.rows
    assert path.stat().st_mode & 0o077 == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 159), st.integers(1, 255))
def test_a_changed_log_is_read_only_up_to_the_change(tmp_path_factory, place, change):
    folder = tmp_path_factory.mktemp("log")
    path = written(folder)
    content = bytearray(path.read_bytes())
    content[place] ^= change
    path.write_bytes(content)
    assert log(folder).rows == place // 40


def test_zeros_and_entries_of_other_runs_are_not_read_as_entries(tmp_path):
    """Found by a second reader: user 0 would have been summed eight times."""
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + (8).to_bytes(8, "little") + bytes(64) + bytes(16))
    assert log(tmp_path).rows == 4
    for other in ({"key": bytes(32)}, {"min_separation": 1}, {"max_participations": 4}):
        folder = tmp_path / str(other)
        folder.mkdir()
        (folder / "participation.log").write_bytes(path.read_bytes())
        assert log(folder, **other).rows == 0


def test_a_write_that_fails_leaves_the_log_unchanged(tmp_path):
    path = written(tmp_path)
    book, size = log(tmp_path), path.stat().st_size
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
        with pytest.raises(OSError, match="large"):
            book.record(np.array([70, 71]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    book.record(np.array([70, 71]))
    assert log(tmp_path).rows == book.rows == 5


@functools.cache  # so that it is compiled once
def algorithm(participation=CLAIM, private=None):
    correlated = blt(1.0, Buffers(17, (0.9,), (0.4,)))
    return averaging(
        participation, private or mechanism(flat_clip(1.0), fixed_denominator(3.0), correlated)
    )


@pytest.fixture
def people(tmp_path):
    return few_people(tmp_path / "people")


def opened(people, tmp_path, of=None, book=None, reopen=False):
    fleet, path = simulated(people), tmp_path / "ledger.jsonl"
    return curators.opened(
        of or algorithm(), fleet, path, log=book or log(tmp_path), reopen=reopen, rounds=9
    )


def rounds(door, count, params=ZERO):
    state, estimates = algorithm().mechanism.init(ZERO), []
    for round in range(count):
        estimate, state = door.private_mean(params, state, round)
        estimates.append(np.asarray(estimate["x"]))
    return estimates, state


def test_drawn_cohorts_keep_the_claim(people, tmp_path):
    door = opened(people, tmp_path)
    rounds(door, 9)
    book = log(tmp_path)
    assert book.rows == 9
    observed, times = book.observed_limits
    assert observed >= 2
    assert times <= 3


def test_a_fleet_that_breaks_the_claim_is_stopped_before_the_sum(people, tmp_path, monkeypatch):
    door = opened(people, tmp_path)
    # It does not ask who may take part.
    monkeypatch.setattr(SimulatedFleet, "users", lambda self, eligible: np.arange(12))
    monkeypatch.setattr(
        MinSeparation, "select", lambda self, available, row, coins: np.array([0, 1, 2])
    )
    state = algorithm().mechanism.init(ZERO)
    _, state = door.private_mean(ZERO, state, 0)
    with pytest.raises(ParticipationBreach, match="less than 2 rounds ago, or 3 times already"):
        door.private_mean(ZERO, state, 1)
    assert len(door.account.charges) == 1


def test_a_round_with_too_few_rested_users_is_refused(people, tmp_path):
    of = algorithm(
        MinSeparation(size=5, min_separation=2, max_participations=3, rounds=9),
        mechanism(flat_clip(1.0), fixed_denominator(5.0), blt(1.0, Buffers(17, (0.9,), (0.4,)))),
    )
    door = opened(people, tmp_path, of)
    state = of.mechanism.init(ZERO)
    for round in range(2):
        _, state = door.private_mean(ZERO, state, round)
    with pytest.raises(WrongNumberOfUsers, match="only 2 users may take part"):
        door.private_mean(ZERO, state, 2)


def test_a_curator_needs_the_log_of_its_claim(people, tmp_path):
    of = algorithm()
    terms = RunTerms(
        name="run",
        recipe="recipe",
        population="people",
        adjacency=CLAIM.adjacency,
        randomness="operating system",
        accountant="rdp",
        budget=Budget(delta=1e-5),
        rounds=9,
    )
    account = Account(
        ledger=Ledger(tmp_path / "ledger.jsonl"), terms=terms, release=of.mechanism.event(CLAIM)
    )
    fleet = SimulatedFleet(people, Layout(cut=Unrolls(4), batch_size=2, steps=1))
    for book in (None, log(tmp_path, 1, 3), log(tmp_path, 2, 4)):
        with pytest.raises(ValueError, match="needs a log"):
            Curator(algorithm=of, fleet=fleet, account=account, root=bytes(32), log=book)
    Curator(algorithm=of, fleet=fleet, account=account, root=bytes(32), log=log(tmp_path))


def test_correlated_noise_is_refused_with_sampling_and_with_a_clip_norm_that_changes():
    noise = blt(1.0, Buffers(17, (0.9,), (0.4,)))
    private = mechanism(flat_clip(1.0), fixed_denominator(3.0), noise)
    with pytest.raises(ValueError, match="min-separation"):
        private.event(PoissonSampling(0.5))
    with pytest.raises(ValueError, match="cannot change"):
        mechanism(flat_clip([(0, 1.0), (4, 0.5)]), fixed_denominator(3.0), noise)


def test_a_lost_round_is_released_again_byte_for_byte(people, tmp_path):
    first, _ = rounds(opened(people, tmp_path), 4)
    again, _ = rounds(opened(people, tmp_path, reopen=True), 4)
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert (
        len(Ledger(tmp_path / "ledger.jsonl").run_rows("run")) == 1 + 4 + 1
    )  # opened, charged, resumed


def noise_rows(estimates):
    """Return the noise, which is what differs between coordinates, in units of its white standard
    deviation.
    """
    return np.array([3.0 * (np.asarray(one, np.float64) - np.mean(one)) for one in estimates])


def expected_covariance(rows):
    column = [1.0] + [0.4 * 0.9**n for n in range(rows)]
    matrix = np.array(
        [[column[i - j] if i >= j else 0.0 for j in range(rows)] for i in range(rows)]
    )
    inverse = np.linalg.inv(matrix)
    return inverse @ inverse.T


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_rounds_whose_totals_would_differ_come_from_records_and_noise_continues(
    people, tmp_path, lost
):
    """Some rounds are charged and released; after a crash their totals would differ (other
    hardware, other text). Found by a
    second reader: going back more than one round made a second branch of noise, which the charge
    did not cover.
    """
    first, _ = rounds(opened(people, tmp_path), lost)
    door = opened(people, tmp_path, reopen=True)
    again, state = rounds(door, lost + 4, {"x": jnp.full(10_000, 0.01)})
    assert int(state.round) == len(door.account.charges) == log(tmp_path).rows == lost + 4
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=False))
    rows = noise_rows(again)
    measured = rows @ rows.T / rows.shape[1]
    # All releases together are one run of C⁻¹ z, as the charge assumes.
    assert measured == pytest.approx(expected_covariance(lost + 4), abs=0.06)
    # The twin that must fail: a second branch, independent of the rows before the crash.
    branch = expected_covariance(4)
    assert measured[lost:, lost:] != pytest.approx(branch, abs=0.06)


def test_users_who_were_asked_must_rest_whether_or_not_the_round_succeeds(people, tmp_path):
    rounds(opened(people, tmp_path), 2)
    rounds(opened(people, tmp_path, reopen=True), 4, {"x": jnp.full(10_000, 0.01)})
    cohorts = [set(log(tmp_path).cohort(row)) for row in range(4)]
    for row in range(4):
        for later in range(row + 1, min(row + 3, 4)):
            assert cohorts[row].isdisjoint(cohorts[later])


@pytest.mark.parametrize("damage", ["gone", "shorter", "of another run", "ledger shorter"])
def test_a_log_that_does_not_fit_the_ledger_stops_the_run(people, tmp_path, damage):
    """Found by a second reader: without its log a run continued, and broke its claim."""
    rounds(opened(people, tmp_path), 4)
    path, ledger = tmp_path / "participation.log", tmp_path / "ledger.jsonl"
    if damage == "gone":
        path.unlink()
    elif damage == "shorter":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "ledger shorter":
        cut_off_rows(ledger, 2)
    else:
        log(tmp_path / "people", key=bytes(32)).record(np.array([1]))
        path.write_bytes((tmp_path / "people" / "participation.log").read_bytes())
    door = opened(people, tmp_path, reopen=True)
    with pytest.raises(ParticipationBreach, match="do not belong together"):
        door.private_mean(ZERO, algorithm().mechanism.init(ZERO), 0)


def test_a_cohort_that_was_recorded_but_not_charged_takes_the_next_row(
    people, tmp_path, monkeypatch
):
    door = opened(people, tmp_path)
    _, state = rounds(door, 2)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Account, "charge", crash)
        with pytest.raises(KeyboardInterrupt):
            door.private_mean(ZERO, state, 2)
    waiting = log(tmp_path).cohort(2)
    assert len(door.account.charges) == 2
    again = opened(people, tmp_path, reopen=True)
    _, after = rounds(again, 3)
    assert log(tmp_path).rows == len(again.account.charges) == 3
    assert np.array_equal(log(tmp_path).cohort(2), waiting)
    assert int(after.round) == 3


def test_correlated_noise_without_a_claim_about_participation_is_refused(people, tmp_path):
    class Everyone:
        adjacency = "add or remove one user"
        sampled_by_curator = False
        limits = None

        def select(self, available, row, coins):
            return available

        def event(self, noise_multiplier, strategy):
            return GaussianDpEvent(noise_multiplier)

    of = algorithm(Everyone())
    terms = RunTerms(
        name="run",
        recipe="recipe",
        population="people",
        adjacency=Everyone.adjacency,
        randomness="operating system",
        accountant="rdp",
        budget=Budget(delta=1e-5),
        rounds=9,
    )
    account = Account(
        ledger=Ledger(tmp_path / "ledger.jsonl"),
        terms=terms,
        release=of.mechanism.event(of.participation),
    )
    with pytest.raises(ValueError, match="how often users take part"):
        Curator(
            algorithm=of,
            fleet=SimulatedFleet(people, Layout(cut=Unrolls(4), batch_size=2, steps=1)),
            account=account,
            root=bytes(32),
        )


def test_independent_noise_also_continues_after_a_lost_round(people, tmp_path):
    of = algorithm(private=mechanism(flat_clip(1.0), fixed_denominator(3.0), gaussian(1.0)))
    start = of.mechanism.init(ZERO)
    first, _ = opened(people, tmp_path, of).private_mean(ZERO, start, 0)
    door = opened(people, tmp_path, of, reopen=True)
    again, state = door.private_mean({"x": jnp.full(10_000, -1.0)}, start, 0)
    assert np.array_equal(first["x"], again["x"])
    second, _ = door.private_mean(ZERO, state, 1)
    assert abs(np.corrcoef(first["x"], second["x"])[0, 1]) < 0.05
    assert len(door.account.charges) == 2


def test_rounds_cannot_start_from_another_state_than_the_last_one_left(people, tmp_path):
    door = opened(people, tmp_path)
    start = algorithm().mechanism.init(ZERO)
    _, first = door.private_mean(ZERO, start, 0)
    with pytest.raises(ValueError, match="does not continue from the state"):
        door.private_mean(ZERO, start, 1)
    forged = first._replace(noise=start.noise)
    with pytest.raises(ValueError, match="does not continue from the state"):
        door.private_mean(ZERO, forged, 1)
    door.private_mean(ZERO, first, 1)
    assert len(door.account.charges) == 2


def test_two_processes_on_one_run_do_not_release_more_than_is_charged(people, tmp_path):
    """One process resumes a run while another works on it: the other is refused, and ledger and log
    stay one chain.
    """
    two, one = opened(people, tmp_path), opened(people, tmp_path, reopen=True)
    start = algorithm().mechanism.init(ZERO)
    one.private_mean(ZERO, start, 0)
    with pytest.raises(LedgerError, match="another process"):
        two.private_mean(ZERO, start, 0)
    assert len(Ledger(tmp_path / "ledger.jsonl").run_rows("run")) == 1 + 1 + 1
    # The twin: in a single process, the same call is charged and released.
    again = opened(people, tmp_path, reopen=True)
    estimate, _ = again.private_mean(ZERO, start, 0)
    assert np.isfinite(estimate["x"]).all()


def test_there_is_no_more_noise_than_was_declared(people, tmp_path):
    door = opened(people, tmp_path)
    assert door.account.max_releases == 17  # nine rounds, and a few to do again


class Unreliable(SimulatedFleet):
    """A fleet that fails as often as the test asks."""

    everyone_reports = False
    failing = 0

    def sum_reports(self, program, message, cohort, key):
        if self.failing:
            self.failing -= 1
            raise FailedRound("as it was told to")
        return super().sum_reports(program, message, cohort, key)


def unreliable(people, tmp_path, reopen=False):
    door = opened(people, tmp_path, reopen=reopen)
    door._fleet = Unreliable(people, Layout(cut=Unrolls(4), batch_size=2, steps=1))
    return door


def test_a_failed_round_releases_nothing_uses_no_noise_and_asks_others(people, tmp_path):
    door = unreliable(people, tmp_path)
    state = algorithm().mechanism.init(ZERO)
    _, state = door.private_mean(ZERO, state, 0)
    door._fleet.failing = 4
    _, state = door.private_mean(ZERO, state, 1)
    book = log(tmp_path)
    assert len(door.account.charges) == book.rows == int(state.round) == 2
    assert book.failures(1) == book.failed_cohorts == 4
    asked = [one for one in cohorts_ever(tmp_path / "participation.log") if one is not None]
    assert len(asked) == 6
    assert len({tuple(one) for one in asked[1:]}) >= 4  # tried again with others


def cohorts_ever(path):
    """Return every entry of a log, those of failed rounds too; None for a failure."""
    content, place, entries = path.read_bytes(), 0, []
    while place < len(content):
        count = int.from_bytes(content[place : place + 8], "little", signed=True)
        end = place + 8 + 8 * max(count, 0)
        entries.append(None if count < 0 else np.frombuffer(content[place + 8 : end], np.int64))
        place = end + 16
    return entries


def test_noise_continues_over_failed_rounds_as_if_they_had_not_happened(people, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir(), other.mkdir()
    steady, failing = unreliable(people, one), unreliable(people, other)
    state, failed_state = algorithm().mechanism.init(ZERO), algorithm().mechanism.init(ZERO)
    for round in range(4):
        _, state = steady.private_mean(ZERO, state, round)
        failing._fleet.failing = round % 2
        _, failed_state = failing.private_mean(ZERO, failed_state, round)
    assert int(state.round) == int(failed_state.round) == 4
    assert len(failing.account.charges) == 4


def test_a_recorded_failure_survives_a_crash_and_its_cohort_stays_dropped(people, tmp_path):
    door = unreliable(people, tmp_path)
    door._fleet.failing = 1

    def crash(*arguments):
        raise Cut

    fail = door._log.fail
    door._log.fail = lambda: (fail(), crash())
    state = algorithm().mechanism.init(ZERO)
    with pytest.raises(Cut):
        door.private_mean(ZERO, state, 0)
    assert log(tmp_path).rows == 0
    assert log(tmp_path).failures(0) == 1
    again = unreliable(people, tmp_path, reopen=True)
    _, state = again.private_mean(ZERO, state, 0)
    assert log(tmp_path).rows == len(again.account.charges) == 1


def test_only_the_newest_entry_can_fail_and_only_before_another_is_recorded(tmp_path):
    book = log(tmp_path)
    with pytest.raises(
        ParticipationBreach, match="only the newest cohort of a log can have failed"
    ):
        book.fail()
    book.record(np.array([1, 2]))
    book.fail()
    with pytest.raises(
        ParticipationBreach, match="only the newest cohort of a log can have failed"
    ):
        book.fail()
    book.record(np.array([1, 2]))  # nothing was released about them, so they may be asked again
    book.eligible(np.arange(10))
    with pytest.raises(
        ParticipationBreach, match="only the newest cohort of a log can have failed"
    ):
        book.fail()
    assert log(tmp_path).observed_limits == (None, 1)


def test_a_failure_without_an_entry_before_it_is_refused(tmp_path):
    book = log(tmp_path)
    content = (-1).to_bytes(8, "little", signed=True)
    (tmp_path / "participation.log").write_bytes(content + book._checksum(book._chain, content))
    with pytest.raises(
        ParticipationBreach, match="only the newest cohort of a log can have failed"
    ):
        log(tmp_path)


# Found by a second reader, and kept.


def cyclic(cycle=1, probability=0.5):
    claim = CyclicPoisson(probability, cycle, 9)
    noise = banded_toeplitz(1.0, Bands(17, [1.0, 0.3][:cycle]))
    return algorithm(claim, mechanism(flat_clip(1.0), fixed_denominator(3.0), noise))


def test_no_two_rows_are_drawn_with_the_same_coins_after_any_crash(people, tmp_path, monkeypatch):
    """Row 1 is drawn, and a crash comes before its charge: its cohort stays, so row 2 must not use
    the same coins.
    """
    of = cyclic()
    book = log(tmp_path, *of.participation.limits)
    door = opened(people, tmp_path, of, book)
    start = of.mechanism.init(ZERO)
    _, after = door.private_mean(ZERO, start, 0)

    def crash(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Account, "charge", crash)
        with pytest.raises(KeyboardInterrupt):
            door.private_mean(ZERO, after, 1)
    again = opened(people, tmp_path, of, log(tmp_path, *of.participation.limits), reopen=True)
    state = start
    for round in range(3):
        _, state = again.private_mean(ZERO, state, round)
    rows = log(tmp_path, *of.participation.limits)
    assert rows.rows == len(again.account.charges) == 3
    assert np.array_equal(rows.cohort(1), book.cohort(1))
    assert len({tuple(rows.cohort(row)) for row in range(3)}) == 3


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_log_that_lost_the_entries_of_a_charged_row_stops_the_run(people, tmp_path, place):
    """[asked, failed, asked again] and [asked] are both one row; the charge records which it
    was.
    """
    door = unreliable(people, tmp_path)
    door._fleet.failing = 1
    start = algorithm().mechanism.init(ZERO)
    _, state = door.private_mean(ZERO, start, 0)
    path = tmp_path / "participation.log"
    content = path.read_bytes()
    failed = 8 + 8 * 3 + 16  # where the entry starts that says the first cohort failed
    damaged = bytearray(content)
    damaged[failed + place % (len(content) - failed)] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(
        ParticipationBreach, match=r"does not say who took part|do not belong together"
    ):
        opened(people, tmp_path, reopen=True).private_mean(ZERO, state, 1)
    path.write_bytes(content)
    opened(people, tmp_path, reopen=True).private_mean(ZERO, state, 1)


def test_a_fleet_that_fails_cannot_choose_a_cohort_that_is_claimed_to_be_drawn(people, tmp_path):
    of = cyclic()
    door = opened(people, tmp_path, of, log(tmp_path, *of.participation.limits))
    door._fleet = Unreliable(people, Layout(cut=Unrolls(4), batch_size=2, steps=1))
    door._fleet.failing = 1
    with pytest.raises(FailedRound, match="as it was told to"):
        door.private_mean(ZERO, of.mechanism.init(ZERO), 0)
    assert len(door.account.charges) == 0


def test_a_charged_round_that_can_no_longer_be_summed_is_released_from_its_record(people, tmp_path):
    door = unreliable(people, tmp_path)
    start = algorithm().mechanism.init(ZERO)
    first, _ = door.private_mean(ZERO, start, 0)
    again = unreliable(people, tmp_path, reopen=True)
    again._fleet.failing = 1
    given, state = again.private_mean(ZERO, start, 0)
    assert np.array_equal(first["x"], given["x"])
    assert (
        len(again.account.charges) == int(state.round) == again._fleet.failing == 1
    )  # no user was asked


def test_two_processes_that_log_different_cohorts_do_not_continue_with_the_wrong_one(
    people, tmp_path
):
    two, one = opened(people, tmp_path), opened(people, tmp_path, reopen=True)
    two._log.record(np.array([6, 9, 11]))  # asked, and interrupted before the charge
    _, state = one.private_mean(ZERO, algorithm().mechanism.init(ZERO), 0)
    assert np.array_equal(log(tmp_path).cohort(0), one._log.cohort(0))  # the one that is charged
    two._log.record(
        np.array([1, 2, 3])
    )  # still there; what it writes does not verify after what the other wrote
    again = opened(people, tmp_path, reopen=True)
    again.private_mean(ZERO, state, 1)
    assert not set(again._log.cohort(1)) & set(one._log.cohort(0))


def test_reading_a_log_changes_nothing_in_it(tmp_path):
    path = written(tmp_path)
    content = path.read_bytes()
    assert log(tmp_path, key=bytes(32)).rows == 0
    path.write_bytes(content + b"half an entry")
    assert log(tmp_path).rows == 4
    assert path.read_bytes() == content + b"half an entry"
    log(tmp_path).record(np.array([70, 71]))
    assert log(tmp_path).rows == 5


def test_a_charge_without_a_mark_stops_the_run(people, tmp_path, monkeypatch):
    """Runs of earlier versions have such charges."""
    door, charge = opened(people, tmp_path), Account.charge
    with monkeypatch.context() as patch:
        patch.setattr(
            Account, "charge", lambda self, round, record, log: charge(self, round, record)
        )
        _, state = door.private_mean(ZERO, algorithm().mechanism.init(ZERO), 0)
    with pytest.raises(ParticipationBreach, match="does not say who took part"):
        door.private_mean(ZERO, state, 1)


def test_one_band_is_independent_noise(people, tmp_path):
    noise = banded_toeplitz(1.0, Bands(17, [1.0]))
    state, drawn = noise.init(3), []
    for round in range(3):
        white = from_numpy(np.arange(3) + 10 * round)
        row, state = noise.next(state, lambda stream, white=white: white)
        drawn.append(int64.to_numpy(row))
        assert state == []
    np.testing.assert_array_equal(drawn, [np.arange(3) + 10 * round for round in range(3)])
