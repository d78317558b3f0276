"""Every kind of noise, in one table: how it is drawn, what its definition is, what optimises it.

A kind is what a recipe names as `privacy.noise`. Its mathematics is in privacy/noise/correlated.py
and privacy/noise/sensitivity.py; what it goes with in a recipe follows from its row here
(recipe/rules.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from taciturn.core import Strategy
from taciturn.names import NoiseName
from taciturn.privacy.noise import correlated, sensitivity
from taciturn.privacy.noise.optimal_coefficients import optimal_bands, optimal_blt
from taciturn.privacy.noise.rows import toeplitz_rows, tree_rows
from taciturn.privacy.noise.white import Noise, gaussian

# Of one segment, by name.
Coefficients = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The rows of noise between two restarts, and their coefficients, where the kind has any."""

    rows: int
    coefficients: Coefficients


@dataclass(frozen=True, kw_only=True)
class Search:
    """What the coefficients of a segment are to be best for."""

    rows: int
    min_separation: int
    # Of a user, in the whole run.
    max_participations: int
    # The most bands or buffers; each kind has one or the other.
    bands: int
    buffers: int = 3


@dataclass(frozen=True, kw_only=True)
class NoiseKind:
    """What the rest of Taciturn must know of a kind of noise."""

    # Of a noise multiplier and the segments of a run.
    draw: Callable[[float, list[Segment]], Noise]
    # As planning sees a run without restarts, with coefficients that were just optimised.
    strategy: Callable[[Segment], Strategy]
    # [rows, draws] of a segment, as papers define them, for the audit; the flag says whether the
    # noise starts anew after it.
    rows: Callable[[Segment, bool], np.ndarray]
    # Names of the coefficients, in `privacy.strategy`, and what works them out.
    coefficients: tuple[str, ...] = ()
    optimize: Callable[[Search], Coefficients] | None = None
    is_correlated: bool = True
    # Whether rows that are `privacy.bands` apart share no noise.
    has_bands: bool = False
    # What it is, where it only serves to reproduce papers.
    for_papers: str | None = None


# Independent noise.


def _draw_independent(multiplier: float, segments: list[Segment]) -> Noise:
    return gaussian(multiplier)


def _independent_strategy(segment: Segment) -> Strategy:
    return sensitivity.independent(segment.rows)


def _independent_rows(segment: Segment, is_restarted: bool) -> np.ndarray:
    return np.eye(segment.rows)


# Trees.


def _draw_tree(honaker: bool, multiplier: float, segments: list[Segment]) -> Noise:
    lengths = [segment.rows for segment in segments]
    return correlated.tree(multiplier, *lengths, honaker=honaker)


def _tree_strategy(honaker: bool, segment: Segment) -> Strategy:
    return sensitivity.tree(segment.rows, honaker=honaker)


def _tree_rows(honaker: bool, segment: Segment, is_restarted: bool) -> np.ndarray:
    # A tree is completed before another begins.
    return tree_rows(segment.rows, honaker=honaker, is_completed=is_restarted)


# Banded Toeplitz noise.


def _draw_banded(multiplier: float, segments: list[Segment]) -> Noise:
    bands = []
    for segment in segments:
        coefficients = segment.coefficients["bands"]
        bands.append(correlated.Bands(segment.rows, coefficients))
    return correlated.banded_toeplitz(multiplier, *bands)


def _banded_column(segment: Segment) -> np.ndarray:
    bands = segment.coefficients["bands"]
    return np.append(bands, np.zeros(segment.rows))[: segment.rows]


def _banded_strategy(segment: Segment) -> Strategy:
    bands = len(segment.coefficients["bands"])
    return sensitivity.toeplitz(f"{bands}-banded Toeplitz", _banded_column(segment))


def _banded_rows(segment: Segment, is_restarted: bool) -> np.ndarray:
    return toeplitz_rows(_banded_column(segment))


def _optimize_bands(search: Search) -> Coefficients:
    """Return as many bands as are sought; a segment with fewer rows has zeros for the rest."""
    bands = optimal_bands(search.rows, min(search.bands, search.rows))["bands"]
    unused = [0.0] * (search.bands - len(bands))
    return {"bands": bands + unused}


# Buffered linear Toeplitz noise.


def _draw_blt(multiplier: float, segments: list[Segment]) -> Noise:
    buffers = []
    for segment in segments:
        buffers.append(
            correlated.Buffers(
                rows=segment.rows,
                decay=segment.coefficients["decay"],
                scale=segment.coefficients["scale"],
            )
        )
    return correlated.blt(multiplier, *buffers)


def _blt_column(segment: Segment) -> np.ndarray:
    return sensitivity.blt_coefficients(
        decay=segment.coefficients["decay"],
        scale=segment.coefficients["scale"],
        rows=segment.rows,
    )


def _blt_strategy(segment: Segment) -> Strategy:
    return sensitivity.toeplitz("BLT", _blt_column(segment))


def _blt_rows(segment: Segment, is_restarted: bool) -> np.ndarray:
    return toeplitz_rows(_blt_column(segment))


def _optimize_blt(search: Search) -> Coefficients:
    possible = sensitivity.most_participations(search.rows, search.min_separation)
    return optimal_blt(
        rounds=search.rows,
        min_separation=search.min_separation,
        max_participations=min(search.max_participations, possible),
        buffers=search.buffers,
    )


# In the order of `names.NoiseName`.
NOISES: dict[NoiseName, NoiseKind] = {
    "independent": NoiseKind(
        draw=_draw_independent,
        strategy=_independent_strategy,
        rows=_independent_rows,
        is_correlated=False,
        has_bands=True,
    ),
    "tree": NoiseKind(
        draw=partial(_draw_tree, False),
        strategy=partial(_tree_strategy, False),
        rows=partial(_tree_rows, False),
    ),
    "honaker": NoiseKind(
        draw=partial(_draw_tree, True),
        strategy=partial(_tree_strategy, True),
        rows=partial(_tree_rows, True),
        for_papers="a tree whose nodes are also estimated from their children",
    ),
    "banded": NoiseKind(
        draw=_draw_banded,
        strategy=_banded_strategy,
        rows=_banded_rows,
        coefficients=("bands",),
        optimize=_optimize_bands,
        has_bands=True,
    ),
    "blt": NoiseKind(
        draw=_draw_blt,
        strategy=_blt_strategy,
        rows=_blt_rows,
        coefficients=("decay", "scale"),
        optimize=_optimize_blt,
    ),
}
# The noise without correlation, which others are compared with.
UNCORRELATED: NoiseName = "independent"
# The noise that a plan is made for, where none is named.
LEAST_ERROR: NoiseName = "blt"


def noises_with(condition: Callable[[NoiseKind], bool]) -> tuple[NoiseName, ...]:
    """Return the names of the kinds that meet a condition."""
    return tuple(name for name, kind in NOISES.items() if condition(kind))


def split_by_segment(lengths: Sequence[int], strategy: Coefficients | None) -> list[Segment]:
    """Return segments of these lengths.

    Args:
        lengths: in rows.
        strategy: the coefficients of all segments, one after another, if there are any.
    """
    by_name = {}
    for name, values in (strategy or {}).items():
        by_segment = np.reshape(values, (len(lengths), -1))
        by_name[name] = by_segment.tolist()
    segments = []
    for number, rows in enumerate(lengths):
        coefficients = {name: values[number] for name, values in by_name.items()}
        segments.append(Segment(rows=rows, coefficients=coefficients))
    return segments
