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

for name in ("tree_map", "tree_leaves"):  # fedjax 0.0.17 knows them by the names they had
    if not hasattr(jax, name):
        setattr(jax, name, getattr(jax.tree_util, name))
for name in (
    "device_put_sharded",
    "device_put_replicated",
):  # which it looks up, and does not call here
    if not hasattr(jax, name):
        setattr(jax, name, None)

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402

WORDS, WIDTH, UNITS = 10_000, 96, 256
STEPS, BATCH, LENGTH = 20, 8, 10
RATE, CLIP_NORM = 0.1, 15.0


def language_model():
    def scores(batch):
        words = hk.Embed(WORDS, WIDTH)
        rows = words.embeddings / jnp.linalg.norm(
            words.embeddings, axis=-1, keepdims=True
        )  # of unit length, as the paper's are
        cell = hk.LSTM(UNITS)
        states, _ = hk.static_unroll(
            cell, rows[batch["rows"][:, :-1].T], cell.initial_state(len(batch["rows"]))
        )
        bias = hk.get_parameter("bias", [WORDS], init=jnp.zeros)
        return jnp.swapaxes(hk.Linear(WIDTH, with_bias=False)(states) @ rows.T + bias, 0, 1)

    def loss(batch, scores):
        return jnp.mean(
            fedjax.metrics.unreduced_cross_entropy_loss(batch["rows"][:, 1:], scores), axis=-1
        )

    sample = {"rows": jnp.zeros((1, 2), jnp.int32)}
    return fedjax.create_model_from_haiku(hk.transform(scores), sample, loss, eval_metrics={})


def main() -> None:
    users, rounds = int(sys.argv[1]), int(sys.argv[2])
    model = language_model()
    gradient, local, server = (
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(RATE),
        fedjax.optimizers.sgd(1.0),
    )

    def begin(params, key):
        return params, local.init(params), key

    def step(state, batch):
        params, optimizer, key = state
        key, now = jax.random.split(key)
        optimizer, params = local.apply(gradient(params, batch, now), optimizer, params)
        return params, optimizer, key

    def end(start, state):
        change = jax.tree_util.tree_map(lambda before, after: before - after, start, state[0])
        return fedjax.tree_util.tree_clip_by_global_norm(change, CLIP_NORM)

    train = fedjax.for_each_client(begin, step, end)

    @jax.jit
    def release(params, optimizer, total, key):
        leaves, structure = jax.tree_util.tree_flatten(total)
        keys = jax.random.split(key, len(leaves))
        noised = [
            (leaf + CLIP_NORM * jax.random.normal(one, leaf.shape)) / users
            for leaf, one in zip(leaves, keys, strict=True)
        ]
        return server.apply(jax.tree_util.tree_unflatten(structure, noised), optimizer, params)

    text = np.random.default_rng(0).integers(4, WORDS, (users, STEPS * BATCH, LENGTH + 1), np.int32)
    clients = [fedjax.ClientDataset({"rows": rows}) for rows in text]
    params, keys, seconds = (
        model.init(jax.random.PRNGKey(0)),
        jax.random.split(jax.random.PRNGKey(1), users),
        [],
    )
    optimizer = server.init(params)
    for number in range(rounds + 1):
        began = time.perf_counter()
        total = fedjax.tree_util.tree_zeros_like(params)
        batches = [
            (client, data.batch(batch_size=BATCH), key)
            for client, (data, key) in enumerate(zip(clients, keys, strict=True))
        ]
        for _, change in train(params, batches):
            total = fedjax.tree_util.tree_add(total, change)
        optimizer, params = jax.block_until_ready(
            release(params, optimizer, total, jax.random.PRNGKey(number))
        )
        seconds.append(time.perf_counter() - began)
    print(users / min(seconds[1:]))


if __name__ == "__main__":
    main()
