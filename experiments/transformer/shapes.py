"""Which shape of Transformer types best for its size, before anybody's text is read.

python experiments/transformer/shapes.py DATA LIST RESULTS [--minutes N] [--side-by-side N]
python experiments/transformer/shapes.py --table RESULTS

DATA is a folder made by prepare.py, LIST a TOML file of configurations. They train one after
another, in the order of the list; RESULTS, a JSON file, is written after each, and what is in it
already is skipped. With several side by side one trains while others compile; only one has the
device, so that each step is timed by itself. `--table` prints the results as Markdown.

On a GPU name XLA_FLAGS=--xla_gpu_enable_command_buffer= beforehand: a graph that is being recorded
breaks when another configuration compiles meanwhile.

Everything is measured as the product does, in rows of 200 words: an unknown word always counts as
a mistake, and special tokens do not count as answers.
"""

import argparse
import json
import math
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from decoder import (
    BEGIN,
    PADDING,
    UNKNOWN,
    Params,
    Shape,
    attention,
    contexts,
    count_parameters,
    init,
    mean_loss,
    operations_a_token,
    surprise,
    word_scores,
)

NO_ANSWERS = np.array([PADDING, UNKNOWN, BEGIN])
# Words that a row is measured on.
MEASURED_LENGTH = 200
MEASURED_ROWS = 64
# Steps of one call: about a second on a GPU.
CALL_STEPS = 50
WARM_UP_STEPS = 200
LEAST_RATE = 2e-5
WEIGHT_DECAY = 0.05
# What large products of bf16 reach on an H200, operations a second.
PEAK = 790e12


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A shape, and how it is trained."""

    name: str
    shape: Shape
    epochs: float = 1.0
    batch: int = 256
    rate: float = 1.5e-3
    dropout: float = 0.0
    seed: int = 0
    # Whether the trained model is written beside the results.
    is_kept: bool = False


class Texts(NamedTuple):
    """Texts end to end, and where each starts."""

    tokens: np.ndarray
    offsets: np.ndarray


class Data(NamedTuple):
    train: jax.Array
    # What is measured on, by name: [batches, rows, words + 1].
    held_out: dict[str, jax.Array]


class OutOfTime(Exception):
    """A configuration was not finished in time; it leaves no result."""


# Training


def optimizer() -> optax.GradientTransformation:
    """Return AdamW without its rate, which comes with each step."""

    def is_matrix(params: Params) -> Params:
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(b1=0.9, b2=0.98),
        optax.add_decayed_weights(WEIGHT_DECAY, mask=is_matrix),
    )


def known_words(tokens: jax.Array, words: int) -> jax.Array:
    """Return ids of the shorter list, of which the longer list of the data is a continuation."""
    tokens = tokens.astype(jnp.int32)
    return jnp.where(tokens < words, tokens, UNKNOWN)


@partial(jax.jit, static_argnames=("shape", "dropout"), donate_argnames=("params", "state"))
def train_steps(
    params: Params,
    state: Any,
    train: jax.Array,
    starts: jax.Array,
    rates: jax.Array,
    key: jax.Array,
    *,
    shape: Shape,
    dropout: float,
) -> tuple[Params, Any, jax.Array]:
    """Take a step for each row of `starts`, which says where its windows of text start."""
    window = jnp.arange(shape.length + 1)

    def step(carry: Any, inputs: Any) -> tuple[Any, jax.Array]:
        params, state = carry
        places, rate, key = inputs
        rows = known_words(train[places[:, None] + window], shape.words)
        loss, slope = jax.value_and_grad(mean_loss)(params, rows, shape, dropout, key)
        updates, state = optimizer().update(slope, state, params)
        params = jax.tree.map(lambda leaf, update: leaf - rate * update, params, updates)
        return (params, state), loss

    keys = jax.random.split(key, len(starts))
    (params, state), losses = jax.lax.scan(step, (params, state), (starts, rates, keys))
    return params, state, losses.mean()


def window_starts(tokens: int, length: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return where windows start: in each epoch every token is in one of them, in a new order."""
    epochs = []
    while sum(map(len, epochs)) < count:
        first = rng.integers(length)
        epochs.append(rng.permutation(np.arange(first, tokens - length, length)))
    return np.concatenate(epochs)[:count].astype(np.int32)


def learning_rates(most: float, steps: int) -> np.ndarray:
    """Return a rate for each step: it rises for a while, then falls as a cosine."""
    warm_up = min(WARM_UP_STEPS, steps // 5)
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=most,
        warmup_steps=warm_up,
        decay_steps=steps,
        end_value=LEAST_RATE,
    )
    return np.asarray(schedule(np.arange(steps)), np.float32)


# Measuring


