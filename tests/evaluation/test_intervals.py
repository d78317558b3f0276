"""Intervals over users."""

import numpy as np
import pytest

from taciturn.evaluation.intervals import jackknife


def test_the_jackknife_of_a_mean_is_students_interval():
    values = np.random.default_rng(0).normal(size=20)
    interval = jackknife(lambda kept: values[kept].mean(), 20)
    assert interval.margin == pytest.approx(2.093024 * values.std(ddof=1) / np.sqrt(20), rel=1e-6)
