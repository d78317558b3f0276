"""Shapes of Transformers are compared by what they are said to be compared by."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOM = Path(__file__).parents[2] / "experiments" / "transformer"
TINY = """
[[configuration]]
name = "tiny"
epochs = 0.5
batch = 4
rate = 0.03
shape = { width = 16, layers = 1, heads = 2, words = 12, length = 10 }
"""


@pytest.fixture
def shapes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOM))
    import shapes

    yield shapes
    for module in ("shapes", "decoder"):
        sys.modules.pop(module)


@pytest.fixture
def data(tmp_path):
    """A text in which each word follows from the one before."""
    words = np.tile(np.arange(4, 12, dtype=np.uint16), 200)
    np.save(tmp_path / "train.npy", words)
    for name in ("public", "people"):
        offsets = np.array([0, 300, 350])
        np.savez(tmp_path / f"{name}_held_out.npz", tokens=words[:350], offsets=offsets)
    (tmp_path / "list.toml").write_text(TINY)
    return tmp_path


def test_the_page_has_the_table_of_the_results(shapes):
    page = (ROOM / "README.md").read_text().splitlines()
    results = shapes.load_results(ROOM / "results.json")
    assert set(shapes.print_table(results)) <= set(page)
    listed = {each.name for each in shapes.load_list(ROOM / "shapes.toml")}
    assert listed == set(results)
    # The twin: another figure would be another table.
    results["base 384 × 6"]["people"]["top1"] += 0.01
    assert not set(shapes.print_table(results)) <= set(page)


def test_a_shape_learns_and_is_trained_once(shapes, data, capsys):
    arguments = [str(data), str(data / "list.toml"), str(data / "results.json")]
    shapes.main(arguments)
    figures = json.loads((data / "results.json").read_text())["tiny"]
    assert figures["people"]["tokens"] == 350
    # What a guess would have is 1 in 8.
    assert figures["people"]["top1"] > 25
    assert "tiny: " in capsys.readouterr().out
    shapes.main(arguments)
    assert "tiny: " not in capsys.readouterr().out


@pytest.mark.parametrize("is_llama", [True, False])
def test_no_word_is_read_before_it_is_asked_for(shapes, is_llama):
    shape = shapes.Shape(width=16, layers=2, heads=2, words=50, is_llama=is_llama, length=12)
    params = shapes.init(shape, jax.random.key(0))
    tokens = jnp.arange(12)[None] + 20
    changed = tokens.at[0, 6].set(5)
    before, after = [
        np.asarray(shapes.contexts(params, read, shape, 0.0, jax.random.key(0)), np.float32)[0]
        for read in (tokens, changed)
    ]
    assert np.array_equal(before[:6], after[:6])
    # The twin: it would be seen, as it is by the words after it.
    assert not np.array_equal(before[6:], after[6:])


def test_the_loss_has_the_slope_that_it_should_have(shapes):
    keys = jax.random.split(jax.random.key(0), 3)
    scores = jax.random.normal(keys[0], (2, 5, 30))
    targets = jax.random.randint(keys[1], (2, 5), 0, 30)
    weights = jax.random.normal(keys[2], (2, 5))

    def plainly(scores):
        logarithms = jnp.take_along_axis(jax.nn.log_softmax(scores), targets[..., None], axis=-1)
        return -jnp.sum(logarithms[..., 0] * weights)

    ours = jax.grad(lambda scores: jnp.sum(shapes.surprise(scores, targets) * weights))(scores)
    np.testing.assert_allclose(ours, jax.grad(plainly)(scores), atol=1e-6)


def test_a_document_is_learned_from_or_measured_with(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOM))
    import prepare

    rng = np.random.default_rng(0)
    documents = [rng.integers(16, 1_000, 20, np.uint16) for _ in range(2_000)]
    stream, held_out = prepare.split_documents(documents)
    assert 20 < len(held_out) < 60
    starts = np.flatnonzero(stream == prepare.BEGIN)
    learned = {piece.tobytes() for piece in np.split(stream, starts)[1:]}
    assert len(learned) + len(held_out) == len(documents)
    begin = np.array([prepare.BEGIN], np.uint16)
    assert not learned & {np.concatenate([begin, each]).tobytes() for each in held_out}
    # The twin: another copy of what is held out is held out too.
    assert len(prepare.split_documents([*documents, *held_out])[1]) == 2 * len(held_out)
    sys.modules.pop("prepare")
