"""A recurrent layer in two GPU kernels (Pallas), which run a user's rows over all of time.

One runs forwards, one backwards. `recurrence.scan_forwards` and `scan_backwards` are the
definition. Compiled by XLA, a time step is half a dozen kernels, each of which runs for all users
of a chunk and waits for the one before. Here one program stays with one user and reads that user's
matrices again at every time step: they are too large to stay in a multiprocessor, so reading them
is the cost, and everything else is done meanwhile.

Units are processed in tiles. What one time step leaves for the next (what was fed back, the carry)
passes through memory, behind a barrier.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton
from jax.typing import DTypeLike

from taciturn.models.kernels.softmax import split_into_tiles
from taciturn.models.layers import flatten_steps

# Rows of a batch, at most: the smallest product on tensor cores.
ROWS = 16
# Units that a program holds at a time; measured on an H200, like warps and stages.
TILE = 32
# The width of what is fed back, at most: more does not fit into registers, and was not measured.
MOST_WIDE = 256


class Forwards(NamedTuple):
    """What a layer gives forwards over time: for each step, [length, batch, …]."""

    fed_back: jax.Array
    # The recurrent share of the gates.
    r: jax.Array
    # Before each step.
    carries: jax.Array
    # What was projected, rounded as for products; None where nothing is.
    outputs: Any


class Backwards(NamedTuple):
    """What a layer gives backwards over time: gradients for each step, [length, batch, …]."""

    d_x: jax.Array
    # Rounded as products with it are.
    d_r: jax.Array
    d_fed_back: jax.Array


class _Shape(NamedTuple):
    length: int
    batch: int
    units: int
    # Of what is fed back.
    width: int
    gates: int
    product: DTypeLike
    projected: bool
    interpret: bool

    @property
    def tiles(self) -> int:
        """Return the number of tiles of units."""
        return math.ceil(self.units / TILE)

    @property
    def padding(self) -> int:
        """Return the number of units that the last tile has too many."""
        return self.tiles * TILE - self.units


class _Columns(NamedTuple):
    """Adjacent columns of an array."""

    start: Any
    size: int
    # Which of them exist.
    inside: Any = True


class _Matrices(NamedTuple):
    """References to the matrices, which have the layout of `_lay_out`."""

    recurrent: Any
    projection: Any


def fits(x: jax.Array, recurrent: jax.Array, product: DTypeLike) -> bool:
    """Return whether the kernels can run a layer.

    They take few rows, as a user's batches have, and products in 16 bits.
    """
    width = recurrent.shape[0]
    has_few_rows = x.shape[1] <= ROWS
    is_made_of_tiles = width % 16 == 0 and width <= MOST_WIDE
    return has_few_rows and is_made_of_tiles and jnp.dtype(product).itemsize == 2


def forwards(
    cell: Any,
    product: DTypeLike,
    x: jax.Array,
    recurrent: jax.Array,
    projection: jax.Array | None,
    interpret: bool = False,
) -> Forwards:
    """Return what `recurrence.scan_forwards` returns.

    Only the carry before the first step is not written.
    """
    shape = _shape(x, recurrent, projection, product, interpret)
    rows = shape.length * shape.batch
    out_shape = [
        _array(rows, shape.width),
        _array(rows, x.shape[-1]),
        _array(rows, shape.units),
    ]
    if shape.projected:
        out_shape.append(_array(rows, shape.units, product))
    run = _call(
        _forwards,
        cell,
        shape,
        warps=4,
        stages=3 if shape.projected else 2,
        out_shape=out_shape,
    )
    arrays = run(flatten_steps(x), *_lay_out(shape, recurrent, projection))
    fed_back, r, carries, *outputs = [array.reshape(*x.shape[:2], -1) for array in arrays]
    return Forwards(
        fed_back=fed_back, r=r, carries=carries, outputs=outputs[0] if outputs else None
    )


def backwards(
    cell: Any,
    product: DTypeLike,
    gradient,
    x,
    r,
    carries,
    recurrent,
    projection,
    interpret: bool = False,
) -> Backwards:
    """Return what `recurrence.scan_backwards` returns."""
    shape = _shape(x, recurrent, projection, product, interpret)
    rows = shape.length * shape.batch
    out_shape = [
        _array(rows, x.shape[-1]),
        _array(rows, x.shape[-1], product),
        _array(rows, shape.width),
        _array(2 * ROWS, shape.units),
    ]
    run = _call(
        _backwards,
        cell,
        shape,
        warps=4 if shape.projected else 8,
        stages=3,
        out_shape=out_shape,
    )
    inputs = [flatten_steps(part) for part in (gradient, x, r, carries)]
    # The last array only serves to hand a carry's gradient from one step to the next.
    *gradients, _ = run(*inputs, *_lay_out(shape, recurrent, projection))
    d_x, d_r, d_fed_back = [array.reshape(*x.shape[:2], -1) for array in gradients]
    return Backwards(d_x=d_x, d_r=d_r, d_fed_back=d_fed_back)


def _forwards(cell: Any, shape: _Shape, x_ref, *refs) -> None:
    matrices, outputs = _split(shape, refs)
    fed_back_ref, r_ref, carries_ref, *outputs_ref = outputs
    kernel = _ForwardsKernel(
        cell=cell,
        shape=shape,
        matrices=matrices,
        x_ref=x_ref,
        fed_back_ref=fed_back_ref,
        r_ref=r_ref,
        carries_ref=carries_ref,
        outputs_ref=outputs_ref[0] if outputs_ref else None,
    )
    jax.lax.fori_loop(0, shape.length, kernel.take_step, _zeros(shape))


@dataclass(frozen=True, kw_only=True, eq=False)
class _ForwardsKernel:
    """Run time steps in order.

    Writes what is fed back, the recurrent share of the gates, and the carry before each step.
    """

    cell: Any
    shape: _Shape
    matrices: _Matrices
    x_ref: Any
    fed_back_ref: Any
    r_ref: Any
    carries_ref: Any
    # None where nothing is projected.
    outputs_ref: Any

    def take_step(self, t, fed_back: list[jax.Array]) -> list[jax.Array]:
        """Take one step; return what it feeds back.

        Args:
            t: the step.
            fed_back: by the step before, tile by tile.
        """
        shape = self.shape
        fed_back = [part.astype(shape.product) for part in fed_back]
        run_tile = partial(self._run_tile, t, fed_back)
        start = _zeros(shape) if shape.projected else []
        sums = jax.lax.fori_loop(0, shape.tiles, run_tile, start)
        columns_of_width = _columns_of_width(shape)
        if shape.projected:
            _write_each(shape, self.fed_back_ref, t, sums, columns_of_width)
        _wait(shape)
        if shape.projected:
            return sums
        return _read_each(shape, self.fed_back_ref, t, columns_of_width)

    def _run_tile(self, t, fed_back, index, sums):
        """Run the cell for one tile of units; add its share of the projection to the sums."""
        shape = self.shape
        units = _columns_of_units(shape, index)
        gates = _columns_of_gates(shape, index)
        r = self._recur(fed_back, index)
        x = _read_each(shape, self.x_ref, t, gates)
        carry = _read(shape, self.carries_ref, t, units, t > 0)
        output, next_carry = self.cell(x, r, carry)
        _write_each(shape, self.r_ref, t, r, gates)
        _write(shape, self.carries_ref, t + 1, next_carry, units, t + 1 < shape.length)
        if not shape.projected:
            _write(shape, self.fed_back_ref, t, output, units)
            return sums
        rounded = _round(shape, index, output)
        _write(shape, self.outputs_ref, t, rounded, units)
        weights = _projection(shape, self.matrices, index)
        return _add_products(sums, rounded, weights)

    def _recur(self, fed_back: list[jax.Array], index) -> list[Any]:
        """Return the recurrent share of each gate of a tile."""
        shares = []
        for gate in range(self.shape.gates):
            weights = _recurrent(self.shape, self.matrices, index, gate)
            shares.append(sum(map(triton.dot, fed_back, weights)))
        return shares


def _backwards(cell: Any, shape: _Shape, gradient_ref, x_ref, r_ref, carries_ref, *refs) -> None:
    matrices, outputs = _split(shape, refs)
    d_x_ref, d_r_ref, d_fed_back_ref, d_carry_ref = outputs
    kernel = _BackwardsKernel(
        cell=cell,
        shape=shape,
        matrices=matrices,
        gradient_ref=gradient_ref,
        x_ref=x_ref,
        r_ref=r_ref,
        carries_ref=carries_ref,
        d_x_ref=d_x_ref,
        d_r_ref=d_r_ref,
        d_fed_back_ref=d_fed_back_ref,
        d_carry_ref=d_carry_ref,
    )
    jax.lax.fori_loop(0, shape.length, kernel.take_step, _zeros(shape))


@dataclass(frozen=True, kw_only=True, eq=False)
class _BackwardsKernel:
    """Run time steps in reverse.

    Writes the gradients of the gates, for products over all of time afterwards.
    """

    cell: Any
    shape: _Shape
    matrices: _Matrices
    gradient_ref: Any
    x_ref: Any
    r_ref: Any
    carries_ref: Any
    d_x_ref: Any
    d_r_ref: Any
    d_fed_back_ref: Any
    d_carry_ref: Any

    def take_step(self, done, d_before: list[jax.Array]) -> list[jax.Array]:
        """Take one step back; return its share of the gradient of what the step before fed back.

        Args:
            done: the number of steps that were taken back already.
            d_before: the share of the step taken back last, tile by tile.
        """
        shape = self.shape
        t = shape.length - 1 - done
        columns_of_width = _columns_of_width(shape)
        d_fed_back = []
        for part, columns in zip(d_before, columns_of_width, strict=True):
            gradient = _read(shape, self.gradient_ref, t, columns)
            d_fed_back.append(part + gradient)
        _write_each(shape, self.d_fed_back_ref, t, d_fed_back, columns_of_width)
        d_fed_back = [part.astype(shape.product) for part in d_fed_back]
        _wait(shape)
        run_tile = partial(self._run_tile, done, t, d_fed_back)
        return jax.lax.fori_loop(0, shape.tiles, run_tile, _zeros(shape))

    def _run_tile(self, done, t, d_fed_back, index, sums):
        """Run the cell back for one tile of units; add its share of the gradient to the sums."""
        shape = self.shape
        units = _columns_of_units(shape, index)
        gates = _columns_of_gates(shape, index)
        d_output = self._pull_back_projection(t, d_fed_back, index, units)
        x = _read_each(shape, self.x_ref, t, gates)
        r = _read_each(shape, self.r_ref, t, gates)
        carry = _read(shape, self.carries_ref, t, units, t > 0)
        _, pull_back = jax.vjp(self.cell, x, r, carry)
        # The gradients of carries take turns in two places: no thread may read one where another
        # has written the next.
        place = jax.lax.rem(t + 1, 2)
        d_next_carry = _read(shape, self.d_carry_ref, place, units, done > 0)
        d_x, d_r, d_carry = pull_back((d_output, d_next_carry))
        _write(shape, self.d_carry_ref, jax.lax.rem(t, 2), d_carry, units)
        for number, gate in enumerate(gates):
            _write(shape, self.d_x_ref, t, d_x[number], gate)
            rounded = _round(shape, index, d_r[number])
            _write(shape, self.d_r_ref, t, rounded, gate)
            weights = _recurrent(shape, self.matrices, index, number)
            sums = _add_products(sums, rounded, weights, transposed=True)
        return sums

    def _pull_back_projection(self, t, d_fed_back, index, units: _Columns) -> Any:
        """Return the gradient of a tile's outputs."""
        shape = self.shape
        if not shape.projected:
            return _read(shape, self.d_fed_back_ref, t, units)
        weights = _projection(shape, self.matrices, index)
        pairs = zip(d_fed_back, weights, strict=True)
        return sum(triton.dot(d, part, trans_b=True) for d, part in pairs)