def rows_of(texts: Texts, length: int, rows: int) -> np.ndarray:
    """Cut texts into rows of a word more than `length`, and these into batches.

    Every word is a target once, the first of a text after <bos>.
    """
    pieces = []
    for start, end in zip(texts.offsets[:-1], texts.offsets[1:], strict=True):
        text = np.concatenate([[BEGIN], texts.tokens[start:end]])
        for first in range(0, len(text) - 1, length):
            piece = text[first : first + length + 1]
            pieces.append(np.pad(piece, (0, length + 1 - len(piece))))
    missing = -len(pieces) % rows
    whole = np.pad(np.stack(pieces), ((0, missing), (0, 0)))
    return whole.reshape(-1, rows, length + 1).astype(np.uint16)


@partial(jax.jit, static_argnames="shape")
def count_hits(params: Params, batches: jax.Array, *, shape: Shape) -> jax.Array:
    """Return of each batch the targets, those met first and among the first three, and the loss."""

    def count(rows: jax.Array) -> jax.Array:
        rows = known_words(rows, shape.words)
        targets = rows[:, 1:]
        context = contexts(params, rows[:, :-1], shape, 0.0, jax.random.key(0))
        scores = word_scores(params, context, jnp.float32)
        losses = surprise(scores, targets)
        score = jnp.take_along_axis(scores, targets[..., None], axis=-1)
        is_preferred = (scores > score).at[..., NO_ANSWERS].set(False)
        rank = jnp.sum(is_preferred, axis=-1)
        is_present = targets != PADDING
        is_known = targets > UNKNOWN
        counts = [
            is_present,
            is_known & (rank < 1),
            is_known & (rank < 3),
            jnp.where(is_present, losses, 0),
        ]
        return jnp.stack([jnp.sum(column, dtype=jnp.float32) for column in counts])

    return jax.lax.map(count, batches)


def name_figures(counts: jax.Array) -> dict[str, float]:
    """Return shares of all targets, in %, out of the counts of each batch."""
    sums = np.asarray(counts, np.float64).sum(axis=0)
    tokens, first, among_three, loss = sums.tolist()
    return {
        "top1": round(100 * first / tokens, 3),
        "top3": round(100 * among_three / tokens, 3),
        "perplexity": round(math.exp(loss / tokens), 2),
        "tokens": int(tokens),
    }


# A configuration


