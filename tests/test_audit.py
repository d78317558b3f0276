"""An audit by made-up users: it finds a mechanism whose noise is missing, and has nothing to say against one that keeps its word."""

import json
import math

import jax
import numpy as np
import pytest
import typer

from conftest import Cut, build_population, cut_at, made_up_users, tiny_recipe
from taciturn import audit_users, build, tree
from taciturn.audit_users import ALL_MODELS, CALIBRATED, LAST_MODEL, load_scores
from taciturn.auditing import page
from taciturn.cli_audit import audit
from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, DataError, Vocabulary
from taciturn.privacy.accounting import gaussian_epsilon
from taciturn.privacy.clipping import MOST_REPORTS
from taciturn.recipe_text import RecipeError
from taciturn.release.checkpoint import load_model
from taciturn.run import resume_run, train_run

FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "privacy": {"noise": "tree"},
}


def quietly(done, rounds, row):
    pass


@pytest.fixture
def wide(tmp_path):
    """Users of a list of words long enough for those who write at random to differ."""
    words = SPECIAL + PUNCTUATION + tuple(f"word{number}" for number in range(386))
    return build_population(
        tmp_path / "wide", made_up_users(50), made_up_users(12, seed=1), Vocabulary(words), {"source": "made up"}
    )


def watched(population, users=640, rounds=40, **sections):
    # Updates reach the clip norm, and have room to differ.
    learning = {"local": {"learning_rate": 4.0}, "model": {"kind": "lstm", "width": 24, "units": 24}}
    run = {"rounds": rounds, "evaluate_every": 40, "save_every": 40}
    return tiny_recipe(population, **(learning | sections), audit={"users": users}, run=run)


def without_noise(monkeypatch, share=0.0):
    """Break the mechanism: it charges for its noise and adds only a share of it."""
    whole = build.noise

    def broken(recipe, multiplier):
        noise = whole(recipe, multiplier)

        def next(state, like, stddev, keys):
            drawn, state = noise.next(state, like, stddev, keys)
            return tree.scale(drawn, share), state

        return noise._replace(next=next)

    monkeypatch.setattr(build, "noise", broken)


@pytest.mark.parametrize("sections", [{}, FTRL], ids=["dp-fedavg", "dp-ftrl"])
def test_a_mechanism_that_keeps_its_word_is_not_accused(wide, tmp_path, capsys, sections):
    train_run(watched(wide, **sections), tmp_path / "run", quietly)
    audit(tmp_path / "run")  # exit status 0
    said = " ".join(capsys.readouterr().out.split())
    assert "does not contradict it" in said
    found = page(tmp_path / "run").attacked
    assert found.bound <= found.claimed
    assert found.audits[ALL_MODELS].area > 0.52  # and yet the attack sees something: it could have found more
    assert (tmp_path / "run" / "audit.png").stat().st_size > 10_000


@pytest.mark.parametrize("sections", [{}, FTRL], ids=["dp-fedavg", "dp-ftrl"])
def test_a_mechanism_without_its_noise_is_found_out(wide, tmp_path, capsys, monkeypatch, sections):
    """The twin."""
    without_noise(monkeypatch)
    train_run(watched(wide, **sections), tmp_path / "run", quietly)
    with pytest.raises(typer.Exit) as left:
        audit(tmp_path / "run")
    assert left.value.exit_code == 1
    assert "BROKEN" in capsys.readouterr().out
    said = json.loads((tmp_path / "run" / "audit.json").read_text())["audit"]
    assert said["breaks_the_claim"]
    assert said["attacks"][ALL_MODELS]["epsilon_fdp"] > said["claimed_epsilon"]


def test_half_of_them_are_in_and_each_belongs_to_one_round(wide, tmp_path):
    recipe = watched(wide, users=200, rounds=30)
    run = audit_users.AuditUsers(recipe, wide.vocabulary, build.algorithm(recipe, 400), {}, bytes(32))
    asked = []
    for round in range(30):
        run.begin(round)
        asked.append(run.chosen(jax.random.key(round)).tolist())
        assert run.chosen(jax.random.key(99)).tolist() == asked[-1]  # the same, however often a round is summed
    everyone = [user for some in asked for user in some]
    assert len(everyone) == len(set(everyone))
    assert 60 < len(everyone) < 140
    assert max(map(len, asked)) <= audit_users.AUDITED_AT_ONCE
    assert sum(bool(one) for one in asked) == 13  # ⌈200 / 16⌉ rounds


def test_what_is_claimed_for_them_is_what_one_report_of_their_weight_can_do(wide):
    recipe = watched(wide)
    claim = audit_users.claim(recipe)
    assert claim == (0.5, pytest.approx(0.5, rel=1e-3))  # weight × S against noise of 1 × S, and the rounding of totals
    assert claim.mu >= 0.5
    assert claim.epsilon(1e-5) == gaussian_epsilon(claim.mu, 1e-5)
    assert audit_users.claim(watched(wide, privacy={"noise_multiplier": 4.0})) == (1.0, 0.25)
    correlated = audit_users.claim(watched(wide, **FTRL))
    alone = build.noise(watched(wide, **FTRL), 1.0).strategy.sensitivity_squared(40, 0, 1)
    assert alone > 1
    assert correlated.mu == pytest.approx(0.5, rel=1e-3)
    assert correlated.weight == pytest.approx(0.5 / math.sqrt(alone), rel=0.1)
    free = {"algorithm": "fedavg", "privacy": {"noise_multiplier": None}}
    assert audit_users.claim(watched(wide, **free)) == (1.0, math.inf)


