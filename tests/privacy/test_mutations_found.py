"""What no test noticed, or only a slow one, when the source was broken on purpose (tests/mutations): each of these does, and fast."""

import fcntl
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

from harness import cut_off_rows, nobody, noise_key, quietly, tiny_recipe
from taciturn import randomness, trees
from taciturn.core import Algorithm, Release, ServerState, UserData
from taciturn.fleets.simulation.check_in import AvailableFleet
from taciturn.fleets.simulation.queued import QueuedFleet
from taciturn.privacy import correlated_noise, sampler, wide
from taciturn.privacy.account import Account, RunTerms
from taciturn.privacy.accounting import Budget, epsilon, repeated
from taciturn.privacy.adaptive_clip import AdaptiveClip
from taciturn.privacy.clipping import REACH, flat_clip
from taciturn.privacy.correlated_noise import Bands, Buffers, banded, blt
from taciturn.privacy.curator import Curator
from taciturn.privacy.estimators import fixed_denominator
from taciturn.privacy.ledger import FILE_NAME, Ledger, LedgerError
from taciturn.privacy.mechanism import _grid, adaptive_mechanism, mechanism
from taciturn.privacy.noise import gaussian, no_noise
from taciturn.privacy.participation import CyclicPoisson, MinSeparation, PoissonSampling, WrongNumberOfUsers
from taciturn.privacy.participation_log import ParticipationLog
from taciturn.privacy.records import Records
from taciturn.release.gate import ExportRefused, check_may_leave, verified_guarantee
from taciturn.release.model_file import ModelCard, card_digest, params_digest
from taciturn.runs import run

USERS = 12
ZERO = {"x": jnp.zeros(4)}
EVERYONE = PoissonSampling(1.0)


class Loop:
    """Users who all report the same, and who of them was asked."""

    def __init__(self, everyone_reports: bool = True) -> None:
        self.everyone_reports, self.cohorts = everyone_reports, []

    def users(self, eligible):
        return eligible(np.arange(USERS))

    def sum_reports(self, program, message, cohort, key):
        self.cohorts.append(cohort.tolist())
        one = UserData(jnp.zeros(0), jnp.float32(1), jnp.int32(0))
        report = program(message, one, key)
        return jax.tree.map(lambda leaf: leaf * len(cohort), report)


def algorithm(multiplier=1.0, participation=EVERYONE, most_reports=USERS) -> Algorithm:
    """Updates are alike in all coordinates, so that what differs between coordinates is noise."""
    return Algorithm(
        init=lambda params: ServerState(params, ()),
        user_update=lambda message, user, key: {"x": message.params["x"] + 0.1},
        server_update=lambda server, estimate: ServerState(estimate, ()),
        mechanism=mechanism(flat_clip(1.0), fixed_denominator(6.0), gaussian(multiplier), most_reports),
        participation=participation,
    )


def opened(path, of=None, root=bytes(32), recipe="recipe", fleet=None) -> Curator:
    """A simulation, so that nothing is fresh, and what two runs have in common shows."""
    of = of or algorithm()
    terms = RunTerms("run", recipe, "p", of.participation.adjacency, "seeded simulation", "rdp", Budget(1e-5), 5)
    account = Account(Ledger(path / "ledger.jsonl"), terms, of.mechanism.event(of.participation))
    account.open()
    return Curator(of, fleet or Loop(), account, root)


def released(door, params=ZERO, round=0) -> np.ndarray:
    state = algorithm().mechanism.init(ZERO)._replace(round=jnp.int32(round))
    return np.asarray(door.private_mean(params, state, round)[0]["x"])


def is_constant(values) -> bool:
    return bool(np.ptp(values) < 1e-5)


# Reports.


def test_the_norm_is_right_at_every_scale():
    for scale in 10.0 ** np.arange(-37, 38, dtype=np.float64):
        values = (scale * np.array([3.0, -4.0])).astype(np.float32)
        truth = float(np.linalg.norm(values.astype(np.float64)))
        assert truth <= float(trees.norm_upper_bound({"a": jnp.asarray(values)})) <= truth * (1 + 1e-5)


