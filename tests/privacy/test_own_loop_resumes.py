"""Your own loop, interrupted anywhere, resumes: each round is charged once, no noise is in two
releases, none is lost, and a seeded loop ends with the same bytes.
"""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

import own_loops
import taciturn as tt
from harness import Cut
from own_loops import (
    START,
    USERS,
    Notes,
    check_what_left,
    never_repeat_a_sum,
    parameters,
    put_steps,
)
from taciturn.files import FolderExists, lock_file
from taciturn.privacy.curator import Curator, device_program
from taciturn.privacy.fingerprint import describe_origin
from taciturn.privacy.ledger.account import Account, BudgetExhausted
from taciturn.privacy.ledger.adopt import adopt
from taciturn.privacy.ledger.hash_chain import LedgerError
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.population_budget import PopulationBudget
from taciturn.privacy.ledger.releases import ReleaseError, Releases
from taciturn.privacy.own_loop import OwnLoopError
from taciturn.training import start as start_training

ROUNDS = 3
ALGORITHMS = own_loops.algorithms(ROUNDS)


class Killer:
    """Counts steps, and cuts the power at one of them."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.cut_at: int | None = None

    def __call__(self, name: str) -> None:
        self.steps.append(name)
        if len(self.steps) - 1 == self.cut_at:
            raise Cut


def kill_at_each_step(folder: Path, monkeypatch, name: str, seed: int | None, every: int) -> int:
    """Cut a loop at each step, or each few, and once more on its way on; check what is left.

    Returns the number of steps at which it was.
    """
    notes = Notes([], [])
    killer = Killer()
    put_steps(monkeypatch.setattr, killer, notes)
    if seed is None:
        never_repeat_a_sum(monkeypatch.setattr)

    def train(to: Path, cut_at: int | None = None) -> None:
        killer.steps = []
        killer.cut_at = cut_at
        own_loops.train(to, ALGORITHMS[name], seed, ROUNDS, killer, notes)

    whole = folder / "whole"
    train(whole)
    check_what_left(whole, ROUNDS, notes)
    steps = len(killer.steps)
    places = range(0, steps, every)
    for place in places:
        notes.releases.clear()
        notes.states.clear()
        cut = folder / f"cut-{place}"
        with pytest.raises(Cut):
            train(cut, place)
        try:
            train(cut, 20 + place % 7)
        except Cut:
            train(cut)
        check_what_left(cut, ROUNDS, notes)
        if seed is not None:
            assert parameters(cut) == parameters(whole), place
        shutil.rmtree(cut)
    return len(places)


CUT = {
    "DP-FedAvg with a seed": ("dp-fedavg", 7),
    "DP-FedAvg": ("dp-fedavg", None),
    "DP-FTRL with a tree and a seed": ("dp-ftrl-tree", 7),
    "DP-FTRL with a BLT": ("dp-ftrl-blt", None),
}


@pytest.mark.parametrize(("name", "seed"), CUT.values(), ids=CUT)
def test_a_loop_cut_anywhere_charges_each_round_once(tmp_path, monkeypatch, name, seed):
    assert kill_at_each_step(tmp_path, monkeypatch, name, seed, every=17) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), CUT.values(), ids=CUT)
def test_a_loop_cut_at_every_single_step_charges_each_round_once(tmp_path, monkeypatch, name, seed):
    assert kill_at_each_step(tmp_path, monkeypatch, name, seed, every=1) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("case", ["DP-FedAvg", "DP-FTRL with a tree and a seed"])
def test_a_loop_killed_at_each_kind_of_step_charges_each_round_once(tmp_path, monkeypatch, case):
    """kill −9, for real: one loop, in one process after the other."""
    name, seed = CUT[case]
    rounds = 90
    killer = Killer()
    with monkeypatch.context() as patched:
        put_steps(patched.setattr, killer, Notes([], []))
        own_loops.train(tmp_path / "here", ALGORITHMS[name], seed, ROUNDS, killer, Notes([], []))
    last_round = len(killer.steps) - killer.steps[::-1].index("yielded")
    killed = tmp_path / "killed"
    whole = tmp_path / "whole"

    def run(place: str, most: int, folder: Path = killed) -> int:
        folder.mkdir(exist_ok=True)
        settings = [folder, name, "none" if seed is None else seed, rounds, place, most]
        command = [sys.executable, own_loops.__file__, *map(str, settings)]
        return subprocess.run(command, check=False).returncode

    kills = 0
    for place in dict.fromkeys(killer.steps):
        is_at_the_end = killer.steps.index(place) >= last_round
        kills += run(place, most=-1 if is_at_the_end else 3) == -signal.SIGKILL
    assert run("the end", most=-1) == 0
    print(f"{name}, {seed}: killed {kills} times, at {len(set(killer.steps))} kinds of steps")
    assert kills >= 20
    notes = Notes([], [])
    for line in (killed / "notes.jsonl").read_text().splitlines():
        releases, states = json.loads(line)
        notes.releases.extend(map(tuple, releases))
        notes.states.extend(map(tuple, states))
    check_what_left(killed, rounds, notes)
    if seed is not None:
        assert run("the end", most=-1, folder=whole) == 0
        assert parameters(killed) == parameters(whole)


def charge_before_the_record(curator, release, noise_name, round):
    record = Releases(None, curator._records._key).write(round, release, noise_name)
    mark = curator._log.mark(round) if curator._log else ""
    curator.account.charge(round, record, mark)
    curator._records.write(round, release, noise_name)


def forget_before_the_state(curator, state):
    curator.forget_records(before=state.round)
    curator._loop.save(state)


BROKEN = {
    "no fresh bytes": (Account, "nonce", property(lambda account: b""), "noise was added to two"),
    "a charge before its record": (
        Curator,
        "_record_and_charge",
        charge_before_the_record,
        "is charged, and its record is gone",
    ),
    "records forgotten before the state is there": (
        Curator,
        "keep_state",
        forget_before_the_state,
        "is charged, and its record is gone",
    ),
}


@pytest.mark.parametrize(("room", "name", "broken", "words"), BROKEN.values(), ids=BROKEN)
def test_the_twin_in_which_steps_are_out_of_order_is_noticed(
    tmp_path, monkeypatch, room, name, broken, words
):
    monkeypatch.setattr(room, name, broken)
    with pytest.raises((AssertionError, ReleaseError), match=words):
        kill_at_each_step(tmp_path, monkeypatch, "dp-fedavg", None, every=2)


# What is refused.


def averaging(**other):
    settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "users": 20, "cohort": 10}
    update = other.pop("user_update", own_loops.move)
    return tt.private_averaging(update, **(settings | other))


ALGORITHM = averaging()


def opened(place, algorithm=ALGORITHM, users=USERS, **other):
    settings = {"ledger": place / "ledger.jsonl", "folder": place / "loop", "rounds": 8}
    return tt.Curator.for_simulation(algorithm, users, **(settings | other))


def train(place, until, algorithm=ALGORITHM, start=START, **settings):
    """Return the states that are yielded up to this round."""
    curator = opened(place, algorithm, **settings)
    states = []
    for state in tt.rounds(algorithm, curator, start):
        states.append(state)
        if state.round == until:
            break
    return states


def charges(folder):
    return Ledger(folder / "ledger.jsonl").guarantee("simulation-1").releases


def test_the_last_state_is_yielded_again_and_a_loop_that_is_done_charges_nothing(tmp_path):
    last = train(tmp_path, 3)[-1]
    again = train(tmp_path, 3)
    assert [state.round for state in again] == [3]
    jax.tree.map(np.testing.assert_array_equal, again[0], last)
    assert charges(tmp_path) == 3
    assert [state.round for state in train(tmp_path, 5)] == [3, 4, 5]
    assert charges(tmp_path) == 5


def step_twice(message, user, key):
    return {"mean": 2 * (user.batches[0, 0] - message.params["mean"])}


OTHERS = {
    "more rounds": ({"rounds": 9}, "`rounds` = 9, not 8 as .*give `rounds` = 8"),
    "a budget": ({"epsilon": 9.0}, "`epsilon` = 9.0, not None"),
    "another δ": ({"delta": 0.01}, "`delta` = 0.01, not 0.0025"),
    "a seed": ({"seed": 1}, "another `seed` than the loop"),
    "more users": ({"users": [*USERS, USERS[0]]}, "21 `users` who are not the 20 of the loop"),
    "users in another order": ({"users": USERS[::-1]}, "20 `users` who are not the 20 of the loop"),
    "more noise": ({"algorithm": averaging(noise_multiplier=1.5)}, "whose rounds cost otherwise"),
    "larger cohorts": ({"algorithm": averaging(cohort=12)}, "whose rounds cost otherwise"),
    "another clip norm": ({"algorithm": averaging(clip_norm=2.0)}, "the user_update of|mechanism"),
    "another update": ({"algorithm": averaging(user_update=step_twice)}, "the user_update of"),
    "another server": ({"algorithm": averaging(server=optax.sgd(0.5))}, "the server_update of"),
    "another start": ({"start": {"mean": jnp.ones(3)}}, "other parameters than those that"),
}


@pytest.mark.parametrize(("other", "words"), OTHERS.values(), ids=OTHERS)
def test_other_arguments_than_the_loop_was_made_with_are_refused(tmp_path, other, words):
    train(tmp_path, 2)
    with pytest.raises(OwnLoopError, match=words):
        train(tmp_path, 3, **other)
    assert charges(tmp_path) == 2
    assert train(tmp_path, 3)[-1].round == 3


def test_a_seed_is_compared_too(tmp_path):
    train(tmp_path, 1, seed=1)
    for other in (2, None):
        with pytest.raises(OwnLoopError, match="another `seed` than the loop"):
            opened(tmp_path, seed=other)
    assert train(tmp_path, 2, seed=1)[-1].round == 2


def test_two_processes_do_not_use_one_folder(tmp_path):
    train(tmp_path, 1)
    gc.collect()
    with (
        lock_file(tmp_path / "loop" / "loop.json"),
        pytest.raises(OwnLoopError, match="another process is using"),
    ):
        opened(tmp_path)
    assert train(tmp_path, 2)[-1].round == 2


def test_of_two_curators_in_one_process_the_newer_continues(tmp_path):
    older = tt.rounds(ALGORITHM, opened(tmp_path), START)
    next(older)
    newer = tt.rounds(ALGORITHM, opened(tmp_path), START)
    assert [next(newer).round, next(newer).round] == [1, 2]
    with pytest.raises(LedgerError, match="another process is at work on run 'simulation-1'"):
        next(older)
    assert next(newer).round == 3
    assert charges(tmp_path) == 3


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a bit of the state": lambda private: flip_a_bit(private / "state"),
    "half of the state": lambda private: os.truncate(private / "state", 200),
    "half of the root": lambda private: os.truncate(private / "root", 16),
    "no root": lambda private: (private / "root").unlink(),
    "no settings": lambda private: os.truncate(private.parent / "loop.json", 20),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_not_resumed_from_and_nothing_is_charged(tmp_path, damage):
    train(tmp_path, 2)
    rows = len(Ledger(tmp_path / "ledger.jsonl").rows)
    damage(tmp_path / "loop" / "private")
    with pytest.raises(OwnLoopError, match="is damaged, so this loop cannot be resumed: restore"):
        opened(tmp_path)
    assert len(Ledger(tmp_path / "ledger.jsonl").rows) == rows


def test_a_folder_of_another_ledger_is_refused(tmp_path):
    train(tmp_path, 1)
    Ledger(tmp_path / "other.jsonl")
    with pytest.raises(LedgerError, match="is not the ledger of these users"):
        opened(tmp_path, ledger=tmp_path / "other.jsonl")
    for path in tmp_path.glob("ledger.*"):
        path.unlink()
    with pytest.raises(LedgerError, match=r"ledger.jsonl is gone"):
        opened(tmp_path)


@pytest.mark.parametrize("rounds", [0, 2], ids=["before the run", "in the run"])
def test_a_ledger_that_was_put_back_is_refused(tmp_path, rounds):
    """Even where it was adopted: the folder knows of a later row."""
    Ledger(tmp_path / "ledger.jsonl")
    if rounds:
        train(tmp_path, rounds)
    older = (tmp_path / "ledger.jsonl").read_bytes()
    train(tmp_path, rounds + 2)
    (tmp_path / "ledger.jsonl").write_bytes(older)
    (tmp_path / "ledger.head").unlink()
    adopt(tmp_path / "ledger.jsonl")
    with pytest.raises(LedgerError, match="lacks the row"):
        opened(tmp_path)


def test_from_an_older_state_charged_rounds_are_given_out_from_their_records(tmp_path):
    private = tmp_path / "loop" / "private"
    train(tmp_path, 1)
    older = (private / "state").read_bytes()
    curator = opened(tmp_path)
    curator.forget_records = lambda before: None
    training = tt.rounds(ALGORITHM, curator, START)
    first = [next(training) for _ in range(4)][1:]
    (private / "state").write_bytes(older)
    again = train(tmp_path, 4)[1:]
    assert charges(tmp_path) == 4
    for one, other in zip(first, again, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one.server, other.server)
    # And never anew, where they are gone.
    (private / "state").write_bytes(older)
    with pytest.raises(ReleaseError, match="round 1 is charged, and its record is gone"):
        train(tmp_path, 4)
    assert charges(tmp_path) == 4


def test_a_state_of_another_history_is_not_continued_from(tmp_path):
    (tmp_path / "other").mkdir()
    state = train(tmp_path, 2)[-1]
    other = train(tmp_path / "other", 2)[-1]
    for name, foreign in {"another run": other, "too early": state._replace(round=3)}.items():
        with pytest.raises(LedgerError, match="comes from another history"):
            next(tt.rounds(ALGORITHM, opened(tmp_path), foreign))
        assert charges(tmp_path) == 2, name
    # Its own history, and other noise than was saved.
    algorithm = ALGORITHMS["dp-ftrl-blt"]
    forged = train(tmp_path / "ftrl", 2, algorithm, rounds=3)[-1]
    noise = jax.tree.map(lambda leaf: leaf + 1, forged.mechanism.noise)
    forged = forged._replace(mechanism=forged.mechanism._replace(noise=noise))
    curator = opened(tmp_path / "ftrl", algorithm, rounds=3)
    next(tt.rounds(algorithm, curator, START))
    with pytest.raises(ValueError, match="does not continue from the state"):
        next(tt.rounds(algorithm, curator, forged))


def test_secrets_are_private_and_gone_when_the_loop_is_closed(tmp_path):
    state = train(tmp_path, 2)[-1]
    loop = tmp_path / "loop"
    assert sorted(path.name for path in loop.iterdir()) == ["loop.json", "private"]
    assert (loop / "private").stat().st_mode & 0o777 == 0o700
    root = (loop / "private" / "root").read_bytes()
    assert root.hex() not in (loop / "loop.json").read_text()
    curator = opened(tmp_path)
    curator.close()
    assert sorted(path.name for path in loop.iterdir()) == ["loop.json", "parameters.safetensors"]
    kept = safetensors.numpy.load_file(loop / "parameters.safetensors")
    np.testing.assert_array_equal(kept["mean"], state.server.params["mean"])
    with pytest.raises(LedgerError, match="is closed"):
        next(tt.rounds(ALGORITHM, curator, state))
    with pytest.raises(OwnLoopError, match="is closed: its last parameters are in parameters"):
        opened(tmp_path)
    assert charges(tmp_path) == 2


def test_a_copy_of_a_folder_without_its_secrets_ends_nothing(tmp_path):
    train(tmp_path, 1)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "loop", copy, ignore=shutil.ignore_patterns("private"))
    with pytest.raises(OwnLoopError, match="root is damaged"):
        opened(tmp_path, folder=copy)
    assert train(tmp_path, 2)[-1].round == 2


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "thesis.txt").write_text("all of it")
    with pytest.raises(FolderExists, match="is not the folder of a loop: name another `folder`"):
        opened(tmp_path)
    assert (tmp_path / "loop" / "thesis.txt").read_text() == "all of it"
    assert Ledger(tmp_path / "ledger.jsonl").runs() == []


def test_a_ledger_does_not_lie_in_the_folder_of_a_loop(tmp_path):
    with pytest.raises(OwnLoopError, match="`ledger` lies in `folder`"):
        opened(tmp_path, ledger=tmp_path / "loop" / "ledger.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_loop_that_is_refused_leaves_no_folder(tmp_path):
    with pytest.raises(BudgetExhausted, match="does not allow a single release"):
        opened(tmp_path, epsilon=0.01)
    assert not (tmp_path / "loop").exists()


def test_a_loop_that_the_budget_of_its_people_refuses_leaves_no_folder_either(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.set_budget(PopulationBudget(epsilon=1.0, delta=1e-3))
    with pytest.raises(LedgerError, match="the budget of these people"):
        opened(tmp_path)
    assert not (tmp_path / "loop").exists()
    assert opened(tmp_path, epsilon=0.9, delta=1e-4, algorithm=averaging(noise_multiplier=9.0))


def test_fingerprints_see_constants_and_no_names():
    def trace(factor, start):
        scaled = jnp.arange(3.0) * factor

        def user_update(message, user, key):
            return jax.jit(lambda: {"mean": scaled + message.params["mean"]})()

        algorithm = averaging(user_update=user_update)
        state = start_training(algorithm, {"mean": jnp.full(3, start)}, "")
        origin, _ = describe_origin(
            algorithm=algorithm,
            program=device_program(algorithm),
            release=algorithm.mechanism.release,
            server=state.server,
            user=USERS[0],
        )
        return origin

    assert trace(1.0, 0.0) == trace(1.0, 0.0)
    assert trace(1.0, 0.0).user_update != trace(2.0, 0.0).user_update
    assert trace(1.0, 0.0)._replace(start="") == trace(1.0, 1.0)._replace(start="")
