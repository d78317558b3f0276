"""A matrix in bytes: a quarter of the size, for phones and pages.

Every output of a product has a scale of its own, so one large weight does not blur the others' (symmetric, −127 … 127).
"""

import numpy as np


def int8(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix [outputs, inputs], an embedding's outputs being its words, to values (int8) · scales[:, None] (float32)."""
    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-12).astype(np.float32) / 127
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales
