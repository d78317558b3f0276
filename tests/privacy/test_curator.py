"""The curator uses one noise key for one total and charges it before it leaves, despite crashes and
repeated calls.
"""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from curators import (
    DELTA,
    USERS,
    Loop,
    account_of,
    averaging,
    curator_of,
    few_people,
    is_constant,
    opened,
    simulated,
)
from harness import copied_ledger, noise_key
from taciturn import randomness
from taciturn.core import Algorithm, Public, Release
from taciturn.data.population import Population
from taciturn.fleets.simulation.check_in import CheckInFleet
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.fleets.simulation.queued import QueuedFleet
from taciturn.privacy import curator
from taciturn.privacy.accounting.accountant import Budget, epsilon
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.privacy.bounding.estimators import clipped_denominator, fixed_denominator
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.account import Account, BudgetExhausted
from taciturn.privacy.ledger.cohort_log import CohortLog, ParticipationBreach
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.privacy.ledger.releases import ReleaseError, Releases
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import gaussian
from taciturn.privacy.participation import FixedSize, PoissonSampling, WrongNumberOfUsers

ZERO, OTHER = {"x": jnp.zeros(4)}, {"x": jnp.full(4, 0.1)}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Population:
    return few_people(tmp_path_factory.mktemp("people"))


@pytest.fixture
def fleet(people: Population) -> SimulatedFleet:
    return simulated(people)


def test_a_second_call_with_other_params_gets_the_charged_release_again(fleet, tmp_path):
    door = opened(averaging(), fleet, tmp_path / FILE_NAME)
    state = averaging().mechanism.init(ZERO)
    given = [door.private_mean(params, state, 0)[0]["x"] for params in (ZERO, OTHER, ZERO)]
    assert np.array_equal(given[0], given[1])
    assert np.array_equal(given[0], given[2])
    assert len(door.account.charges) == 1


def test_rounds_whose_totals_differ_have_different_noise(fleet, tmp_path):
    """If the same noise were added to two totals, their difference would show it: it is the same in
    all coordinates.
    """
    door = opened(averaging(), fleet, tmp_path / FILE_NAME)
    first, state = door.private_mean(ZERO, averaging().mechanism.init(ZERO), 0)
    second, state = door.private_mean(OTHER, state, 1)
    third, _ = door.private_mean(ZERO, state, 2)
    assert not is_constant(first["x"] - second["x"])
    assert not is_constant(first["x"] - third["x"])
    assert len(door.account.charges) == 3


def test_the_same_noise_on_two_totals_is_noticed():
    """The twin that must fail."""
    private = averaging().mechanism
    state = private.init(ZERO)
    totals = [
        private.bound(Public(jnp.float32(1)), params, jnp.float32(1), jax.random.key(0))
        for params in (ZERO, OTHER)
    ]
    release = jax.jit(private.release)
    first, second = (release(state, total, noise_key(0))[0].estimate["x"] for total in totals)
    assert is_constant(first - second)
    assert not is_constant(first - release(state, totals[1], noise_key(1))[0].estimate["x"])


def test_a_call_with_another_state_releases_nothing(fleet, tmp_path):
    falling = averaging(
        private=mechanism(flat_clip([(0, 1.0), (1, 0.5)]), fixed_denominator(6.0), gaussian(1.0))
    )
    door = opened(falling, fleet, tmp_path / FILE_NAME)
    state = falling.mechanism.init(ZERO)
    later = state._replace(round=jnp.int32(1))
    for wrong, round in ((later, 0), (later, 1)):
        with pytest.raises(
            ValueError, match=r"does not continue from the state|cannot come before"
        ):
            door.private_mean(ZERO, wrong, round)
    assert len(door.account.charges) == 0
    first, after = door.private_mean(ZERO, state, 0)
    with pytest.raises(ValueError, match="does not continue from the state"):
        door.private_mean(ZERO, later, 0)
    with pytest.raises(ValueError, match="does not continue from the state"):
        door.private_mean(ZERO, state, 1)
    second, _ = door.private_mean(ZERO, after, 1)  # the twin
    assert not is_constant(first["x"] - second["x"])
    assert not is_constant(first["x"] - 2 * second["x"])
    assert len(door.account.charges) == 2


