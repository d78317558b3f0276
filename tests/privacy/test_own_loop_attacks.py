"""What a second reader did to your own loop in a folder: old generators that live on, deleted
folders, full disks, forged states, odd states of servers.
"""

import errno
import gc
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import own_loops
import taciturn as tt
from harness import Cut
from own_loops import START, USERS
from taciturn import files
from taciturn.core import ServerState
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.account import Account
from taciturn.privacy.ledger.hash_chain import ChainedFile
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.loop_folder import LoopFolder
from taciturn.privacy.own_loop import OwnLoopError

ALGORITHM = own_loops.algorithms(6)["dp-fedavg"]
CORRELATED = own_loops.algorithms(6)["dp-ftrl-blt"]
FULL = OSError(errno.ENOSPC, "No space left on device")


def opened(place, algorithm=ALGORITHM, users=USERS, **other):
    settings = {"ledger": place / "ledger.jsonl", "folder": place / "loop", "rounds": 6}
    return tt.Curator.for_simulation(algorithm, users, **(settings | other))


def train(curator, until, algorithm=ALGORITHM, start=START):
    """Return the state after this round."""
    for state in tt.rounds(algorithm, curator, start):
        if state.round >= until:
            return state
    raise AssertionError


def train_anew_each_round(place, until, algorithm, start=START, **other):
    """Return the last state of a loop that is resumed after every round."""
    states = [
        train(opened(place, algorithm, **other), round, algorithm, start)
        for round in range(1, until + 1)
    ]
    return states[-1]


def charges(place):
    return sum(row["kind"] == "charge" for row in Ledger(place / "ledger.jsonl").rows)