class Bench:
    """Trains configurations on the one device, of which one at a time has it.

    Args:
        data: to train and to measure on.
        deadline: when everything stops, of `time.monotonic()`.
    """

    def __init__(self, data: Data, deadline: float) -> None:
        self._data = data
        self._deadline = deadline
        self._device = threading.Lock()
        # Tried out here: nothing runs while a program is traced.
        attention()

    def run(self, configuration: Configuration) -> tuple[dict[str, Any], Params]:
        """Train and measure a configuration; return its figures and the model."""
        shape = configuration.shape
        params = init(shape, jax.random.key(configuration.seed))
        figures: dict[str, Any] = {
            "configuration": asdict(configuration),
            "parameters": count_parameters(params),
        }
        operations = operations_a_token(params, shape)
        # Compiled before the device is taken, so that another may have it meanwhile.
        counters = {
            name: count_hits.lower(params, batches, shape=shape).compile()
            for name, batches in self._data.held_out.items()
        }
        params, spent = self._train(configuration, params)
        spent["peak_share"] = round(spent["tokens_per_s"] * operations / PEAK, 3)
        figures |= spent
        with self._device:
            for name, batches in self._data.held_out.items():
                figures[name] = name_figures(counters[name](params, batches))
        return figures, params

    def _train(
        self, configuration: Configuration, params: Params
    ) -> tuple[Params, dict[str, float]]:
        calls = list(self._plan(configuration))
        state = optimizer().init(params)
        key = jax.random.key(configuration.seed + 1)
        compile_began = time.monotonic()
        program = train_steps.lower(
            params,
            state,
            self._data.train,
            *calls[0],
            key,
            shape=configuration.shape,
            dropout=configuration.dropout,
        ).compile()
        compile_s = time.monotonic() - compile_began
        seconds: list[float] = []
        loss = jnp.nan
        for number, (starts, rates) in enumerate(calls):
            call_key = jax.random.fold_in(key, number)
            with self._device:
                began = time.monotonic()
                if began > self._deadline:
                    raise OutOfTime
                params, state, loss = program(
                    params, state, self._data.train, starts, rates, call_key
                )
                loss.block_until_ready()
                seconds.append(time.monotonic() - began)
        call_tokens = calls[0][0].size * configuration.shape.length
        return params, {
            "steps": len(calls) * len(calls[0][0]),
            "tokens": len(calls) * call_tokens,
            "compile_s": round(compile_s, 1),
            "train_s": round(sum(seconds), 1),
            "tokens_per_s": round(call_tokens / float(np.median(seconds))),
            "train_loss": round(float(loss), 4),
        }

    def _plan(self, configuration: Configuration) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield of each call where its windows start, and its rates."""
        length = configuration.shape.length
        tokens = len(self._data.train)
        step_tokens = configuration.batch * length
        wanted = configuration.epochs * tokens / step_tokens
        call_steps = max(1, min(CALL_STEPS, round(wanted)))
        calls = max(1, round(wanted / call_steps))
        steps = calls * call_steps
        rng = np.random.default_rng(configuration.seed)
        starts = window_starts(tokens, length, steps * configuration.batch, rng)
        rates = learning_rates(configuration.rate, steps)
        yield from zip(
            starts.reshape(calls, call_steps, configuration.batch),
            rates.reshape(calls, call_steps),
            strict=True,
        )


# Files


def load_data(folder: Path) -> Data:
    held_out = {}
    for name in ("public", "people"):
        with np.load(folder / f"{name}_held_out.npz") as file:
            texts = Texts(tokens=file["tokens"], offsets=file["offsets"])
        held_out[name] = jnp.asarray(rows_of(texts, MEASURED_LENGTH, MEASURED_ROWS))
    return Data(train=jnp.asarray(np.load(folder / "train.npy")), held_out=held_out)


def load_list(path: Path) -> list[Configuration]:
    """Read configurations, of which no two may have one name."""
    tables = tomllib.loads(path.read_text())["configuration"]
    configurations = [
        Configuration(**table | {"shape": Shape(**table["shape"])}) for table in tables
    ]
    names = [configuration.name for configuration in configurations]
    if len(set(names)) < len(names):
        raise ValueError(f"two configurations of {path} have one name; give each its own")
    return configurations


def load_results(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def save_results(path: Path, results: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    new.replace(path)


def save_model(path: Path, params: Params) -> None:
    """Write parameters in bf16, as integers of 16 bits, which NumPy knows."""
    leaves = {}
    for place, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(place, simple=True, separator=".")
        leaves[name] = np.asarray(leaf.astype(jnp.bfloat16).view(jnp.uint16))
    np.savez(path, **leaves)


def sweep(
    data: Data,
    configurations: Sequence[Configuration],
    out: Path,
    *,
    seconds: float,
    side_by_side: int,
) -> None:
    """Run what has no result yet, and write results after each."""
    bench = Bench(data, time.monotonic() + seconds)
    results = load_results(out)
    writing = threading.Lock()

    def run(configuration: Configuration) -> None:
        try:
            figures, params = bench.run(configuration)
        except OutOfTime:
            print(f"{configuration.name}: out of time", flush=True)
            return
        # A shape that the device cannot hold ends nothing but itself.
        except jax.errors.JaxRuntimeError as error:
            print(f"{configuration.name}: {str(error)[:300]}", flush=True)
            return
        with writing:
            results[configuration.name] = figures
            save_results(out, results)
            print(describe(configuration.name, figures), flush=True)
            if configuration.is_kept:
                save_model(out.with_name(f"{configuration.name}.npz"), params)

    missing = [each for each in configurations if each.name not in results]
    with ThreadPoolExecutor(side_by_side) as pool:
        list(pool.map(run, missing))


def describe(name: str, figures: dict[str, Any]) -> str:
    public, people = figures["public"], figures["people"]
    return (
        f"{name}: {figures['parameters'] / 1e6:.2f}M, public {public['top1']:.2f} %"
        f" (perplexity {public['perplexity']:.1f}), people {people['top1']:.2f} /"
        f" {people['top3']:.2f} %, {figures['tokens_per_s'] / 1e6:.2f}M tokens/s,"
        f" {figures['peak_share']:.0%} of the peak, {figures['train_s']:.0f} s and"
        f" {figures['compile_s']:.0f} to compile, loss {figures['train_loss']:.3f}"
    )


def print_table(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of all results, in Markdown: the best of each length first."""

    def place(named: tuple[str, dict[str, Any]]) -> tuple[float, float]:
        _, figures = named
        return figures["configuration"]["epochs"], -figures["people"]["top1"]

    yield (
        "| | width × layers, heads | M parameters | epochs | people Top1 | Top3 | public Top1 |"
        " perplexity | M tokens/s | of the peak |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, figures in sorted(results.items(), key=place):
        shape = figures["configuration"]["shape"]
        public, people = figures["public"], figures["people"]
        cells = [
            name,
            f"{shape['width']} × {shape['layers']}, {shape['heads']}",
            f"{figures['parameters'] / 1e6:.2f}",
            f"{figures['configuration']['epochs']:g}",
            f"{people['top1']:.2f}",
            f"{people['top3']:.2f}",
            f"{public['top1']:.2f}",
            f"{public['perplexity']:.1f}",
            f"{figures['tokens_per_s'] / 1e6:.2f}",
            f"{figures['peak_share']:.0%}",
        ]
        yield f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare shapes of Transformers.")
    parser.add_argument("paths", nargs="*", type=Path, metavar="DATA LIST RESULTS")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--table", type=Path, metavar="RESULTS")
    options = parser.parse_args(arguments)
    if options.table:
        print("\n".join(print_table(load_results(options.table))))
        return
    if len(options.paths) != 3:
        parser.error("name the folder of prepare.py, a list of configurations and the results")
    data, configurations, out = options.paths
    sweep(
        load_data(data),
        load_list(configurations),
        out,
        seconds=60 * options.minutes,
        side_by_side=options.side_by_side,
    )


if __name__ == "__main__":
    main()
