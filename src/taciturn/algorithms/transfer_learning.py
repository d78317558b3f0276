"""Learning from the average prediction (Popov et al. 2018, §2.3; Shin et al. 2016): devices say what they would have written next in a
text that everybody has, and the server learns that. The text is public, or sampled from the model that is sent, so that a device can
sample it again. Predictions are summed like updates: a fleet still only adds. A round is one cycle.

Departs from Popov et al.: in each cycle devices train the model they were just sent, so no device keeps a model between two.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from taciturn import trees
from taciturn.algorithms.fine_tuning import cross_entropy_with
from taciturn.algorithms.local_training import UserUpdate
from taciturn.core import Algorithm, Estimate, Key, LanguageModel, Message, Params, Participation, ServerState, Update, UserData
from taciturn.models import losses
from taciturn.privacy.clipping import unbounded
from taciturn.privacy.estimators import mean
from taciturn.privacy.mechanism import mechanism
from taciturn.privacy.noise import no_noise

Text = Callable[[Params], jax.Array]  # of the model that is sent: rows of words, int [rows, length + 1]


def transfer_learning(
    model: LanguageModel,
    user_update: UserUpdate,
    text: Text,
    participation: Participation,
    learning_rate: float,
    epochs: int,
    batch_size: int,
) -> Algorithm:
    """y*_i = 1/N Σ_k p(w_i | θ_u^k), formula (4); then E epochs of SGD on the cross-entropy (1) between y* and the model's predictions."""

    def predictions(message: Message, user: UserData, key: Key) -> Update:
        trained = trees.add(message.params, user_update(message, user, key))
        return {"predictions": jax.nn.softmax(losses.logits(model, trained, text(message.params)[:, :-1]))}

    def server_update(state: ServerState, estimate: Estimate) -> ServerState:
        rows, expected = text(state.params), estimate["predictions"]
        batches = len(rows) // batch_size

        def step(params: Params, index: jax.Array) -> tuple[Params, None]:
            start = (index % batches) * batch_size
            batch = jax.lax.dynamic_slice_in_dim(rows, start, batch_size)
            labels = jax.lax.dynamic_slice_in_dim(expected, start, batch_size)
            gradient = jax.grad(lambda params: cross_entropy_with(labels, model, params, batch))(params)
            return jax.tree.map(lambda p, g: p - learning_rate * g, params, gradient), None

        params, _ = jax.lax.scan(step, state.params, jnp.arange(epochs * batches))
        return ServerState(params, state.optimizer)

    private = mechanism(unbounded(), mean(), no_noise())
    return Algorithm(lambda params: ServerState(params, ()), predictions, server_update, private, participation)
