"""The models have the papers' sizes, their hand-written gradients are right, and they see the past
only.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taciturn import trees
from taciturn.models import losses
from taciturn.models.cells import cifg, cifg_cell, gru, gru_cell, lstm, lstm_cell
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.layers import dropout
from taciturn.models.recurrence import recurrence
from taciturn.models.transformer import transformer

KEY = jax.random.key(0)
SMALL = {
    "lstm": lstm(30, 8, 12),
    "lstm with dropout": lstm(30, 8, 12, dropout_rate=0.3),
    "cifg": cifg(30, 8, 12),
    "cifg tied": cifg(30, 8, 12, tied=True),
    "gru": gru(30, 8, 12),
    "transformer": transformer(30, 8, layers=2, heads=2),
    "deep lstm": deep_lstm(30, 8, 12),
    "deep lstm tied": deep_lstm(30, 12, 12, tied=True, dropout_rate=0.3, variational=True),
}


def parameters(model) -> int:
    return trees.size(jax.eval_shape(model.init, KEY))


@pytest.mark.parametrize(
    ("model", "millions"),
    [
        (lstm(10_000), 1.35),
        (cifg(10_000, tied=True), 1.4),
        (cifg(10_000), 2.4),
        (cifg(20_000), 4.3),
        (cifg(30_000), 6.2),
        (gru(10_000), 1.26),
        (deep_lstm(30_000), 45.8),  # Popov et al. 2018, Table 3, count 4.57 · 10⁷
        (deep_lstm(10_000, 1500, 1500, tied=True), 51.0),
    ],
)
def test_models_have_the_sizes_that_the_papers_give(model, millions):
    assert parameters(model) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("name", SMALL)
def test_a_prediction_depends_on_the_past_alone(name):
    model = SMALL[name]
    params = model.init(KEY)
    tokens = jax.random.randint(KEY, (2, 9), 1, 30)
    changed = tokens.at[:, 5:].set(7)
    logits = jax.jit(lambda params, tokens: losses.logits(model, params, tokens))
    before, after = logits(params, tokens), logits(params, changed)
    np.testing.assert_allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not np.allclose(before[:, 5:], after[:, 5:], atol=1e-3)


@pytest.mark.parametrize("name", SMALL)
def test_training_on_a_pattern_learns_it(name):
    model = SMALL[name]
    params = model.init(KEY)
    batch = jnp.tile(jnp.array([[3, 9, 4, 8, 5, 7, 6, 3, 9, 4]]), (4, 1))
    step = jax.jit(
        lambda params, key: jax.tree.map(
            lambda p, g: p - 0.5 * g,
            params,
            jax.grad(lambda p: losses.cross_entropy(model, p, batch, key))(params),
        )
    )
    loss = jax.jit(lambda params: losses.cross_entropy(model, params, batch))
    before = loss(params)
    for index in range(100):
        params = step(params, jax.random.fold_in(KEY, index))
    assert loss(params) < 0.5 * before


@pytest.mark.parametrize(
    ("cell", "gates", "projected"),
    [(lstm_cell, 4, False), (gru_cell, 3, False), (cifg_cell, 3, True), (lstm_cell, 4, True)],
)
def test_the_hand_written_backward_pass_equals_automatic_differentiation(cell, gates, projected):
    units, width, length, batch = 6, (4 if projected else 6), 5, 3
    keys = jax.random.split(KEY, 4)
    x = jax.random.normal(keys[0], (length, batch, gates * units))
    recurrent = jax.random.normal(keys[1], (width, gates * units)) * 0.4
    projection = jax.random.normal(keys[2], (units, width)) * 0.4 if projected else None
    target = jax.random.normal(keys[3], (length, batch, width))

    def plain(x, recurrent, projection):
        fed_back, carry, outputs = jnp.zeros((batch, width)), jnp.zeros((batch, units)), []
        for x_t in x:
            output, carry = cell(x_t, fed_back @ recurrent, carry)
            fed_back = output if projection is None else output @ projection
            outputs.append(fed_back)
        return jnp.stack(outputs)

    def objective(run):
        return lambda *weights: jnp.sum(jnp.square(run(*weights) - target))

    def compiled(objective):
        return jax.jit(jax.value_and_grad(objective, tuple(range(len(arguments)))))(*arguments)

    arguments = (x, recurrent, projection) if projected else (x, recurrent)
    ours, gradients = compiled(
        objective(lambda x, r, p=None: recurrence(cell, jnp.float32, x, r, p))
    )
    reference, wanted = compiled(objective(lambda x, r, p=None: plain(x, r, p)))
    np.testing.assert_allclose(ours, reference, rtol=1e-5)
    for left, right in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(left, right, atol=2e-5)


def test_the_hand_written_softmax_gradient_equals_automatic_differentiation():
    keys = jax.random.split(KEY, 4)
    contexts, matrix = jax.random.normal(keys[0], (7, 5)), jax.random.normal(keys[1], (11, 5))
    bias, targets = jax.random.normal(keys[2], (11,)), jax.random.randint(keys[3], (7,), 0, 11)

    def plain(contexts, matrix, bias):
        scores = contexts @ matrix.T + bias
        return jnp.sum(
            jnp.arange(7)
            * -jnp.take_along_axis(jax.nn.log_softmax(scores), targets[:, None], 1)[:, 0]
        )

    def ours(contexts, matrix, bias):
        return jnp.sum(jnp.arange(7) * losses.softmax_loss(contexts, matrix, bias, targets))

    np.testing.assert_allclose(
        ours(contexts, matrix, bias), plain(contexts, matrix, bias), rtol=1e-5
    )
    for left, right in zip(
        jax.grad(ours, (0, 1, 2))(contexts, matrix, bias),
        jax.grad(plain, (0, 1, 2))(contexts, matrix, bias),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, atol=2e-5)


def test_padding_is_not_a_target_and_all_padding_gives_no_gradient():
    model = SMALL["lstm"]
    params = model.init(KEY)
    text = jnp.array([[2, 5, 6, 0, 0]])
    loss = jax.jit(
        jax.value_and_grad(lambda params, text: losses.cross_entropy(model, params, text))
    )
    np.testing.assert_allclose(loss(params, text)[0], loss(params, text[:, :3])[0], rtol=1e-5)
    nothing = loss(params, jnp.zeros((1, 5), int))[1]
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(nothing))


@pytest.mark.parametrize("variational", [False, True])
def test_variational_dropout_drops_the_same_all_along_a_sequence(variational):
    values = dropout(jnp.ones((50, 3, 40)), 0.5, KEY, variational)
    assert bool(jnp.all(values == values[0])) == variational
    assert float(jnp.mean(values)) == pytest.approx(1.0, abs=0.3)


def test_tied_words_must_be_as_wide_as_the_state():
    with pytest.raises(ValueError, match="width = 8, units = 12"):
        deep_lstm(30, 8, 12, tied=True)
