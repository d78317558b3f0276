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
from collections.abc import Callable, Iterator
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

END_OF_SENTENCE = "<eos>"
# In place of a word, where rows are filled up.
NOTHING = -1
LAYERS = 2
UNROLL = 5
# Of each layer: what it feeds back, and its cell.
State = tuple[tuple[jax.Array, jax.Array], ...]


# What identifies a row of the results, and how well it did.
IDENTIFYING = ("round", "node", "epoch", "valid")
# Arguments that say where files are, and nothing of how a part was trained.
PLACES = ("out", "prepare", "ptb")


class Settings(NamedTuple):
    dropout: float
    # Of a gradient's norm, for all nodes together.
    clip: float
    momentum: float
    # What factors of a matrix product are rounded to; sums are float32.
    product: str


# Text


def prepare(parquet: Path, out: Path) -> None:
    """Write all three texts as numbers of words, those of the training text, the most frequent
    first.
    """
    words = _read_words(parquet)
    ids = _number_by_frequency(words["train"])
    texts: dict[str, Any] = {}
    for split, text in words.items():
        numbers = [ids[word] for word in text]
        texts[split] = np.array(numbers, np.uint16)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, **texts)
    sizes = ", ".join(f"{split} {len(text):,}" for split, text in texts.items())
    print(f"{len(ids):,} words; {sizes}")


def _number_by_frequency(words: list[str]) -> dict[str, int]:
    """Return the number of each word: the most frequent come first, equals by the alphabet."""
    counts = collections.Counter(words)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ordered)}


def _read_words(parquet: Path) -> dict[str, list[str]]:
    # Needed for nothing else, and not everywhere.
    from pyarrow import parquet as reader

    table = reader.read_table(parquet, columns=["split", "text"]).to_pydict()
    words: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for split, line in zip(table["split"], table["text"], strict=True):
        words[split] += [*line.split(), END_OF_SENTENCE]
    return words


