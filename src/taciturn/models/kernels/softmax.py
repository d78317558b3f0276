"""One SGD step of the output layer: gradient of the softmax over all words, and the step along it.

`plain_step` is the definition. `fused_step` is the same in two GPU kernels (Pallas) that never
store the scores of 10,000 words: the first reads the word matrix and finds each token's normaliser
and expected row; the second reads it again, recomputes the scores block by block and writes the
stepped matrix in its place. Three passes over the matrix where automatic differentiation makes
about ten, and none over scores.
"""

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton
from jax.typing import DTypeLike

from taciturn.models.layers import add_rows, dot, prevent_fusion, transpose

# Words that a kernel holds at a time; measured on an H200, like warps, splits and stages.
BLOCK = 64
WARPS = 4
# Tokens that a program holds at a time, where there are more than twice as many: their sums must
# fit into registers.
GROUP = 64
LOG2_E = math.log2(math.e)
# The bias of words that do not exist, and less than any score.
FAR_BELOW = -1e30
# The largest width at which blocks are read two ahead: wider ones would fill the memory of a
# multiprocessor.
MOST_AHEAD = 128
# Bytes of a step's contexts, at most: more were not measured, and many, as on public text, are for
# plain products.
MOST_HELD = 320 * 96 * 2


class Stepped(NamedTuple):
    """An output layer after its step."""

    matrix: jax.Array
    bias: jax.Array
    # The gradient with respect to the contexts, for the layers below.
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
    """Return θ ← θ − η ∇ Σ_t weight_t · ℓ(p_t), where ℓ is as `losses.bound_losses` defines it.

    p_t = softmax(s_t)[target_t] and s_t = (context_t · row_v [/ ‖row_v‖] + bias_v)_v. ℓ is −log p,
    or with a power q (1 − p^q) / q, whose gradient is that of −log p times p^q.
    """
    inverse = _inverse_norms(matrix)[:, None] if unit_norm else 1.0
    rows = matrix * inverse
    # Products in 16 bits are so fast that a copy pays.
    turned = transpose if jnp.dtype(product).itemsize == 2 else jnp.transpose
    # Words run down and tokens across: two of the three products are then between rows as they lie
    # in memory.
    turned_contexts = turned(contexts.astype(product))
    scores = dot(rows, turned_contexts, product) + bias[:, None]
    largest = prevent_fusion(jnp.max(scores, axis=0))
    exponentials = jnp.exp(scores - largest)
    normaliser = jnp.sum(exponentials, axis=0)
    if power:
        of_targets = jnp.take_along_axis(exponentials, targets[None, :], axis=0)[0]
        weights = weights * (of_targets / normaliser) ** power
    # The softmax's share of the gradient comes from the stored exponentials; the targets' share is
    # a few rows.
    factors = (weights / normaliser)[:, None]
    target_weights = weights[:, None]
    d_rows = dot(exponentials, factors * contexts, product)
    d_rows = add_rows(d_rows, targets, -target_weights * contexts)
    d_bias = exponentials @ factors
    d_bias = add_rows(d_bias, targets, -target_weights)[:, 0]
    turned_exponentials = turned(exponentials.astype(product))
    expected = factors * dot(turned_exponentials, rows, product)
    d_contexts = expected - target_weights * rows[targets]
    if unit_norm:
        # Only the part orthogonal to a row moves it: its length does not matter.
        products = jnp.sum(matrix * d_rows, axis=-1, keepdims=True)
        along = prevent_fusion(products * jnp.square(inverse))
        d_rows = inverse * (d_rows - matrix * along)
    return Stepped(
        matrix=matrix - rate * d_rows,
        bias=bias - rate * d_bias,
        d_contexts=d_contexts,
    )


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
    """Return what `plain_step` returns."""
    shape = _choose_shape(contexts, matrix, unit_norm, product, interpret)
    padding = shape.groups * shape.group - shape.tokens
    rounded = jnp.pad(contexts, ((0, padding), (0, 0))).astype(product)
    expected = _expect(shape, rounded, matrix, bias)
    expected_rows = expected.rows()
    wanted_rows = _read_target_rows(matrix, targets, unit_norm)
    normaliser = expected.normaliser()
    if power:
        scores = (jnp.sum(contexts * wanted_rows, axis=-1) + bias[targets]) * LOG2_E
        # Differently rounded, it may be above 0.
        log_probability = jnp.minimum(scores - normaliser[: shape.tokens], 0.0)
        weights = weights * jnp.exp2(power * log_probability)
    d_contexts = weights[:, None] * (expected_rows[: shape.tokens] - wanted_rows)
    run_step = _call(
        partial(_step, rate),
        shape,
        stages=shape.stages,
        grid=(shape.splits,),
        out_shape=[jax.ShapeDtypeStruct(part.shape, jnp.float32) for part in (matrix, bias)],
        # The matrix and the bias are overwritten.
        input_output_aliases={1: 0, 2: 1},
    )
    stepped_matrix, stepped_bias = run_step(
        rounded,
        matrix,
        bias,
        # No word has the id −1.
        jnp.pad(targets, (0, padding), constant_values=-1),
        jnp.pad(weights, (0, padding)),
        normaliser,
    )
    return Stepped(matrix=stepped_matrix, bias=stepped_bias, d_contexts=d_contexts)