def test_a_plain_norm_would_be_wrong_at_most_scales():
    """The twin: squares of float32 underflow below 1e-23 and overflow above 1e19."""
    values = np.array([[3e-30, 4e-30], [3e30, 4e30]], np.float32)
    with np.errstate(over="ignore", under="ignore"):
        assert np.sqrt(np.sum(np.square(values), axis=1)).tolist() == [0.0, np.inf]


def test_a_cohort_larger_than_a_total_has_room_for_is_not_summed(tmp_path):
    fleet = Loop()
    door = opened(tmp_path, algorithm(most_reports=USERS - 1), fleet=fleet)
    with pytest.raises(WrongNumberOfUsers, match="more users than"):
        released(door)
    assert fleet.cohorts == door.account.charges == []
    (tmp_path / "twin").mkdir()
    released(opened(tmp_path / "twin", algorithm(most_reports=USERS)))  # as many as there is room for are summed


def test_where_the_clip_norm_falls_a_report_counts_for_the_new_one():
    made = mechanism(flat_clip([(0, 4.0), (1, 1.0)]), fixed_denominator(1.0), no_noise())
    state = made.init(ZERO)
    for clip_norm in (4.0, 1.0):
        report = made.bound(made.public(state), {"x": jnp.full(4, 50.0)}, jnp.float32(1), jax.random.key(0))
        release, state = made.release(state, report, noise_key(0))
        assert float(jnp.linalg.norm(release.estimate["x"])) == pytest.approx(clip_norm, rel=1e-4)


# Noise.


@pytest.mark.parametrize("noise", [gaussian(1.0), correlated_noise.tree(1.0, 4), no_noise()])
def test_every_value_of_every_layer_is_noised(noise):
    layers = {"matrix": jnp.zeros((3, 2)), "number": jnp.float32(0), "vector": jnp.zeros(5)}
    made = mechanism(flat_clip(1.0), fixed_denominator(1.0), noise)
    release, _ = made.release(made.init(layers), nobody(made, layers), noise_key(1))
    is_noised = noise.multiplier > 0  # the twin: without noise, none is
    assert all(np.all((np.asarray(leaf) != 0) == is_noised) for leaf in jax.tree.leaves(release.estimate))


@pytest.mark.parametrize("noise", [blt(1.5, Buffers(9, (0.9,), (0.4,))), correlated_noise.tree(1.5, 9)])
def test_correlated_noise_is_made_of_white_noise_of_z_clip_norms(noise):
    """Neither more nor less by the strategy's sensitivity, which the cost has in it already."""
    made = mechanism(flat_clip(3.0), fixed_denominator(20.0), noise, most_reports=100)
    bits, spread = _grid(noise, 1.5 * REACH, REACH, REACH * 100, 4)
    assert spread.deviation == pytest.approx(1.5 * REACH * 2**bits, rel=2e-6)
    state, unit_state = made.init(ZERO), noise.init(4)
    for row in range(3):
        release, state = made.release(state, nobody(made, ZERO), noise_key(row))
        unit, unit_state = noise.next(
            unit_state, lambda stream, row=row: sampler.white(spread, noise_key(row), stream, 4)
        )
        expected = 1.5 * 3.0 / 20.0 * wide.to_numpy(unit) / spread.deviation
        np.testing.assert_allclose(release.estimate["x"], expected, rtol=1e-5, atol=1e-8)


def test_no_two_rounds_of_a_run_share_noise(tmp_path):
    door = opened(tmp_path)
    first = released(door, round=0)
    assert not is_constant(first - released(door, round=1))
    assert np.array_equal(first, released(door, round=0))  # the twin: the same round is the same release


@pytest.mark.parametrize(("recipe", "multiplier"), [("recipe", 2.0), ("another", 1.0)])
def test_one_root_under_two_recipes_or_noise_multipliers_has_other_noise(tmp_path, recipe, multiplier):
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir(), (tmp_path / "twin").mkdir()
    one = released(opened(tmp_path / "one"))
    two = released(opened(tmp_path / "two", algorithm(multiplier), recipe=recipe))
    assert not is_constant(multiplier * one - two)
    assert np.array_equal(one, released(opened(tmp_path / "twin")))  # one root under one recipe has the same


