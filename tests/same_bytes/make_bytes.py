#!/usr/bin/env python
"""Make everything whose bytes must not move, with the package of one tree, and hash it.

    PYTHONPATH=TREE/src python make_bytes.py TREE PART OUT.json

compare.py runs this for two trees. All clocks stand still and all random bytes are counted, so that
what differs between two trees differs because of their code. Both have the helpers of their own
tests, and only what has stood in both for long is used of the package: commands, recipes,
`Mechanism`, and the file formats.
"""

import datetime
import hashlib
import itertools
import json
import os
import pkgutil
import random
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Bytes = dict[str, bytes]

# --- Nothing is left to chance --------------------------------------------------------------------

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


class StandingClock(datetime.datetime):
    """A clock that moves only when somebody sleeps."""

    slept = 0.0

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return NOW.astimezone(tz) + datetime.timedelta(seconds=StandingClock.slept)

    @classmethod
    def monotonic(cls) -> float:
        return StandingClock.slept

    @classmethod
    def sleep(cls, seconds: float) -> None:
        StandingClock.slept += seconds


class CountedBytes:
    """Random bytes that are the same each time: the n-th call has the n-th digest."""

    def __init__(self) -> None:
        self._calls = itertools.count()

    def __call__(self, size: int) -> bytes:
        stream = hashlib.shake_256(b"call %d" % next(self._calls))
        return stream.digest(size)

    def restart(self) -> None:
        self._calls = itertools.count()


counted_bytes = CountedBytes()


def leave_nothing_to_chance() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    def generate(cls: Any) -> Any:
        return cls.from_private_bytes(os.urandom(32))

    os.urandom = counted_bytes
    random._urandom = counted_bytes  # type: ignore[attr-defined]
    Ed25519PrivateKey.generate = classmethod(generate)  # type: ignore[assignment]
    stop_clocks()
    counted_bytes.restart()
    drawn = secrets.token_bytes(4)
    counted_bytes.restart()
    assert drawn == counted_bytes(4), "some random bytes are not counted"


def stop_clocks() -> None:
    """Stop the clock of every module that has one; other packages keep theirs."""
    import taciturn

    for module in pkgutil.walk_packages(taciturn.__path__, "taciturn."):
        if not module.name.endswith("__main__"):
            inside = vars(import_module(module.name))
            if inside.get("datetime") is datetime.datetime:
                inside["datetime"] = StandingClock


# --- What is compared -----------------------------------------------------------------------------

# How long things took; and the place of a file on this disk.
TIMES = re.compile(
    rb'("[a-z_]*seconds[a-z_]*"|"users_per_second"|"users_per_s"|"changed"|"file"): [0-9.e+-]+'
)
# Left out: times of the run, and rows of the versions that made it.
TIMED_COLUMNS = re.compile(r"second|users_per|overhead")


def read_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below a folder, without what only says when and where it was made."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), forget_times(path, folder)


def forget_times(path: Path, folder: Path) -> bytes:
    content = path.read_bytes().replace(str(folder.resolve()).encode(), b"HERE")
    if path.name == "metrics.csv":
        return drop_columns(content.decode()).encode()
    if path.suffix in (".json", ".jsonl", ".head"):
        return TIMES.sub(rb"\1: 0", content)
    if path.suffix == ".safetensors":
        return sort_header(content)
    if path.suffix == ".html":
        return re.sub(rb"[0-9.,]+ (seconds|s|minutes|users a second)\b", rb"0 \1", content)
    return content


def sort_header(content: bytes) -> bytes:
    """Sort the names in the header of a safetensors file, which come in any order."""
    length = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:length])
    return json.dumps(header, sort_keys=True).encode() + content[length:]


def drop_columns(table: str) -> str:
    rows = [row.split(",") for row in table.splitlines()]
    kept = [place for place, name in enumerate(rows[0]) if not TIMED_COLUMNS.search(name)]
    return "\n".join(",".join(row[place] for place in kept) for row in rows)


# --- Text and people, made here -------------------------------------------------------------------