def equal(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(
        one.dtype == other.dtype and np.asarray(one).tobytes() == np.asarray(other).tobytes()
        for one, other in pairs
    )


# Who may continue, and from what.


def test_a_new_process_does_not_continue_from_noise_that_was_not_saved(tmp_path):
    state = train(opened(tmp_path, CORRELATED), 2, CORRELATED)
    noise = jax.tree.map(lambda leaf: leaf + 1, state.mechanism.noise)
    forged = state._replace(mechanism=state.mechanism._replace(noise=noise))
    with pytest.raises(ValueError, match="does not continue from the state"):
        train(opened(tmp_path, CORRELATED), 3, CORRELATED, forged)
    with pytest.raises(ValueError, match="does not continue from the state"):
        opened(tmp_path, CORRELATED).private_mean(START, forged.mechanism, 2)
    assert charges(tmp_path) == 2
    # The twin: its own state is taken.
    assert train(opened(tmp_path, CORRELATED), 3, CORRELATED, state).round == 3


def test_a_state_of_an_earlier_round_is_refused_with_advice_and_loses_nothing(tmp_path):
    state = train(opened(tmp_path), 1)
    train(opened(tmp_path), 3)
    with pytest.raises(OwnLoopError, match=r"is of round 1, and the loop .* has round 3: give the"):
        train(opened(tmp_path), 4, start=state)
    assert train(opened(tmp_path), 4).round == 4


def test_no_state_takes_the_place_of_a_later_one(tmp_path):
    """As when a thread that was slow saves its state after another's."""
    curator = opened(tmp_path)
    slow = train(curator, 2)
    train(curator, 4)
    with pytest.raises(OwnLoopError, match="has round 4 already, and this is round 2"):
        curator.keep_state(slow)
    del curator
    gc.collect()
    assert train(opened(tmp_path), 5).round == 5
    assert charges(tmp_path) == 5


def test_an_old_loop_writes_nothing_into_a_folder_that_was_made_anew(tmp_path):
    """As in a notebook, where its generator lives on."""
    curator = opened(tmp_path)
    old = tt.rounds(ALGORITHM, curator, START)
    next(old)
    shutil.rmtree(tmp_path / "loop")
    with pytest.raises(OwnLoopError, match="was deleted or moved while it ran"):
        next(tt.rounds(ALGORITHM, curator, START))
    assert not (tmp_path / "loop").exists()
    train(opened(tmp_path), 2)
    before = charges(tmp_path)
    for step in (lambda: next(old), curator.close):
        with pytest.raises(OwnLoopError, match="was deleted or moved while it ran"):
            step()
    assert charges(tmp_path) == before
    assert train(opened(tmp_path), 3).round == 3


def test_a_forked_process_does_not_inherit_the_folder(tmp_path, monkeypatch):
    curator = opened(tmp_path)
    train(curator, 1)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        with pytest.raises(OwnLoopError, match="another process is using"):
            opened(tmp_path)
        with pytest.raises(OwnLoopError, match="was forked from the one that runs it"):
            train(curator, 2)
    assert train(curator, 2).round == 2


def test_of_two_loops_with_one_seed_the_second_does_not_join_the_run_of_the_first(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(LoopFolder, "declare", lambda *_: (_ for _ in ()).throw(Cut()))
        with pytest.raises(Cut):
            opened(tmp_path, folder=tmp_path / "interrupted", seed=1)
    train(opened(tmp_path, seed=1), 2)
    with pytest.raises(OwnLoopError, match="another has taken its name, 'simulation-1'"):
        opened(tmp_path, folder=tmp_path / "interrupted", seed=1)
    assert train(opened(tmp_path, seed=1), 3).round == 3


@pytest.mark.parametrize("change", ["type", "shape"])
def test_users_of_the_same_bytes_and_another_type_or_shape_are_others(tmp_path, change):
    users = [user._replace(batches=user.batches.astype(np.int32)) for user in USERS]
    others = {
        "type": [user._replace(batches=user.batches.view(np.float32)) for user in users],
        "shape": [user._replace(batches=user.batches.reshape(1, 3, 1)) for user in users],
    }
    opened(tmp_path, users=users)
    with pytest.raises(OwnLoopError, match="20 `users` who are not the 20 of the loop"):
        opened(tmp_path, users=others[change])
    opened(tmp_path, users=users)


def test_nothing_lies_where_it_would_be_deleted_with_a_loop(tmp_path):
    opened(tmp_path)
    private = tmp_path / "loop" / "private"
    for places in (
        {"ledger": private / "ledger.jsonl", "folder": tmp_path / "other"},
        {"folder": private / "other"},
        {"folder": private / "other", "ledger": tmp_path / "new.jsonl"},
    ):
        with pytest.raises(OwnLoopError, match="lies in the secrets of another loop"):
            opened(tmp_path, **places)
    with pytest.raises(OwnLoopError, match="`ledger` lies in `folder`"):
        opened(tmp_path, ledger=tmp_path / "one", folder=tmp_path / "one")
    kept = ["ledger.head", "ledger.jsonl", "loop"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


# Full disks.


class FullDisk:
    """Fails at one write of all files and rows."""

    def __init__(self, patch) -> None:
        self.writes = 0
        self.full_at = -1
        write_new, flush = files._write_new, ChainedFile._flush

        def write_half(path, parts, mode):
            if self._is_full():
                path.write_bytes(b"half")
                raise FULL
            write_new(path, parts, mode)

        def flush_half(ledger, file, data):
            if self._is_full():
                file.write(data[: len(data) // 2])
                file.flush()
                raise FULL
            flush(ledger, file, data)

        patch.setattr(files, "_write_new", write_half)
        patch.setattr(ChainedFile, "_flush", flush_half)

    def _is_full(self) -> bool:
        self.writes += 1
        return self.writes - 1 == self.full_at


@pytest.mark.parametrize("algorithm", [ALGORITHM, CORRELATED], ids=["DP-FedAvg", "DP-FTRL"])
def test_a_seeded_loop_ends_alike_when_its_curator_is_used_again_after_a_full_disk(
    tmp_path, monkeypatch, algorithm
):
    disk = FullDisk(monkeypatch)
    curator = opened(tmp_path, algorithm, seed=3, folder=tmp_path / "whole")
    before = disk.writes
    whole = train(curator, 3, algorithm)
    writes = disk.writes - before
    assert writes >= 12
    for place in range(writes):
        cut = tmp_path / f"full-{place}"
        curator = opened(cut, algorithm, seed=3)
        disk.full_at = disk.writes + place
        with pytest.raises(OSError, match="No space"):
            train(curator, 3, algorithm)
        try:
            state = train(curator, 3, algorithm)
        except tt.TaciturnError:
            # A row was written, but not its head: what the curator knows is not all.
            del curator
            gc.collect()
            state = train(opened(cut, algorithm, seed=3), 3, algorithm)
        assert charges(cut) == 3
        assert equal(state.server, whole.server), place


def test_closing_again_after_a_full_disk_keeps_the_parameters(tmp_path, monkeypatch):
    curator = opened(tmp_path)
    state = train(curator, 2)
    with monkeypatch.context() as full:
        full.setattr(Account, "close", lambda *_: (_ for _ in ()).throw(FULL))
        with pytest.raises(OSError, match="No space"):
            curator.close()
    curator.close()
    kept = safetensors.numpy.load_file(tmp_path / "loop" / "parameters.safetensors")
    np.testing.assert_array_equal(kept["mean"], state.server.params["mean"])
    assert Ledger(tmp_path / "ledger.jsonl").is_closed("simulation-1")


# Odd states of servers.


def served(optimizer, update, move=own_loops.move):
    """Return an algorithm with this state of its server, and what a round makes of it."""
    averaging = tt.private_averaging(move, clip_norm=1, noise_multiplier=1, users=20, cohort=10)
    return averaging._replace(
        init=lambda params: ServerState(params, optimizer),
        server_update=lambda server, estimate: ServerState(
            *update(server.params, server.optimizer, estimate)
        ),
    )


def add(params, estimate):
    return jax.tree.map(lambda one, other: one + other.astype(one.dtype), params, estimate)


ODD = {
    "numbers of Python, with half as many bits": served(
        0.3,
        lambda params, rate, estimate: (
            jax.tree.map(lambda leaf: leaf * rate, add(params, estimate)),
            rate * 1.1,
        ),
    ),
    "arrays from the first round on": served(
        None, lambda params, last, estimate: (add(params, estimate), estimate)
    ),
    "all kinds": served(
        {
            "none": None,
            "nested": ((1,), [2.5, True]),
            "key": jax.random.PRNGKey(1),
            "small": jnp.array([-0.0, jnp.nan], jnp.float8_e4m3fn),
            "empty": jnp.zeros((0, 3)),
        },
        lambda params, state, estimate: (
            add(params, estimate),
            state | {"key": jax.random.split(state["key"])[0]},
        ),
    ),
}


@pytest.mark.parametrize("algorithm", ODD.values(), ids=ODD)
def test_odd_states_of_a_server_come_back_bit_for_bit(tmp_path, monkeypatch, algorithm):
    start = {"mean": jnp.zeros(3, jnp.bfloat16)}
    whole = train(opened(tmp_path / "whole", algorithm, seed=1), 3, algorithm, start)
    # Charged, and no state is saved but the first.
    with monkeypatch.context() as cut:
        cut.setattr(Curator, "private_mean", after(Curator.private_mean))
        with pytest.raises(Cut):
            train(opened(tmp_path, algorithm, seed=1), 1, algorithm, start)
    state = train_anew_each_round(tmp_path, 3, algorithm, start, seed=1)
    assert equal(state.server, whole.server)
    assert charges(tmp_path) == 3


def after(function):
    def cut(*arguments):
        function(*arguments)
        raise Cut

    return cut


LOST = {
    "a key": (
        served(jax.random.key(1), lambda params, key, estimate: (add(params, estimate), key)),
        "has a key that cannot be saved: keep jax.random.key_data",
    ),
    "a longer list each round": (
        served((), lambda params, all, estimate: (add(params, estimate), (*all, estimate))),
        "other arrays after the second round than after the first",
    ),
}


@pytest.mark.parametrize(("algorithm", "words"), LOST.values(), ids=LOST)
def test_a_state_that_could_not_be_read_again_is_refused_before_a_round(tmp_path, algorithm, words):
    with pytest.raises(OwnLoopError, match=words):
        train(opened(tmp_path, algorithm), 1, algorithm)
    assert charges(tmp_path) == 0
    # Without a folder nothing is saved.
    assert train(opened(tmp_path, algorithm, folder=None), 2, algorithm).round == 2


def test_layers_whose_names_look_alike_are_all_kept(tmp_path):
    start = {"a/b": jnp.zeros(3), "a": {"b": jnp.ones(3)}}

    def move(message, user, key):
        return jax.tree.map(lambda leaf: user.batches[0, 0] - leaf, message.params)

    algorithm = served((), lambda params, none, estimate: (add(params, estimate), ()), move)
    curator = opened(tmp_path, algorithm)
    state = train(curator, 1, algorithm, start)
    curator.close()
    kept = safetensors.numpy.load_file(tmp_path / "loop" / "parameters.safetensors")
    np.testing.assert_array_equal(kept["['a/b']"], state.server.params["a/b"])
    np.testing.assert_array_equal(kept["['a']['b']"], state.server.params["a"]["b"])
