"""The paper round on fedjax: its `for_each_client` and its wrapper of a Haiku model.
For `python benchmarks/in_turns.py fedjax`.

python benchmarks/fedjax_round.py USERS ROUNDS prints users/s of the best round. Recurrence is
unrolled statically, as in fedjax's own LSTM, which is its fastest way on a CPU.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

# fedjax 0.0.17 knows these by the names they had,
for name in ("tree_map", "tree_leaves"):
    if not hasattr(jax, name):
        setattr(jax, name, getattr(jax.tree_util, name))
# and looks these up without calling them here.
for name in ("device_put_sharded", "device_put_replicated"):
    if not hasattr(jax, name):
        setattr(jax, name, None)

import fedjax  # noqa: E402  # pyright: ignore[reportMissingImports]
import haiku as hk  # noqa: E402  # pyright: ignore[reportMissingImports]

WORDS = 10_000
WIDTH = 96
UNITS = 256
STEPS = 20
BATCH = 8
LENGTH = 10
RATE = 0.1
CLIP_NORM = 15.0


def language_model():
    sample = {"rows": jnp.zeros((1, 2), jnp.int32)}
    scores = hk.transform(score_words)
    return fedjax.create_model_from_haiku(scores, sample, loss, eval_metrics={})


def score_words(batch):
    inputs = batch["rows"][:, :-1]
    words = hk.Embed(WORDS, WIDTH).embeddings
    # Of unit length, as the paper's are.
    words = words / jnp.linalg.norm(words, axis=-1, keepdims=True)
    cell = hk.LSTM(UNITS)
    start = cell.initial_state(len(batch["rows"]))
    states, _ = hk.static_unroll(cell, words[inputs.T], start)
    contexts = hk.Linear(WIDTH, with_bias=False)(states)
    bias = hk.get_parameter("bias", [WORDS], init=jnp.zeros)
    return jnp.swapaxes(contexts @ words.T + bias, 0, 1)


def loss(batch, scores):
    targets = batch["rows"][:, 1:]
    losses = fedjax.metrics.unreduced_cross_entropy_loss(targets, scores)
    return jnp.mean(losses, axis=-1)


def local_training(model):
    """Return fedjax's loop over users, each of whom trains and clips their update."""
    gradient = fedjax.model_grad(model)
    optimizer = fedjax.optimizers.sgd(RATE)

    def begin(params, key):
        return params, optimizer.init(params), key

    def step(state, batch):
        params, optimizer_state, key = state
        key, step_key = jax.random.split(key)
        slopes = gradient(params, batch, step_key)
        optimizer_state, params = optimizer.apply(slopes, optimizer_state, params)
        return params, optimizer_state, key

    def end(start, state):
        params, _, _ = state
        change = jax.tree_util.tree_map(jnp.subtract, start, params)
        return fedjax.tree_util.tree_clip_by_global_norm(change, CLIP_NORM)

    return fedjax.for_each_client(begin, step, end)


def noised_average(total, users, key):
    leaves, structure = jax.tree_util.tree_flatten(total)
    keys = jax.random.split(key, len(leaves))
    noised = []
    for leaf, leaf_key in zip(leaves, keys, strict=True):
        noise = CLIP_NORM * jax.random.normal(leaf_key, leaf.shape)
        noised.append((leaf + noise) / users)
    return jax.tree_util.tree_unflatten(structure, noised)


def random_clients(users: int) -> list:
    shape = (users, STEPS * BATCH, LENGTH + 1)
    text = np.random.default_rng(0).integers(4, WORDS, shape, np.int32)
    return [fedjax.ClientDataset({"rows": rows}) for rows in text]


def main() -> None:
    users = int(sys.argv[1])
    rounds = int(sys.argv[2])
    model = language_model()
    train = local_training(model)
    server = fedjax.optimizers.sgd(1.0)

    @jax.jit
    def release(params, optimizer, total, key):
        return server.apply(noised_average(total, users, key), optimizer, params)

    clients = random_clients(users)
    keys = jax.random.split(jax.random.PRNGKey(1), users)
    params = model.init(jax.random.PRNGKey(0))
    optimizer = server.init(params)
    seconds = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        batches = []
        for client, (data, key) in enumerate(zip(clients, keys, strict=True)):
            batches.append((client, data.batch(batch_size=BATCH), key))
        total = fedjax.tree_util.tree_zeros_like(params)
        for _, change in train(params, batches):
            total = fedjax.tree_util.tree_add(total, change)
        key = jax.random.PRNGKey(number)
        optimizer, params = jax.block_until_ready(release(params, optimizer, total, key))
        seconds.append(time.perf_counter() - began)
    # The first round compiles.
    print(users / min(seconds[1:]))


if __name__ == "__main__":
    main()