OPENERS = "hello", "sorry", "please", "thanks", "well", "today", "tomorrow"
PEOPLE = "we", "they", "you", "the children", "my brother", "her aunt"
DEEDS = "read", "bring", "paint", "carry", "water", "find", "leave", "fold"
THINGS = "the blue boat", "a letter", "the garden", "two lamps", "an old map", "the bread"
WHENS = "before noon", "after lunch", "at night", "next week", "again", "by train"


def invent_sentence(choose: random.Random) -> str:
    parts = (OPENERS, PEOPLE, DEEDS, THINGS, WHENS)
    return " ".join(choose.choice(part) for part in parts) + "."


def write_texts(folder: Path) -> None:
    choose = random.Random(694)
    rows = ["user,text"]
    for user in range(72):
        for _ in range(choose.randint(3, 6)):
            rows.append(f"person {user},{invent_sentence(choose)}")
    (folder / "people.csv").write_text("\n".join(rows) + "\n")
    paragraphs = [" ".join(invent_sentence(choose) for _ in range(6)) for _ in range(80)]
    (folder / "public.txt").write_text("\n\n".join(paragraphs) + "\n")
    own = [invent_sentence(choose) for _ in range(40)]
    (folder / "own.txt").write_text("\n".join(own) + "\n")


def run_command(*arguments: object) -> bytes:
    """Run a command in this process, and return what it says."""
    from typer.testing import CliRunner

    from taciturn.cli import app

    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise SystemExit(f"taciturn {' '.join(words)}: {result.output}")
    return result.output.encode()


def build_people() -> None:
    texts = Path("texts")
    texts.mkdir()
    write_texts(texts)
    public = "data", "public", texts / "public.txt", "--out", "public", "--name", "sentences"
    run_command(*public, "--count-words", "--vocabulary", 60)
    kept = "--vocabulary", "public", "--least-tokens", 10, "--held-out", 0.25
    run_command("data", "build", texts / "people.csv", "--out", "people", *kept)


# --- Runs of every kind of recipe -----------------------------------------------------------------

