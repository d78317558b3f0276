"""One local step of a language model, θ ← θ − η∇ℓ(θ; b), as fast as the machine allows.

Two matrices hold most of a keyboard model: the embedding of the words that go in, of which a batch
uses a few dozen rows, and that of the words that come out, all of which every step uses and
changes. Automatic differentiation treats both alike and writes a gradient for every row, several
times. Here only the input rows get a gradient, and the output layer takes its step where its
gradient is computed (models/kernels/softmax.py). Nothing else differs from `params − rate ×
grad(cross_entropy)`, and a test checks that.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from taciturn.core import PADDING, Key, LanguageModel, Params
from taciturn.models.kernels import softmax
from taciturn.models.layers import add_rows, flatten_steps

# Of parameters, a batch of token rows, a dropout key and a rate.
Step = Callable[[Params, jax.Array, Key | None, float], Params]


def sgd_step(model: LanguageModel, product: DTypeLike = jnp.float32, power: float = 0.0) -> Step:
    """Build the step.

    Args:
        model: what is trained.
        product: the type of matrix products; all else stays float32.
        power: that of the loss (`losses.bound_losses`).
    """

    def step(params: Params, batch: jax.Array, key: Key | None, rate: float) -> Params:
        inputs = batch[:, :-1]
        targets = batch[:, 1:].reshape(-1)
        embedding = params[model.embedding]
        rows = embedding[inputs.reshape(-1)]
        # The words in use are an embedding of their own, in which the id of each is its position.
        places = jnp.arange(inputs.size).reshape(inputs.shape)
        rest = _lower_layers(model, params)

        def contexts_of(rest: Params, rows: jax.Array) -> jax.Array:
            used = {**rest, model.embedding: rows}
            contexts = model.contexts(used, places, key)
            return flatten_steps(contexts)

        contexts, pull_back = jax.vjp(contexts_of, rest, rows)
        output = _step_output_layer(
            contexts=contexts,
            weights=_weigh_targets(targets),
            matrix=params[model.word_embedding],
            bias=params["word_bias"],
            targets=targets,
            rate=rate,
            unit_norm=model.unit_norm,
            product=product,
            power=power,
        )
        d_rest, d_rows = pull_back(output.d_contexts)
        # With a plus: a GPU adds within the product that makes what is added.
        stepped = jax.tree.map(lambda p, g: p + (-rate) * g, rest, d_rest)
        stepped |= {model.word_embedding: output.matrix, "word_bias": output.bias}
        # Where embeddings are tied, the output layer has stepped it.
        embedding = stepped.get(model.embedding, embedding)
        stepped[model.embedding] = add_rows(embedding, inputs.reshape(-1), -rate * d_rows)
        return {name: stepped[name] for name in params}

    return step


def _lower_layers(model: LanguageModel, params: Params) -> Params:
    """Return the parameters without the two large matrices and the bias of words."""
    apart = {model.embedding, model.word_embedding, "word_bias"}
    return {name: leaf for name, leaf in params.items() if name not in apart}


def _weigh_targets(targets: jax.Array) -> jax.Array:
    """Return the weight of each target in a mean over words; padding has none."""
    is_word = targets != PADDING
    return jnp.where(is_word, 1.0 / jnp.maximum(jnp.sum(is_word), 1), 0.0)


def _step_output_layer(*, contexts: jax.Array, product: DTypeLike, **layer: Any) -> softmax.Stepped:
    """Step by the kernels on a GPU that can run them, else by their definition."""
    plain_step = partial(softmax.plain_step, contexts, product=product, **layer)
    if not softmax.fits(contexts, product):
        return plain_step()
    fused_step = partial(softmax.fused_step, contexts, product=product, **layer)
    return jax.lax.platform_dependent(cuda=fused_step, default=plain_step)
