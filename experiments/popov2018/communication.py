"""Table 4 of Popov et al. 2018: two ways to upload less, on the Penn Treebank over four nodes.

    python experiments/popov2018/communication.py --prepare ptb.parquet --ptb local/ptb.npz
    python experiments/popov2018/communication.py --ptb local/ptb.npz --out results.json

`epochs`: each node trains for several epochs and uploads its model; the server averages (§2.6). In
the first round the model goes from node to node instead, as averaging needs something to start
from. `dgc`: in every iteration each node uploads the largest thousandth of its gradient (Lin et al.
2018), and more during a warm-up, which is counted apart. Lin et al. (§4.1) warm up for one epoch of
40 and use no momentum on this text.

The model is deep_lstm(tied, variational), with one difference: the state is carried from one window
of 35 words to the next (Zaremba et al. 2014), while gradients end at a window's beginning. The loss
is, as theirs, a sum over the window and a mean over rows, so that their rates (1.0, falling) mean
the same here. Gradients are clipped to a norm of 5, as in their medium model; with the 10 of their
large one, tied embeddings blow up in the first steps.

Bytes and uploads are counted exactly: 4 bytes for a parameter of a model, 8 for an entry of a
gradient.
"""

import argparse
import collections
import json
import time
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradient_compression import (
    Memory,
    clip_locally,
    compress,
    empty_memory,
    entries_sent,
    share_sent,
    upload_bytes,
)
from taciturn import trees
from taciturn.core import Key, Params, PyTree
from taciturn.models.cells import lstm_cell
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.layers import dot, dropout, transpose

END_OF_SENTENCE, NOTHING = "<eos>", -1
LAYERS, UNROLL = 2, 5
State = tuple[tuple[jax.Array, jax.Array], ...]  # of each layer: what it feeds back, and its cell


class Settings(NamedTuple):
    dropout: float
    clip: float  # of a gradient's norm, for all nodes together
    momentum: float
    product: str  # what factors of a matrix product are rounded to; sums are float32


# Text


def prepare(parquet: Path, out: Path) -> None:
    """The words of the training text, the most frequent first, and all three texts as numbers."""
    from pyarrow import parquet as reader  # needed for nothing else, and not everywhere

    table = reader.read_table(parquet, columns=["split", "text"]).to_pydict()
    words: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for split, line in zip(table["split"], table["text"], strict=True):
        words[split] += [*line.split(), END_OF_SENTENCE]
    counts = collections.Counter(words["train"])
    ids = {
        word: index
        for index, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word)))
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        out,
        **{
            split: np.array([ids[word] for word in text], np.uint16)
            for split, text in words.items()
        },
    )
    print(
        f"{len(ids):,} words;", ", ".join(f"{split} {len(text):,}" for split, text in words.items())
    )