BASE = """\
algorithm = "{algorithm}"

[data]
population = "people"
tokens_per_user = 40
{data}

[model]
width = 8
{model}

[local]
learning_rate = 0.5
batch_size = 4
unroll = 5
{local}

[server]
{server}

[participation]
users = 50
{participation}

[privacy]
{privacy}

[fleet]
{fleet}

[run]
rounds = 6
evaluate_every = 3
save_every = 2
seed = 5
{run}
"""
SECTIONS = "data", "model", "local", "server", "participation", "privacy", "fleet", "run"
LSTM = 'kind = "lstm"\nunits = 6'
SAMPLED = "cohort = 10"
SEPARATED = 'kind = "min-separation"\ncohort = 8\nmin_separation = 2'
NOISE = "clip_norm = 0.5\nnoise_multiplier = 2.0"
RECIPES: dict[str, dict[str, str]] = {
    "dp-fedavg": {},
    "budget": {"privacy": "clip_norm = 0.5\nepsilon = 6.0"},
    "rdp": {"privacy": 'clip_norm = 0.5\nepsilon = 9.0\naccountant = "rdp"'},
    "clip-schedule": {"privacy": "clip_norm = [[0, 0.5], [3, 0.3]]\nnoise_multiplier = 2.0"},
    "per-layer": {"privacy": f'{NOISE}\nclipping = "per-layer"'},
    "weights": {"participation": "cohort = 10\nweight_cap = 30.0"},
    "modular": {"privacy": f'{NOISE}\nencoding = "modular"'},
    "adam": {"server": 'optimizer = "adam"\nlearning_rate = 0.1\nmomentum = 0.9'},
    "dp-fedsgd": {"algorithm": "dp-fedsgd"},
    "fedavg": {"algorithm": "fedavg", "privacy": ""},
    "sentences": {"data": 'layout = "sentences"'},
    "mixed": {"local": 'precision = "mixed"'},
    "prox": {"local": "update_penalty = 0.1\nloss_power = 0.3\nmax_gradient_norm = 1.0"},
    "rehearsal": {
        "data": 'general = "public"\ngeneral_test = "public"',
        "local": 'forgetting = "rehearsal"',
    },
    "distillation": {"local": 'forgetting = "distillation"'},
    "canaries": {
        "run": (
            '[canaries]\ntext = "public"\nusers = [1]\ncopies = [1]\nper_cell = 2\nsentences = 5'
        ),
    },
    "cifg": {"model": 'kind = "cifg"\nunits = 6\ntied = true'},
    "gru": {"model": 'kind = "gru"\nunits = 6'},
    "transformer": {"model": 'kind = "transformer"\nlayers = 2\nheads = 2'},
    "deep-lstm": {"model": 'kind = "deep-lstm"\nunits = 6\nlayers = 2\ndropout = 0.2'},
    "tree": {"algorithm": "dp-ftrl", "privacy": f'{NOISE}\nnoise = "tree"'},
    "honaker": {"algorithm": "dp-ftrl", "privacy": f'{NOISE}\nnoise = "honaker"'},
    "banded": {"algorithm": "dp-ftrl", "privacy": f'{NOISE}\nnoise = "banded"\nbands = 4'},
    "blt": {"algorithm": "dp-ftrl", "privacy": f'{NOISE}\nnoise = "blt"\nbuffers = 2'},
    "blt-modular": {
        "algorithm": "dp-ftrl",
        "privacy": f'{NOISE}\nnoise = "blt"\nencoding = "modular"',
    },
    "restarts": {
        "algorithm": "dp-ftrl",
        "privacy": f'{NOISE}\nnoise = "tree"\nrestart_rounds = [2, 4]',
    },
    "adaptive": {
        "algorithm": "dp-ftrl",
        "privacy": (
            f'{NOISE}\nnoise = "blt"\nclipping = "adaptive"\nclipped_count_stddev = 2.0\n'
            "restart_rounds = [3]"
        ),
    },
    "cyclic": {
        "algorithm": "dp-ftrl",
        "participation": 'kind = "cyclic-poisson"\ncohort = 5',
        "privacy": f"{NOISE}\nbands = 3",
    },
    "check-in": {
        "algorithm": "dp-ftrl",
        "privacy": f'{NOISE}\nnoise = "tree"',
        "fleet": 'kind = "check-in"\ndropout_rate = 0.25\nover_selection = 1.4\ntimer_hours = 5.0',
    },
    "queue": {
        "algorithm": "dp-ftrl",
        "privacy": f'{NOISE}\nnoise = "tree"',
        "fleet": 'kind = "queue"\nin_flight = 14',
    },
}
# Those whose mechanisms differ.
MECHANISMS = (
    *("dp-fedavg", "clip-schedule", "per-layer", "weights", "modular", "fedavg"),
    *("tree", "honaker", "banded", "blt", "blt-modular", "restarts", "adaptive", "cyclic"),
)
# After this round a run is interrupted, its secrets are looked at, and it is resumed.
INTERRUPTED_AFTER = 3


class Interruption(BaseException):
    """Stands for the power going off."""


def write_recipe(name: str) -> Path:
    defaults = {
        "algorithm": "dp-fedavg",
        "model": LSTM,
        "server": 'optimizer = "momentum"\nlearning_rate = 1.0\nmomentum = 0.5',
        "privacy": NOISE,
    }
    settings = defaults | RECIPES[name]
    usual = SEPARATED if settings["algorithm"] == "dp-ftrl" else SAMPLED
    settings = {"participation": usual} | settings
    text = BASE.format(**{"algorithm": "", **dict.fromkeys(SECTIONS, ""), **settings})
    path = Path(f"{name}.toml")
    path.write_text(text)
    return path


def stop_after_a_round(done: int, rounds: int, row: dict[str, Any]) -> None:
    if done == INTERRUPTED_AFTER:
        raise Interruption


def make_runs() -> Bytes:
    import taciturn as tt

    build_people()
    found: Bytes = {}
    for name in RECIPES:
        counted_bytes.restart()
        run = Path("runs", name)
        path = write_recipe(name)
        with suppress(Interruption):
            tt.train(path, run, stop_after_a_round)
        for file, content in read_files(run):
            found[f"{name} interrupted/{file}"] = content
        tt.resume(run)
        for file, content in read_files(run):
            found[f"{name}/{file}"] = content
    for file, content in read_files(Path("people")):
        found[f"people/{file}"] = content
    return found


