"""Every kind of model, in one table: how a recipe's settings become it, how it goes word by word, and as what it can leave.

A kind of one's own is a row like the others. Registered before a recipe names it, it is trained, saved, resumed, exported and audited
as these are; without a stepper or cells of its own it goes word by word as any model can, and leaves as n-grams:

    register("bag-of-words", ModelKind(lambda settings, vocabulary, product: bag_of_words(vocabulary, settings.width)))
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from jax.typing import DTypeLike

from taciturn.core import LanguageModel
from taciturn.models import cifg, deep_lstm, gru, lstm
from taciturn.models.recurrence import OnnxCell
from taciturn.models.stepping import Stepper, Windowed, recurrent
from taciturn.models.transformer import transformer


class Settings(Protocol):
    """A recipe's [model]. A kind uses what it has a use for."""

    width: int
    units: int | None
    tied: bool
    layers: int
    heads: int
    dropout: float
    variational: bool


class ModelKind(NamedTuple):
    network: Callable[
        [Settings, int, DTypeLike], LanguageModel
    ]  # of so many words; the type is that of matrix products
    stepper: Stepper = Windowed  # for typing and sampling: `stepping.recurrent`, or a subclass of `Windowed`
    onnx_cell: OnnxCell | None = None  # these two of recurrent kinds; None: it cannot leave as ONNX,
    javascript_cell: str | None = None  # nor as a script, where this is its name in export/runtime/runtime.js


_KINDS = {
    "lstm": ModelKind(
        lambda of, vocabulary, product: lstm.lstm(
            vocabulary, of.width, of.units or 256, dropout_rate=of.dropout, product=product
        ),
        recurrent(lstm.cell),
        lstm.onnx_cell,
        "lstm",
    ),
    "cifg": ModelKind(
        lambda of, vocabulary, product: cifg.cifg(
            vocabulary, of.width, of.units or 670, tied=of.tied, dropout_rate=of.dropout, product=product
        ),
        recurrent(cifg.cell),
        cifg.onnx_cell,
        "cifg",
    ),
    "gru": ModelKind(
        lambda of, vocabulary, product: gru.gru(
            vocabulary, of.width, of.units or 256, dropout_rate=of.dropout, product=product
        ),
        recurrent(gru.cell),
        gru.onnx_cell,
        "gru",
    ),
    "transformer": ModelKind(
        lambda of, vocabulary, _: transformer(vocabulary, of.width, of.layers, of.heads, dropout_rate=of.dropout)
    ),
    "deep-lstm": ModelKind(
        lambda of, vocabulary, product: deep_lstm.deep_lstm(
            vocabulary, of.width, of.units or 650, of.layers, of.tied, of.dropout, of.variational, product
        ),
        deep_lstm.Stacked,
    ),
}


def register(kind: str, model: ModelKind) -> None:
    """Add a kind of one's own. A name that is taken is refused, or a file would not say what it holds."""
    if kind in (*_KINDS, "ngram"):
        raise ValueError(f"there is a model kind {kind!r} already; choose another name for yours")
    _KINDS[kind] = model


def known_kinds() -> tuple[str, ...]:
    return tuple(_KINDS)


def model_kind(kind: str) -> ModelKind:
    if kind not in _KINDS:
        raise ValueError(
            f"there is no model kind {kind!r}; known are {', '.join(_KINDS)}, and those that your program registers first "
            "(taciturn.models.registry.register)"
        )
    return _KINDS[kind]
