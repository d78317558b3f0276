"""Mistakes in your own loop get a sentence that says which user, shape or argument it is, before
anything is charged.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import taciturn as tt
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.own_loop import OwnLoopError

START = {"mean": jnp.zeros(3)}


def user(value=1.0, shape=(1, 1, 3), weight=1.0, kind=np.float32):
    return tt.UserData(np.full(shape, value, kind), np.float32(weight), np.int32(1))


def move_to_mean(message, user, key):
    return {"mean": user.batches[0, 0] - message.params["mean"]}


def averaging(user_update=move_to_mean, **other):
    settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "users": 20, "cohort": 10}
    return tt.private_averaging(user_update, **(settings | other))


def opened(folder, algorithm=None, users=None, **settings):
    algorithm = averaging() if algorithm is None else algorithm
    users = [user()] * 20 if users is None else users
    ledger = settings.pop("ledger", folder / "ledger.jsonl")
    return tt.Curator.for_simulation(algorithm, users, ledger, **settings)


def train(folder, user_update, start=START, users=None):
    """Return the parameters after two rounds."""
    algorithm = averaging(user_update)
    curator = opened(folder, algorithm, users)
    states = itertools.islice(tt.rounds(algorithm, curator, start), 2)
    return list(states)[-1].server.params


def charges(folder):
    return Ledger(folder / "ledger.jsonl").guarantee("simulation-1").releases


ARRAY = np.ones((1, 1, 3), np.float32)
USERS = {
    "none": ([], "`users` is empty"),
    "one array": (np.ones((20, 3)), r"`users` is an array of shape \(20, 3\), and must be a list"),
    "a dict": ({"ann": user()}, r"must be a list .*list\(users.values\(\)\)"),
    "a generator": ((user() for _ in range(20)), r"type generator, .*list\(users\)"),
    "bare arrays": ([ARRAY] * 20, r"user 0 is an array of shape \(1, 1, 3\), not tt.UserData"),
    "one of them": ([user()] * 7 + [None], "user 7 is a value of type NoneType, not tt.UserData"),
    "another shape": (
        [user()] * 7 + [user(shape=(1, 1, 4))] * 13,
        r"user 7's batches is float32 of shape \(1, 1, 4\), and user 0's is float32 of shape",
    ),
    "another type": (
        [user()] * 19 + [user(kind=np.int32)],
        "user 19's batches is int32 .*one shape and type",
    ),
    "words": ([user(value="a", kind="<U1")] * 20, "user 0's batches .*must be an array of numbers"),
    "lists": (
        [tt.UserData([[1.0], [2.0]], 1.0, 1)] * 20,
        "user 0's batches has a list of numbers where an array belongs",
    ),
    "two weights": (
        [user()._replace(weight=np.ones(2, np.float32))] * 20,
        r"user 0's weight is float32 of shape \(2,\): a weight is one number",
    ),
    "a heavy one": ([user()] * 3 + [user(weight=2.0)], "user 3's weight is 2: .*between 0 and 1"),
    "whole weights and others": (
        [user()._replace(weight=1), user()._replace(weight=0.5)] * 10,
        r"user 1's weight is float64 of shape \(\), and user 0's is int64 .*give a type by",
    ),
    "a complex one": ([user()._replace(weight=1j)] * 20, "user 0's weight is complex128 .*one num"),
    "too few": ([user()] * 4, "made for 20 users, and 4 are given: .*2 of them .*, not 10"),
}


@pytest.mark.parametrize("kind", USERS)
def test_users_who_cannot_be_summed_are_named_before_a_run_is_declared(tmp_path, kind):
    users, words = USERS[kind]
    with pytest.raises(OwnLoopError, match=words):
        opened(tmp_path, users=users)
    assert not (tmp_path / "ledger.jsonl").exists() or not Ledger(tmp_path / "ledger.jsonl").runs()


def give_another_name(message, user, key):
    return {"mena": user.batches[0, 0]}


def give_bare_array(message, user, key):
    return user.batches[0, 0]


def give_nothing(message, user, key):
    message.params["mean"]


def give_another_shape(message, user, key):
    return {"mean": user.batches[0]}


def give_nan(message, user, key):
    return {"mean": user.batches[0, 0] * jnp.log(-1.0)}


def divide_by_zero(message, user, key):
    return {"mean": user.batches[0, 0] / jnp.sum(message.params["mean"])}


UPDATES = {
    give_another_name: r"returns a dict of \['mena'\], and the parameters are a dict of \['mean'\]",
    give_bare_array: "returns a single array, and the parameters are a dict",
    give_nothing: "returns nothing, and the parameters are a dict",
    give_another_shape: r"of shape \(1, 3\) at \['mean'\], and the parameter has the shape \(3,\)",
    give_nan: r"not finite in \['mean'\], for synthetic users",
    divide_by_zero: r"not finite in \['mean'\], for synthetic users",
}


@pytest.mark.parametrize("user_update", UPDATES)
def test_an_update_that_could_not_be_added_is_noticed_before_the_first_round(tmp_path, user_update):
    with pytest.raises(OwnLoopError, match=UPDATES[user_update]):
        train(tmp_path, user_update)
    assert charges(tmp_path) == 0


def sum_log(data):
    return jnp.sum(jnp.log(data))


def solve_equations(matrix):
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), jnp.ones(4))[0]


# What is finite for the data beside it, and for few other.
CORRECT = {
    "a logarithm": (sum_log, np.ones(4, np.float32)),
    "a logarithm of what is above five": (lambda data: sum_log(data - 5.0), np.full(4, 9)),
    "a share": (lambda data: jnp.sum(data / (1 - data)), np.full(4, 0.3, np.float32)),
    "words only": (lambda data: jnp.sum(data) / jnp.sum(data > 3), np.arange(8)),
    "a variance": (lambda count: 1 / (count - 1), np.asarray(5)),
    "equations": (solve_equations, np.eye(4, dtype=np.float32)),
    "a label beside an array": (lambda pair: pair[0][0] * pair[1], (np.ones(4, np.float32), 2.0)),
}


@pytest.mark.parametrize("kind", CORRECT)
def test_an_update_that_is_finite_for_some_synthetic_user_is_tried_on_people(tmp_path, kind):
    """The twin: a logarithm of the data is not a number for random ones, and is for these."""
    compute, data = CORRECT[kind]

    def compute_mean(message, user, key):
        return {"mean": jnp.full(3, compute(user.batches), jnp.float32)}

    train(tmp_path, compute_mean, users=[user()._replace(batches=data)] * 20)
    assert charges(tmp_path) == 2


def test_who_computes_what_no_synthetic_user_can_is_told_how(tmp_path):
    def take_root(message, user, key):
        return {"mean": jnp.sqrt(user.batches[0, 0] - 1000)}

    def take_root_or_zero(message, user, key):
        root = take_root(message, user, key)["mean"]
        return {"mean": jnp.where(jnp.isfinite(root), root, 0)}

    users = [user(2000.0)] * 20
    with pytest.raises(OwnLoopError, match=r"return zeros for them: jnp.where\(jnp.isfinite"):
        train(tmp_path, take_root, users=users)
    assert charges(tmp_path) == 0
    train(tmp_path / "again", take_root_or_zero, users=users)
    assert charges(tmp_path / "again") == 2


def test_only_shapes_of_people_are_looked_at_before_a_round_is_charged(tmp_path):
    """What user_update makes of a person's data is theirs: a refusal would give it away. Code that
    tried a real user would fail here.
    """
    params = train(tmp_path, move_to_mean, users=[user(np.nan)] * 20)
    assert np.all(np.isfinite(params["mean"]))
    assert charges(tmp_path) == 2


STARTS = {
    "nothing": ({}, "parameters to start from are empty"),
    "a list": ({"mean": [0.0, 0.0, 0.0]}, "has a list of numbers where an array belongs"),
    "words": ({"mean": "zero"}, r"the parameter \['mean'\] is a value of type str"),
    "not finite": ({"mean": jnp.full(3, np.nan)}, r"are not finite in \['mean'\]"),
}


@pytest.mark.parametrize("kind", STARTS)
def test_parameters_that_cannot_be_trained_are_refused(tmp_path, kind):
    start, words = STARTS[kind]
    with pytest.raises(OwnLoopError, match=words):
        train(tmp_path, move_to_mean, start)
    assert charges(tmp_path) == 0


ARGUMENTS = {
    "users": (0, "`users` must be a number above 0; 0 is not"),
    "cohort": (21, "`cohort` is 21 of 20 `users`"),
    "clip_norm": (np.inf, "`clip_norm` must be a number above 0; inf is not"),
    "server": (0.5, "`server` is a value of type float: give an optimiser of optax"),
    "noise_multiplier": ("1", "`noise_multiplier` must be a number above 0; '1' is not"),
    "user_update": (lambda user: user, "must take three arguments: message, user and key"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_which_no_algorithm_can_be_made_are_named(name):
    value, words = ARGUMENTS[name]
    with pytest.raises(OwnLoopError, match=words):
        averaging(**{name: value})


def test_terms_under_which_no_round_could_be_made_are_named(tmp_path):
    with pytest.raises(OwnLoopError, match="`rounds` must be an integer of at least 1; 0 is not"):
        opened(tmp_path, rounds=0)
    with pytest.raises(OwnLoopError, match="`epsilon` must be a number above 0; 0 is not"):
        opened(tmp_path, epsilon=0)
    with pytest.raises(OwnLoopError, match="`rounds` must be an integer of at least 1; inf is not"):
        opened(tmp_path, rounds=np.inf)
    with pytest.raises(OwnLoopError, match="`delta` must be a number; '1e-6' is not"):
        opened(tmp_path, delta="1e-6")
    with pytest.raises(OwnLoopError, match="`ledger` is a folder: name a file"):
        opened(tmp_path, ledger=tmp_path)
    with pytest.raises(OwnLoopError, match="`algorithm` is a value of type function"):
        opened(tmp_path, algorithm=move_to_mean)


def test_numbers_of_numpy_and_jax_are_numbers(tmp_path):
    algorithm = averaging(clip_norm=np.float32(0.1), noise_multiplier=jnp.float32(1), cohort=10.0)
    terms = {"rounds": np.int64(5), "epsilon": np.float32(90), "delta": np.float64(1e-6)}
    curator = opened(tmp_path, algorithm, **terms)
    next(tt.rounds(algorithm, curator, START))
    assert charges(tmp_path) == 1


def test_rounds_of_another_algorithm_than_the_curator_s_are_refused(tmp_path):
    own = averaging()
    curator = opened(tmp_path, own)
    with pytest.raises(OwnLoopError, match="another one than that of the curator"):
        next(tt.rounds(averaging(), curator, START))
    assert charges(tmp_path) == 0
    # Later too; only the server may do something else with the estimates.
    state = next(tt.rounds(own, curator, START))
    with pytest.raises(OwnLoopError, match="another one than that of the curator"):
        next(tt.rounds(own._replace(user_update=give_nan), curator, state))
    assert charges(tmp_path) == 1
    next(tt.rounds(own._replace(server_update=lambda server, estimate: server), curator, state))
    assert charges(tmp_path) == 2
