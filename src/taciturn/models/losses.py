"""Cross-entropy of the next word, over everything but padding.

The softmax over the vocabulary is most of a keyboard model's work, so its gradient is written by
hand: the exponentials of the forward pass are kept and serve the backward pass, and the target's
share is found by comparing word ids, where automatic differentiation would take every exponential
twice and scatter into a zero matrix of tokens × vocabulary.
"""

import jax
import jax.numpy as jnp

from taciturn.core import PADDING, Key, LanguageModel, Params


def logits(
    model: LanguageModel, params: Params, tokens: jax.Array, key: Key | None = None
) -> jax.Array:
    """Return logits, [batch, length] → [batch, length, vocabulary]; without dropout, unless there
    is a key.
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
    `power`: `bounded`.
    """
    contexts = model.contexts(params, tokens[:, :-1], key)
    matrix, bias = model.words(params)
    targets = tokens[:, 1:].reshape(-1)
    losses = bound_losses(
        softmax_loss(contexts.reshape(-1, contexts.shape[-1]), matrix, bias, targets), power
    )
    present = targets != PADDING
    return jnp.sum(jnp.where(present, losses, 0.0)) / jnp.maximum(jnp.sum(present), 1)


def bound_losses(losses: jax.Array, power: float) -> jax.Array:
    """Return (1 − p^q) / q for −log p (Zhang and Sabuncu 2018), at most 1/q: unpredictable words
    hardly count, and a user's update has more of what users have in common. With q = 0 it is −log p
    itself.
    """
    return -jnp.expm1(-power * losses) / power if power else losses


@jax.custom_vjp
def softmax_loss(
    contexts: jax.Array, matrix: jax.Array, bias: jax.Array, targets: jax.Array
) -> jax.Array:
    """Return −log softmax(contexts @ matrix.T + bias)[target], for each row of contexts."""
    return _forward(contexts, matrix, bias, targets)[0]


def _forward(contexts, matrix, bias, targets):
    scores = contexts @ matrix.T + bias
    largest = jnp.max(scores, axis=-1)
    exponentials = jnp.exp(scores - largest[:, None])
    normaliser = jnp.sum(exponentials, axis=-1)
    target_scores = jnp.sum(contexts * matrix[targets], axis=-1) + bias[targets]
    losses = jnp.log(normaliser) + largest - target_scores
    return losses, (contexts, matrix, targets, exponentials, normaliser)


def _backward(saved, gradient):
    contexts, matrix, targets, exponentials, normaliser = saved
    is_target = jnp.arange(matrix.shape[0]) == targets[:, None]
    d_scores = exponentials * (gradient / normaliser)[:, None] - jnp.where(
        is_target, gradient[:, None], 0.0
    )
    return d_scores @ matrix, d_scores.T @ contexts, jnp.sum(d_scores, axis=0), None


softmax_loss.defvjp(_forward, _backward)