def _read_target_rows(matrix: jax.Array, targets: jax.Array, unit_norm: bool) -> jax.Array:
    rows = matrix[targets]
    return rows * (_inverse_norms(matrix[targets])[:, None] if unit_norm else 1.0)


def fits(contexts: jax.Array, product: DTypeLike) -> bool:
    """Return whether the kernels can run them: they work in tiles of 16."""
    is_made_of_tiles = contexts.shape[1] % 16 == 0
    return is_made_of_tiles and contexts.size * jnp.dtype(product).itemsize <= MOST_HELD


class Tile(NamedTuple):
    """Adjacent columns or rows, as many as a power of two."""

    start: int
    size: int


def split_into_tiles(size: int) -> list[Tile]:
    """Split a multiple of 16 into powers of two, which the compiler requires: 96 = 64 + 32."""
    tiles = []
    start = 0
    while start < size:
        left = size - start
        tile_size = min(128, 1 << (left.bit_length() - 1))
        tiles.append(Tile(start=start, size=tile_size))
        start += tile_size
    return tiles


class _Shape(NamedTuple):
    vocabulary: int
    # Shares of the vocabulary, which run side by side, and the rows of one of them.
    splits: int
    rows: int
    tokens: int
    # Tokens, with padding, that are held at a time.
    group: int
    groups: int
    width: list[Tile]
    unit_norm: bool
    product: DTypeLike
    # How far ahead blocks are read.
    stages: int
    interpret: bool


def _choose_shape(contexts, matrix, unit_norm: bool, product: DTypeLike, interpret: bool) -> _Shape:
    vocabulary, width = matrix.shape
    tokens = len(contexts)
    is_many = tokens > 2 * GROUP
    # A power of two, where one product on tensor cores serves them all.
    group = GROUP if is_many else max(16, 1 << (tokens - 1).bit_length())
    splits = 4 if is_many else 5
    return _Shape(
        vocabulary=vocabulary,
        splits=splits,
        rows=BLOCK * math.ceil(vocabulary / (splits * BLOCK)),
        tokens=tokens,
        group=group,
        groups=math.ceil(tokens / group),
        width=split_into_tiles(width),
        unit_norm=unit_norm,
        product=product,
        stages=3 if width <= MOST_AHEAD else 1,
        interpret=interpret,
    )


def _call(
    kernel: Callable[..., None], shape: _Shape, *, stages: int, grid: tuple[int, ...], **outputs
) -> Callable:
    options = None
    if not shape.interpret:
        options = triton.CompilerParams(num_warps=WARPS, num_stages=stages)
    return pallas.pallas_call(
        partial(kernel, shape),
        grid=grid,
        compiler_params=options,
        interpret=shape.interpret,
        **outputs,
    )


class _Block(NamedTuple):
    """A block of words."""

    # Which of them exist.
    inside: jax.Array
    # The tiles of their rows, exact and as products take them.
    rows: list[jax.Array]
    rounded: list[jax.Array]
    # The inverse norms of the rows, or 1 where they are not scaled.
    inverse: jax.Array
    bias: jax.Array


