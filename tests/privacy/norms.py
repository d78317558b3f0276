"""Norms that are hard to round: values of every size at which a bound once failed, and the truth.

Run it on any machine to see whether `norm_upper_bound` is a bound there, and reports are short:

    PYTHONPATH=src python tests/privacy/norms.py --out norms.json
"""

import argparse
import json
import math
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import trees
from taciturn.core import Public, PyTree, Report
from taciturn.privacy.bounding.clipping import REACH, encode, flat_clip, unpack
from taciturn.privacy.noise import int64

LARGEST_SIZE = 10**7
# Of the largest leaf: XLA merged the two levels of an earlier sum at these.
MERGED = (1000, 1408, 1536, 2010, 3000, 3163, 3600, 3694, 4032, 4093, 4094, 4098, 4099, 4100)
POWERS = (1, 3, 4, 5, 8, 10, 11, 12, 14, 16, 20, 23)
DRAWN = 150
SEED = 0
CLIP_NORM = 0.8
# One user's values by themselves, as on a device, or all patterns in one program, as users are in
# a simulation: compilers may sum in another order.
ARRANGEMENTS = ("alone", "side by side")
MOST_PROCESSES = 12

# Of a compiled program: what adds two floats, and where it is applied to many.
ADDITION = re.compile(
    r"%([\w.-]+) \([^\n]*-> f32\[\] \{\n(?:  %[^\n]*\n)*  ROOT %[\w.-]+ = f32\[\] add\("
)
REDUCTION = re.compile(r"= f32\[([\d,]*)\]\S* reduce\(%([\w.-]+), [^\n]*to_apply=%([\w.-]+)")
WINDOWS = re.compile(r" reduce-window\([^\n]*window=\{size=([\dx]+)[^\n]*to_apply=%([\w.-]+)")

Norm = Callable[[PyTree], jax.Array]


class Measured(NamedTuple):
    """What was seen of a pattern."""

    size: int
    pattern: str
    arrangement: str
    # The true norm, as a share of the bound.
    ratio: float
    # The length of the report, in clip norms.
    length: float
    # How many numbers the compiled program adds up in one sum, at most.
    summands: int


def sizes() -> list[int]:
    """Two hundred sizes: powers of two and their neighbours, those of `MERGED`, and drawn ones."""
    chosen = [2**power + more for power in POWERS for more in (-1, 0, 1)]
    chosen += MERGED
    generator = np.random.default_rng(SEED)
    wanted = len(chosen) + DRAWN
    while len(chosen) < wanted:
        drawn = math.floor(math.exp(generator.uniform(0, math.log(LARGEST_SIZE + 1))))
        if drawn not in chosen:
            chosen.append(drawn)
    return chosen


def one_large_first(size: int) -> np.ndarray:
    """Squares that vanish one by one beside the first."""
    values = np.full(size, 2.0**-12, np.float32)
    values[0] = 1
    return values


def one_large_last(size: int) -> np.ndarray:
    """Squares that are each rounded down beside a large one."""
    values = np.full(size, 1.2 * 2.0**-12, np.float32)
    values[-1] = 1
    return values


def alike(size: int) -> np.ndarray:
    """Values whose squares are all rounded in the same direction."""
    return np.full(size, 0.1, np.float32)


def normal(size: int) -> np.ndarray:
    """Values as they come."""
    return np.random.default_rng(size).normal(size=size).astype(np.float32)


def of_many_scales(size: int) -> np.ndarray:
    """Values from 1e-12 to 1e12, and beyond."""
    return np.exp(8 * np.random.default_rng(size).normal(size=size)).astype(np.float32)


PATTERNS = (one_large_first, one_large_last, alike, normal, of_many_scales)


def true_norm_of(values: np.ndarray) -> float:
    """The square of a float32 is a float64; to add ten million, in pairs, loses less than 1e-14."""
    return math.sqrt(np.sum(np.square(values.astype(np.float64))))


def just_clipped(values: np.ndarray) -> np.ndarray:
    """Values of a norm between one and two: more than the clip norm, and scaled without rounding.

    (Of those that become subnormal, nothing is left in a report.)
    """
    _, exponent = math.frexp(true_norm_of(values))
    return np.ldexp(values, 1 - exponent)


def length_of(report: Report) -> float:
    """The length of a report in clip norms, of the integers that it is."""
    layers = jax.tree.leaves(
        unpack(Public(jnp.float32(CLIP_NORM)), report.update), is_leaf=int64.is_int64
    )
    steps = [int64.to_numpy(layer).ravel() for layer in layers]
    return true_norm_of(np.concatenate(steps)) / REACH


