"""Learning users' language without forgetting the general one (Popov et al. 2018, §2.1 and §2.2): the device's part.

λ, the `user_share`, is the part of a device's training text that is its user's own. At 1 both are plain re-training, which forgets.
"""

from functools import partial

import jax
import jax.numpy as jnp

from taciturn.algorithms.local_training import LocalTraining, Project, Step, UserUpdate, fedavg_update, gradient_step
from taciturn.core import PADDING, Key, LanguageModel, Message, Params, Update, UserData
from taciturn.models import losses


def rehearsing(take_step: Step, general: jax.Array, user_share: float) -> Step:
    """Rehearse at random: add rows of general text to each batch of the user's, until a share λ of all rows is the user's.

    `general` is public text, [rows, length + 1], which goes to every device; each draws its own rows of it.
    """

    def step(params: Params, batch: jax.Array, key: Key | None, rate: float) -> Params:
        assert key is not None  # LocalTraining.keyed says that there is one
        draw, dropout_key = jax.random.split(key)
        beside = round(batch.shape[0] * (1 - user_share) / user_share)
        rows = general[jax.random.randint(draw, (beside,), 0, len(general))]
        after = take_step(params, jnp.concatenate([batch, rows]), dropout_key, rate)
        # A batch of padding is not a step, and general text alone would make it one.
        is_text = jnp.any(batch != PADDING)
        return jax.tree.map(lambda new, old: jnp.where(is_text, new, old), after, params)

    return step


def unforgetting_update(model: LanguageModel, local: LocalTraining, user_share: float, project: Project | None = None) -> UserUpdate:
    """Learn without forgetting: the general model θ_g, as it was sent, gives the probability of what else could have been written."""

    def user_update(message: Message, user: UserData, key: Key) -> Update:
        loss = partial(soft_label_loss, model, message.params, user_share)
        return fedavg_update(gradient_step(loss), local, project)(message, user, key)

    return user_update


def soft_label_loss(
    model: LanguageModel, general: Params, user_share: float, params: Params, tokens: jax.Array, key: Key | None
) -> jax.Array:
    """Return the loss (1) with y*_w = λ·1{w is what was written} + (1 − λ)·p(w | θ_g), formula (2)."""
    expected = jax.lax.stop_gradient(jax.nn.softmax(losses.logits(model, general, tokens[:, :-1])))
    labels = user_share * jax.nn.one_hot(tokens[:, 1:], expected.shape[-1]) + (1 - user_share) * expected
    return cross_entropy_with(labels, model, params, tokens, key)


def cross_entropy_with(labels: jax.Array, model: LanguageModel, params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
    """Return −Σ_w y*_w log p(w | θ), formula (1), for labels y* [..., vocabulary]; a mean over words."""
    matrix, bias = model.words(params)
    scores = jax.nn.log_softmax(model.contexts(params, tokens[:, :-1], key) @ matrix.T + bias)
    present = tokens[:, 1:] != PADDING
    each = -jnp.sum(labels * scores, axis=-1)
    return jnp.sum(jnp.where(present, each, 0.0)) / jnp.maximum(jnp.sum(present), 1)
