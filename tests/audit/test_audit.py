"""An audit by made-up users: it finds a mechanism with too little noise, and has nothing to say
against one that keeps its word.
"""

import functools
import json
import math
import re
import shutil
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import (
    Cut,
    cut_at,
    exact,
    made_up_users,
    mostly_slow,
    quietly,
    small_population,
    tiny_recipe,
    write_population,
)
from taciturn.audit import audit_users
from taciturn.audit.audit_users import AuditScores
from taciturn.audit.first_estimates import load_first_estimates
from taciturn.audit.results import MembershipResults, audit_membership, score_audit_users
from taciturn.cli.audit import audit
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, DataError, Vocabulary
from taciturn.files import from_json, to_json
from taciturn.privacy.bounding.clipping import MOST_REPORTS
from taciturn.privacy.noise import sampler
from taciturn.recipe import build
from taciturn.recipe.solve import with_noise
from taciturn.recipe.text import RecipeError
from taciturn.release.model_file import load_model
from taciturn.runs import run as runs
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import recipe_of
from taciturn.runs.loop import resume_run, train_run

FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 4},
    "privacy": {"noise": "blt", "buffers": 2, "noise_multiplier": 3.0},
}
TREE = FTRL | {"privacy": {"noise": "honaker", "noise_multiplier": 3.0, "restart_rounds": [7]}}
CYCLIC = {"algorithm": "dp-ftrl", "participation": {"kind": "cyclic-poisson"}}
ADAPTIVE = {
    "noise": "tree",
    "clipping": "adaptive",
    "restart_rounds": [3],
    "clipped_count_stddev": 1.0,
}
MECHANISMS = {
    "one turn": {},
    "many turns": {"privacy": {"noise_multiplier": 4.0}},
    "per layer": {"privacy": {"clipping": "per-layer"}},
    "clip schedule": {"privacy": {"clip_norm": [[0, 0.5], [3, 0.1]]}},
    "residues": {"privacy": {"encoding": "modular"}},
    "other optimiser": {"server": {"optimizer": "adam", "momentum": None, "learning_rate": 0.01}},
    "tree": FTRL | {"privacy": {"noise": "tree", "noise_multiplier": 4.0}},
    "honaker": TREE,
    "blt": FTRL,
    "turns": CYCLIC | {"privacy": {"noise": "banded", "bands": 3, "noise_multiplier": 2.0}},
}


def wide_population(folder):
    """Users of a list of words long enough for a model with room for a thousand directions."""
    words = SPECIAL + PUNCTUATION + tuple(f"word{number}" for number in range(386))
    return write_population(
        folder,
        made_up_users(50),
        made_up_users(12, seed=1),
        Vocabulary(words=words),
        {"source": "made up"},
    )


