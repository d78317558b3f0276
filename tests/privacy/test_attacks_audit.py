"""Attempts to break an audit by made-up users, and reports in residues: each does its worst, and its twin shows that worse is noticed."""

import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import taciturn.runs.run
from harness import Cut, noise_key, quietly, tiny_recipe
from taciturn import cli, trees
from taciturn.audit import audit_users
from taciturn.audit.audit_users import Seen
from taciturn.core import Message, Report
from taciturn.fleets import assemble
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers, by_coins
from taciturn.privacy.accounting import repeated, rho
from taciturn.privacy.clipping import flat_clip
from taciturn.privacy.curator import device_program
from taciturn.privacy.participation import WrongNumberOfUsers
from taciturn.privacy.secagg_encoding import centred, encoding, modular
from taciturn.recipe import build
from taciturn.recipe.sections import AUDITED_AT_ONCE
from taciturn.recipe.solve import with_noise
from taciturn.recipe.text import RecipeError
from taciturn.release.model_file import load_model
from taciturn.runs.run import resume_run, train_run
from taciturn.train import TrainState

WORDS = 40
FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "privacy": {"noise": "tree"},
}


def started(recipe):
    algorithm = build.algorithm(recipe, WORDS)
    return algorithm, build.language_model(recipe.model, WORDS).init(jax.random.key(0))


# ── what an audit says of a run ──────────────────────────────────────────────────────────────────────────────────────────────────────