# --- Noise of every mechanism ---------------------------------------------------------------------


def make_noise() -> Bytes:
    """Return reports, releases and states of every mechanism, of updates that are made here."""
    from taciturn.recipe import build
    from taciturn.recipe.text import load_recipe

    build_people()
    found: Bytes = {}
    for name in MECHANISMS:
        recipe = load_recipe(write_recipe(name))
        recipe = solve(recipe)
        algorithm = build.algorithm(recipe, 60)
        params = build.language_model(recipe.model, 60).init(key_of(0))
        for file, content in follow_mechanism(algorithm.mechanism, params):
            found[f"{name}/{file}"] = content
    return found


def solve(recipe: Any) -> Any:
    """Work out coefficients and noise, which one tree does where it builds and the other apart."""
    try:
        from taciturn.recipe import solve as solving
    except ImportError:
        from taciturn.recipe import build as solving
    return solving.with_noise(solving.with_strategy(recipe), 60)


def key_of(number: int) -> Any:
    import jax

    return jax.random.key(number)


def follow_mechanism(mechanism: Any, params: Any) -> Iterator[tuple[str, bytes]]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    generator = np.random.default_rng(7)
    state = mechanism.init(params)
    release = jax.jit(mechanism.release)
    follow = jax.jit(mechanism.follow)
    bound = jax.jit(mechanism.bound)
    noise_key = jnp.asarray(generator.integers(0, 2**32, 8, dtype=np.uint32))
    followed = state
    for round in range(6):
        reports = []
        for user in range(4):
            update = jax.tree.map(
                lambda leaf: jnp.asarray(generator.normal(0, 0.3, leaf.shape), jnp.float32), params
            )
            weight = jnp.float32(0.5 + 0.1 * user)
            report = bound(mechanism.public(state), update, weight, key_of(round * 4 + user))
            reports.append(report)
        total = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *reports)
        yield f"report {round}", leaves_as_bytes(reports)
        released, state = release(state, total, noise_key)
        followed = follow(followed, released, noise_key)
        yield f"release {round}", leaves_as_bytes(released)
        yield f"state {round}", leaves_as_bytes(state)
        yield f"followed {round}", leaves_as_bytes(followed)


