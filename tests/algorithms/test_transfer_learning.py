"""Learning from the average prediction: devices agree on the text, the server learns what they say of it, and a fleet only adds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import quietly, tiny_recipe
from taciturn import trees
from taciturn.algorithms.transfer_learning import transfer_learning
from taciturn.core import BEGIN, Message, UserData
from taciturn.data.public import PublicCorpus
from taciturn.models import losses
from taciturn.models.cifg import cifg
from taciturn.models.sampling import beginnings
from taciturn.privacy.participation import PoissonSampling
from taciturn.recipe import build
from taciturn.runs.run import train_run

pytestmark = pytest.mark.compiled_quickly

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
    one, other = (jax.nn.log_softmax(losses.logits(MODEL, p, ROWS[:, :-1])) for p in (teacher, params))
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
        np.allclose(a, b, atol=1e-5) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(PARAMS), strict=True)
    )


def test_made_up_text_is_the_same_for_everyone_and_follows_the_model():
    key = jax.random.key(0)
    texts = beginnings(MODEL, PARAMS, 50, 5, key)
    np.testing.assert_array_equal(texts, jax.jit(lambda params: beginnings(MODEL, params, 50, 5, key))(PARAMS))
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