def test_their_reports_have_no_more_than_that_weight(wide):
    """Of what is summed, not of what was meant."""
    recipe = watched(wide, users=16)
    algorithm = build.algorithm(recipe, 400)
    users = audit_users.AuditUsers(recipe, wide.vocabulary, algorithm, {}, bytes(32))
    batches, weights, _ = users.fleet._load(np.arange(16))[0]
    assert batches.any()
    assert np.all(np.floor(weights * 2**15) / 2**15 <= users.claim.weight)
    assert np.all(weights > 0.99 * users.claim.weight)


@pytest.mark.parametrize("sections", [{}, FTRL], ids=["dp-fedavg", "dp-ftrl"])
def test_the_claim_about_people_is_what_it_is_without_them(population, tmp_path, sections):
    plain = train_run(tiny_recipe(population, **sections), tmp_path / "plain", quietly)
    with_them = train_run(tiny_recipe(population, audit={"users": 32}, **sections), tmp_path / "watched", quietly)
    assert with_them.guarantee.rho == plain.guarantee.rho
    assert with_them.guarantee.epsilon == plain.guarantee.epsilon
    assert with_them.guarantee.releases == plain.guarantee.releases
    said = " ".join((tmp_path / "watched" / "guarantee.txt").read_text().split())
    assert "random words of 32 made-up users" in said
    assert not (tmp_path / "plain" / "audit_users.json").exists()


@pytest.mark.parametrize("sections", [{}, FTRL], ids=["dp-fedavg", "dp-ftrl"])
def test_cut_off_a_run_goes_on_with_the_same_users_and_scores(population, tmp_path, sections):
    recipe = tiny_recipe(population, audit={"users": 48}, **sections)
    train_run(recipe, tmp_path / "whole", quietly)
    with pytest.raises(Cut):
        train_run(recipe, tmp_path / "cut", cut_at(3))
    resume_run(tmp_path / "cut", quietly)
    one, other = (json.loads((tmp_path / name / "audit_users.json").read_text()) for name in ("whole", "cut"))
    assert one == other
    assert len(one["users"]) == 48
    params = [jax.tree.leaves(load_model(tmp_path / name)[0]) for name in ("whole", "cut")]
    assert all(np.array_equal(*pair) for pair in zip(*params, strict=True))


def test_a_model_that_learns_users_by_heart_gives_them_away_and_one_that_learned_nothing_does_not(wide, tmp_path):
    """Membership inference, by the last model alone."""
    areas = {}
    for name, rate in (("much", 8.0), ("nothing", 1e-6)):
        recipe = watched(
            wide,
            users=64,
            rounds=4,
            algorithm="fedavg",
            local={"learning_rate": rate, "epochs": 6},
            server={"optimizer": "sgd", "learning_rate": 12.0, "momentum": None},
            privacy={"noise_multiplier": None, "clip_norm": None},
        )
        train_run(recipe, tmp_path / name, quietly)
        areas[name] = {attack: one.area for attack, one in page(tmp_path / name).attacked.audits.items()}
    assert areas["much"][CALIBRATED] > 0.75
    assert abs(areas["nothing"][LAST_MODEL] - 0.5) < 0.25


def test_a_run_with_nothing_to_claim_is_not_called_broken(population, tmp_path, capsys):
    free = {"algorithm": "fedavg", "privacy": {"noise_multiplier": None, "clip_norm": None}}
    train_run(tiny_recipe(population, audit={"users": 64}, **free), tmp_path / "run", quietly)
    audit(tmp_path / "run", json_=True)
    said = json.loads(capsys.readouterr().out)
    assert said["audit"]["claimed_epsilon"] == said["epsilon"] == "infinity"
    audit(tmp_path / "run")
    assert "Nothing is claimed" in capsys.readouterr().out


def test_a_run_that_has_not_come_to_its_end_cannot_be_audited(population, tmp_path):
    with pytest.raises(Cut):
        train_run(tiny_recipe(population, audit={"users": 48}), tmp_path / "run", cut_at(3))
    with pytest.raises(DataError, match="has not come to its end"):
        load_scores(tmp_path / "run")


def test_too_few_too_many_and_those_who_cannot_audit_are_refused(population):
    with pytest.raises(RecipeError, match="take some hundreds"):
        tiny_recipe(population, audit={"users": 5})
    with pytest.raises(RecipeError, match="take at most 96 users"):
        tiny_recipe(population, audit={"users": 97})
    with pytest.raises(RecipeError, match="transfer learning"):
        tiny_recipe(
            population,
            algorithm="transfer-learning",
            audit={"users": 32},
            participation={"kind": "fixed"},
            server={"optimizer": None, "learning_rate": None, "momentum": None},
            privacy={"noise_multiplier": None, "clip_norm": None},
        )


def test_a_total_has_room_for_their_reports(population):
    without, with_them = (
        build.algorithm(tiny_recipe(population, audit=settings), 40).mechanism.most_reports
        for settings in ({}, {"users": 32})
    )
    assert with_them == without + 16 <= MOST_REPORTS
