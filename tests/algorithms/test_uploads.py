"""Uploads weigh what is said, to the byte, and however small they are made, the bound holds."""

import math
import struct
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import exact, quietly, tiny_recipe
from taciturn.algorithms.local_training import LocalTraining, fedavg_update
from taciturn.algorithms.uploads import compress_updates, round_at_random, upload_bytes
from taciturn.core import Message, Public, UserData
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.sgd import sgd_step
from taciturn.privacy.bounding.clipping import LARGEST_UPDATE, STEPS, encode, flat_clip
from taciturn.recipe import build
from taciturn.runs.loop import train_run

KEY = jax.random.key(0)
NOBODY = UserData(jnp.zeros(0), jnp.float32(1), jnp.int32(0))
UPDATE = {"a": jax.random.normal(KEY, (40, 7)), "b": jax.random.normal(jax.random.key(1), (33,))}


class Upload(NamedTuple):
    share: float = 1.0
    bits: int = 32


UPLOADS = [Upload(), Upload(bits=16), Upload(bits=8), Upload(0.01), Upload(0.2, 8)]


@partial(jax.jit, static_argnums=(1, 2))
def sent(update, upload: Upload, clip_norm: float = 0.5, key=KEY):
    """The report of a device that came to this update."""
    smaller = compress_updates(lambda message, user, key: update, *upload)(
        Message({}, None), NOBODY, key
    )
    return smaller, encode(
        flat_clip(clip_norm), Public(jnp.float32(clip_norm)), smaller, jnp.float32(1), key
    )


def written(report, upload: Upload, clip_norm: float = 0.5) -> bytes:
    """A report on the wire, as a device would write it."""
    content = struct.pack("<H", int(report.weight))
    update, _ = exact(report, clip_norm)
    for layer in jax.tree.leaves(update):
        flat = np.asarray(layer).reshape(-1)
        places = np.argsort(-np.abs(flat), kind="stable")[: math.ceil(upload.share * flat.size)]
        values = flat[places] if upload.share < 1 else flat
        if upload.bits == 32:
            content += np.round(values / clip_norm * STEPS**2).astype("<i4").tobytes()
        else:
            level = np.abs(flat).max() / (2 ** (upload.bits - 1) - 1)
            content += struct.pack("<f", level)
            content += np.round(values / level).astype(f"<i{upload.bits // 8}").tobytes()
        if upload.share < 1:
            content += places.astype("<u4").tobytes()
    return content


@pytest.mark.parametrize("upload", UPLOADS)
def test_an_upload_weighs_what_is_written(upload):
    _, report = sent(UPDATE, upload)
    assert len(written(report, upload)) == upload_bytes(UPDATE, *upload)


def test_uploads_weigh_less_by_what_is_left_out():
    params = {"w": jax.ShapeDtypeStruct((1000, 1000), jnp.float32)}
    assert upload_bytes(params) == 4_000_002
    assert upload_bytes(params, bits=8) == 1_000_006
    assert upload_bytes(params, 0.001) == 8 * 1000 + 2


@pytest.mark.parametrize("upload", UPLOADS[1:])
def test_what_is_left_out_is_left_out_after_the_clip_too(upload):
    smaller, report = sent(UPDATE, upload)
    update, _ = exact(report, 0.5)
    for before, layer in zip(jax.tree.leaves(UPDATE), jax.tree.leaves(update), strict=True):
        assert np.count_nonzero(layer) <= math.ceil(upload.share * before.size)
        if upload.bits < 32:
            level = np.abs(layer).max() / (2 ** (upload.bits - 1) - 1)
            np.testing.assert_allclose(layer / level, np.round(layer / level), atol=2e-3)
    assert not np.array_equal(jax.tree.leaves(smaller)[0], jax.tree.leaves(UPDATE)[0])


