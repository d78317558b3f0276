"""A claim about participation is enforced before anything is summed, and survives crashes."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.core import Algorithm, ServerState
from taciturn.data.layout import Layout, Unrolls
from taciturn.data.population import build_population
from taciturn.data.vocabulary import Vocabulary
from taciturn.fleets.simulated import SimulatedFleet
from taciturn.privacy.account import Account, RunTerms
from taciturn.privacy.accounting import Budget
from taciturn.privacy.clipping import flat_clip
from taciturn.privacy.correlated_noise import blt
from taciturn.privacy.curator import Curator
from taciturn.privacy.estimators import fixed_denominator
from taciturn.privacy.ledger import Ledger
from taciturn.privacy.mechanism import mechanism
from taciturn.privacy.participation import MinSeparation, PoissonSampling, WrongNumberOfUsers
from taciturn.privacy.participation_log import ParticipationBreach, ParticipationLog

WORDS = Vocabulary(("<pad>", "<unk>", "<bos>", "<eos>", ".", "hello", "world"))
ZERO = {"x": jnp.zeros(400)}
CLAIM = MinSeparation(size=3, min_separation=2, max_participations=3, rounds=9)


def log(tmp_path, min_separation=2, max_participations=3):
    return ParticipationLog(tmp_path / "participation.log", min_separation, max_participations)


def test_nobody_takes_part_too_soon_or_too_often(tmp_path):
    book = log(tmp_path)
    book.record(0, 0, np.array([1, 2]))
    for row in (1, 2):
        with pytest.raises(ParticipationBreach, match="less than 2 rounds ago"):
            book.record(row, 0, np.array([2, 9 + row]))
        book.record(row, 0, np.array([10 * row]))
    book.record(3, 0, np.array([1, 2]))  # two rounds in between
    book.record(4, 0, np.array([5]))
    book.record(5, 0, np.array([6]))
    book.record(6, 0, np.array([1]))
    for row in (7, 8, 9, 10):
        book.record(row, 0, np.array([100 + row]))
    with pytest.raises(ParticipationBreach):
        book.record(11, 0, np.array([1]))  # a fourth time
    assert 1 not in book.eligible(np.arange(10))
    assert 2 in book.eligible(np.arange(10))
    assert book.observed == (2, 3)


def test_a_user_cannot_be_twice_in_one_cohort_nor_a_round_have_two(tmp_path):
    book = log(tmp_path)
    with pytest.raises(ParticipationBreach, match="twice"):
        book.record(0, 0, np.array([1, 1]))
    book.record(0, 0, np.array([1]))
    with pytest.raises(ParticipationBreach, match="already"):
        book.record(0, 0, np.array([2]))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 200))
def test_a_log_cut_off_anywhere_is_whole_up_to_there(tmp_path_factory, bytes_kept):
    folder = tmp_path_factory.mktemp("log")
    book = log(folder)
    for row in range(4):
        book.record(row, 0, np.array([row, 10 + row]))
    path = folder / "participation.log"
    path.write_bytes(path.read_bytes()[:bytes_kept])
    again = log(folder)
    assert again.rows == min(bytes_kept // 40, 4)
    for row in range(again.rows):
        assert again.cohort(row, 0).tolist() == [row, 10 + row]
    again.record(again.rows, 0, np.array([50, 51]))
    assert log(folder).rows == again.rows
    assert path.stat().st_mode & 0o077 == 0


def algorithm(participation=CLAIM, private=None):
    """Every user's update is one number in all coordinates, so that what differs between coordinates is noise."""
    return Algorithm(
        init=lambda params: ServerState(params, ()),
        user_update=lambda message, user, key: {"x": message.params["x"] + 1e-3 * jnp.sum(user.batches)},
        server_update=lambda server, estimate: ServerState(estimate, ()),
        mechanism=private or mechanism(flat_clip(1.0), fixed_denominator(3.0), blt(1.0, 17, (0.9,), (0.4,))),
        participation=participation,
    )


@pytest.fixture
def people(tmp_path):
    users = {f"u{k}": [4 + k % 3] * 8 for k in range(12)}
    return build_population(tmp_path / "people", users, {"held out": [4]}, WORDS, {})


def opened(people, tmp_path, of=None, book=None, reopen=False):
    of = of or algorithm()
    terms = RunTerms("run", "recipe", "people", of.participation.adjacency, "operating system", "rdp", Budget(1e-5), 9)
    account = Account(Ledger(tmp_path / "ledger.jsonl"), terms, of.mechanism.event(of.participation))
    account.reopen(None) if reopen else account.open()
    fleet = SimulatedFleet(people, Layout(Unrolls(4), 2, 1))
    return Curator(of, fleet, account, bytes(32), book or log(tmp_path))


def rounds(door, count, params=ZERO):
    state, estimates = algorithm().mechanism.init(ZERO), []
    for round in range(count):
        estimate, state = door.private_mean(params, state, round)
        estimates.append(np.asarray(estimate["x"]))
    return estimates, state


