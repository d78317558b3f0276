"""What a device computes: UserUpdateFedAvg and UserUpdateFedSGD of McMahan et al. 2018, Algorithm
1.

Pure functions of (message, one user's text, key); they run unchanged on any fleet. Nothing here is
trusted with privacy: the mechanism clips whatever comes out.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.core import PADDING, Key, Message, Params, PyTree, Update, UserData
from taciturn.models.sgd import Step

Loss = Callable[
    [Params, jax.Array, Key | None], jax.Array
]  # params, batch of token rows, dropout key → mean loss
Project = Callable[[PyTree, Update], Update]
UserUpdate = Callable[[Message, UserData, Key], Update]


class LocalTraining(NamedTuple):
    learning_rate: float  # η
    epochs: int = 1  # E
    update_penalty: float = 0.0  # of ½‖θ − θ⁰‖² (Appendix D; the paper found no effect)
    keyed: bool = False  # whether a step draws at random: dropout, rehearsal
    gradient_norm: float | None = None  # of one step, at most


def gradient_step(loss: Loss) -> Step:
    """Return a step by automatic differentiation, for any loss."""

    def step(params: Params, batch: jax.Array, key: Key | None, rate: float) -> Params:
        return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, batch, key))

    return step


def with_short_steps(take_step: Step, gradient_norm: float) -> Step:
    """Limit each step to that of a gradient of this norm (Zaremba et al. 2014 clip at 5, of a sum
    over the words of a row).
    """

    def step(params: Params, batch: jax.Array, key: Key | None, rate: float) -> Params:
        change = trees.subtract(take_step(params, batch, key, rate), params)
        factor = jnp.minimum(
            1.0, rate * gradient_norm / jnp.maximum(trees.norm_upper_bound(change), 1e-30)
        )
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

    def user_update(message: Message, user: UserData, key: Key) -> Update:
        start, pull = message.params, local.learning_rate * local.update_penalty  # θ⁰

        def step(epoch: jax.Array | int, index: jax.Array, params: Params) -> Params:
            batch = user.batches[index]
            # By position, not in sequence: how many batches of padding lie between two epochs
            # depends on other users.
            dropout_key = (
                jax.random.fold_in(jax.random.fold_in(key, epoch), index) if local.keyed else None
            )
            before, params = (
                params,
                take_step(params, batch, dropout_key, local.learning_rate),
            )  # θ ← θ − η∇ℓ(θ; b)
            if pull:
                params = jax.tree.map(
                    lambda after, p, s: after - pull * (p - s), params, before, start
                )
            if project is not None:
                params = trees.add(
                    start, project(message.public, trees.subtract(params, start))
                )  # θ⁰ + ClipFn(θ − θ⁰)
            if pull or project is not None:
                # A batch of padding is not a step. A zero gradient ensures that by itself for every
                # update that is reported (privacy/bounding/clipping.py leaves out those so large that it
                # might not); these two do not, and how much padding a user has depends on who is
                # trained beside them.
                is_text = jnp.any(batch != PADDING)
                params = jax.tree.map(lambda after, p: jnp.where(is_text, after, p), params, before)
            return params

        def train_epoch(epoch: jax.Array | int, params: Params) -> Params:
            return jax.lax.fori_loop(0, user.steps, partial(step, epoch), params)

        params = (
            train_epoch(0, start)
            if local.epochs == 1
            else jax.lax.fori_loop(0, local.epochs, train_epoch, start)
        )
        return trees.subtract(params, start)  # Δ_k = θ − θ⁰

    return user_update


def fedsgd_update(loss: Loss, local: LocalTraining) -> UserUpdate:
    """Take one gradient on one of the user's batches, drawn at random: Δ = −η∇ℓ(θ; b)."""

    def user_update(message: Message, user: UserData, key: Key) -> Update:
        batch_key, dropout_key = jax.random.split(key)
        # Batches of padding only come last; draw among those with text.
        filled = jnp.sum(jnp.any(user.batches != 0, axis=(1, 2)))
        batch = user.batches[jax.random.randint(batch_key, (), 0, jnp.maximum(filled, 1))]
        gradient = jax.grad(loss)(message.params, batch, dropout_key if local.keyed else None)
        return trees.scale(gradient, -local.learning_rate)

    return user_update
