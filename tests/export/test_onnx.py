"""What onnxruntime says is what the model says, from files small enough for a phone."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pages import in_bytes
from taciturn.core import BEGIN, END
from taciturn.export.onnx import onnx_model, onnx_scores
from taciturn.models.cells import cifg, cifg_cell, gru, gru_cell, lstm, lstm_cell
from taciturn.models.stepping import Recurrent, step_weights
from taciturn.release.gate import ExportRefused

onnxruntime = pytest.importorskip("onnxruntime")
MODELS = {
    "lstm": lstm(40, 8, 12),
    "cifg": cifg(40, 8, 12),
    "cifg tied": cifg(40, 8, 12, tied=True),
    "gru": gru(40, 8, 12),
}
TEXT = np.random.default_rng(0).integers(1, 40, 25)
CELLS = {"lstm": lstm_cell, "cifg": cifg_cell, "gru": gru_cell}


def content_of(kind: str, weights, never, restarts=(), about=None, as_bytes: bool = False) -> bytes:
    graph = onnx_model(
        cell=CELLS[kind],
        weights=weights,
        never=never,
        restarts=restarts,
        about=about or {},
        as_bytes=as_bytes,
    )
    return graph.SerializeToString()


def weights_of(name: str):
    return step_weights(
        MODELS[name], jax.tree.map(lambda leaf: 2 * leaf, MODELS[name].init(jax.random.key(1)))
    )


def said(cell, weights, restarts=()) -> np.ndarray:
    model = Recurrent(CELLS[cell], weights, restarts)
    state = model.start()
    rows = [model.scores(state)]
    for word in TEXT.tolist():
        state = model.read(state, word)
        rows.append(model.scores(state))
    return np.stack(rows)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("restarts", [(), (5, 9)])
def test_the_graph_says_what_the_model_says(name, restarts):
    cell, weights = name.split()[0], weights_of(name)
    content = content_of(cell, weights, [BEGIN], restarts)
    np.testing.assert_allclose(onnx_scores(content, TEXT), said(cell, weights, restarts), atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_of_bytes_says_what_the_bytes_stand_for(name):
    cell, weights = name.split()[0], weights_of(name)
    content = content_of(cell, weights, [BEGIN], as_bytes=True)
    scores = onnx_scores(content, TEXT)
    np.testing.assert_allclose(scores, said(cell, in_bytes(weights)), atol=1e-4)
    assert not np.allclose(
        scores, said(cell, weights), atol=1e-4
    )  # the twin: they are other numbers


def test_a_gate_left_out_would_be_noticed():
    weights = weights_of("cifg")
    content = content_of("cifg", weights._replace(gate_bias=weights.gate_bias + 1), [BEGIN])
    assert not np.allclose(onnx_scores(content, TEXT), said("cifg", weights), atol=1e-3)


def test_a_cell_of_what_onnx_has_no_node_for_is_refused():
    with pytest.raises(ExportRefused, match="not of cos"):
        onnx_model(
            cell=lambda x, r, carry: (jnp.cos(carry), carry),
            weights=weights_of("gru"),
            never=[],
            restarts=[],
            about={},
            as_bytes=False,
        )


def test_bytes_are_near_the_numbers_they_stand_for():
    weights = weights_of("cifg")
    for one, other in zip(weights, in_bytes(weights), strict=True):
        if one is not None:
            assert np.abs(one - other).max() <= np.abs(one).max() / 254 * 1.01


def test_a_tied_embedding_is_stored_once():
    tied, free = (
        len(content_of("cifg", weights_of(name), [], as_bytes=True))
        for name in ("cifg tied", "cifg")
    )
    assert free - tied > 40 * 8 * 0.9


@pytest.mark.parametrize(("tied", "megabytes"), [(True, 1.6), (False, 2.8)])
def test_gboards_models_fit_into_the_stated_megabytes(tied, megabytes):
    model = cifg(10_000, tied=tied)
    weights = step_weights(model, model.init(jax.random.key(0)))
    assert len(content_of("cifg", weights, range(4), as_bytes=True)) < megabytes * 1e6


def test_special_tokens_and_blocked_words_are_never_among_the_best():
    weights = weights_of("cifg")
    favourite = int(np.argmax(said("cifg", weights)[0]))
    for never in ([0, 1, 2, 3], [0, 1, 2, 3, favourite]):
        content = content_of("cifg", weights, never)
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        zeros = {
            one.name: np.zeros((1, one.shape[1]), np.float32)
            for one in session.get_inputs()
            if one.name != "word"
        }
        (best,) = session.run(["top_words"], {"word": np.array([BEGIN]), **zeros})
        assert not set(never) & set(best[0].tolist())
        assert len(set(best[0].tolist())) == 10


def test_a_graph_takes_several_texts_at_once_and_carries_its_guarantee():
    about = {"guarantee": '{"epsilon": 8}'}
    content = content_of("gru", weights_of("gru"), [], (END,), about)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    states = {
        one.name: np.zeros((5, one.shape[1]), np.float32)
        for one in session.get_inputs()
        if one.name != "word"
    }
    (logits,) = session.run(["logits"], {"word": np.arange(5), **states})
    assert logits.shape == (5, 40)
    kept = session.get_modelmeta().custom_metadata_map
    assert json.loads(kept["guarantee"]) == {"epsilon": 8}
    assert json.loads(kept["restarts"]) == [END]