def _shape(x, recurrent, projection, product, interpret: bool) -> _Shape:
    length, batch, all_gates = x.shape
    width = len(recurrent)
    units = width if projection is None else len(projection)
    return _Shape(
        length=length,
        batch=batch,
        units=units,
        width=width,
        gates=all_gates // units,
        product=product,
        projected=projection is not None,
        interpret=interpret,
    )


def _call(
    kernel: Callable[..., None],
    cell: Any,
    shape: _Shape,
    *,
    warps: int,
    stages: int,
    out_shape: list[jax.ShapeDtypeStruct],
):
    options = None
    if not shape.interpret:
        options = triton.CompilerParams(num_warps=warps, num_stages=stages)
    return pallas.pallas_call(
        partial(kernel, cell, shape),
        grid=(1,),
        out_shape=out_shape,
        compiler_params=options,
        interpret=shape.interpret,
    )


def _array(rows: int, columns: int, dtype: DTypeLike = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, columns), dtype)


def _lay_out(shape: _Shape, recurrent: jax.Array, projection: jax.Array | None) -> list[jax.Array]:
    """Return the matrices as the programs read them.

    They are rounded, and the columns of one tile of units are adjacent in memory.
    """
    matrices = [_lay_out_recurrent(shape, recurrent)]
    if projection is not None:
        rounded = projection.astype(shape.product)
        matrices.append(jnp.pad(rounded, ((0, shape.padding), (0, 0))))
    return matrices


