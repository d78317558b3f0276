"""Deep Gradient Compression: nothing is lost, exactly k entries leave, and the bytes counted are
the bytes written.
"""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradient_compression import (
    clip_locally,
    compress,
    decode,
    empty_memory,
    encode,
    entries_sent,
    mark_largest,
    share_sent,
    upload_bytes,
)
from taciturn import trees

PARAMS = {"matrix": jnp.zeros((7, 11)), "layers": {"0": {"bias": jnp.zeros(5)}}}
TENTH = Fraction(1, 10)


def gradients(count, seed=0):
    generator = np.random.default_rng(seed)
    return [
        jax.tree.map(
            lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), jnp.float32), PARAMS
        )
        for _ in range(count)
    ]


def assert_close(left, right, **tolerance):
    for one, other in zip(*map(jax.tree.leaves, (left, right)), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


def run(steps, share, momentum, memory=None):
    """All uploads and the memory after some steps of a node; the shares may differ from step to
    step.
    """
    memory, uploads = memory or empty_memory(PARAMS), []
    step = jax.jit(compress, static_argnums=3)
    for gradient, one in zip(steps, share, strict=True):
        upload, memory = step(memory, gradient, entries_sent(PARAMS, one), momentum)
        uploads.append(upload)
    return uploads, memory


def added_up(trees):
    return jax.tree.map(lambda *leaves: sum(leaves), *trees)


def test_what_is_sent_and_what_is_kept_is_all_that_came_in():
    steps = gradients(30)
    uploads, memory = run(steps, [TENTH] * 30, momentum=0.0)
    assert_close(
        trees.add(added_up([one.values for one in uploads]), memory.unsent),
        added_up(steps),
        atol=1e-5,
    )
    assert any(
        float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(memory.unsent)
    )  # something was kept


def test_two_nodes_add_up_to_all_that_came_in_at_both():
    own = [gradients(10, seed) for seed in (1, 2)]
    results = [run(steps, [TENTH] * 10, momentum=0.0) for steps in own]
    everything = added_up(
        [
            *(one.values for uploads, _ in results for one in uploads),
            *(m.unsent for _, m in results),
        ]
    )
    assert_close(everything, added_up([*own[0], *own[1]]), atol=1e-5)


def test_sending_everything_is_plain_sgd():
    """Momentum or not: it is masked wherever something is sent."""
    steps = gradients(5)
    uploads, _ = run(steps, [Fraction(1)] * 5, momentum=0.9)
    for upload, gradient in zip(uploads, steps, strict=True):
        assert_close(upload.values, gradient, rtol=0)


def test_an_entry_that_waits_catches_up_with_sgd_with_momentum():
    """Momentum correction: what is sent in the end is where SGD with momentum would have gone in
    the meantime.
    """
    steps, momentum = gradients(6), 0.9
    uploads, _ = run(steps, [Fraction(0)] * 5 + [Fraction(1)], momentum)
    assert all(not leaf.any() for upload in uploads[:-1] for leaf in jax.tree.leaves(upload.places))
    velocity, moved = trees.zeros_like(PARAMS), trees.zeros_like(PARAMS)
    for gradient in steps:
        velocity = trees.add(trees.scale(velocity, momentum), gradient)
        moved = trees.add(moved, velocity)
    assert_close(uploads[-1].values, moved, atol=1e-5)


def test_places_that_are_sent_are_cleared_and_others_are_not():
    steps = gradients(4)
    (*_, upload), memory = run(steps, [TENTH] * 4, momentum=0.9)
    for kept in memory:
        for is_sent, one in zip(jax.tree.leaves(upload.places), jax.tree.leaves(kept), strict=True):
            np.testing.assert_array_equal(one == 0, is_sent)


@pytest.mark.parametrize("share", [Fraction(1, 1000), TENTH, Fraction(1, 2), Fraction(1)])
def test_exactly_k_entries_leave_and_they_are_the_largest(share):
    (gradient,) = gradients(1)
    (upload,), _ = run([gradient], [share], momentum=0.0)
    for is_sent, one in zip(jax.tree.leaves(upload.places), jax.tree.leaves(gradient), strict=True):
        assert int(is_sent.sum()) == math.ceil(share * one.size)
        assert np.abs(one[is_sent]).min() >= np.abs(one[~is_sent]).max(initial=0)


@pytest.mark.parametrize("count", range(7))
def test_of_equal_entries_the_first_are_taken(count):
    values = jnp.array([[1.0, -2.0, 1.0], [-1.0, 0.0, 0.0]])
    places = np.flatnonzero(jax.jit(mark_largest)(values, count))
    np.testing.assert_array_equal(places, np.sort([1, 0, 2, 3, 4, 5][:count]))


def test_the_largest_are_those_of_a_sort_on_every_node_at_once():
    values = (
        jax.random.normal(jax.random.key(0), (3, 40, 50))
        * jnp.array([1e-38, 1.0, 1e30])[:, None, None]
    )
    values = values.at[1].set(
        jnp.round(values[1])
    )  # many alike on one node, and none on the others
    places = jax.vmap(mark_largest, (0, None))(values, 77)
    for one, found in zip(
        np.abs(np.asarray(values)).reshape(3, -1), places.reshape(3, -1), strict=True
    ):
        expected = np.argsort(-one, stable=True)[:77]
        np.testing.assert_array_equal(np.flatnonzero(found), np.sort(expected))


def test_the_bytes_counted_are_those_written_and_read_back():
    entries = entries_sent(PARAMS, TENTH)
    uploads, _ = run(gradients(3), [TENTH] * 3, momentum=0.9)
    for upload in uploads:
        data = encode(upload)
        assert len(data) == upload_bytes(entries) == 8 * (8 + 1)
        assert_close(decode(data, PARAMS, entries), upload.values, rtol=0)


def test_zeros_are_sent_too_and_counted():
    """Which a codec that looks for what is not zero would miss."""
    (upload,), _ = run([PARAMS], [TENTH], momentum=0.0)
    assert len(encode(upload)) == upload_bytes(entries_sent(PARAMS, TENTH))


def test_a_gradient_is_clipped_to_its_part_of_the_threshold():
    gradient = {"a": jnp.array([30.0, 0.0]), "b": jnp.array([40.0])}
    assert_close(
        clip_locally(gradient, 10.0, nodes=4), trees.scale(gradient, 5.0 / 50.0), rtol=1e-6
    )
    assert_close(clip_locally(gradient, 101.0, nodes=4), gradient, rtol=0)
    assert_close(
        clip_locally(PARAMS, 10.0, nodes=4), PARAMS, rtol=0
    )  # a gradient of zero stays one


def test_the_share_falls_by_a_quarter_at_each_stage_of_the_warm_up():
    final = Fraction(1, 1000)
    by_epoch = [share_sent(epoch, warm_up=4) for epoch in range(6)]
    assert by_epoch == [
        Fraction(1, 4),
        Fraction(1, 16),
        Fraction(1, 64),
        Fraction(1, 256),
        final,
        final,
    ]
    within_one = [share_sent(Fraction(quarter, 4), warm_up=1) for quarter in range(5)]
    assert within_one == by_epoch[:5]
    assert share_sent(0, warm_up=0) == final


def test_a_thousandth_is_rounded_up_and_exact():
    entries = entries_sent(
        {"large": jnp.zeros(9_000), "small": jnp.zeros(6), "odd": jnp.zeros(1_001)},
        Fraction(1, 1000),
    )
    assert entries == {"large": 9, "small": 1, "odd": 2}