@pytest.mark.parametrize("spelling", ["0", 0.0])
def test_another_spelling_of_a_round_does_not_repeat_its_noise(fleet, tmp_path, spelling):
    door = opened(averaging(), fleet, tmp_path / FILE_NAME)
    state = averaging().mechanism.init(ZERO)
    first = door.private_mean(ZERO, state, 0)[0]
    try:
        second = door.private_mean(OTHER, state, spelling)[0]
    except (TypeError, ValueError):
        return
    assert not is_constant(first["x"] - second["x"])


def test_a_copied_ledger_does_not_repeat_noise_on_another_total(fleet, tmp_path):
    first_door = opened(averaging(), fleet, tmp_path / "first.jsonl")
    copied_ledger(tmp_path / "first.jsonl", tmp_path / "copy.jsonl")
    second_door = opened(averaging(), fleet, tmp_path / "copy.jsonl", reopen=True)
    state = averaging().mechanism.init(ZERO)
    first, second = (
        first_door.private_mean(ZERO, state, 0)[0],
        second_door.private_mean(OTHER, state, 0)[0],
    )
    assert not is_constant(first["x"] - second["x"])


def test_a_round_charged_and_lost_is_released_again_byte_for_byte(fleet, tmp_path):
    door = opened(averaging(), fleet, tmp_path / FILE_NAME)
    state = averaging().mechanism.init(ZERO)
    before, state_before = door.private_mean(ZERO, state, 0)
    for params in (ZERO, OTHER):  # whatever it would be computed from now
        book = account_of(averaging(), tmp_path / FILE_NAME)
        book.reopen(None)
        after, state_after = curator_of(averaging(), fleet, book).private_mean(params, state, 0)
        assert np.array_equal(before["x"], after["x"])
        assert int(state_before.round) == int(state_after.round) == 1
        assert len(book.charges) == 1


def test_a_round_whose_record_is_lost_is_not_computed_again(fleet, tmp_path):
    door = opened(averaging(), fleet, tmp_path / FILE_NAME)
    door.private_mean(ZERO, averaging().mechanism.init(ZERO), 0)
    shutil.rmtree((tmp_path / FILE_NAME).with_suffix(".releases"))
    book = account_of(averaging(), tmp_path / FILE_NAME)
    book.reopen(None)
    with pytest.raises(ReleaseError, match="record is gone"):
        curator_of(averaging(), fleet, book).private_mean(ZERO, averaging().mechanism.init(ZERO), 0)
    assert len(book.charges) == 1


def test_a_process_whose_run_another_one_resumed_releases_nothing(fleet, tmp_path):
    second = opened(averaging(), fleet, tmp_path / FILE_NAME)
    first = opened(averaging(), fleet, tmp_path / FILE_NAME, reopen=True)
    state = averaging().mechanism.init(ZERO)
    given, _ = first.private_mean(ZERO, state, 0)
    with pytest.raises(LedgerError, match="another process"):
        second.private_mean(OTHER, state, 0)
    # Nor does it remove the release of the other, which is charged.
    book = account_of(averaging(), tmp_path / FILE_NAME)
    book.reopen(None)
    again, _ = curator_of(averaging(), fleet, book).private_mean(ZERO, state, 0)
    assert np.array_equal(again["x"], given["x"])


def test_an_empty_cohort_is_released_as_noise_and_charged(fleet, tmp_path):
    for name, estimator in (
        ("fixed", fixed_denominator(6.0)),
        ("clipped", clipped_denominator(6.0)),
    ):
        of = averaging(PoissonSampling(1e-12), mechanism(flat_clip(1.0), estimator, gaussian(1.0)))
        door = opened(of, fleet, tmp_path / FILE_NAME, name=name)
        estimate, _ = door.private_mean(ZERO, of.mechanism.init(ZERO), 0)
        assert np.all(np.isfinite(estimate["x"]))
        assert np.all(np.asarray(estimate["x"]) != 0)
        assert len(door.account.charges) == 1


def test_nothing_is_released_on_an_account_that_was_never_opened(fleet, tmp_path):
    door = curator_of(averaging(), fleet, account_of(averaging(), tmp_path / FILE_NAME))
    with pytest.raises(LedgerError, match="open it first"):
        door.private_mean(ZERO, averaging().mechanism.init(ZERO), 0)


