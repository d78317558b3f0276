"""The fast local step is the plain one: kernels against their definition, the step against
automatic differentiation.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import lowers_for_gpus, mostly_slow
from taciturn.models import losses
from taciturn.models.cells import cifg, gru, lstm
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.kernels import softmax
from taciturn.models.sgd import sgd_step
from taciturn.models.transformer import transformer

KEY = jax.random.key(0)
MODELS = {
    "lstm": lstm(30, 16, 12),
    "lstm with dropout": lstm(30, 16, 12, dropout_rate=0.3),
    "lstm of any width": lstm(30, 9, 12),
    "cifg": cifg(30, 16, 12),
    "cifg tied": cifg(30, 16, 12, tied=True),
    "gru": gru(30, 16, 12),
    "transformer": transformer(30, 16, layers=2, heads=2),
    "deep lstm": deep_lstm(30, 8, 12),
    "deep lstm tied": deep_lstm(30, 12, 12, tied=True, dropout_rate=0.3, variational=True),
}


@pytest.mark.parametrize(
    "name", mostly_slow(MODELS, *(set(MODELS) - {"lstm with dropout", "cifg tied", "deep lstm"}))
)
def test_a_step_is_that_of_automatic_differentiation(name):
    model = MODELS[name]
    params, batch = model.init(KEY), jax.random.randint(KEY, (3, 7), 0, 30)
    batch = batch.at[0, 4:].set(0)  # padding, and words that come in twice
    key = jax.random.key(3)
    gradient = jax.jit(jax.grad(lambda p: losses.cross_entropy(model, p, batch, key)))(params)
    stepped = jax.jit(lambda p, b: sgd_step(model)(p, b, key, 0.5))(params, batch)
    assert jax.tree.structure(stepped) == jax.tree.structure(params)
    for after, before, g in zip(*map(jax.tree.leaves, (stepped, params, gradient)), strict=True):
        np.testing.assert_allclose(after, before - 0.5 * g, atol=1e-6)


@pytest.mark.parametrize("power", [0.1, 1.0])
def test_a_step_of_a_bounded_loss_is_that_of_automatic_differentiation(power):
    model, key = MODELS["cifg"], jax.random.key(3)
    params, batch = model.init(KEY), jax.random.randint(KEY, (3, 7), 0, 30)
    gradient = jax.jit(jax.grad(lambda p: losses.cross_entropy(model, p, batch, key, power)))(
        params
    )
    steps = [
        jax.jit(lambda p, b, q=q: sgd_step(model, power=q)(p, b, key, 0.5))(params, batch)
        for q in (power, 0.0)
    ]
    off = [
        max(
            float(jnp.max(jnp.abs(a - (p - 0.5 * g))))
            for a, p, g in zip(*map(jax.tree.leaves, (one, params, gradient)), strict=True)
        )
        for one in steps
    ]
    assert off[0] < 1e-6
    assert off[1] > 1e-3  # the twin: −log p has another gradient


def test_unpredictable_words_count_less_and_no_word_more_than_its_bound():
    surprise = jnp.array([0.0, 1.0, 10.0, 1000.0])
    assert np.array_equal(losses.bound_losses(surprise, 0.0), surprise)
    bounded = losses.bound_losses(surprise, 0.5)
    np.testing.assert_allclose(bounded, 2 * (1 - np.exp(-0.5 * np.asarray(surprise))), rtol=1e-6)
    assert float(bounded[-1]) <= 2.0
    shares = jax.vmap(jax.grad(lambda one: losses.bound_losses(one, 0.5)))(surprise)
    assert shares[0] == 1.0
    assert np.all(np.diff(shares) < 0)


def test_a_batch_of_padding_changes_nothing():
    model = MODELS["lstm"]
    params = model.init(KEY)
    stepped = jax.jit(lambda p, b: sgd_step(model)(p, b, None, 0.5))(params, jnp.zeros((2, 5), int))
    assert all(
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (stepped, params)), strict=True)
    )


def output_layer(tokens, vocabulary, width):
    keys = jax.random.split(KEY, 5)
    contexts, matrix = (
        jax.random.normal(keys[0], (tokens, width)),
        0.3 * jax.random.normal(keys[1], (vocabulary, width)),
    )
    bias, targets = (
        jax.random.normal(keys[2], (vocabulary,)),
        jax.random.randint(keys[3], (tokens,), 0, vocabulary),
    )
    weights = jnp.where(jax.random.uniform(keys[4], (tokens,)) < 0.8, 1 / tokens, 0.0)
    return contexts, matrix, bias, targets, weights


def distance(one, other, start):
    """Of two steps, relative to how far they go."""
    return float(jnp.linalg.norm(one - other) / jnp.linalg.norm(other - start))


@functools.cache
def stepped(step, tokens, vocabulary, width, rate, unit_norm, power=0.0):
    """What is one case's step is another's twin."""
    return jax.jit(lambda *given: step(*given, rate, unit_norm, power=power))(
        *output_layer(tokens, vocabulary, width)
    )


SHAPES = [(80, 1000, 96), (37, 620, 48), (130, 70, 32), (16, 64, 16), (5, 20, 32)]
interpreted = functools.partial(softmax.fused_step, interpret=True)


@pytest.mark.parametrize("unit_norm", [True, False])
@pytest.mark.parametrize(
    ("tokens", "vocabulary", "width"),
    # The second has tiles of two sizes, words in every split and several blocks, one of them cut;
    # the third, tokens in several groups, and splits with no words.
    [one if one in SHAPES[1:3] else pytest.param(*one, marks=pytest.mark.slow) for one in SHAPES],
)
def test_the_kernels_do_what_their_definition_says(tokens, vocabulary, width, unit_norm):
    """Interpreted, so that it runs anywhere; compiled they are checked where there is a GPU."""
    shape = tokens, vocabulary, width
    given, plain = output_layer(*shape), stepped(softmax.plain_step, *shape, 0.5, unit_norm)
    fused = stepped(interpreted, *shape, 0.5, unit_norm)
    starts = given[1], given[2], jnp.zeros_like(given[0])
    for one, other, start in zip(fused, plain, starts, strict=True):
        assert distance(one, other, start) < 5e-6
    # The twin that must fail: another rate, or rows that are not scaled.
    assert (
        distance(stepped(interpreted, *shape, 0.4, unit_norm).matrix, plain.matrix, given[1]) > 0.1
    )
    assert (
        distance(stepped(interpreted, *shape, 0.5, not unit_norm).matrix, plain.matrix, given[1])
        > 0.1
    )


def test_the_kernels_know_bounded_losses():
    shape, given = SHAPES[1], output_layer(*SHAPES[1])
    plain, fused = (
        stepped(step, *shape, 0.5, False, 0.25) for step in (softmax.plain_step, interpreted)
    )
    for one, other, start in zip(
        fused, plain, (given[1], given[2], jnp.zeros_like(given[0])), strict=True
    ):
        assert distance(one, other, start) < 5e-6
    assert distance(stepped(interpreted, *shape, 0.5, False).matrix, plain.matrix, given[1]) > 0.1


def test_the_kernels_run_for_many_users_at_once():
    given = [
        jnp.stack([one, one[::-1] if one.ndim == 2 else one]) for one in output_layer(16, 100, 32)
    ]
    plain, fused = (
        jax.jit(jax.vmap(functools.partial(step, rate=0.5, unit_norm=True)))(*given)
        for step in (softmax.plain_step, interpreted)
    )
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_scores_beyond_what_exponentials_hold_do_no_harm():
    contexts, matrix, bias, targets, weights = output_layer(16, 100, 32)
    given = (1000 * contexts, matrix, bias, targets, weights)
    for step in (softmax.plain_step, interpreted):
        parts = jax.jit(functools.partial(step, rate=0.5, unit_norm=False))(*given)
        assert all(bool(jnp.all(jnp.isfinite(part))) for part in parts)


@pytest.mark.parametrize(
    ("louder", "lower"),
    [(100.0, 0.0), (1.0, 5000.0)],
    ids=["scores of hundreds", "scores of minus thousands"],
)
def test_scores_far_from_zero_are_compared_with_each_other(louder, lower):
    """Over several blocks of a split: the largest so far is kept, and words that do not exist are
    below all that do.
    """
    contexts, matrix, bias, targets, weights = output_layer(20, 700, 32)
    given = (louder * contexts, matrix, bias - lower, targets, weights)
    plain, fused = (
        jax.jit(functools.partial(step, rate=0.5, unit_norm=False))(*given)
        for step in (softmax.plain_step, interpreted)
    )
    for one, other, start in zip(
        fused, plain, (matrix, bias - lower, jnp.zeros_like(contexts)), strict=True
    ):
        assert distance(one, other, start) < 2e-3  # a bias of thousands has few digits left


def test_a_step_of_more_contexts_than_a_gpu_holds_takes_the_plain_way():
    fits = [softmax.fits(jnp.zeros((tokens, 96)), jnp.bfloat16) for tokens in (160, 320, 640)]
    assert fits == [True, True, False]  # measured on an H200, which has no room for the last
    assert not softmax.fits(jnp.zeros((320, 96)), jnp.float32)
    assert not softmax.fits(jnp.zeros((16, 20)), jnp.bfloat16)  # no tiles of 16


def test_products_in_bfloat16_come_close():
    given = output_layer(80, 500, 96)
    exact, mixed = (
        softmax.plain_step(*given, 0.5, True, product) for product in (jnp.float32, jnp.bfloat16)
    )
    assert 1e-6 < distance(mixed.matrix, exact.matrix, given[1]) < 1e-2
    assert mixed.matrix.dtype == jnp.float32


@lowers_for_gpus
def test_the_kernels_are_accepted_by_the_gpu_compiler():
    """Lowered to Triton's language here, where no GPU is."""
    step = jax.jit(
        jax.vmap(
            functools.partial(softmax.fused_step, rate=0.5, unit_norm=True, product=jnp.bfloat16)
        )
    )
    given = output_layer(80, 1000, 96)
    shapes = [jax.ShapeDtypeStruct((4, *one.shape), one.dtype) for one in given]
    traced = step.trace(*shapes)
    assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text().lower()
    # What no interpreter runs: the instruction for powers of two, of a float into a float.
    assert "ex2.approx.ftz.f32 $0, $1;" in str(traced.jaxpr)
    assert "=f,f" in str(traced.jaxpr)


def stores(jaxpr):
    """The masks of all stores of a program, those of its kernels and loops included."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "masked_swap":
            yield jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)[-1]
        for inner in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            yield from stores(inner) if hasattr(inner, "eqns") else ()


def test_no_row_is_stored_without_a_mask(monkeypatch):
    """Beyond one user's last row is the next user's first, which an interpreter does not show."""

    def masks():
        step = jax.vmap(functools.partial(softmax.fused_step, rate=0.5, unit_norm=True))
        return list(
            stores(
                jax.make_jaxpr(step)(
                    *(jnp.stack([one, one]) for one in output_layer(16, 100, 48))
                ).jaxpr
            )
        )

    assert len(masks()) == 3  # two tiles of a row, and the bias
    assert all(mask is not None for mask in masks())
    store = softmax.triton.store
    monkeypatch.setattr(softmax.triton, "store", lambda place, values, mask: store(place, values))
    assert all(mask is None for mask in masks())
