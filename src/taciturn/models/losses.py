"""Cross-entropy of the next word, over everything but padding.

The softmax over the vocabulary is most of a keyboard model's work, so its gradient is written by
hand: the exponentials of the forward pass are kept and serve the backward pass, and the target's
share is found by comparing word ids, where automatic differentiation would take every exponential
twice and scatter into a zero matrix of tokens × vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from taciturn.core import PADDING, Key, LanguageModel, Params
from taciturn.models.layers import flatten_steps


def logits(
    model: LanguageModel, params: Params, tokens: jax.Array, key: Key | None = None
) -> jax.Array:
    """Return logits, [batch, length] → [batch, length, vocabulary].

    There is dropout only with a key.
    """
    matrix, bias = model.words(params)
    return model.contexts(params, tokens, key) @ matrix.T + bias


def cross_entropy(
    model: LanguageModel,
    params: Params,
    tokens: jax.Array,
    key: Key | None = None,
    power: float = 0.0,
) -> jax.Array:
    """Return the mean loss of predicting tokens[:, 1:] from what precedes; 0 where all is padding.

    `power` is that of `bound_losses`.
    """
    contexts = model.contexts(params, tokens[:, :-1], key)
    matrix, bias = model.words(params)
    targets = tokens[:, 1:].reshape(-1)
    losses = softmax_loss(flatten_steps(contexts), matrix, bias, targets)
    return _mean_over_words(bound_losses(losses, power), targets)


def _mean_over_words(losses: jax.Array, targets: jax.Array) -> jax.Array:
    is_word = targets != PADDING
    total = jnp.sum(jnp.where(is_word, losses, 0.0))
    return total / jnp.maximum(jnp.sum(is_word), 1)


def bound_losses(losses: jax.Array, power: float) -> jax.Array:
    """Return (1 − p^q) / q for −log p (Zhang and Sabuncu 2018), at most 1/q; −log p for q = 0.

    Unpredictable words then hardly count, and a user's update has more of what users have in
    common.
    """
    if not power:
        return losses
    return -jnp.expm1(-power * losses) / power


@jax.custom_vjp
def softmax_loss(
    contexts: jax.Array, matrix: jax.Array, bias: jax.Array, targets: jax.Array
) -> jax.Array:
    """Return −log softmax(contexts @ matrix.T + bias)[target], for each row of contexts."""
    return _forward(contexts, matrix, bias, targets)[0]


class _Saved(NamedTuple):
    """What the backward pass needs of the forward pass."""

    contexts: jax.Array
    matrix: jax.Array
    targets: jax.Array
    # Of the scores, and their sums over words.
    exponentials: jax.Array
    normaliser: jax.Array


def _forward(contexts, matrix, bias, targets):
    scores = contexts @ matrix.T + bias
    largest = jnp.max(scores, axis=-1)
    exponentials = jnp.exp(scores - largest[:, None])
    normaliser = jnp.sum(exponentials, axis=-1)
    target_products = jnp.sum(contexts * matrix[targets], axis=-1)
    target_scores = target_products + bias[targets]
    losses = jnp.log(normaliser) + largest - target_scores
    saved = _Saved(
        contexts=contexts,
        matrix=matrix,
        targets=targets,
        exponentials=exponentials,
        normaliser=normaliser,
    )
    return losses, saved


def _backward(saved: _Saved, gradient):
    is_target = jnp.arange(saved.matrix.shape[0]) == saved.targets[:, None]
    factors = (gradient / saved.normaliser)[:, None]
    d_normaliser = saved.exponentials * factors
    d_targets = jnp.where(is_target, gradient[:, None], 0.0)
    d_scores = d_normaliser - d_targets
    d_contexts = d_scores @ saved.matrix
    d_matrix = d_scores.T @ saved.contexts
    d_bias = jnp.sum(d_scores, axis=0)
    return d_contexts, d_matrix, d_bias, None


softmax_loss.defvjp(_forward, _backward)
