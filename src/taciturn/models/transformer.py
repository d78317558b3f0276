"""A small Transformer decoder with tied embeddings, and no biases to clip.

Its blocks are pre-normalised, and its positions rotary. Its normalisation is RMS over a word's own
features, never over a batch: statistics over several users would mix them.
"""

import jax
import jax.numpy as jnp

from taciturn.core import Key, LanguageModel, Params
from taciturn.models.layers import dense, dropout, embedding, look_up_rows


def transformer(
    vocabulary: int, width: int = 96, layers: int = 2, heads: int = 4, dropout_rate: float = 0.0
) -> LanguageModel:
    """Build the decoder; refuse a width that its heads cannot share."""
    head_width = width // heads
    if width % heads or head_width % 2:
        raise ValueError(
            f"a Transformer's width must be a multiple of 2 × heads; {width} and {heads} heads"
            " are not"
        )

    def init(key: Key) -> Params:
        keys = jax.random.split(key, layers + 1)
        return {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "blocks": {f"{index}": _init_block(keys[index + 1], width) for index in range(layers)},
            "final_norm": jnp.ones(width),
            "word_bias": jnp.zeros(vocabulary),
        }

    def contexts(params: Params, tokens: jax.Array, key: Key | None = None) -> jax.Array:
        count = 2 * layers + 1
        keys = iter([None] * count if key is None else jax.random.split(key, count))
        embedded = look_up_rows(params["embedding"], tokens)
        x = dropout(embedded, dropout_rate, next(keys))
        for index in range(layers):
            block = params["blocks"][f"{index}"]
            attended = _attend(block, x, heads)
            x = x + dropout(attended, dropout_rate, next(keys))
            fed = _feed(block, x)
            x = x + dropout(fed, dropout_rate, next(keys))
        return _rms(x) * params["final_norm"]

    def words(params: Params) -> tuple[jax.Array, jax.Array]:
        return params["embedding"], params["word_bias"]

    return LanguageModel(init=init, contexts=contexts, words=words)


def _init_block(key: Key, width: int) -> Params:
    keys = jax.random.split(key, 4)
    return {
        "attention_norm": jnp.ones(width),
        "attention_in": dense(keys[0], (width, 3 * width)),
        "attention_out": dense(keys[1], (width, width)),
        "feed_norm": jnp.ones(width),
        "feed_in": dense(keys[2], (width, 4 * width)),
        "feed_out": dense(keys[3], (4 * width, width)),
    }


def _attend(block: Params, x: jax.Array, heads: int) -> jax.Array:
    """Return what each word reads from those before it and itself."""
    batch, length, width = x.shape
    head_width = width // heads
    normed = _rms(x) * block["attention_norm"]
    projected = normed @ block["attention_in"]
    q, k, v = [
        part.reshape(batch, length, heads, head_width) for part in jnp.split(projected, 3, axis=-1)
    ]
    products = jnp.einsum("bqhd,bkhd->bhqk", _rotate(q), _rotate(k))
    scores = products / head_width**0.5
    everywhere = jnp.ones((length, length), bool)
    is_future = jnp.triu(everywhere, 1)
    scores = jnp.where(is_future, -jnp.inf, scores)
    weights = jax.nn.softmax(scores)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return mixed.reshape(batch, length, width) @ block["attention_out"]


def _feed(block: Params, x: jax.Array) -> jax.Array:
    """Return what the layers that see one word at a time make of each."""
    hidden = (_rms(x) * block["feed_norm"]) @ block["feed_in"]
    return jax.nn.gelu(hidden) @ block["feed_out"]


def _rms(x: jax.Array) -> jax.Array:
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + 1e-6)


def _angles(length: int, half: int) -> jax.Array:
    """Return the angle of each position for each pair of features, [length, half]."""
    positions = jnp.arange(length)[:, None]
    rates = 10_000.0 ** (-jnp.arange(half) / half)
    return positions * rates


def _rotate(x: jax.Array) -> jax.Array:
    """Rotate [batch, length, heads, head_width] by position (Su et al. 2021)."""
    half = x.shape[-1] // 2
    angles = _angles(x.shape[1], half)
    cos = jnp.cos(angles)[:, None, :]
    sin = jnp.sin(angles)[:, None, :]
    left = x[..., :half]
    right = x[..., half:]
    turned_left = left * cos - right * sin
    turned_right = right * cos + left * sin
    return jnp.concatenate([turned_left, turned_right], axis=-1)
