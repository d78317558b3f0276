"""One local step of a language model, θ ← θ − η∇ℓ(θ; b), as fast as the machine allows.

Two matrices hold most of a keyboard model: the embedding of the words that go in, of which a batch
uses a few dozen rows, and that of the words that come out, all of which every step uses and
changes. Automatic differentiation treats both alike and writes a gradient for every row, several
times. Here only the input rows get a gradient, and the output layer takes its step where its
gradient is computed (models/kernels/softmax.py). Nothing else differs from `params − rate ×
grad(cross_entropy)`, and a test checks that.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import PADDING, Key, LanguageModel, Params
from taciturn.models.kernels import softmax
from taciturn.models.layers import add_rows

# params, batch of token rows, dropout key, rate
Step = Callable[[Params, jax.Array, Key | None, float], Params]


def sgd_step(model: LanguageModel, product: DTypeLike = jnp.float32, power: float = 0.0) -> Step:
    """Build the step. `product` is the type of matrix products; all else stays float32. `power` is
    that of the loss (losses.bounded).
    """

    def step(params: Params, batch: jax.Array, key: Key | None, rate: float) -> Params:
        inputs, targets = batch[:, :-1], batch[:, 1:].reshape(-1)
        # The words in use as an embedding of their own, in which the id of each is its position.
        rows = params[model.embedding][inputs.reshape(-1)]
        places = jnp.arange(inputs.size).reshape(inputs.shape)
        large = {model.embedding, model.word_embedding, "word_bias"}
        rest = {name: leaf for name, leaf in params.items() if name not in large}

        def contexts_of(rest: Params, rows: jax.Array) -> jax.Array:
            contexts = model.contexts({**rest, model.embedding: rows}, places, key)
            return contexts.reshape(-1, contexts.shape[-1])

        contexts, pull_back = jax.vjp(contexts_of, rest, rows)
        present = targets != PADDING
        weights = jnp.where(present, 1.0 / jnp.maximum(jnp.sum(present), 1), 0.0)
        matrix, bias = params[model.word_embedding], params["word_bias"]
        given = (contexts, matrix, bias, targets, weights, rate, model.unit_norm, product, power)
        if softmax.fits(contexts, product):
            stepped = jax.lax.platform_dependent(
                cuda=lambda: softmax.fused_step(*given), default=lambda: softmax.plain_step(*given)
            )
        else:
            stepped = softmax.plain_step(*given)
        d_rest, d_rows = pull_back(stepped.d_contexts)
        # what is added, a GPU adds within the product that makes it
        after = jax.tree.map(lambda p, g: p + (-rate) * g, rest, d_rest)
        after |= {model.word_embedding: stepped.matrix, "word_bias": stepped.bias}
        embedding = after.get(model.embedding, params[model.embedding])
        after[model.embedding] = add_rows(embedding, inputs.reshape(-1), -rate * d_rows)
        return {name: after[name] for name in params}

    return step
