"""One SGD step of the output layer: gradient of the softmax over all words, and the step along it.

`plain` is the definition. `fused` is the same in two GPU kernels (Pallas) that never store the
scores of 10,000 words: the first reads the word matrix and finds each token's normaliser and
expected row; the second reads it again, recomputes the scores block by block and writes the stepped
matrix in its place. Three passes over the matrix where automatic differentiation makes about ten,
and none over scores.
"""

import functools
import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton
from jax.typing import DTypeLike

from taciturn.models.layers import add_rows, by_itself, dot, transpose

# words that a kernel holds at a time; measured on an H200, like splits and stages
BLOCK, WARPS = (
    64,
    4,
)
# tokens that a program holds at a time, where there are more than twice as many: their sums must
# fit into registers
GROUP = 64
LOG2_E = math.log2(math.e)
# the bias of words that do not exist, and less than any score
FAR_BELOW = -1e30
# of the width, for blocks to be read two ahead: wider ones would fill the memory of a
# multiprocessor
MOST_AHEAD = 128
# bytes of a step's contexts: more were not measured, and many, as on public text, are for plain
# products
MOST_HELD = 320 * 96 * 2


class Stepped(NamedTuple):
    matrix: jax.Array
    bias: jax.Array
    # gradient with respect to the contexts, for the layers below
    d_contexts: jax.Array


def plain_step(
    contexts: jax.Array,
    matrix: jax.Array,
    bias: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    rate: float,
    unit_norm: bool,
    product: DTypeLike = jnp.float32,
    power: float = 0.0,
) -> Stepped:
    """Return θ ← θ − η ∇ Σ_t weight_t · ℓ(p_t), p_t = softmax(s_t)[target_t], s_t = (context_t ·
    row_v [/ ‖row_v‖] + bias_v)_v, and ℓ as `losses.bounded` defines it: −log p, or with a power q
    (1 − p^q) / q, whose gradient is that of −log p times p^q.
    """
    inverse = _inverse_norms(matrix)[:, None] if unit_norm else 1.0
    rows = matrix * inverse
    # products in 16 bits are so fast that a copy pays
    turned = transpose if jnp.dtype(product).itemsize == 2 else jnp.transpose
    # Words run down and tokens across: two of the three products are then between rows as they lie
    # in memory.
    scores = dot(rows, turned(contexts.astype(product)), product) + bias[:, None]
    exponentials = jnp.exp(scores - by_itself(jnp.max(scores, axis=0)))
    normaliser = jnp.sum(exponentials, axis=0)
    if power:
        weights = (
            weights
            * (jnp.take_along_axis(exponentials, targets[None, :], axis=0)[0] / normaliser) ** power
        )
    factors, wanted = (weights / normaliser)[:, None], weights[:, None]
    # The softmax's share of the gradient comes from the stored exponentials; the targets' share is
    # a few rows.
    d_rows = add_rows(dot(exponentials, factors * contexts, product), targets, -wanted * contexts)
    d_bias = add_rows(exponentials @ factors, targets, -wanted)[:, 0]
    d_contexts = (
        factors * dot(turned(exponentials.astype(product)), rows, product) - wanted * rows[targets]
    )
    # only the part orthogonal to a row moves it: its length does not matter
    if unit_norm:
        along = by_itself(jnp.sum(matrix * d_rows, axis=-1, keepdims=True) * jnp.square(inverse))
        d_rows = inverse * (d_rows - matrix * along)
    return Stepped(matrix - rate * d_rows, bias - rate * d_bias, d_contexts)


