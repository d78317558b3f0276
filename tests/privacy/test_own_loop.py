"""Attempts of a second reader to break `Curator.for_simulation`: users in memory, a ledger, your
own loop.
"""

import gc
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import taciturn as tt
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.curator import UsersInMemory
from taciturn.privacy.ledger.account import BudgetExhausted
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.noise.correlated import tree
from taciturn.privacy.noise.mechanism import adaptive_mechanism, mechanism
from taciturn.privacy.noise.white import gaussian
from taciturn.privacy.participation import MinSeparation

START = {"mean": jnp.zeros(3)}


def user(value=1.0, shape=(1, 1, 3)):
    return tt.UserData(jnp.full(shape, value, jnp.float32), jnp.float32(1), jnp.int32(1))


def mean(noise_multiplier=1.0, users=20):
    return tt.private_averaging(
        lambda message, user, key: {"mean": user.batches[0, 0] - message.params["mean"]},
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        users=users,
        cohort=users / 2,
    )


def released(algorithm, curator, rounds=2):
    states = itertools.islice(tt.rounds(algorithm, curator, START), rounds)
    return np.stack([np.asarray(state.estimate["mean"]) for state in states])


def opened(tmp_path, **settings):
    algorithm = mean()
    return algorithm, tt.Curator.for_simulation(
        algorithm, [user()] * 20, tmp_path / "ledger.jsonl", **settings
    )


def test_every_round_is_charged_before_its_estimate_and_the_budget_ends_the_loop(tmp_path):
    algorithm, curator = opened(tmp_path, epsilon=3.0, rounds=16)
    with pytest.raises(BudgetExhausted, match="all are spent"):
        released(algorithm, curator, 16)
    book = Ledger(tmp_path / "ledger.jsonl")
    assert 2.0 < book.guarantee("simulation-1").epsilon <= 3.0
    assert book.guarantee("simulation-1").releases == len(curator.account.charges) > 1


def test_a_seed_repeats_a_run_and_shares_no_noise_with_another_run(tmp_path):
    first = released(*opened(tmp_path / "a", seed=7))
    np.testing.assert_array_equal(first, released(*opened(tmp_path / "b", seed=7)))
    assert not np.any(
        first == released(*opened(tmp_path / "a", seed=7))
    )  # the second run in the same ledger
    assert not np.any(first == released(*opened(tmp_path / "c")))
    assert [
        row["randomness"]
        for row in Ledger(tmp_path / "a" / "ledger.jsonl").rows
        if row["kind"] == "open"
    ] == ["seeded simulation"] * 2


@pytest.mark.parametrize(
    "odd",
    [
        user(shape=(1, 1, 1)),
        user()._replace(weight=jnp.ones(2)),
        user()._replace(batches=jnp.zeros((1, 1, 3), int)),
        None,
    ],
    ids=["smaller", "weights", "of another type", "none"],
)
def test_users_of_another_shape_are_refused_since_their_reports_would_be_added_many_times(odd):
    with pytest.raises(ValueError, match="one shape"):
        UsersInMemory([user(), odd] if odd else [])
    UsersInMemory([user(), user(2.0)])


@pytest.mark.parametrize("delta", [0.0, 0.05, 1.0, 3.0, -1e-6])
def test_a_delta_that_would_promise_nothing_is_refused_before_anything_is_declared(tmp_path, delta):
    with pytest.raises(ValueError, match="below one over the number of users"):
        opened(tmp_path, delta=delta)
    assert Ledger(tmp_path / "ledger.jsonl").runs() == []
    assert opened(tmp_path, delta=0.04)[1].account.terms.budget.delta == 0.04


def test_a_single_user_has_no_valid_delta(tmp_path):
    with pytest.raises(ValueError, match="below one over"):
        tt.Curator.for_simulation(mean(), [user()], tmp_path / "ledger.jsonl")


def test_the_ledger_does_not_reveal_users_data(tmp_path):
    """An attacker who knows all other users must not find the last one by trying."""
    names = {opened(tmp_path / str(number))[1].account.terms.population for number in range(2)}
    assert len(names) == 2  # the same users, under two secrets
    assert (
        opened(tmp_path / "x", seed=1)[1].account.terms.population
        == opened(tmp_path / "y", seed=1)[1].account.terms.population
    )


