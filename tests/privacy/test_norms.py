"""A norm is never rounded below the truth, and no report is longer than its clip norm: at every
size, in whichever order a compiler adds (docs/proofs.md, statement 24).
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from norms import (
    ARRANGEMENTS,
    CLIP_NORM,
    MERGED,
    PATTERNS,
    length_of,
    measure,
    sizes,
    true_norm_of,
)

from taciturn import trees
from taciturn.privacy.bounding.clipping import encode, flat_clip, per_layer_clip

pytestmark = pytest.mark.optimised

# Forty of all sizes: those at which XLA merged sums, and each fifth of the others to a million.
FEW = [*MERGED, *[size for size in sizes() if size not in MERGED and size < 10**6][::5]]
# Of the shapes of a real model, small ones among them, a scalar, and an empty one.
LAYERS = {
    "embedding": (1003, 96),
    "kernel": (96, 511),
    "bias": (511,),
    "gains": (7, 3),
    "scale": (),
    "nothing": (0, 4),
}


def in_groups(chosen: list[int], of: int) -> list[list[int]]:
    """The largest are spread over groups, which so take about as long."""
    groups = math.ceil(len(chosen) / of)
    return [sorted(chosen)[first::groups] for first in range(groups)]


def summed_in_two_levels(tree) -> jax.Array:
    """The bound as it was: slack for two levels of a sum, of about √n terms each."""
    leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)]
    exponent = trees._largest_exponent(leaves)
    squares = []
    terms = len(leaves)
    for leaf in leaves:
        root = max(1, math.isqrt(leaf.size))
        divisors = [length for length in range(root, root // 4, -1) if leaf.size % length == 0]
        length = [*divisors, root][0]
        rows = jnp.pad(leaf, (0, -leaf.size % length)).reshape(-1, length)
        scaled = rows * trees._power_of_two(-exponent)
        squares.append(jnp.sum(jnp.sum(jnp.square(scaled), axis=1)))
        terms = max(terms, len(leaves) + length + len(rows))
    norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
    return trees._power_of_two(exponent) * (norm * (1.0 + (terms + 8) * trees.UNIT_ROUNDOFF))


def check(measured) -> None:
    for one in measured:
        assert 0.9999 < one.ratio <= 1, one
        assert 0.9999 < one.length <= 1 or one.size == 1, one
        assert one.summands <= trees.LONGEST_ROW, one


@pytest.mark.parametrize("chosen", in_groups(FEW, of=5), ids=str)
def test_no_norm_is_below_the_truth_and_no_report_longer_than_its_clip_norm(chosen):
    for size in chosen:
        check(measure(size, arrangements=[ARRANGEMENTS[size % 2]]))


@pytest.mark.slow
@pytest.mark.parametrize("chosen", in_groups(sizes(), of=10), ids=str)
def test_at_two_hundred_sizes_both_alone_and_side_by_side(chosen):
    for size in chosen:
        check(measure(size))


def test_two_hundred_sizes_are_as_many_and_forty_are_of_them():
    assert len(set(sizes())) == 200
    assert len(set(FEW)) >= 40
    assert 5e6 < max(sizes()) <= 1e7


def test_a_sum_in_two_levels_is_merged_and_comes_out_too_small(monkeypatch):
    """The twin: the bound as it was, in the program of a report."""
    monkeypatch.setattr(trees, "norm_upper_bound", summed_in_two_levels)
    measured = [
        one
        for size in (1408, 3694, 4094)
        for one in measure(size, arrangements=["alone"], norm=summed_in_two_levels)
    ]
    assert max(one.ratio for one in measured) > 1.00001
    assert max(one.length for one in measured) > 1.00001
    assert max(one.summands for one in measured) > trees.LONGEST_ROW


def largest_ratio_found(norm: Callable, size: int) -> float:
    """Search for values whose squares vanish one by one beside a large one."""
    bound = jax.jit(norm)
    ratios = []
    for place in (0, size // 2, size - 1):
        for power in (-11, -11.6, -11.74, -12, -12.01, -13):
            values = np.full(size, 2.0**power, np.float32)
            values[place] = 1
            ratios.append(true_norm_of(values) / float(bound({"a": values})))
    return max(ratios)


@pytest.mark.parametrize("size", [1408, 2010, 4094, 70_001])
def test_a_search_finds_no_values_of_a_norm_above_the_bound(size):
    assert largest_ratio_found(trees.norm_upper_bound, size) <= 1


def test_a_search_finds_values_of_a_norm_above_a_bound_summed_in_two_levels():
    """The twin."""
    assert largest_ratio_found(summed_in_two_levels, 4094) > 1.00001


@pytest.mark.parametrize("clip", [flat_clip, per_layer_clip])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_report_of_many_layers_is_no_longer_than_its_clip_norm(clip, pattern):
    bound = clip(CLIP_NORM)
    total = sum(math.prod(shape) for shape in LAYERS.values())
    values = pattern(total) / np.float32(2.0 ** math.frexp(true_norm_of(pattern(total)))[1])
    update = {}
    for name, shape in LAYERS.items():
        update[name] = values[: math.prod(shape)].reshape(shape)
        values = values[math.prod(shape) :]
    report = jax.jit(partial(encode, bound))(
        bound.public(jnp.int32(0)), update, jnp.float32(1), jax.random.key(0)
    )
    assert length_of(jax.device_get(report)) <= 1


def test_values_too_small_for_normal_floats_are_bounded_too():
    """They are, whether or not a machine takes them for zero."""
    bound = jax.jit(trees.norm_upper_bound)
    for exponent in (-149, -140, -127, -126, -120):
        values = np.full(1000, 2.0**exponent, np.float32)
        most = true_norm_of(values) * 1.0001 + 2 * math.sqrt(1000) * 2.0**-126
        assert true_norm_of(values) <= float(bound({"a": values})) <= most


@pytest.mark.parametrize(("constant", "other"), [(2.0**-64, 2.0**-63), (2.0**-80, 2.0**-70)])
def test_a_layer_that_is_a_constant_of_the_program_is_measured_too(monkeypatch, constant, other):
    def bound_by_truth() -> float:
        def bound(values):
            return trees.norm_upper_bound({"a": values, "b": jnp.full(5000, constant)})

        values = np.full(2, other, np.float32)
        truth = math.sqrt(2 * other**2 + 5000 * constant**2)
        return float(jax.jit(bound)(values)) / truth

    assert 1 <= bound_by_truth() < 1.0001
    # The twin: squares of constants underflow.
    monkeypatch.setattr(jax.lax, "optimization_barrier", lambda values: values)
    assert not bound_by_truth() >= 1


def test_the_norm_of_nothing_is_zero():
    assert float(trees.norm_upper_bound({})) == 0
    assert float(trees.norm_upper_bound({"a": np.zeros((0, 3), np.float32)})) == 0


def reads(variable, program) -> list[str]:
    """What reads a variable of a traced program."""
    return [
        equation.primitive.name
        for equation in program.jaxpr.eqns
        if any(read is variable for read in equation.invars)
    ]


def barriers_before(variable, program) -> list:
    """The barriers that a variable comes from, and the arguments that it comes from past them."""
    for equation in program.jaxpr.eqns:
        if any(made is variable for made in equation.outvars):
            if equation.primitive.name == "optimization_barrier":
                return [equation]
            return [
                one
                for read in equation.invars
                if not hasattr(read, "val")
                for one in barriers_before(read, program)
            ]
    return [variable]


def is_behind_barriers() -> bool:
    """Whether the update is kept before it is measured, and a value before its digits are taken."""
    bound = flat_clip(CLIP_NORM)
    program = jax.make_jaxpr(partial(encode, bound))(
        bound.public(jnp.int32(0)), {"a": jnp.ones(5)}, jnp.float32(1), jax.random.key(0)
    )
    _, update, *_ = program.jaxpr.invars
    high, low, _ = program.jaxpr.outvars
    of_high = barriers_before(high, program)
    of_low = barriers_before(low, program)
    return reads(update, program) == ["optimization_barrier"] and (
        len({id(one) for one in [*of_high, *of_low]}) == 1
    )


def test_what_leaves_is_kept_as_it_was_measured(monkeypatch):
    """A compiler may simplify a value in another way for each that reads it, and round it
    differently: then another update would leave than was measured, or a low digit that does not go
    with the high.
    """
    assert is_behind_barriers()
    # The twin.
    monkeypatch.setattr(jax.lax, "optimization_barrier", lambda values: values)
    assert not is_behind_barriers()


def length_of_what_cancels(size: int) -> float:
    """The length of a report of values of which only rounding is left: zero if a product and a sum
    are rounded one by one, and far longer than the clip norm if they are fused.
    """
    generator = np.random.default_rng(size)
    left, right = generator.normal(size=(2, size)).astype(np.float32)
    bound = flat_clip(CLIP_NORM)

    def report(left: jax.Array, right: jax.Array, product: jax.Array):
        update = {"a": (left * right - product) * 1e9}
        public = bound.public(jnp.int32(0))
        return encode(bound, public, update, jnp.float32(1), jax.random.key(0))

    return length_of(jax.device_get(jax.jit(report)(left, right, left * right)))


@pytest.mark.parametrize("size", [5, 200, 300, 5000])
def test_an_update_that_is_computed_again_is_rounded_as_it_was_measured(monkeypatch, size):
    """XLA drops barriers before it fuses, and computes a small update in several kernels."""
    length = length_of_what_cancels(size)
    assert length <= 1
    if length == 0:
        return  # this machine does not fuse them
    # The twin: what is measured was rounded one by one.
    monkeypatch.setattr(trees, "norm_upper_bound", lambda tree: jnp.float32(0))
    assert length_of_what_cancels(size) > 1


def test_an_h200_found_what_the_proof_says_it_found():
    found = json.loads((Path(__file__).parent / "norms-h200.json").read_text())
    ratios = []
    for worst in found["worst"].values():
        ratios += [worst["norm / bound"], worst["report / clip norm"]]
    assert found["is a bound"]
    assert "H200" in found["device"]
    assert found["measured"] == len(PATTERNS) * len(sizes()) * len(ARRANGEMENTS)
    assert max(ratios) < 1
    proofs = Path(__file__).parents[2] / "docs/proofs.md"
    assert f"above {math.ceil(1e7 * max(ratios)) / 1e7:.7f} of its bound" in proofs.read_text()