def _lay_out_recurrent(shape: _Shape, recurrent: jax.Array) -> jax.Array:
    rounded = recurrent.astype(shape.product)
    by_gate = rounded.reshape(shape.width, shape.gates, shape.units)
    by_gate = jnp.pad(by_gate, ((0, 0), (0, 0), (0, shape.padding)))
    by_tile = by_gate.reshape(shape.width, shape.gates, shape.tiles, TILE)
    by_tile = by_tile.transpose(2, 1, 0, 3)
    return by_tile.reshape(-1, TILE)


def _split(shape: _Shape, refs: tuple) -> tuple[_Matrices, tuple]:
    """Split references into the matrices that are read, and what is written."""
    if shape.projected:
        recurrent, projection, *outputs = refs
    else:
        recurrent, *outputs = refs
        projection = None
    return _Matrices(recurrent=recurrent, projection=projection), tuple(outputs)


def _recurrent(shape: _Shape, matrices: _Matrices, index, gate: int) -> list[jax.Array]:
    """Read the recurrent matrix of a tile's gate, in the tiles of what is fed back."""
    first = (index * shape.gates + gate) * shape.width
    return [
        matrices.recurrent[pallas.ds(first + tile.start, tile.size), :]
        for tile in split_into_tiles(shape.width)
    ]


