"""Audit users beside people: bounded like them, summed apart to the bit, and nothing secret is in
what is seen of them.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import taciturn.runs.loop
from harness import Cut, quietly, started, tiny_recipe
from taciturn import cli
from taciturn.audit import audit_users, first_estimates
from taciturn.audit.audit_users import AuditScores
from taciturn.core import Message
from taciturn.fleets import assemble
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers
from taciturn.privacy.curator import device_program
from taciturn.release.model_file import load_model
from taciturn.runs.loop import resume_run, train_run
from taciturn.training import TrainState

FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "privacy": {"noise": "tree"},
}


def status_of_audit(run, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["taciturn", "audit", "run", str(run), "--json"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def rewritten(run, change):
    values = np.load(run / audit_users.FILE_NAME)
    np.save(run / audit_users.FILE_NAME, change(values))


def test_an_audit_that_cannot_be_made_has_another_exit_status_than_a_broken_claim(
    population, tmp_path, monkeypatch
):
    """Nor does one of a run that keeps its word."""
    run = tmp_path / "run"
    train_run(tiny_recipe(population, audit={"users": 64}), run, quietly)
    assert status_of_audit(run, monkeypatch) == 0
    seen = AuditScores(run)
    mine = np.array([seen.patterns[user % len(seen.patterns)][0] for user in range(64)])

    def given_away(values):
        values[mine, 1 + np.arange(64)] += 50.0 * seen.included
        return values

    rewritten(run, given_away)
    assert status_of_audit(run, monkeypatch) == 1  # the twin
    rewritten(run, lambda values: np.where(np.arange(values.shape[1]) == 5, np.inf, values))
    assert status_of_audit(run, monkeypatch) == 2
    coins = json.loads((run / audit_users.COINS).read_text())
    (run / audit_users.COINS).write_text(json.dumps(coins | {"included": coins["included"][:9]}))
    rewritten(run, lambda values: values[:, :8])
    assert status_of_audit(run, monkeypatch) == 2


def watched(recipe):
    algorithm, start = started(recipe)
    return (
        audit_users.AuditUsers(recipe=recipe, algorithm=algorithm, params=start, root=bytes(32)),
        algorithm,
        start,
    )


def beside(fleet, users, most):
    return WithSyntheticUsers(fleet, synthetic=users, choose=users.choose_cohort, most_reports=most)


@pytest.mark.parametrize("privacy", [{}, {"encoding": "modular"}], ids=["whole", "residues"])
def test_a_total_with_audit_users_is_that_of_the_people_and_theirs_to_the_bit(population, privacy):
    recipe = tiny_recipe(population, audit={"users": 16}, privacy=privacy)
    users, algorithm, start = watched(recipe)
    mechanism, program, people = (
        algorithm.mechanism,
        device_program(algorithm),
        assemble.simulated_fleet(recipe, population),
    )
    message = Message(start, mechanism.public(mechanism.init(start)))
    both, cohort, key = (
        beside(people, users, mechanism.most_reports),
        np.array([3, 7, 20]),
        jax.random.key(5),
    )
    alone = people.sum_reports(program, message, cohort, key)
    theirs = next(
        turn[0]
        for number, turn in enumerate(users.patterns)
        if users.included[number :: len(users.patterns)].any()
    )
    sums = {}
    for round in (99, theirs):  # in the first nobody has a turn
        users.begin(round)
        sums[round] = both.sum_reports(program, message, cohort, key)
        again = both.sum_reports(program, message, cohort, key)
        assert all(map(np.array_equal, jax.tree.leaves(sums[round]), jax.tree.leaves(again)))
    assert all(map(np.array_equal, jax.tree.leaves(sums[99]), jax.tree.leaves(alone)))
    # The twin: in their round they are there, as whole numbers that come off again without a trace
    # of the people.
    nobody = both.sum_reports(program, message, np.arange(0), key)
    assert len(users.choose_cohort(key))
    assert any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(nobody.update))
    off = jax.tree.map(lambda total, theirs: total - theirs, sums[theirs], nobody)
    assert all(map(np.array_equal, jax.tree.leaves(off), jax.tree.leaves(alone)))


def test_a_sum_of_theirs_is_the_sum_of_their_reports_and_of_nobody_else_s(population):
    """However many there are beside them: each is bounded alone."""
    users, algorithm, start = watched(tiny_recipe(population, audit={"users": 60}))
    message = Message(start, algorithm.mechanism.public(algorithm.mechanism.init(start)))
    some, key = np.array([4, 9, 31]), jax.random.key(1)
    together = users.sum_reports(None, message, some, key)
    alone = [users.sum_reports(None, message, some[place : place + 1], key) for place in range(3)]
    added = jax.tree.map(lambda *leaves: sum(leaves), *alone)
    assert all(map(np.array_equal, jax.tree.leaves(together), jax.tree.leaves(added)))
    assert not any(
        np.any(np.asarray(leaf))
        for leaf in jax.tree.leaves(users.sum_reports(None, message, some[:0], key))
    )


def test_a_crash_between_what_was_seen_and_the_state_changes_neither(
    population, tmp_path, monkeypatch
):
    """What was seen in rounds that the state knows nothing of is on disk by then, and is seen
    again.
    """
    recipe = tiny_recipe(population, audit={"users": 48}, **FTRL)
    whole = train_run(recipe, tmp_path / "whole", quietly)
    save, saved = taciturn.runs.loop.save_state, []

    def fails(path, *settings):
        # What a run watches is saved beside its state.
        if path.name == "state.safetensors":
            saved.append(settings)
        if len(saved) == 3:  # after round 4
            raise Cut
        save(path, *settings)

    monkeypatch.setattr(taciturn.runs.loop, "save_state", fails)
    with pytest.raises(Cut):
        train_run(recipe, tmp_path / "cut", quietly)
    assert AuditScores(tmp_path / "cut").rounds.tolist() == [
        0,
        1,
        2,
        3,
    ]  # of the last two the state does not know
    monkeypatch.setattr(taciturn.runs.loop, "save_state", save)
    again = resume_run(tmp_path / "cut", quietly)
    one, other = (AuditScores(tmp_path / name) for name in ("whole", "cut"))
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.products, other.products)
    assert (
        again.guarantee.releases == whole.guarantee.releases == 6
    )  # given out again, and charged once
    params = [jax.tree.leaves(load_model(tmp_path / name)[0]) for name in ("whole", "cut")]
    assert all(np.array_equal(*pair) for pair in zip(*params, strict=True))


def seen_of(users, algorithm, start, far, secret=None):
    mechanism = algorithm.mechanism.init(start)
    if secret is not None:
        noise = jax.tree.map(lambda leaf: jnp.full_like(leaf, secret), mechanism.noise)
        mechanism = mechanism._replace(noise=noise)
    before = TrainState(round=3, server=algorithm.init(start), mechanism=mechanism, ledger_head="")
    after = before._replace(mechanism=mechanism._replace(round=jnp.int32(4)))
    users.observe(
        before, after._replace(estimate=jax.tree.map(lambda leaf: jnp.full_like(leaf, far), start))
    )
    return users._seen[3].tolist()


def test_what_is_seen_is_made_of_released_estimates_and_of_no_secret_state(population):
    """Noise that is kept for later rounds is a secret, and it is in the state that an audit is
    shown.
    """
    users, algorithm, start = watched(tiny_recipe(population, audit={"users": 16}, **FTRL))
    first = seen_of(users, algorithm, start, 0.1)
    assert first[0] == 3  # the row of the noise
    assert seen_of(users, algorithm, start, 0.1, secret=1000) == first
    assert seen_of(users, algorithm, start, 0.2) != first  # the twin: released estimates do count


def test_what_was_read_from_a_model_that_is_its_owner_s_alone_is_too(population, tmp_path):
    users, algorithm, start = watched(tiny_recipe(population, audit={"users": 16}))
    seen_of(users, algorithm, start, 0.1)
    users.save(tmp_path, 0o600)
    users.save(tmp_path, 0o600)
    kept = (first_estimates.FILE_NAME, first_estimates.LAYERS)
    for name in (audit_users.FILE_NAME, audit_users.COINS, *kept):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_first_estimates_are_complete_rows_or_refused(tmp_path):
    kept = first_estimates.FirstEstimates(rounds=3, layers=[5, 3])
    for round in range(3):
        kept.observe(round, {"a": np.full(5, 2.0), "b": np.full(3, 4.0)}, deviation=2.0)
    kept.save(tmp_path, 0o600)
    path = tmp_path / first_estimates.FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = first_estimates.load_first_estimates(tmp_path)
    assert loaded is not None
    assert loaded.rows.tolist() == [[1.0] * 5 + [2.0] * 3] * 3
    # A process was killed while it wrote the second row.
    written = np.lib.format.open_memmap(path, "r+")
    written[1, 4:] = np.nan
    written.flush()
    loaded = first_estimates.load_first_estimates(tmp_path)
    assert loaded is not None
    assert len(loaded.rows) == 1
    # An archive of NumPy is not an array.
    with path.open("wb") as file:
        np.savez(file, np.ones(3))
    with pytest.raises(ValueError, match="is of another model"):
        first_estimates.load_first_estimates(tmp_path)
