"""Reports in residues stay within their limit whatever is rounded, and noise is made for the
longest.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import noise_key, started, tiny_recipe
from taciturn import trees
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.privacy.bounding.secagg_encoding import centre_residues, encoding, modular
from taciturn.recipe.solve import with_noise

GARBAGE = {
    "no number": lambda size: np.full(size, np.nan),
    "infinite": lambda size: np.where(np.arange(size) % 2, np.inf, -np.inf),
    "largest floats": lambda size: np.full(size, 3e38),
    "denormal": lambda size: np.full(size, 1e-45),
    "one spike": lambda size: np.eye(1, size, 5)[0] * 1e30,
    "a little too long": lambda size: np.full(size, 1.001 / math.sqrt(size)),
    "half steps": lambda size: np.full(size, 0.5) * np.where(np.arange(size) % 3, 1, -1),
}


@pytest.mark.parametrize("bits", [None, 10])
def test_rounding_stays_within_the_limit_even_without_a_clip_before_it(bits):
    """Call only `pack`, one by one and side by side: the check on integers does not rely on the
    clip.
    """
    size, reports = 600, 20
    encoded = encoding(size, reports, bits)
    bound = modular(flat_clip(1.0), {"a": jnp.zeros(size)}, encoded)
    updates = jnp.asarray(np.stack([make(size) for make in GARBAGE.values()]), jnp.float32)
    keys = jax.random.split(jax.random.key(0), len(updates))
    side_by_side = jax.jit(jax.vmap(lambda one, key: bound.pack(bound.public(7), {"a": one}, key)))(
        updates, keys
    )
    alone = jax.jit(lambda one, key: bound.pack(bound.public(7), {"a": one}, key))
    for packed in (side_by_side, [alone(*pair) for pair in zip(updates, keys, strict=True)]):
        for report in packed:
            whole = [int(one) for one in np.asarray(centre_residues(encoded, report)).ravel()]
            assert sum(one**2 for one in whole) <= encoded.limit
            assert max(map(abs, whole)) <= encoded.largest


@pytest.mark.parametrize("sign", [1, -1])
def test_as_many_reports_as_a_sum_holds_add_up_and_more_wrap_around(sign):
    encoded = next(
        one
        for n in range(50, 200)
        if 2 * (one := encoding(600, n, 16)).largest * (n + 1) >= one.modulus
    )
    most = jnp.uint32((sign * encoded.largest) % encoded.modulus)
    full = jnp.full(encoded.padded, most) * jnp.uint32(encoded.most_reports)  # mod 2³²
    assert np.all(
        np.asarray(centre_residues(encoded, full)) == sign * encoded.largest * encoded.most_reports
    )
    assert np.all(
        np.asarray(centre_residues(encoded, full % encoded.modulus))
        == sign * encoded.largest * encoded.most_reports
    )
    over = np.asarray(centre_residues(encoded, full + most))  # the twin
    assert np.all(over != sign * encoded.largest * (encoded.most_reports + 1))


def test_noise_is_for_the_longest_report_also_when_computed_from_a_budget(population):
    budget = {"noise_multiplier": None, "rho": 2.0}
    residues = {"encoding": "modular", "encoding_bits": 11}
    coded = with_noise(tiny_recipe(population, privacy=budget | residues), 30_000)
    plain = coded.with_settings("privacy", encoding="integer", encoding_bits=None)
    stddevs = []
    for recipe in (plain, coded):
        algorithm, params = started(recipe)
        mechanism = algorithm.mechanism
        assert rho(repeat(mechanism.event(algorithm.participation), 6)) <= 2.0
        state = mechanism.init(params)
        shape = jax.eval_shape(
            mechanism.bound, mechanism.public(state), params, 1.0, jax.random.key(0)
        )
        release, _ = jax.jit(mechanism.release)(state, trees.zeros_like(shape), noise_key(3))
        drawn = release.estimate
        stddevs.append(
            math.sqrt(
                sum(float(jnp.vdot(leaf, leaf)) for leaf in jax.tree.leaves(drawn))
                / trees.size(drawn)
            )
        )
    inflation = encoding(trees.size(params), coded.largest_total, 11).inflation
    assert inflation > 1.01
    assert stddevs[1] / stddevs[0] == pytest.approx(inflation, rel=1e-4)