def _projection(shape: _Shape, matrices: _Matrices, index) -> list[jax.Array]:
    """Read the projection of a tile of units, in the tiles of what is fed back."""
    return [
        matrices.projection[pallas.ds(index * TILE, TILE), pallas.ds(tile.start, tile.size)]
        for tile in split_into_tiles(shape.width)
    ]


def _columns_of_width(shape: _Shape) -> list[_Columns]:
    """Return the columns of what is fed back, tile by tile."""
    return [_Columns(start=tile.start, size=tile.size) for tile in split_into_tiles(shape.width)]


def _columns_of_units(shape: _Shape, index) -> _Columns:
    """Return the columns of a tile of units."""
    start = index * TILE
    inside = index * TILE + jnp.arange(TILE) < shape.units
    return _Columns(start=start, size=TILE, inside=inside)


def _columns_of_gates(shape: _Shape, index) -> list[_Columns]:
    """Return the columns of a tile of units for each gate; gates are adjacent."""
    units = _columns_of_units(shape, index)
    return [units._replace(start=gate * shape.units + units.start) for gate in range(shape.gates)]


def _add_products(
    sums: list[jax.Array], values: jax.Array, weights: list[jax.Array], *, transposed: bool = False
) -> list[jax.Array]:
    """Return the sums with values @ weights added, tile by tile."""
    return [
        total + triton.dot(values, part, trans_b=transposed)
        for total, part in zip(sums, weights, strict=True)
    ]


def _round(shape: _Shape, index, values: jax.Array) -> jax.Array:
    """Round for a product, with zeros for units that do not exist, whatever they hold."""
    inside = _columns_of_units(shape, index).inside
    return jnp.where(inside[None, :], values, 0.0).astype(shape.product)


def _zeros(shape: _Shape) -> list[jax.Array]:
    return [jnp.zeros((ROWS, tile.size), jnp.float32) for tile in split_into_tiles(shape.width)]


def _read(shape: _Shape, ref, t, columns: _Columns, when=True) -> jax.Array:
    """Read rows of a time step, with zeros for those beyond the batch."""
    place, mask = _place(shape, ref, t, columns, when)
    return triton.load(place, mask=mask, other=0.0)


def _write(shape: _Shape, ref, t, values: jax.Array, columns: _Columns, when=True) -> None:
    """Write rows of a time step, except those beyond the batch."""
    place, mask = _place(shape, ref, t, columns, when)
    triton.store(place, values, mask=mask)


def _read_each(shape: _Shape, ref, t, places: list[_Columns]) -> list[jax.Array]:
    return [_read(shape, ref, t, columns) for columns in places]


def _write_each(shape: _Shape, ref, t, parts: list[Any], places: list[_Columns]) -> None:
    for part, columns in zip(parts, places, strict=True):
        _write(shape, ref, t, part, columns)


def _place(shape: _Shape, ref, t, columns: _Columns, when):
    """Return where the rows of a time step are, and which of their values exist."""
    is_row = (jnp.arange(ROWS) < shape.batch)[:, None]
    is_column = jnp.broadcast_to(columns.inside, columns.size)[None, :]
    mask = is_row & is_column & when
    rows = pallas.ds(t * shape.batch, ROWS)
    return ref.at[rows, pallas.ds(columns.start, columns.size)], mask


def _wait(shape: _Shape) -> None:
    """Wait until all threads of a program have written what the next time step reads."""
    if not shape.interpret:
        triton.debug_barrier()
