"""The kernels of a recurrent layer against their definition, interpreted: on a GPU they are
compiled.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taciturn.models.cells import cifg_cell, gru_cell, lstm_cell
from taciturn.models.kernels import recurrence
from taciturn.models.recurrence import scan_backwards, scan_forwards

# cell, gates, whether it is projected, units, width of what is fed back, length, batch; units that
# fill no tile, batches that fill no rows
LAYERS = [
    (cifg_cell, 3, True, 70, 48, 4, 4),
    (lstm_cell, 4, False, 48, 48, 3, 8),
    (gru_cell, 3, False, 32, 32, 2, 3),
    (lstm_cell, 4, True, 40, 16, 3, 16),
]
USERS = 2


def layer(gates: int, projected: bool, units: int, width: int, length: int, batch: int):
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (USERS, length, batch, gates * units))
    recurrent = jax.random.normal(keys[1], (USERS, width, gates * units)) * 0.4
    projection = jax.random.normal(keys[2], (USERS, units, width)) * 0.4 if projected else None
    return x, recurrent, projection, jax.random.normal(keys[3], (USERS, length, batch, width))


def of_users(run, cell, *given):
    return jax.jit(jax.vmap(partial(run, cell, jnp.bfloat16)))(*given)


def distance(left: jax.Array, right: jax.Array) -> float:
    left, right = np.asarray(left, np.float32), np.asarray(right, np.float32)
    return float(np.linalg.norm(left - right) / np.linalg.norm(left))


@pytest.mark.parametrize("shape", LAYERS)
def test_the_kernels_compute_what_the_scans_do(shape):
    cell = shape[0]
    x, recurrent, projection, gradient = layer(*shape[1:])
    wanted = of_users(scan_forwards, cell, x, recurrent, projection)
    found = of_users(partial(recurrence.forwards, interpret=True), cell, x, recurrent, projection)
    fed_back, r, carries, outputs = wanted
    assert distance(fed_back, found[0]) < 1e-6
    assert distance(r, found[1]) < 1e-6
    assert distance(carries[:, 1:], found[2][:, 1:]) < 1e-6  # the first is zero, and not written
    assert (outputs is None and found[3] is None) or distance(outputs, found[3]) < 1e-6
    given = gradient, x, r, carries, recurrent, projection
    wanted = of_users(scan_backwards, cell, *given)
    found = of_users(partial(recurrence.backwards, interpret=True), cell, *given)
    assert [part.dtype for part in found] == [part.dtype for part in wanted]
    assert (
        max(map(distance, wanted, found)) < 1e-3
    )  # a sum in another order may round a product the other way


def test_a_kernel_that_forgets_the_time_step_before_is_noticed(monkeypatch):
    cell = LAYERS[0][0]
    x, recurrent, projection, _ = layer(*LAYERS[0][1:])
    read = recurrence._read

    def forgetful(shape, ref, t, columns, when=True):
        return read(shape, ref, t, columns, False if when is not True else when)

    monkeypatch.setattr(recurrence, "_read", forgetful)
    wanted = of_users(scan_forwards, cell, x, recurrent, projection)
    found = of_users(partial(recurrence.forwards, interpret=True), cell, x, recurrent, projection)
    assert distance(wanted[0], found[0]) > 1e-2


def test_what_the_kernels_cannot_take_goes_through_the_scan():
    def fits(rows: int, width: int, product) -> bool:
        return recurrence.fits(jnp.zeros((5, rows, 64)), jnp.zeros((width, 64)), product)

    assert fits(4, 96, jnp.bfloat16)
    assert fits(16, 256, jnp.bfloat16)
    assert not fits(17, 96, jnp.bfloat16)  # public text comes in large batches
    assert not fits(4, 650, jnp.bfloat16)  # no tiles of 16
    assert not fits(4, 96, jnp.float32)


class Unordered(AssertionError):
    """Two threads may meet at one number, and none waits for the other."""


class Memory:
    """An array of one user's, as a kernel without an interpreter sees it, which notes what is read
    and written between two barriers.
    """

    def __init__(self, machine: "Machine", values: np.ndarray, written: bool) -> None:
        self.machine, self.values, self.written = machine, values, np.full(values.shape, written)
        self.read_at, self.written_at = np.full(values.shape, -1), np.full(values.shape, -1)

    @property
    def at(self) -> "Memory":
        return self

    def __getitem__(self, slices):
        starts = [
            (0, size) if one == slice(None) else (int(one.start), one.size)
            for one, size in zip(slices, self.values.shape, strict=True)
        ]
        rows, columns = (first + np.arange(size) for first, size in starts)
        if self.values.dtype == jnp.bfloat16:  # matrices, which are read without a mask
            return jnp.asarray(self.values[np.ix_(rows, columns)])
        return self, rows[:, None], columns[None, :]


class Machine:
    """Runs a kernel step by step: every thread does what it wants between two barriers, in any
    order.
    """

    def __init__(self, monkeypatch) -> None:
        self.barriers = 0
        triton = recurrence.triton
        monkeypatch.setattr(triton, "load", self.load)
        monkeypatch.setattr(triton, "store", self.store)
        monkeypatch.setattr(triton, "debug_barrier", self.wait)
        monkeypatch.setattr(
            triton,
            "dot",
            lambda a, b, trans_b=False: jnp.dot(
                a, b.T if trans_b else b, preferred_element_type=jnp.float32
            ),
        )
        monkeypatch.setattr(jax.lax, "fori_loop", self.loop)

    @staticmethod
    def loop(first, last, body, state):
        for index in range(first, last):
            state = body(index, state)
        return state

    def wait(self) -> None:
        self.barriers += 1

    @staticmethod
    def inside(rows, columns, mask):
        rows, columns = np.broadcast_arrays(rows, columns)
        mask = np.broadcast_to(np.asarray(mask), rows.shape)
        return (rows[mask], columns[mask]), mask  # numpy refuses one that is not there

    def load(self, place, mask, other):
        memory, rows, columns = place
        where, mask = self.inside(rows, columns, mask)
        if not memory.written[where].all():
            raise Unordered("what is read was never written")
        if (memory.written_at[where] == self.barriers).any():
            raise Unordered("what is read was written since the last barrier")
        memory.read_at[where] = self.barriers
        found = np.full(mask.shape, other, memory.values.dtype)
        found[mask] = memory.values[where]
        return jnp.asarray(found)

    def store(self, place, values, mask):
        memory, rows, columns = place
        where, mask = self.inside(rows, columns, mask)
        if (
            (memory.read_at[where] == self.barriers) | (memory.written_at[where] == self.barriers)
        ).any():
            raise Unordered("what is written was read or written since the last barrier")
        memory.written_at[where], memory.written[where] = self.barriers, True
        memory.values[where] = np.asarray(values)[mask]


def by_hand(monkeypatch, shape):
    """Both ways over time of the first user, in such memory: what is read back of it."""
    machine, cell = Machine(monkeypatch), shape[0]

    def called(kernel, cell, shape, *, warps, stages, out_shape):
        del warps, stages  # a machine without either

        def run(*given):
            ins = [Memory(machine, np.array(one), True) for one in given]
            outs = [
                Memory(machine, np.full(one.shape, 7.0, np.float32), False) for one in out_shape
            ]
            with jax.disable_jit():
                kernel(cell, shape._replace(interpret=False), *ins, *outs)
            for one in outs:
                first = (
                    shape.batch if one is outs[2] and kernel is recurrence._forwards else 0
                )  # of the carries
                last = (
                    2 * shape.batch
                    if kernel is recurrence._backwards and one is outs[3]
                    else len(one.values)
                )
                assert one.written[first:last].all()
                assert not one.written[last:].any()
            return [
                jnp.asarray(one.values, like.dtype)
                for one, like in zip(outs, out_shape, strict=True)
            ]

        return run

    monkeypatch.setattr(recurrence, "_call", called)
    x, recurrent, projection, gradient = (
        None if one is None else one[0] for one in layer(*shape[1:])
    )
    forwards = recurrence.forwards(cell, jnp.bfloat16, x, recurrent, projection)
    backwards = recurrence.backwards(
        cell, jnp.bfloat16, gradient, x, *forwards[1:3], recurrent, projection
    )
    return forwards, backwards


@pytest.mark.parametrize("shape", LAYERS)
def test_no_thread_reads_what_another_may_be_writing_nor_what_nobody_wrote(monkeypatch, shape):
    cell = shape[0]
    x, recurrent, projection, gradient = (
        None if one is None else one[0] for one in layer(*shape[1:])
    )
    wanted = scan_forwards(cell, jnp.bfloat16, x, recurrent, projection)
    back = scan_backwards(cell, jnp.bfloat16, gradient, x, *wanted[1:3], recurrent, projection)
    forwards, backwards = by_hand(monkeypatch, shape)
    assert distance(wanted[0], forwards[0]) < 1e-2
    assert max(map(distance, back, backwards)) < 2e-2


@pytest.mark.parametrize("shape", LAYERS[:2])  # one that is projected, and one that is not
@pytest.mark.parametrize("lacking", ["barriers", "turns", "zeros"])
def test_a_kernel_without_barriers_turns_or_zeros_at_the_start_is_noticed(
    monkeypatch, shape, lacking
):
    read = recurrence._read
    if lacking == "barriers":
        monkeypatch.setattr(recurrence, "_wait", lambda shape: None)
    elif lacking == "turns":  # one place for a carry's gradient, and not two in turns
        monkeypatch.setattr(jax.lax, "rem", lambda t, n: 0)
    else:
        monkeypatch.setattr(
            recurrence,
            "_read",
            lambda shape, ref, t, columns, when=True: read(shape, ref, t, columns),
        )
    with pytest.raises(Unordered, match=r"what is (read|written) was"):
        by_hand(monkeypatch, shape)


def test_a_mask_that_is_too_wide_is_noticed(monkeypatch):
    place = recurrence._place
    monkeypatch.setattr(
        recurrence,
        "_place",
        lambda shape, ref, t, columns, when: place(
            shape, ref, t, columns._replace(inside=True), when
        ),
    )
    with pytest.raises((Unordered, IndexError), match=r"what is|out of bounds"):
        by_hand(monkeypatch, LAYERS[0])
