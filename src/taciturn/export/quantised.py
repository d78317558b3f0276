"""A recurrent model's weights in bytes: a quarter of the size, for phones and pages.

Every output of a product has a scale of its own, so one large weight does not blur the others' (symmetric, −127 … 127). Biases stay
float32: they are few.
"""

from typing import NamedTuple

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
    words = _int8(weights.words)
    return QuantisedWeights(
        embedding=words if weights.embedding is weights.words else _int8(weights.embedding),
        words=words,
        word_bias=weights.word_bias,
        input=_int8(weights.input.T),
        gate_bias=weights.gate_bias,
        recurrent=_int8(weights.recurrent.T),
        projection=None if weights.projection is None else _int8(weights.projection.T),
        to_context=None if weights.to_context is None else _int8(weights.to_context.T),
    )


def dequantised(weights: QuantisedWeights) -> StepWeights:
    """What the bytes stand for."""
    words = _float32(weights.words)
    return StepWeights(
        embedding=words if weights.embedding is weights.words else _float32(weights.embedding),
        words=words,
        word_bias=weights.word_bias,
        input=_float32(weights.input).T,
        gate_bias=weights.gate_bias,
        recurrent=_float32(weights.recurrent).T,
        projection=None if weights.projection is None else _float32(weights.projection).T,
        to_context=None if weights.to_context is None else _float32(weights.to_context).T,
    )


def _int8(matrix: np.ndarray) -> Int8:
    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-12).astype(np.float32) / 127
    return Int8(np.rint(matrix / scales[:, None]).astype(np.int8), scales)


def _float32(matrix: Int8) -> np.ndarray:
    return matrix.values.astype(np.float32) * matrix.scales[:, None]
