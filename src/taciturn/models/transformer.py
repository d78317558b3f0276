"""A small Transformer decoder with tied embeddings: pre-normalised blocks, rotary positions, no
biases to clip.

Its normalisation is RMS over a word's own features, never over a batch: statistics over several
users would mix them.
"""

import jax
import jax.numpy as jnp

from taciturn.core import Key, LanguageModel, Params
from taciturn.models.layers import dense, dropout, embedding, looked_up


def transformer(
    vocabulary: int, width: int = 96, layers: int = 2, heads: int = 4, dropout_rate: float = 0.0
) -> LanguageModel:
    head_width = width // heads
    if width % heads or head_width % 2:
        raise ValueError(
            f"a Transformer's width must be a multiple of 2 × heads; {width} and {heads} heads"
            " are not"
        )

    def init_block(key: Key) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "attention_norm": jnp.ones(width),
            "attention_in": dense(keys[0], (width, 3 * width)),
            "attention_out": dense(keys[1], (width, width)),
            "feed_norm": jnp.ones(width),
            "feed_in": dense(keys[2], (width, 4 * width)),
            "feed_out": dense(keys[3], (4 * width, width)),
        }

    def init(key: Key) -> Params:
        keys = jax.random.split(key, layers + 1)
        return {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "blocks": {f"{index}": init_block(keys[index + 1]) for index in range(layers)},
            "final_norm": jnp.ones(width),
            "word_bias": jnp.zeros(vocabulary),
        }

    def attend(block: Params, x: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        q, k, v = jnp.split((_rms(x) * block["attention_norm"]) @ block["attention_in"], 3, axis=-1)
        q, k, v = (part.reshape(batch, length, heads, head_width) for part in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", _rotate(q), _rotate(k)) / head_width**0.5
        future = jnp.triu(jnp.ones((length, length), bool), 1)
        mixed = jnp.einsum(
            "bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(future, -jnp.inf, scores)), v
        )
        return mixed.reshape(batch, length, width) @ block["attention_out"]

    def feed(block: Params, x: jax.Array) -> jax.Array:
        return jax.nn.gelu((_rms(x) * block["feed_norm"]) @ block["feed_in"]) @ block["feed_out"]

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        keys = iter(
            [None] * (2 * layers + 1) if key is None else jax.random.split(key, 2 * layers + 1)
        )
        x = dropout(looked_up(params["embedding"], tokens), dropout_rate, next(keys))
        for index in range(layers):
            block = params["blocks"][f"{index}"]
            x = x + dropout(attend(block, x), dropout_rate, next(keys))
            x = x + dropout(feed(block, x), dropout_rate, next(keys))
        return _rms(x) * params["final_norm"]

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return params["embedding"], params["word_bias"]

    return LanguageModel(init, contexts, words)


def _rms(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)


def _rotate(x: jax.Array) -> jax.Array:
    """Rotary position embedding (Su et al. 2021) of [batch, length, heads, head_width]."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