def test_a_loop_that_is_stopped_promises_what_its_curator_was_made_for(tmp_path):
    algorithm, curator = opened(tmp_path, epsilon=3.0, rounds=16)
    released(algorithm, curator, 1)
    assert curator.account.guarantee().epsilon < curator.account.promise().epsilon <= 3.0


def test_the_participation_log_is_deleted_with_its_curator(tmp_path):
    claim = MinSeparation(size=5, min_separation=1, max_participations=3, rounds=10)
    plain = mean()
    algorithm = plain._replace(
        mechanism=mechanism(flat_clip(1.0), fixed_denominator(5.0), gaussian(1)),
        participation=claim,
    )
    curator = tt.Curator.for_simulation(
        algorithm, [user()] * 20, tmp_path / "ledger.jsonl", rounds=10
    )
    released(algorithm, curator)
    folder = Path(curator._secrets.name)
    assert (folder / "participation.log").exists()
    del curator
    jax.clear_caches()
    gc.collect()
    assert not folder.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.head", "ledger.jsonl"]


def scaled_up(leaf):
    return leaf + jnp.ones_like(leaf)


FORGED = {
    # Its reciprocal overflows: each coordinate of a report would be as long as a report may be.
    "a clip norm": lambda state: state._replace(
        norms=state.norms._replace(clip_norm=jnp.float32(9e-35))
    ),
    "an estimate": lambda state: state._replace(
        norms=state.norms._replace(estimate=jnp.float32(50))
    ),
    "noise": lambda state: state._replace(noise=jax.tree.map(scaled_up, state.noise)),
    "a part of it": lambda state: state._replace(noise=()),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_state_is_not_continued_from(tmp_path, forge):
    """In the first round, and in any that this process does not know the state of."""
    private = adaptive_mechanism(
        AdaptiveClip(start=1.0, count_stddev=5.0), 5.0, tree(1.0, 4, 16), most_reports=20
    )
    claim = MinSeparation(size=5, min_separation=1, max_participations=3, rounds=10)
    algorithm = mean()._replace(mechanism=private, participation=claim)
    curator = tt.Curator.for_simulation(
        algorithm, [user()] * 20, tmp_path / "ledger.jsonl", rounds=10
    )
    state = private.init(START)
    with pytest.raises(ValueError, match="does not continue from the state"):
        curator.private_mean(START, forge(state), 0)
    assert not curator.account.charges
    states = [state]
    for round in range(3):
        states.append(curator.private_mean(START, states[-1], round)[1])
    # To go back, and from there on with another state.
    with pytest.raises(ValueError, match="does not continue from the state"):
        curator.private_mean(START, forge(states[1]), 1)
    curator.private_mean(START, states[3], 3)


def test_an_integer_noise_multiplier_is_charged_correctly(tmp_path):
    """It was written as 1, which no ledger could read back."""
    whole, plain = mean(noise_multiplier=1), mean(noise_multiplier=1.0)
    released(whole, tt.Curator.for_simulation(whole, [user()] * 20, tmp_path / "ledger.jsonl"))
    released(plain, tt.Curator.for_simulation(plain, [user()] * 20, tmp_path / "ledger.jsonl"))
    one, other = (
        Ledger(tmp_path / "ledger.jsonl").guarantee(f"simulation-{number}") for number in (1, 2)
    )
    assert one.epsilon == other.epsilon
    assert "1.0" in json.dumps(
        Ledger(tmp_path / "ledger.jsonl").run_rows("simulation-1")[0]["release"]
    )


def test_a_curator_that_cannot_be_made_declares_no_run(tmp_path):
    with pytest.raises(ValueError, match="one shape"):
        tt.Curator.for_simulation(
            mean(), [user(), user(shape=(1, 1, 1))], tmp_path / "ledger.jsonl"
        )
    assert Ledger(tmp_path / "ledger.jsonl").runs() == []
