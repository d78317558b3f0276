"""Attempts to break an audit by made-up users, and reports in residues: each does its worst, and its twin shows that worse is noticed."""

import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.auditing import CanaryScoreAuditor, Explicit

import taciturn.run
from conftest import Cut, tiny_recipe
from taciturn import audit_users, build, cli, tree
from taciturn.core import Message, Report, ServerState
from taciturn.evaluation.one_run import audited
from taciturn.fleets.synthetic import WithSyntheticUsers, by_coins
from taciturn.privacy.accounting import gaussian_epsilon, repeated, rho
from taciturn.privacy.clipping import flat_clip
from taciturn.privacy.curator import device_program
from taciturn.privacy.participation import WrongNumberOfUsers
from taciturn.privacy.secagg_encoding import centred, encoding, modular
from taciturn.recipe_text import RecipeError
from taciturn.release.checkpoint import load_model
from taciturn.run import resume_run, train_run
from taciturn.train import TrainState

WORDS = 40
FTRL = {"algorithm": "dp-ftrl", "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2}}
CYCLIC = {"algorithm": "dp-ftrl", "participation": {"kind": "cyclic-poisson"}}
ADAPTIVE = {"noise": "tree", "clipping": "adaptive", "restart_rounds": [3], "clipped_count_stddev": 1.0}
MECHANISMS = {
    "little noise": {"privacy": {"noise_multiplier": 0.05}},
    "clipped denominator": {"privacy": {"estimator": "clipped", "least_weight": 20}},
    "per layer": {"privacy": {"clipping": "per-layer"}},
    "clip schedule": {"privacy": {"clip_norm": [[0, 0.5], [3, 0.1]]}},
    "residues": {"privacy": {"encoding": "modular", "encoding_bits": 12}},
    "tree": FTRL | {"privacy": {"noise": "tree"}},
    "honaker": FTRL | {"privacy": {"noise": "honaker"}},
    "blt": FTRL | {"privacy": {"noise": "blt", "buffers": 2}},
    "turns": CYCLIC | {"privacy": {"noise": "banded", "bands": 3}},
    "adaptive": FTRL | {"privacy": ADAPTIVE},
}


def quietly(done, rounds, row):
    pass


def started(recipe):
    algorithm = build.algorithm(recipe, WORDS)
    return algorithm, build.language_model(recipe.model, WORDS).init(jax.random.key(0))


# ── what is claimed for an audit user ────────────────────────────────────────────────────────────────────────────────────────────────


def moved_by(recipe, weight, seeds=5):
    """How far one report of this weight, of an update that is far too long, moves a whole run, in standard deviations of its noise: the
    most of any row that it may be in. Noise is what the mechanism draws, movement is what it releases: the accounting is not asked."""
    algorithm, params = started(recipe)
    mechanism, adaptive = algorithm.mechanism, recipe.privacy.clipping == "adaptive"
    push = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 1e3), params)
    release = jax.jit(mechanism.release)

    @jax.jit
    def reports(public, key):
        one = mechanism.bound(public, push, weight, key)
        others = mechanism.bound(public, tree.scale(push, -1.0), 1.0, key)
        return one, jax.tree.map(lambda leaf: leaf * 4, others)

    def flat(estimate):
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(estimate)]).astype(np.float64)

    noises, moved = [], []
    for seed in range(seeds):
        state, rows = mechanism.init(params), []
        for row in range(recipe.run.rounds + 2):
            public, key = mechanism.public(state), jax.random.key(1000 * seed + row)
            unit = float(public.clip_norm) if adaptive else 1.0  # of another seed it is another
            keys = jax.random.split(key, mechanism.noise_keys)
            noise, after = release(state, tree.zeros_like(reports(public, key)[0]), keys)
            if seed == 0:
                one, others = reports(public, key)
                with_it, without = release(state, tree.add(others, one), keys)[0], release(state, others, keys)[0]
                moved.append(float(np.linalg.norm(flat(with_it) - flat(without))) / unit)
            rows.append(flat(noise) / unit)
            state = after
        noises.append(rows)
    values = np.concatenate(np.array(noises), axis=1)
    precision = np.linalg.inv(values @ values.T / values.shape[1])
    squares = np.square(moved) * np.diag(precision)
    if adaptive:  # and the bit, of ½
        alone = build.noise(recipe, 1.0).strategy.sensitivity_squared(len(moved), 0, 1)
        squares = squares + alone * (0.5 / recipe.privacy.clipped_count_stddev) ** 2
    return math.sqrt(np.max(squares))


