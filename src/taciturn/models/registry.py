"""Every kind of model, in one table.

The table says how it is built from a recipe's settings, how it reads word by word, and how it can
be exported.

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
    """What the rest of Taciturn must know of a kind of model."""

    # Of the number of words, and its settings by name.
    network: Callable[..., LanguageModel]
    # Those of a recipe's [model] that it uses, and `product`, the type of its matrix products.
    settings: tuple[str, ...]
    # For typing and sampling: `stepping.recurrent`, which exports to ONNX, or a subclass of
    # `Windowed`.
    stepper: Stepper = Windowed
    # Its name in export/runtime/runtime.js; None: there is no export as a script.
    javascript_cell: str | None = None

    def build(self, vocabulary: int, given: Mapping[str, Any]) -> LanguageModel:
        """Build the network; it has its own defaults for what is not given."""
        settings = {name: given[name] for name in self.settings if given.get(name) is not None}
        return self.network(vocabulary, **settings)


KINDS = {
    "lstm": ModelKind(
        network=lstm,
        settings=("width", "units", "dropout_rate", "product"),
        stepper=recurrent(lstm_cell),
        javascript_cell="lstm",
    ),
    "cifg": ModelKind(
        network=cifg,
        settings=("width", "units", "tied", "dropout_rate", "product"),
        stepper=recurrent(cifg_cell),
        javascript_cell="cifg",
    ),
    "gru": ModelKind(
        network=gru,
        settings=("width", "units", "dropout_rate", "product"),
        stepper=recurrent(gru_cell),
        javascript_cell="gru",
    ),
    "transformer": ModelKind(
        network=transformer,
        settings=("width", "layers", "heads", "dropout_rate"),
    ),
    "deep-lstm": ModelKind(
        network=deep_lstm,
        settings=("width", "units", "layers", "tied", "dropout_rate", "variational", "product"),
        stepper=Stacked,
    ),
}


def register_model(kind: str, model: ModelKind) -> None:
    """Add your own kind of model, which a recipe may then name as `model.kind`.

    Args:
        kind: its name. A taken one is refused, or a file would not say what it holds.
        model: how to build it, which settings of [model] it has, and how it reads word by word,
            where there is a better way than to read the last words again.

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
    """Return a kind of model by its name.

    Raises:
        ValueError: there is none of this name.
    """
    if kind not in KINDS:
        raise ValueError(
            f"there is no model kind {kind!r}; known are {', '.join(KINDS)}, and your own"
            " (taciturn.register_model)"
        )
    return KINDS[kind]