def windows(text: np.ndarray, rows: int, length: int) -> np.ndarray:
    """Return [windows, length + 1, rows]: rows side by side, in windows that overlap by one word;
    filled up with NOTHING at the end.
    """
    targets_of_a_row = -(-(len(text) - 1) // rows)
    count = -(-targets_of_a_row // length)
    padded = np.full(rows * targets_of_a_row + 1, NOTHING, np.int32)
    padded[: len(text)] = text
    starts_of_rows = targets_of_a_row * np.arange(rows)
    words_of_a_row = np.arange(targets_of_a_row + 1)
    side_by_side = np.full((count * length + 1, rows), NOTHING, np.int32)
    side_by_side[: targets_of_a_row + 1] = padded[words_of_a_row[:, None] + starts_of_rows]
    starts_of_windows = length * np.arange(count)
    words_of_a_window = np.arange(length + 1)
    return side_by_side[starts_of_windows[:, None] + words_of_a_window]


# Model


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def times(product: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Return left @ right, whose gradients are added up in float32 too; automatic differentiation
    would round them to `product`.
    """
    return dot(left, right, product)


def _times_forward(product, left, right):
    return dot(left, right, product), (left, right)


def _times_backward(product, saved, gradient):
    left, right = saved
    d_left = dot(gradient, right.T, product)
    d_right = dot(flat(left).T, flat(gradient), product)
    return d_left, d_right


times.defvjp(_times_forward, _times_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def run_layer(
    product: str, gates: jax.Array, recurrent: jax.Array, start: tuple[jax.Array, jax.Array]
) -> Any:
    """Run models/recurrence.py from a state other than zero: [length, rows, gates] → outputs, and
    the state at the end.

    No gradient flows through either state: back-propagation is truncated at both ends of a window.
    """
    return _run_layer_forward(product, gates, recurrent, start)[0]


def _run_layer_forward(product, gates, recurrent, start):
    # Rounded once, not at every step.
    matrix = recurrent.astype(product)

    def step(state, x):
        fed_back, carry = state
        r = dot(fed_back, matrix, product)
        output, next_carry = lstm_cell(x, r, carry)
        return (output, next_carry), (output, x + r, carry)

    end, (outputs, totals, carries) = jax.lax.scan(step, start, gates, unroll=UNROLL)
    return (outputs, end), (outputs, totals, carries, recurrent, start)


def _run_layer_backward(product, saved, gradient):
    outputs, totals, carries, recurrent, start = saved
    d_outputs, _ = gradient
    back = transpose(recurrent.astype(product))

    def cell(total, carry):
        return lstm_cell(total, jnp.zeros_like(total), carry)

    def step(state, inputs):
        d_fed_back, d_carry = state
        d_output, total, carry = inputs
        _, pull_back = jax.vjp(cell, total, carry)
        d_total, d_carry = pull_back((d_output + d_fed_back, d_carry))
        return (dot(d_total, back, product), d_carry), d_total

    nothing = jax.tree.map(jnp.zeros_like, start)
    inputs = (d_outputs, totals, carries)
    _, d_gates = jax.lax.scan(step, nothing, inputs, reverse=True, unroll=UNROLL)
    fed_back = jnp.concatenate([start[0][None], outputs[:-1]])
    d_recurrent = dot(flat(fed_back).T, flat(d_gates), product)
    return d_gates, d_recurrent, nothing


run_layer.defvjp(_run_layer_forward, _run_layer_backward)


def flat(values: jax.Array) -> jax.Array:
    return values.reshape(-1, values.shape[-1])


def zero_state(params: Params, rows: int) -> State:
    zero = jnp.zeros((rows, params["embedding"].shape[1]))
    return ((zero, zero),) * LAYERS


def window_loss(
    settings: Settings, params: Params, state: State, tokens: jax.Array, key: Key | None
) -> tuple[jax.Array, State]:
    """Return −Σ log p over the words of a window, divided by its rows, and the state to resume
    with. There is one dropout mask for a window.
    """
    inputs = tokens[:-1]
    targets = tokens[1:]
    rows = tokens.shape[1]
    keys = _dropout_keys(key)

    def drop(values: jax.Array, key: Key | None) -> jax.Array:
        return dropout(values, settings.dropout, key, alike_in_time=True)

    values = drop(params["embedding"][inputs], keys[0])
    ends = []
    for index in range(LAYERS):
        layer = params["layers"][f"{index}"]
        gates = times(settings.product, values, layer["input"]) + layer["gate_bias"]
        # Any: what a custom derivative returns has no type.
        outputs_and_end: Any = run_layer(settings.product, gates, layer["recurrent"], state[index])
        outputs, end = outputs_and_end
        values = drop(outputs, keys[index + 1])
        ends.append(end)
    scores = times(settings.product, values, params["embedding"].T) + params["word_bias"]
    losses = jnp.where(targets == NOTHING, 0.0, _word_losses(scores, targets))
    return jnp.sum(losses) / rows, tuple(ends)


def _dropout_keys(key: Key | None) -> list[Key] | list[None]:
    """Return a key for the words and for each layer; none where nothing is dropped."""
    count = LAYERS + 1
    return [None] * count if key is None else list(jax.random.split(key, count))


def _word_losses(scores: jax.Array, targets: jax.Array) -> jax.Array:
    is_target = jnp.arange(scores.shape[-1]) == targets[..., None]
    target_scores = jnp.sum(jnp.where(is_target, scores, 0.0), axis=-1)
    return jax.nn.logsumexp(scores, axis=-1) - target_scores


def perplexity(losses: jax.Array, text: jax.Array) -> float:
    """Return the perplexity of windows whose losses are as `window_loss` gives them."""
    words = np.sum(np.asarray(text[..., 1:, :]) != NOTHING)
    return float(np.exp(np.sum(np.asarray(losses, np.float64)) * text.shape[-1] / words))


@partial(jax.jit, static_argnums=0)
def evaluate(settings: Settings, params: Params, text: jax.Array) -> jax.Array:
    """Return the losses of all windows of a text, without dropout."""

    def read(state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
        loss, state = window_loss(settings, params, state, tokens, None)
        return state, loss

    return jax.lax.scan(read, zero_state(params, text.shape[-1]), text)[1]


# Training


def train_epoch(
    settings: Settings, params: Params, text: jax.Array, rate: jax.Array, key: Key
) -> tuple[Params, jax.Array]:
    """Pass once over a node's text with SGD; return the model and the losses on the way."""
    loss_and_gradient = jax.value_and_grad(partial(window_loss, settings), has_aux=True)

    def move(param: jax.Array, gradient: jax.Array) -> jax.Array:
        return param - rate * gradient

    def step(
        carry: tuple[Params, State], inputs: tuple[jax.Array, Key]
    ) -> tuple[tuple[Params, State], jax.Array]:
        params, state = carry
        tokens, key = inputs
        (loss, state), gradient = loss_and_gradient(params, state, tokens, key)
        gradient = clip_locally(gradient, settings.clip, nodes=1)
        return (jax.tree.map(move, params, gradient), state), loss

    start = (params, zero_state(params, text.shape[-1]))
    keys = jax.random.split(key, len(text))
    (params, _), losses = jax.lax.scan(step, start, (text, keys))
    return params, losses


train_alone = jax.jit(train_epoch, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def train_side_by_side(
    settings: Settings, params: Params, text: jax.Array, rate: jax.Array, key: Key
):
    """Train for an epoch on every node: params and text have the nodes first."""
    keys = jax.random.split(key, len(text))
    train_nodes = jax.vmap(partial(train_epoch, settings), (0, 0, None, 0))
    return train_nodes(params, text, rate, keys)


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
    """Run Lin et al.'s algorithm over one pass: text [nodes, windows, …], entries to send [windows]
    for each leaf.
    """
    nodes, windows, *_ = text.shape
    on_nodes = jax.vmap(partial(_node_step, settings, nodes), (None, 0, 0, 0, 0, None))

    def move(param: jax.Array, uploads: jax.Array) -> jax.Array:
        return param - rate * jnp.sum(uploads, axis=0)

    def step(carry: tuple[Params, Memory, State], inputs: tuple[jax.Array, Key, PyTree]):
        params, memories, states = carry
        tokens, key, entries = inputs
        keys = jax.random.split(key, nodes)
        uploads, memories, states, losses = on_nodes(
            params, memories, states, tokens, keys, entries
        )
        params = jax.tree.map(move, params, uploads)
        return (params, memories, states), losses * nodes

    states = on_every_node(zero_state(params, text.shape[-1]), nodes)
    inputs = (jnp.swapaxes(text, 0, 1), jax.random.split(key, windows), entries)
    (params, memories, _), losses = jax.lax.scan(step, (params, memories, states), inputs)
    return params, memories, losses


def _node_step(
    settings: Settings,
    nodes: int,
    params: Params,
    memory: Memory,
    state: State,
    tokens: jax.Array,
    key: Key,
    entries: PyTree,
) -> tuple[PyTree, Memory, State, jax.Array]:
    """Return what a node uploads in an iteration, what it keeps, and its share of the loss."""

    def share_of_loss(params: Params) -> tuple[jax.Array, State]:
        loss, after = window_loss(settings, params, state, tokens, key)
        return loss / nodes, after

    (loss, after), gradient = jax.value_and_grad(share_of_loss, has_aux=True)(params)
    gradient = clip_locally(gradient, settings.clip, nodes)
    upload, memory = compress(memory, gradient, entries, settings.momentum)
    return upload.values, memory, after, loss


def on_every_node(values: PyTree, nodes: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (nodes, *leaf.shape)), values)


class Progress(NamedTuple):
    """Where a part stands after a round of averaging, or an epoch of compressed gradients."""

    params: Params
    row: dict[str, Any]


def average_epochs(
    settings: Settings,
    params: Params,
    text: jax.Array,
    epochs: list[int],
    rates: list[float],
    key: Key,
) -> Iterator[Progress]:
    """Average models, with one number of epochs and one rate for each round. Every node uploads a
    model in every round, in the first to the next node.
    """
    nodes = len(text)
    model_bytes = 4 * trees.size(params)
    uploads = 0
    for node in range(nodes):
        keys = _epoch_keys(jax.random.fold_in(key, node), epochs[0])
        params, losses = _train_epochs(train_alone, settings, params, text[node], rates[0], keys)
        uploads += 1
        row = {
            "round": 1,
            "node": node + 1,
            "epochs": epochs[0],
            "rate": rates[0],
            "train": perplexity(losses, text[node]),
            "uploads": uploads,
            "bytes": uploads * model_bytes,
        }
        yield Progress(params, row)
    for index in range(1, len(epochs)):
        keys = _epoch_keys(jax.random.fold_in(key, nodes + index), epochs[index])
        copies = on_every_node(params, nodes)
        local, losses = _train_epochs(
            train_side_by_side, settings, copies, text, rates[index], keys
        )
        params = average(local)
        uploads += nodes
        row = {
            "round": index + 1,
            "epochs": epochs[index],
            "rate": rates[index],
            "train": perplexity(losses, text),
            "uploads": uploads,
            "bytes": uploads * model_bytes,
        }
        yield Progress(params, row)


def _epoch_keys(key: Key, epochs: int) -> list[Key]:
    return [jax.random.fold_in(key, epoch) for epoch in range(epochs)]


def _train_epochs(
    train: Callable,
    settings: Settings,
    params: Params,
    text: jax.Array,
    rate: float,
    keys: list[Key],
) -> tuple[Params, jax.Array]:
    """Train for an epoch with each key; return the losses of the last."""
    losses = None
    for key in keys:
        params, losses = train(settings, params, text, rate, key)
    assert losses is not None, "a round has an epoch at least"
    return params, losses


def compress_gradients(
    settings: Settings,
    params: Params,
    text: jax.Array,
    rates: list[float],
    warm_up: Fraction,
    key: Key,
) -> Iterator[Progress]:
    """Compress gradients, with one rate for each epoch; `bytes_after_warm_up` leaves out what the
    warm-up sent, which may be most of it.
    """
    nodes, iterations, *_ = text.shape
    memories = on_every_node(empty_memory(params), nodes)
    uploads = 0
    sent = 0
    sent_after_warm_up = 0
    for epoch, rate in enumerate(rates):
        starts = [epoch + Fraction(index, iterations) for index in range(iterations)]
        entries = [entries_sent(params, share_sent(start, warm_up)) for start in starts]
        stacked = jax.tree.map(lambda *counts: jnp.array(counts, jnp.int32), *entries)
        epoch_key = jax.random.fold_in(key, epoch)
        params, memories, losses = compressed_epoch(
            settings, params, memories, text, stacked, rate, epoch_key
        )
        uploads += nodes * iterations
        for start, counts in zip(starts, entries, strict=True):
            size = nodes * upload_bytes(counts)
            sent += size
            if start >= warm_up:
                sent_after_warm_up += size
        row = {
            "epoch": epoch + 1,
            "rate": rate,
            "train": perplexity(losses, text),
            "uploads": uploads,
            "bytes": sent,
            "bytes_after_warm_up": sent_after_warm_up,
        }
        yield Progress(params, row)


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
    begin = time.monotonic()
    last = begin
    rows = []
    best: dict[str, Any] = {"valid": float("inf")}
    for params, row in progress:
        row["valid"] = _read_perplexity(settings, params, texts["valid"])
        if row["valid"] < best["valid"]:
            best = {name: row[name] for name in row if name in IDENTIFYING}
            best["test"] = _read_perplexity(settings, params, texts["test"])
        now = time.monotonic()
        row["seconds"] = round(now - begin, 1)
        took = now - last
        last = now
        rows.append(row)
        print(part, *(f"{name} {value:,.5g}" for name, value in row.items()), flush=True)
        content = {
            "arguments": _arguments_of(args),
            "parameters": trees.size(params),
            "best": best,
            "uploads": row["uploads"],
            "bytes": row["bytes"],
            "rows": rows,
        }
        _write_part(args.out, part, content)
        if now - begin + took > args.time_limit:
            print(f"{part}: no time for another round")
            break
    print(f"{part}: best after {best}")


def _read_perplexity(settings: Settings, params: Params, text: jax.Array) -> float:
    return perplexity(evaluate(settings, params, text), text)


def _arguments_of(args: argparse.Namespace) -> dict[str, str]:
    """Return what says how a part was trained."""
    return {name: str(value) for name, value in vars(args).items() if name not in PLACES}


def _write_part(out: Path, part: str, content: dict[str, Any]) -> None:
    """Write a part of the results; other parts that are there are kept."""
    written = json.loads(out.read_text()) if out.exists() else {}
    written[part] = content
    out.write_text(json.dumps(written, indent=1) + "\n")


class Schedule(NamedTuple):
    # Epochs and rate of each round.
    epochs: list[int]
    rates: list[float]
    # The rate of each epoch of compressed gradients.
    compressed_rates: list[float]


def make_schedule(args: argparse.Namespace) -> Schedule:
    most_epochs, least_epochs = args.epochs
    falling = np.rint(np.linspace(most_epochs, least_epochs, args.rounds - 1)).astype(int)
    first_rate, last_rate = args.rates
    compressed_rates = []
    for epoch in range(args.dgc_epochs):
        epochs_after_hold = max(0, epoch + 1 - args.dgc_hold)
        compressed_rates.append(args.dgc_rate * args.dgc_decay**epochs_after_hold)
    return Schedule(
        epochs=[args.first_epochs, *falling.tolist()],
        rates=np.geomspace(first_rate, last_rate, args.rounds).tolist(),
        compressed_rates=compressed_rates,
    )


def parse_arguments() -> argparse.Namespace:
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
    option("--words", type=int, default=None, help="only this many words of each text")
    option(
        "--clip",
        type=float,
        default=5.0,
        help="largest norm of a gradient; of one of N nodes, by N^-1/2 of it",
    )
    _add_epochs_options(parser)
    _add_dgc_options(parser)
    option(
        "--product",
        choices=("bfloat16", "float32"),
        default=None,
        help="bfloat16 on a GPU unless given",
    )
    option("--seed", type=int, default=0)
    return parser.parse_args()


def _add_epochs_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
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


def _add_dgc_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
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


def read_texts(ptb: Path, most_words: int | None) -> dict[str, np.ndarray]:
    """Return each text as numbers, and no more than this many words of it."""
    texts = {}
    with np.load(ptb) as file:
        for split in ("train", "valid", "test"):
            texts[split] = file[split][:most_words].astype(np.int32)
    return texts


def count_vocabulary(ptb: Path) -> int:
    with np.load(ptb) as file:
        return 1 + int(file["train"].max())


def deal_to_nodes(text: np.ndarray, nodes: int, rows: int, length: int) -> jax.Array:
    """Return the windows of each node's part of the training text."""
    words_of_a_node = len(text) // nodes
    parts = text[: words_of_a_node * nodes].reshape(nodes, -1)
    return jnp.array([windows(part, rows, length) for part in parts])


def main() -> None:
    args = parse_arguments()
    if args.prepare:
        prepare(args.prepare, args.ptb)
        return
    usual_product = "bfloat16" if jax.default_backend() == "gpu" else "float32"
    settings = Settings(
        dropout=args.dropout,
        clip=args.clip,
        momentum=args.momentum,
        product=args.product or usual_product,
    )
    texts = read_texts(args.ptb, args.words)
    nodes = deal_to_nodes(texts["train"], args.nodes, args.rows, args.length)
    held_out = {}
    for split in ("valid", "test"):
        held_out[split] = jnp.array(windows(texts[split], args.rows, args.length))
    init_key, key = jax.random.split(jax.random.key(args.seed))
    vocabulary = count_vocabulary(args.ptb)
    params = deep_lstm(vocabulary, args.units, args.units, LAYERS, tied=True).init(init_key)
    schedule = make_schedule(args)
    if args.part != "dgc":
        progress = average_epochs(settings, params, nodes, schedule.epochs, schedule.rates, key)
        follow("epochs", progress, settings, held_out, args)
    if args.part != "epochs":
        progress = compress_gradients(
            settings, params, nodes, schedule.compressed_rates, args.warm_up, key
        )
        follow("dgc", progress, settings, held_out, args)


if __name__ == "__main__":
    main()