@pytest.mark.usefixtures("not_optimised")
@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_report_of_an_audit_user_moves_no_mechanism_further_than_is_claimed(population, kind):
    recipe = build.with_noise(tiny_recipe(population, audit={"users": 32}, **MECHANISMS[kind]))
    claim = audit_users.claim(recipe)
    assert 0.75 * claim.mu < moved_by(recipe, claim.weight) < 1.025 * claim.mu


@pytest.mark.usefixtures("not_optimised")
def test_a_report_of_a_persons_weight_would_pass_the_claim(population):
    """The twin."""
    recipe = tiny_recipe(population, audit={"users": 32}, **MECHANISMS["tree"])
    claim = audit_users.claim(recipe)
    assert claim.weight == 0.25
    assert moved_by(recipe, 1.0, seeds=3) > 3 * claim.mu


def test_rounding_in_a_large_total_moves_it_no_further_than_is_claimed(population):
    """Among 60,000 people who agree on a parameter, the float32 nearest to the total goes up by far more than the report that is added."""
    crowd = {"participation": {"users": 100_000, "cohort": 60_000}, "privacy": {"noise_multiplier": 0.001}}
    recipe = tiny_recipe(population, audit={"users": 32}, **crowd)
    (algorithm, params), claim = started(recipe), audit_users.claim(recipe)
    mechanism, release = algorithm.mechanism, jax.jit(algorithm.mechanism.release)
    state, keys = mechanism.init(params), jax.random.split(jax.random.key(1), mechanism.noise_keys)
    push = tree.zeros_like(params)
    push["word_bias"] = push["word_bias"].at[0].set(1.0)
    one, person = (mechanism.bound(mechanism.public(state), push, weight, keys[0]) for weight in (claim.weight, 1.0))
    stddev = 0.001 * 0.5 / 60_000

    def moved(people):
        total = jax.tree.map(lambda leaf: leaf * people, person)
        with_it, without = release(state, tree.add(total, one), keys)[0], release(state, total, keys)[0]
        return jnp.abs(with_it["word_bias"][0] - without["word_bias"][0]) / stddev

    far = jax.vmap(moved)(jnp.arange(60_000, 60_128))
    assert np.max(far) <= 1.01 * claim.mu


# ── what the bound on ε may say of a mechanism that keeps its word ───────────────────────────────────────────────────────────────────


def accused(figure, apart, claimed, users, delta, times, seed=0):
    """How many honest audits out of so many end above the claim."""
    generator, found = np.random.default_rng(seed), 0
    for _ in range(times):
        included = generator.random(users) < 0.5
        one = audited(generator.normal(size=users) + apart * included, included, delta)
        found += getattr(one, figure) > claimed
    return found


@pytest.fixture
def only_epsilon(monkeypatch):
    """Without the bound for Gaussian noise, which takes longer; where nothing is claimed, the two are the same."""
    monkeypatch.setattr(CanaryScoreAuditor, "epsilon_one_run_fdp", lambda *_, **__: 0.0)


@pytest.mark.parametrize(
    ("apart", "users", "times"), [(0.1, 64, 100), (0.5, 64, 100), (0.5, 1000, 20), (2.0, 1000, 20)]
)
def test_scores_as_far_apart_as_is_claimed_accuse_nobody(apart, users, times):
    """An attacker who sees all there is to see: N(0, 1) against N(μ, 1), with the μ of the claim."""
    assert accused("epsilon_fdp", apart, gaussian_epsilon(apart, 1e-5), users, 1e-5, times) <= 0.05 * times


@pytest.mark.parametrize(("apart", "users"), [(0.05, 1000), (0.5, 4000), (2.0, 1000)])
def test_neither_does_the_bound_that_knows_no_shape(only_epsilon, apart, users):
    assert accused("epsilon", apart, gaussian_epsilon(apart, 1e-5), users, 1e-5, times=100) <= 5


def test_scores_further_apart_than_is_claimed_do():
    """The twin."""
    assert accused("epsilon_fdp", 4.0, gaussian_epsilon(0.5, 1e-5), 1000, 1e-5, times=5) == 5


def test_scores_that_say_nothing_pass_zero_no_more_than_once_in_twenty(only_epsilon):
    times = 1500
    assert accused("epsilon", 0.0, 0.0, 4000, 1e-6, times) <= 0.05 * times + 2 * math.sqrt(0.05 * 0.95 * times)