def test_the_largest_values_are_kept_and_rounding_is_right_on_average():
    kept, _ = sent({"a": jnp.array([[0.1, -3.0], [2.0, 0.2]])}, Upload(0.5))
    np.testing.assert_array_equal(kept["a"], jnp.array([[0.0, -3.0], [2.0, 0.0]]))
    values = jnp.array([1.0, 0.33, -0.2])
    many = jax.vmap(lambda key: round_at_random(values, 8, key))(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(many.mean(axis=0), values, atol=5e-4)
    assert float(jnp.max(jnp.abs(many - values))) < 1 / 127 + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(UPLOADS),
    st.integers(0, 2**31 - 1),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e30, float("inf"), float("nan")]),
)
def test_the_bound_holds_whatever_is_left_out(upload, seed, size):
    update = jax.tree.map(
        lambda layer: layer * size, {"a": jax.random.normal(jax.random.key(seed), (5, 7))}
    )
    _, report = sent(update, upload, key=jax.random.key(seed + 1))
    values = jax.tree.leaves(exact(report, 0.5)[0])[0]
    assert np.sqrt(np.sum(np.square(values, dtype=np.float64))) <= 0.5


def test_made_smaller_after_the_clip_it_would_not():
    """The twin: rounding a clipped update at random carries it out of its ball."""
    clipped = {
        "a": jnp.full(1000, 0.5 / np.sqrt(1000)) * jnp.where(jnp.arange(1000) < 1, 30.0, 0.05)
    }
    clipped = jax.tree.map(lambda layer: layer * (0.5 / jnp.linalg.norm(layer)), clipped)
    many = jax.vmap(lambda key: round_at_random(clipped["a"], 8, key))(jax.random.split(KEY, 20))
    assert max(np.linalg.norm(many, axis=1)) > 0.5001


def test_a_run_counts_uploads_and_their_bytes(population, tmp_path):
    recipe = tiny_recipe(
        population,
        participation={"kind": "fixed", "cohort": 10},
        upload={"share": 0.05, "bits": 16},
    )
    finished = train_run(recipe, tmp_path / "run", quietly)
    each = build.upload_size(finished.recipe, finished.params)
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    header, last = rows[0].split(","), rows[-1].split(",")
    assert last[header.index("uploads")] == str(10 * recipe.run.rounds)
    assert last[header.index("upload_bytes")] == str(10 * recipe.run.rounds * each)
    assert each < 0.15 * upload_bytes(finished.params)


@pytest.mark.parametrize("upload", [Upload(), Upload(1e-6), Upload(0.3, 16), Upload(bits=8)])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2 * LARGEST_UPDATE])
def test_a_value_that_diverged_is_not_left_out_so_that_the_rest_could_leave(upload, wrong):
    raw = {"a": jnp.linspace(0.1, 1.0, 50), "b": jnp.ones(7)}
    report = reported(raw | {"a": raw["a"].at[3].set(wrong)}, upload)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(report.update))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(reported(raw, upload).update))  # the twin


def reported(update, upload):
    return sent(update, upload)[1]


@pytest.mark.parametrize("bits", [8, 16])
def test_no_value_is_rounded_to_a_level_that_its_bits_do_not_have(bits):
    most = 2 ** (bits - 1) - 1
    drawn = jax.vmap(lambda key: round_at_random(jnp.array([1.0, -1.0]), bits, key))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    assert int(np.max(np.round(np.abs(drawn) * most))) <= most


def test_padding_is_not_a_step_in_a_small_upload_of_a_deep_model_with_short_steps():
    """Side by side, how much of it there is depends on who else is trained: not one bit of a report
    may.
    """
    model = deep_lstm(12, 4, 4, 2, tied=True, dropout_rate=0.3, variational=True)
    local = LocalTraining(learning_rate=0.5, epochs=2, keyed=True, gradient_norm=0.5)
    update = compress_updates(fedavg_update(sgd_step(model), local), 0.3, 8)
    message = Message(model.init(jax.random.key(1)), Public(jnp.float32(0.5)))
    batches = (
        jnp.zeros((5, 2, 4), jnp.int32)
        .at[:2]
        .set(jax.random.randint(jax.random.key(2), (2, 2, 4), 4, 12))
    )

    @jax.jit
    def report(steps):
        key = jax.random.key(3)
        made = update(message, UserData(batches, jnp.float32(1), steps), key)
        return encode(flat_clip(0.5), Public(jnp.float32(0.5)), made, jnp.float32(1), key)

    two, five, one = (jax.tree.leaves(report(jnp.int32(steps)).update) for steps in (2, 5, 1))
    assert all(np.array_equal(*pair) for pair in zip(two, five, strict=True))
    assert not all(
        np.array_equal(*pair) for pair in zip(two, one, strict=True)
    )  # the twin: a step of text is one
