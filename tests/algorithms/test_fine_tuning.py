"""Devices that keep the general language: rehearsal and distillation do what Popov et al. 2018
write, and nothing to anyone's privacy.
"""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import Cut, cut_at, quietly, tiny_recipe
from taciturn import trees
from taciturn.algorithms.fine_tuning import soft_label_loss, unforgetting_update, with_rehearsal
from taciturn.algorithms.local_training import (
    LocalTraining,
    fedavg_update,
    gradient_step,
    with_short_steps,
)
from taciturn.core import Message, UserData
from taciturn.data.public import PublicCorpus
from taciturn.models import losses
from taciturn.models.cells import cifg
from taciturn.recipe.text import RecipeError
from taciturn.runs.loop import resume_run, train_run

MODEL = cifg(30, 8, 12)
PARAMS = MODEL.init(jax.random.key(0))
GENERAL = jnp.array(np.random.default_rng(1).integers(4, 30, (50, 7)))
ROWS = jnp.array(np.random.default_rng(2).integers(4, 30, (4, 7)))
KEY = jax.random.key(3)
QUICK = {"privacy": {"accountant": "rdp"}}


def loss(params, tokens, key):
    return losses.cross_entropy(MODEL, params, tokens, None)


plain = jax.jit(gradient_step(loss))


@functools.cache
def rehearsed(share: float):
    return jax.jit(with_rehearsal(gradient_step(loss), GENERAL, share))


def norm(update) -> float:
    return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(update))))


