"""What a device computes, against the paper's pseudo-code written out in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from taciturn import trees
from taciturn.algorithms.dp_fedavg import dp_fedavg, fedavg
from taciturn.algorithms.local_training import (
    LocalTraining,
    fedavg_update,
    fedsgd_update,
    gradient_step,
)
from taciturn.algorithms.server_optimizers import server_optimizer
from taciturn.core import Message, Public, UserData
from taciturn.privacy.bounding.clipping import flat_clip, no_clip
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.noise.white import gaussian
from taciturn.privacy.participation import PoissonSampling

KEY = jax.random.key(0)
START = {"w": jnp.array([1.0, -2.0])}
BATCHES = jnp.array([[[3, 1]], [[5, 2]], [[4, 4]]])  # three steps
USER = UserData(BATCHES, jnp.float32(1), jnp.int32(len(BATCHES)))


def loss(params, batch, key):
    """Quadratic, so that every step can be written down."""
    return jnp.sum(jnp.square(params["w"] - batch[0].astype(jnp.float32))) / 2


def by_hand(epochs=1, rate=0.1, penalty=0.0, radius=None):
    start = np.array([1.0, -2.0])
    w = start.copy()
    for _ in range(epochs):
        for batch in np.asarray(BATCHES)[:, 0].astype(float):
            w = w - rate * ((w - batch) + penalty * (w - start))
            if radius is not None:
                w = start + (w - start) * min(1, radius / np.linalg.norm(w - start))
    return w - start


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epochs": 3},
        {"penalty": 0.5},
        {"radius": 0.4},
        {"epochs": 2, "penalty": 0.2, "radius": 0.3},
    ],
)
def test_fedavg_is_the_papers_user_update(settings):
    local = LocalTraining(
        learning_rate=0.1,
        epochs=settings.get("epochs", 1),
        update_penalty=settings.get("penalty", 0.0),
    )
    project = flat_clip(1.0).project if "radius" in settings else None
    update = fedavg_update(gradient_step(loss), local, project)(
        Message(START, Public(jnp.float32(settings.get("radius", 0)))), USER, KEY
    )
    np.testing.assert_allclose(update["w"], by_hand(**settings), rtol=1e-5)


def test_greedy_clipping_is_not_clipping_once_at_the_end():
    greedy = by_hand(radius=0.4)
    once = by_hand()
    once = once * min(1, 0.4 / np.linalg.norm(once))
    assert np.linalg.norm(greedy) == pytest.approx(np.linalg.norm(once)) == pytest.approx(0.4)
    assert not np.allclose(greedy, once)


def test_fedsgd_sends_one_gradient_of_one_batch_chosen_at_random():
    update = fedsgd_update(loss, LocalTraining(learning_rate=0.1))
    possible = [-0.1 * (np.array([1.0, -2.0]) - batch) for batch in np.asarray(BATCHES)[:, 0]]
    sent = [
        np.asarray(update(Message(START, None), USER, jax.random.key(n))["w"]) for n in range(40)
    ]
    chosen = {
        next(index for index, one in enumerate(possible) if np.allclose(one, update))
        for update in sent
    }
    assert chosen == {0, 1, 2}


def test_fedsgd_never_draws_a_batch_of_padding():
    padded = UserData(jnp.array([[[3, 1]], [[0, 0]], [[0, 0]]]), jnp.float32(1), jnp.int32(3))
    update = fedsgd_update(loss, LocalTraining(learning_rate=0.1))
    expected = -0.1 * (np.array([1.0, -2.0]) - np.array([3.0, 1.0]))
    for n in range(20):
        np.testing.assert_allclose(
            update(Message(START, None), padded, jax.random.key(n))["w"], expected, rtol=1e-5
        )


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam"])
def test_every_server_optimiser_moves_with_the_estimate(name):
    update = fedavg_update(gradient_step(loss), LocalTraining(learning_rate=0.1))
    algorithm = fedavg(update, no_clip(), PoissonSampling(0.5), server_optimizer(name, 0.5, 0.9))
    state = algorithm.init(START)
    estimate = {"w": jnp.array([0.5, -0.25])}
    for _ in range(3):
        state = algorithm.server_update(state, estimate)
    moved = np.asarray(state.params["w"] - START["w"])
    assert np.all(np.sign(moved) == np.sign(np.asarray(estimate["w"])))
    if name == "sgd":
        np.testing.assert_allclose(moved, 1.5 * np.asarray(estimate["w"]), rtol=1e-6)
    if name == "momentum":
        np.testing.assert_allclose(
            moved, 0.5 * (1 + 1.9 + 2.71) * np.asarray(estimate["w"]), rtol=1e-5
        )


def test_plain_sgd_at_rate_1_adds_the_estimate_as_the_paper_does():
    algorithm = dp_fedavg(
        fedavg_update(gradient_step(loss), LocalTraining(learning_rate=0.1)),
        flat_clip(1.0),
        fixed_denominator(5.0),
        gaussian(1.0),
        PoissonSampling(0.5),
        optax.sgd(1.0),
    )
    state = algorithm.server_update(algorithm.init(START), {"w": jnp.array([0.5, -0.25])})
    np.testing.assert_allclose(
        state.params["w"], trees.add(START, {"w": jnp.array([0.5, -0.25])})["w"]
    )


@pytest.mark.parametrize("settings", [{}, {"epochs": 2}, {"penalty": 0.3}, {"radius": 0.05}])
def test_a_batch_of_padding_is_not_a_step_and_one_of_text_is(settings):
    """How much padding comes after a user's text depends on others; the twin shows that the check
    would notice a step.
    """
    local = LocalTraining(
        learning_rate=0.1,
        epochs=settings.get("epochs", 1),
        update_penalty=settings.get("penalty", 0.0),
    )
    project = flat_clip(1.0).project if "radius" in settings else None
    message = Message(START, Public(jnp.float32(settings.get("radius", 0))))
    train = fedavg_update(gradient_step(masked_loss), local, project)
    padded = jnp.concatenate([BATCHES, jnp.zeros_like(BATCHES[:2])])
    longer = jnp.concatenate([BATCHES, BATCHES[:2] + 1])

    def update(batches, steps):
        return jax.tree.leaves(
            train(message, UserData(batches, jnp.float32(1), jnp.int32(steps)), KEY)
        )

    for alone, beside, twin in zip(
        update(padded, 3), update(padded, 5), update(longer, 5), strict=True
    ):
        np.testing.assert_array_equal(alone, beside)
        assert not np.array_equal(alone, twin)


def masked_loss(params, batch, key):
    """As every loss of ours: padding counts for nothing."""
    return jnp.where(jnp.any(batch != 0), loss(params, batch, key), 0.0)
