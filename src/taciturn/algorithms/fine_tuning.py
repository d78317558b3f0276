"""Fine-tuning on devices (Popov et al. 2018).

Devices learn users' language without forgetting the general one (§2.1 and §2.2), or from
predictions in place of updates (§2.3).

λ, the `user_share`, is the part of a device's training text that is its user's own. At 1 both are
plain re-training, which forgets.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.algorithms.local_training import (
    LocalTraining,
    Project,
    Step,
    UserUpdate,
    descend,
    fedavg_update,
    gradient_step,
    only_if_text,
)
from taciturn.core import (
    PADDING,
    Algorithm,
    Estimate,
    Key,
    LanguageModel,
    Message,
    Params,
    Participation,
    ServerState,
    Update,
    UserData,
)
from taciturn.models import losses
from taciturn.privacy.bounding.clipping import no_clip
from taciturn.privacy.bounding.estimators import mean
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import no_noise

# Of the model that is sent: rows of words, integers [rows, length + 1].
Text = Callable[[Params], jax.Array]


def with_rehearsal(take_step: Step, general: jax.Array, user_share: float) -> Step:
    """Rehearse at random: add rows of general text to each batch of the user's.

    As many are added as make a share λ of all rows the user's. `general` is public text,
    [rows, length + 1], which goes to every device; each draws its own rows of it.
    """

    def step(params: Params, batch: jax.Array, key: Key | None, rate: float) -> Params:
        # `LocalTraining.keyed` says that there is one.
        assert key is not None
        rows_key, dropout_key = jax.random.split(key)
        count = round(batch.shape[0] * (1 - user_share) / user_share)
        places = jax.random.randint(rows_key, (count,), 0, len(general))
        rows = general[places]
        longer_batch = jnp.concatenate([batch, rows])
        trained = take_step(params, longer_batch, dropout_key, rate)
        # A batch of padding is not a step, and with only general text it would be one.
        return only_if_text(batch, trained, params)

    return step


def unforgetting_update(
    model: LanguageModel, local: LocalTraining, user_share: float, project: Project | None = None
) -> UserUpdate:
    """Learn without forgetting.

    The general model θ_g, as it was sent, gives the probability of what else could have been
    written.
    """

    def user_update(message: Message, user: UserData, key: Key) -> Update:
        loss = partial(soft_label_loss, model, message.params, user_share)
        train = fedavg_update(gradient_step(loss), local, project)
        return train(message, user, key)

    return user_update


def soft_label_loss(
    model: LanguageModel,
    general: Params,
    user_share: float,
    params: Params,
    tokens: jax.Array,
    key: Key | None,
) -> jax.Array:
    """Return the loss (1) with the labels of formula (2).

    y*_w = λ·1{w is what was written} + (1 − λ)·p(w | θ_g).
    """
    general_scores = losses.logits(model, general, tokens[:, :-1])
    expected = jax.lax.stop_gradient(jax.nn.softmax(general_scores))
    written = jax.nn.one_hot(tokens[:, 1:], expected.shape[-1])
    labels = user_share * written + (1 - user_share) * expected
    return cross_entropy_with(labels, model, params, tokens, key)


def cross_entropy_with(
    labels: jax.Array,
    model: LanguageModel,
    params: Params,
    tokens: jax.Array,
    key: Key | None = None,
) -> jax.Array:
    """Return −Σ_w y*_w log p(w | θ), formula (1), as a mean over words.

    The labels y* are [..., vocabulary].
    """
    scores = jax.nn.log_softmax(losses.logits(model, params, tokens[:, :-1], key))
    is_word = tokens[:, 1:] != PADDING
    losses_of_words = -jnp.sum(labels * scores, axis=-1)
    total = jnp.sum(jnp.where(is_word, losses_of_words, 0.0))
    return total / jnp.maximum(jnp.sum(is_word), 1)


def transfer_learning(
    model: LanguageModel,
    user_update: UserUpdate,
    text: Text,
    participation: Participation,
    rate: float,
    epochs: int,
    batch_size: int,
) -> Algorithm:
    """Learn from the average prediction (Popov et al. 2018, §2.3; Shin et al. 2016).

    Devices say what they would have written next in a text that everybody has, and the server
    learns that. The text is public, or sampled from the model that is sent, so that a device can
    sample it again. Predictions are summed like updates: a fleet still only adds. A round is one
    cycle: y*_i = 1/N Σ_k p(w_i | θ_u^k), formula (4); then E epochs of SGD on the cross-entropy (1)
    between y* and what the model says.

    Departs from Popov et al.: in each cycle devices train the model they were just sent, so nobody
    keeps a model of theirs between two.
    """

    def init(params: Params) -> ServerState:
        return ServerState(params, optimizer=())

    def predict(message: Message, user: UserData, key: Key) -> Update:
        trained = trees.add(message.params, user_update(message, user, key))
        scores = losses.logits(model, trained, text(message.params)[:, :-1])
        return {"predictions": jax.nn.softmax(scores)}

    def server_update(state: ServerState, estimate: Estimate) -> ServerState:
        rows = text(state.params)
        predictions = estimate["predictions"]
        batches = len(rows) // batch_size

        def step(params: Params, index: jax.Array) -> tuple[Params, None]:
            start = (index % batches) * batch_size
            batch = jax.lax.dynamic_slice_in_dim(rows, start, batch_size)
            labels = jax.lax.dynamic_slice_in_dim(predictions, start, batch_size)

            def loss(params: Params) -> jax.Array:
                return cross_entropy_with(labels, model, params, batch)

            return descend(params, jax.grad(loss)(params), rate), None

        steps = jnp.arange(epochs * batches)
        params, _ = jax.lax.scan(step, state.params, steps)
        return ServerState(params, state.optimizer)

    return Algorithm(
        init=init,
        user_update=predict,
        server_update=server_update,
        mechanism=mechanism(no_clip(), mean(), no_noise()),
        participation=participation,
    )