def close(one, other, **tolerance) -> bool:
    return all(
        np.allclose(*pair, **tolerance)
        for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


@pytest.mark.parametrize(("share", "beside"), [(0.25, 12), (0.5, 4), (0.75, 1), (1.0, 0)])
def test_so_much_general_text_is_rehearsed_that_the_users_own_has_its_share(share, beside):
    seen = []

    def step(params, batch, key, rate):
        seen.append(batch)
        return params

    with_rehearsal(step, GENERAL, share)(PARAMS, ROWS, KEY, 0.1)
    (batch,) = seen
    assert len(batch) == len(ROWS) + beside
    np.testing.assert_array_equal(batch[: len(ROWS)], ROWS)
    general = {tuple(row) for row in np.asarray(GENERAL).tolist()}
    assert all(tuple(row) in general for row in np.asarray(batch[len(ROWS) :]).tolist())


def test_with_nothing_to_rehearse_it_is_plain_training():
    own = plain(PARAMS, ROWS, None, 0.1)
    assert close(rehearsed(1.0)(PARAMS, ROWS, KEY, 0.1), own, atol=1e-7)
    assert not close(rehearsed(0.5)(PARAMS, ROWS, KEY, 0.1), own, atol=1e-4)


def test_a_batch_of_padding_is_not_a_step_although_general_text_would_be():
    step = rehearsed(0.5)
    assert close(step(PARAMS, jnp.zeros_like(ROWS), KEY, 0.1), PARAMS, atol=0)
    assert not close(step(PARAMS, ROWS, KEY, 0.1), PARAMS, atol=0)  # the twin


def test_each_device_rehearses_rows_of_its_own():
    step = rehearsed(0.5)
    assert not close(
        step(PARAMS, ROWS, KEY, 0.1), step(PARAMS, ROWS, jax.random.key(4), 0.1), atol=1e-6
    )


def test_soft_labels_are_those_of_the_formulas():
    other, logits = trees.scale(PARAMS, 1.5), jax.jit(functools.partial(losses.logits, MODEL))
    share, general = 0.3, np.asarray(jax.nn.softmax(logits(other, ROWS[:, :-1])))
    scores = np.asarray(jax.nn.log_softmax(logits(PARAMS, ROWS[:, :-1])))
    labels = share * np.eye(30)[np.asarray(ROWS[:, 1:])] + (1 - share) * general
    expected = -(labels * scores).sum(-1).mean()
    said = jax.jit(functools.partial(soft_label_loss, MODEL))(other, share, PARAMS, ROWS, None)
    assert said == pytest.approx(expected, rel=1e-5)


def test_the_model_that_was_sent_has_nothing_to_learn_from_itself():
    """At λ → 0 it is its own teacher; at λ = 1 the loss is the plain one."""

    @jax.jit
    def learned(teacher, share, params):
        return jax.grad(lambda params: soft_label_loss(MODEL, teacher, share, params, ROWS, None))(
            params
        )

    assert close(learned(PARAMS, 0.0, PARAMS), trees.scale(PARAMS, 0.0), atol=1e-6)
    one = learned(trees.scale(PARAMS, 2.0), 1.0, PARAMS)
    assert close(one, jax.jit(jax.grad(loss))(PARAMS, ROWS, None), atol=1e-6)


def test_what_was_sent_stays_the_teacher_through_all_local_steps():
    user = UserData(jnp.stack([ROWS, ROWS[::-1]]), jnp.float32(1), jnp.int32(2))
    local, message = LocalTraining(learning_rate=0.5, epochs=3), Message(PARAMS, None)
    soft = jax.jit(unforgetting_update(MODEL, local, 0.25))(message, user, KEY)
    usual = jax.jit(fedavg_update(plain, local))(message, user, KEY)
    assert norm(soft) < 0.6 * norm(usual)
    assert close(
        jax.jit(unforgetting_update(MODEL, local, 1.0))(message, user, KEY), usual, atol=1e-5
    )


@pytest.fixture
def general(population, tmp_path):
    texts = [
        " ".join(population.vocabulary.words[4 + n % 12] for n in range(start, start + 30))
        for start in range(20)
    ]
    PublicCorpus.of(texts, population.vocabulary, "made-up general text").save(tmp_path / "general")
    return tmp_path / "general"


@pytest.mark.parametrize(
    ("algorithm", "forgetting"),
    [
        pytest.param("fedavg", "rehearsal", marks=pytest.mark.slow),
        ("dp-ftrl", "rehearsal"),
        ("dp-fedavg", "distillation"),
    ],
)
def test_every_algorithm_keeps_the_general_language_and_names_what_was_public(
    population, general, tmp_path, algorithm, forgetting
):
    sections = {
        "fedavg": {"privacy": {"noise_multiplier": None}},
        "dp-fedavg": QUICK,
        "dp-ftrl": {},
    }[algorithm]
    if algorithm == "dp-ftrl":
        sections = {
            "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
            "privacy": {"noise": "tree"},
        }
    data = {"general": str(general)} if forgetting == "rehearsal" else {}
    recipe = tiny_recipe(
        population,
        algorithm=algorithm,
        data=data,
        local={"forgetting": forgetting, "user_share": 0.75},
        run={"rounds": 2, "evaluate_every": 2},
        **sections,
    )
    finished = train_run(recipe, tmp_path / "run", quietly)
    assert (finished.guarantee.epsilon < np.inf) == (algorithm != "fedavg")
    said = (tmp_path / "run" / "guarantee.txt").read_text()
    assert ("made-up general text" in " ".join(said.split())) == (forgetting == "rehearsal")


def test_general_text_of_other_words_is_refused_before_anything_is_spent(
    population, tmp_path, vocabulary
):
    other = type(vocabulary)(words=(*vocabulary.words[:-1], "another"))
    PublicCorpus.of(["word1 word2"], other, "other").save(tmp_path / "other")
    recipe = tiny_recipe(
        population, local={"forgetting": "rehearsal"}, data={"general": str(tmp_path / "other")}
    )
    with pytest.raises(RecipeError, match="other words"):
        train_run(recipe, tmp_path / "run", quietly)
    assert (
        not (population.folder / "ledger.jsonl").exists()
        or "open" not in (population.folder / "ledger.jsonl").read_text()
    )


@pytest.mark.parametrize(
    ("sections", "match"),
    [
        ({"local": {"forgetting": "rehearsal"}}, "goes with"),
        ({"data": {"general": "somewhere"}}, "goes with"),
        ({"algorithm": "dp-fedsgd", "local": {"forgetting": "distillation"}}, "one gradient"),
        ({"local": {"forgetting": "distillation", "user_share": 0.0}}, "user_share"),
        ({"algorithm": "transfer-learning"}, "has no privacy"),
        ({"transfer": {"rows": 40}}, "belongs to"),
        (
            {"algorithm": "transfer-learning", "privacy": {"noise_multiplier": None}},
            "sums predictions",
        ),
        ({"transfer": {"rows": 33}}, "must be a multiple of batch_size"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(population, sections, match):
    with pytest.raises(RecipeError, match=match):
        tiny_recipe(population, **sections)


def test_what_is_forgotten_is_measured_beside_what_is_learned(population, general, tmp_path):
    """Users count upwards, the general text counts too, but only among a few words: trained on
    users alone, those are forgotten.
    """
    rows = {}
    for forgetting in ("none", "rehearsal"):
        recipe = tiny_recipe(
            population,
            algorithm="fedavg",
            data={"general_test": str(general)}
            | ({"general": str(general)} if forgetting == "rehearsal" else {}),
            local={
                "forgetting": forgetting,
                "learning_rate": 1.0,
                "epochs": 3,
                "user_share": 0.25 if forgetting == "rehearsal" else 0.5,
            },
            privacy={"noise_multiplier": None, "clip_norm": None},
        )
        train_run(recipe, tmp_path / forgetting, quietly)
        rows[forgetting] = [
            json.loads(line)
            for line in (tmp_path / forgetting / "metrics.jsonl").read_text().splitlines()
        ]
    assert rows["rehearsal"][0]["general_perplexity"] == pytest.approx(
        rows["none"][0]["general_perplexity"]
    )
    assert rows["rehearsal"][-1]["general_perplexity"] < rows["none"][-1]["general_perplexity"]
    assert all(0 < rows[forgetting][-1]["general_accuracy_top1"] < 1 for forgetting in rows)


def test_a_run_is_resumed_with_the_general_text_it_began_with(population, general, tmp_path):
    recipe = tiny_recipe(
        population,
        **QUICK,
        data={"general": str(general)},
        local={"forgetting": "rehearsal"},
        run={"rounds": 4},
    )

    with pytest.raises(Cut):
        train_run(recipe, tmp_path / "run", cut_at(2))
    saved = general.rename(tmp_path / "saved")
    PublicCorpus.of(["word1 word2 word3"] * 30, population.vocabulary, "made-up general text").save(
        general
    )
    with pytest.raises(RecipeError, match="another text than this run began with"):
        resume_run(tmp_path / "run", quietly)
    shutil.rmtree(general)
    saved.rename(general)
    assert resume_run(tmp_path / "run", quietly).guarantee.releases == 4


def test_a_step_goes_no_further_than_its_longest_gradient_allows():
    free = trees.subtract(plain(PARAMS, ROWS, None, 0.5), PARAMS)
    for most in (0.1, 100.0):
        step = trees.subtract(
            jax.jit(with_short_steps(plain, most))(PARAMS, ROWS, None, 0.5), PARAMS
        )
        assert norm(step) == pytest.approx(min(0.5 * most, norm(free)), rel=1e-3)
        direction = sum(
            np.sum(a * b) for a, b in zip(jax.tree.leaves(step), jax.tree.leaves(free), strict=True)
        )
        assert direction == pytest.approx(norm(step) * norm(free), rel=1e-3)
    assert norm(free) > 0.06  # or the first had nothing to shorten