def test_an_account_for_a_cheaper_mechanism_than_the_one_that_runs_is_refused(fleet, tmp_path):
    of = averaging()
    louder = averaging(private=mechanism(flat_clip(1.0), fixed_denominator(6.0), gaussian(5.0)))
    with pytest.raises(ValueError, match="another mechanism"):
        curator_of(of, fleet, account_of(louder, tmp_path / FILE_NAME))


def test_an_account_under_another_adjacency_is_refused(fleet, tmp_path):
    of = averaging(FixedSize(6, 12))
    with pytest.raises(ValueError, match="adjacency"):
        opened(of, fleet, tmp_path / FILE_NAME, adjacency=PoissonSampling(0.5).adjacency)


def test_the_budget_holds_when_every_round_is_interrupted_and_repeated(fleet, tmp_path):
    of = averaging()
    limit = epsilon(repeat(of.mechanism.event(of.participation), 3), DELTA, "rdp")
    door = opened(of, fleet, tmp_path / FILE_NAME, budget=Budget(delta=DELTA, epsilon=limit))
    state = of.mechanism.init(ZERO)
    for round in range(3):
        for attempt in range(4):
            _, after = door.private_mean({"x": jnp.full(4, 0.01 * attempt)}, state, round)
        state = after
    with pytest.raises(BudgetExhausted, match="allows 3 releases; all are spent"):
        door.private_mean(ZERO, state, 3)
    assert len(door.account.charges) == 3
    assert door.account.guarantee().epsilon <= limit


def test_an_incomplete_row_is_removed_after_a_crash_and_the_chain_continues(fleet, tmp_path):
    path = tmp_path / FILE_NAME
    opened(averaging(), fleet, path)
    with open(path, "ab") as file:
        file.write(b'{"kind": "charge", "run": "ru')
    book = account_of(averaging(), path)
    book.reopen(None)
    curator_of(averaging(), fleet, book).private_mean(ZERO, averaging().mechanism.init(ZERO), 0)
    assert [row["kind"] for row in Ledger(path).rows] == [
        "ledger",
        "open",
        "torn",
        "resume",
        "charge",
    ]


def noised_by(multiplier=1.0, participation=PoissonSampling(1.0), most_reports=USERS) -> Algorithm:
    return averaging(
        participation,
        mechanism(flat_clip(1.0), fixed_denominator(6.0), gaussian(multiplier), most_reports),
    )


def repeatable(folder, of=None, root=bytes(32), recipe="recipe", fleet=None) -> Curator:
    """Make a simulation, in which nothing is fresh, so that what two runs have in common shows."""
    path = folder / FILE_NAME
    return opened(
        of or noised_by(),
        fleet or Loop(),
        path,
        root,
        recipe=recipe,
        randomness="seeded simulation",
    )


def released(door, params=ZERO, round=0) -> np.ndarray:
    state = noised_by().mechanism.init(ZERO)._replace(round=jnp.int32(round))
    return np.asarray(door.private_mean(params, state, round)[0]["x"])


class Chosen:
    """A participation of one's own: `choose` makes a cohort of those who are there."""

    adjacency = "add or remove one user"
    sampled_by_curator = False
    limits = None

    # Set by tests, so that all of them share what is compiled.
    choose = None

    def select(self, available, row, coins):
        assert self.choose is not None
        return self.choose(available)

    def event(self, noise_multiplier, strategy):
        return GaussianDpEvent(noise_multiplier)


CHOSEN = Chosen()
NOBODYS = {
    "one of them three times": lambda there: np.array([3, 3, 3]),
    "not in order": lambda there: there[::-1],
    "the last as minus one": lambda there: np.array([-1, USERS - 1]),
    "one who is not there": lambda there: np.array([0, USERS]),
    "one who was there": lambda there: np.append(there, USERS + 4),
    "yes or no": lambda there: there < 5,
    "parts of users": lambda there: there + 0.5,
    "a table": lambda there: there[:, None],
    "a number": lambda there: there[3],
    "a set": lambda there: set(there.tolist()),
    "nothing": lambda there: None,
}


