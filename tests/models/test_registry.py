"""A kind of model that is not in the package: trained from a recipe, saved, resumed, exported and
audited like those that are.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import Cut, cut_at, tiny_recipe
from taciturn.audit.results import audit_membership
from taciturn.core import BEGIN, LanguageModel
from taciturn.export.word_model import load_word_model
from taciturn.models import registry
from taciturn.models.layers import dense, embedding
from taciturn.models.registry import ModelKind, model_kind, register_model
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError, model_settings
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import ModelCard, ModelFileError, save_model
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import recipe_of
from taciturn.runs.loop import resume_run, train_run


def last_word(vocabulary: int, width: int) -> LanguageModel:
    """Knows the last word, and no other."""

    def init(key):
        keys = jax.random.split(key)
        return {
            "embedding": embedding(keys[0], (vocabulary, width)),
            "turned": dense(keys[1], (width, width)),
            "word_bias": jnp.zeros(vocabulary),
        }

    return LanguageModel(
        init,
        lambda params, tokens, key: params["embedding"][tokens] @ params["turned"],
        lambda params: (params["embedding"], params["word_bias"]),
    )


@pytest.fixture
def own_kind(monkeypatch):
    monkeypatch.setattr(registry, "KINDS", dict(registry.KINDS))
    register_model("last-word", ModelKind(last_word, settings=("width",)))
    return "last-word"


def test_a_recipe_takes_your_own_kind_of_model_once_it_is_registered(own_kind):
    assert model_settings([f"kind={own_kind}"]).kind == own_kind
    with pytest.raises(
        RecipeError,
        match=r"kind: there is no model kind 'lats-word'; known are lstm, .*, last-word",
    ):
        model_settings(["kind=lats-word"])


@pytest.mark.parametrize("taken", ["cifg", "ngram", "last-word"])
def test_a_name_stands_for_one_kind(own_kind, taken):
    with pytest.raises(ValueError, match="already"):
        register_model(taken, model_kind(own_kind))


def test_without_registration_a_kind_is_unknown():
    with pytest.raises(ValueError, match="no model kind 'last-word'"):
        ModelSection(kind="last-word")


def test_it_is_trained_resumed_measured_exported_and_audited(own_kind, population, tmp_path):
    recipe = tiny_recipe(
        population,
        model={"kind": own_kind, "units": None},
        audit={"users": 48},
        run={"seed": None},
    )
    with pytest.raises(Cut):
        train_run(recipe, tmp_path / "run", cut_at(3))
    resume_run(tmp_path / "run", lambda done, rounds, row: None)
    found = audit_membership(tmp_path / "run", recipe_of(tmp_path / "run"))
    assert found
    assert found.audit.included + found.audit.left_out
    assert FinishedRun(tmp_path / "run").evaluate().scores["loss"].value > 0
    few = {"words": 16_000, "entries": 500}
    assert FinishedRun(tmp_path / "run").export(tmp_path / "arpa", "arpa", **few).check
    with pytest.raises(ExportRefused, match="`to=arpa`"):
        FinishedRun(tmp_path / "run").export(tmp_path / "onnx", "onnx")
    FinishedRun(tmp_path / "run").export(tmp_path / "model")
    assert load_word_model(tmp_path / "model").model.start() == (BEGIN,)


def test_a_file_of_a_kind_that_was_never_registered_is_refused_in_a_sentence(vocabulary, tmp_path):
    card = ModelCard(
        architecture={"kind": "last-word"}, vocabulary=vocabulary.words, text=vocabulary.about
    )
    save_model(tmp_path / "model.safetensors", {"embedding": np.zeros((1, 1))}, card)
    with pytest.raises(ModelFileError, match="no model kind 'last-word'"):
        _ = load_word_model(tmp_path).model