def _read_block(shape: _Shape, matrix_ref, bias_ref, first) -> _Block:
    words = pallas.ds(first, BLOCK)
    inside = first + jnp.arange(BLOCK) < shape.vocabulary
    rows = _read_rows(shape, matrix_ref, words, inside)
    bias = triton.load(bias_ref.at[words], mask=inside, other=FAR_BELOW)
    inverse = jnp.ones(BLOCK, jnp.float32)
    if shape.unit_norm:
        squared_norms = _sum(jnp.sum(row * row, axis=1) for row in rows)
        inverse = jax.lax.rsqrt(squared_norms + 1e-12)
    return _Block(
        inside=inside,
        rows=rows,
        rounded=[row.astype(shape.product) for row in rows],
        inverse=inverse,
        bias=bias,
    )


def _read_rows(shape: _Shape, matrix_ref, words, inside: jax.Array) -> list[jax.Array]:
    rows = []
    for tile in shape.width:
        place = matrix_ref.at[words, _slice(tile)]
        mask = jnp.broadcast_to(inside[:, None], (BLOCK, tile.size))
        rows.append(triton.load(place, mask=mask, other=0.0))
    return rows


class _Expected(NamedTuple):
    """What each token's softmax over all words is made of."""

    # The largest score, to base 2.
    largest: jax.Array
    # Σ_v 2^(score_v − largest).
    total: jax.Array
    # Σ_v 2^(score_v − largest) · row_v.
    sums: jax.Array

    def rows(self) -> jax.Array:
        """Return Σ_v p_v row_v."""
        return self.sums / self.total[:, None]

    def normaliser(self) -> jax.Array:
        """Return log₂ Σ_v exp(s_v)."""
        return self.largest + jnp.log2(self.total)


def _expect(shape: _Shape, rounded: jax.Array, matrix: jax.Array, bias: jax.Array) -> _Expected:
    """Run the first kernel, and put together what it finds in each split."""
    tokens, width = rounded.shape
    share = jax.ShapeDtypeStruct((shape.splits, tokens), jnp.float32)
    share_of_rows = jax.ShapeDtypeStruct((shape.splits, tokens, width), jnp.float32)
    reads_ahead = shape.groups == 1 and jnp.dtype(shape.product).itemsize == 2
    expect = _call(
        _expectations,
        shape,
        stages=shape.stages if reads_ahead else 1,
        grid=(shape.splits, shape.groups),
        out_shape=(share, share, share_of_rows),
    )
    largest_of_splits, totals, sums = expect(rounded, matrix, bias)
    largest = jnp.max(largest_of_splits, axis=0)
    scales = jnp.exp2(largest_of_splits - largest)
    return _Expected(
        largest=largest,
        total=jnp.sum(totals * scales, axis=0),
        sums=jnp.sum(sums * scales[..., None], axis=0),
    )


class _Sums(NamedTuple):
    """What the first kernel carries from block to block: `_Expected`, of the words so far."""

    largest: jax.Array
    total: jax.Array
    rows: list[jax.Array]


def _expectations(
    shape: _Shape, contexts_ref, matrix_ref, bias_ref, largest_ref, totals_ref, sums_ref
) -> None:
    """Write what is expected of each token, over this split's words.

    This is attention, in which the word matrix is both keys and values; done as Dao et al. 2022 do
    it.
    """
    split = pallas.program_id(0)
    tokens = pallas.ds(pallas.program_id(1) * shape.group, shape.group)
    contexts = [contexts_ref[tokens, _slice(tile)] for tile in shape.width]

    def add_block(index, sums: _Sums) -> _Sums:
        first = split * shape.rows + index * BLOCK
        block = _read_block(shape, matrix_ref, bias_ref, first)
        return _add_expectations(shape, contexts, block, sums)

    start = _no_sums(shape)
    sums = jax.lax.fori_loop(0, _count_blocks(shape, split), add_block, start)
    largest_ref[split, tokens] = sums.largest
    totals_ref[split, tokens] = sums.total
    for tile, part in zip(shape.width, sums.rows, strict=True):
        sums_ref[split, tokens, _slice(tile)] = part


def _no_sums(shape: _Shape) -> _Sums:
    rows = [jnp.zeros((shape.group, tile.size), jnp.float32) for tile in shape.width]
    return _Sums(
        largest=jnp.full(shape.group, FAR_BELOW, jnp.float32),
        total=jnp.zeros(shape.group, jnp.float32),
        rows=rows,
    )


