"""The contract of a bound: whatever an update is, its report moves a sum by no more than `reach`
steps, and reports add up exactly.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness import true_norm
from taciturn import trees
from taciturn.privacy.bounding.clipping import decode, encode, flat_clip, no_clip, per_layer_clip
from taciturn.privacy.bounding.secagg_encoding import encoding, modular
from taciturn.privacy.noise import int64

pytestmark = pytest.mark.optimised

LIKE = {"a": jnp.zeros((2, 3)), "b": {"c": jnp.zeros(30)}}
NORM = 0.7
BOUNDS = {
    "flat": flat_clip(NORM),
    "per layer": per_layer_clip(NORM),
    "modular": modular(flat_clip(NORM), LIKE, encoding(36, 50)),
    "modular, per layer": modular(per_layer_clip(NORM), LIKE, encoding(36, 50)),
    "modular, of few bits": modular(flat_clip(NORM), LIKE, encoding(36, 50, 11)),
}
KEY, ROUND = jax.random.key(0), jnp.int32(3)
any_float = st.floats(width=32, allow_nan=True, allow_infinity=True)
any_update = st.fixed_dictionaries(
    {
        "a": hnp.arrays(np.float32, (2, 3), elements=any_float),
        "b": st.fixed_dictionaries({"c": hnp.arrays(np.float32, 30, elements=any_float)}),
    }
)
each_bound = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)


@functools.cache
def programs(bound):
    """What a device and a server make of an update and a total."""
    public = bound.public(ROUND)
    return (
        jax.jit(lambda update, weight, key: encode(bound, public, update, weight, key)),
        jax.jit(lambda total: decode(bound, public, total).update),
    )


@functools.cache
def unpacking(bound):
    return jax.jit(lambda total: bound.unpack(bound.public(ROUND), total.update))


def steps(bound, total) -> list[int]:
    """What noise is added to, in Python's whole numbers."""
    layers = jax.tree.leaves(unpacking(bound)(total), is_leaf=int64.is_int64)
    return [int(number) for layer in layers for number in int64.to_numpy(layer).ravel()]


def updates(count):
    generator = np.random.default_rng(0)
    return [
        jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), jnp.float32), LIKE)
        for _ in range(count)
    ]


@each_bound
@settings(max_examples=30, deadline=None)
@given(update=any_update, weight=st.floats(width=32), seed=st.integers(0, 2**31))
def test_any_report_is_as_long_as_its_reach_at_most(bound, update, weight, seed):
    report, decoded = programs(bound)
    sent = report(update, np.float32(weight), jax.random.key(seed))
    assert sum(number**2 for number in steps(bound, sent)) <= bound.reach**2
    longest = bound.reach * float(bound.step(bound.public(ROUND)))
    assert true_norm(decoded(sent)) <= longest * (
        1 + 2.0**-20
    )  # which rounding in `decode` may add


def test_a_bound_that_bounds_nothing_is_noticed():
    """The twin that must fail."""
    report, decoded = programs(no_clip())
    assert true_norm(decoded(report(updates(1)[0], np.float32(1), KEY))) > NORM


@each_bound
def test_reports_add_up_to_the_sum_of_what_they_stand_for(bound):
    report, decoded = programs(bound)
    reports = [
        report(update, np.float32(1), jax.random.key(n)) for n, update in enumerate(updates(50))
    ]
    total = functools.reduce(trees.add, reports)
    assert steps(bound, total) == [
        sum(each) for each in zip(*(steps(bound, one) for one in reports), strict=True)
    ]
    together = decoded(total)
    apart = functools.reduce(trees.add, [decoded(one) for one in reports])
    jax.tree.map(
        lambda left, right: np.testing.assert_allclose(left, right, atol=2e-5), together, apart
    )


@each_bound
def test_what_is_summed_is_what_was_clipped(bound):
    report, decoded = programs(bound)
    total = functools.reduce(
        trees.add,
        [report(update, np.float32(1), jax.random.key(n)) for n, update in enumerate(updates(50))],
    )
    clipped = functools.reduce(
        trees.add, [bound.project(bound.public(ROUND), update) for update in updates(50)]
    )
    assert true_norm(trees.subtract(decoded(total), clipped)) < 0.2 * true_norm(clipped)


@each_bound
def test_whoever_is_padding_or_broke_down_reports_zero(bound):
    report, _ = programs(bound)
    update = updates(1)[0]
    broken = {**update, "a": update["a"].at[0, 1].set(jnp.nan)}
    for one in (report(update, np.float32(0), KEY), report(broken, np.float32(1), KEY)):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(one.update))