def leaves_as_bytes(tree: Any) -> bytes:
    import jax
    import numpy as np

    parts = []
    for leaf in jax.tree.leaves(tree):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        parts.append(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return b"".join(parts)


# --- Every message of secure rounds ---------------------------------------------------------------


def make_messages() -> Bytes:
    """Return what devices and server send each other in secure rounds, and in a whole run."""
    import secure_rounds

    import enrolling

    enrolling.time = SimpleNamespace(time=NOW.timestamp)
    found: Bytes = {}
    stages = secure_rounds.STAGES
    # Nobody leaves; some leave before they report; some leave before they help to unmask.
    for leaving in (None, 2, 4):
        counted_bytes.restart()
        cohort = secure_rounds.Cohort(12)
        gone = None if leaving is None else {stages[leaving]: cohort.gone(0.2)}
        cohort.run(gone)
        for direction in ("said", "heard"):
            by_stage = getattr(cohort, direction)
            for number, stage in enumerate(stages):
                for device, message in by_stage[stage].items():
                    name = f"some leave in {leaving}/{direction} {number} {device}"
                    found[name] = as_bytes(message)
        found[f"some leave in {leaving}/sum"] = cohort.total().values.tobytes()
    found |= make_messages_of_a_fleet()
    return found


def as_bytes(message: Any) -> bytes:
    if message is None or isinstance(message, bytes):
        return message or b""
    return message.to_bytes()


class InlineThread:
    """A thread that has ended before it starts another: answers come in one order."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        self._work = lambda: target(*args)

    def start(self) -> None:
        self._work()


def make_messages_of_a_fleet() -> Bytes:
    """Return all that travels in a run of devices in this process, check-ins included."""
    import fleet_of_devices
    import local_link

    from harness import lettered_words, quietly
    from taciturn.runs.loop import train_run

    counted_bytes.restart()
    local_link.threading = SimpleNamespace(Thread=InlineThread, Lock=threading.Lock)
    clock = SimpleNamespace(monotonic=StandingClock.monotonic, sleep=StandingClock.sleep)
    local_link.time = clock
    fleet_module = import_module("taciturn.fleets.devices.fleet")
    vars(fleet_module)["time"] = clock
    fleet = fleet_of_devices.FleetOfDevices(Path("fleet"), lettered_words(), count=12)
    found: Bytes = {}
    numbers = itertools.count()
    ask = fleet.link.ask

    def watch(kind: str, contents: Any, *others: Any, **named: Any) -> Any:
        StandingClock.sleep(1.0)
        answers = ask(kind, contents, *others, **named)
        number = next(numbers)
        for device, content in contents.items():
            found[f"fleet/{number} {kind} to {device}"] = content
        found[f"fleet/{number} {kind} to all"] = named.get("shared", b"")
        for device, answer in answers.items():
            found[f"fleet/{number} {kind} from {device}"] = answer
        return answers

    fleet.link.ask = watch
    train_run(fleet.recipe, Path("fleet/run"), quietly, fleet.connected)
    for file, content in read_files(Path("fleet/run")):
        found[f"fleet/run/{file}"] = content
    return found


# --- Exports, statements and pages ----------------------------------------------------------------


def make_exports() -> Bytes:
    import taciturn as tt

    build_people()
    small = "--samples", 20_000, "--entries", 300
    found: Bytes = {}
    for name in ("dp-fedavg", "cifg"):
        run = Path("runs", name)
        tt.train(write_recipe(name), run)
        for kind in ("model", "onnx", "onnx-int8", "js", "arpa", "combined"):
            options = small if kind in ("arpa", "combined") else ()
            out = Path("exports", name, kind)
            found[f"{name} {kind}/said"] = run_command(
                "export", run, "--to", kind, "--out", out, *options
            )
        found[f"{name} evaluated"] = run_command("evaluate", run)
        found[f"{name} report"] = run_command("report", run)
        for file, content in read_files(run):
            found[f"{name} run/{file}"] = content
    run_command("keyboard", "ngram", "people", "--out", "counted", "--order", 3, "--non-private")
    run_command("personalise", "runs/cifg", "texts/own.txt", "--out", "personal")
    run_command("ledger", "export", "people", "exports/costs.json")
    found["ledger shown"] = run_command("ledger", "show", "people")
    for folder in ("exports", "counted", "personal"):
        for file, content in read_files(Path(folder)):
            found[f"{folder}/{file}"] = content
    return found


def make_help() -> Bytes:
    """Return the help of every command."""
    import typer.main

    from taciturn.cli import app

    found: Bytes = {}

    def visit(command: Any, words: tuple[str, ...]) -> None:
        found[" ".join(words) or "taciturn"] = run_command(*words, "--help")
        for name, inner in getattr(command, "commands", {}).items():
            visit(inner, (*words, name))

    visit(typer.main.get_command(app), ())
    return found


def make_page(tree: Path) -> Bytes:
    """Return the papers' page and its figures, made of the results of the tree."""
    sys.path.insert(0, str(tree / "experiments"))
    try:
        from lib.page import page
    except ImportError:
        from page import page

    return {str(path): content.encode() for path, content in page().items()}


# --- The whole ------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Bytes]] = {
    "noise": make_noise,
    "runs": make_runs,
    "messages": make_messages,
    "exports": make_exports,
    "help": make_help,
}


def main() -> None:
    tree, part, out = Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]).resolve()
    leave_nothing_to_chance()
    sys.path[:0] = [str(tree / "tests"), str(tree / "tests" / "fleets")]
    import taciturn

    assert Path(taciturn.__file__).is_relative_to(tree), taciturn.__file__
    made = make_page(tree) if part == "page" else PARTS[part]()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in made.items()}
    out.write_text(json.dumps(digests, indent=0, sort_keys=True))
    for name, content in made.items():
        kept = out.with_suffix("") / name
        kept.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            kept.write_bytes(content)


if __name__ == "__main__":
    main()