def test_cohorts_keep_the_claim_without_being_told(people, tmp_path):
    door = opened(people, tmp_path)
    rounds(door, 9)
    book = log(tmp_path)
    assert book.rows == 9
    observed, times = book.observed
    assert observed >= 2
    assert times <= 3


def test_a_fleet_that_breaks_the_claim_is_stopped_before_the_sum(people, tmp_path, monkeypatch):
    door = opened(people, tmp_path)
    monkeypatch.setattr(MinSeparation, "select", lambda self, available, generator: np.array([0, 1, 2]))
    state = algorithm().mechanism.init(ZERO)
    _, state = door.private_mean(ZERO, state, 0)
    with pytest.raises(ParticipationBreach):
        door.private_mean(ZERO, state, 1)
    assert len(door.account.charges) == 1


def test_too_few_users_for_the_separation_is_said(people, tmp_path):
    of = algorithm(
        MinSeparation(5, 2, 3, 9), mechanism(flat_clip(1.0), fixed_denominator(5.0), blt(1.0, 17, (0.9,), (0.4,)))
    )
    door = opened(people, tmp_path, of)
    state = of.mechanism.init(ZERO)
    for round in range(2):
        _, state = door.private_mean(ZERO, state, round)
    with pytest.raises(WrongNumberOfUsers, match="only 2 users may take part"):
        door.private_mean(ZERO, state, 2)


def test_a_claim_and_its_log_go_together(people, tmp_path):
    of = algorithm()
    terms = RunTerms("run", "recipe", "people", CLAIM.adjacency, "operating system", "rdp", Budget(1e-5), 9)
    account = Account(Ledger(tmp_path / "ledger.jsonl"), terms, of.mechanism.event(CLAIM))
    fleet = SimulatedFleet(people, Layout(Unrolls(4), 2, 1))
    for book in (None, log(tmp_path, 1, 3), log(tmp_path, 2, 4)):
        with pytest.raises(ValueError, match="needs a log"):
            Curator(of, fleet, account, bytes(32), book)
    Curator(of, fleet, account, bytes(32), log(tmp_path))


def test_correlated_noise_is_refused_with_sampling_and_with_a_clip_norm_that_changes():
    noise = blt(1.0, 17, (0.9,), (0.4,))
    private = mechanism(flat_clip(1.0), fixed_denominator(3.0), noise)
    with pytest.raises(ValueError, match="min-separation"):
        private.event(PoissonSampling(0.5))
    with pytest.raises(ValueError, match="cannot change"):
        mechanism(flat_clip([(0, 1.0), (4, 0.5)]), fixed_denominator(3.0), noise)


def test_a_lost_round_is_given_out_again_byte_for_byte(people, tmp_path):
    first, _ = rounds(opened(people, tmp_path), 4)
    again, _ = rounds(opened(people, tmp_path, reopen=True), 4)
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert len(Ledger(tmp_path / "ledger.jsonl").run_rows("run")) == 1 + 4


def test_a_round_that_cannot_be_repeated_uses_up_its_row_of_noise(people, tmp_path):
    """The round is charged and released; then a crash, and the total comes out otherwise (other hardware, other text)."""
    door = opened(people, tmp_path)
    start = algorithm().mechanism.init(ZERO)
    lost, after_lost = door.private_mean(ZERO, start, 0)
    other = {"x": jnp.full(400, 0.01)}
    redone, state = opened(people, tmp_path, reopen=True).private_mean(other, start, 0)
    assert int(state.round) == 2  # the lost row and this one
    assert log(tmp_path).rows == 2
    assert set(log(tmp_path).cohort(0, 0)).isdisjoint(log(tmp_path).cohort(0, 1))  # who was asked has to rest
    # What is given out is the *next* row: it takes back its share of the lost row's noise, ω · z_lost, as its cost assumes.
    lost_noise = np.asarray(lost["x"]) - np.mean(lost["x"])
    noise = np.asarray(redone["x"]) - np.mean(redone["x"])
    share = -np.dot(noise, lost_noise) / np.dot(lost_noise, lost_noise)
    assert share == pytest.approx(0.4, abs=0.15)
    # The twin: with the state of before, rows are not correlated, and that is not what was charged.
    assert abs(share) > 0.2
    assert int(after_lost.round) == 1


def test_rounds_cannot_start_from_another_state_than_the_last_one_left(people, tmp_path):
    door = opened(people, tmp_path)
    start = algorithm().mechanism.init(ZERO)
    _, first = door.private_mean(ZERO, start, 0)
    with pytest.raises(ValueError, match="after 1 releases, not after 0"):
        door.private_mean(ZERO, start, 1)
    forged = first._replace(noise=start.noise)
    with pytest.raises(ValueError, match="does not go on from the state"):
        door.private_mean(ZERO, forged, 1)
    door.private_mean(ZERO, first, 1)
    assert len(door.account.charges) == 2


def test_there_is_no_more_noise_than_was_declared(people, tmp_path):
    door = opened(people, tmp_path)
    assert door.account.allowed == 17  # nine rounds, and a few to do again