def fused_step(
    contexts,
    matrix,
    bias,
    targets,
    weights,
    rate,
    unit_norm,
    product=jnp.float32,
    power=0.0,
    interpret=False,
) -> Stepped:
    """Return what `plain` returns."""
    (vocabulary, width), tokens = matrix.shape, len(contexts)
    is_many = tokens > 2 * GROUP
    # a power of two: one product on tensor cores serves them all
    group = GROUP if is_many else max(16, 1 << (tokens - 1).bit_length())
    # shares of the vocabulary, which run side by side
    stages, splits = (
        3 if width <= MOST_AHEAD else 1,
        4 if is_many else 5,
    )
    padding = -tokens % group
    rounded = jnp.pad(contexts, ((0, padding), (0, 0))).astype(product)

    def call(kernel, stages: int, grid: tuple[int, ...], **outputs):
        rows = BLOCK * math.ceil(vocabulary / (splits * BLOCK))
        shape = _Shape(
            vocabulary,
            rows,
            tokens,
            group,
            len(rounded) // group,
            parts(width),
            unit_norm,
            product,
            interpret,
        )
        options = triton.CompilerParams(num_warps=WARPS, num_stages=stages)
        return pallas.pallas_call(
            functools.partial(kernel, shape),
            grid=grid,
            compiler_params=None if interpret else options,
            interpret=interpret,
            **outputs,
        )

    share = jax.ShapeDtypeStruct((splits, len(rounded)), jnp.float32)
    found = share, share, jax.ShapeDtypeStruct((splits, *rounded.shape), jnp.float32)
    few = not is_many and jnp.dtype(product).itemsize == 2
    expect = call(
        _expectations, stages if few else 1, (splits, len(rounded) // group), out_shape=found
    )
    largest, sums, drawn = expect(rounded, matrix, bias)
    top = jnp.max(largest, axis=0)
    scales = jnp.exp2(largest - top)
    total = jnp.sum(sums * scales, axis=0)
    # Σ_v p_v row_v
    expected = jnp.sum(drawn * scales[..., None], axis=0) / total[:, None]
    wanted = matrix[targets] * (_inverse_norms(matrix[targets])[:, None] if unit_norm else 1.0)
    # log₂ Σ_v exp(s_v)
    normaliser = top + jnp.log2(total)
    if power:
        scores = (jnp.sum(contexts * wanted, axis=-1) + bias[targets]) * LOG2_E
        # differently rounded, it may be above 0
        weights = weights * jnp.exp2(power * jnp.minimum(scores - normaliser[:tokens], 0.0))
    d_contexts = weights[:, None] * (expected[:tokens] - wanted)
    shapes = [jax.ShapeDtypeStruct(one.shape, jnp.float32) for one in (matrix, bias)]
    step = call(
        functools.partial(_step, rate),
        stages,
        (splits,),
        out_shape=shapes,
        input_output_aliases={1: 0, 2: 1},
    )
    targets, weights = (
        jnp.pad(targets, (0, padding), constant_values=-1),
        jnp.pad(weights, (0, padding)),
    )
    stepped, stepped_bias = step(rounded, matrix, bias, targets, weights, normaliser)
    return Stepped(stepped, stepped_bias, d_contexts)


def fits(contexts: jax.Array, product: DTypeLike) -> bool:
    """Return whether the kernels can run them: they work in tiles of 16."""
    return contexts.shape[1] % 16 == 0 and contexts.size * jnp.dtype(product).itemsize <= MOST_HELD


class _Shape(NamedTuple):
    vocabulary: int
    # of one split
    rows: int
    tokens: int
    # tokens, with padding, that are held at a time
    group: int
    groups: int
    # tiles: start, size
    width: list[tuple[int, int]]
    unit_norm: bool
    product: DTypeLike
    interpret: bool


def parts(size: int) -> list[tuple[int, int]]:
    """Split a multiple of 16 into tiles of powers of two, which the compiler requires: 96 = 64 +
    32.
    """
    tiles, start = [], 0
    while start < size:
        tile = min(128, 1 << ((size - start).bit_length() - 1))
        tiles.append((start, tile))
        start += tile
    return tiles


def _expectations(
    shape: _Shape, contexts_ref, matrix_ref, bias_ref, largest_ref, sums_ref, drawn_ref
) -> None:
    """Per token, over this split's words: the largest score (to base 2), Σ 2^(score − largest), and
    Σ 2^(score − largest) · row. Attention, in which the word matrix is both keys and values; done
    as Dao et al. 2022 do it.
    """
    split, tokens = pallas.program_id(0), pallas.ds(pallas.program_id(1) * shape.group, shape.group)
    contexts = [contexts_ref[tokens, pallas.ds(w, m)] for w, m in shape.width]

    def block(index, carry):
        largest, total, sums = carry
        _, rows, inverse, bias = _block(
            shape, matrix_ref, bias_ref, split * shape.rows + index * BLOCK
        )
        rounded = [row.astype(shape.product) for row in rows]
        score = _sum(
            triton.dot(tile, row, trans_b=True) for tile, row in zip(contexts, rounded, strict=True)
        )
        score = score * (inverse * LOG2_E)[None, :] + (bias * LOG2_E)[None, :]
        larger = jnp.maximum(largest, jnp.max(score, axis=1))
        shrink, exponentials = _exp2(shape, largest - larger), _exp2(shape, score - larger[:, None])
        weights = (exponentials * inverse[None, :]).astype(shape.product)
        sums = [
            s * shrink[:, None] + triton.dot(weights, row)
            for s, row in zip(sums, rounded, strict=True)
        ]
        return larger, total * shrink + jnp.sum(exponentials, axis=1), sums

    nothing = [jnp.zeros((shape.group, m), jnp.float32) for _, m in shape.width]
    start = (
        jnp.full(shape.group, FAR_BELOW, jnp.float32),
        jnp.zeros(shape.group, jnp.float32),
        nothing,
    )
    largest_ref[split, tokens], sums_ref[split, tokens], sums = jax.lax.fori_loop(
        0, _blocks(shape, split), block, start
    )
    for (w, m), drawn in zip(shape.width, sums, strict=True):
        drawn_ref[split, tokens, pallas.ds(w, m)] = drawn


def _step(
    rate: float,
    shape: _Shape,
    contexts_ref,
    matrix_ref,
    bias_ref,
    targets_ref,
    weights_ref,
    normaliser_ref,
    stepped_ref,
    stepped_bias_ref,
) -> None:
    """Step each block of rows along its gradient. Words run down and tokens across, so that
    products chain without a transpose.
    """
    split = pallas.program_id(0)

    def loaded(group):
        # without most of the padding
        tokens = shape.group if shape.groups > 1 else shape.tokens + -shape.tokens % 16
        places = [pallas.ds(group * shape.group + start, size) for start, size in parts(tokens)]
        tiles = [[contexts_ref[at, pallas.ds(w, m)] for w, m in shape.width] for at in places]
        return [
            (tile, targets_ref[at], weights_ref[at], normaliser_ref[at])
            for tile, at in zip(tiles, places, strict=True)
        ]

    # all of them, read once
    held = loaded(0) if shape.groups == 1 else None

    def block(index, carry):
        first = split * shape.rows + index * BLOCK
        words = first + jnp.arange(BLOCK)
        inside, rows, inverse, bias = _block(shape, matrix_ref, bias_ref, first)
        rounded = [row.astype(shape.product) for row in rows]

        def add(group, sums):
            d_rows, d_bias = sums
            for tiles, targets, weights, normaliser in held or loaded(group):
                score = _sum(
                    triton.dot(row, tile, trans_b=True)
                    for tile, row in zip(tiles, rounded, strict=True)
                )
                # No share is above 1, but recomputed scores may round differently.
                share = jnp.minimum(
                    score * (inverse * LOG2_E)[:, None]
                    + ((bias * LOG2_E)[:, None] - normaliser[None, :]),
                    0.0,
                )
                d_score = (_exp2(shape, share) - (words[:, None] == targets[None, :])) * weights[
                    None, :
                ]
                d_bias = d_bias + jnp.sum(d_score, axis=1)
                d_product = (d_score * inverse[:, None]).astype(shape.product)
                d_rows = [
                    d + triton.dot(d_product, tile) for d, tile in zip(d_rows, tiles, strict=True)
                ]
            return d_rows, d_bias

        nothing = (
            [jnp.zeros((BLOCK, m), jnp.float32) for _, m in shape.width],
            jnp.zeros(BLOCK, jnp.float32),
        )
        d_rows, d_bias = (
            add(0, nothing) if held else jax.lax.fori_loop(0, shape.groups, add, nothing)
        )
        if shape.unit_norm:
            along = _sum(jnp.sum(row * d, axis=1) for row, d in zip(rows, d_rows, strict=True))
            along = (along * inverse * inverse)[:, None]
            d_rows = [d - row * along for row, d in zip(rows, d_rows, strict=True)]
        for (w, m), row, d in zip(shape.width, rows, d_rows, strict=True):
            place = stepped_ref.at[pallas.ds(first, BLOCK), pallas.ds(w, m)]
            triton.store(place, row - rate * d, mask=jnp.broadcast_to(inside[:, None], row.shape))
        triton.store(
            stepped_bias_ref.at[pallas.ds(first, BLOCK)], bias - rate * d_bias, mask=inside
        )
        return carry

    jax.lax.fori_loop(0, _blocks(shape, split), block, 0)


def _block(shape: _Shape, matrix_ref, bias_ref, first):
    """Read a block of words: which of them exist, their rows, the inverse norms of the rows, their
    biases.
    """
    inside = first + jnp.arange(BLOCK) < shape.vocabulary
    rows = [
        triton.load(
            matrix_ref.at[pallas.ds(first, BLOCK), pallas.ds(w, m)],
            mask=jnp.broadcast_to(inside[:, None], (BLOCK, m)),
            other=0.0,
        )
        for w, m in shape.width
    ]
    bias = triton.load(bias_ref.at[pallas.ds(first, BLOCK)], mask=inside, other=FAR_BELOW)
    inverse = jnp.ones(BLOCK, jnp.float32)
    if shape.unit_norm:
        inverse = jax.lax.rsqrt(_sum(jnp.sum(row * row, axis=1) for row in rows) + 1e-12)
    return inside, rows, inverse, bias


def _blocks(shape: _Shape, split):
    """Count the blocks of this split that have words in them."""
    left = shape.vocabulary - split * shape.rows
    return jnp.clip((left + BLOCK - 1) // BLOCK, 0, shape.rows // BLOCK)


def _sum(terms):
    """Add without the 0 that `sum` begins with: it would keep a product from adding to the one
    before.
    """
    return functools.reduce(operator.add, terms)


def _exp2(shape: _Shape, exponents: jax.Array) -> jax.Array:
    """Return 2^x by a GPU's own instruction, which takes what is below 2⁻¹²⁶ for 0; `jnp.exp2` is
    several.
    """
    if shape.interpret:
        return jnp.exp2(exponents)
    shapes = [jax.ShapeDtypeStruct(exponents.shape, exponents.dtype)]
    given = {"args": [exponents], "constraints": "=f,f", "pack": 1, "result_shape_dtypes": shapes}
    return triton.elementwise_inline_asm("ex2.approx.ftz.f32 $0, $1;", **given)[0]


def _inverse_norms(matrix: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(jnp.sum(jnp.square(matrix), axis=-1) + 1e-12)
