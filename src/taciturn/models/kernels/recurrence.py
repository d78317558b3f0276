"""A recurrent layer in two GPU kernels (Pallas): one runs a user's rows forwards over all of time,
one backwards.

`recurrence.scan_forwards` and `scan_backwards` are the definition. Compiled by XLA, a time step is
half a dozen kernels, each of which runs for all users of a chunk and waits for the one before. Here
one program stays with one user and reads that user's matrices again at every
time step: they are too large to stay in a multiprocessor, so reading them is the cost, and
everything else is done meanwhile.

Units are processed in tiles. What one time step leaves for the next (what was fed back, the carry)
passes through memory, behind a barrier.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton
from jax.typing import DTypeLike

from taciturn.models.kernels.softmax import parts
from taciturn.models.layers import flat

# of a batch, at most: the smallest product on tensor cores
ROWS = 16
# units that a program holds at a time; measured on an H200, like warps and stages
TILE = 32
# of what is fed back: more does not fit into registers, and was not measured
MOST_WIDE = 256

# where they begin, how many, and which of them exist
Columns = tuple[Any, int, Any]


class _Shape(NamedTuple):
    length: int
    batch: int
    units: int
    # of what is fed back
    width: int
    gates: int
    product: DTypeLike
    projected: bool
    interpret: bool

    @property
    def tiles(self) -> int:
        return math.ceil(self.units / TILE)


def fits(x: jax.Array, recurrent: jax.Array, product: DTypeLike) -> bool:
    """Return whether the kernels can run a layer: few rows, as a user's batches have, and products
    in 16 bits.
    """
    width = recurrent.shape[0]
    return (
        x.shape[1] <= ROWS
        and width % 16 == 0
        and width <= MOST_WIDE
        and jnp.dtype(product).itemsize == 2
    )


def forwards(
    cell: Any,
    product: DTypeLike,
    x: jax.Array,
    recurrent: jax.Array,
    projection: jax.Array | None,
    interpret: bool = False,
):
    """Return what `recurrence.scan_forwards` returns, except the carry before the first step, which
    is not written.
    """
    shape = _shape(x, recurrent, projection, product, interpret)
    rows = shape.length * shape.batch
    out = [_array(rows, shape.width), _array(rows, x.shape[-1]), _array(rows, shape.units)]
    out += [_array(rows, shape.units, product)] if shape.projected else []
    given = [flat(x), *_tiled(shape, recurrent, projection)]
    fed_back, r, carries, *outputs = _call(
        _forwards, cell, shape, 4, 3 if shape.projected else 2, out
    )(*given)
    return tuple(
        None if part is None else part.reshape(*x.shape[:2], -1)
        for part in (fed_back, r, carries, *(outputs or [None]))
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
):
    """Return what `recurrence.scan_backwards` returns."""
    shape = _shape(x, recurrent, projection, product, interpret)
    rows = shape.length * shape.batch
    out = [
        _array(rows, x.shape[-1]),
        _array(rows, x.shape[-1], product),
        _array(rows, shape.width),
        _array(2 * ROWS, shape.units),
    ]
    given = [flat(part) for part in (gradient, x, r, carries)] + _tiled(
        shape, recurrent, projection
    )
    *found, _ = _call(_backwards, cell, shape, 4 if shape.projected else 8, 3, out)(*given)
    return tuple(part.reshape(*x.shape[:2], -1) for part in found)


def _forwards(cell: Any, shape: _Shape, x_ref, *refs) -> None:
    """Run time steps in order. Write what is fed back, the recurrent share of the gates, and the
    carry before each step.
    """
    matrices, (fed_back_ref, r_ref, carries_ref, *outputs_ref) = _split(shape, refs)

    def step(t, before):
        before = [part.astype(shape.product) for part in before]

        def tile(index, sums):
            units, gates = _units(shape, index), _gates(shape, index)
            r: list[Any] = [
                sum(map(triton.dot, before, _recurrent(shape, matrices, index, gate)))
                for gate in range(shape.gates)
            ]
            x = [_read(shape, x_ref, t, *gate) for gate in gates]
            output, carry = cell(x, r, _read(shape, carries_ref, t, *units, t > 0))
            for gate, part in zip(gates, r, strict=True):
                _write(shape, r_ref, t, part, *gate)
            _write(shape, carries_ref, t + 1, carry, *units, t + 1 < shape.length)
            if not shape.projected:
                _write(shape, fed_back_ref, t, output, *units)
                return sums
            rounded = _rounded(shape, index, output)
            _write(shape, outputs_ref[0], t, rounded, *units)
            return [
                s + triton.dot(rounded, p)
                for s, p in zip(sums, _projection(shape, matrices, index), strict=True)
            ]

        sums = jax.lax.fori_loop(0, shape.tiles, tile, _zeros(shape) if shape.projected else [])
        for part, (k, m) in zip(sums, parts(shape.width), strict=False):
            _write(shape, fed_back_ref, t, part, k, m)
        _wait(shape)
        return sums or [_read(shape, fed_back_ref, t, k, m) for k, m in parts(shape.width)]

    jax.lax.fori_loop(0, shape.length, step, _zeros(shape))


def _backwards(cell: Any, shape: _Shape, gradient_ref, x_ref, r_ref, carries_ref, *refs) -> None:
    """Run time steps in reverse. Write the gradients of the gates, for products over all of time
    afterwards.
    """
    matrices, (d_x_ref, d_r_ref, d_fed_back_ref, d_carry_ref) = _split(shape, refs)

    def step(done, d_before):
        t = shape.length - 1 - done
        d_fed_back = [
            d + _read(shape, gradient_ref, t, k, m)
            for d, (k, m) in zip(d_before, parts(shape.width), strict=True)
        ]
        for part, (k, m) in zip(d_fed_back, parts(shape.width), strict=True):
            _write(shape, d_fed_back_ref, t, part, k, m)
        d_fed_back = [part.astype(shape.product) for part in d_fed_back]
        _wait(shape)

        def tile(index, sums):
            units, gates = _units(shape, index), _gates(shape, index)
            if shape.projected:
                pairs = zip(d_fed_back, _projection(shape, matrices, index), strict=True)
                d_output = sum(triton.dot(d, p, trans_b=True) for d, p in pairs)
            else:
                d_output = _read(shape, d_fed_back_ref, t, *units)
            x, r = ([_read(shape, ref, t, *gate) for gate in gates] for ref in (x_ref, r_ref))
            _, pull_back = jax.vjp(cell, x, r, _read(shape, carries_ref, t, *units, t > 0))
            # Alternating: no thread may read a carry's gradient where another has written the next
            # one.
            d_x, d_r, d_carry = pull_back(
                (d_output, _read(shape, d_carry_ref, jax.lax.rem(t + 1, 2), *units, done > 0))
            )
            _write(shape, d_carry_ref, jax.lax.rem(t, 2), d_carry, *units)
            for number, gate in enumerate(gates):
                _write(shape, d_x_ref, t, d_x[number], *gate)
                rounded = _rounded(shape, index, d_r[number])
                _write(shape, d_r_ref, t, rounded, *gate)
                weights = _recurrent(shape, matrices, index, number)
                sums = [
                    s + triton.dot(rounded, w, trans_b=True)
                    for s, w in zip(sums, weights, strict=True)
                ]
            return sums

        return jax.lax.fori_loop(0, shape.tiles, tile, _zeros(shape))

    jax.lax.fori_loop(0, shape.length, step, _zeros(shape))


def _shape(x, recurrent, projection, product, interpret: bool) -> _Shape:
    (length, batch, all_gates), width = x.shape, len(recurrent)
    units = width if projection is None else len(projection)
    return _Shape(
        length, batch, units, width, all_gates // units, product, projection is not None, interpret
    )


def _call(
    kernel: Callable[..., None],
    cell: Any,
    shape: _Shape,
    warps: int,
    stages: int,
    out_shape: list[jax.ShapeDtypeStruct],
):
    options = None if shape.interpret else triton.CompilerParams(num_warps=warps, num_stages=stages)
    return pallas.pallas_call(
        functools.partial(kernel, cell, shape),
        grid=(1,),
        out_shape=out_shape,
        compiler_params=options,
        interpret=shape.interpret,
    )


def _array(rows: int, columns: int, dtype: DTypeLike = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, columns), dtype)


def _tiled(shape: _Shape, recurrent: jax.Array, projection: jax.Array | None) -> list[jax.Array]:
    """Return the matrices as the programs read them: rounded, and the columns of one tile of units
    adjacent in memory.
    """
    padding = shape.tiles * TILE - shape.units
    by_gate = jnp.pad(
        recurrent.astype(shape.product).reshape(shape.width, shape.gates, shape.units),
        ((0, 0), (0, 0), (0, padding)),
    )
    by_tile = (
        by_gate.reshape(shape.width, shape.gates, shape.tiles, TILE)
        .transpose(2, 1, 0, 3)
        .reshape(-1, TILE)
    )
    return (
        [by_tile]
        if projection is None
        else [by_tile, jnp.pad(projection.astype(shape.product), ((0, padding), (0, 0)))]
    )


def _split(shape: _Shape, refs: tuple) -> tuple[tuple, tuple]:
    """Split references into the matrices that are read, and what is written."""
    return refs[: 1 + shape.projected], refs[1 + shape.projected :]


def _recurrent(shape: _Shape, matrices: tuple, index, gate: int) -> list[jax.Array]:
    first = (index * shape.gates + gate) * shape.width
    return [matrices[0][pallas.ds(first + k, m), :] for k, m in parts(shape.width)]


def _projection(shape: _Shape, matrices: tuple, index) -> list[jax.Array]:
    return [
        matrices[1][pallas.ds(index * TILE, TILE), pallas.ds(k, m)] for k, m in parts(shape.width)
    ]


def _units(shape: _Shape, index) -> Columns:
    """Return the columns of a tile."""
    return index * TILE, TILE, index * TILE + jnp.arange(TILE) < shape.units


def _gates(shape: _Shape, index) -> list[Columns]:
    """Return the same for each gate; gates are adjacent."""
    start, columns, inside = _units(shape, index)
    return [(gate * shape.units + start, columns, inside) for gate in range(shape.gates)]


def _rounded(shape: _Shape, index, values: jax.Array) -> jax.Array:
    """Round for a product, with zeros for units that do not exist, whatever they hold."""
    return jnp.where(_units(shape, index)[2][None, :], values, 0.0).astype(shape.product)


def _zeros(shape: _Shape) -> list[jax.Array]:
    return [jnp.zeros((ROWS, m), jnp.float32) for _, m in parts(shape.width)]


def _read(shape: _Shape, ref, t, start, columns: int, inside=True, when=True) -> jax.Array:
    """Read rows of a time step, with zeros for those beyond the batch."""
    place, mask = _place(shape, ref, t, start, columns, inside, when)
    return triton.load(place, mask=mask, other=0.0)


def _write(
    shape: _Shape, ref, t, values: jax.Array, start, columns: int, inside=True, when=True
) -> None:
    place, mask = _place(shape, ref, t, start, columns, inside, when)
    triton.store(place, values, mask=mask)


def _place(shape: _Shape, ref, t, start, columns: int, inside, when):
    mask = (
        (jnp.arange(ROWS) < shape.batch)[:, None]
        & jnp.broadcast_to(inside, columns)[None, :]
        & when
    )
    return ref.at[pallas.ds(t * shape.batch, ROWS), pallas.ds(start, columns)], mask


def _wait(shape: _Shape) -> None:
    """Wait until all threads of a program have written what the next time step reads."""
    if not shape.interpret:
        triton.debug_barrier()
