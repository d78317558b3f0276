"""The kernels of a recurrent layer against their definition, interpreted: on a GPU they are compiled."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taciturn.models import recurrence_kernels
from taciturn.models.cifg import cell as cifg_cell
from taciturn.models.gru import cell as gru_cell
from taciturn.models.lstm import cell as lstm_cell
from taciturn.models.recurrence import scan_backwards, scan_forwards

# cell, gates, whether it is projected, units, width of what is fed back, length, batch; units that fill no tile, batches that fill no rows
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


def of_users(run, cell, units: int, *given):
    return jax.jit(jax.vmap(partial(run, cell, units, jnp.bfloat16)))(*given)


def distance(left: jax.Array, right: jax.Array) -> float:
    left, right = np.asarray(left, np.float32), np.asarray(right, np.float32)
    return float(np.linalg.norm(left - right) / np.linalg.norm(left))


@pytest.mark.parametrize("shape", LAYERS)
def test_the_kernels_compute_what_the_scans_do(shape):
    cell, _, _, units, *_ = shape
    x, recurrent, projection, gradient = layer(*shape[1:])
    wanted = of_users(scan_forwards, cell, units, x, recurrent, projection)
    found = of_users(partial(recurrence_kernels.forwards, interpret=True), cell, units, x, recurrent, projection)
    fed_back, r, carries, outputs = wanted
    assert distance(fed_back, found[0]) < 1e-6
    assert distance(r, found[1]) < 1e-6
    assert distance(carries[:, 1:], found[2][:, 1:]) < 1e-6  # the first is zero, and not written
    assert (outputs is None and found[3] is None) or distance(outputs, found[3]) < 1e-6
    given = gradient, x, r, carries, recurrent, projection
    wanted = of_users(scan_backwards, cell, units, *given)
    found = of_users(partial(recurrence_kernels.backwards, interpret=True), cell, units, *given)
    assert [part.dtype for part in found] == [part.dtype for part in wanted]
    assert max(map(distance, wanted, found)) < 1e-3  # a sum in another order may round a product the other way


def test_a_kernel_that_forgets_the_time_step_before_is_noticed(monkeypatch):
    cell, _, _, units, *_ = LAYERS[0]
    x, recurrent, projection, _ = layer(*LAYERS[0][1:])
    read = recurrence_kernels._read

    def forgetful(shape, ref, t, start, columns, inside=True, when=True):
        return read(shape, ref, t, start, columns, inside, False if when is not True else when)

    monkeypatch.setattr(recurrence_kernels, "_read", forgetful)
    wanted = of_users(scan_forwards, cell, units, x, recurrent, projection)
    found = of_users(partial(recurrence_kernels.forwards, interpret=True), cell, units, x, recurrent, projection)
    assert distance(wanted[0], found[0]) > 1e-2


def test_what_the_kernels_cannot_take_goes_through_the_scan():
    def fits(rows: int, width: int, product) -> bool:
        return recurrence_kernels.fits(jnp.zeros((5, rows, 64)), jnp.zeros((width, 64)), product)

    assert fits(4, 96, jnp.bfloat16)
    assert fits(16, 256, jnp.bfloat16)
    assert not fits(17, 96, jnp.bfloat16)  # public text comes in large batches
    assert not fits(4, 650, jnp.bfloat16)  # no tiles of 16
    assert not fits(4, 96, jnp.float32)