def _add_expectations(shape: _Shape, contexts, block: _Block, sums: _Sums) -> _Sums:
    """Return the sums with those over one more block of words. Tokens run down, words across."""
    scores = _score_block(contexts, block)
    largest = jnp.maximum(sums.largest, jnp.max(scores, axis=1))
    shrink = _exp2(shape, sums.largest - largest)
    exponentials = _exp2(shape, scores - largest[:, None])
    weights = (exponentials * block.inverse[None, :]).astype(shape.product)
    rows = [
        part * shrink[:, None] + triton.dot(weights, row)
        for part, row in zip(sums.rows, block.rounded, strict=True)
    ]
    return _Sums(
        largest=largest,
        total=sums.total * shrink + jnp.sum(exponentials, axis=1),
        rows=rows,
    )


def _score_block(contexts: list[jax.Array], block: _Block) -> jax.Array:
    """Return the scores of a block's words, to base 2."""
    products = _sum(
        triton.dot(tile, row, trans_b=True)
        for tile, row in zip(contexts, block.rounded, strict=True)
    )
    scaled = products * (block.inverse * LOG2_E)[None, :]
    return scaled + (block.bias * LOG2_E)[None, :]


class _Tokens(NamedTuple):
    """Some tokens, as the second kernel holds them."""

    # The tiles of their contexts.
    contexts: list[jax.Array]
    targets: jax.Array
    weights: jax.Array
    normaliser: jax.Array


class _Gradient(NamedTuple):
    """The gradient of a block of words: of the tiles of its rows, and of its biases."""

    rows: list[jax.Array]
    bias: jax.Array


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
    kernel = _StepKernel(
        rate=rate,
        shape=shape,
        contexts_ref=contexts_ref,
        matrix_ref=matrix_ref,
        bias_ref=bias_ref,
        targets_ref=targets_ref,
        weights_ref=weights_ref,
        normaliser_ref=normaliser_ref,
        stepped_ref=stepped_ref,
        stepped_bias_ref=stepped_bias_ref,
    )
    kernel.run()


@dataclass(frozen=True, kw_only=True, eq=False)
class _StepKernel:
    """Step each block of rows along its gradient.

    Words run down and tokens across, so that products chain without a transpose.
    """

    rate: float
    shape: _Shape
    contexts_ref: Any
    matrix_ref: Any
    bias_ref: Any
    targets_ref: Any
    weights_ref: Any
    normaliser_ref: Any
    stepped_ref: Any
    stepped_bias_ref: Any

    def run(self) -> None:
        """Step all blocks of this program's split."""
        shape = self.shape
        split = pallas.program_id(0)
        # All of them, read once; where there are several groups, each is read for every block.
        held = self._read_tokens(0) if shape.groups == 1 else None

        def step_block(index, carry):
            self._step_block(split * shape.rows + index * BLOCK, held)
            return carry

        jax.lax.fori_loop(0, _count_blocks(shape, split), step_block, 0)

    def _step_block(self, first, held: list[_Tokens] | None) -> None:
        words = first + jnp.arange(BLOCK)
        block = _read_block(self.shape, self.matrix_ref, self.bias_ref, first)

        def add_group(group, gradient: _Gradient) -> _Gradient:
            for tokens in held or self._read_tokens(group):
                gradient = _add_gradient(self.shape, block, words, tokens, gradient)
            return gradient

        zeros = _Gradient(
            rows=[jnp.zeros((BLOCK, tile.size), jnp.float32) for tile in self.shape.width],
            bias=jnp.zeros(BLOCK, jnp.float32),
        )
        if held:
            gradient = add_group(0, zeros)
        else:
            gradient = jax.lax.fori_loop(0, self.shape.groups, add_group, zeros)
        if self.shape.unit_norm:
            gradient = _remove_along_rows(block, gradient)
        self._write_block(first, block, gradient)

    def _read_tokens(self, group) -> list[_Tokens]:
        """Read the tokens of a group, without most of the padding."""
        shape = self.shape
        count = shape.group if shape.groups > 1 else shape.tokens + -shape.tokens % 16
        places = [
            pallas.ds(group * shape.group + tile.start, tile.size)
            for tile in split_into_tiles(count)
        ]
        contexts = []
        for place in places:
            contexts.append([self.contexts_ref[place, _slice(tile)] for tile in shape.width])
        return [
            _Tokens(
                contexts=tiles,
                targets=self.targets_ref[place],
                weights=self.weights_ref[place],
                normaliser=self.normaliser_ref[place],
            )
            for place, tiles in zip(places, contexts, strict=True)
        ]

    def _write_block(self, first, block: _Block, gradient: _Gradient) -> None:
        """Write the stepped rows and biases of the words that exist."""
        words = pallas.ds(first, BLOCK)
        self._write_rows(words, block, gradient)
        stepped_bias = block.bias - self.rate * gradient.bias
        triton.store(self.stepped_bias_ref.at[words], stepped_bias, mask=block.inside)

    def _write_rows(self, words, block: _Block, gradient: _Gradient) -> None:
        for tile, row, d_row in zip(self.shape.width, block.rows, gradient.rows, strict=True):
            place = self.stepped_ref.at[words, _slice(tile)]
            stepped_row = row - self.rate * d_row
            mask = jnp.broadcast_to(block.inside[:, None], row.shape)
            triton.store(place, stepped_row, mask=mask)


