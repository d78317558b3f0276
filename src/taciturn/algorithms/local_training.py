"""What a device computes.

UserUpdateFedAvg and UserUpdateFedSGD are those of McMahan et al. 2018, Algorithm 1.

Pure functions of (message, one user's text, key); they run unchanged on any fleet. Nothing here is
trusted with privacy: the mechanism clips whatever comes out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.core import PADDING, Key, Message, Params, PyTree, Update, UserData
from taciturn.models.sgd import Step

# Of parameters, a batch of token rows and a dropout key: the mean loss.
Loss = Callable[[Params, jax.Array, Key | None], jax.Array]
# Of the public part of a message and an update: the nearest update that the clip allows.
Project = Callable[[PyTree, Update], Update]
UserUpdate = Callable[[Message, UserData, Key], Update]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a device trains on its user's text."""

    # η.
    learning_rate: float
    # E.
    epochs: int = 1
    # Of ½‖θ − θ⁰‖² (Appendix D; the paper found no effect).
    update_penalty: float = 0.0
    # Whether a step draws at random: dropout, rehearsal.
    keyed: bool = False
    # The largest norm of a step's gradient.
    gradient_norm: float | None = None


def gradient_step(loss: Loss) -> Step:
    """Return a step by automatic differentiation, for any loss."""

    def step(params: Params, batch: jax.Array, key: Key | None, rate: float) -> Params:
        return descend(params, jax.grad(loss)(params, batch, key), rate)

    return step


def descend(params: Params, gradient: Params, rate: float) -> Params:
    """Return the parameters after a step along the gradient."""
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient)


def with_short_steps(take_step: Step, gradient_norm: float) -> Step:
    """Limit each step to that of a gradient of this norm.

    Zaremba et al. 2014 clip at 5, of a sum over the words of a row.
    """

    def step(params: Params, batch: jax.Array, key: Key | None, rate: float) -> Params:
        change = trees.subtract(take_step(params, batch, key, rate), params)
        length = jnp.maximum(trees.norm_upper_bound(change), 1e-30)
        factor = jnp.minimum(1.0, rate * gradient_norm / length)
        return trees.add(params, trees.scale(change, factor))

    return step


def fedavg_update(
    take_step: Step, local: LocalTraining, project: Project | None = None
) -> UserUpdate:
    """Run E epochs of SGD over the user's batches, Δ = θ − θ⁰.

    With `project`, clipping is *greedy*: after every local step the update is projected back into
    the ball. Without, the mechanism clips once at the end (Ramaswamy et al. 2020).
    """
    if local.gradient_norm is not None:
        take_step = with_short_steps(take_step, local.gradient_norm)
    pull = local.learning_rate * local.update_penalty

    def user_update(message: Message, user: UserData, key: Key) -> Update:
        # θ⁰.
        start = message.params

        def train_batch(epoch: jax.Array | int, index: jax.Array, params: Params) -> Params:
            batch = user.batches[index]
            dropout_key = _batch_key(key, epoch, index) if local.keyed else None
            # θ ← θ − η∇ℓ(θ; b).
            trained = take_step(params, batch, dropout_key, local.learning_rate)
            if pull:
                trained = _pull_towards(start, trained, params, pull)
            if project is not None:
                # θ ← θ⁰ + ClipFn(θ − θ⁰).
                update = project(message.public, trees.subtract(trained, start))
                trained = trees.add(start, update)
            if pull or project is not None:
                # A batch of padding is not a step. A zero gradient ensures that by itself for every
                # update that is reported (privacy/bounding/clipping.py leaves out those so large
                # that it might not); these two do not, and how much padding a user has depends on
                # who is trained beside them.
                trained = only_if_text(batch, trained, params)
            return trained

        def train_epoch(epoch: jax.Array | int, params: Params) -> Params:
            return jax.lax.fori_loop(0, user.steps, partial(train_batch, epoch), params)

        if local.epochs == 1:
            trained = train_epoch(0, start)
        else:
            trained = jax.lax.fori_loop(0, local.epochs, train_epoch, start)
        # Δ_k = θ − θ⁰.
        return trees.subtract(trained, start)

    return user_update


def _batch_key(key: Key, epoch: jax.Array | int, index: jax.Array) -> Key:
    """Return the key of a batch, by its position.

    Not in sequence: how many batches of padding lie between two epochs depends on other users.
    """
    return jax.random.fold_in(jax.random.fold_in(key, epoch), index)


def _pull_towards(start: Params, trained: Params, params: Params, pull: float) -> Params:
    """Add the step of the penalty on the update so far."""
    return jax.tree.map(
        lambda after, before, origin: after - pull * (before - origin), trained, params, start
    )


def only_if_text(batch: jax.Array, trained: Params, params: Params) -> Params:
    """Return what a step made of the parameters, or these where the batch is padding."""
    is_text = jnp.any(batch != PADDING)
    return jax.tree.map(lambda after, before: jnp.where(is_text, after, before), trained, params)


def fedsgd_update(loss: Loss, local: LocalTraining) -> UserUpdate:
    """Take one gradient on one of the user's batches, drawn at random: Δ = −η∇ℓ(θ; b)."""

    def user_update(message: Message, user: UserData, key: Key) -> Update:
        batch_key, dropout_key = jax.random.split(key)
        batch = _draw_batch(user, batch_key)
        step_key = dropout_key if local.keyed else None
        gradient = jax.grad(loss)(message.params, batch, step_key)
        return trees.scale(gradient, -local.learning_rate)

    return user_update


def _draw_batch(user: UserData, key: Key) -> jax.Array:
    # Batches of padding only come last; draw among those with text.
    has_text = jnp.any(user.batches != 0, axis=(1, 2))
    batches_with_text = jnp.sum(has_text)
    index = jax.random.randint(key, (), 0, jnp.maximum(batches_with_text, 1))
    return user.batches[index]