def windows(text: np.ndarray, rows: int, length: int) -> np.ndarray:
    """[windows, length + 1, rows]: rows side by side, cut into windows that overlap by one word;
    filled up with NOTHING at the end.
    """
    targets = -(-(len(text) - 1) // rows)  # of a row
    count = -(-targets // length)
    padded = np.full(rows * targets + 1, NOTHING, np.int32)
    padded[: len(text)] = text
    result = np.full((count * length + 1, rows), NOTHING, np.int32)
    result[: targets + 1] = padded[np.arange(targets + 1)[:, None] + targets * np.arange(rows)]
    return result[np.arange(count)[:, None] * length + np.arange(length + 1)]


# Model


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def times(product: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """left @ right, whose gradients are added up in float32 too; automatic differentiation would
    round them to `product`.
    """
    return dot(left, right, product)


def _times_forward(product, left, right):
    return dot(left, right, product), (left, right)


def _times_backward(product, saved, gradient):
    left, right = saved
    return dot(gradient, right.T, product), dot(flat(left).T, flat(gradient), product)


times.defvjp(_times_forward, _times_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def carried(
    product: str, gates: jax.Array, recurrent: jax.Array, start: tuple[jax.Array, jax.Array]
):
    """models/recurrence.py from a state other than zero: [length, rows, gates] → outputs, and the
    state at the end.

    No gradient flows through either state: back-propagation is truncated at both ends of a window.
    """
    return _carried_forward(product, gates, recurrent, start)[0]


def _carried_forward(product, gates, recurrent, start):
    matrix = recurrent.astype(product)  # once, not at every step

    def step(state, x):
        fed_back, carry = state
        r = dot(fed_back, matrix, product)
        output, next_carry = lstm_cell(x, r, carry)
        return (output, next_carry), (output, x + r, carry)

    end, (outputs, totals, carries) = jax.lax.scan(step, start, gates, unroll=UNROLL)
    return (outputs, end), (outputs, totals, carries, recurrent, start)


def _carried_backward(product, saved, gradient):
    outputs, totals, carries, recurrent, start = saved
    back = transpose(recurrent.astype(product))

    def step(state, inputs):
        d_fed_back, d_carry = state
        d_output, total, carry = inputs
        _, pull_back = jax.vjp(
            lambda total, carry: lstm_cell(total, jnp.zeros_like(total), carry), total, carry
        )
        d_total, d_carry = pull_back((d_output + d_fed_back, d_carry))
        return (dot(d_total, back, product), d_carry), d_total

    nothing = jax.tree.map(jnp.zeros_like, start)
    _, d_gates = jax.lax.scan(
        step, nothing, (gradient[0], totals, carries), reverse=True, unroll=UNROLL
    )
    fed_back = jnp.concatenate([start[0][None], outputs[:-1]])
    return d_gates, dot(flat(fed_back).T, flat(d_gates), product), nothing


carried.defvjp(_carried_forward, _carried_backward)


def flat(values: jax.Array) -> jax.Array:
    return values.reshape(-1, values.shape[-1])


def zero_state(params: Params, rows: int) -> State:
    zero = jnp.zeros((rows, params["embedding"].shape[1]))
    return ((zero, zero),) * LAYERS


def window_loss(
    settings: Settings, params: Params, state: State, tokens: jax.Array, key: Key | None
) -> tuple[jax.Array, State]:
    """−Σ log p over the words of a window, divided by its rows, and the state to go on with. One
    dropout mask for a window.
    """
    inputs, targets = tokens[:-1], tokens[1:]
    keys = [None] * (LAYERS + 1) if key is None else list(jax.random.split(key, LAYERS + 1))
    values = dropout(params["embedding"][inputs], settings.dropout, keys[0], alike_in_time=True)
    ends = []
    for index in range(LAYERS):
        layer = params["layers"][f"{index}"]
        gates = times(settings.product, values, layer["input"]) + layer["gate_bias"]
        values, end = carried(settings.product, gates, layer["recurrent"], state[index])
        values = dropout(values, settings.dropout, keys[index + 1], alike_in_time=True)
        ends.append(end)
    scores = times(settings.product, values, params["embedding"].T) + params["word_bias"]
    is_target = jnp.arange(scores.shape[-1]) == targets[..., None]
    losses = jax.nn.logsumexp(scores, axis=-1) - jnp.sum(jnp.where(is_target, scores, 0.0), axis=-1)
    return jnp.sum(jnp.where(targets == NOTHING, 0.0, losses)) / tokens.shape[1], tuple(ends)


def perplexity(losses: jax.Array, text: jax.Array) -> float:
    """Of the losses of windows, as `window_loss` gives them."""
    words = np.sum(np.asarray(text[..., 1:, :]) != NOTHING)
    return float(np.exp(np.sum(np.asarray(losses, np.float64)) * text.shape[-1] / words))


@partial(jax.jit, static_argnums=0)
def evaluate(settings: Settings, params: Params, text: jax.Array) -> jax.Array:
    """The losses of all windows of a text, without dropout."""

    def read(state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
        loss, state = window_loss(settings, params, state, tokens, None)
        return state, loss

    return jax.lax.scan(read, zero_state(params, text.shape[-1]), text)[1]


# Training


def train_epoch(
    settings: Settings, params: Params, text: jax.Array, rate: jax.Array, key: Key
) -> tuple[Params, jax.Array]:
    """One pass of SGD over a node's text; the model and the losses on the way."""

    def step(
        carry: tuple[Params, State], inputs: tuple[jax.Array, Key]
    ) -> tuple[tuple[Params, State], jax.Array]:
        params, state = carry
        value_and_gradient = jax.value_and_grad(partial(window_loss, settings), has_aux=True)
        (loss, state), gradient = value_and_gradient(params, state, *inputs)
        gradient = clip_locally(gradient, settings.clip, nodes=1)
        return (jax.tree.map(lambda p, g: p - rate * g, params, gradient), state), loss

    start = params, zero_state(params, text.shape[-1])
    (params, _), losses = jax.lax.scan(step, start, (text, jax.random.split(key, len(text))))
    return params, losses


train_alone = jax.jit(train_epoch, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def train_side_by_side(
    settings: Settings, params: Params, text: jax.Array, rate: jax.Array, key: Key
):
    """An epoch on every node: params and text have the nodes first."""
    return jax.vmap(partial(train_epoch, settings), (0, 0, None, 0))(
        params, text, rate, jax.random.split(key, len(text))
    )


@jax.jit
def average(params: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), params)


@partial(jax.jit, static_argnums=0)
def compressed_epoch(
    settings: Settings,
    params: Params,
    memories: Memory,
    text: jax.Array,
    entries: PyTree,
    rate: jax.Array,
    key: Key,
) -> tuple[Params, Memory, jax.Array]:
    """Lin et al.'s algorithm over one pass: text [nodes, windows, …], entries to send [windows] for
    each leaf.
    """
    nodes = len(text)

    def on_a_node(
        params: Params, memory: Memory, state: State, tokens: jax.Array, key: Key, entries: PyTree
    ):
        def share_of_loss(params: Params) -> tuple[jax.Array, State]:
            loss, after = window_loss(settings, params, state, tokens, key)
            return loss / nodes, after

        (loss, state), gradient = jax.value_and_grad(share_of_loss, has_aux=True)(params)
        gradient = clip_locally(gradient, settings.clip, nodes)
        upload, memory = compress(memory, gradient, entries, settings.momentum)
        return upload.values, memory, state, loss

    def step(carry: tuple[Params, Memory, State], inputs: tuple[jax.Array, Key, PyTree]):
        params, memories, states = carry
        tokens, key, entries = inputs
        uploads, memories, states, losses = jax.vmap(on_a_node, (None, 0, 0, 0, 0, None))(
            params, memories, states, tokens, jax.random.split(key, nodes), entries
        )
        params = jax.tree.map(lambda p, u: p - rate * jnp.sum(u, axis=0), params, uploads)
        return (params, memories, states), losses * nodes

    start = params, memories, on_every_node(zero_state(params, text.shape[-1]), nodes)
    inputs = jnp.swapaxes(text, 0, 1), jax.random.split(key, text.shape[1]), entries
    (params, memories, _), losses = jax.lax.scan(step, start, inputs)
    return params, memories, losses


def on_every_node(values: PyTree, nodes: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (nodes, *leaf.shape)), values)


class Progress(NamedTuple):
    """Where a part stands after a round of averaging, or an epoch of compressed gradients."""

    params: Params
    row: dict[str, Any]


def several_epochs(
    settings: Settings,
    params: Params,
    text: jax.Array,
    epochs: list[int],
    rates: list[float],
    key: Key,
) -> Iterator[Progress]:
    """One number of epochs and one rate for each round. Every node uploads a model in every round,
    in the first to the next node.
    """
    nodes, model_bytes, uploads = len(text), 4 * trees.size(params), 0

    def progress(
        params: Params, losses: jax.Array, seen: jax.Array, row: dict[str, Any]
    ) -> Progress:
        train = perplexity(losses, seen)
        return Progress(
            params, row | {"train": train, "uploads": uploads, "bytes": uploads * model_bytes}
        )

    for node in range(nodes):
        for epoch in range(epochs[0]):
            epoch_key = jax.random.fold_in(jax.random.fold_in(key, node), epoch)
            params, losses = train_alone(settings, params, text[node], rates[0], epoch_key)
        uploads += 1
        yield progress(
            params,
            losses,
            text[node],
            {"round": 1, "node": node + 1, "epochs": epochs[0], "rate": rates[0]},
        )
    for index in range(1, len(epochs)):
        local = on_every_node(params, nodes)
        for epoch in range(epochs[index]):
            epoch_key = jax.random.fold_in(jax.random.fold_in(key, nodes + index), epoch)
            local, losses = train_side_by_side(settings, local, text, rates[index], epoch_key)
        params = average(local)
        uploads += nodes
        yield progress(
            params,
            losses,
            text,
            {"round": index + 1, "epochs": epochs[index], "rate": rates[index]},
        )


def deep_gradient_compression(
    settings: Settings,
    params: Params,
    text: jax.Array,
    rates: list[float],
    warm_up: Fraction,
    key: Key,
) -> Iterator[Progress]:
    """One rate for each epoch; `bytes_after_warm_up` leaves out what the warm-up sent, which may be
    most of it.
    """
    nodes, iterations = text.shape[:2]
    memories = on_every_node(empty_memory(params), nodes)
    uploads = sent = sent_after_warm_up = 0
    for epoch, rate in enumerate(rates):
        starts = [epoch + Fraction(index, iterations) for index in range(iterations)]
        entries = [entries_sent(params, share_sent(start, warm_up)) for start in starts]
        stacked = jax.tree.map(lambda *counts: jnp.array(counts, jnp.int32), *entries)
        params, memories, losses = compressed_epoch(
            settings, params, memories, text, stacked, rate, jax.random.fold_in(key, epoch)
        )
        sizes = [nodes * upload_bytes(one) for one in entries]
        uploads += nodes * iterations
        sent += sum(sizes)
        sent_after_warm_up += sum(
            size for size, start in zip(sizes, starts, strict=True) if start >= warm_up
        )
        yield Progress(
            params,
            {
                "epoch": epoch + 1,
                "rate": rate,
                "train": perplexity(losses, text),
                "uploads": uploads,
                "bytes": sent,
                "bytes_after_warm_up": sent_after_warm_up,
            },
        )


# Both parts


def follow(
    part: str,
    progress: Iterator[Progress],
    settings: Settings,
    texts: dict[str, jax.Array],
    args: argparse.Namespace,
) -> None:
    """Measure after every round and write it down at once. The test text is read where the
    validation text is read best so far.
    """
    begin = last = time.monotonic()
    rows, best = [], {"valid": float("inf")}
    for params, row in progress:
        row["valid"] = perplexity(evaluate(settings, params, texts["valid"]), texts["valid"])
        if row["valid"] < best["valid"]:
            test = perplexity(evaluate(settings, params, texts["test"]), texts["test"])
            best = {
                name: row[name] for name in row if name in ("round", "node", "epoch", "valid")
            } | {"test": test}
        now = time.monotonic()
        row["seconds"] = round(now - begin, 1)
        took, last = now - last, now
        rows.append(row)
        print(part, *(f"{name} {value:,.5g}" for name, value in row.items()), flush=True)
        written = json.loads(args.out.read_text()) if args.out.exists() else {}
        written[part] = {
            "arguments": {
                name: str(value)
                for name, value in vars(args).items()
                if name not in ("out", "prepare", "ptb")
            },
            "parameters": trees.size(params),
            "best": best,
            "uploads": row["uploads"],
            "bytes": row["bytes"],
            "rows": rows,
        }
        args.out.write_text(json.dumps(written, indent=1) + "\n")
        if now - begin + took > args.time_limit:
            print(f"{part}: no time for another round")
            break
    print(f"{part}: best after {best}")


def schedule(args: argparse.Namespace) -> tuple[list[int], list[float], list[float]]:
    """Epochs and rate of each round; rate of each epoch of compressed gradients."""
    falling = np.rint(np.linspace(*args.epochs, args.rounds - 1)).astype(int).tolist()
    rates = np.geomspace(*args.rates, args.rounds).tolist()
    compressed = [
        args.dgc_rate * args.dgc_decay ** max(0, epoch + 1 - args.dgc_hold)
        for epoch in range(args.dgc_epochs)
    ]
    return [args.first_epochs, *falling], rates, compressed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option(
        "--prepare",
        type=Path,
        metavar="PARQUET",
        help="only write the texts of this file as numbers to --ptb",
    )
    option("--ptb", type=Path, default=Path("local/ptb.npz"), help="the texts as numbers")
    option(
        "--out",
        type=Path,
        default=Path("results.json"),
        help="written after every round; other parts in it are kept",
    )
    option("--part", choices=("epochs", "dgc", "both"), default="both")
    option(
        "--time-limit",
        type=float,
        default=float("inf"),
        help="seconds for a part, after which no round begins",
    )
    option("--units", type=int, default=1500)
    option("--dropout", type=float, default=0.65)
    option("--nodes", type=int, default=4)
    option("--rows", type=int, default=20, help="of a node's batch")
    option("--length", type=int, default=35, help="words of a window")
    option("--words", type=int, default=None, help="only so many words of each text")
    option(
        "--clip",
        type=float,
        default=5.0,
        help="largest norm of a gradient; of one of N nodes, by N^-1/2 of it",
    )
    option("--rounds", type=int, default=28)
    option("--first-epochs", type=int, default=10, help="on each node in the first round")
    option(
        "--epochs",
        type=int,
        nargs=2,
        default=(4, 1),
        help="on all nodes in the second round and in the last",
    )
    option(
        "--rates",
        type=float,
        nargs=2,
        default=(1.0, 0.27),
        help="in the first round and in the last",
    )
    option("--dgc-epochs", type=int, default=40)
    option("--dgc-rate", type=float, default=1.0)
    option("--dgc-hold", type=int, default=26, help="epochs at that rate")
    option("--dgc-decay", type=float, default=0.85, help="of the rate in every epoch after these")
    option(
        "--momentum", type=float, default=0.0, help="on the nodes; Lin et al. use none on this text"
    )
    option(
        "--warm-up",
        type=Fraction,
        default=Fraction(1),
        help="epochs until only a thousandth is sent",
    )
    option(
        "--product",
        choices=("bfloat16", "float32"),
        default=None,
        help="bfloat16 on a GPU unless told",
    )
    option("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.prepare:
        prepare(args.prepare, args.ptb)
        return
    product = args.product or ("bfloat16" if jax.default_backend() == "gpu" else "float32")
    settings = Settings(args.dropout, args.clip, args.momentum, product)
    with np.load(args.ptb) as texts:
        vocabulary = 1 + int(texts["train"].max())
        words = {
            split: texts[split][: args.words].astype(np.int32)
            for split in ("train", "valid", "test")
        }
    parts = words["train"][: len(words["train"]) // args.nodes * args.nodes].reshape(args.nodes, -1)
    nodes = jnp.array([windows(part, args.rows, args.length) for part in parts])
    held_out = {
        split: jnp.array(windows(words[split], args.rows, args.length))
        for split in ("valid", "test")
    }
    init_key, key = jax.random.split(jax.random.key(args.seed))
    params = deep_lstm(vocabulary, args.units, args.units, LAYERS, tied=True).init(init_key)
    epochs, rates, compressed = schedule(args)
    if args.part != "dgc":
        follow(
            "epochs",
            several_epochs(settings, params, nodes, epochs, rates, key),
            settings,
            held_out,
            args,
        )
    if args.part != "epochs":
        progress = deep_gradient_compression(settings, params, nodes, compressed, args.warm_up, key)
        follow("dgc", progress, settings, held_out, args)


if __name__ == "__main__":
    main()