def test_a_bound_with_few_thresholds_that_were_fixed_before_does_not():
    """The twin: the best half, quarter, eighth… of the users, and a correction for as many."""
    generator, times, users, found = np.random.default_rng(0), 1500, 4000, 0
    guesses = [users >> shift for shift in range(1, 9)]
    for _ in range(times):
        included, scores = generator.random(users) < 0.5, generator.normal(size=users)
        auditor, falling = CanaryScoreAuditor(scores[included], scores[~included]), np.sort(scores)[::-1]
        bounds = (
            auditor.epsilon_one_run(0.05 / len(guesses), 1e-6, threshold_strategy=Explicit(falling[count - 1]))
            for count in guesses
        )
        found += max(bounds) > 0
    assert found <= 0.05 * times


def status_of_audit(run, alignments, monkeypatch):
    """The exit status of `taciturn audit` for a run whose users have these scores."""
    content = json.loads((run / audit_users.FILE_NAME).read_text())
    for row, alignment in zip(content["users"].values(), alignments, strict=True):
        row["alignment"] = alignment
    (run / audit_users.FILE_NAME).write_text(json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["taciturn", "audit", str(run), "--json"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


@pytest.mark.usefixtures("not_optimised")
def test_an_audit_that_cannot_be_made_does_not_leave_with_the_exit_status_of_a_broken_claim(
    population, tmp_path, monkeypatch
):
    train_run(tiny_recipe(population, audit={"users": 32}), tmp_path / "run", quietly)
    assert status_of_audit(tmp_path / "run", np.zeros(32).tolist(), monkeypatch) == 0
    assert status_of_audit(tmp_path / "run", [math.nan, *np.zeros(31).tolist()], monkeypatch) == 2


# ── audit users beside people ────────────────────────────────────────────────────────────────────────────────────────────────────────


def watched(recipe, population, algorithm=None):
    algorithm = algorithm or build.algorithm(recipe, WORDS)
    start = build.language_model(recipe.model, WORDS).init(jax.random.key(0))
    return audit_users.AuditUsers(recipe, population.vocabulary, algorithm, start, bytes(32)), algorithm, start


def beside(fleet, users, most):
    return WithSyntheticUsers(fleet, users.fleet, users.chosen, most)


@pytest.mark.parametrize("privacy", [{}, {"encoding": "modular"}], ids=["whole", "residues"])
def test_a_total_with_audit_users_is_that_of_the_people_and_theirs_to_the_bit(population, privacy):
    recipe = tiny_recipe(population, audit={"users": 16}, privacy=privacy)
    users, algorithm, start = watched(recipe, population)
    mechanism, program, people = algorithm.mechanism, device_program(algorithm), build.simulated(recipe, population)
    message = Message(start, mechanism.public(mechanism.init(start)))
    both, cohort, key = beside(people, users, mechanism.most_reports), np.array([3, 7, 20]), jax.random.key(5)
    alone = people.sum_reports(program, message, cohort, key)
    sums = {}
    for round in (0, 3):  # their round is the third
        users.begin(round)
        sums[round] = both.sum_reports(program, message, cohort, key)
        again = both.sum_reports(program, message, cohort, key)
        assert all(map(np.array_equal, jax.tree.leaves(sums[round]), jax.tree.leaves(again)))
    assert all(map(np.array_equal, jax.tree.leaves(sums[0]), jax.tree.leaves(alone)))
    # The twin: in their round they are there, as whole numbers that come off again without a trace of the people.
    nobody = both.sum_reports(program, message, np.arange(0), key)
    assert len(users.chosen(key))
    assert any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(nobody.update))
    off = jax.tree.map(lambda total, theirs: total - theirs, sums[3], nobody)
    assert all(map(np.array_equal, jax.tree.leaves(off), jax.tree.leaves(alone)))


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
    canaries, audited = 30, audit_users.AUDITED_AT_ONCE
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
    assert both.most_reports == plain.most_reports + 20 + 16
    size = tree.size(started(tiny_recipe(population))[1])
    assert both.modulus == encoding(size, both.most_reports).modulus


# ── crashes, and what is written down ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("not_optimised")
def test_a_crash_between_scores_and_state_changes_neither_scores_nor_model(population, tmp_path, monkeypatch):
    """Scores of rounds that the state knows nothing of are on disk by then, and are made again."""
    recipe = tiny_recipe(population, audit={"users": 48}, **(FTRL | {"privacy": {"noise": "tree"}}))
    whole = train_run(recipe, tmp_path / "whole", quietly)
    save, saved = taciturn.run.save_state, []

    def fails(*settings):
        saved.append(settings)
        if len(saved) == 3:  # after round 4
            raise Cut
        save(*settings)

    monkeypatch.setattr(taciturn.run, "save_state", fails)
    with pytest.raises(Cut):
        train_run(recipe, tmp_path / "cut", quietly)
    rounds = {row["round"] for row in json.loads((tmp_path / "cut" / "audit_users.json").read_text())["users"].values()}
    assert rounds == {1, 3}  # of the second the state does not know
    monkeypatch.setattr(taciturn.run, "save_state", save)
    again = resume_run(tmp_path / "cut", quietly)
    one, other = (json.loads((tmp_path / name / "audit_users.json").read_text()) for name in ("whole", "cut"))
    assert one == other
    assert again.guarantee.releases == whole.guarantee.releases == 6  # given out again, and charged once
    params = [jax.tree.leaves(load_model(tmp_path / name)[0]) for name in ("whole", "cut")]
    assert all(np.array_equal(*pair) for pair in zip(*params, strict=True))


def scores_of(users, algorithm, start, far, noise=None):
    users.begin(3)
    mechanism = algorithm.mechanism.init(start)
    if noise is not None:
        mechanism = mechanism._replace(noise=jax.tree.map(lambda leaf: jnp.full_like(leaf, noise), mechanism.noise))
    before = TrainState(3, algorithm.init(start), mechanism, "")
    after = before._replace(server=ServerState(jax.tree.map(lambda leaf: leaf + far, start), before.server.optimizer))
    users.observe(before, after)
    return [row["alignment"] for row in users._rows.values()]


@pytest.mark.usefixtures("not_optimised")
def test_scores_are_made_of_released_models_and_of_no_secret_state(population):
    """Noise that is kept for later rounds is a secret, and it is in the state that an audit is shown."""
    recipe = tiny_recipe(population, audit={"users": 16}, **(FTRL | {"privacy": {"noise": "tree"}}))
    users, algorithm, start = watched(recipe, population)
    first = scores_of(users, algorithm, start, 0.1)
    assert scores_of(users, algorithm, start, 0.1, noise=1e3) == first
    assert scores_of(users, algorithm, start, 0.2) != first  # the twin: released models do count


@pytest.mark.usefixtures("not_optimised")
def test_an_audit_user_whose_report_is_nothing_does_not_silence_the_others(population):
    recipe = tiny_recipe(population, audit={"users": 16})
    sound = build.algorithm(recipe, WORDS)

    def update(message, user, key):
        runs_away = user.batches[0, 0, 1] == users.texts[0][0]
        found = sound.user_update(message, user, key)
        return jax.tree.map(lambda leaf: jnp.where(runs_away, jnp.nan, leaf), found)

    users, algorithm, start = watched(recipe, population, sound._replace(user_update=update))
    assert np.all(np.isfinite(scores_of(users, algorithm, start, 0.1)[1:]))


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
    coded = build.with_noise(tiny_recipe(population, privacy=budget | residues))
    plain = coded.with_settings("privacy", encoding="whole", encoding_bits=None)
    stddevs = []
    for recipe in (plain, coded):
        algorithm, params = started(recipe)
        mechanism = algorithm.mechanism
        assert rho(repeated(mechanism.event(algorithm.participation), 6)) <= 2.0
        state = mechanism.init(params)
        shape = jax.eval_shape(mechanism.bound, mechanism.public(state), params, 1.0, jax.random.key(0))
        draws = jax.random.split(jax.random.key(3), mechanism.noise_keys)
        drawn, _ = jax.jit(mechanism.release)(state, tree.zeros_like(shape), draws)
        stddevs.append(math.sqrt(float(tree.dot(drawn, drawn)) / tree.size(drawn)))
    inflation = encoding(tree.size(params), build.most_reports(coded), 11).inflation
    assert inflation > 1.01
    assert stddevs[1] / stddevs[0] == pytest.approx(inflation, rel=1e-4)


def test_what_residues_cannot_do_is_refused(population):
    for privacy in ({"clipping": "adaptive"}, {"estimator": "clipped", "least_weight": 20}):
        with pytest.raises(RecipeError, match="modular"):
            tiny_recipe(population, **(FTRL | {"privacy": {"encoding": "modular"} | privacy}))
