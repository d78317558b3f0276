"""A matrix in bytes: a quarter of the size, for phones and pages.

Every output of a product has a scale of its own, so one large weight does not blur the others' (symmetric, −127 … 127).
"""

from typing import NamedTuple

import numpy as np


class Int8(NamedTuple):
    """A matrix ≈ values · scales[:, None]."""

    values: np.ndarray  # int8 [outputs, inputs]
    scales: np.ndarray  # float32 [outputs]


def int8(matrix: np.ndarray) -> Int8:
    """Round a matrix [outputs, inputs]; an embedding's outputs are its words."""
    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-12).astype(np.float32) / 127
    return Int8(np.rint(matrix / scales[:, None]).astype(np.int8), scales)
