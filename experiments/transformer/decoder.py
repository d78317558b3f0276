"""Transformers of two kinds: Llama's, and one with learned positions and GELU.

Parameters have 32 bits, products are of bf16. What is kept for the way back has 16 bits; all that
is cheap is computed again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

PADDING, UNKNOWN, BEGIN = 0, 1, 2

Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a model looks like.

    Llama's blocks have rotary positions and gated feed-forward layers (SwiGLU); the others, the
    pilot's, learned positions and GELU. Both normalise by RMS and have one embedding for input and
    output.
    """

    width: int
    layers: int
    heads: int
    words: int = 10_000
    is_llama: bool = True
    # Words that are read in a row.
    length: int = 200

    @property
    def inner(self) -> int:
        """Return the width inside a feed-forward layer: both kinds have as many parameters."""
        if not self.is_llama:
            return 4 * self.width
        return 32 * round(8 * self.width / 3 / 32)


def init(shape: Shape, key: jax.Array) -> Params:
    """Return parameters in 32 bits."""
    keys = iter(jax.random.split(key, 4 * shape.layers + 2))

    def normal(*size: int, deviation: float = 0.02) -> jax.Array:
        return deviation * jax.random.normal(next(keys), size)

    # The sum of all layers' outputs is as large in a deep model as in a flat one.
    to_residual = 0.02 / math.sqrt(2 * shape.layers)
    gates = 2 if shape.is_llama else 1
    params: Params = {
        "embedding": normal(shape.words, shape.width),
        "final_norm": jnp.ones(shape.width),
        "blocks": [],
    }
    if not shape.is_llama:
        params["positions"] = normal(shape.length, shape.width)
        params["word_bias"] = jnp.zeros(shape.words)
    for _ in range(shape.layers):
        block = {
            "attention_norm": jnp.ones(shape.width),
            "attention_in": normal(shape.width, 3 * shape.width),
            "attention_out": normal(shape.width, shape.width, deviation=to_residual),
            "feed_norm": jnp.ones(shape.width),
            "feed_in": normal(shape.width, gates * shape.inner),
            "feed_out": normal(shape.inner, shape.width, deviation=to_residual),
        }
        params["blocks"].append(block)
    return params


def drop_out(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    if not rate:
        return x
    is_kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(is_kept, x / (1 - rate), 0).astype(x.dtype)


@jax.checkpoint
def normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + 1e-6) * scale).astype(x.dtype)


@jax.checkpoint
def gate(x: jax.Array) -> jax.Array:
    opened, value = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(opened) * value


@jax.checkpoint
def bend(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x)


def rotate(x: jax.Array) -> jax.Array:
    """Turn queries or keys by their positions, [batch, words, heads, width], as Llama does."""
    length, width = x.shape[1], x.shape[3]
    speeds = 10_000 ** (-jnp.arange(0, width, 2) / width)
    angles = jnp.arange(length)[:, None, None] * speeds
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [left * cos - right * sin, right * cos + left * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


@cache
def attention() -> Callable[..., jax.Array]:
    """Return the fastest attention that this machine has."""
    fused = partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn")

    @jax.grad
    def try_out(x: jax.Array) -> jax.Array:
        return fused(x, x, x).astype(jnp.float32).sum()

    try:
        jax.jit(try_out)(jnp.ones((2, 200, 2, 64), jnp.bfloat16)).block_until_ready()
    except Exception as error:
        print(f"no fused attention: {str(error)[:200]}", flush=True)
        return jax.checkpoint(partial(jax.nn.dot_product_attention, is_causal=True))
    return fused


def attend(block: Params, x: jax.Array, shape: Shape) -> jax.Array:
    normed = normalize(x, block["attention_norm"])
    projected = normed @ block["attention_in"].astype(x.dtype)
    heads = (*x.shape[:2], shape.heads, shape.width // shape.heads)
    q, k, v = [part.reshape(heads) for part in jnp.split(projected, 3, axis=-1)]
    if shape.is_llama:
        q, k = rotate(q), rotate(k)
    mixed = attention()(q, k, v).reshape(x.shape)
    return mixed @ block["attention_out"].astype(x.dtype)


def feed(block: Params, x: jax.Array, shape: Shape) -> jax.Array:
    normed = normalize(x, block["feed_norm"])
    inner = normed @ block["feed_in"].astype(x.dtype)
    chosen = gate(inner) if shape.is_llama else bend(inner)
    return chosen @ block["feed_out"].astype(x.dtype)


def contexts(
    params: Params, tokens: jax.Array, shape: Shape, dropout: float, key: jax.Array
) -> jax.Array:
    """Return what stands before each next word, in bf16."""
    keys = iter(jax.random.split(key, 2 * shape.layers + 1))
    x = params["embedding"][tokens]
    if not shape.is_llama:
        x = x + params["positions"][: tokens.shape[1]]
    x = drop_out(x, dropout, next(keys)).astype(jnp.bfloat16)
    for block in params["blocks"]:
        x = x + drop_out(attend(block, x, shape), dropout, next(keys))
        x = x + drop_out(feed(block, x, shape), dropout, next(keys))
    return normalize(x, params["final_norm"])


def word_scores(params: Params, context: jax.Array, dtype: Any) -> jax.Array:
    embedding = params["embedding"].astype(jnp.bfloat16)
    scores = jnp.einsum("btd,vd->btv", context, embedding, preferred_element_type=dtype)
    if "word_bias" in params:
        scores = scores + params["word_bias"].astype(dtype)
    return scores


@jax.custom_vjp
def surprise(scores: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the negative log-probability of each target; of the scores one copy is kept."""
    return _surprise_forward(scores, targets)[0]


def _surprise_forward(scores: jax.Array, targets: jax.Array) -> tuple[jax.Array, Any]:
    wide = scores.astype(jnp.float32)
    normalizer = jax.nn.logsumexp(wide, axis=-1)
    is_target = jnp.arange(scores.shape[-1]) == targets[..., None]
    score = jnp.sum(jnp.where(is_target, wide, 0), axis=-1)
    return normalizer - score, (scores, targets, normalizer)


def _surprise_backward(kept: Any, slope: jax.Array) -> tuple[jax.Array, None]:
    scores, targets, normalizer = kept
    probabilities = jnp.exp(scores.astype(jnp.float32) - normalizer[..., None])
    is_target = jnp.arange(scores.shape[-1]) == targets[..., None]
    return (slope[..., None] * (probabilities - is_target)).astype(scores.dtype), None


surprise.defvjp(_surprise_forward, _surprise_backward)


def mean_loss(
    params: Params, rows: jax.Array, shape: Shape, dropout: float, key: jax.Array
) -> jax.Array:
    context = contexts(params, rows[:, :-1], shape, dropout, key)
    targets = rows[:, 1:]
    losses = surprise(word_scores(params, context, jnp.bfloat16), targets)
    is_asked = (targets != PADDING) & (targets != BEGIN)
    return jnp.sum(losses * is_asked) / jnp.sum(is_asked)


def count_parameters(params: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def operations_a_token(params: Params, shape: Shape) -> float:
    """Return multiplications and additions of a step: products of weights, and causal attention."""
    weights = sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1)
    if "positions" in params:
        weights -= params["positions"].size
    return 6 * weights + 6 * shape.layers * shape.width * shape.length
