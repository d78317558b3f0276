"""A warm start: ordinary training on public text (McMahan et al. 2018, Appendix B, "likely the best approach for practical applications").

It takes a `PublicCorpus` and nothing else, so that no user's text can come this way.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from taciturn.core import BEGIN, Key, Params
from taciturn.data.public import PublicCorpus

Loss = Callable[[Params, jax.Array, Key | None], jax.Array]


def pretrain(
    loss: Loss,
    params: Params,
    corpus: PublicCorpus,
    epochs: int,
    seed: int = 0,
    batch_size: int = 32,
    unroll: int = 20,
    *,
    peak_rate: float,
) -> Iterator[tuple[int, int, Params]]:
    """Adam with a falling rate. Yields (steps done, steps in all, params) after every step."""
    rows = _rows(corpus, unroll)
    steps = epochs * (len(rows) // batch_size)
    if steps == 0:
        raise ValueError(
            f"the public text is too short: {len(rows)} pieces of {unroll} tokens do not fill a batch of {batch_size}"
        )
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, peak_rate, steps // 20 + 1, steps, peak_rate / 20))
    state = optimizer.init(params)
    generator = np.random.default_rng(seed)

    @jax.jit
    def step(params: Params, state: optax.OptState, batch: jax.Array, key: Key) -> tuple[Params, optax.OptState]:
        updates, state = optimizer.update(jax.grad(loss)(params, batch, key), state, params)
        return jax.tree.map(jnp.add, params, updates), state

    done = 0
    for _ in range(epochs):
        order = generator.permutation(len(rows))
        for start in range(0, len(rows) - batch_size + 1, batch_size):
            key = jax.random.fold_in(jax.random.key(seed), done)
            params, state = step(params, state, rows[order[start : start + batch_size]], key)
            done += 1
            yield done, steps, params


def _rows(corpus: PublicCorpus, unroll: int) -> np.ndarray:
    """Pieces of unroll + 1 ids that overlap by one; what is left of a document is padded."""
    rows = []
    for document in corpus.documents:
        text = np.concatenate([[BEGIN], document])
        for start in range(0, len(document), unroll):
            piece = text[start : start + unroll + 1]
            rows.append(np.pad(piece, (0, unroll + 1 - len(piece))))
    return np.array(rows, np.int32).reshape(-1, unroll + 1)