def status_of_audit(run, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["taciturn", "audit", str(run), "--json"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def rewritten(run, change):
    values = np.load(run / audit_users.FILE_NAME)
    np.save(run / audit_users.FILE_NAME, change(values))


@pytest.mark.usefixtures("not_optimised")
def test_an_audit_that_cannot_be_made_does_not_leave_with_the_exit_status_of_a_broken_claim(
    population, tmp_path, monkeypatch
):
    """Nor does one of a run that keeps its word."""
    run = tmp_path / "run"
    train_run(tiny_recipe(population, audit={"users": 64}), run, quietly)
    assert status_of_audit(run, monkeypatch) == 0
    seen = Seen(run)
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


# ── audit users beside people ────────────────────────────────────────────────────────────────────────────────────────────────────────


def watched(recipe):
    algorithm, start = started(recipe)
    return audit_users.AuditUsers(recipe, algorithm, start, bytes(32)), algorithm, start


def beside(fleet, users, most):
    return WithSyntheticUsers(fleet, users, users.chosen, most)


@pytest.mark.parametrize("privacy", [{}, {"encoding": "modular"}], ids=["whole", "residues"])
def test_a_total_with_audit_users_is_that_of_the_people_and_theirs_to_the_bit(population, privacy):
    recipe = tiny_recipe(population, audit={"users": 16}, privacy=privacy)
    users, algorithm, start = watched(recipe)
    mechanism, program, people = algorithm.mechanism, device_program(algorithm), assemble.simulated(recipe, population)
    message = Message(start, mechanism.public(mechanism.init(start)))
    both, cohort, key = beside(people, users, mechanism.most_reports), np.array([3, 7, 20]), jax.random.key(5)
    alone = people.sum_reports(program, message, cohort, key)
    theirs = next(
        turn[0] for number, turn in enumerate(users.patterns) if users.included[number :: len(users.patterns)].any()
    )
    sums = {}
    for round in (99, theirs):  # in the first nobody has a turn
        users.begin(round)
        sums[round] = both.sum_reports(program, message, cohort, key)
        again = both.sum_reports(program, message, cohort, key)
        assert all(map(np.array_equal, jax.tree.leaves(sums[round]), jax.tree.leaves(again)))
    assert all(map(np.array_equal, jax.tree.leaves(sums[99]), jax.tree.leaves(alone)))
    # The twin: in their round they are there, as whole numbers that come off again without a trace of the people.
    nobody = both.sum_reports(program, message, np.arange(0), key)
    assert len(users.chosen(key))
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
        np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(users.sum_reports(None, message, some[:0], key))
    )


class Nobody:
    """A fleet that notes with which key it was asked."""

    everyone_reports = True

    def __init__(self):
        self.keys = []

    def users(self, eligible):
        return eligible(np.arange(10))

    def sum_reports(self, program, message, cohort, key):
        self.keys.append(np.asarray(jax.random.key_data(key)).tolist())
        return Report({}, jnp.int32(len(cohort)))


@pytest.mark.parametrize(("people", "fits"), [(20, True), (21, False)])
def test_people_canaries_and_audit_users_together_are_never_more_than_a_total_holds(people, fits):
    """As a run nests them: room for all audit users of a round is kept free of canaries."""
    canaries, audited = 30, AUDITED_AT_ONCE
    most = 20 + canaries + audited
    inner = WithSyntheticUsers(Nobody(), Nobody(), by_coins(canaries, 1.0), most - audited)
    outer = WithSyntheticUsers(inner, Nobody(), lambda coins: np.arange(audited), most)
    if fits:
        assert int(outer.sum_reports(None, None, np.arange(people), jax.random.key(0)).weight) == most
    else:
        with pytest.raises(WrongNumberOfUsers):
            outer.sum_reports(None, None, np.arange(people), jax.random.key(0))


def test_canaries_and_audit_users_of_one_round_have_keys_of_their_own():
    canaries, audited = Nobody(), Nobody()
    inner = WithSyntheticUsers(Nobody(), canaries, by_coins(3, 1.0), 100)
    WithSyntheticUsers(inner, audited, lambda coins: np.arange(3), 100, kind=2).sum_reports(
        None, None, np.arange(2), jax.random.key(0)
    )
    assert canaries.keys != audited.keys


def test_room_for_canaries_and_audit_users_is_in_the_modulus(population):
    crowd = {"text": "somewhere", "users": [4], "copies": [1], "each": 5}
    plain, both = (
        build.algorithm(tiny_recipe(population, privacy={"encoding": "modular"}, **more), WORDS).mechanism
        for more in ({}, {"canaries": crowd, "audit": {"users": 32}})
    )
    assert both.most_reports == plain.most_reports + 20 + 32
    size = trees.size(started(tiny_recipe(population))[1])
    assert both.modulus == encoding(size, both.most_reports).modulus


# ── crashes, and what is written down ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("not_optimised")
def test_a_crash_between_what_was_seen_and_the_state_changes_neither(population, tmp_path, monkeypatch):
    """What was seen in rounds that the state knows nothing of is on disk by then, and is seen again."""
    recipe = tiny_recipe(population, audit={"users": 48}, **FTRL)
    whole = train_run(recipe, tmp_path / "whole", quietly)
    save, saved = taciturn.runs.run.save_state, []

    def fails(*settings):
        saved.append(settings)
        if len(saved) == 3:  # after round 4
            raise Cut
        save(*settings)

    monkeypatch.setattr(taciturn.runs.run, "save_state", fails)
    with pytest.raises(Cut):
        train_run(recipe, tmp_path / "cut", quietly)
    assert Seen(tmp_path / "cut").rounds.tolist() == [0, 1, 2, 3]  # of the last two the state does not know
    monkeypatch.setattr(taciturn.runs.run, "save_state", save)
    again = resume_run(tmp_path / "cut", quietly)
    one, other = (Seen(tmp_path / name) for name in ("whole", "cut"))
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.products, other.products)
    assert again.guarantee.releases == whole.guarantee.releases == 6  # given out again, and charged once
    params = [jax.tree.leaves(load_model(tmp_path / name)[0]) for name in ("whole", "cut")]
    assert all(np.array_equal(*pair) for pair in zip(*params, strict=True))


def seen_of(users, algorithm, start, far, secret=None):
    mechanism = algorithm.mechanism.init(start)
    if secret is not None:
        noise = jax.tree.map(lambda leaf: jnp.full_like(leaf, secret), mechanism.noise)
        mechanism = mechanism._replace(noise=noise)
    before = TrainState(3, algorithm.init(start), mechanism, "")
    after = before._replace(mechanism=mechanism._replace(round=jnp.int32(4)))
    users.observe(before, after._replace(estimate=jax.tree.map(lambda leaf: jnp.full_like(leaf, far), start)))
    return users._seen[3].tolist()


@pytest.mark.usefixtures("not_optimised")
def test_what_is_seen_is_made_of_released_estimates_and_of_no_secret_state(population):
    """Noise that is kept for later rounds is a secret, and it is in the state that an audit is shown."""
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
    for name in (audit_users.FILE_NAME, audit_users.COINS):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


