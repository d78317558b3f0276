"""A recurrent model's weights in bytes: a quarter of the size, for phones and pages.

Every output of a product has a scale of its own, so one large weight does not blur the others' (symmetric, −127 … 127). Biases stay
float32: they are few.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from taciturn.models.stepping import StepWeights


class Int8(NamedTuple):
    """A matrix ≈ values · scales[:, None]."""

    values: np.ndarray  # int8 [outputs, inputs]
    scales: np.ndarray  # float32 [outputs]


class QuantisedWeights(NamedTuple):
    """`StepWeights` with each matrix as rows of outputs; an embedding's rows are words."""

    embedding: Int8
    words: Int8  # the same object where they are tied
    word_bias: np.ndarray
    input: Int8
    gate_bias: np.ndarray
    recurrent: Int8
    projection: Int8 | None
    to_context: Int8 | None


def quantised(weights: StepWeights) -> QuantisedWeights:
    return QuantisedWeights(**_converted(weights, _int8, lambda matrix: _int8(matrix.T)))


def dequantised(weights: QuantisedWeights) -> StepWeights:
    """What the bytes stand for."""
    return StepWeights(**_converted(weights, _float32, lambda matrix: _float32(matrix).T))


def _converted(weights: StepWeights | QuantisedWeights, rows: Callable[[Any], Any], turned: Callable[[Any], Any]) -> dict[str, Any]:
    """Rows of words as they are, all other matrices turned, biases not at all."""
    names = ("input", "recurrent", "projection", "to_context")
    found = {name: turned(one) for name in names if (one := getattr(weights, name)) is not None}
    words = rows(weights.words)
    tied = weights.embedding is weights.words
    return weights._asdict() | found | {"words": words, "embedding": words if tied else rows(weights.embedding)}


def _int8(matrix: np.ndarray) -> Int8:
    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-12).astype(np.float32) / 127
    return Int8(np.rint(matrix / scales[:, None]).astype(np.int8), scales)


def _float32(matrix: Int8) -> np.ndarray:
    return matrix.values.astype(np.float32) * matrix.scales[:, None]