def longest_sum(program: str) -> int:
    """How many floats a compiled program adds up in one sum, at most."""
    shapes = dict(re.findall(r"%([\w.-]+) = f32\[([\d,]*)\]", program))
    additions = set(ADDITION.findall(program))
    summands = [1]
    for result, operand, adder in REDUCTION.findall(program):
        if adder in additions:
            summands.append(_count(shapes[operand]) // _count(result))
    for window, adder in WINDOWS.findall(program):
        if adder in additions:
            summands.append(_count(window))
    return max(summands)


def _count(shape: str) -> int:
    return math.prod(int(extent) for extent in re.findall(r"\d+", shape))


def measure(
    size: int,
    arrangements: Sequence[str] = ARRANGEMENTS,
    norm: Norm = trees.norm_upper_bound,
    encode: Callable[..., Report] = encode,
) -> list[Measured]:
    """Measure the bound and the report of each pattern of one size."""
    clip = flat_clip(CLIP_NORM)

    def bound_and_report(values: jax.Array, scaled: jax.Array) -> tuple[jax.Array, Report]:
        public = clip.public(jnp.int32(0))
        report = encode(clip, public, {"a": scaled}, jnp.float32(1), jax.random.key(0))
        return norm({"a": values}), report

    values = np.stack([pattern(size) for pattern in PATTERNS])
    scaled = np.stack([just_clipped(row) for row in values])
    truths = [true_norm_of(row) for row in values]
    measured = []
    for arrangement in arrangements:
        if arrangement == "alone":
            program = jax.jit(bound_and_report).lower(values[0], scaled[0]).compile()
            results = [program(*pair) for pair in zip(values, scaled, strict=True)]
        else:
            program = jax.jit(jax.vmap(bound_and_report)).lower(values, scaled).compile()
            bounds, reports = program(values, scaled)
            results = [(bounds[row], _row_of(reports, row)) for row in range(len(PATTERNS))]
        summands = longest_sum(program.as_text() or "")
        for pattern, truth, (bound, report) in zip(PATTERNS, truths, results, strict=True):
            measured.append(
                Measured(
                    size=size,
                    pattern=pattern.__name__,
                    arrangement=arrangement,
                    ratio=truth / float(bound),
                    length=length_of(jax.device_get(report)),
                    summands=summands,
                )
            )
    return measured


def _row_of(reports: Report, row: int) -> Report:
    return jax.tree.map(lambda leaf: leaf[row], reports)


def summarise(measured: list[Measured]) -> dict[str, dict[str, float | str]]:
    """The largest ratio and the longest report of each pattern, and where."""
    worst = {}
    for pattern in PATTERNS:
        own = [one for one in measured if one.pattern == pattern.__name__]
        ratio = max(own, key=lambda one: one.ratio)
        length = max(own, key=lambda one: one.length)
        worst[pattern.__name__] = {
            "norm / bound": ratio.ratio,
            "at": f"{ratio.size} values, {ratio.arrangement}",
            "report / clip norm": length.length,
            "report at": f"{length.size} values, {length.arrangement}",
        }
    return worst


def _device() -> str:
    device = jax.local_devices()[0]
    return f"{device.platform}: {device.device_kind}"


def main() -> None:
    """Measure all sizes, several at a time: most of the time goes into compiling."""
    parser = argparse.ArgumentParser(description="Is `norm_upper_bound` a bound here?")
    parser.add_argument("--out", type=Path, help="write what was found to this file")
    path = parser.parse_args().out
    began = time.monotonic()
    # Else the first process takes all of a GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # The largest take longest.
    chosen = sorted(sizes(), reverse=True)
    with ProcessPoolExecutor(
        max_workers=min(MOST_PROCESSES, os.cpu_count() or 1),
        mp_context=multiprocessing.get_context("spawn"),
    ) as pool:
        device = pool.submit(_device)
        each = [pool.submit(measure, size) for size in chosen]
        measured = [one for future in each for one in future.result()]
    worst = summarise(measured)
    is_bound = all(one.ratio <= 1 and one.length <= 1 for one in measured)
    found = {
        "jax": jax.__version__,
        "device": device.result(),
        "sizes": len(chosen),
        "largest size": max(chosen),
        "seed": SEED,
        "arrangements": list(ARRANGEMENTS),
        "measured": len(measured),
        "is a bound": is_bound,
        "longest sum": max(one.summands for one in measured),
        "worst": worst,
    }
    text = json.dumps(found, indent=2) + "\n"
    print(text, end="")
    print(f"{time.monotonic() - began:.0f} s")
    if path:
        path.write_text(text)
    if not is_bound:
        raise SystemExit("norm_upper_bound is not a bound on this machine")


if __name__ == "__main__":
    main()