@pytest.mark.parametrize("choose", NOBODYS.values(), ids=NOBODYS)
def test_a_cohort_of_ones_own_has_each_user_once_or_nobody_is_asked(tmp_path, monkeypatch, choose):
    def released(cohort):
        monkeypatch.setattr(CHOSEN, "choose", cohort)
        loop = Loop()
        of = averaging(CHOSEN)
        door = opened(of, loop, tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl")
        try:
            door.private_mean(ZERO, of.mechanism.init(ZERO), 0)
        finally:
            assert len(door.account.charges) == len(loop.cohorts)
        return loop.cohorts[0]

    with pytest.raises(ParticipationBreach, match="Nobody was asked, and nothing was charged"):
        released(choose)
    assert released(lambda there: there[2:5]) == [2, 3, 4]
    assert released(lambda there: []) == []
    # The twin: as it was, whatever was chosen was summed.
    monkeypatch.setattr(curator, "_check_cohort", lambda cohort, users: cohort)
    chosen = np.asarray(choose(np.arange(USERS)))
    if chosen.ndim:
        assert released(choose) == chosen.tolist()
        return
    # What is not a list ended in no sentence.
    with pytest.raises(TypeError, match="unsized"):
        released(choose)


def test_a_fleet_that_lists_a_user_twice_is_refused(tmp_path):
    class Twice(Loop):
        def users(self, eligible):
            return eligible(np.repeat(np.arange(USERS), 2))

    door = opened(averaging(), Twice(), tmp_path / FILE_NAME)
    with pytest.raises(ParticipationBreach, match="users` of the fleet"):
        door.private_mean(ZERO, averaging().mechanism.init(ZERO), 0)
    assert not door.account.charges


@pytest.mark.parametrize("form", [list, lambda users: range(len(users))])
def test_a_fleet_may_list_its_users_as_it_likes(tmp_path, monkeypatch, form):
    class Listing(Loop):
        def users(self, eligible):
            return form(eligible(np.arange(USERS)))

    of = averaging(CHOSEN)
    fleet = Listing()
    monkeypatch.setattr(CHOSEN, "choose", lambda there: there[2:5])
    door = opened(of, fleet, tmp_path / FILE_NAME)
    door.private_mean(ZERO, of.mechanism.init(ZERO), 0)
    assert fleet.cohorts == [[2, 3, 4]]


def test_a_cohort_larger_than_a_total_has_room_for_is_not_summed(tmp_path):
    fleet = Loop()
    door = repeatable(tmp_path, noised_by(most_reports=USERS - 1), fleet=fleet)
    with pytest.raises(WrongNumberOfUsers, match="there are more than participation") as refused:
        released(door)
    assert str(USERS) not in str(refused.value)  # how many were drawn is a secret
    assert fleet.cohorts == door.account.charges == []
    (tmp_path / "twin").mkdir()
    released(
        repeatable(tmp_path / "twin", noised_by(most_reports=USERS))
    )  # as many as there is room for are summed


def test_no_two_rounds_of_a_run_share_noise(tmp_path):
    door = repeatable(tmp_path)
    first = released(door, round=0)
    assert not is_constant(first - released(door, round=1))
    assert np.array_equal(
        first, released(door, round=0)
    )  # the twin: the same round is the same release


@pytest.mark.parametrize(("recipe", "multiplier"), [("recipe", 2.0), ("another", 1.0)])
def test_one_root_gives_different_noise_under_other_recipes_or_noise_multipliers(
    tmp_path, recipe, multiplier
):
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir(), (tmp_path / "twin").mkdir()
    one = released(repeatable(tmp_path / "one"))
    two = released(repeatable(tmp_path / "two", noised_by(multiplier), recipe=recipe))
    assert not is_constant(multiplier * one - two)
    assert np.array_equal(
        one, released(repeatable(tmp_path / "twin"))
    )  # one root under one recipe has the same


def test_noise_and_cohorts_do_not_follow_from_what_is_public(tmp_path, monkeypatch):
    """Compare two runs that look the same from outside, down to the checksums in their ledgers;
    only their roots differ.
    """
    monkeypatch.setattr(Releases, "_checksum", lambda *_: "a checksum")

    def seen(name: str, root: bytes, q: float) -> tuple[list[list[int]], np.ndarray]:
        (tmp_path / name).mkdir()
        fleet = Loop()
        door = repeatable(
            tmp_path / name, noised_by(participation=PoissonSampling(q)), root, fleet=fleet
        )
        return fleet.cohorts, released(door)

    one, other = b"1" * 32, b"2" * 32
    cohorts = [seen(f"cohort {n}", root, 0.5)[0] for n, root in enumerate((one, other, one))]
    noised = [
        seen(f"noise {n}", root, 1.0)[1] for n, root in enumerate((one, other, one))
    ]  # of the same total
    assert cohorts[0] != cohorts[1]
    assert not is_constant(noised[0] - noised[1])
    assert cohorts[0] == cohorts[2]  # the twin: all of it follows from the root
    assert np.array_equal(noised[0], noised[2])


def test_a_root_has_no_part_that_repeats():
    for _ in range(20):
        root = randomness.root_from_entropy()
        assert len({root[start : start + 4] for start in range(0, 32, 4)}) == 8


def test_the_charge_is_on_disk_before_anything_is_released(tmp_path, monkeypatch):
    door = repeatable(tmp_path)

    def charges() -> int:
        return sum(
            row["kind"] == "charge" for row in Ledger(tmp_path / "ledger.jsonl").run_rows("run")
        )

    for round in range(2):
        released(door, round=round)
        assert charges() == round + 1

    def power_cut(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Account, "charge", power_cut)
    with pytest.raises(KeyboardInterrupt):
        released(door, round=2)
    monkeypatch.undo()
    assert charges() == 2
    released(door, round=2)  # the twin: and with a charge it leaves
    assert charges() == 3


def test_a_record_a_charge_and_an_entry_of_the_log_are_synced_before_they_count(
    tmp_path, monkeypatch
):
    synced, fsync = {}, os.fsync

    def watched(descriptor):
        fsync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", watched)
    door = repeatable(tmp_path)
    log = CohortLog(
        path=tmp_path / "participation.log",
        min_separation=2,
        max_participations=3,
        key=bytes(32),
    )
    records = Releases(tmp_path / "releases", bytes(32))
    for row in range(2):
        records.write(row, Release(ZERO), "-0")
        door.account.charge(len(door.account.charges), "record")
        log.record(np.array([log.rows]))
        release = tmp_path / "releases" / f"release-{row}"
        for path in (tmp_path / "ledger.jsonl", tmp_path / "participation.log", release):
            assert synced.get(path.stat().st_ino) == path.stat().st_size
    with open(tmp_path / "ledger.jsonl", "ab") as file:  # the twin: written, and not synced
        file.write(b"x")
    assert (
        synced[(tmp_path / "ledger.jsonl").stat().st_ino]
        != (tmp_path / "ledger.jsonl").stat().st_size
    )


def test_a_round_that_is_repeated_asks_no_users(tmp_path):
    fleet = Loop()
    door = repeatable(tmp_path, noised_by(participation=PoissonSampling(0.5)), fleet=fleet)
    first = released(door)
    assert np.array_equal(
        first, released(door, {"x": jnp.full(4, 0.3)})
    )  # whatever it would be computed from now
    assert len(fleet.cohorts) == len(door.account.charges) == 1
    released(door, round=1)  # the twin: another round asks others
    assert len(fleet.cohorts) == len(door.account.charges) == 2
    assert fleet.cohorts[0] != fleet.cohorts[1]


def test_sampling_is_not_claimed_where_devices_may_drop_out(tmp_path):
    (tmp_path / "twin").mkdir()
    with pytest.raises(ValueError, match="everyone in it reports"):
        repeatable(tmp_path, fleet=Loop(everyone_reports=False))
    repeatable(tmp_path / "twin", fleet=Loop(everyone_reports=True))
    assert not CheckInFleet.everyone_reports
    assert not QueuedFleet.everyone_reports


@pytest.mark.parametrize("schedule", [0.3, [(0, 0.8), (2, 0.37), (5, 0.1)]])
def test_devices_get_the_clip_norm_of_their_round_to_the_bit(schedule):
    """Compare the compiled program that the curator uses with the definition. The twin is compiled
    for the first round only.
    """
    clipped = mechanism(flat_clip(schedule), fixed_denominator(1.0), gaussian(1.0))
    sent, state = jax.jit(clipped.public), clipped.init(ZERO)
    rounds = [state._replace(round=jnp.int32(round)) for round in range(8)]
    right = [np.asarray(clipped.public(one).clip_norm).tobytes() for one in rounds]
    assert [np.asarray(sent(one).clip_norm).tobytes() for one in rounds] == right
    stale = jax.jit(lambda _: clipped.public(state))
    assert ([np.asarray(stale(one).clip_norm).tobytes() for one in rounds] == right) == isinstance(
        schedule, float
    )
