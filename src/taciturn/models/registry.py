"""Every kind of model, in one table: how it is built from a recipe's settings, how it reads word by
word, and how it can be exported.

Your own kind is a row like the others. Registered before a recipe names it, it is trained, saved,
resumed, exported and audited like these; without its own stepper it reads word by word as any model
can, and exports as n-grams (examples/own_model.py).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from taciturn.core import LanguageModel
from taciturn.models.cells import cifg, cifg_cell, gru, gru_cell, lstm, lstm_cell
from taciturn.models.deep_lstm import Stacked, deep_lstm
from taciturn.models.stepping import Stepper, Windowed, recurrent
from taciturn.models.transformer import transformer


class ModelKind(NamedTuple):
    # (number of words, settings)
    network: Callable[..., LanguageModel]
    # of a recipe's [model] that it uses, and `product`, the type of its matrix products
    settings: tuple[str, ...]
    # for typing and sampling: `stepping.recurrent`, which exports to ONNX, or a subclass of
    # `Windowed`
    stepper: Stepper = Windowed
    # in export/runtime/runtime.js; None: no export as a script
    javascript_cell: str | None = None

    def build(self, vocabulary: int, given: Mapping[str, Any]) -> LanguageModel:
        """Build the network; it has its own defaults for what is not given."""
        known = {name: given[name] for name in self.settings if given.get(name) is not None}
        return self.network(vocabulary, **known)


KINDS = {
    "lstm": ModelKind(
        lstm, ("width", "units", "dropout_rate", "product"), recurrent(lstm_cell), "lstm"
    ),
    "cifg": ModelKind(
        cifg, ("width", "units", "tied", "dropout_rate", "product"), recurrent(cifg_cell), "cifg"
    ),
    "gru": ModelKind(
        gru, ("width", "units", "dropout_rate", "product"), recurrent(gru_cell), "gru"
    ),
    "transformer": ModelKind(transformer, ("width", "layers", "heads", "dropout_rate")),
    "deep-lstm": ModelKind(
        deep_lstm,
        ("width", "units", "layers", "tied", "dropout_rate", "variational", "product"),
        Stacked,
    ),
}


def register_model(kind: str, model: ModelKind) -> None:
    """Add your own kind of model, which a recipe may then name as `model.kind`.

    Args:
        kind: its name. A taken one is refused, or a file would not say what it holds.
        model: how to build it, which settings of [model] it has, and how it reads word by word,
            where there is a better way than to read
            the last words again.

    Returns:
        Nothing. Register it in every process that trains, resumes or loads such a model.

    Example:
        from taciturn.models.cells import gru

        tt.register_model("small-gru", tt.ModelKind(gru, settings=("width", "units")))
    """
    if kind in (*KINDS, "ngram"):
        raise ValueError(f"there is already a model kind {kind!r}; choose another name for yours")
    KINDS[kind] = model


def model_kind(kind: str) -> ModelKind:
    if kind not in KINDS:
        raise ValueError(
            f"there is no model kind {kind!r}; known are {', '.join(KINDS)}, and your own"
            " (taciturn.register_model)"
        )
    return KINDS[kind]