def test_noise_and_cohorts_do_not_follow_from_what_is_public(tmp_path, monkeypatch):
    """Two runs that look the same from outside, down to the checksums in their ledgers; only their roots differ."""
    monkeypatch.setattr(Records, "_checksum", lambda *_: "a checksum")

    def seen(name: str, root: bytes, q: float) -> tuple[list[list[int]], np.ndarray]:
        (tmp_path / name).mkdir()
        fleet = Loop()
        door = opened(tmp_path / name, algorithm(participation=PoissonSampling(q)), root, fleet=fleet)
        return fleet.cohorts, released(door)

    one, other = b"1" * 32, b"2" * 32
    cohorts = [seen(f"cohort {n}", root, 0.5)[0] for n, root in enumerate((one, other, one))]
    noised = [seen(f"noise {n}", root, 1.0)[1] for n, root in enumerate((one, other, one))]  # of the same total
    assert cohorts[0] != cohorts[1]
    assert not is_constant(noised[0] - noised[1])
    assert cohorts[0] == cohorts[2]  # the twin: whoever has the root has all of it
    assert np.array_equal(noised[0], noised[2])


def test_a_root_has_no_part_that_repeats():
    for _ in range(20):
        root = randomness.root_from_entropy()
        assert len({root[start : start + 4] for start in range(0, 32, 4)}) == 8


def test_one_user_moves_an_adaptive_round_by_the_clip_norm_in_force_and_by_half_a_count():
    made = adaptive_mechanism(AdaptiveClip(start=1.0, count_stddev=5.0), 100.0, correlated_noise.tree(2.0, 4, 4), 200)
    state = made.init(ZERO)

    def report(weight):
        return made.bound(made.public(state), {"x": jnp.full(4, 50.0)}, jnp.float32(weight), jax.random.key(0))

    crowd = jax.tree.map(lambda leaf: leaf * 100, report(1.0))  # all longer than the estimate, which rises
    _, state = made.release(state, crowd, noise_key(0))
    before = made.public(state)
    assert float(before.estimate) > 1.01 * float(before.clip_norm)  # the twin: to confuse the two would show
    without, with_one = (made.release(state, report(weight), noise_key(1)) for weight in (0.0, 1.0))
    moved = jnp.linalg.norm(with_one[0].estimate["x"] - without[0].estimate["x"])
    assert float(moved) == pytest.approx(float(before.clip_norm) / 100.0, rel=1e-3)
    estimates = [float(made.public(after).estimate) for _, after in (without, with_one)]
    assert np.log(estimates[1] / estimates[0]) / 0.2 == pytest.approx(0.5 / 100.0, rel=1e-2)


# Charges.


def test_the_charge_is_on_disk_before_anything_is_released(tmp_path, monkeypatch):
    door = opened(tmp_path)

    def charges() -> int:
        return sum(row["kind"] == "charge" for row in Ledger(tmp_path / "ledger.jsonl").run_rows("run"))

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


def test_a_record_a_charge_and_an_entry_of_the_log_are_synced_before_they_count(tmp_path, monkeypatch):
    synced, fsync = {}, os.fsync

    def watched(descriptor):
        fsync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", watched)
    door, log = opened(tmp_path), ParticipationLog(tmp_path / "participation.log", 2, 3, bytes(32))
    records = Records(tmp_path / "releases", bytes(32))
    for row in range(2):
        records.write(row, Release(ZERO), "-0")
        door.account.charge(len(door.account.charges), "record")
        log.record(np.array([log.rows]))
        release = tmp_path / "releases" / f"release-{row}"
        for path in (tmp_path / "ledger.jsonl", tmp_path / "participation.log", release):
            assert synced.get(path.stat().st_ino) == path.stat().st_size
    with open(tmp_path / "ledger.jsonl", "ab") as file:  # the twin: written, and not synced
        file.write(b"x")
    assert synced[(tmp_path / "ledger.jsonl").stat().st_ino] != (tmp_path / "ledger.jsonl").stat().st_size