def _add_gradient(
    shape: _Shape, block: _Block, words: jax.Array, tokens: _Tokens, gradient: _Gradient
) -> _Gradient:
    """Return a block's gradient with that of some more tokens."""
    shares = _exp2(shape, _log_shares(block, tokens))
    is_target = words[:, None] == tokens.targets[None, :]
    d_shares = shares - is_target
    d_scores = d_shares * tokens.weights[None, :]
    d_bias = gradient.bias + jnp.sum(d_scores, axis=1)
    d_products = (d_scores * block.inverse[:, None]).astype(shape.product)
    d_rows = [
        d_row + triton.dot(d_products, tile)
        for d_row, tile in zip(gradient.rows, tokens.contexts, strict=True)
    ]
    return _Gradient(rows=d_rows, bias=d_bias)


def _log_shares(block: _Block, tokens: _Tokens) -> jax.Array:
    """Return the share that each word of a block has of each token's softmax, as a log₂."""
    products = _sum(
        triton.dot(row, tile, trans_b=True)
        for tile, row in zip(tokens.contexts, block.rounded, strict=True)
    )
    scaled = products * (block.inverse * LOG2_E)[:, None]
    offsets = (block.bias * LOG2_E)[:, None] - tokens.normaliser[None, :]
    # No share is above 1, but recomputed scores may round differently.
    return jnp.minimum(scaled + offsets, 0.0)


def _remove_along_rows(block: _Block, gradient: _Gradient) -> _Gradient:
    """Return the gradient without the part that would only change the rows' lengths."""
    products = _sum(
        jnp.sum(row * d_row, axis=1) for row, d_row in zip(block.rows, gradient.rows, strict=True)
    )
    along = (products * block.inverse * block.inverse)[:, None]
    d_rows = [d_row - row * along for row, d_row in zip(block.rows, gradient.rows, strict=True)]
    return gradient._replace(rows=d_rows)


def _slice(tile: Tile):
    return pallas.ds(tile.start, tile.size)


def _count_blocks(shape: _Shape, split):
    """Count the blocks of this split that have words in them."""
    left = shape.vocabulary - split * shape.rows
    return jnp.clip((left + BLOCK - 1) // BLOCK, 0, shape.rows // BLOCK)


def _sum(terms: Iterable[jax.Array]) -> jax.Array:
    """Add without the 0 that `sum` begins with.

    It would keep a product from adding to the one before.
    """
    return reduce(operator.add, terms)


def _exp2(shape: _Shape, exponents: jax.Array) -> jax.Array:
    """Return 2^x by a GPU's own instruction, which takes what is below 2⁻¹²⁶ for 0.

    `jnp.exp2` is several instructions.
    """
    if shape.interpret:
        return jnp.exp2(exponents)
    result = jax.ShapeDtypeStruct(exponents.shape, exponents.dtype)
    results = triton.elementwise_inline_asm(
        "ex2.approx.ftz.f32 $0, $1;",
        args=[exponents],
        constraints="=f,f",
        pack=1,
        result_shape_dtypes=[result],
    )
    return results[0]


def _inverse_norms(matrix: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(jnp.sum(jnp.square(matrix), axis=-1) + 1e-12)