# ── residues ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────

GARBAGE = {
    "no number": lambda size: np.full(size, np.nan),
    "infinite": lambda size: np.where(np.arange(size) % 2, np.inf, -np.inf),
    "largest floats": lambda size: np.full(size, 3e38),
    "denormal": lambda size: np.full(size, 1e-45),
    "one spike": lambda size: np.eye(1, size, 5)[0] * 1e30,
    "a little too long": lambda size: np.full(size, 1.001 / math.sqrt(size)),
    "half steps": lambda size: np.full(size, 0.5) * np.where(np.arange(size) % 3, 1, -1),
}


@pytest.mark.parametrize("bits", [None, 10])
def test_whatever_reaches_the_rounding_leaves_within_the_limit_with_no_clip_before_it(bits):
    """`pack` alone, one by one and side by side: the check on whole numbers does not lean on the clip."""
    size, reports = 600, 20
    encoded = encoding(size, reports, bits)
    bound = modular(flat_clip(1.0), {"a": jnp.zeros(size)}, encoded)
    updates = jnp.asarray(np.stack([make(size) for make in GARBAGE.values()]), jnp.float32)
    keys = jax.random.split(jax.random.key(0), len(updates))
    side_by_side = jax.jit(jax.vmap(lambda one, key: bound.pack(bound.public(7), {"a": one}, key)))(updates, keys)
    alone = jax.jit(lambda one, key: bound.pack(bound.public(7), {"a": one}, key))
    for packed in (side_by_side, [alone(*pair) for pair in zip(updates, keys, strict=True)]):
        for report in packed:
            whole = [int(one) for one in np.asarray(centred(encoded, report)).ravel()]
            assert sum(one**2 for one in whole) <= encoded.limit
            assert max(map(abs, whole)) <= encoded.largest


@pytest.mark.parametrize("sign", [1, -1])
def test_as_many_reports_as_a_sum_holds_add_up_and_more_wrap_around(sign):
    encoded = next(one for n in range(50, 200) if 2 * (one := encoding(600, n, 16)).largest * (n + 1) >= one.modulus)
    most = jnp.uint32((sign * encoded.largest) % encoded.modulus)
    full = jnp.full(encoded.padded, most) * jnp.uint32(encoded.most_reports)  # mod 2³²
    assert np.all(np.asarray(centred(encoded, full)) == sign * encoded.largest * encoded.most_reports)
    assert np.all(np.asarray(centred(encoded, full % encoded.modulus)) == sign * encoded.largest * encoded.most_reports)
    over = np.asarray(centred(encoded, full + most))  # the twin
    assert np.all(over != sign * encoded.largest * (encoded.most_reports + 1))


def test_noise_is_for_the_longest_report_also_where_it_is_worked_out_from_a_budget(population):
    budget = {"noise_multiplier": None, "rho": 2.0}
    residues = {"encoding": "modular", "encoding_bits": 11}
    coded = with_noise(tiny_recipe(population, privacy=budget | residues))
    plain = coded.with_settings("privacy", encoding="whole", encoding_bits=None)
    stddevs = []
    for recipe in (plain, coded):
        algorithm, params = started(recipe)
        mechanism = algorithm.mechanism
        assert rho(repeated(mechanism.event(algorithm.participation), 6)) <= 2.0
        state = mechanism.init(params)
        shape = jax.eval_shape(mechanism.bound, mechanism.public(state), params, 1.0, jax.random.key(0))
        release, _ = jax.jit(mechanism.release)(state, trees.zeros_like(shape), noise_key(3))
        drawn = release.estimate
        stddevs.append(math.sqrt(float(trees.dot(drawn, drawn)) / trees.size(drawn)))
    inflation = encoding(trees.size(params), build.most_reports(coded), 11).inflation
    assert inflation > 1.01
    assert stddevs[1] / stddevs[0] == pytest.approx(inflation, rel=1e-4)


def test_what_residues_cannot_do_is_refused(population):
    for privacy in ({"clipping": "adaptive"}, {"estimator": "clipped", "least_weight": 20}):
        with pytest.raises(RecipeError, match="modular"):
            tiny_recipe(population, **(FTRL | {"privacy": {"encoding": "modular"} | privacy}))