def test_a_ledger_is_locked_while_it_is_written(tmp_path):
    book = opened(tmp_path).account.ledger

    def is_free() -> bool:
        with open(book.path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    free = []
    book.append({"kind": "note"}, lambda rows: free.append(is_free()))
    assert free == [False]
    assert is_free()  # the twin: and only then


def test_a_run_is_not_resumed_with_a_ledger_that_was_cut_off(population, tmp_path):
    recipe = tiny_recipe(population, run={"rounds": 2, "save_every": 1})
    path = population.folder / FILE_NAME

    def cut(done, *_):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train_run(recipe, tmp_path / "run", cut)
    whole, head = path.read_text(), path.with_suffix(".head").read_text()
    cut_off_rows(path, 2)  # the charge, and the model that came of it
    with pytest.raises(LedgerError, match="cut off"):
        run.resume_run(tmp_path / "run", quietly)
    path.write_text(whole)
    path.with_suffix(".head").write_text(head)
    assert run.resume_run(tmp_path / "run", quietly).guarantee.releases == 2  # the twin


def test_a_round_that_is_done_again_asks_nobody(tmp_path):
    fleet = Loop()
    door = opened(tmp_path, algorithm(participation=PoissonSampling(0.5)), fleet=fleet)
    first = released(door)
    assert np.array_equal(first, released(door, {"x": jnp.full(4, 0.3)}))  # whatever it would be computed from now
    assert len(fleet.cohorts) == len(door.account.charges) == 1
    released(door, round=1)  # the twin: another round asks others
    assert len(fleet.cohorts) == len(door.account.charges) == 2
    assert fleet.cohorts[0] != fleet.cohorts[1]


def test_no_round_is_charged_twice_or_out_of_turn_and_two_cost_twice(tmp_path):
    account = opened(tmp_path).account
    for wrong in (1, -1):
        with pytest.raises(LedgerError, match="not the next"):
            account.charge(wrong, "record")
    account.charge(0, "record")
    once = account.guarantee()
    with pytest.raises(LedgerError, match="not the next"):
        account.charge(0, "record")
    account.charge(1, "record")
    twice = account.guarantee()
    assert twice.epsilon == epsilon(repeated(account.release, 2), 1e-5, "rdp") > once.epsilon
    assert twice.rho == pytest.approx(2 * once.rho)


@pytest.mark.parametrize("claim", [MinSeparation(10, 3, 2, 20), CyclicPoisson(0.5, 4, 20)])
def test_all_rounds_of_correlated_noise_are_charged_with_the_first(claim):
    """When to stop may depend on what was seen. The twin: fewer rounds alone would cost less."""
    strategy = banded(3.0, Bands(28, [1.0, 0.5])).strategy
    event = claim.event(3.0, strategy)
    assert repeated(event, 1) == repeated(event, 20)
    assert repeated(replace(claim, rounds=1).event(3.0, strategy), 1) != repeated(event, 1)


def test_sampling_is_not_claimed_where_devices_may_drop_out(tmp_path):
    (tmp_path / "twin").mkdir()
    with pytest.raises(ValueError, match="everyone in it reports"):
        opened(tmp_path, fleet=Loop(everyone_reports=False))
    opened(tmp_path / "twin", fleet=Loop(everyone_reports=True))
    assert not AvailableFleet.everyone_reports
    assert not QueuedFleet.everyone_reports


# What leaves.


def test_other_parameters_do_not_leave_with_a_runs_guarantee(tmp_path):
    account, params = opened(tmp_path).account, {"w": np.ones(3, np.float32)}
    card = ModelCard({"kind": "lstm"}, ("<pad>",), {"source": "a list"}, run="run")
    card = replace(card, ledger_head=account.record_model(0, params_digest(params), card_digest(card)))
    assert verified_guarantee(params, card, account.ledger).run == "run"  # the twin: those on record may
    with pytest.raises(ExportRefused, match="does not know these parameters"):
        verified_guarantee({"w": np.full(3, 2.0, np.float32)}, card, account.ledger)


@pytest.mark.parametrize("release", [NonPrivateDpEvent(), GaussianDpEvent(1.0)])
def test_a_model_without_privacy_does_not_leave_unasked(tmp_path, release):
    terms = RunTerms("run", "r", "p", "add or remove one user", "operating system", "rdp", Budget(1e-5), 5)
    account = Account(Ledger(tmp_path / "ledger.jsonl"), terms, release)
    account.open()
    account.charge(0, "record")
    check_may_leave(account.guarantee(), non_private=True)
    if isinstance(release, NonPrivateDpEvent):
        with pytest.raises(ExportRefused, match="no privacy"):
            check_may_leave(account.guarantee(), non_private=False)
    else:
        check_may_leave(account.guarantee(), non_private=False)
