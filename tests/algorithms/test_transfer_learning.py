"""Learning from the average prediction: devices agree on the text, the server learns what they say
of it, and a fleet only adds.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent

from harness import quietly, tiny_recipe
from taciturn import trees
from taciturn.algorithms.fine_tuning import transfer_learning
from taciturn.core import BEGIN, Message, UserData
from taciturn.data.public import PublicCorpus
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.models import losses
from taciturn.models.cells import cifg
from taciturn.models.sampling import beginnings
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger
from taciturn.privacy.participation import PoissonSampling
from taciturn.recipe import build
from taciturn.release.gate import ExportRefused, check_may_leave
from taciturn.release.privacy_statement import statement
from taciturn.runs import loop, run
from taciturn.runs.loop import train_run

MODEL = cifg(30, 8, 12)
PARAMS = MODEL.init(jax.random.key(0))
NOBODY = UserData(jnp.zeros(0), jnp.float32(1), jnp.int32(0))
ROWS = jnp.array(np.random.default_rng(0).integers(4, 30, (12, 6)))


def algorithm(teacher, epochs=40, text=lambda params: ROWS):
    return transfer_learning(
        MODEL,
        lambda message, user, key: trees.subtract(teacher, message.params),
        text,
        PoissonSampling(0.5),
        2.0,
        epochs,
        4,
    )


def divergence(params, teacher) -> float:
    one, other = (
        jax.nn.log_softmax(losses.logits(MODEL, p, ROWS[:, :-1])) for p in (teacher, params)
    )
    return float(jnp.mean(jnp.sum(jnp.exp(one) * (one - other), axis=-1)))


def test_a_server_learns_what_its_devices_say():
    teacher = jax.tree.map(lambda leaf: 2.5 * leaf, MODEL.init(jax.random.key(1)))
    learning = algorithm(teacher)
    said = learning.user_update(Message(PARAMS, None), NOBODY, jax.random.key(2))
    assert said["predictions"].shape == (12, 5, 30)
    np.testing.assert_allclose(said["predictions"].sum(axis=-1), 1.0, rtol=1e-5)
    after = learning.server_update(learning.init(PARAMS), said).params
    assert divergence(after, teacher) < 0.5 * divergence(PARAMS, teacher)


def test_from_its_own_predictions_it_learns_nothing():
    """The twin: labels that are the model's own leave it where it is."""
    learning = algorithm(PARAMS)
    said = learning.user_update(Message(PARAMS, None), NOBODY, jax.random.key(2))
    after = learning.server_update(learning.init(PARAMS), said).params
    assert all(
        np.allclose(a, b, atol=1e-5)
        for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(PARAMS), strict=True)
    )


def test_generated_text_is_the_same_for_everyone_and_follows_the_model():
    key = jax.random.key(0)
    texts = beginnings(MODEL, PARAMS, 50, 5, key)
    np.testing.assert_array_equal(
        texts, jax.jit(lambda params: beginnings(MODEL, params, 50, 5, key))(PARAMS)
    )
    assert set(texts[:, 0].tolist()) == {BEGIN}
    assert texts.shape == (50, 6)
    assert not np.array_equal(texts, beginnings(MODEL, trees.scale(PARAMS, 3.0), 50, 5, key))
    sharp = PARAMS | {"word_bias": jnp.full(30, -50.0).at[9].set(50.0)}
    assert set(beginnings(MODEL, sharp, 50, 5, key)[:, 1:].reshape(-1).tolist()) == {9}


@pytest.mark.parametrize("text", ["generated", "general"])
def test_a_run_learns_from_predictions_and_is_charged_as_not_private(population, tmp_path, text):
    words = population.vocabulary.words
    texts = [" ".join(words[4 + n % 12] for n in range(start, start + 30)) for start in range(20)]
    PublicCorpus.of(texts, population.vocabulary, "made-up general text").save(tmp_path / "general")
    recipe = tiny_recipe(
        population,
        algorithm="transfer-learning",
        data={"general": str(tmp_path / "general")} if text == "general" else {},
        participation={"kind": "fixed"},
        server={"optimizer": None, "learning_rate": None, "momentum": None},
        privacy={"clip_norm": None, "noise_multiplier": None},
        transfer={"text": text, "rows": 40, "length": 5, "epochs": 20, "learning_rate": 1.0},
        local={"learning_rate": 2.0, "epochs": 4},
        run={"rounds": 3},
    )
    finished = train_run(recipe, tmp_path / "run", quietly)
    assert finished.guarantee.epsilon == np.inf
    assert finished.scores["loss"].value < finished.before["loss"].value
    assert build.upload_size(recipe, finished.params) == 4 * 40 * 5 * len(words) + 2


BARE = {"noise_multiplier": None, "clip_norm": None}


def test_an_average_of_predictions_is_never_private_nor_says_how_many_were_drawn(
    population, tmp_path, monkeypatch
):
    """Cohorts are Poisson's: their sizes are a secret on which claims rest. What is printed is what
    was to be expected.
    """
    drawn, inside = [], SimulatedFleet.sum_reports
    monkeypatch.setattr(
        SimulatedFleet,
        "sum_reports",
        lambda self, *a: (drawn.append(len(a[2])), inside(self, *a))[1],
    )
    bare = tiny_recipe(
        population,
        algorithm="transfer-learning",
        server={"optimizer": None, "learning_rate": None, "momentum": None},
        privacy=BARE,
        transfer={"rows": 20, "length": 4},
        run={"rounds": 3, "evaluate_every": 1, "seed": 1},
    )
    finished = loop.train_run(bare, tmp_path / "bare", quietly)
    ledger = Ledger(population.folder / FILE_NAME)
    guarantee = ledger.guarantee("bare")
    assert guarantee.epsilon == guarantee.rho == np.inf
    assert "NO privacy guarantee" in statement(guarantee, ())
    assert json.loads((tmp_path / "bare" / "guarantee.json").read_text())["private"] is False
    assert (tmp_path / "bare" / "model.safetensors").stat().st_mode & 0o077 == 0
    with pytest.raises(ExportRefused, match="non_private=True"):
        check_may_leave(guarantee, non_private=False)
    row = ledger.model_row(run.params_digest(finished.params))  # what a warm start asks for
    assert [type(cost) for cost in ledger.cost("bare", row["hash"])] == [NonPrivateDpEvent]
    assert not (tmp_path / "bare" / "private").exists()
    rows = [
        json.loads(line) for line in (tmp_path / "bare" / "metrics.jsonl").read_text().splitlines()
    ]
    assert (rows[-1]["epsilon"], rows[-1]["releases"]) == ("infinity", 3)
    each = build.upload_size(finished.recipe, finished.params)
    assert [(row["uploads"], row["upload_bytes"]) for row in rows] == [
        (n * 10, n * 10 * each) for n in range(4)
    ]
    assert list(itertools.accumulate(drawn)) != [10, 20, 30]  # the twin: the true ones are others
    assert "staleness" not in rows[-1]