@pytest.fixture
def wide(tmp_path):
    return wide_population(tmp_path / "wide")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A run of each of `MECHANISMS`, with 800 users beside it: trained once, for all tests that
    read it.
    """

    @functools.cache
    def trained(kind):
        folder = tmp_path_factory.mktemp("honest")
        train_run(
            watched(wide_population(folder / "wide"), **MECHANISMS[kind]), folder / "run", quietly
        )
        return folder / "run"

    return trained


@pytest.fixture(scope="module")
def uncut(tmp_path_factory, vocabulary):
    """A small run with 48 users beside it that nothing cut off: trained once."""

    @functools.cache
    def trained(kind):
        folder = tmp_path_factory.mktemp("uncut")
        population = small_population(folder / "population", vocabulary)
        finished = train_run(
            tiny_recipe(population, audit={"users": 48}, **MECHANISMS[kind]),
            folder / "run",
            quietly,
        )
        return folder / "run", finished.guarantee

    return trained


def watched(population, users=800, rounds=16, seed=1, **sections):
    run = {"rounds": rounds, "evaluate_every": rounds, "save_every": 8, "seed": seed}
    return tiny_recipe(population, **sections, audit={"users": users}, run=run)


def with_noise_too_small(monkeypatch, times):
    """Break the mechanism: it charges for its noise and adds so many times less."""

    def broken(recipe, vocabulary):
        whole = build.algorithm(recipe, vocabulary)
        less = max(recipe.privacy.noise_multiplier / times, 1e-3)
        mechanism = build.algorithm(
            recipe.with_settings("privacy", noise_multiplier=less), vocabulary
        ).mechanism
        return whole._replace(mechanism=mechanism._replace(event=whole.mechanism.event))

    # For runs alone: `build` itself stays, with all that was compiled from it.
    monkeypatch.setattr(runs, "build", SimpleNamespace(**(vars(build) | {"algorithm": broken})))


def with_noise_that_repeats(monkeypatch):
    """Break the mechanism: the noise of the first half of the parameters is that of the second."""
    white = sampler.white

    def halves_alike(spread, key, *, stream, size):
        noise = white(spread, key, stream=stream, size=size)
        half = size // 2
        return jax.tree.map(lambda limb: limb.at[half : 2 * half].set(limb[:half]), noise)

    def broken(recipe, vocabulary):
        whole = build.algorithm(recipe, vocabulary)

        def release(*settings):
            # Not by pytest's own, which would have every program compiled anew in each round.
            with mock.patch.object(sampler, "white", halves_alike):
                return whole.mechanism.release(*settings)

        return whole._replace(mechanism=whole.mechanism._replace(release=release))

    monkeypatch.setattr(runs, "build", SimpleNamespace(**(vars(build) | {"algorithm": broken})))


def found_in(recipe, folder):
    train_run(recipe, folder, quietly)
    return audit_membership(folder, recipe_of(folder))


@pytest.mark.parametrize("kind", mostly_slow(MECHANISMS, "one turn"))
def test_a_mechanism_that_keeps_its_word_is_what_it_is_said_to_be_and_is_not_accused(honest, kind):
    """Reports are as long as is claimed, noise is as wide, correlated as the recipe says: neither
    less nor more.
    """
    recipe = recipe_of(honest(kind))
    found = audit_membership(honest(kind), recipe)
    assert not found.is_refuted
    # Nor is its noise, of which the first rounds' estimates were kept.
    assert found.noise.rounds == 8
    users = score_audit_users(recipe, AuditScores(honest(kind)))
    error = 4 / math.sqrt(np.sum(users.mu[users.included] ** 2))
    assert found.audit.signal == pytest.approx(1.0, abs=error)
    assert 0.9 < found.audit.spread < 1.2  # people make it wider
    assert found.audit.caught[1] < 2  # and it could have seen something


@pytest.mark.parametrize(
    "kind", mostly_slow(["one turn", "many turns", "residues", "honaker", "blt"], "one turn")
)
def test_noise_that_is_half_of_what_is_claimed_is_found_out(wide, tmp_path, monkeypatch, kind):
    """The twin."""
    with_noise_too_small(monkeypatch, 2.0)
    found = found_in(watched(wide, **MECHANISMS[kind]), tmp_path / "run")
    assert found.audit.is_refuted
    assert found.audit.spread < 0.75


@pytest.mark.parametrize("kind", mostly_slow(["one turn", "honaker", "blt"], "one turn"))
def test_noise_that_two_halves_of_the_parameters_share_is_found_out(
    wide, tmp_path, monkeypatch, kind
):
    """The scores of the audit users do not show it. The twin is each honest run above."""
    with_noise_that_repeats(monkeypatch)
    found = found_in(watched(wide, **MECHANISMS[kind]), tmp_path / "run")
    assert not found.audit.is_refuted
    assert found.is_refuted
    assert found.noise.quiet == 0
    assert found.noise.repeated > 0.9 * found.noise.parameters
    half = found.noise.parameters // 2
    assert f"mostly {half:,} places apart" in found.verdict()
    assert MembershipResults.from_json(from_json(to_json(found.to_json()))) == found


@pytest.mark.parametrize("kind", ["one turn", "blt"], ids=["dp-fedavg", "dp-ftrl"])
def test_the_command_says_that_nothing_contradicts_the_claim_and_what_it_could_have_seen(
    honest, tmp_path, capsys, kind
):
    shutil.copytree(honest(kind), tmp_path / "run")
    audit(tmp_path / "run")  # exit status 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Nothing contradicts the claim" in said
    assert "Its users would have caught noise that is 1." in said
    assert ("of the μ that is claimed for a person's whole part" in said) == (kind == "blt")
    assert re.search(
        r"noise that repeats in the same order within a round in (9\d|100) % of the model", said
    )
    assert re.search(r"ε at δ = \S+", said)


def test_the_command_leaves_with_1_where_noise_is_missing(wide, tmp_path, capsys, monkeypatch):
    with_noise_too_small(monkeypatch, 1e3)
    train_run(watched(wide), tmp_path / "run", quietly)
    assert audit(tmp_path / "run")[1] == 1
    assert "BROKEN" in capsys.readouterr().out
    said = json.loads((tmp_path / "run" / "audit.json").read_text())["audit"]
    assert said["refuted"]
    assert said["epsilon_at_least"] > said["claimed_epsilon"]
    assert set(said["caught"]) == {"0.8", "0.95"}


def test_users_have_all_turns_that_the_claim_allows_and_no_more(wide):
    recipe = with_noise(watched(wide, **FTRL), 30_000)
    turns = audit_users.choose_patterns(recipe)
    assert (
        max(map(len, turns)) == 4 == recipe.max_participations
    )  # of 16 rounds with four between two turns
    assert all(np.diff(one).min() >= 5 for one in turns)
    assert sorted(round for one in turns for round in one) == list(
        range(16)
    )  # each round is somebody's, and of one pattern
    rare = FTRL | {"participation": FTRL["participation"] | {"max_participations": 3}}
    fewer = audit_users.choose_patterns(with_noise(watched(wide, **rare), 30_000))
    assert max(map(len, fewer)) == 3


def test_the_whole_cost_of_a_run_is_tested_and_not_that_of_one_row(honest):
    found = audit_membership(honest("blt"), recipe_of(honest("blt")))
    assert found.turns == 4
    assert 0.9 * found.whole < found.audit.mu <= found.whole


def test_without_a_claim_about_turns_they_have_as_many_as_make_much_noise_visible(wide):
    for multiplier, turns in ((0.5, 1), (1.0, 1), (2.0, 4), (4.0, 16), (40.0, 16)):
        recipe = watched(wide, privacy={"noise_multiplier": multiplier})
        assert max(map(len, audit_users.choose_patterns(recipe))) == turns
    many = watched(wide, users=5000, privacy={"noise_multiplier": 4.0})
    found = audit_users.choose_patterns(many)
    assert 5000 / len(found) <= audit_users.AUDITED_AT_ONCE
    assert max(map(len, found)) == 3  # fewer turns, where too many would come at once


def test_however_large_a_cohort_no_more_come_at_once_than_a_total_has_room_for(wide, monkeypatch):
    """Where people are counted, a tenth of a cohort may come; the room that is kept for them is no
    larger.
    """
    monkeypatch.setattr(audit_users, "MOST_BESIDE", 1e6)  # as a cohort of tens of thousands has it
    monkeypatch.setattr(audit_users, "_people_are_counted", lambda recipe: True)
    many = watched(wide, users=5000, privacy={"noise_multiplier": 4.0})
    found = audit_users.choose_patterns(many)
    assert -(-5000 // len(found)) <= audit_users.AUDITED_AT_ONCE
    # The twin: without that limit more would come.
    monkeypatch.setattr(audit_users, "AUDITED_AT_ONCE", 10**9)
    assert -(-5000 // len(audit_users.choose_patterns(many))) > 1024


def test_half_of_them_are_in_and_each_comes_in_its_own_rounds(wide):
    recipe = watched(wide, users=200, rounds=30)
    algorithm = build.algorithm(recipe, 400)
    params = build.language_model(recipe.model, 400).init(jax.random.key(0))
    users = audit_users.AuditUsers(
        recipe=recipe, algorithm=algorithm, params=params, root=bytes(32)
    )
    asked = []
    for round in range(30):
        users.begin(round)
        asked.append(users.choose_cohort(jax.random.key(round)).tolist())
        assert (
            users.choose_cohort(jax.random.key(99)).tolist() == asked[-1]
        )  # the same, however often a round is summed
    everyone = [user for some in asked for user in some]
    assert sorted(everyone) == np.flatnonzero(users.included).tolist()  # of one turn each
    assert 60 < len(everyone) < 140


def directions_of(recipe, words=40, root=bytes(32)):
    algorithm = build.algorithm(recipe, words)
    params = build.language_model(recipe.model, words).init(jax.random.key(0))
    return (
        audit_users.AuditUsers(recipe=recipe, algorithm=algorithm, params=params, root=root),
        algorithm,
        params,
    )


def flat(update):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(update)]).astype(np.float64)


def test_directions_are_orthogonal_and_all_products_with_them_are_one_transform(population):
    users, _, params = directions_of(tiny_recipe(population, audit={"users": 48}))
    made = [
        flat(users._directions.update(users._directions.vectors, jnp.uint32(user)))
        for user in range(60)
    ]
    units = np.stack(made) / audit_users.LENGTH
    np.testing.assert_allclose(units @ units.T, np.eye(60), atol=1e-5)
    estimate = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params)
    np.testing.assert_allclose(
        users._directions.products(estimate), units @ flat(estimate), atol=1e-4
    )
    assert np.abs(np.sum(units[:48], axis=0)).max() < 0.75 * 48 / math.sqrt(
        units.shape[1]
    )  # nowhere do they all agree


def test_directions_and_coins_are_another_run_s_own(population):
    recipe = tiny_recipe(population, audit={"users": 48})
    one, other = (directions_of(recipe, root=root)[0] for root in (bytes(32), bytes([1] * 32)))
    assert not np.array_equal(one.included, other.included)
    signs = [np.sign(users._directions.vectors.signed) for users in (one, other)]
    assert 0.3 < np.mean(signs[0] == signs[1]) < 0.7


@pytest.mark.parametrize("privacy", [{}, {"clipping": "per-layer"}], ids=["flat", "per layer"])
def test_a_report_is_the_direction_at_the_clip_norm(population, privacy):
    """And no longer, whatever the direction's length: it is bounded like everybody's."""
    users, algorithm, params = directions_of(
        tiny_recipe(population, audit={"users": 48}, privacy=privacy)
    )
    mechanism = algorithm.mechanism
    public = mechanism.public(mechanism.init(params))
    update = users._directions.update(users._directions.vectors, jnp.uint32(7))
    report, weight = exact(
        jax.jit(mechanism.bound)(public, update, jnp.float32(1), jax.random.key(0)), 0.5
    )
    sent = flat(report)
    assert weight == 1
    assert 0.99 * 0.5 < np.linalg.norm(sent) <= 0.5
    assert sent @ flat(update) / audit_users.LENGTH == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    "kind", mostly_slow(["one turn", "blt"], "blt"), ids=["dp-fedavg", "dp-ftrl"]
)
def test_the_claim_about_people_is_what_it_is_without_them(population, tmp_path, uncut, kind):
    plain = train_run(
        tiny_recipe(population, **MECHANISMS[kind]), tmp_path / "plain", quietly
    ).guarantee
    watched, with_them = uncut(kind)
    assert with_them.rho == plain.rho
    assert with_them.epsilon == plain.epsilon
    assert with_them.releases == plain.releases
    said = " ".join((watched / "guarantee.txt").read_text().split())
    assert "random directions of 48 synthetic users" in said
    assert not (tmp_path / "plain" / "audit_users.json").exists()


@pytest.mark.parametrize("kind", ["one turn", "blt"], ids=["dp-fedavg", "dp-ftrl"])
def test_an_interrupted_run_resumes_with_the_same_audit_users_and_readings(
    population, tmp_path, uncut, kind
):
    cut, whole = tmp_path / "run", uncut(kind)[0]
    with pytest.raises(Cut):
        train_run(tiny_recipe(population, audit={"users": 48}, **MECHANISMS[kind]), cut, cut_at(3))
    resume_run(cut, quietly)
    one, other = AuditScores(whole), AuditScores(cut)
    assert np.array_equal(one.included, other.included)
    assert one.rounds.tolist() == other.rounds.tolist() == list(range(6))
    assert np.array_equal(one.products, other.products)
    first, again = load_first_estimates(whole), load_first_estimates(cut)
    assert len(first.rows) == 6
    assert np.array_equal(first.rows, again.rows)
    params = [jax.tree.leaves(load_model(folder)[0]) for folder in (whole, cut)]
    assert all(np.array_equal(*pair) for pair in zip(*params, strict=True))


def test_a_run_that_ended_early_is_audited_by_those_whose_turn_had_come(wide, tmp_path):
    with pytest.raises(Cut):
        train_run(watched(wide), tmp_path / "run", cut_at(9))
    found = audit_membership(tmp_path / "run", recipe_of(tmp_path / "run"))
    assert found.audit.included + found.audit.left_out == 400  # it was saved after eight rounds
    assert not found.audit.is_refuted


def test_damaged_files_are_reported(uncut, tmp_path):
    shutil.copytree(uncut("one turn")[0], tmp_path / "run")
    path = tmp_path / "run" / "audit_users.npy"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="are damaged"):
        FinishedRun(tmp_path / "run").audit()


def test_too_few_too_many_and_those_who_cannot_audit_are_refused(population, tmp_path):
    with pytest.raises(RecipeError, match="take a thousand"):
        tiny_recipe(population, audit={"users": 5})
    with pytest.raises(RecipeError, match="take at most 6144"):
        tiny_recipe(population, audit={"users": 6145})
    with pytest.raises(RecipeError, match="claims nothing"):
        tiny_recipe(
            population,
            algorithm="fedavg",
            audit={"users": 32},
            privacy={"noise_multiplier": None, "clip_norm": None},
        )
    with pytest.raises(RecipeError, match="can tell at most 819 users apart"):
        train_run(tiny_recipe(population, audit={"users": 1000}), tmp_path / "small", quietly)
    counted = {
        "participation": {"kind": "min-separation", "cohort": 20, "min_separation": 0},
        "privacy": ADAPTIVE,
    }
    with pytest.raises(RecipeError, match=r"who are counted.*at most 12"):
        train_run(
            tiny_recipe(population, algorithm="dp-ftrl", **counted, audit={"users": 32}),
            tmp_path / "a",
            quietly,
        )


def test_a_clip_norm_that_adapts_is_audited_by_few_at_once(wide, tmp_path):
    counted = {
        "participation": {"kind": "min-separation", "cohort": 40, "min_separation": 0},
        "privacy": ADAPTIVE,
    }
    found = found_in(watched(wide, users=64, algorithm="dp-ftrl", **counted), tmp_path / "run")
    assert not found.audit.is_refuted
    assert found.audit.signal == pytest.approx(1.0, abs=0.6)


def test_a_total_has_room_for_their_reports(population):
    without, with_them = (
        build.algorithm(tiny_recipe(population, audit=settings), 40).mechanism.most_reports
        for settings in ({}, {"users": 32})
    )
    assert with_them == without + 32 <= MOST_REPORTS
